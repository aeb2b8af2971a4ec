"""Quantization parameters as grids: arrays that broadcast against a tensor of the quantized type.

A grid has shape (), or one dimension for each axis: 1 where one block spans the axis, else its
extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..numerics.element_types import Array
from ..numerics.parameters import QuantizationParameters, spread_blocks

__all__ = ["axis_grid", "exact", "grids_of", "scale_grid", "zero_point_grid"]


def exact(values: npt.ArrayLike) -> Array:
    """Floats as rationals, an object array of the same shape."""
    array = np.asarray(values)
    flat = [Fraction(float(value)) for value in array.reshape(-1)]
    return np.array(flat, object).reshape(array.shape)


def scale_grid(
    parameters: QuantizationParameters, rank: int, axes: Mapping[int, int] | None = None
) -> Array:
    """The exact scales: an object array of shape (), or with one dimension for each axis.

    Args:
        parameters: per-tensor or per-axis.
        rank: of the tensor that the grid is for.
        axes: where each axis of the quantized tensor is found in that tensor; by default the same.
    """
    return exact(axis_grid(parameters, parameters.scales, rank, axes))


def zero_point_grid(
    parameters: QuantizationParameters, rank: int, axes: Mapping[int, int] | None = None
) -> Array:
    """The zero points, an int64 array of the form of `scale_grid`."""
    return axis_grid(parameters, parameters.zero_points, rank, axes)


def axis_grid(
    parameters: QuantizationParameters,
    numbers: Array,
    rank: int,
    axes: Mapping[int, int] | None = None,
) -> Array:
    """Numbers of the scales' shape, in the form of `scale_grid`."""
    if not parameters.axes:
        return numbers.reshape(())
    axis = parameters.axes[0]
    shape = [1] * rank
    shape[axis if axes is None else axes[axis]] = numbers.size
    return numbers.reshape(shape)


def grids_of(parameters: QuantizationParameters, shape: Sequence[int]) -> tuple[Array, Array]:
    """Exact scales and zero points for a tensor, of any granularity with whole blocks.

    Args:
        parameters: of the tensor.
        shape: of the tensor; extents count only where there are blocks.
    """
    rank = len(shape)
    if parameters.granularity != "sub-channel":
        return scale_grid(parameters, rank), zero_point_grid(parameters, rank)
    scales, zero_points = parameters.grids(rank)
    # An axis of one block keeps one number.
    shape = [n if count > 1 else 1 for n, count in zip(shape, scales.shape, strict=True)]
    sizes = [n // count for n, count in zip(shape, scales.shape, strict=True)]
    return exact(spread_blocks(scales, shape, sizes)), spread_blocks(zero_points, shape, sizes)
