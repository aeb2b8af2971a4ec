"""Products and reductions of f16 and bf16, with accumulators of f32.

IREE 3.13 accumulates in the result's type, and rounds to it where a tile ends: a product of f16
along 512 elements is off by 0.4 % then, and one of bf16 by 1 %, by more on one target than on the
other. It refuses the greatest element of f16 on llvm-cpu ("undefined symbol: fmaxf"), and on Vulkan
products of bf16 ("failed to legalize operation 'vector.bitcast'"). So both have accumulators of
f32, which are rounded once::

    %r = stablehlo.dot_general %x, %y ... : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf16>

becomes ::

    %s = stablehlo.dot_general %x, %y ... : (tensor<4x8xf16>, tensor<8x2xf16>) -> tensor<4x2xf32>
    %r = stablehlo.convert %s : (tensor<4x2xf32>) -> tensor<4x2xf16>

On Vulkan operands of bf16 are converted, too, and the accumulators are rounded in a dispatch of
their own: IREE refuses vectors of bf16 beside a product.

Source: StableHLO specification, ``dot_general`` and ``reduce``: the accumulation type and the order
are the implementation's.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...emit import linalg, stablehlo
from ...emit.operation import with_element
from ..base import NoMatch

__all__ = ["widen_bf16_product", "widen_product", "widen_reduction"]

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
"""Operations of a reduction's body that are the same for f32."""


def widen_product(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Accumulate a product of f16 or bf16 in f32."""
    result = op.results[0].type
    if not _is_half(result):
        return NoMatch("does not give f16 or bf16")
    rewriter.replace_op(
        op, [stablehlo.convert(_product(op, list(op.operands)), result.element_type)]
    )
    return None


def widen_bf16_product(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Multiply operands of bf16 as f32: `widen_product` comes before."""
    if not any(isinstance(element_type(value.type), ir.BF16Type) for value in op.operands):
        return NoMatch("has no operand of bf16")
    if _is_half(op.results[0].type):
        return NoMatch("has accumulators of few bits")
    product = _product(op, [_widened(value) for value in op.operands])
    rewriter.replace_op(op, [linalg.apart(product)])
    return None


def widen_reduction(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Reduce f16 or bf16 as f32."""
    if not any(_is_half(value.type) for value in op.operands):
        return NoMatch("has no operand of f16 or bf16")
    body = op.regions[0].blocks[0]
    if not all(each.operation.name in _COMBINES for each in body.operations):
        return NoMatch("has a body with other operations")
    copied = op.clone()
    created = emit.like(
        copied,
        [_widened(value) for value in op.operands],
        [_wide(result.type) for result in op.results],
        take_bodies=True,
    )
    copied.erase()
    body = created.regions[0].blocks[0]
    for value in (
        *body.arguments,
        *(v for each in body.operations for v in each.operation.results),
    ):
        value.set_type(_wide(value.type))
    narrow = [
        stablehlo.convert(value, element_type(old.type))
        for value, old in zip(created.results, op.results, strict=True)
    ]
    rewriter.replace_op(op, narrow)
    return None


def _product(op: Operation, operands: list[Value]) -> Value:
    """A product of other operands, with accumulators of f32 in place of f16 and bf16."""
    return emit.like(op, operands, [_wide(op.results[0].type)]).results[0]


def _is_half(type_: ir.Type) -> bool:
    return isinstance(element_type(type_), (ir.F16Type, ir.BF16Type))


def _wide(type_: ir.Type) -> ir.Type:
    return with_element(type_, ir.F32Type.get()) if _is_half(type_) else type_


def _widened(value: Value) -> Value:
    return stablehlo.convert(value, element_type(_wide(value.type)))
