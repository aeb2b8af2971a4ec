"""Casts around float operations and quantized operations, in both directions, over the whole table.

For each operation: expanding and fusing gives the same module again; StableHLO's own C++ passes
give the same module where they support the operation. With other types instead of the quantized
ones, no fusion gives an operation that the specification or the verifier refuses.
"""

from __future__ import annotations

import pytest

from programs import PRODUCT, one_operation, run_passes
from quantized_ops import (
    HALF,
    I4,
    I8,
    I32,
    NARROW,
    OTHER,
    PROGRAMS,
    REFUSED_BY_THE_VERIFIER,
    U8,
    axis,
    combinations,
    context,
    operation_types,
    program_text,
    program_with_casts,
    reason_against,
)
from subquant.compiler.opt import run_opt
from subquant.compiler.pipeline import parse_pipeline
from subquant.compiler.reading import parse_text
from subquant.dialects.quant import is_quantized
from subquant.dialects.stablehlo import OPERATIONS, of_category
from subquant.errors import Remark, SubquantError, UnsupportedError, UsageError
from subquant.transforms.base import walk

TO_QDQ = "legalize-quantized-op-to-qdq"
TO_QUANTIZED = "legalize-qdq-to-quantized-op"

ACCEPTED = sorted(PROGRAMS.keys() - REFUSED_BY_THE_VERIFIER)
WITH_FLOAT_FORM = [
    name
    for name in ACCEPTED
    if OPERATIONS[f"stablehlo.{name}"].computes or OPERATIONS[f"stablehlo.{name}"].moves
]


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
    text = one_operation(PRODUCT, [f"?x4x{I8}", f"4x?x{I8}"], f"?x?x{I32}")
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


@pytest.mark.long
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
