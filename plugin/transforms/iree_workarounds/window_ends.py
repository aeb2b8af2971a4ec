"""``reduce_window`` with one position that leaves the end of the operand unread.

Symptom: IREE refuses it (all targets).
Cause: a stride that no window takes is dropped before the verifier of IREE 3.13 computes the sizes.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

The unread end is cut off by negative padding.

Source: StableHLO specification, ``reduce_window``, constraint C15.
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...dialects.windows import window_padding, window_steps
from ...emit.operation import dense
from ..base import NoMatch
from .loop_nests import dilated_size


def cut_windows(op: Operation) -> NoMatch | None:
    """Cut the elements that no window of a ``reduce_window`` reads, in place."""
    operand, result = op.operands[0].type, op.results[0].type
    if not operand.has_static_shape:
        return NoMatch("has a dynamic shape")
    rank = operand.rank
    padding = window_padding(op, rank)
    windows, window_dilations, dilations = (
        window_steps(op, name, rank)
        for name in ("window_dimensions", "window_dilations", "base_dilations")
    )
    cuts = False
    for axis in range(rank):
        dilated = dilated_size(int(operand.shape[axis]), dilations[axis])
        read = dilated_size(windows[axis], window_dilations[axis])
        unread = int(padding[axis].sum()) + dilated - read
        if int(result.shape[axis]) == 1 and unread > 0:
            padding[axis, 1] -= unread
            cuts = True
    if not cuts:
        return NoMatch("reads all of its operand, or has several positions")
    op.attributes["padding"] = dense(padding, ir.IntegerType.get_signless(64))
    return None
