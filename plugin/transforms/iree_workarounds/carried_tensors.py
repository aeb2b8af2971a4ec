"""Tensors that loops and branches hand on, each in a buffer of its own.

Where a branch of IREE 3.13's virtual machine hands one buffer on several times, it may move it away
with the last, and the others are null: calls fail ("ref is null", "binding table slot requires a
buffer"). One buffer is

* a tensor that is handed on twice, or two constants of the same elements: the later ones are
  copied, selected by a flag that IREE does not look through (`updates_in_place`).
* what is computed together before a loop, which IREE puts in one allocation: each is a copy behind
  a barrier, and so a part of it that has a reference of its own.

What is computed together at the end of an iteration is left as it is: a barrier there waits for the
device in each iteration, and a counted loop (`counted_loops`) ends without such a branch.

Before::

    %r:2 = stablehlo.while(%h = %x, %c = %x) : tensor<2x2xi32>, tensor<2x2xi32>

After::

    %own = stablehlo.select %flag, %x, %zeros : tensor<i1>, tensor<2x2xi32>
    %r:2 = stablehlo.while(%h = %x, %c = %own) : tensor<2x2xi32>, tensor<2x2xi32>

Tensors without axes, such as counters, stay as they are: IREE computes many of them on the host.

Source: https://github.com/iree-org/iree/pull/24781.
"""

from __future__ import annotations

from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.dense import CONSTANTS
from ...emit import linalg
from ..base import NoMatch
from .updates_in_place import in_own_buffer

__all__ = ["CARRIES", "separate_carried"]

CARRIES = (
    "scf.for",
    "scf.if",
    "scf.while",
    "stablehlo.case",
    "stablehlo.if",
    "stablehlo.while",
)
"""What hands tensors on from one block to another."""

_LOOPS = ("scf.for", "scf.while", "stablehlo.while")
_SAME_BUFFER = ("stablehlo.reshape", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape")


def separate_carried(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Give each tensor of one of `CARRIES` a buffer of its own, where it comes in and goes on."""
    ends = [block.operations[-1].operation for region in op.regions for block in region.blocks]
    changed = [_copy_equal(each) for each in (op, *ends)]
    if op.name in _LOOPS:
        changed.append(_part_computed(op))
    return None if any(changed) else NoMatch("hands on no buffer twice")


def _copy_equal(op: Operation) -> bool:
    """Copy what a loop takes, or the end of a block hands on, a second time."""
    seen: set[Value | ir.Attribute] = set()
    is_changed = False
    with ir.InsertionPoint(op), op.location:
        for number in _tensors(op):
            buffer = _buffer_of(op.operands[number])
            if buffer in seen:
                op.operands[number] = in_own_buffer(op.operands[number])
                is_changed = True
            seen.add(buffer)
    return is_changed


def _part_computed(loop: Operation) -> bool:
    """Put what is computed before a loop behind barriers, if it is more than one tensor."""
    computed = [number for number in _tensors(loop) if _is_computed(loop.operands[number])]
    if len(computed) < 2:
        return False
    with ir.InsertionPoint(loop), loop.location:
        for number in computed:
            # A barrier alone around what a loop outside carries would not wait for it.
            copied = in_own_buffer(loop.operands[number])
            loop.operands[number] = linalg.behind_barrier(copied)
    return True


def _tensors(op: Operation) -> list[int]:
    """The numbers of the operands that are tensors with axes."""
    return [
        number
        for number, value in enumerate(op.operands)
        if isinstance(value.type, ir.RankedTensorType) and value.type.rank
    ]


def _is_computed(value: Value) -> bool:
    """True for a tensor that is no argument or constant, and not behind a barrier."""
    if isinstance(value.owner, ir.Block):
        return False
    return value.owner.operation.name not in (*CONSTANTS, linalg.BARRIER, linalg.TIE_SHAPE)


def _buffer_of(value: Value) -> Value | ir.Attribute:
    """What tells the buffer of a tensor: the value that it is made of, or a constant's elements."""
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _SAME_BUFFER:
        value = value.owner.operation.operands[0]
    if not isinstance(value.owner, ir.Block):
        producer = value.owner.operation
        if producer.name in CONSTANTS:
            return producer.attributes["value"]
    return value
