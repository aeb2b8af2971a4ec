"""Densification of the sparse constants of TensorFlow Lite models.

A sparse tensor of N dimensions, K of them blocked, has N + K levels. Each level is a dimension, in
the order of `traversal_order`. Numbers from N on are dimensions inside blocks, which `block_map`
maps to the blocked dimensions. A dense level has `dense_size` entries below each entry of the
previous level. A sparse level has the entries between two `segments`, at the `indices` (compressed
sparse rows). The buffer has an element for each entry of the last level.

Sources: ``schema.fbs``, ``SparsityParameters``; LiteRT, ``sparsity/format_converter.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import InputError
from ....numerics.element_types import Array
from . import schema

_DENSE, _SPARSE = 0, 1
"""Numbers of ``DimensionType`` in LiteRT's ``schema.fbs``; not tunable."""


def dense_positions(table: schema.SparsityTable, shape: Sequence[int]) -> Array:
    """Return the flat index of each element of a buffer in the dense tensor, of a shape.

    Raises:
        InputError: the parameters contradict themselves, or the shape.
    """
    order, blocked = table.traversal_order.tolist(), table.block_map.tolist()
    rank, levels = len(shape), table.dim_metadata
    if (
        sorted(order) != list(range(rank + len(blocked)))
        or len(levels) != len(order)
        or len(set(blocked)) != len(blocked)
        or any(not 0 <= axis < rank for axis in blocked)
    ):
        raise InputError(
            f"has the traversal order {order[:16]} and the block map {blocked[:16]} of "
            f"{len(levels)} levels for {rank} dimensions"
        )
    sizes = _dimension_sizes(levels, order, blocked, shape)
    limit = max(math.prod(shape), 1)
    entries = np.zeros(1, np.int64)
    coordinates: dict[int, Array] = {}
    for dimension, level in zip(order, levels, strict=True):
        parents, positions, entries = _child_entries(level, entries, limit)
        if positions.size and not 0 <= positions.min() <= positions.max() < sizes[dimension]:
            raise InputError(f"has an index outside of dimension {dimension}")
        coordinates = {axis: each[parents] for axis, each in coordinates.items()}
        coordinates[dimension] = positions
    linear = np.zeros(entries.size, np.int64)
    for axis in range(rank):
        position = coordinates[axis]
        if axis in blocked:
            inner = rank + blocked.index(axis)
            position = position * sizes[inner] + coordinates[inner]
        linear = linear * shape[axis] + position
    return linear


def _dimension_sizes(
    levels: Sequence[schema.DimensionTable],
    order: Sequence[int],
    blocked: Sequence[int],
    shape: Sequence[int],
) -> dict[int, int]:
    """Return the size of each dimension.

    Inner dimensions have the size of a block; a blocked dimension counts blocks.
    """
    rank = len(shape)
    block_sizes = {
        dimension: level.dense_size
        for dimension, level in zip(order, levels, strict=True)
        if dimension >= rank
    }
    sizes = dict(enumerate(map(int, shape)))
    for number, axis in enumerate(blocked):
        size = block_sizes[rank + number]
        if size < 1 or shape[axis] % size:
            raise InputError(f"has blocks of {size} along dimension {axis} of {list(shape)}")
        sizes[rank + number], sizes[axis] = size, shape[axis] // size
    for dimension, level in zip(order, levels, strict=True):
        if level.format == _DENSE and level.dense_size != sizes[dimension]:
            raise InputError(
                f"has {level.dense_size} entries along dimension {dimension} of {list(shape)}"
            )
    return sizes


def _child_entries(
    level: schema.DimensionTable, entries: Array, limit: int
) -> tuple[Array, Array, Array]:
    """Return the parent (an index of `entries`), the index and the number of each entry."""
    entry_numbers = np.arange(entries.size)
    if level.format == _DENSE:
        if entries.size * level.dense_size > limit:
            raise InputError("has more entries than elements")
        parents = np.repeat(entry_numbers, level.dense_size)
        positions = np.tile(np.arange(level.dense_size), entries.size)
        return parents, positions, entries[parents] * level.dense_size + positions
    if level.format != _SPARSE or level.array_segments is None or level.array_indices is None:
        raise InputError(f"has a level of the format {level.format} without indices")
    segments = level.array_segments.values.astype(np.int64)
    indices = level.array_indices.values.astype(np.int64)
    if entries.size and entries.max() + 1 >= segments.size:
        raise InputError(f"has {segments.size} segments for {entries.max() + 1} entries")
    starts, counts = segments[entries], segments[entries + 1] - segments[entries]
    total = int(counts.sum())
    if (counts < 0).any() or (starts < 0).any() or total > limit:
        raise InputError("has segments that are not ordered")
    if total and (starts + counts).max() > indices.size:
        raise InputError(f"has segments beyond its {indices.size} indices")
    parents = np.repeat(entry_numbers, counts)
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = starts[parents] + offsets
    return parents, indices[numbers], numbers
