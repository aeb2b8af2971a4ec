"""Operations that were created once, to be copied: 20 us, where creating a cast takes 200."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ..core._mlir import Operation, Value, ir

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
        self.result = result
        self._wiring: _Wiring | None = None

    def copy(
        self,
        source: Value,
        constants: Iterable[ir.Attribute] = (),
        type_: ir.Type | None = None,
    ) -> Template:
        """Copy the operations to the insertion point.

        Args:
            source: what the copy computes from.
            constants: in place of those of the first ``arith.constant`` operations.
            type_: of the result; None for the same.

        Returns:
            A template of the copy.
        """
        location, advance = ir.Location.current, ir.WalkResult.ADVANCE

        def locate(op: Operation) -> ir.WalkResult:
            op.location = location
            return advance

        wiring = self._wiring = self._wiring or _Wiring.of(self._operations, self.result)
        copies: list[Operation] = []
        for op, operands, captured in zip(
            self._operations, wiring.operands, wiring.captured, strict=True
        ):
            copied = op.clone()
            for index, (number, result) in enumerate(operands):
                copied.operands[index] = source if number < 0 else copies[number].results[result]
            if len(copied.regions):
                copied.walk(locate)  # 7 us for a cast, where going through its blocks takes 9
            else:
                copied.location = location
            if captured:
                inners = [inner.operation for inner in copied.regions[0].blocks[0].operations]
                for n, index, (number, result) in captured:
                    inners[n].operands[index] = copies[number].results[result]
            copies.append(copied)
        held = (op for op in copies if op.name == "arith.constant")
        for attribute, op in zip(constants, held, strict=False):
            op.attributes["value"] = attribute
        number, index = wiring.result
        template = Template(copies, copies[number].results[index])
        template._wiring = wiring
        if type_ is not None:
            template.result.set_type(type_)
        return template


class _Wiring(NamedTuple):
    """Where values come from.

    Attributes:
        operands: of each operation.
        captured: by the body of each: the number of an operation in it, of an operand, and a place.
        result: of all.
    """

    operands: list[list[_Place]]
    captured: list[list[tuple[int, int, _Place]]]
    result: _Place

    @staticmethod
    def of(operations: Sequence[Operation], result: Value) -> _Wiring:
        places = {
            value: (number, index)
            for number, op in enumerate(operations)
            for index, value in enumerate(op.results)
        }
        operands = [[places.get(value, _SOURCE) for value in op.operands] for op in operations]
        captured = [
            [
                (n, index, places[value])
                for n, inner in enumerate(op.regions[0].blocks[0].operations)
                for index, value in enumerate(inner.operation.operands)
                if value in places
            ]
            if len(op.regions)
            else []
            for op in operations
        ]
        return _Wiring(operands, captured, places[result])
