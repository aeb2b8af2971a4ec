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

_DOUBLE_BITS, _MAX_EXPONENT = 53, 1000
"""The significant bits of f64, and a magnitude that its exponents may have."""


def exact(values: npt.ArrayLike) -> Array:
    """Floats as rationals, an object array of the same shape."""
    array = np.asarray(values, np.float64)
    flat = [Fraction(value) for value in array.reshape(-1).tolist()]
    return np.array(flat, object).reshape(array.shape)


def exact_doubles(values: Array) -> Array | None:
    """Return rationals as f64, an array of the same shape; None if one of them is no f64."""
    try:
        doubles = [float(number) for number in values.reshape(-1)]
    except OverflowError:
        return None
    same = all(Fraction(d) == n for d, n in zip(doubles, values.reshape(-1), strict=True))
    return np.array(doubles, np.float64).reshape(values.shape) if same else None


def exact_product(factors: Sequence[Array]) -> Array | None:
    """Return the f64 product if it is exact, else None.

    The product is exact if the significant bits of the factors are 53 together (two f32 scales) and
    their exponents are too small for overflow and subnormals.
    """
    product, bits, greatest = np.ones(()), 0, 0
    for factor in factors:
        mantissas, exponents = np.frexp(factor)
        whole = np.ldexp(mantissas, _DOUBLE_BITS).astype(np.int64)
        trailing = np.frexp(whole & -whole)[1] - 1  # of the lowest bit that is set
        bits += _DOUBLE_BITS - int(trailing.min(initial=_DOUBLE_BITS))
        greatest += int(np.abs(exponents).max(initial=0))
        product = np.asarray(product * factor)
    return product if bits <= _DOUBLE_BITS and greatest < _MAX_EXPONENT else None


def scale_grid(parameters: QuantizationParameters, rank: int) -> Array:
    """The exact scales: an object array of shape (), or with one dimension for each axis."""
    return exact(axis_grid(parameters, parameters.scales, rank))


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
    """Numbers of the scales' shape, in the form of `scale_grid`, for a tensor of a rank.

    `axes` has its axis for each axis of the quantized tensor; by default the same.
    """
    if not parameters.axes:
        return numbers.reshape(())
    axis = parameters.axes[0]
    shape = [1] * rank
    shape[axis if axes is None else axes[axis]] = numbers.size
    return numbers.reshape(shape)


def grids_of(parameters: QuantizationParameters, shape: Sequence[int]) -> tuple[Array, Array]:
    """Exact scales and zero points for a tensor, of any granularity with whole blocks.

    Extents of `shape` count only where there are blocks.
    """
    rank = len(shape)
    if parameters.granularity != "sub-channel":
        return scale_grid(parameters, rank), zero_point_grid(parameters, rank)
    scales, zero_points = parameters.grids(rank)
    return exact(spread(scales, shape)), spread(zero_points, shape)


def spread(grid: Array, shape: Sequence[int]) -> Array:
    """A number for each index of the axes that have several blocks; one for the others."""
    if not grid.ndim:
        return grid
    counted = [n if count > 1 else 1 for n, count in zip(shape, grid.shape, strict=True)]
    sizes = [n // count for n, count in zip(counted, grid.shape, strict=True)]
    return spread_blocks(grid, counted, sizes)
