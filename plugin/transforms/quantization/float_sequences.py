"""Splitting sequences of float operations before one quantize, so that each can be fused.

A quantizer leaves one quantize after a contraction, its bias and its activation function. Each
operation gets casts of its own here, so that ``legalize-qdq-to-quantized-op`` finds a cast on every
side of each:

* ``quantize(max(x, c))`` is ``max(quantize(x), quantize(c))``; so for ``min`` and ``clamp``,
  because quantization is monotone.
* ``quantize(contraction + bias)``: the accumulator, of type i32 with the product of the scales, is
  the contraction's result exactly, as long as it does not saturate. A quantized bias keeps its
  type. A constant bias is rounded to a multiple of the accumulator's scale, as converters do: an
  error of at most half of that scale, and one step of the result is usually thousands of
  accumulator steps.

Source: "Lowering quantized operations to integer arithmetic", bias addition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS
from ...dialects.quant import parameters_of, type_of, with_axis
from ...dialects.stablehlo import DEQUANTIZE, OPERATIONS, QUANTIZE, why_illegal
from ...emit import with_element
from ...numerics.parameters import QuantizationParameters, StorageType
from ..base import producer_named, producer_of, replace_uses, value_before
from .math.contraction import Contraction
from .retyping import Retyping, why_invalid

_CHOICES = {"stablehlo.maximum": (0, 1), "stablehlo.minimum": (0, 1), "stablehlo.clamp": (1,)}
"""Operations that select one of their operands, and the operands that may be computed."""
_MOVES = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_I32 = StorageType(32, True, -(1 << 31), (1 << 31) - 1)


def split_sequences(
    operations: list[Operation],
    dequantizes: dict[Value, Operation],
    quantizes: dict[Value, list[Operation]],
) -> bool:
    """Insert casts into sequences that end in quantizes to one type; True if there are any.

    `dequantizes` and `quantizes` have the operations that dequantize or quantize to, or from, an
    expressed tensor.
    """
    sequences = _Sequences(dequantizes, quantizes)
    ends = [result for op in operations for result in op.results if result in quantizes]
    changed = [sequences.split(value) for value in ends]
    return any(changed)


@dataclass
class _Sequences:
    dequantizes: dict[Value, Operation]
    quantizes: dict[Value, list[Operation]]

    def split(self, value: Value) -> bool:
        """Split the sequence of a value that is only quantized, to one type."""
        ends = self.quantizes[value]
        target = ends[0].results[0].type
        if len(list(value.uses)) != len(ends) or any(e.results[0].type != target for e in ends):
            return False
        choices, start = [], value
        while (computed := self._choice(start)) is not None:
            choices.append(start.owner.operation)
            start = choices[-1].operands[computed]
        biased, producer = self._biased(start), producer_of(start)
        operands = () if producer is None or not choices else producer.operands
        if biased is None and not any(operand in self.dequantizes for operand in operands):
            return False
        for op in choices:
            types = [with_element(operand.type, target.element_type) for operand in op.operands]
            if why_illegal(op.name, types, [target], op.attributes) is not None:
                return False
        if biased is not None:
            self._split_bias(start.owner.operation, *biased)
        for op in choices:
            for number in range(len(op.operands)):
                _cast_operand(op, number, target)
        return True

    def _choice(self, value: Value) -> int | None:
        """The number of the only computed operand of a choice; None if it has further uses."""
        op = producer_named(value, *_CHOICES)
        if op is None:
            return None
        computed = [n for n in range(len(op.operands)) if not _is_constant(op.operands[n])]
        if len(computed) != 1 or computed[0] not in _CHOICES[op.name]:
            return None
        operand = op.operands[computed[0]]
        if operand in self.dequantizes or len(list(operand.uses)) != 1:
            return None
        return computed[0]

    def _accumulator(self, value: Value) -> ir.Type | None:
        """The i32 type of a contraction; None unless both sides are dequantized, not by blocks."""
        op = producer_of(value)
        if op is None or op.name not in OPERATIONS:
            return None
        if OPERATIONS[op.name].category != "contraction" or len(op.operands) != 2:
            return None
        if any(operand not in self.dequantizes for operand in op.operands):
            return None
        types = [self.dequantizes[operand].operands[0].type for operand in op.operands]
        left, right = (parameters_of(type_) for type_ in types)
        if left is None or right is None or left.granularity != "per-tensor":
            return None
        if right.granularity == "sub-channel" or left.expressed != right.expressed:
            return None
        to_result = Contraction.of(op).right.to_result
        if any(axis not in to_result for axis in right.axes):
            return None
        with np.errstate(under="ignore", over="ignore"):
            scales = (left.scales.astype(np.float64) * right.scales).astype(left.expressed.dtype)
        wide = scales.astype(np.float64)
        if not (np.isfinite(wide) & (wide > 2 * left.expressed.smallest_normal)).all():
            return None
        axes = tuple(to_result[axis] for axis in right.axes)
        parameters = QuantizationParameters(
            _I32, left.expressed, axes, (1,) * len(axes), scales, granularity=right.granularity
        )
        result = with_element(value.type, type_of(parameters))
        if why_illegal(op.name, types, [result], op.attributes) is not None:
            return None
        return result if self._is_accepted(op, result) else None

    def _is_accepted(self, op: Operation, result: ir.Type) -> bool:
        """True if StableHLO's verifier accepts the contraction on quantized values."""
        retyping = Retyping()
        for number in (0, 1):
            operand = self.dequantizes[op.operands[number]].operands[0]
            retyping.set_operand(op, number, operand)
        retyping.set_type(op.results[0], result)
        reason = why_invalid(op)
        retyping.undo()
        return reason is None

    def _biased(self, value: Value) -> tuple[int, ir.Type, ir.Type] | None:
        """The contraction's number in an addition, and both types; None if it has further uses."""
        op = producer_named(value, "stablehlo.add")
        if op is None:
            return None
        for number in (0, 1):
            contraction, bias = op.operands[number], op.operands[1 - number]
            accumulator = self._accumulator(contraction)
            if accumulator is None or len(list(contraction.uses)) != 1:
                continue
            type_ = self._bias_type(bias, accumulator)
            if type_ is None:
                continue
            types = [accumulator, type_] if not number else [type_, accumulator]
            if why_illegal(op.name, types, [accumulator], op.attributes) is None:
                return number, accumulator, type_
        return None

    def _bias_type(self, bias: Value, accumulator: ir.Type) -> ir.Type | None:
        """The i32 type of a bias after broadcasts; None for other types, blocks, computed ones."""
        if _is_constant(bias):
            return accumulator
        moves = []
        while bias not in self.dequantizes:
            op = producer_named(bias, "stablehlo.broadcast_in_dim")
            if op is None:
                return None
            moves.append(op)
            bias = op.operands[0]
        parameters = parameters_of(self.dequantizes[bias].operands[0].type)
        if parameters is None or parameters.granularity == "sub-channel":
            return None
        if parameters.storage != _I32:
            return None
        element = self.dequantizes[bias].operands[0].type.element_type
        for op in reversed(moves):
            element = _moved(element, _result_axes(op).__getitem__)
        return with_element(accumulator, element)

    def _split_bias(self, op: Operation, number: int, accumulator: ir.Type, bias: ir.Type) -> None:
        _cast_operand(op, number, accumulator)
        value = op.operands[1 - number]
        _cast_operand(op, 1 - number, bias)
        self._split_moves(value, bias)
        with ir.InsertionPoint.after(op), op.location:
            replace_uses(op.results[0], lambda uncast: _cast_pair(uncast, accumulator))

    def _split_moves(self, value: Value, type_: ir.Type) -> None:
        """Insert casts before each broadcast of a quantized bias."""
        while value not in self.dequantizes and not _is_constant(value):
            op = value.owner.operation
            value = op.operands[0]
            if value not in self.dequantizes:
                element = _moved(type_.element_type, _result_axes(op).index)
                type_ = with_element(value.type, element)
                _cast_operand(op, 0, type_)


def _result_axes(op: Operation) -> list[int]:
    """The result axis of each axis of a broadcast's operand."""
    return [int(axis) for axis in op.attributes["broadcast_dimensions"]]


def _moved(element: ir.Type, move: Callable[[int], int]) -> ir.Type:
    """A quantized type after or before a broadcast, with its scales as written."""
    parameters = parameters_of(element)
    assert parameters is not None  # biases are quantized
    return with_axis(element, move(parameters.axes[0])) if parameters.axes else element


def _is_constant(value: Value) -> bool:
    return producer_named(value_before(value, *_MOVES), *CONSTANTS) is not None


def _cast_pair(value: Value, type_: ir.Type) -> Value:
    quantized = emit.value(QUANTIZE, [value], with_element(value.type, type_.element_type))
    return emit.value(DEQUANTIZE, [quantized], value.type)


def _cast_operand(op: Operation, number: int, type_: ir.Type) -> None:
    with ir.InsertionPoint(op), op.location:
        op.operands[number] = _cast_pair(op.operands[number], type_)
