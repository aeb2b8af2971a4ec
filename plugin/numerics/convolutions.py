"""Contractions, convolutions and pooling of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .array_functions import dispatched
from .element_types import AnyArray

_MAX_EXACT_K = 1 << 21
"""Products of 32 bits that float64, with 53 bits, adds without rounding, at most."""


@dispatched
def contract(
    left: AnyArray,
    right: AnyArray,
    axes: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
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
    return _summed_products(subscripts, left, right, dtype)


def _summed_products(
    subscripts: str, left: AnyArray, right: AnyArray, dtype: npt.DTypeLike
) -> AnyArray:
    """Return ``np.einsum`` of two operands as `dtype`; integers are exact.

    A BLAS multiplies no integers, and NumPy's loops take 8 to 10 times as long (512 x 2048 x 640,
    int8). Integers of 8 and 16 bits are multiplied as float64, which rounds none of their sums.
    """
    sizes = dict(zip(subscripts.replace(",", ""), (*left.shape, *right.shape), strict=False))
    operands, result = subscripts.split("->")
    k = math.prod(sizes[name] for name in set(operands) - {*result, ","})
    is_short = all(each.dtype.kind in "iu" and each.dtype.itemsize <= 2 for each in (left, right))
    if np.dtype(dtype).kind == "i" and is_short and k <= _MAX_EXACT_K:
        summed = np.einsum(
            subscripts, left.astype(np.float64), right.astype(np.float64), optimize=True
        )
        return summed.astype(dtype)
    return np.einsum(subscripts, left.astype(dtype), right.astype(dtype), optimize=True)


@dispatched
def convolve(
    images: AnyArray,
    kernels: AnyArray,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
    """Convolve images of any number of spatial dimensions, without padding: ``[N, F, OH, OW]``.

    Args:
        images: ``[N, C, H, W]``, or with one, three or more spatial dimensions; integers if
            `dtype` is.
        kernels: ``[F, C / groups, KH, KW]``, with as many spatial dimensions.
        strides, dilations: one for each spatial dimension.
        groups: the number of groups of features; each reads as many channels.
        dtype: see `contract`.
    """
    count, channels, *_ = images.shape
    features, per_group, *sizes = kernels.shape
    rank = len(sizes)
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(images, spans, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    windows = windows.reshape((count, groups, channels // groups, *windows.shape[2:]))
    filters = kernels.reshape((groups, features // groups, per_group, *sizes))
    outer, inner = "hwdxyz"[:rank], "ijklmo"[:rank]
    subscripts = f"ngc{outer}{inner},gfc{inner}->ngf{outer}"
    result = _summed_products(subscripts, windows, filters, dtype)
    return result.reshape((count, features, *result.shape[3:]))


@dispatched
def dilate(array: AnyArray, steps: Sequence[int]) -> AnyArray:
    """Insert ``steps[axis] - 1`` zeros between each two elements along each axis."""
    shape = [max((n - 1) * step + 1, 0) for n, step in zip(array.shape, steps, strict=True)]
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(None, None, step) for step in steps)] = array
    return result


@dispatched
def convolve_last(
    images: AnyArray,
    kernels: AnyArray,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
    """Convolve images with channels last: see `convolve`; the result is ``[N, OH, OW, F]``.

    Args:
        images: ``[N, H, W, C]``; integers if `dtype` is.
        kernels: ``[KH, KW, C / groups, F]``.
    """
    first = convolve(
        images.transpose(0, 3, 1, 2), kernels.transpose(3, 2, 0, 1), strides, dilations, groups,
        dtype,
    )  # fmt: skip
    return first.transpose(0, 2, 3, 1)


@dispatched
def pool(
    images: AnyArray,
    sizes: Sequence[int],
    strides: Sequence[int],
    function: str,
    axes: Sequence[int] = (1, 2),
) -> AnyArray:
    """Reduce windows of some axes, without padding, in the dtype of `images`.

    Args:
        images: floats or signed integers.
        function: ``add`` or ``maximum``.
        axes: the spatial dimensions; by default those of ``[N, H, W, C]``.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images, tuple(sizes), tuple(axes))
    steps = [slice(None)] * images.ndim
    for axis, step in zip(axes, strides, strict=True):
        steps[axis] = slice(None, None, step)
    windows = windows[tuple(steps)]
    reduction = {"add": np.add, "maximum": np.maximum}[function]
    last = tuple(range(-len(sizes), 0))
    return reduction.reduce(windows, axis=last, dtype=images.dtype)
