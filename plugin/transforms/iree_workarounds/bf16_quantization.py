"""Roundings to bf16 in arithmetic that quantizes.

Symptom: integers that bf16 arithmetic quantizes are off by up to two, and a computed scale differs
between its uses.
Cause: IREE 3.13 computes bf16 in f32, and folds ``extf(truncf(x))`` to ``x``, explicit conversions
too.
Test: tests/test_iree_limits_numbers.py::test_roundings_to_bf16_are_still_omitted

A quotient that is rounded to bf16 may be another integer than one that is not. Scales, zero points
and quotients are therefore rounded by integer arithmetic, which IREE keeps::

    %t = stablehlo.multiply %x, %reciprocal : tensor<4xbf16>
    %q = stablehlo.round_nearest_even %t : tensor<4xbf16>

becomes ::

    %t = stablehlo.multiply %x, %reciprocal : tensor<4xbf16>
    %w = stablehlo.convert %t : (tensor<4xbf16>) -> tensor<4xf32>
    %p = ... (the bits of %w, rounded to their upper half) : tensor<4xf32>
    %r = stablehlo.convert %p : (tensor<4xf32>) -> tensor<4xbf16>
    %q = stablehlo.round_nearest_even %r : tensor<4xbf16>

Other arithmetic of bf16, such as a norm or an activation, keeps IREE's greater precision:
docs/limits.md.

Source: StableHLO specification: the result of an operation has its element type.
"""

from __future__ import annotations

from collections.abc import Iterable

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import stablehlo
from ...numerics.casts import round_to_bf16
from ..base import named, replace_uses

_TO_INTEGERS = tuple(
    f"stablehlo.{name}"
    for name in ("ceil", "convert", "floor", "round_nearest_afz", "round_nearest_even")
)
_ARITHMETIC = frozenset(
    f"stablehlo.{name}" for name in ("add", "convert", "divide", "multiply", "subtract")
)
"""Operations of quantization whose results are rounded."""
_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "broadcast_in_dim", "ceil", "clamp", "dynamic_broadcast_in_dim"),
        *("dynamic_reshape", "floor", "maximum", "minimum", "negate", "reshape"),
        *("round_nearest_afz", "round_nearest_even", "select", "transpose"),
    )
)
"""Operations of quantization whose results are bf16 if their operands are."""


def round_quantization(module: Operation) -> bool:
    """Round bf16 values that reach an integer; False if the module has none."""
    reduced = {
        value
        for op in named(module, ["stablehlo.reduce"])
        for value in op.operands
        if _is_float(value)
    }
    sources = (
        value
        for op in named(module, _TO_INTEGERS)
        if op.name != "stablehlo.convert" or not _is_float(op.results[0])
        for value in op.operands
    )
    rounded = _rounded_values(sources, reduced)
    for value in rounded:
        with ir.InsertionPoint.after(value.owner.operation), value.owner.location:
            replace_uses(value, _round)
    return bool(rounded)


def _rounded_values(sources: Iterable[Value], reduced: set[Value]) -> list[Value]:
    """Return the bf16 results of arithmetic that reach `sources`, up to a `reduced` tensor."""
    waiting, seen, rounded = [*sources], set(), []
    while waiting:
        value = waiting.pop()
        if value in seen or not _is_float(value) or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        producer = value.owner.operation
        name = producer.name
        if name in _ARITHMETIC and isinstance(element_type(value.type), ir.BF16Type):
            rounded.append(value)
        is_elementwise = name in _ARITHMETIC | _EXACT and value not in reduced
        if is_elementwise or name == "stablehlo.reduce":
            waiting += producer.operands
    return rounded


def _is_float(value: Value) -> bool:
    return isinstance(element_type(value.type), ir.FloatType)


def _round(value: Value) -> Value:
    """Round a bf16 tensor whose elements IREE may keep as f32."""
    wide = emit.tensor(stablehlo.convert(value, ir.F32Type.get()))
    return stablehlo.convert(round_to_bf16(wide).value, ir.BF16Type.get())
