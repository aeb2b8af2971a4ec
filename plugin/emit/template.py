"""Operations that were created once, to be copied: a copy takes 30 us, creating a cast 300."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

from .._mlir import Operation, Value, ir

__all__ = ["Template"]

_Place: TypeAlias = tuple[int, int]
"""The number of an operation and that of its result."""
_SOURCE: _Place = (-1, 0)


class Template:
    """The operations that compute one value from another.

    Args:
        operations: in order, as `subquant.emit.operation.recorded` lists them. What they take that
            none of them gives is the value that they compute from; their bodies do not take it.
        result: the value that they compute.
    """

    def __init__(self, operations: Sequence[Operation], result: Value) -> None:
        self._operations = operations
        self._result = result

    @cached_property
    def _wiring(self) -> tuple[list[list[_Place]], list[list[tuple[int, int, _Place]]], _Place]:
        """Where values come from: operands, those in bodies (with their places), and the result."""
        places = {
            value: (number, index)
            for number, op in enumerate(self._operations)
            for index, value in enumerate(op.results)
        }
        operands = [
            [places.get(value, _SOURCE) for value in op.operands] for op in self._operations
        ]
        captured = [
            [
                (n, index, places[value])
                for n, inner in enumerate(op.regions[0].blocks[0].operations)
                for index, value in enumerate(inner.operation.operands)
                if value in places
            ]
            if len(op.regions)
            else []
            for op in self._operations
        ]
        return operands, captured, places[self._result]

    def copy(self, source: Value) -> Value:
        """Copy the operations to the insertion point, for another source; return the result."""
        location = ir.Location.current
        operands_of, captured_of, of_result = self._wiring
        copies: list[Operation] = []
        for op, operands, captured in zip(self._operations, operands_of, captured_of, strict=True):
            copied = op.clone()
            for index, (number, result) in enumerate(operands):
                copied.operands[index] = source if number < 0 else copies[number].results[result]
            copied.location = location
            if len(copied.regions):
                inners = [inner.operation for inner in copied.regions[0].blocks[0].operations]
                for inner in inners:
                    inner.location = location
                for n, index, (number, result) in captured:
                    inners[n].operands[index] = copies[number].results[result]
            copies.append(copied)
        number, result = of_result
        return copies[number].results[result]
