"""Contractions over the parts of axes that a weight is stored in another order of.

A weight of 4 bits whose bytes hold rows 2i and 2i+1 has three axes in memory: i, columns, and the
two of a byte. Its rows are a reshape of two of these, after a transposition. A contraction over
rows is the same sum over both, of activations whose axis is split in two.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..._mlir import Operation, Value, ir
from ...dialects.windows import dot_axes
from ...emit import stablehlo
from ...emit.operation import with_shape

__all__ = ["Split", "split_contractions"]

Split = list[list[int]]
"""The extents that each axis is split into."""


def split_contractions(split: Value, joined: Value, extents: Split) -> None:
    """Let contractions take a weight with split axes.

    Args:
        split: the weight.
        joined: its reshape, of whose uses contractions are written anew.
        extents: for each axis of `joined` those in `split`.
    """
    if split == joined:
        return
    uses = [(use.owner.operation, use.operand_number) for use in joined.uses]
    for op, number in uses:
        if op.name in ("stablehlo.dot", "stablehlo.dot_general"):
            other = op.operands[1 - number]
            if other != joined and other.type.has_static_shape:
                _contract(op, number, split, extents)
    if next(iter(joined.uses), None) is None:
        joined.owner.operation.erase()


def _contract(op: Operation, number: int, weight: Value, extents: Split) -> None:
    """Write a contraction of which one operand has split axes."""
    contracted, batch = dot_axes(op)
    other = op.operands[1 - number]
    other_extents: Split = [[int(n)] for n in other.type.shape]
    for axes in (contracted, batch):
        for own, its in zip(axes[number], axes[1 - number], strict=True):
            other_extents[its] = extents[own]
    sides = [extents, other_extents] if number == 0 else [other_extents, extents]
    with ir.InsertionPoint(op), op.location:
        other = stablehlo.reshape(other, [n for axis in other_extents for n in axis])
        left, right = (weight, other) if number == 0 else (other, weight)
        places = [_places(side) for side in sides]
        shape = [n for axis in batch[0] for n in sides[0][axis]]
        for side in (0, 1):
            kept = set(range(len(sides[side]))) - {*contracted[side], *batch[side]}
            shape += [n for axis in sorted(kept) for n in sides[side][axis]]
        result = stablehlo.dot_general(
            left,
            right,
            with_shape(op.results[0].type, shape),
            [[n for axis in contracted[side] for n in places[side][axis]] for side in (0, 1)],
            [[n for axis in batch[side] for n in places[side][axis]] for side in (0, 1)],
        )
        for name in op.attributes:
            if name != "dot_dimension_numbers":
                result.owner.attributes[name] = op.attributes[name]
        whole = stablehlo.reshape(result, [int(n) for n in op.results[0].type.shape])
    op.results[0].replace_all_uses_with(whole)
    op.erase()


def _places(extents: Sequence[Sequence[int]]) -> list[list[int]]:
    """Where the parts of each axis are."""
    places, first = [], 0
    for axis in extents:
        places.append(list(range(first, first + len(axis))))
        first += len(axis)
    return places
