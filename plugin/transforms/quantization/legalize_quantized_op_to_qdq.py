"""``legalize-quantized-op-to-qdq``: expand a quantized operation to dequantize, float, quantize.

The inverse of ``legalize-qdq-to-quantized-op``, for a backend that has float operations only, and
for comparison: StableHLO's specification defines a quantized operation as this sequence.

Before::

    %r = stablehlo.add %x, %y : (tensor<4x!q1>, tensor<4x!q2>) -> tensor<4x!q3>

After::

    %a = stablehlo.uniform_dequantize %x : (tensor<4x!q1>) -> tensor<4xf32>
    %b = stablehlo.uniform_dequantize %y : (tensor<4x!q2>) -> tensor<4xf32>
    %s = stablehlo.add %a, %b : tensor<4xf32>
    %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q3>

* Reductions, ``map`` and sorts get float bodies. An i8 sum is then accumulated in floats, rounded
  and saturated once, at the end; the specification leaves order and rounding to the implementation.
  A reduction whose body cannot be float (it has a quantized constant, or casts) stays; the
  operations in its body are expanded one by one.
* A requantization (``uniform_quantize`` of a quantized value) becomes its two casts.
* Hybrid contractions become a float contraction of a dequantized right-hand side.
* Operations that only move elements stay as they are: they move stored values, which is exact and
  moves a quarter of the bytes, and any backend that stores the values can do it. With
  ``data-movement=true`` they are expanded too. The result is the same, except that i32 storage
  loses bits in f32, and a stored value outside a narrowed range is clamped.
* Control flow, barriers, transfers, ``constant`` and ``bitcast_convert`` stay: a float form would
  not mean the same. So does the one operation that ``async_start`` holds. The casts of ``quant``
  and ``subquant``, sub-channel ones included, stay.

With ``explain=true`` each quantized StableHLO operation that stays is reported with its location
and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type, is_quantized
from ...dialects.quantized_ops import QuantizedOp
from ...dialects.stablehlo import (
    DEQUANTIZE,
    OPERATIONS,
    QUANTIZE,
    why_illegal,
    why_not_in_table,
)
from ...emit import with_element
from ...errors import Remark
from ..base import ModulePass, has_type, is_held_by_async_start, walk
from .retyping import Retyping, owner_block


@dataclass(frozen=True)
class LegalizeQuantizedOpToQdq(ModulePass):
    """Write quantized operations as float operations between casts.

    Args:
        data_movement: also those that only move elements, or read a shape.
        explain: return a remark on each quantized operation that stays.
    """

    data_movement: bool = False
    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark]:
        """Expand in `module`; never fails."""
        remarks = []
        for op in walk(module):
            if not _is_candidate(op):  # checked late: a body changes with its operation
                continue
            with op.location:
                reason = self._expand(op)
            if reason is not None and self.explain:
                remarks.append(Remark.about(op, f"is left alone: {reason}"))
        return remarks

    def _expand(self, op: Operation) -> str | None:
        """Expand one operation; return the reason if it is left alone."""
        row = OPERATIONS.get(op.name)
        if row is None:
            return why_not_in_table(op.name)
        if op.name != QUANTIZE and row.why_no_float_form is not None:
            return f"it {row.why_no_float_form}"
        if row.moves and not self.data_movement:
            return "it only moves elements; with data-movement=true it is expanded"
        operands, results = [v.type for v in op.operands], [v.type for v in op.results]
        reason = why_illegal(op.name, operands, results, op.attributes)
        if reason is not None:
            return reason
        if op.name == QUANTIZE:
            with ir.InsertionPoint(op):
                op.operands[0] = _dequantize(op.operands[0])
            return None
        return _expand_whole(op, row)


def _is_candidate(op: Operation) -> bool:
    """True for a quantized StableHLO operation other than the two casts."""
    if not op.name.startswith("stablehlo.") or op.name in ("stablehlo.return", DEQUANTIZE):
        return False
    if is_held_by_async_start(op):
        return False  # its body is one operation, without casts
    if op.name == QUANTIZE:
        return is_quantized(op.operands[0].type)
    return has_type(op, is_quantized)


def _expressed(type_: ir.Type) -> ir.Type:
    """Return the tensor type of the expressed values of a quantized tensor type."""
    return with_element(type_, element_type(type_).expressed_type)


def _dequantize(value: Value) -> Value:
    return emit.value(DEQUANTIZE, [value], _expressed(value.type))


def _expand_whole(op: Operation, row: QuantizedOp) -> str | None:
    """Dequantize operands and quantize results; return the reason if a body stays quantized."""
    retyping = Retyping()
    if row.bodies is not None:
        for region in op.regions:
            reason = _make_body_float(region.blocks[0], retyping)
            if reason is not None:
                retyping.undo()
                return reason
    with ir.InsertionPoint(op):
        for number, operand in enumerate(op.operands):
            if is_quantized(operand.type):
                op.operands[number] = _dequantize(operand)
    with ir.InsertionPoint.after(op):
        for result in op.results:
            if is_quantized(result.type):
                quantized = result.type
                result.set_type(_expressed(quantized))
                cast = emit.create(QUANTIZE, [result], [quantized])
                result.replace_all_uses_except(cast.results[0], cast)
    return None


def _make_body_float(block: ir.Block, retyping: Retyping) -> str | None:
    """Give a body's arguments and results their expressed types, or return the reason why not."""
    *operations, terminator = (op.operation for op in block.operations)
    quantized = [op for op in operations if has_type(op, is_quantized)]
    for argument in block.arguments:
        if is_quantized(argument.type):
            retyping.set_type(argument, _expressed(argument.type))
    for op in quantized:
        for operand in op.operands:
            if is_quantized(operand.type) and owner_block(operand) != block:
                return f"'{op.name}' in its body uses a quantized value from outside"
        row = OPERATIONS.get(op.name)
        if row is None or not (row.computes or row.moves) or len(op.regions):
            return f"'{op.name}' in its body has no float form"
        for result in op.results:
            if is_quantized(result.type):
                retyping.set_type(result, _expressed(result.type))
    for value in terminator.operands:
        if is_quantized(value.type):
            return "its body returns a quantized value from outside"
    return None
