"""Reversible changes of an operation's operands and types, in place.

An operation that gets other element types keeps its name, attributes, regions and position. If the
result is not valid, the old state is restored.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, Value, ir


class Retyping:
    """A list of changes; `undo` reverts them, last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set_type(self, value: Value, type_: ir.Type) -> None:
        """Give a result or a block argument another type."""
        old = value.type
        self._undo.append(lambda: value.set_type(old))
        value.set_type(type_)

    def set_operand(self, op: Operation, number: int, value: Value) -> None:
        """Give an operation another operand."""
        old = op.operands[number]

        def restore() -> None:
            op.operands[number] = old

        self._undo.append(restore)
        op.operands[number] = value

    def undo(self) -> None:
        """Revert every change."""
        while self._undo:
            self._undo.pop()()


def is_float_tensor(type_: ir.Type) -> bool:
    """True for a ranked tensor of floats."""
    return isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.FloatType)


def owner_block(value: Value) -> ir.Block:
    """Return the block in which a value is defined."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def why_invalid(op: Operation) -> str | None:
    """Return the reason why upstream's verifier refuses an operation, or None."""
    try:
        op.verify()
    except ir.MLIRError as error:
        diagnostics = list(error.error_diagnostics)
        message = str(diagnostics[0].message) if diagnostics else str(error)
        message = message.removeprefix(f"'{op.name}' op ")
        return f"StableHLO's verifier refuses it: {message}"
    return None
