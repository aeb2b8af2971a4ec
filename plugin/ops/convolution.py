"""``conv2d``, of images ``[N, C, H, W]`` and kernels ``[F, C / groups, KH, KW]``, in float32.

* *affine*: integers on both sides. The images are padded with their offset, which stands for 0, so
  that every window is whole; then, with ``k`` over the window and the channels of a group::

      acc = sum_k qx qw - mx sum_k qw - mw sum_k qx + K mx mw,    y = acc * (dx * dw)

  ``sum_k qx`` is a convolution with ones.
* *dequantized*: any layout, by its float values; padded with 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import UsageError
from ..layouts import QuantizedLayout
from ..tracing import convolve
from .affine import accumulator, is_affine, offsets, scales_along
from .registry import Op

__all__ = ["conv2d"]

conv2d = Op("conv2d")
"""``conv2d(x, w, bias=None, *, strides, padding, dilations, groups)``.

``padding`` is a pair for height and width, each a number for both ends or a pair.
"""

_Pair = tuple[int, int]


def _fits(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    strides: _Pair = (1, 1),
    padding: Any = (0, 0),
    dilations: _Pair = (1, 1),
    groups: int = 1,
) -> bool:
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
        images[2:], kernels[2:], dilations, _pads(padding), strict=True
    ):
        if extent + low + high < (size - 1) * step + 1:
            raise UsageError(
                f"conv2d has a window of {(size - 1) * step + 1} over {extent + low + high} "
                "positions, padding included"
            )
    if min(strides) < 1 or min(dilations) < 1:
        raise UsageError(f"conv2d has strides {strides} and dilations {dilations}, expected from 1")
    return True


def _pads(padding: Any) -> list[_Pair]:
    return [(p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in padding]


def _padded(images: Any, padding: Any, value: Any) -> Any:
    pads = _pads(padding)
    if not any(map(any, pads)):
        return images
    return np.pad(images, [(0, 0), (0, 0), *pads], constant_values=value)


def _with_bias(result: Any, bias: Any) -> Any:
    if bias is None:
        return result
    values = bias.dequant() if isinstance(bias, QuantizedLayout) else bias
    return result + values.astype(np.float32).reshape((-1, 1, 1))


def _takes_affine(x: Any, w: Any, bias: Any = None, **options: Any) -> bool:
    return _fits(x, w, bias, **options) and is_affine(x, None) and is_affine(w, 0)


@conv2d.implementation("affine", _takes_affine)
def _affine(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    strides: _Pair = (1, 1),
    padding: Any = (0, 0),
    dilations: _Pair = (1, 1),
    groups: int = 1,
) -> Any:
    features, per_group, *sizes = w.shape
    window = per_group * math.prod(sizes)
    dtype = accumulator(x, w, window)
    qx, qw = x.planes["qs"].astype(dtype), w.planes["qs"]
    mx, mw = offsets(x, None, dtype), offsets(w, 0, dtype)
    images = _padded(qx, padding, 0 if mx is None else mx)
    acc = convolve(images, qw.astype(dtype), strides, dilations, groups, dtype)
    if mx is not None:
        sums = qw.astype(dtype).sum(axis=(1, 2, 3), dtype=dtype)
        acc = acc - (mx * sums).reshape((-1, 1, 1))
    if mw is not None:
        ones = np.ones((groups, per_group, *sizes), dtype)
        sums = convolve(images, ones, strides, dilations, groups, dtype)
        spread = np.repeat(sums, features // groups, axis=1)
        acc = acc - spread * mw.reshape((-1, 1, 1))
    if mx is not None and mw is not None:
        acc = acc + (mx * mw * dtype.type(window)).reshape((-1, 1, 1))
    scales = (scales_along(x, None) * scales_along(w, 0)).reshape((-1, 1, 1))
    return _with_bias(acc.astype(np.float32) * scales, bias)


@conv2d.implementation("dequantized", _fits)
def _dequantized(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    strides: _Pair = (1, 1),
    padding: Any = (0, 0),
    dilations: _Pair = (1, 1),
    groups: int = 1,
) -> Any:
    values, kernels = (
        (v.dequant() if isinstance(v, QuantizedLayout) else v).astype(np.float32) for v in (x, w)
    )
    images = _padded(values, padding, np.float32(0))
    return _with_bias(convolve(images, kernels, strides, dilations, groups), bias)
