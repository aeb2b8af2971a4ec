"""The table of StableHLO's operations on quantized types, beside the specification.

The table admits what StableHLO's verifier admits; where they differ, a test says so.
"""

from __future__ import annotations

import pytest

from programs import LONG
from quantized_ops import (
    HALF,
    I4,
    I5,
    I8,
    I32,
    NARROW,
    OTHER,
    PER_TENSOR,
    PROGRAMS,
    REFUSED_BY_THE_VERIFIER,
    U8,
    axis,
    combinations,
    context,
    program_text,
    quantized_places,
    reason_against,
)
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects.stablehlo import OPERATIONS, why_illegal
from subquant.errors import SubquantError


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


NOT_COMPARED = {
    "async_done",  # its operand is a future, which the rules do not look into
    "async_start",  # the verifier looks at its body
    "bitcast_convert",  # shapes follow from the widths
    "constant",  # its value has a type of its own
}
VERIFIER_IS_LAXER = {
    # the specification asks for one element type, the verifier does not compare
    *("dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_reshape"),
    # inputs and initial values (or updates) of several types
    *("reduce", "reduce_window", "scatter", "select_and_scatter"),
    # u8 with i8
    *("add", "convolution", "dot_general", "dynamic_conv"),
}
VERIFIER_IS_STRICTER = {
    "add": "inferred type",  # ranges of several widths; a per-axis and a per-tensor operand
    "dynamic_conv": "per-tensor integer quantized",  # no per-axis weights
    "select": "requires compatible types for non-predicate operands",  # several scales
    "triangular_solve": "operand #0 must be",
}


@pytest.mark.skipif(not LONG, reason="3 s; changes with StableHLO's version only")
def test_the_rules_agree_with_the_verifier() -> None:
    """The verifier accepts exactly the types that the rules allow, except those listed above."""
    stricter, laxer = set(), set()
    compared = legal = 0
    for name in sorted(PROGRAMS.keys() - NOT_COMPARED):
        for types in combinations(name, 80) if quantized_places(PROGRAMS[name]) else ():
            if name == "dynamic_broadcast_in_dim" and types[0].count(":") < types[1].count(":"):
                continue  # a per-axis result of a per-tensor operand crashes this verifier
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
    assert reason is None if expected is None else expected in (reason or "")


def test_positions_that_are_never_quantized() -> None:
    quantized, unranked, real = f"tensor<4x{I8}>", f"tensor<*x{I8}>", "tensor<4xf32>"
    with context(), ir.Location.unknown():
        for name, operands, type_, expected in (
            ("gather", 2, quantized, "operand 1 must not be quantized"),
            ("compare", 2, quantized, "result must not be quantized"),
            ("abs", 1, unranked, "operand 0 must be a ranked tensor"),
            ("convert", 1, quantized, ""),
        ):
            types = [ir.Type.parse(type_)]
            reason = why_illegal(f"stablehlo.{name}", types * operands, types, {})
            assert reason is not None
            assert expected in reason
        types = [ir.Type.parse(real)]
        assert why_illegal("stablehlo.convert", types, types, {}) is None


def test_long_lists_of_scales_are_cut_in_a_reason() -> None:
    assert reason_against("abs", [axis(0, *range(1, 41)), I8]) == (
        "operand 0 must be quantized per tensor, got !quant.uniform<i8:f32:0, {40 scales}>"
    )
