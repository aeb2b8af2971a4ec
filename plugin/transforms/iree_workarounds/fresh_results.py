"""Results that are no argument's memory, whatever IREE makes of the program.

IREE 3.13 returns what it was given for ``x + 0``, for a reshape, or for what it finds to be one, so
that the runtime compares addresses, and copies a result that is an argument. It need not where
contractions lie between: these are computed into memory of their own, and kernels are.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir

__all__ = ["fresh_results"]

_COMPUTED = ("stablehlo.convolution", "stablehlo.dot_general")
_CALL = "flow.dispatch"
_FOLDED = ("linalg.generic", "stablehlo.reduce", "stablehlo.reduce_window")
"""Operations with regions, in which they compute elements of their operands."""
_UNKNOWN = ("func.", "util.")
"""Operations whose results may be any memory."""


def fresh_results(function: Operation) -> list[bool]:
    """For each result of a function, whether it is known to be no argument's memory.

    It is where all that it is computed from comes out of contractions and kernels, or is constant.
    One of several results may be the memory of another, so that this is said of a single one alone.
    """
    blocks = list(function.regions[0].blocks)
    results = list(blocks[-1].operations[len(blocks[-1].operations) - 1].operands)
    if len(blocks) != 1 or len(results) != 1:
        return [False] * len(results)
    seen: set[Value] = set()
    pending, is_computed = results, False
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, ir.Block):
            return [False]
        op = value.owner.operation
        if op.name in _COMPUTED or (op.name == _CALL and "tied_operands" not in op.attributes):
            is_computed = True
        elif op.name.startswith(_UNKNOWN) or (len(op.regions) and op.name not in _FOLDED):
            return [False]
        else:
            pending += op.operands
    return [is_computed]
