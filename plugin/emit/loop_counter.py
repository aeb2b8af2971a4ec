"""Counters of ``stablehlo.while`` loops: carried integers that grow by a constant to an end."""

from __future__ import annotations

from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import constant_array
from .operation import producer_named
from .stablehlo_semantics import comparison_direction


@dataclass(frozen=True)
class LoopCounter:
    """A counter: the number of its carried tensor, its first value, its step, and its end."""

    number: int
    first: int
    step: int
    end: Value

    @classmethod
    def of(cls, op: Operation) -> LoopCounter | None:
        """Return the counter of a loop; None for another condition than ``<``, or no constants.

        The first value and the step are constant, and the step is positive.
        """
        condition, body = (region.blocks[0] for region in op.regions)
        *constants, end = [operation.operation for operation in condition.operations]
        compare = constants.pop() if constants else end
        if compare.name != "stablehlo.compare" or list(end.operands) != list(compare.results):
            return None
        if any(op.name != "stablehlo.constant" for op in constants):
            return None
        counter, last = compare.operands
        if comparison_direction(compare) != "LT" or not _is_scalar_integer(counter):
            return None
        if counter.owner != condition or last.owner == condition:
            return None
        number = counter.arg_number
        step = _step(body.operations[-1].operands[number], body.arguments[number])
        first = constant_number(op.operands[number])
        if step is None or first is None:
            return None
        return cls(number, first, step, last)

    @property
    def last(self) -> int | None:
        """The value after the last iteration; None if the end is not constant."""
        end = constant_number(self.end)
        if end is None:
            return None
        return self.first + max(-(-(end - self.first) // self.step), 0) * self.step


def _step(following: Value, counter: Value) -> int | None:
    """The positive constant that is added to a counter; None for any other update."""
    producer = producer_named(following, "stablehlo.add")
    if producer is None:
        return None
    operands = list(producer.operands)
    if counter not in operands:
        return None
    operands.remove(counter)
    step = constant_number(operands[0])
    return step if step is not None and step > 0 else None


def _is_scalar_integer(value: Value) -> bool:
    """True for a signed integer tensor of rank 0."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank:
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and element.is_signless and element.width > 1


def constant_number(value: Value) -> int | None:
    """The number that a constant tensor of rank 0 holds; None for computed values, resources."""
    array = constant_array(value)
    return None if array is None else int(array.reshape(-1)[0])
