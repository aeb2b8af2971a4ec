"""Resize: each axis is sampled at coordinates that are computed when the program is written.

Resizing is separable: along one axis, output element ``i`` is ``sum(weights[i] * input[positions
[i]])``. With few positions for each element this is a sum of gathers, else a product with a matrix.
The mode ``nearest`` has one position and no weights, so it moves elements of every type.

Coordinates are computed in f32, as ONNX Runtime does: which pixel is the nearest depends on it.

Source: ONNX, Resize 19; ONNX Runtime, ``upsamplebase.h``, ``upsample_antialias.h``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....numerics.array_functions import take
from ....numerics.convolutions import contract
from ....numerics.element_types import AnyArray, Array
from ..call import Call, Operand, importer
from ..elementwise.float_operands import along_axis, computing_dtype
from ..movement.padding import take_constant
from ..movement.shapes import moved

_MAX_GATHERS = 8
"""Input elements of an output element that are gathers of their own; with more, one product."""


@dataclass(frozen=True)
class _Axis:
    """An axis that is resized.

    Args:
        axis: the number of the axis.
        input_size: the size of the input.
        size: the size of the output.
        scale: the scale in the model, output by input.
        region: start and end of the region of interest, as fractions of the input.
    """

    axis: int
    input_size: int
    size: int
    scale: float
    region: tuple[float, float]


@importer("Resize")
def resize(call: Call) -> Operand:
    """Resize-19: ``X`` sampled at other coordinates along each axis."""
    operand = call.input(0)
    mode = call.attribute("mode", "nearest")
    transform = call.attribute("coordinate_transformation_mode", "half_pixel")
    axes = _axes(call, operand.shape, transform)
    coordinates = [_coordinates(each, transform) for each in axes]
    fill = call.attribute("extrapolation_value", 0.0)
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    excludes = bool(call.attribute("exclude_outside", 0))
    antialias = bool(call.attribute("antialias", 0))
    slope = call.attribute("cubic_coeff_a", -0.75)
    if mode == "nearest":
        if antialias:
            raise call.error("has antialias = 1 in mode nearest, expected linear or cubic")
        result = moved(call, lambda value: _nearest(value, axes, coordinates, rounding))
    else:
        value = call.array(0)
        if value.dtype.kind not in "fV":
            raise call.unsupported(
                f"of {operand.type} in mode {mode} is not lowered: results of integers differ "
                "between runtimes; convert to FLOAT with Cast before it"
            )
        dtype = computing_dtype(value.dtype)
        wide = value.astype(dtype)
        for each, along in zip(axes, coordinates, strict=True):
            if each.size == each.input_size and bool((along == np.arange(each.size)).all()):
                continue
            taps = _taps(along, each, mode, slope, antialias=antialias, excludes=excludes)
            wide = _sampled(wide, each.axis, *taps)
        result = Operand(operand.type, wide.astype(value.dtype))
    if transform != "tf_crop_and_resize":
        return result
    is_outside = np.zeros((1,) * len(operand.shape), np.bool_)
    for each, along in zip(axes, coordinates, strict=True):
        beyond = (along < 0) | (along > each.input_size - 1)
        is_outside = is_outside | along_axis(beyond, each.axis, len(operand.shape))
    if not is_outside.any():
        return result
    plain = call.floats(result.value)
    return Operand(operand.type, np.where(is_outside, np.asarray(fill, plain.dtype), plain))


def _axes(call: Call, shape: Sequence[int], transform: str) -> list[_Axis]:
    """Return the axes that are resized, with their sizes and scales."""
    rank = len(shape)
    numbers = call.attribute("axes", list(range(rank)))
    axes = [call.checked_axis(axis, rank) for axis in numbers]
    scales, sizes = (_listed(call, index, len(axes)) for index in (2, 3))
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    regions = [(0.0, 1.0)] * len(axes)
    if transform == "tf_crop_and_resize":
        ends = call.constant(1).astype(np.float64).reshape(-1).tolist()
        if len(ends) != 2 * len(axes):
            raise call.error(f"has {len(ends)} numbers in roi, expected two for each axis")
        regions = list(zip(ends[: len(axes)], ends[len(axes) :], strict=True))
    elif call.optional(1) is not None:
        call.input(1)  # other modes have no region
    if (scales is None) == (sizes is None):
        raise call.error("has scales and sizes, or none of them; expected one")
    if sizes is not None and any(
        size and not shape[axis] for size, axis in zip(sizes, axes, strict=True)
    ):
        raise call.error(f"resizes the shape {list(shape)}, which has no elements")
    resized = [number for number, axis in enumerate(axes) if shape[axis]]  # others stay empty
    axes, regions = [axes[number] for number in resized], [regions[number] for number in resized]
    scales, sizes = (each and [each[number] for number in resized] for each in (scales, sizes))
    if sizes is not None:
        input_sizes = [int(size) for size in sizes]
        factors = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            input_sizes = [math.floor(factor * shape[axis] + 0.5) for axis in axes]
    else:
        factors = [float(scale) for scale in scales or ()]
        input_sizes = [
            math.floor(np.float32(scale) * np.float32(shape[axis]))
            for scale, axis in zip(factors, axes, strict=True)
        ]
    if min(factors, default=1) <= 0 or min(input_sizes, default=1) < 1:
        raise call.error(f"resizes {list(shape)} by {factors}, which gives no elements")
    is_copied = input_sizes == [shape[axis] for axis in axes]
    if is_copied and sizes is None and set(factors) != {1.0} and transform != "tf_crop_and_resize":
        raise call.unsupported(
            f"has the scales {factors}, by which {list(shape)} keeps its shape: runtimes differ in "
            "whether they copy it; say sizes in place of scales, or leave the node out"
        )
    result = []
    for axis, size, factor, region in zip(axes, input_sizes, factors, regions, strict=True):
        whole = abs(factor * shape[axis] - size) < 1e-4
        if not whole and policy == "stretch" and transform in (
            "align_corners", "tf_crop_and_resize"
        ):  # fmt: skip
            raise call.unsupported(
                f"has the scale {factor:g} of {shape[axis]} elements, which is no whole number of "
                f"them: runtimes differ in mode {transform}; say sizes in place of scales"
            )
        if region != (0.0, 1.0) and size == shape[axis]:
            raise call.unsupported(
                f"crops axis {axis} and keeps its {size} elements, which runtimes do differently; "
                "crop with Slice before it"
            )
        result.append(_Axis(axis, shape[axis], size, factor, region))
    return result


def _listed(call: Call, index: int, count: int) -> list[float] | None:
    """Return scales or sizes; None if the input is absent or empty."""
    if call.optional(index) is None:
        return None
    numbers: list[float] = call.constant(index).reshape(-1).tolist()
    if not numbers:
        return None
    if len(numbers) != count:
        raise call.error(f"has {len(numbers)} numbers in {call.input(index)}, expected {count}")
    return numbers


def _coordinates(each: _Axis, transform: str) -> Array:
    """Return the coordinate in the input of each output element, f32."""
    one, half = np.float32(1), np.float32(0.5)
    x, scale = np.arange(each.size, dtype=np.float32), np.float32(each.scale)
    last, count = np.float32(each.input_size - 1), np.float32(each.size - 1)
    if transform == "asymmetric":
        return np.asarray(x / scale)
    if transform == "tf_half_pixel_for_nn":
        return np.asarray((x + half) / scale)
    if transform == "align_corners":
        return np.asarray(x * last / count) if each.size > 1 else x * 0
    if transform == "tf_crop_and_resize":
        start, end = map(np.float32, each.region)
        if each.size == 1:
            return np.asarray(half * (start + end) * last + x)
        return np.asarray(start * last + x * (end - start) * last / count)
    if transform == "pytorch_half_pixel" and each.size == 1:
        return x * 0
    centered = (x + half) / scale - half
    if transform == "half_pixel_symmetric":
        adjustment = np.float32(each.size) / (scale * np.float32(each.input_size))
        centered = np.float32(each.input_size) / 2 * (one - adjustment) + centered
    return np.asarray(centered, np.float32)


def _nearest(
    value: AnyArray, axes: Sequence[_Axis], coordinates: Sequence[Array], rounding: str
) -> AnyArray:
    """Copy the nearest elements along each axis.

    The channels of images move to the last axis, and back. Convolutions before and after do the
    same, so that the transposes cancel, and elementwise operations in between are vectorized.
    """
    resized = {each.axis for each in axes if each.size != each.input_size}
    is_image = min(resized, default=0) > 1 and value.ndim - 1 in resized
    order = [0, *range(2, value.ndim), 1] if is_image else list(range(value.ndim))
    value = value.transpose(*order)
    for each, along in zip(axes, coordinates, strict=True):
        axis = order.index(each.axis)
        down, up = np.floor(along), np.ceil(along)
        rest = along - down
        choices: dict[str, Any] = {
            "round_prefer_floor": np.where(rest <= 0.5, down, up),
            "round_prefer_ceil": np.where(rest < 0.5, down, up),
            "floor": down,
            "ceil": up,
        }
        positions = np.clip(choices[rounding], 0, each.input_size - 1).astype(np.int32)
        repeats = each.size // each.input_size
        is_repeated = repeats > 1 and each.size == repeats * each.input_size
        if is_repeated and (positions == np.arange(each.size) // repeats).all():
            value = np.repeat(value, repeats, axis)
        else:
            value = take_constant(value, positions, axis)
    return value.transpose(*(order.index(axis) for axis in range(value.ndim)))


def _taps(
    coordinates: Array, each: _Axis, mode: str, slope: float, *, antialias: bool, excludes: bool
) -> tuple[Array, Array]:
    """Return positions and weights of input elements for each output element: ``[size, taps]``."""
    stretch = min(each.scale, 1.0) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / stretch
    x = coordinates.astype(np.float64)[:, None]
    offsets = np.arange(math.ceil(-reach), math.floor(reach) + 2)
    positions = np.floor(x) + offsets[None, :]
    distance = np.abs(positions - x) * stretch
    if mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        inner = ((slope + 2) * distance - (slope + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * slope - 4 * slope
        weights = np.where(distance <= 1, inner, np.where(distance < 2, far, 0))
    if excludes:
        weights = np.where((positions < 0) | (positions >= each.input_size), 0, weights)
    if excludes or antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    is_used = (weights != 0).any(axis=0)
    positions = np.clip(positions, 0, each.input_size - 1).astype(np.int32)
    return positions[:, is_used], weights[:, is_used]


def _sampled(value: AnyArray, axis: int, positions: Array, weights: Array) -> AnyArray:
    """Compute weighted sums of elements along an axis."""
    size, taps = weights.shape
    if taps <= _MAX_GATHERS:
        factors = [along_axis(column.astype(value.dtype), axis, value.ndim) for column in weights.T]
        terms = (take(value, positions[:, n], axis) * each for n, each in enumerate(factors))
        return functools.reduce(operator.add, terms)
    matrix = np.zeros((size, value.shape[axis]), np.float64)
    np.add.at(matrix, (np.arange(size)[:, None], positions), weights)
    result = contract(value, matrix.astype(value.dtype), ([axis], [1]), dtype=value.dtype)
    order = list(range(value.ndim - 1))
    order.insert(axis, value.ndim - 1)
    return result.transpose(*order)
