"""Casts around float operations and quantized operations, in both directions, over the whole table.

For each operation: the table admits what StableHLO's verifier admits (where they differ,
a test says so); expanding and fusing gives the same module again; StableHLO's own C++ passes give
the same module where they support the operation. With other types in the places of the quantized
ones, no fusion gives an operation that the specification or the verifier refuses.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from programs import run_passes
from quantized_ops import (
    PER_TENSOR,
    PROGRAMS,
    operation_types,
    program_text,
    program_with_casts,
    quantized_places,
)
from subquant.compiler.opt import run_opt
from subquant.compiler.pipeline import parse_pipeline
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.quant import is_quantized
from subquant.dialects.stablehlo import OPERATIONS, of_category, why_illegal
from subquant.errors import Remark, SubquantError, UnsupportedError, UsageError
from subquant.transforms.base import walk

TO_QDQ = "legalize-quantized-op-to-qdq"
TO_QUANTIZED = "legalize-qdq-to-quantized-op"

REFUSED_BY_THE_VERIFIER = {"triangular_solve"}
"""The specification admits quantized operands, the verifier of this version none."""

ACCEPTED = sorted(PROGRAMS.keys() - REFUSED_BY_THE_VERIFIER)
WITH_FLOAT_FORM = [
    name
    for name in ACCEPTED
    if OPERATIONS[f"stablehlo.{name}"].computes or OPERATIONS[f"stablehlo.{name}"].moves
]


@cache
def context() -> ir.Context:
    return create_context()


def run(text: str, passes: str) -> tuple[str, list[Remark]]:
    module, remarks = run_passes(text, passes, context())
    return str(module), remarks


def printed(text: str) -> str:
    return str(parse_text(text, context()))


def quantized_operations(text: str) -> list[str]:
    """Names of the operations on quantized values, casts and terminators aside."""
    module = parse_text(text, context())
    return [
        op.name
        for op in walk(module.operation)
        if any(is_quantized(value.type) for value in (*op.operands, *op.results))
        and op.name.startswith("stablehlo.")
        and op.name != "stablehlo.return"
        and not op.name.startswith("stablehlo.uniform_")
    ]


def reason_against(name: str, elements: list[str] | tuple[str, ...]) -> str | None:
    """Ask the table about a program with these element types."""
    with context(), ir.Location.unknown():
        operands, results = (
            [ir.Type.parse(type_) for type_ in types] for types in operation_types(name, elements)
        )
        attributes: Any = ir.Attribute.parse(f"{{{PROGRAMS[name].attributes}}}")
        return why_illegal(f"stablehlo.{name}", operands, results, attributes)


# -- the table ------------------------------------------------------------------------------------


def test_the_table_has_the_operations_of_the_specification() -> None:
    assert len(OPERATIONS) == 84
    assert sum(op.per_axis for op in OPERATIONS.values()) == 20
    assert {f"stablehlo.{name}" for name in PROGRAMS} == OPERATIONS.keys()
    assert all(context().is_registered_operation(name) for name in OPERATIONS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_per_tensor_programs_are_legal(name: str) -> None:
    assert reason_against(name, [PER_TENSOR] * quantized_places(PROGRAMS[name])) is None
    if name not in REFUSED_BY_THE_VERIFIER:
        parse_text(program_text(name), context())
        return
    with pytest.raises(SubquantError, match="operand #0 must be"):
        parse_text(program_text(name), context())


I8 = "!quant.uniform<i8:f32, 0.5>"
OTHER = "!quant.uniform<i8:f32, 2.0:3>"
NARROW = "!quant.uniform<i8<-127:127>:f32, 0.5>"
I4 = "!quant.uniform<i4:f32, 0.5>"
I32 = "!quant.uniform<i32:f32, 0.5>"
U8 = "!quant.uniform<u8:f32, 0.5>"
HALF = "!quant.uniform<i8:f16, 0.5>"
I5 = "!quant.uniform<i5:f32, 0.5>"


def axis(dimension: int, *scales: float, storage: str = "i8", zero_point: int = 0) -> str:
    listed = ", ".join(f"{float(scale)}:{zero_point}" for scale in scales)
    return f"!quant.uniform<{storage}:f32:{dimension}, {{{listed}}}>"


TYPES = [I8, OTHER, NARROW, I4, I32, U8, HALF, I5, "f32", "f16"]
TYPES += [axis(0, 1, 2), axis(0, 1), axis(1, 1, 2, 3), axis(1, 1, 2, 3, 4), axis(2, 1, 2, 3)]
TYPES += [axis(3, 1, 2, 3, 4, 5), axis(0, 1, 2, 3)]

NOT_COMPARED = {
    "async_done",  # its operand is a future, which the rules do not look into
    "async_start",  # the verifier looks at its body
    "bitcast_convert",  # shapes follow from the widths
    "constant",  # its value has a type of its own
}
VERIFIER_IS_LAXER = {
    # the specification asks for one element type, the verifier does not compare
    "dynamic_broadcast_in_dim",
    "dynamic_gather",
    "dynamic_reshape",
    # inputs and initial values (or updates) of several types
    "reduce",
    "reduce_window",
    "scatter",
    "select_and_scatter",
    # u8 with i8
    "add",
    "convolution",
    "dot_general",
    "dynamic_conv",
}
VERIFIER_IS_STRICTER = {
    "add": "inferred type",  # ranges of several widths; a per-axis and a per-tensor operand
    "dynamic_conv": "per-tensor integer quantized",  # no per-axis weights
    "select": "requires compatible types for non-predicate operands",  # several scales
    "triangular_solve": "operand #0 must be",
}


WHERE_THEY_DIFFER = {
    "add": [(I8, axis(1, 1, 2, 3), axis(1, 1, 2, 3)), (I8, NARROW, NARROW), (I8, U8, I8)],
    "convolution": [(U8, I8, U8)],
    "dot_general": [(U8, I8, U8)],
    "dynamic_conv": [(I8, axis(3, 1, 2, 3, 4, 5), I8), (U8, I8, U8)],
    "dynamic_gather": [(I8, OTHER)],
    "reduce": [(NARROW, I8, I8, I8, I8, I8)],
    "reduce_window": [(I8, NARROW, I8)],
    "scatter": [(OTHER, I4, OTHER)],
    "select": [(I8, OTHER, OTHER)],
    "select_and_scatter": [(NARROW, NARROW, I8, NARROW)],
}


def combinations(name: str, count: int) -> list[tuple[str, ...]]:
    """Element types of the quantized types of a program: all equal, and some mixed."""
    positions = quantized_places(PROGRAMS[name])
    choose = random.Random(name)
    actual = [*((type_,) * positions for type_ in TYPES), *WHERE_THEY_DIFFER.get(name, ())]
    for _ in range(count - len(actual)):
        mixed = [choose.choice(TYPES)] * positions
        for _ in range(choose.randint(1, 2)):
            mixed[choose.randrange(positions)] = choose.choice(TYPES)
        actual.append(tuple(mixed))
    return [types for types in dict.fromkeys(actual) if any("quant" in type_ for type_ in types)]


def crashes_the_verifier(name: str, types: tuple[str, ...]) -> bool:
    """A per-tensor operand and a per-axis result crash the verifier of this version."""
    return name == "dynamic_broadcast_in_dim" and types[0].count(":") < types[1].count(":")


def test_the_rules_agree_with_the_verifier() -> None:
    """The verifier accepts exactly the types that the rules allow, except those listed above."""
    stricter, laxer = set(), set()
    compared = legal = 0
    for name in sorted(PROGRAMS.keys() - NOT_COMPARED):
        for types in combinations(name, 80) if quantized_places(PROGRAMS[name]) else ():
            if crashes_the_verifier(name, types):
                continue
            reason = reason_against(name, types)
            try:
                parse_text(program_text(name, types, opaque=True), context())
                message = None
            except SubquantError as error:
                message = error.message
            compared += 1
            legal += reason is None
            if reason is None and message is not None:
                assert VERIFIER_IS_STRICTER.get(name, "no such operation") in message, (name, types)
                stricter.add(name)
            if reason is not None and message is None:
                laxer.add(name)
    assert (stricter, laxer) == (VERIFIER_IS_STRICTER.keys(), VERIFIER_IS_LAXER)
    assert compared > 3000
    assert legal > 500


@pytest.mark.parametrize(
    ("name", "elements", "expected"),
    [
        ("add", [I8, "f32", I8], "operand 1 must be quantized, got f32 (C2)"),
        ("add", [I8, U8, I8], "must have one storage type"),
        ("add", [I8, HALF, I8], "(C4)"),
        ("add", [axis(1, 1, 2, 3), I8, I8], "exactly if an operand is"),
        ("add", [axis(1, 1, 2, 3), I8, axis(0, 1, 2)], "(C6)"),
        ("add", [I8, axis(1, 1, 2, 3), axis(0, 1, 2)], "(C7)"),
        ("abs", [I5, I5], "operand 0 must have a storage type of 2, 4, 8, 16 or 32 bits"),
        ("abs", ["!quant.any<i8:f32>", I8], "operand 0: quantized type must have uniform"),
        ("abs", [axis(3, 1, 2), I8], "operand 0 must be quantized per tensor"),
        ("reshape", [axis(2, 1, 2), I8], "along one of its dimensions"),
        ("reshape", [axis(1, 1, 2), I8], "a scale for each index of its axis"),
        ("reshape", [axis(1, 1, 2, 3), axis(2, 1, 2, 4)], "but for the quantization dimension"),
        ("reshape", [axis(0, 1, 2), axis(1, 1, 2)], None),
        ("reshape", [axis(0, 1), axis(0, 1)], "operand 0 must have a scale for each index"),
        ("transpose", [axis(0, 1, 2), axis(1, 1, 2)], None),
        ("transpose", [axis(1, 1, 2, 3), axis(0, 1, 2, 3)], None),
        ("broadcast_in_dim", [axis(1, 1, 2, 3), axis(1, 1, 2, 3)], None),
        ("broadcast_in_dim", [axis(0, 4), axis(0, 4, 4)], None),
        ("broadcast_in_dim", [axis(0, 4), axis(0, 4, 5)], "must have one scales"),
        (
            "broadcast_in_dim",
            [axis(0, 4), axis(0, 4, 4, zero_point=1)],
            "must have one zero points",
        ),
        ("broadcast_in_dim", [axis(1, 1, 2, 3), axis(0, 1, 2)], "along dimension 1, to which"),
        ("dot_general", [I8, "f32", I8], "operand 1 must be quantized, got f32 (C14)"),
        ("dot_general", [I8, I8, "f32"], "must both be quantized or both not (C14)"),
        ("dot_general", [I8, OTHER, I8], "the zero point of operand 1 must be 0"),
        ("dot_general", [I8, axis(0, 1, 2, 3), I8], "that is contracted, got dimension 0 (C16)"),
        ("dot_general", [I8, I4, I8], "(C17)"),
        ("dot_general", [HALF, I8, I8], "(C18)"),
        ("dot_general", [I8, I8, HALF], "(C18)"),
        ("dot_general", [I8, I8, I32], None),
        ("dot_general", [I8, NARROW, I8], None),
        ("dot_general", [I8, I8, axis(1, 1, 2, 3, 4)], "because operand 1 is"),
        ("dot_general", [I8, axis(1, 1, 2, 3, 4), I8], None),
        ("dot_general", [axis(0, 1, 2), I8, I8], "operand 0 must be quantized per tensor"),
        ("dot_general", ["f32", I4, "f32"], None),
        ("dot_general", ["f16", I8, "f16"], "(C20)"),
        ("convolution", [I8, "f32", I8], "(C28)"),
        ("convolution", [I8, axis(0, 1, 2, 3), I8], "the kernel's output features, which are dim"),
        (
            "convolution",
            [I8, axis(3, 1, 2, 3, 4, 5), axis(1, 1, 2)],
            "the output's output features",
        ),
        ("convolution", [I8, axis(3, 1, 2, 3, 4, 5), axis(3, 1, 2, 3, 4, 5)], None),
        ("convolution", [I8, OTHER, I8], None),  # zero points of rhs may be other than 0
        ("convolution", [I8, I4, I8], "(C31)"),
        ("convolution", [I8, I8, HALF], "(C32)"),
        ("convolution", [I8, I8, axis(3, 1, 2, 3, 4, 5)], "(C33)"),
        ("convolution", ["f16", I8, "f16"], "(C34)"),
        ("reduce_window", [I8, I8, I32], None),
        ("reduce_window", [I8, I8, OTHER], None),
        ("reduce_window", [I8, OTHER, I8], "(C3)"),
        ("reduce_window", [I32, I32, I8], "at least as wide as operand 0"),
        ("reduce_window", [I8, I8, HALF], "expressed type"),
        ("reduce_window", [I8, I8, "f32"], "must both be quantized"),
        ("scatter", [I8, OTHER, I8], "operand 0 and operand 2 must have one element type"),
        ("uniform_quantize", [I8, HALF], "(C2)"),
        ("uniform_dequantize", [HALF], "(C2)"),
        ("gather", [I8, OTHER], "(C23)"),
        ("sort", [I8, OTHER, I8, I8], "operand 1 and result 1 must have one element type"),
    ],
)
def test_quant_rules(name: str, elements: list[str], expected: str | None) -> None:
    reason = reason_against(name, elements)
    if expected is None:
        assert reason is None
    else:
        assert reason is not None
        assert expected in reason


def test_positions_that_are_never_quantized() -> None:
    with context(), ir.Location.unknown():
        tensor = ir.Type.parse(f"tensor<4x{I8}>")
        reason = why_illegal("stablehlo.gather", [tensor, tensor], [tensor], {})
        assert reason is not None
        assert "operand 1 must not be quantized" in reason
        reason = why_illegal("stablehlo.compare", [tensor, tensor], [tensor], {})
        assert reason is not None
        assert "result must not be quantized" in reason
        unranked = ir.Type.parse(f"tensor<*x{I8}>")
        reason = why_illegal("stablehlo.abs", [unranked], [unranked], {})
        assert reason is not None
        assert "operand 0 must be a ranked tensor" in reason
        assert why_illegal("stablehlo.convert", [tensor], [tensor], {}) is not None
        real = ir.Type.parse("tensor<4xf32>")
        assert why_illegal("stablehlo.convert", [real], [real], {}) is None


def test_long_lists_of_scales_are_cut_in_a_reason() -> None:
    reason = reason_against("abs", [axis(0, *range(1, 41)), I8])
    assert (
        reason
        == "operand 0 must be quantized per tensor, got !quant.uniform<i8:f32:0, {40 scales}>"
    )


# -- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_FLOAT_FORM)
def test_expanding_and_fusing_gives_the_same_module(name: str) -> None:
    text = program_text(name)
    expanded, remarks = run(text, f"{TO_QDQ}{{data-movement=true explain=true}}")
    assert not remarks
    assert quantized_operations(expanded) == []
    fused, remarks = run(expanded, f"{TO_QUANTIZED}{{explain=true}}")
    assert not remarks
    assert fused == printed(text)


@pytest.mark.parametrize("name", sorted(set(ACCEPTED) - set(WITH_FLOAT_FORM)))
def test_what_has_no_float_form_stays(name: str) -> None:
    """Only casts between float and quantized tensors remain in the end."""
    expanded, remarks = run(program_text(name), f"{TO_QDQ}{{data-movement=true explain=true}}")
    if name == "uniform_quantize":
        assert expanded.count("uniform_dequantize") == expanded.count("uniform_quantize") == 1
        assert run(expanded, TO_QUANTIZED)[0].count("uniform_") == 0  # one type: nothing to do
        return
    assert expanded == printed(program_text(name))
    inside = name == "async_start"  # the operation that it holds is not asked
    casts = name == "uniform_dequantize"
    assert len(remarks) == (0 if casts else len(quantized_operations(expanded)) - inside)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("add", [axis(0, 1, 2), axis(0, 3, 4), axis(0, 1, 2)]),
        ("add", [U8, U8, U8]),
        ("multiply", [HALF, HALF, HALF]),
        ("multiply", ["!quant.uniform<i16:bf16, 0.5>"] * 3),
        ("tanh", ["!quant.uniform<i8:f64, 0.5>"] * 2),
        ("clamp", [NARROW] * 4),
        ("batch_norm_training", [I8, OTHER, I8, OTHER, I8, OTHER]),
        ("dot_general", [I8, axis(1, 1, 2, 3, 4), axis(1, 1, 2, 3, 4, storage="i32")]),
        ("dot_general", ["f32", axis(1, 1, 2, 3, 4, storage="i4"), "f32"]),
        ("convolution", [OTHER, axis(3, 1, 2, 3, 4, 5, zero_point=1), axis(3, 1, 2, 3, 4, 5)]),
        ("convolution", ["f16", HALF, "f16"]),
        ("transpose", [axis(0, 1, 2), axis(1, 1, 2)]),
        ("reshape", [axis(1, 1, 2, 3), axis(2, 1, 2, 3)]),
        ("broadcast_in_dim", [axis(0, 4), axis(0, 4, 4)]),
        ("reduce", [I8, OTHER, I8, OTHER, I32, OTHER]),
        ("reduce_window", [I4, I4, I8]),
        ("scatter", [I8, I8, I32]),
        ("select_and_scatter", [I8, I8, I8, I32]),
        ("all_reduce", [I8, I32]),
        ("reduce_scatter", [OTHER, I32]),
        ("map", [I8, I8, OTHER]),
        ("sort", [I8, OTHER, I8, OTHER]),
    ],
)
def test_there_and_back_with_other_types(name: str, elements: list[str]) -> None:
    text = program_text(name, elements)
    expanded, _ = run(text, f"{TO_QDQ}{{data-movement=true}}")
    assert quantized_operations(expanded) == []
    assert run(expanded, f"{TO_QUANTIZED}{{hybrid=true}}")[0] == printed(text)


def test_dynamic_shapes_go_there_and_back() -> None:
    text = f"""
      func.func @main(%x: tensor<?x4x{I8}>, %w: tensor<4x?x{I8}>) -> tensor<?x?x{I32}> {{
        %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
          : (tensor<?x4x{I8}>, tensor<4x?x{I8}>) -> tensor<?x?x{I32}>
        return %r : tensor<?x?x{I32}>
      }}"""
    expanded, _ = run(text, TO_QDQ)
    assert "(tensor<?x4xf32>, tensor<4x?xf32>) -> tensor<?x?xf32>" in expanded
    assert run(expanded, TO_QUANTIZED)[0] == printed(text)


def test_casts_of_every_dialect_fuse() -> None:
    real, quantized = "tensor<2xf32>", f"tensor<2x{I8}>"
    for dialect in ("quant", "subquant"):
        fused, _ = run(
            f"func.func @main(%x: {quantized}) -> {quantized} {{\n"
            f'  %d = "{dialect}.dcast"(%x) : ({quantized}) -> {real}\n'
            f"  %s = stablehlo.tanh %d : {real}\n"
            f'  %q = "{dialect}.qcast"(%s) : ({real}) -> {quantized}\n'
            f"  return %q : {quantized}\n}}",
            TO_QUANTIZED,
        )
        assert [line.split()[2] for line in fused.splitlines() if "=" in line] == ["stablehlo.tanh"]


# -- operations that stay -------------------------------------------------------------------------


def test_no_fusion_is_illegal_or_invalid() -> None:
    """With any types: fused to the very program as written, or left as it is with one reason."""
    fused = left = 0
    for name in sorted(PROGRAMS.keys() - {"uniform_quantize", "async_done", "async_start"}):
        row = OPERATIONS[f"stablehlo.{name}"]
        if not row.computes and not row.moves:
            continue
        for types in combinations(name, 50):
            try:
                before = printed(program_with_casts(name, types))
            except SubquantError:
                continue  # the float operation is not valid, or a cast
            after, remarks = run(before, f"{TO_QUANTIZED}{{explain=true}}")
            if after != before:
                assert reason_against(name, types) is None
                assert after == printed(program_text(name, types))
                assert not remarks
                fused += 1
            elif "uniform_dequantize" in before:
                assert len(remarks) == 1
                left += 1
    assert fused > 300
    assert left > 400


def test_a_fusion_that_the_verifier_refuses_is_taken_back() -> None:
    before = printed(program_with_casts("triangular_solve"))
    after, remarks = run(before, f"{TO_QUANTIZED}{{explain=true}}")
    assert after == before
    assert "left alone: StableHLO's verifier refuses it: operand #0 must be" in remarks[0].message


def test_a_remark_has_a_place() -> None:
    text = program_with_casts("bitcast_convert")
    result = run_opt(
        text.encode(),
        "f.mlir",
        f"{TO_QUANTIZED}{{explain=true}}",
        split=False,
        verify_diagnostics=False,
    )
    (remark,) = result.remarks
    assert str(remark) == (
        "f.mlir:3:10: remark: 'stablehlo.bitcast_convert' op is left alone: it acts on stored "
        "bits, which a float does not have"
    )
    assert not result.errors


def test_without_explain_there_is_no_remark() -> None:
    assert run(program_with_casts("bitcast_convert"), TO_QUANTIZED)[1] == []
    assert run(program_text("bitcast_convert"), TO_QDQ)[1] == []


def test_remarks_are_compared_with_comments() -> None:
    text = program_with_casts("bitcast_convert")
    passes = f"{TO_QUANTIZED}{{explain=true}}"
    for comment, expected in (
        ("// expected-remark @+1 {{acts on stored bits}}", []),
        ("", ["unexpected remark: "]),
        ("// expected-remark @+1 {{another}}", ["unexpected remark: ", "expected remark was not"]),
        (
            "// expected-error @+1 {{stored bits}}",
            ["unexpected remark: ", "expected error was not"],
        ),
    ):
        statements = text.splitlines()
        statements.insert(2, comment)
        result = run_opt(
            "\n".join(statements).encode(), "f.mlir", passes, split=False, verify_diagnostics=True
        )
        assert len(result.errors) == len(expected)
        for error, part in zip(result.errors, expected, strict=True):
            assert part in str(error)


def test_options_are_true_or_false() -> None:
    with pytest.raises(UsageError, match=r"option 'explain' of .* must be true or false, got '1'"):
        parse_pipeline(f"{TO_QUANTIZED}{{explain=1}}")


# -- StableHLO's own passes -----------------------------------------------------------------------

EXPANDED_UPSTREAM = [
    name.removeprefix("stablehlo.")
    for name in of_category(
        *("comparison", "contraction", "elementwise-binary", "elementwise-ternary"),
        *("elementwise-unary", "linear-algebra", "normalization"),
    )
    if name not in ("stablehlo.dynamic_conv", "stablehlo.is_finite", "stablehlo.triangular_solve")
]


@pytest.mark.parametrize("name", EXPANDED_UPSTREAM)
def test_expanding_as_upstream(name: str) -> None:
    text = program_text(name)
    assert run(text, f"{TO_QDQ},cse")[0] == run(text, f"stablehlo-{TO_QDQ},cse")[0]


def test_upstream_expands_no_other_operation() -> None:
    for name in set(WITH_FLOAT_FORM) - set(EXPANDED_UPSTREAM):
        if not PROGRAMS[name].regions:  # operations inside are expanded there
            assert run(program_text(name), f"stablehlo-{TO_QDQ}")[0] == printed(program_text(name))


@pytest.mark.parametrize("name", [n for n in WITH_FLOAT_FORM if not PROGRAMS[n].regions])
def test_fusing_as_upstream(name: str) -> None:
    """Upstream fuses one result whose operands are all dequantized, and leaves the float operation.

    Where that is not dead, everything is done twice: values are exchanged twice.
    """
    text = program_with_casts(name)
    fused, upstream = run(text, TO_QUANTIZED)[0], run(text, f"stablehlo-{TO_QUANTIZED},cse")[0]
    operands, results = operation_types(name)
    assert "uniform_" not in fused
    if name in ("all_to_all", "collective_broadcast", "collective_permute"):
        assert upstream.count(f'"stablehlo.{name}"') == 2
    elif all("quant" in type_ for type_ in operands + results) and operands and len(results) == 1:
        assert fused == upstream
    else:
        assert upstream == printed(text)


def test_upstream_fuses_what_the_specification_forbids() -> None:
    """Its verifier then refuses the module, or the bits are taken for others."""
    text = program_with_casts("multiply", [I8, I8, I32])
    with pytest.raises(UnsupportedError, match="requires compatible types"):
        run(text, f"stablehlo-{TO_QUANTIZED}")
    assert run(text, TO_QUANTIZED)[0] == printed(text)
    text = program_with_casts("bitcast_convert")
    assert "uniform_" not in run(text, f"stablehlo-{TO_QUANTIZED}")[0]
    assert run(text, TO_QUANTIZED)[0] == printed(text)
