"""Templates: operations that are cloned instead of created again (20 us a cast instead of 200)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ..core._mlir import Operation, Value, ir

_ResultIndex: TypeAlias = tuple[int, int]
"""The index of an operation, and of its result."""
_SOURCE: _ResultIndex = (-1, 0)
"""The index of the source value, which no operation of the template computes."""


class Template:
    """Operations that compute one value from another.

    Args:
        operations: the operations in order, as `subquant.emit.operation.recorded` lists them. Their
            only free operand is the source value; their bodies do not capture it.
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
        """Copy the operations to the insertion point; the result has `type_`, or the same type.

        `constants` replace the values of the first ``arith.constant`` operations.
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
        copied_constants = (op for op in copies if op.name == "arith.constant")
        for attribute, op in zip(constants, copied_constants, strict=False):
            op.attributes["value"] = attribute
        number, index = wiring.result
        template = Template(copies, copies[number].results[index])
        template._wiring = wiring
        if type_ is not None:
            template.result.set_type(type_)
        return template


class _Wiring(NamedTuple):
    """Producers of the operands.

    Attributes:
        operands: the producers of each operation's operands.
        captured: captures of each operation's body: index of an inner operation, of its operand,
            and the producer.
    """

    operands: list[list[_ResultIndex]]
    captured: list[list[tuple[int, int, _ResultIndex]]]
    result: _ResultIndex

    @staticmethod
    def of(operations: Sequence[Operation], result: Value) -> _Wiring:
        indices = {
            value: (number, index)
            for number, op in enumerate(operations)
            for index, value in enumerate(op.results)
        }
        operands = [[indices.get(value, _SOURCE) for value in op.operands] for op in operations]
        captured = [
            [
                (n, index, indices[value])
                for n, inner in enumerate(op.regions[0].blocks[0].operations)
                for index, value in enumerate(inner.operation.operands)
                if value in indices
            ]
            if len(op.regions)
            else []
            for op in operations
        ]
        return _Wiring(operands, captured, indices[result])
