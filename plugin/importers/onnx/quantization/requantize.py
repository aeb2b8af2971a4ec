"""Rounding of expressed values to storage: ``saturate(round_half_even(x / scale) + zero_point)``.

A `ScaledSum` whose scales are constant f64 numbers becomes a ``subquant.requantize``. Sums with
other scales, such as the reciprocal of an area in an average, and constants are computed step by
step, by the same formula.

Source: ONNX, QuantizeLinear: the zero point is added after rounding, so an odd zero point does not
decide ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ....dialects.grids import exact_doubles
from ....emit import casts
from ....emit.traced_arrays import traced, traced_array
from ....numerics.array_functions import convert, is_known
from ....numerics.block_form import quantize
from ....numerics.element_types import I32, AnyArray, Array, ElementType
from ....numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from ....numerics.requantization import Term, requantize
from ..reading.model import element_of
from .expressed import (
    ScaledSum,
    accumulator_type,
    as_float,
    is_exact_factor,
    scale_factor,
    storage_type_of,
)

_STEPS_LIMIT = 1 << 17
"""Steps from the zero point are clamped to this magnitude: beyond every storage of 16 bits."""
_STEPS = StorageType(32, True, -_STEPS_LIMIT, _STEPS_LIMIT)
"""The range of steps from the zero point contains every storage type of up to 16 bits."""


def requantize_sum(
    total: ScaledSum, scales: AnyArray, zero_points: AnyArray, type_: str
) -> AnyArray:
    """Storage of a sum, from integers where all scales are constant.

    Args:
        scales: f32 of one element, or one for each axis.
        zero_points: integers of the same shape; None for 0.
        type_: ONNX's name of the storage type, of 16 bits at most.
    """
    stored = _as_operation(total, scales, zero_points, type_)
    return add_zero_points(_steps(total, scales), zero_points, type_) if stored is None else stored


def _as_operation(
    total: ScaledSum, scales: AnyArray, zero_points: AnyArray, type_: str
) -> AnyArray | None:
    """A sum as ``subquant.requantize``; None for constants, and for scales that are not f64."""
    if all(is_known(term.value) for term in total.terms) or not total.is_exact:
        return None
    if not is_known(scales) or not (zero_points is None or is_known(zero_points)):
        return None
    signs = np.sign(scales.reshape(-1))
    is_normal = np.isfinite(scales) & (abs(scales) >= np.finfo(np.float32).smallest_normal)
    if not is_normal.all() or not signs.size or (signs != signs[0]).any():
        return None
    terms = []
    for term in total.terms:
        factor = exact_doubles(np.asarray(term.factor * int(signs[0]), object))
        if factor is None:
            return None
        value = traced_array(np.broadcast_to(term.value, total.shape))
        number = convert(value, accumulator_type(term.bound))
        terms.append(casts.Scaled(number, term.bound, (factor,)))
    axes = tuple(axis for axis, size in enumerate(scales.shape) if size > 1)
    shape = tuple(scales.shape[axis] for axis in axes)
    points = np.zeros(scales.shape, np.int64) if zero_points is None else zero_points
    target = QuantizationParameters(
        storage_type_of(type_),
        ExpressedType.F32,
        axes,
        (1,) * len(axes),
        abs(scales).reshape(shape),
        points.reshape(shape),
    )
    result = casts.requantize(
        casts.ScaledSum(tuple(terms)), target, zero_points_after_rounding=True
    )
    element = element_of(type_)
    stored = convert(traced(result, element), ElementType.of_dtype(element.dtype))  # bytes for i4
    if total.is_unbounded:
        return stored
    rank = len(total.shape)
    grids = [each.reshape((1,) * rank) if each.size == 1 else each for each in (scales, points)]
    ends = _bounds_in_steps(total, scale_factor(grids[0]), np.dtype(np.int64))
    least, greatest = (add_zero_points(end, grids[1], type_) for end in ends)
    return np.minimum(np.maximum(stored, least), greatest)


def _steps(total: ScaledSum, scales: AnyArray) -> AnyArray:
    """``round_half_even(total / scale)`` as i32, saturated beyond every storage type."""
    rank = len(total.shape)
    target = scale_factor(scales.reshape((1,) * rank) if math.prod(scales.shape) == 1 else scales)
    if not total.is_exact or not is_exact_factor(target):
        real = total.dequantize(lambda array, element: array)
        grid = as_float(target)
        sizes = [n if size == 1 else 1 for n, size in zip(real.shape, grid.shape, strict=True)]
        return round_to_steps(real, grid, sizes)
    terms = [
        Term(convert(term.value, accumulator_type(term.bound)), term.bound,
             np.asarray(term.factor / target, object))
        for term in total.terms
    ]  # fmt: skip
    steps = requantize(terms, np.zeros((1,) * rank, np.int64), _STEPS).value
    if total.is_unbounded:
        return convert(np.minimum(np.maximum(steps, -_STEPS_LIMIT), _STEPS_LIMIT), I32)
    least, greatest = _bounds_in_steps(total, target, steps.dtype)
    return convert(np.minimum(np.maximum(steps, least), greatest), I32)


def _bounds_in_steps(total: ScaledSum, scale: Array, dtype: np.dtype[np.generic]) -> list[Array]:
    """The bounds of a sum in steps of a scale, rounded to nearest even, the lesser one first."""
    ends = [
        np.array([_bound_in_steps(bound, step) for step in scale.reshape(-1)], dtype)
        .reshape(scale.shape)
        for bound in (total.low, total.high)
    ]  # fmt: skip
    return [np.minimum(*ends), np.maximum(*ends)]


def _bound_in_steps(bound: float, scale: Fraction) -> int:
    """A bound in steps of a scale, rounded to nearest even, within `_STEPS_LIMIT`."""
    if math.isinf(bound):
        return _STEPS_LIMIT if (bound > 0) == (scale > 0) else -_STEPS_LIMIT
    return min(max(round(Fraction(bound) / scale), -_STEPS_LIMIT), _STEPS_LIMIT)


def round_to_steps(real: AnyArray, scales: AnyArray, block_sizes: Sequence[int]) -> AnyArray:
    """``round_half_even(real / scale)`` as i32, saturated beyond every storage type."""
    expressed = ExpressedType.of_dtype(real.dtype)
    return quantize(real, scales.astype(real.dtype), block_sizes, _STEPS, expressed)


def add_zero_points(steps: AnyArray, zero_points: AnyArray, type_: str) -> AnyArray:
    """Steps plus zero points, saturated to a storage type; ONNX adds zero points after rounding."""
    low, high = storage_type_of(type_).type_range
    if zero_points is not None and not (is_known(zero_points) and not np.any(zero_points)):
        steps = steps + convert(zero_points, I32)
    return np.minimum(np.maximum(steps, low), high).astype(element_of(type_).dtype)
