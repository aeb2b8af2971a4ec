"""``conv2d``, of images ``[N, C, H, W]`` and kernels ``[F, C / groups, KH, KW]``, in float32.

* *affine*: integers on both sides. The images are padded with their offset, which stands for 0, so
  that every window is whole; then, with ``k`` over the window and the channels of a group::

      acc = sum_k qx qw - mx sum_k qw - mw sum_k qx + K mx mw,    y = acc * (dx * dw)

  ``sum_k qx`` is a convolution with ones.
* *dequantized*: any layout, by its float values; padded with 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..layouts import QuantizedLayout
from ..numerics.convolutions import convolve
from ..numerics.element_types import AnyArray
from .affine import accumulator, is_affine, offsets, scales_along
from .registry import Op, Operand, real

conv2d = Op("conv2d")
"""``conv2d(x, w, bias=None, *, strides, padding, dilations, groups)``.

``padding`` is a pair for height and width, each a number for both ends or a pair.
"""

_Pair = tuple[int, int]


@dataclass(frozen=True)
class _Window:
    """The options of ``conv2d``."""

    strides: _Pair = (1, 1)
    padding: Sequence[int | _Pair] = (0, 0)
    dilations: _Pair = (1, 1)
    groups: int = 1

    @property
    def pads(self) -> list[_Pair]:
        """The padding before and after, along height and width."""
        return [(p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in self.padding]


def _fits(x: Operand, w: Operand, bias: Operand = None, **options: Any) -> bool:
    window = _Window(**options)
    groups, strides, dilations = window.groups, window.strides, window.dilations
    images, kernels = tuple(x.shape), tuple(w.shape)
    if len(images) != 4 or len(kernels) != 4 or images[1] != kernels[1] * groups:
        raise UsageError(
            "conv2d takes x [N, C, H, W] and w [F, C / groups, KH, KW], got "
            f"{images} and {kernels} with {groups} groups"
        )
    if kernels[0] % groups:
        raise UsageError(f"conv2d of {kernels[0]} features has {groups} groups, not a divisor")
    if bias is not None and tuple(bias.shape) != kernels[:1]:
        raise UsageError(f"conv2d takes a bias of shape {kernels[:1]}, got {tuple(bias.shape)}")
    for extent, size, step, (low, high) in zip(
        images[2:], kernels[2:], dilations, window.pads, strict=True
    ):
        if extent + low + high < (size - 1) * step + 1:
            raise UsageError(
                f"conv2d has a window of {(size - 1) * step + 1} over {extent + low + high} "
                "positions, padding included"
            )
    if min(strides) < 1 or min(dilations) < 1:
        raise UsageError(f"conv2d has strides {strides} and dilations {dilations}, expected from 1")
    return True


def _padded(images: AnyArray, window: _Window, value: AnyArray) -> AnyArray:
    if not any(map(any, window.pads)):
        return images
    return np.pad(images, [(0, 0), (0, 0), *window.pads], constant_values=value)


def _padded_storage(x: QuantizedLayout, window: _Window) -> AnyArray:
    """The storage values, padded with the offset; wider ones where the offset may be beyond."""
    storage, offset = x.planes["qs"], x.planes.get("m")
    if offset is None:
        return _padded(storage, window, 0)
    if offset.dtype != storage.dtype:
        storage, offset = storage.astype(np.int64), offset.astype(np.int64)
    return _padded(storage, window, offset.reshape(()))


def _convolve(
    images: AnyArray, kernels: AnyArray, window: _Window, dtype: npt.DTypeLike = np.float32
) -> AnyArray:
    return convolve(images, kernels, window.strides, window.dilations, window.groups, dtype)


def _with_bias(result: AnyArray, bias: Operand) -> AnyArray:
    if bias is None:
        return result
    return result + real(bias).reshape((-1, 1, 1))


def _takes_affine(x: Operand, w: Operand, bias: Operand = None, **options: Any) -> bool:
    return _fits(x, w, bias, **options) and is_affine(x, None) and is_affine(w, 0)


@conv2d.implementation("affine", _takes_affine)
def _affine(x: Operand, w: Operand, bias: Operand = None, **options: Any) -> AnyArray:
    window = _Window(**options)
    features, per_group, *sizes = w.shape
    products = per_group * math.prod(sizes)
    dtype = accumulator(x, w, products)
    qw = w.planes["qs"]
    mx, mw = offsets(x, None, dtype), offsets(w, 0, dtype)
    images = _padded_storage(x, window).astype(dtype)
    acc = _convolve(images, qw.astype(dtype), window, dtype)
    if mx is not None:
        accumulators = qw.astype(dtype).sum(axis=(1, 2, 3), dtype=dtype)
        acc = acc - (mx * accumulators).reshape((-1, 1, 1))
    if mw is not None:
        ones = np.ones((window.groups, per_group, *sizes), dtype)
        accumulators = _convolve(images, ones, window, dtype)
        spread = np.repeat(accumulators, features // window.groups, axis=1)
        acc = acc - spread * mw.reshape((-1, 1, 1))
    if mx is not None and mw is not None:
        acc = acc + (mx * mw * dtype.type(products)).reshape((-1, 1, 1))
    scales = (scales_along(x, None) * scales_along(w, 0)).reshape((-1, 1, 1))
    return _with_bias(acc.astype(np.float32) * scales, bias)


@conv2d.implementation("dequantized", _fits)
def _dequantized(x: Operand, w: Operand, bias: Operand = None, **options: Any) -> AnyArray:
    window = _Window(**options)
    images = _padded(real(x), window, np.float32(0))
    return _with_bias(_convolve(images, real(w), window), bias)
