"""Contractions and reductions of f16 and bf16 with f32 accumulators.

Symptom: rounding errors, which differ by target: 0.4 % of an f16 product along 512 elements, 1 % of
a bf16 one. IREE refuses a maximum of f16 on llvm-cpu ("undefined symbol: fmaxf"), and products of
bf16 on Vulkan ("failed to legalize operation 'vector.bitcast'").
Cause: IREE 3.13 accumulates in the result's type, and rounds to it at the end of each tile.
Test: none; tests/test_f16_accumulators.py covers it.

Accumulators are f32, and are rounded once::

    %r = stablehlo.dot_general %x, %y ... : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf16>

becomes ::

    %s = stablehlo.dot_general %x, %y ... : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf32>
    %r = stablehlo.convert %s : (tensor<4x2xf32>) -> tensor<4x2xf16>

On Vulkan bf16 operands are converted, too, and the accumulators are rounded in a dispatch of their
own: IREE refuses bf16 vectors in the dispatch of a product.

Source: StableHLO specification, ``dot_general`` and ``reduce``: the accumulation type and the order
are implementation-defined.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import linalg, stablehlo
from ...emit.operation import with_element
from ..base import NoMatch, Replacement
from .loop_nests import with_copied_body

_COMBINES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add",
        "and",
        "compare",
        "maximum",
        "minimum",
        "multiply",
        "or",
        "return",
        "select",
    )
)
"""Operations of a reduction's body that also exist for f32."""


def widen_product(op: Operation) -> Replacement:
    """Accumulate a contraction of f16 or bf16 in f32."""
    result = op.results[0].type
    if not _is_half(result):
        return NoMatch("has no result of f16 or bf16")
    product = _product(op, list(op.operands))
    return stablehlo.convert(product, result.element_type)


def widen_bf16_product(op: Operation) -> Replacement:
    """Multiply bf16 operands as f32; `widen_product` runs before."""
    if not any(isinstance(element_type(value.type), ir.BF16Type) for value in op.operands):
        return NoMatch("has no operand of bf16")
    if _is_half(op.results[0].type):
        return NoMatch("has accumulators of few bits")
    product = _product(op, [_widened(value) for value in op.operands])
    return linalg.in_separate_dispatch(product)


def widen_reduction(op: Operation) -> Replacement:
    """Reduce f16 or bf16 as f32."""
    if not any(_is_half(value.type) for value in op.operands):
        return NoMatch("has no operand of f16 or bf16")
    body = op.regions[0].blocks[0]
    if not all(each.operation.name in _COMBINES for each in body.operations):
        return NoMatch("has a body with other operations")
    types = [_wide(result.type) for result in op.results]
    created = with_copied_body(op, [_widened(value) for value in op.operands], types)
    body = created.regions[0].blocks[0]
    inner = (value for each in body.operations for value in each.operation.results)
    for value in (*body.arguments, *inner):
        value.set_type(_wide(value.type))
    return [
        stablehlo.convert(value, element_type(old.type))
        for value, old in zip(created.results, op.results, strict=True)
    ]


def _product(op: Operation, operands: list[Value]) -> Value:
    """A contraction of other operands, with f32 accumulators instead of f16 and bf16."""
    return emit.like(op, operands, [_wide(op.results[0].type)]).results[0]


def _is_half(type_: ir.Type) -> bool:
    return isinstance(element_type(type_), (ir.F16Type, ir.BF16Type))


def _wide(type_: ir.Type) -> ir.Type:
    return with_element(type_, ir.F32Type.get()) if _is_half(type_) else type_


def _widened(value: Value) -> Value:
    return stablehlo.convert(value, element_type(_wide(value.type)))
