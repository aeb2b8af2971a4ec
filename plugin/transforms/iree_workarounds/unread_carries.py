"""Loop-carried tensors that the body of a ``while`` loop does not read, read by it.

Symptom: the compiler refuses the loop ("region branch point has 4 operands, but region successor
needs 2 inputs", "maximum iteration count exceeded"), or crashes (all targets).
Cause: IREE 3.13 removes tensors that the body does not read from one region of a loop and not from
the other.
Test: `test_iree_still_refuses_a_tensor_that_no_iteration_reads` in tests/test_loops.py.

The next tensor is selected instead of the one before, by a flag that IREE cannot fold
(`updates_in_place`).

Before::

    %r:2 = stablehlo.while(%a = %x, %b = %y)
    ... do {
      stablehlo.return %b, %c
    }

After::

    %r:2 = stablehlo.while(%a = %x, %b = %y)
    ... do {
      %next = stablehlo.select %flag, %b, %a
      stablehlo.return %next, %c
    }
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...emit.operation import is_used
from ..base import NoMatch
from .updates_in_place import select_opaquely

WHILE_LOOPS = ("scf.while", "stablehlo.while")
"""Loops whose condition is a region."""


def read_carried(op: Operation) -> NoMatch | None:
    """Read each carried tensor of a ``while`` loop in its body."""
    condition, body = (region.blocks[0] for region in op.regions)
    end = body.operations[-1].operation
    unread = [
        number
        for number, argument in enumerate(list(body.arguments)[: len(end.operands)])
        if not is_used(argument)
        and end.operands[number].type == argument.type
        and _may_be_removed(condition.arguments[number])
    ]
    with ir.InsertionPoint(end), end.location:
        for number in unread:
            following = select_opaquely(end.operands[number], body.arguments[number])
            end.operands[number] = following
    return None if unread else NoMatch("reads every carried tensor")


def _may_be_removed(argument: Value) -> bool:
    """True for a tensor that IREE may remove; the host computes scalars that a condition reads."""
    type_ = argument.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    return type_.rank > 0 or not is_used(argument)
