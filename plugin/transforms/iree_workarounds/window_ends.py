"""Windowed reductions of one position that leave the end of the operand unread.

IREE's verifier takes the extents of such a reduction for wrong: a stride that no window takes is
gone by then. What is not read is cut off, which is a negative padding.

Source: StableHLO specification, ``reduce_window``, constraint C15.
"""

from __future__ import annotations

from ...core._mlir import Operation, Rewriter, ir
from ...dialects.windows import window_padding, window_steps
from ...emit.operation import dense
from ..base import NoMatch

__all__ = ["cut_windows"]


def cut_windows(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Cut what no window of a ``reduce_window`` reads, in place."""
    operand, result = op.operands[0].type, op.results[0].type
    if not operand.has_static_shape:
        return NoMatch("has a dynamic shape")
    rank = operand.rank
    padding = window_padding(op, rank)
    windows, within, between = (
        window_steps(op, name, rank)
        for name in ("window_dimensions", "window_dilations", "base_dilations")
    )
    cuts = False
    for axis in range(rank):
        extent = int(operand.shape[axis])
        dilated = (extent - 1) * between[axis] + 1 if extent else 0
        read = (windows[axis] - 1) * within[axis] + 1
        unread = int(padding[axis].sum()) + dilated - read
        if int(result.shape[axis]) == 1 and unread > 0:
            padding[axis, 1] -= unread
            cuts = True
    if not cuts:
        return NoMatch("reads all of its operand, or has several positions")
    op.attributes["padding"] = dense(padding, ir.IntegerType.get_signless(64))
    return None
