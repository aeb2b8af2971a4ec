"""The meaning of ``subquant.block_contraction``: sums of products with a weight in blocks.

::

    result[p] = sum_r activations[p, r] * ((storage[p, r] - zero_point) * scale + offset)

`subquant.dialects.block_contraction` says which forms there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .casts import dequantize_blocks
from .element_types import Array
from .parameters import ExpressedType

__all__ = ["Term", "contract_blocks"]

Term = tuple[int, int]
"""A loop, and what its index is multiplied by."""


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
) -> Array:
    """Sum products of activations with a weight in blocks.

    Args:
        activations: reals.
        storage: integers.
        scales, zero_points, offsets: of the shape ``storage.shape / block_sizes``.
        indices: for activations, storage and result the terms whose sum indexes each axis.
        extents: of each loop.
        block_sizes: for each axis of the storage.
        expressed: the type of the weight's reals.

    Returns:
        The sums, float32 for f16 and bf16, else of the expressed type.
    """
    dtype = expressed.compute_dtype if expressed is ExpressedType.F64 else np.dtype(np.float32)
    weight = dequantize_blocks(storage, scales, zero_points, block_sizes, expressed, offsets)
    values = np.asarray(activations)
    loops: list[int] = []
    for axes in indices[0]:
        # Each axis becomes as many as the loops that index it.
        places = [np.arange(extents[loop]) * factor for loop, factor in axes]
        grid = sum(np.ix_(*places)) if len(places) > 1 else places[0]
        values = np.take(values, grid, axis=len(loops))
        loops += [loop for loop, _ in axes]
    stored = [loop for [(loop, _)] in indices[1]]
    kept = [loop for [(loop, _)] in indices[2]]
    sums: Array = np.einsum(
        values.astype(dtype), loops, weight.astype(dtype), stored, kept, optimize=True
    )
    return sums
