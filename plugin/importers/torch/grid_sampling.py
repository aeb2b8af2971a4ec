"""Decompositions of ``grid_sample``, which reads images at positions of a grid.

A grid has coordinates from -1 to 1. An image of ``S`` pixels along an axis has the positions::

    (coordinate + 1) * (S - 1) / 2             with align_corners
    (coordinate + 1) * S / 2 - 0.5             without

Each result is a weighted sum of pixels near its position. Pixels outside of the image are 0.

Sources: ``cpu/GridSamplerKernel.cpp`` (two axes) and ``GridSampler.h`` (three axes) in
``aten/src/ATen/native`` of PyTorch, whose formulas round in this order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
"""PyTorch's numbers of the interpolation modes."""
_ZEROS, _REFLECTION = 0, 2
"""PyTorch's numbers of the padding modes; 1 is ``border``."""
_CUBIC = -0.75
"""The parameter of the cubic kernel: the slope at distance 1."""


@dataclass(frozen=True)
class _Axis:
    """The pixels of an image along one axis.

    Args:
        size: the number of pixels.
        rank: the number of axes of the image.
        padding: the padding mode.
        align_corners: True if -1 and 1 are the centers of the outer pixels, not their edges.
    """

    size: int
    rank: int
    padding: int
    align_corners: bool

    def positions(self, coordinates: Tensor) -> Tensor:
        """Return the positions of coordinates, in pixels."""
        shifted = coordinates + 1.0
        if self.rank == 3:
            if self.align_corners:
                return shifted / 2.0 * (self.size - 1.0)
            return (shifted * float(self.size) - 1.0) / 2.0
        if self.align_corners:
            return shifted * ((self.size - 1) / 2)
        return shifted * (self.size / 2) - 0.5

    def inside(self, positions: Tensor) -> Tensor:
        """Move positions into the image, by the padding mode; NaN becomes 0."""
        if self.padding == _ZEROS:
            if self.rank == 3:  # NaN and infinity are outside
                outside = torch.full_like(positions, -100.0)
                return torch.where(positions.abs() < 2.0**31, positions, outside)
            return positions
        if self.padding == _REFLECTION:
            positions = self._reflected(positions)
        positive = torch.where(positions > 0.0, positions, torch.zeros_like(positions))
        return torch.clamp(positive, max=self.size - 1.0)

    def _reflected(self, positions: Tensor) -> Tensor:
        low, period = (0.0, 2 * (self.size - 1)) if self.align_corners else (-0.5, 2 * self.size)
        if not period:
            return torch.zeros_like(positions)
        distance = (positions - low).abs()
        rest = distance - torch.trunc(distance / period) * period
        return torch.minimum(rest, period - rest) + low


class _Image:
    """Pixels ``[N, C, ...]``, read at positions.

    Args:
        images: the pixels.
        axes: the axes behind C.
    """

    def __init__(self, images: Tensor, axes: Sequence[_Axis]) -> None:
        batch, channels = images.shape[:2]
        self._axes = axes
        self._rows = images.movedim(1, -1).reshape(-1, channels)  # [N * pixels, C]
        self._batch = torch.arange(batch, device=images.device)[:, None]

    def read(self, pixels: Sequence[Tensor]) -> Tensor:
        """Return the pixels at whole positions ``[N, P]`` of each axis: ``[N, P, C]``."""
        index, is_inside = self._batch, None
        for axis, position in zip(self._axes, pixels, strict=True):
            is_on_axis = torch.logical_and(position >= 0.0, position < float(axis.size))
            whole = torch.where(is_on_axis, position, torch.zeros_like(position)).to(torch.int64)
            index = index * axis.size + whole
            is_inside = (
                is_on_axis if is_inside is None else torch.logical_and(is_inside, is_on_axis)
            )
        assert is_inside is not None
        read = self._rows.index_select(0, index.reshape(-1)).reshape(*index.shape, -1)
        return torch.where(is_inside[..., None], read, torch.zeros_like(read))


def _bilinear(image: _Image, positions: Sequence[Tensor]) -> Tensor:
    """Weight the pixels at the corners of a position by the distances to the opposite ones."""
    lower = [torch.floor(position) for position in positions]
    distances = [position - corner for position, corner in zip(positions, lower, strict=True)]
    remainders = [1.0 - distance for distance in distances]
    terms = []
    for corner in itertools.product((0, 1), repeat=len(positions)):
        weight = _product([(remainders, distances)[side][axis] for axis, side in enumerate(corner)])
        pixel = [each + side if side else each for each, side in zip(lower, corner, strict=True)]
        terms.append(image.read(pixel) * weight[..., None])
    return added(terms)


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def added(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, from the first to the last."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def cubic_weights(distance: Tensor) -> list[Tensor]:
    """Return the weights of the pixels at -1, 0, 1 and 2, for a position between 0 and 1."""

    def inner(x: Tensor) -> Tensor:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1.0

    def outer(x: Tensor) -> Tensor:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    return [outer(distance + 1.0), inner(distance), inner(1.0 - distance), outer(2.0 - distance)]


def _bicubic(image: _Image, positions: Sequence[Tensor], axes: Sequence[_Axis]) -> Tensor:
    """Interpolate four rows of four pixels, and then their results."""
    rows, columns = (torch.floor(position) for position in positions)
    row_weights, column_weights = (
        cubic_weights(position - whole)
        for position, whole in zip(positions, (rows, columns), strict=True)
    )
    results = []
    for row, row_weight in zip(range(-1, 3), row_weights, strict=True):
        pixels = [
            image.read([axes[0].inside(rows + float(row)), axes[1].inside(columns + float(column))])
            for column in range(-1, 3)
        ]
        terms = [p * weight[..., None] for p, weight in zip(pixels, column_weights, strict=True)]
        results.append(added(terms) * row_weight[..., None])
    return added(results)


def _grid_sampler(
    images: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> Any:
    """Sample images ``[N, C, H, W]`` or ``[N, C, D, H, W]`` at ``grid [N, ..., rank]``."""
    sizes = images.shape[2:]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return NotImplemented
    axes = [_Axis(size, len(sizes), padding, align_corners) for size in sizes]
    flat = grid.reshape(grid.shape[0], -1, len(sizes))  # the last axis is the first coordinate
    positions = [axis.positions(flat[..., -1 - n]) for n, axis in enumerate(axes)]
    image = _Image(images, axes)
    if mode == _BICUBIC:
        sampled = _bicubic(image, positions, axes)
    else:
        bounded = [axis.inside(each) for axis, each in zip(axes, positions, strict=True)]
        if mode == _NEAREST:
            sampled = image.read([torch.round(position) for position in bounded])
        else:
            sampled = _bilinear(image, bounded)
    return sampled.reshape(*grid.shape[:-1], images.shape[1]).movedim(-1, 1)


def grid_sampling_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.grid_sampler_2d.default: _grid_sampler,
        aten.grid_sampler_3d.default: _grid_sampler,
    }
