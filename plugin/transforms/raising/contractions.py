"""Contractions over split axes, for weights that are stored in another order.

A 4-bit weight whose bytes hold k = 2i and k = 2i+1 has three axes in memory: i, N, and the two
nibbles of a byte. Its K is a reshape of i and the nibbles, after a transposition. A contraction
over K is the same sum over both, with activations whose K is split in two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.windows import dot_axes
from ...emit import linalg, stablehlo
from ...emit.operation import is_dynamic, is_used, value, with_shape

Split = list[list[int]]
"""The sizes that each axis is split into."""


def split_contractions(split: Value, joined: Value, axis_sizes: Split) -> None:
    """Rewrite contractions of a weight's reshape, `joined`, to read the weight, `split`.

    `axis_sizes` has for each axis of `joined` its sizes in `split`.
    """
    if split == joined:
        return
    uses = [(use.owner.operation, use.operand_number) for use in joined.uses]
    for op, number in uses:
        is_dot = op.name in ("stablehlo.dot", "stablehlo.dot_general")
        if is_dot and op.operands[1 - number] != joined:
            _contract(op, number, split, axis_sizes)
    if not is_used(joined):
        joined.owner.operation.erase()


def _contract(op: Operation, number: int, weight: Value, axis_sizes: Split) -> None:
    """Replace a contraction by one whose operands have split axes."""
    contracted, batch = dot_axes(op)
    other, whole_type = op.operands[1 - number], op.results[0].type
    other_sizes: Split = [[int(n)] for n in other.type.shape]
    for axes in (contracted, batch):
        for own, its in zip(axes[number], axes[1 - number], strict=True):
            if other.type.is_dynamic_dim(its):
                return
            other_sizes[its] = axis_sizes[own]
    sides = [axis_sizes, other_sizes] if number == 0 else [other_sizes, axis_sizes]
    with ir.InsertionPoint(op), op.location:
        other = _split(other, other_sizes)
        left, right = (weight, other) if number == 0 else (other, weight)
        positions = [linalg.consecutive(map(len, side)) for side in sides]
        free = [
            _without(axes, [*contracted[side], *batch[side]]) for side, axes in enumerate(sides)
        ]
        result_axes = [[sides[0][axis] for axis in batch[0]], *free]
        shape = [n for part in result_axes for axis in part for n in axis]
        result = stablehlo.dot_general(
            left,
            right,
            with_shape(whole_type, [None if is_dynamic(n) else n for n in shape]),
            [[n for axis in contracted[side] for n in positions[side][axis]] for side in (0, 1)],
            [[n for axis in batch[side] for n in positions[side][axis]] for side in (0, 1)],
        )
        for name in op.attributes:
            if name != "dot_dimension_numbers":
                result.owner.attributes[name] = op.attributes[name]
        whole = _joined(result, result_axes, whole_type)
    op.results[0].replace_all_uses_with(whole)
    op.erase()


def _without(axes: Split, excluded: Sequence[int]) -> Split:
    """The sizes of axes that are not excluded."""
    return [sizes for axis, sizes in enumerate(axes) if axis not in excluded]


def _split(tensor: Value, axis_sizes: Split) -> Value:
    """A tensor with axes split; axes that are not split may be dynamic."""
    shape = [n for axis in axis_sizes for n in axis]
    if not any(map(is_dynamic, shape)):
        return stablehlo.reshape(tensor, shape)
    sources = [axis for axis, sizes in enumerate(axis_sizes) for _ in sizes]
    return _reshaped(tensor, shape, sources)


def _joined(tensor: Value, axis_sizes: Sequence[Split], type_: ir.Type) -> Value:
    """A tensor with split axes joined."""
    if type_.has_static_shape:
        return stablehlo.reshape(tensor, [int(n) for n in type_.shape])
    axes = [sizes for side in axis_sizes for sizes in side]
    if all(len(sizes) == 1 for sizes in axes):
        return tensor
    firsts = [split[0] for split in linalg.consecutive(map(len, axes))]
    return _reshaped(tensor, [int(n) for n in type_.shape], firsts)


def _reshaped(tensor: Value, shape: Sequence[int], sources: Sequence[int]) -> Value:
    """A tensor in a shape whose dynamic sizes are those of some of its axes."""
    i32 = ir.IntegerType.get_signless(32)
    sizes = [
        stablehlo.reshape(stablehlo.dimension_size(tensor, axis), [1])
        if is_dynamic(size)
        else stablehlo.constant(np.array([size], np.int32), i32)
        for size, axis in zip(shape, sources, strict=True)
    ]
    result = with_shape(tensor.type, [None if is_dynamic(n) else n for n in shape])
    return value("stablehlo.dynamic_reshape", [tensor, stablehlo.concatenate(sizes, 0)], result)
