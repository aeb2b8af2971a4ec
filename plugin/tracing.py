"""Array functions for code that runs in NumPy and is traced to MLIR alike.

Layouts and ops use the operators, methods and functions of NumPy that `traced_array` translates,
and for what NumPy does in another way than a compiler the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "concatenate",
    "contract",
    "convolve",
    "lookup",
    "stack",
    "take",
    "unpack_bits",
    "unpack_nibbles",
]


def concatenate(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along an axis."""
    return np.concatenate(list(arrays), axis=axis)


def stack(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along a new axis."""
    return np.stack(list(arrays), axis=axis)


def contract(
    left: Any,
    right: Any,
    axes: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: npt.DTypeLike = np.float32,
) -> Any:
    """Sum products over axes of both operands.

    Args:
        left, right: arrays; integers if `dtype` is.
        axes: the axes that are summed over, of each operand.
        batch: the axes that both have, of each operand; first in the result.
        dtype: what products are summed in. Integers must not overflow it; float sums are in any
            order.

    Returns:
        The batch axes, the other axes of `left`, and those of `right`.
    """
    if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
        from .emit.trace import contract_traced

        return contract_traced(left, right, axes, batch, dtype)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * left.ndim, [""] * right.ndim]
    for group in (batch, axes):
        for x, y in zip(*group, strict=True):
            names[0][x] = names[1][y] = next(letters)
    shared = [names[0][x] for x in batch[0]]
    for side in names:
        side[:] = [name or next(letters) for name in side]
    summed = {names[0][x] for x in axes[0]}
    free = [n for side in names for n in side if n not in summed and n not in shared]
    subscripts = f"{''.join(names[0])},{''.join(names[1])}->{''.join([*shared, *free])}"
    return np.einsum(subscripts, left.astype(dtype), right.astype(dtype), optimize=True)


def convolve(
    images: Any,
    kernels: Any,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> Any:
    """Sum products over windows, without padding.

    Args:
        images: ``[N, C, H, W]``; integers if `dtype` is.
        kernels: ``[F, C / groups, KH, KW]``.
        strides, dilations: of the windows, along height and width.
        groups: how many parts features are in; each sees a part of the channels.
        dtype: as of `contract`.

    Returns:
        ``[N, F, OH, OW]``.
    """
    if not (isinstance(images, np.ndarray) and isinstance(kernels, np.ndarray)):
        from .emit.trace import convolve_traced

        return convolve_traced(images, kernels, strides, dilations, groups, dtype)
    count, channels, *_ = images.shape
    features, per_group, *sizes = kernels.shape
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(images, spans, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    windows = windows.reshape((count, groups, channels // groups, *windows.shape[2:]))
    parts = kernels.reshape((groups, features // groups, per_group, *sizes))
    result = np.einsum("ngchwij,gfcij->ngfhw", windows.astype(dtype), parts.astype(dtype),
                       optimize=True)  # fmt: skip
    return result.reshape((count, features, *result.shape[3:]))


def take(array: Any, indices: Any, axis: int = 0) -> Any:
    """As ``np.take``, for indices in range; the array, the indices or both may be traced."""
    if isinstance(array, np.ndarray) and isinstance(indices, np.ndarray):
        return np.take(array, indices, axis=axis)
    from .emit.trace import take_traced

    return take_traced(array, indices, axis)


def lookup(table: Any, indices: Any) -> Any:
    """The entry of a table (an array of one axis, of constants) for each index."""
    if not isinstance(indices, np.ndarray):  # np.take asks the table alone how to take
        from .emit.trace import take_traced

        return take_traced(table, indices)
    return np.take(table, indices)


def unpack_bits(packed: Any, bits: int) -> Any:
    """The values of 1, 2 or 4 bits in each byte of the last axis, the lowest first, as uint8."""
    count = 8 // bits
    values = stack([(packed >> (bits * place)) & (2**bits - 1) for place in range(count)])
    return values.reshape((*packed.shape[:-1], count * packed.shape[-1]))


def unpack_nibbles(packed: Any) -> Any:
    """Two 4-bit values for each byte of the last axis, the low one first, as uint8."""
    return unpack_bits(packed, 4)
