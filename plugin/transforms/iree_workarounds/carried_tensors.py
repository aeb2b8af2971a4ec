"""Loop-carried tensors and results of branches, each in a buffer of its own.

Symptom: calls fail ("ref is null", "binding table slot requires a buffer") (all targets).
Cause: a branch of IREE 3.13's virtual machine that passes one buffer several times may move it with
the last use, and the other uses are null.
Test: `test_iree_still_loses_a_buffer_that_is_carried_twice` in tests/test_loops.py.

One buffer holds

* a tensor that is carried twice, or two constants of the same elements: the later ones are copied,
  selected by a flag that IREE cannot fold (`updates_in_place`).
* tensors that are computed together before a loop, which IREE puts in one allocation: each is a
  copy behind a barrier, and so a part of the allocation with a reference of its own.

A constant that an iteration yields is copied as well: IREE refuses some loops with a constant
("should match successor input type").

Tensors that are computed together at the end of an iteration stay: a barrier there waits for the
device in each iteration, and a counted loop (`counted_loops`) ends without this branch.

Before::

    %r:2 = stablehlo.while(%h = %x, %c = %x) : tensor<2x2xi32>, tensor<2x2xi32>

After::

    %own = stablehlo.select %flag, %x, %zeros : tensor<i1>, tensor<2x2xi32>
    %r:2 = stablehlo.while(%h = %x, %c = %own) : tensor<2x2xi32>, tensor<2x2xi32>

Tensors of rank 0, such as counters, stay as they are: IREE computes many of them on the host. One
that an iteration yields twice is copied: IREE removes one of both from the condition, and refuses
the loop ("region branch point has 4 operands").

Source: https://github.com/iree-org/iree/pull/24781.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS
from ...emit import linalg
from ..base import NoMatch, ancestors, producer_named, producer_of, value_before
from .updates_in_place import in_own_buffer

CARRIES = ("scf.for", "scf.if", "scf.while", "stablehlo.case", "stablehlo.if", "stablehlo.while")
"""Operations that carry tensors from one block to another."""

_LOOPS = ("scf.for", "scf.while", "stablehlo.while")
_SAME_BUFFER = ("stablehlo.reshape", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape")


def separate_buffers(op: Operation) -> NoMatch | None:
    """Give each tensor that one of `CARRIES` takes or yields a buffer of its own."""
    ends = [block.operations[-1].operation for region in op.regions for block in region.blocks]
    changed = [_copy_repeated(op)]
    is_in_loop = any(each.name in _LOOPS for each in (op, *ancestors(op)))
    changed += [_copy_repeated(each, is_in_loop=is_in_loop) for each in ends]
    if op.name in _LOOPS:
        changed.append(_separate_computed(op))
    return None if any(changed) else NoMatch("carries no buffer twice")


def _copy_repeated(op: Operation, *, is_in_loop: bool = False) -> bool:
    """Copy the operands of a loop, or of a terminator, whose buffer is already an operand.

    Of a terminator in a loop, constants are copied too, and tensors of rank 0 that are repeated.
    """
    seen: set[Value | ir.Attribute] = set()
    is_changed = False
    with ir.InsertionPoint(op), op.location:
        for number in _tensor_operands(op, min_rank=int(not is_in_loop)):
            # A buffer is identified by the value that is viewed, or by a constant's elements.
            viewed = value_before(op.operands[number], *_SAME_BUFFER)
            constant = producer_named(viewed, *CONSTANTS)
            buffer = viewed if constant is None else constant.attributes["value"]
            is_copied = is_in_loop and op.operands[number].type.rank and constant is not None
            if buffer in seen or is_copied:
                op.operands[number] = in_own_buffer(op.operands[number])
                is_changed = True
            seen.add(buffer)
    return is_changed


def _separate_computed(loop: Operation) -> bool:
    """Put computed initial values of a loop behind barriers, if there are several."""
    computed = [number for number in _tensor_operands(loop) if _is_computed(loop.operands[number])]
    if len(computed) < 2:
        return False
    with ir.InsertionPoint(loop), loop.location:
        for number in computed:
            # A barrier alone does not wait for a tensor that an outer loop carries.
            copied = in_own_buffer(loop.operands[number])
            loop.operands[number] = linalg.with_barrier(copied)
    return True


def _tensor_operands(op: Operation, min_rank: int = 1) -> list[int]:
    """The numbers of the operands that are tensors of a rank or more."""
    return [
        number
        for number, value in enumerate(op.operands)
        if isinstance(value.type, ir.RankedTensorType) and value.type.rank >= min_rank
    ]


def _is_computed(value: Value) -> bool:
    """True for a tensor that is no argument or constant, and not behind a barrier."""
    producer = producer_of(value)
    not_computed = (*CONSTANTS, linalg.BARRIER, linalg.TIE_SHAPE)
    return producer is not None and producer.name not in not_computed
