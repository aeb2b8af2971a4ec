"""Grids of a weight: the scale and the offset of each block of inputs.

A weight ``[N, K]`` has blocks of ``B`` elements along ``K``. The integer ``q`` of an element ``w``
has the value ``d q + m``. The block has the scale ``d`` and the offset ``m``::

    q = clip(round((w - m) / d), low, high)

The offset is 0 (*symmetric*), ``-z d`` for an integer ``z`` (*zero points*), or any float16
(*offsets*, as in GGML's Q4_1). Scales are values of float16, as archives and GGUF files store them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import ml_dtypes
import numpy as np

from ..errors import UsageError
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType

CLIPPINGS = tuple(np.arange(1.15, 0.5, -0.025).tolist())
"""Factors of a block's range that the search tries.

A range may grow: its ends need not be values of the grid.
"""

_CHUNK_ELEMENTS = 1 << 17
"""Elements that the search takes in one step, so that they stay in the L2 cache."""

OffsetKind = Literal["symmetric", "zero points", "offsets"]


@dataclass(frozen=True)
class Grid:
    """Scales and offsets of the blocks of a weight ``[N, K]``.

    Attributes:
        storage: the type of the integers; signed for symmetric grids.
        kind: the offsets that blocks may have.
        scales: float32 ``[N, K / B]``, each a value of float16; negative ones are allowed.
        offsets: float32 ``[N, K / B]``.
    """

    storage: StorageType
    kind: OffsetKind
    scales: Array
    offsets: Array

    @property
    def zero_points(self) -> Array:
        """The integers ``z`` of a grid with zero points, float32."""
        zeros: Array = np.rint(-self.offsets / self.scales)
        return zeros

    def stored(self, integers: Array) -> tuple[Array, Array, Array | None]:
        """Return integers, scales and zero points in the types in which files store them."""
        dtype = self.storage.dtype
        zeros = self.zero_points.astype(dtype) if self.kind == "zero points" else None
        return integers.astype(dtype), self.scales.astype(np.float16), zeros

    def columns(self, k: int) -> tuple[Array, Array]:
        """Return the scale and the offset of each element, ``[N, K]`` each, for K."""
        size = k // self.scales.shape[1]
        return np.repeat(self.scales, size, axis=1), np.repeat(self.offsets, size, axis=1)

    def __getitem__(self, rows: slice) -> Grid:
        """Return the grid of some rows."""
        return replace(self, scales=self.scales[rows], offsets=self.offsets[rows])

    def round(self, weight: Array) -> Array:
        """Return the nearest integers of a weight, float32 ``[N, K]``."""
        return nearest(weight, *self.columns(weight.shape[1]), self.storage)

    def dequantize(self, integers: Array) -> Array:
        """Return the values of integers ``[N, K]``, float32."""
        scales, offsets = self.columns(integers.shape[1])
        return integers * scales + offsets

    def with_scales(self, scales: Array) -> Grid:
        """Return the grid with other scales, rounded to float16; zero points stay."""
        rounded = as_scales(scales)
        if self.kind != "zero points":
            return Grid(self.storage, self.kind, rounded, self.offsets)
        return Grid(self.storage, self.kind, rounded, -self.zero_points * rounded)


def fit_grid(
    weight: Array,
    block_size: int,
    storage: StorageType,
    importance: Array | None = None,
    kind: OffsetKind | None = None,
    clippings: Sequence[float] = CLIPPINGS,
) -> Grid:
    """Search the grid with the least weighted square error of rounding, block by block.

    The error of a block is ``sum_k importance[k] (w[k] - d q[k] - m)**2``. The greatest magnitude
    of a block of a symmetric grid gets the least integer, as in GGML's Q4_0.

    Args:
        weight: float32 ``[N, K]``.
        block_size: elements of a block; it divides ``K``.
        importance: weights of the square errors ``[K]``, or None for ones.
        kind: by default symmetric for a signed storage type, else with zero points.
        clippings: the factors of a block's range to try.

    Raises:
        UsageError: blocks do not divide ``K``.
    """
    if weight.shape[1] % block_size:
        raise UsageError(
            f"has {weight.shape[1]} inputs, which blocks of {block_size} do not divide"
        )
    kind = kind or ("symmetric" if storage.signed else "zero points")
    return Grid(
        storage, kind, *search_scales(weight, block_size, storage, kind, importance, clippings)
    )


def search_scales(
    weight: Array,
    block_size: int,
    storage: StorageType,
    kind: OffsetKind,
    importance: Array | None = None,
    clippings: Sequence[float] = CLIPPINGS,
    *,
    power: Literal[2, 4] = 2,
    scale_type: type[np.floating] = np.float16,
) -> tuple[Array, Array]:
    """Search the scale and the offset of each block, as `fit_grid`; float32 ``[N, K / B]`` each.

    Args:
        power: the power of the magnitudes of errors whose sum is least.
        scale_type: float16 or float32, to which the scales are rounded.
    """
    rows, k = weight.shape
    step = max(_CHUNK_ELEMENTS // k, 1)
    weights = None
    if importance is not None:
        weights = np.tile(importance.reshape((-1, block_size)).T, min(step, rows))
    scales, offsets = (np.empty((rows, k // block_size), np.float32) for _ in range(2))
    for start in range(0, rows, step):
        # The blocks are the columns of a matrix, so that NumPy's inner loops are long.
        blocks = np.ascontiguousarray(weight[start : start + step].reshape((-1, block_size)).T)
        few = None if weights is None else weights[:, : blocks.shape[1]]
        parameters = _search(blocks, storage, kind, few, clippings, power, scale_type)
        for result, each in zip((scales, offsets), parameters, strict=True):
            result[start : start + step] = each.reshape((-1, k // block_size))
    return scales, offsets


def _search(
    blocks: Array,
    storage: StorageType,
    kind: OffsetKind,
    importance: Array | None,
    clippings: Sequence[float],
    power: int,
    scale_type: type[np.floating],
) -> tuple[Array, Array]:
    """Return the scale and the offset of each block; the blocks are columns."""
    low = np.minimum(blocks.min(0), 0)
    high = np.maximum(blocks.max(0), 0)
    if kind != "symmetric":
        ranges = (high - low) / storage.maximum
    elif storage.is_narrowed:
        ranges = np.maximum(high, -low) / storage.maximum
    else:
        ranges = np.where(high >= -low, high, low) / storage.minimum
    least = np.full(ranges.shape, np.inf, np.float32)
    scales, offsets = np.ones_like(ranges), np.zeros_like(ranges)
    for factor in clippings:
        tried = as_scales(ranges * np.float32(factor), scale_type)
        tried_offsets = _offsets(low, np.float32(factor), tried, storage, kind)
        errors = nearest(blocks, tried, tried_offsets, storage)
        errors *= tried
        if kind != "symmetric":
            errors += tried_offsets
        errors -= blocks
        errors *= errors
        if power == 4:
            errors *= errors
        if importance is not None:
            errors *= importance
        error = errors.sum(0)
        is_better = error < least
        for best, each in ((least, error), (scales, tried), (offsets, tried_offsets)):
            np.copyto(best, each, where=is_better)
    return scales, offsets


def _offsets(
    low: Array, factor: np.float32, scales: Array, storage: StorageType, kind: OffsetKind
) -> Array:
    """Return the offsets that put the least values of blocks, or near it, at the integer 0."""
    if kind == "symmetric":
        return np.zeros_like(scales)
    if kind == "offsets":
        least: Array = low * np.minimum(factor, 1)
        return least.astype(np.float16).astype(np.float32)
    zeros = np.clip(np.rint(-low / scales), storage.minimum, storage.maximum)
    products: Array = -zeros * scales
    return products


def as_scales(scales: Array, scale_type: type[np.floating] = np.float16) -> Array:
    """Round to a type; magnitudes outside its range become the nearest of it, and 0 becomes 1."""
    limits = ml_dtypes.finfo(scale_type)
    least, greatest = np.float32(limits.smallest_subnormal), np.float32(limits.max)
    magnitudes = np.clip(np.abs(scales), least, greatest).astype(scale_type)
    result: Array = np.where(scales == 0, 1, np.copysign(magnitudes, scales)).astype(np.float32)
    return result


def nearest(values: Array, scales: Array, offsets: Array, storage: StorageType) -> Array:
    """Return ``clip(round((w - m) / d))``, float32."""
    integers: Array = values - offsets
    integers /= scales
    np.rint(integers, out=integers)
    np.maximum(integers, storage.minimum, out=integers)
    np.minimum(integers, storage.maximum, out=integers)
    return integers
