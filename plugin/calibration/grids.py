"""Grids of a weight: the scale and the zero point of each block of inputs.

A weight ``[N, K]`` has blocks of ``B`` elements along ``K``. An element ``w`` is stored as an
integer ``q`` and stands for ``(q - z) d``, with the scale ``d`` and the zero point ``z`` of its
block::

    q = clip(round(w / d) + z, low, high)

Scales are values of float16, which is what archives and GGUF files store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType

CLIPPINGS = tuple(np.arange(1.15, 0.5, -0.025).tolist())
"""Factors of a block's range that the search tries.

A range may grow: its ends need not be values of the grid.
"""

_MIN_SCALE = 2.0**-24
"""The least positive float16. A block whose range needs less is stored as zeros."""
_MAX_SCALE = 65504.0
"""The greatest float16."""
_CHUNK_ELEMENTS = 1 << 17
"""Elements that the search takes in one step, so that they stay in the L2 cache."""


@dataclass(frozen=True)
class Grid:
    """Scales and zero points of the blocks of a weight ``[N, K]``.

    Attributes:
        storage: the type of the integers.
        scales: float32 ``[N, K / B]``, each a value of float16; negative ones are allowed.
        zero_points: float32 ``[N, K / B]``, integers of `storage`; zeros for symmetric grids.
    """

    storage: StorageType
    scales: Array
    zero_points: Array

    def columns(self, block_size: int) -> tuple[Array, Array]:
        """Return the scale and the zero point of each element, ``[N, K]`` each."""
        return (np.repeat(each, block_size, axis=1) for each in (self.scales, self.zero_points))  # type: ignore[return-value]

    def round(self, weight: Array) -> Array:
        """Return the nearest integers of a weight, float32 ``[N, K]``."""
        blocks = _blocks_of(weight, weight.shape[1] // self.scales.shape[1])
        scales, zeros = self.scales[..., None], self.zero_points[..., None]
        return _round(blocks, scales, zeros, self.storage).reshape(weight.shape)

    def dequantize(self, integers: Array) -> Array:
        """Return the values of integers ``[N, K]``, float32."""
        blocks = _blocks_of(integers, integers.shape[1] // self.scales.shape[1])
        values = (blocks - self.zero_points[..., None]) * self.scales[..., None]
        return values.reshape(integers.shape)


def fit_grid(
    weight: Array, block_size: int, storage: StorageType, importance: Array | None = None
) -> Grid:
    """Search the grid with the least weighted square error of rounding, block by block.

    The error of a block is ``sum_k importance[k] (w[k] - (q[k] - z) d)**2``. A signed storage type
    makes a symmetric grid, whose greatest magnitude gets the least integer, as in GGML's Q4_0; an
    unsigned one has zero points.

    Args:
        weight: float32 ``[N, K]``.
        block_size: elements of a block; it divides ``K``.
        importance: weights of the square errors ``[K]``, or None for ones.

    Raises:
        UsageError: blocks do not divide ``K``.
    """
    rows, depth = weight.shape
    if depth % block_size:
        raise UsageError(f"has {depth} inputs, which blocks of {block_size} do not divide")
    blocks = _blocks_of(weight, block_size)
    weights = None if importance is None else _blocks_of(importance[None], block_size)[0]
    step = max(_CHUNK_ELEMENTS // depth, 1)
    grids = [
        _search(blocks[start : start + step], storage, weights) for start in range(0, rows, step)
    ]
    scales, zeros = (np.concatenate(each) for each in zip(*grids, strict=True))
    return Grid(storage, scales, zeros)


def _search(blocks: Array, storage: StorageType, importance: Array | None) -> tuple[Array, Array]:
    low = np.minimum(blocks.min(-1), 0)
    high = np.maximum(blocks.max(-1), 0)
    if storage.signed:
        greatest = np.where(high >= -low, high, low)
        ranges = greatest / storage.minimum
    else:
        ranges = (high - low) / storage.maximum
    best = np.full(ranges.shape, np.inf)
    scales, zeros = np.ones_like(ranges), np.zeros_like(ranges)
    for factor in CLIPPINGS:
        tried = as_scales(ranges * np.float32(factor))
        offsets = zero_points(low, tried, storage)
        rounded = _round(blocks, tried[..., None], offsets[..., None], storage)
        errors = ((rounded - offsets[..., None]) * tried[..., None] - blocks) ** 2
        if importance is not None:
            errors *= importance
        error = errors.sum(-1)
        is_better = error < best
        best = np.where(is_better, error, best)
        scales = np.where(is_better, tried, scales)
        zeros = np.where(is_better, offsets, zeros)
    return scales, zeros


def zero_points(low: Array, scales: Array, storage: StorageType) -> Array:
    """Return the zero points that put the least values of blocks at the least integer."""
    if storage.signed:
        return np.zeros_like(scales)
    return np.clip(np.rint(-low / scales), storage.minimum, storage.maximum).astype(np.float32)


def as_scales(scales: Array) -> Array:
    """Round to float16; magnitudes outside its range become the nearest of it, and 0 becomes 1."""
    magnitudes = np.clip(np.abs(scales), _MIN_SCALE, _MAX_SCALE).astype(np.float16)
    result: Array = np.where(scales == 0, 1, np.copysign(magnitudes, scales)).astype(np.float32)
    return result


def _round(values: Array, scales: Array, zeros: Array, storage: StorageType) -> Array:
    nearest: Array = np.clip(np.rint(values / scales) + zeros, storage.minimum, storage.maximum)
    return nearest


def _blocks_of(array: Array, block_size: int) -> Array:
    return array.reshape((array.shape[0], -1, block_size))
