"""The meaning of ``subquant.block_contraction``: sums of products with a weight in blocks.

::

    result[p] = sum_r activations[p, r] * ((storage[p, r] - zero_point) * scale + offset)

`subquant.dialects.block_contraction` says which forms there are, and what activations of 8 bits
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .casts import dequantize_blocks
from .element_types import Array
from .parameters import ExpressedType

Term = tuple[int, int]
"""A loop, and what its index is multiplied by."""


LEAST_SCALED = 2.0**-100
"""A block of activations whose greatest magnitude is smaller counts as zeros: its scale is 1."""


def activation_scale(greatest: Any) -> Any:
    """The scale of integer activations, of the greatest magnitude in each block.

    The reciprocal of 127 in f32, so that every target has the same scale: division has rounding
    errors of its own on Vulkan.
    """
    scaled = greatest * float(np.float32(1 / 127))
    return np.where(greatest < LEAST_SCALED, greatest * 0 + 1, scaled)


def round_activations(
    activations: npt.ArrayLike, blocks: Sequence[int | None], dtype: npt.DTypeLike = np.float32
) -> Array:
    """Round activations to integers from -127 to 127 times the scale of their block.

    Block sizes divide the axes, None is a whole axis; `dtype` is that of the arithmetic.
    """
    values = np.asarray(activations, dtype)
    sizes = [size or extent for size, extent in zip(blocks, values.shape, strict=True)]
    grouped = values.reshape([
        n for extent, size in zip(values.shape, sizes, strict=True) for n in (extent // size, size)
    ])  # fmt: skip
    inner = tuple(range(1, grouped.ndim, 2))
    scales = activation_scale(np.abs(grouped).max(axis=inner, keepdims=True, initial=0))
    scales = scales.astype(dtype)
    integers = np.clip(np.rint(grouped / scales), -127, 127)
    rounded: Array = (integers * scales).reshape(values.shape)
    return rounded


def contract_blocks(
    activations: npt.ArrayLike,
    storage: npt.ArrayLike,
    scales: npt.ArrayLike,
    indices: Sequence[Sequence[Sequence[Term]]],
    extents: Sequence[int],
    block_sizes: Sequence[int],
    expressed: ExpressedType,
    zero_points: npt.ArrayLike | None = None,
    offsets: npt.ArrayLike | None = None,
    activation_blocks: Sequence[int | None] | None = None,
) -> Array:
    """Sum products of activations with a weight in blocks; those of f16 and bf16 are float32.

    Args:
        scales, zero_points, offsets: of the shape ``storage.shape / block_sizes``.
        indices: for activations, storage and result the terms whose sum indexes each axis.
        activation_blocks: of activations of 8 bits, along each axis; None for activations as they
            are.
    """
    dtype = expressed.compute_dtype if expressed is ExpressedType.F64 else np.dtype(np.float32)
    weight = dequantize_blocks(storage, scales, zero_points, block_sizes, expressed, offsets)
    values = np.asarray(activations)
    if activation_blocks is not None:
        values = round_activations(values, activation_blocks, dtype)
    loops: list[int] = []
    for axes in indices[0]:
        # Each axis becomes one axis for each loop that indexes it.
        positions = [np.arange(extents[loop]) * factor for loop, factor in axes]
        grid = sum(np.ix_(*positions)) if len(positions) > 1 else positions[0]
        values = np.take(values, grid, axis=len(loops))
        loops += [loop for loop, _ in axes]
    stored = [loop for [(loop, _)] in indices[1]]
    result_loops = [loop for [(loop, _)] in indices[2]]
    accumulators: Array = np.einsum(
        values.astype(dtype), loops, weight.astype(dtype), stored, result_loops, optimize=True
    )
    return accumulators
