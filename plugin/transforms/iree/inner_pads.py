"""Pads between elements, whose result may be padded or put into another tensor.

IREE 3.13 folds a tensor that a pad between elements is inserted into, by an outer pad, a window's
padding or an update, into the inner one, and loses its steps: every element after the first lands
in a wrong place, on both targets. It looks through reshapes and slices too. A barrier after the
inner pad keeps the two apart.

Source: StableHLO specification, ``pad``.
"""

from __future__ import annotations

from ... import emit
from ..._mlir import Operation, Rewriter, ir
from ..base import NoMatch

__all__ = ["separate_pad"]

_BARRIER = "stablehlo.optimization_barrier"


def separate_pad(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Put a barrier after a ``pad`` between elements."""
    if not any(op.attributes["interior_padding"]):
        return NoMatch("pads at the ends only")
    result = op.results[0]
    users = [(use.owner, use.operand_number) for use in result.uses if use.owner.name != _BARRIER]
    if not users:
        return NoMatch("is before a barrier")
    with ir.InsertionPoint.after(op):
        behind = emit.value(_BARRIER, [result], result.type)
    for user, number in users:
        user.operands[number] = behind
    return None
