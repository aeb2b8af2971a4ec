"""Results that never alias an argument, for the runtime.

Symptom: a result is the memory of an argument, so that the runtime compares addresses and copies
it.
Cause: IREE 3.13 returns the argument for ``x + 0``, for a reshape, and for operations that it folds
to one.
Test: none; the runtime's copies are covered in tests/test_device_arrays.py.

The comparison is not needed if a contraction or a kernel lies between: each computes into memory of
its own.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value
from ...emit.operation import all_producers
from ..base import producer_of

_COMPUTED = ("stablehlo.convolution", "stablehlo.dot_general")
_CALL = "flow.dispatch"
_FOLDED = ("linalg.generic", "stablehlo.reduce", "stablehlo.reduce_window")
"""Operations with regions that compute elements of their operands."""
_UNKNOWN = ("func.", "util.")
"""Prefixes of operations whose results may be any memory."""


def fresh_results(function: Operation) -> list[bool]:
    """For each result of a function, True if it never aliases an argument.

    That holds if all its sources are results of contractions and kernels, or constants. One of
    several results may alias another, so only a single result qualifies.
    """
    blocks = list(function.regions[0].blocks)
    results = list(blocks[-1].operations[len(blocks[-1].operations) - 1].operands)
    if len(blocks) != 1 or len(results) != 1:
        return [False] * len(results)
    is_computed = False

    def is_fresh(value: Value) -> bool | None:
        nonlocal is_computed
        op = producer_of(value)
        if op is None:
            return False
        if op.name in _COMPUTED or (op.name == _CALL and "tied_operands" not in op.attributes):
            is_computed = True
            return True
        is_unknown = op.name.startswith(_UNKNOWN) or (len(op.regions) and op.name not in _FOLDED)
        return False if is_unknown else None

    return [all_producers(results[0], is_fresh) and is_computed]
