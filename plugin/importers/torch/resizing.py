"""Decompositions of ``upsample_nearest``, ``upsample_linear`` and ``upsample_bicubic``.

With ``antialias`` the weights are those of a filter that is stretched by the factor of a reduction.

PyTorch's decompositions index all axes at once, with an index of each element of the result: a
bilinear resize of 16 images of 64 x 64 took 30 ms, and 0.4 axis by axis. An element of the result
is a weighted sum of elements of the input at positions along each axis, which are computed in f32,
with the reciprocal of a factor. The last axis is first, as in PyTorch's kernels.

Along dynamic axes only ``upsample_nearest`` by a whole factor is decomposed here.

Sources: ``aten/src/ATen/native/UpSample.h`` of PyTorch 2.13: ``compute_scales_value``,
``area_pixel_compute_source_index``, ``get_cubic_upsample_coefficients``; ``UpSampleKernel.cpp``:
``_compute_indices_weights_aa``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from .grid_sampling import added, cubic_weights

Tensor: TypeAlias = torch.Tensor


def resizing_operators(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator; those of `table` apply to other sizes and types."""
    aten = torch.ops.aten
    nearest = {
        **{getattr(aten, f"upsample_nearest{rank}d").vec: 0.0 for rank in (1, 2, 3)},
        **{getattr(aten, f"_upsample_nearest_exact{rank}d").vec: 0.5 for rank in (1, 2, 3)},
    }
    weighted = {
        aten.upsample_linear1d.vec: _linear_taps,
        aten.upsample_bilinear2d.vec: _linear_taps,
        aten.upsample_trilinear3d.vec: _linear_taps,
        aten.upsample_bicubic2d.vec: _cubic_taps,
    }
    antialiased = {
        "_upsample_bilinear2d_aa": _antialiased(_triangle, 1.0),
        "_upsample_bicubic2d_aa": _antialiased(_cubic, 2.0),
    }
    for name, taps in antialiased.items():
        weighted[getattr(aten, name).vec] = taps
        weighted[getattr(aten, name).default] = taps
    return {each: _nearest(offset, table[each]) for each, offset in nearest.items()} | {
        each: _weighted(taps, table.get(each, _refused)) for each, taps in weighted.items()
    }


def _refused(*arguments: Any) -> Any:
    """There is no decomposition."""
    return NotImplemented


def _is_dynamic(extents: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in extents)


def _result_sizes(
    extents: Sequence[int], sizes: Sequence[int] | None, factors: Sequence[float] | None
) -> list[int]:
    """The sizes of the result along the resized axes."""
    if sizes is not None:
        return list(sizes)
    return [int(extent * factor) for extent, factor in zip(extents, factors or (), strict=True)]


def _scales(
    extents: Sequence[int], sizes: Sequence[int], factors: Sequence[float] | None
) -> list[float]:
    """The steps along the input for one of the result, in f32."""
    if factors is None:
        return [
            float(np.float32(extent) / np.float32(size))
            for extent, size in zip(extents, sizes, strict=True)
        ]
    return [float(np.float32(1.0 / factor)) for factor in factors]


def _nearest(offset: float, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition of an operator; `otherwise` is that of dynamic sizes."""

    def decomposed(
        values: Tensor, sizes: Sequence[Any] | None, factors: Sequence[float] | None
    ) -> Any:
        extents = values.shape[2:]
        if _is_dynamic([*extents, *(sizes or ())]):
            if factors is None or any(factor != int(factor) for factor in factors):
                return otherwise(values, sizes, factors)
            sizes = [extent * int(factor) for extent, factor in zip(extents, factors, strict=True)]
        results = _result_sizes(extents, sizes, factors)
        for axis, scale in reversed(list(enumerate(_scales(extents, results, factors), 2))):
            extent, size = values.shape[axis], results[axis - 2]
            index = (torch.arange(size, dtype=torch.float32) + offset) * scale
            index = torch.clamp(index.to(torch.int64), max=extent - 1)
            values = torch.index_select(values, axis, index)
        return values

    return decomposed


_Taps: TypeAlias = Callable[[Tensor, float, bool, int], tuple[Tensor, list[tuple[int, Tensor]]]]
"""The taps of elements: of their numbers, the step, ``align_corners`` and the size of the input.

The first positions along the axis, f32, and for each tap its distance to them and its weights.
"""


def _weighted(taps: _Taps, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition of an operator; `otherwise` is that of dynamic sizes and of u8."""

    def decomposed(
        values: Tensor,
        sizes: Sequence[Any] | None,
        align_corners: bool,
        *factor_arguments: Any,
    ) -> Any:
        [factors] = factor_arguments if len(factor_arguments) == 1 else [factor_arguments or None]
        if factors is not None and None in factors:
            factors = None
        extents = values.shape[2:]
        if _is_dynamic([*extents, *(sizes or ())]) or not values.is_floating_point():
            return otherwise(values, sizes, align_corners, factors)
        results = _result_sizes(extents, sizes, factors)
        scales = _scales(extents, results, factors)
        if align_corners:
            scales = [
                float(np.float32(extent - 1) / np.float32(size - 1)) if size > 1 else 0.0
                for extent, size in zip(extents, results, strict=True)
            ]
        dtype = values.dtype
        computed = torch.float64 if dtype == torch.float64 else torch.float32
        values = values.to(computed)
        for axis, scale in reversed(list(enumerate(scales, 2))):
            extent, size = values.shape[axis], results[axis - 2]
            along = torch.arange(size, dtype=computed)
            first, weights = taps(along, scale, align_corners, extent)
            shape = [-1] + [1] * (values.dim() - 1 - axis)
            index = first.to(torch.int64)
            terms = [
                torch.index_select(values, axis, torch.clamp(index + distance, 0, extent - 1))
                * weight.reshape(shape)
                for distance, weight in weights
            ]
            values = added(terms)
        return values.to(dtype)

    return decomposed


def _linear_taps(
    along: Tensor, scale: float, align_corners: bool, extent: int
) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    positions = torch.clamp(_positions(along, scale, align_corners), min=0)
    first = torch.floor(positions)
    weight = positions - first
    return first, [(0, 1 - weight), (1, weight)]


def _cubic_taps(
    along: Tensor, scale: float, align_corners: bool, extent: int
) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    positions = _positions(along, scale, align_corners)
    first = torch.floor(positions)
    weights = cubic_weights(positions - first)
    return first, [(number - 1, weight) for number, weight in enumerate(weights)]


def _positions(along: Tensor, scale: float, align_corners: bool) -> Tensor:
    return along * scale if align_corners else (along + 0.5) * scale - 0.5


def _antialiased(filter_: Callable[[Tensor], Tensor], radius: float) -> Callable[..., Any]:
    """Return the taps of a filter, which is 0 from a radius on."""

    def taps(
        along: Tensor, scale: float, align_corners: bool, extent: int
    ) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        stretch = max(scale, 1.0)
        center = (along + 0.5) * scale
        first = torch.clamp(torch.floor(center - radius * stretch + 0.5), min=0)
        end = torch.clamp(torch.floor(center + radius * stretch + 0.5), max=extent)
        weights = []
        for distance in range(math.ceil(2 * radius * stretch) + 1):
            position = first + distance
            weight = filter_(torch.abs(position - center + 0.5) * (1.0 / stretch))
            weights.append(torch.where(position < end, weight, 0.0))
        total = added(weights)
        return first, [(number, weight / total) for number, weight in enumerate(weights)]

    return taps


def _triangle(x: Tensor) -> Tensor:
    return torch.clamp(1.0 - x, min=0.0)


def _cubic(x: Tensor) -> Tensor:
    """The cubic filter with ``a`` = -1/2."""
    inner = (1.5 * x - 2.5) * x * x + 1.0
    outer = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return torch.where(x < 1.0, inner, torch.where(x < 2.0, outer, 0.0))
