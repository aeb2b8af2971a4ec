"""Normalizations: of layers, groups, instances and batches, and by a norm.

Mean and variance are f32, or f64 where the operand or ``stash_type`` is. A result is rounded once,
to its type: the specification rounds f16 before scale and bias as well.

Sources: ONNX, LayerNormalization 17, RMSNormalization 23, GroupNormalization 21,
InstanceNormalization 22, BatchNormalization 15, MeanVarianceNormalization 13, LpNormalization 22;
ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import BF16, F16, F32, F64, AnyArray, ElementType
from ..call import Call, importer
from ..elementwise.float_operands import (
    as_input_type,
    computing_type,
    element_type,
    float_input,
    optional_float,
)


def normalized(
    x: AnyArray, axes: Sequence[int], epsilon: float, *, is_centered: bool = True
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return ``(x - mean) / sqrt(variance + epsilon)``, the mean, and the inverse deviation.

    Args:
        x: f32 or f64.
        axes: the axes of mean and variance.
        epsilon: the addend of the variance.
        is_centered: subtract the mean; else the mean is 0.
    """
    kind = x.dtype.type
    count = kind(math.prod(x.shape[axis] for axis in axes))
    mean = x.sum(axis=tuple(axes), dtype=x.dtype, keepdims=True) / count if is_centered else None
    centered = x - mean if is_centered else x
    square = (centered * centered).sum(axis=tuple(axes), dtype=x.dtype, keepdims=True) / count
    inverse = kind(1) / np.sqrt(square + kind(epsilon))
    return centered * inverse, mean, inverse


def _affine(call: Call, x: AnyArray, scale: AnyArray, bias: AnyArray = None) -> AnyArray:
    """Return ``x * scale + bias``; both are broadcast to ``x``."""
    for name, value in (("scale", scale), ("bias", bias)):
        shape = () if value is None else tuple(value.shape)
        sizes = zip(reversed(shape), reversed(x.shape), strict=False)
        if len(shape) > x.ndim or any(n not in (1, size) for n, size in sizes):
            raise call.error(f"has a {name} of shape {list(shape)} for {list(x.shape)}")
    return x * scale if bias is None else x * scale + bias


_STASH_TYPES = {1: F32, 10: F16, 11: F64, 16: BF16}


def _stashed(call: Call) -> tuple[AnyArray, list[int], ElementType]:
    """Return the operand in the type of stage one, the axes, and the type of mean and deviation."""
    number = call.attribute("stash_type", 1)
    if number not in _STASH_TYPES:
        raise call.error(f"has the stash_type {number}, expected one of {[*_STASH_TYPES]}")
    stash = _STASH_TYPES[number]
    target = F64 if stash == F64 else computing_type(call)
    x = convert(call.array(0), target)
    return x, list(range(call.axis("axis", x.ndim, -1), x.ndim)), stash


@importer("LayerNormalization")
def layer_normalization(call: Call) -> list[AnyArray]:
    """LayerNormalization-17: ``X, Scale, B`` to ``Y, Mean, InvStdDev``."""
    x, axes, stash = _stashed(call)
    target = ElementType.of_dtype(np.dtype(x.dtype))
    unscaled, mean, inverse = normalized(x, axes, call.attribute("epsilon", 1e-5))
    result = _affine(call, unscaled, float_input(call, 1, target), optional_float(call, 2, target))
    return [as_input_type(call, 0, result), convert(mean, stash), convert(inverse, stash)]


@importer("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(call: Call) -> list[AnyArray]:
    """RMSNormalization-23, SimplifiedLayerNormalization-1: ``X, scale`` to ``Y, inv_std_var``.

    ``Y`` has the type of the scale; RMSNormalization has no second result.
    """
    x, axes, stash = _stashed(call)
    target = ElementType.of_dtype(np.dtype(x.dtype))
    unscaled, _, inverse = normalized(x, axes, call.attribute("epsilon", 1e-5), is_centered=False)
    result = _affine(call, unscaled, float_input(call, 1, target))
    return [convert(result, element_type(call, 1)), convert(inverse, stash)]


@importer("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> list[AnyArray]:
    """SkipLayerNormalization-1, SkipSimplifiedLayerNormalization-1: of ``input + skip + bias``.

    The inputs are ``input, skip, gamma, beta, bias``, without ``beta`` if simplified. The results
    are the normalized sum, mean and inverse deviation as f32, and the sum.
    """
    is_centered = call.node.operator.endswith("SkipLayerNormalization")
    beta = optional_float(call, 3) if is_centered else None
    bias = optional_float(call, 4 if is_centered else 3)
    x = float_input(call, 0)
    x = _affine(call, x, x.dtype.type(1), float_input(call, 1))
    x = x if bias is None else _affine(call, x, x.dtype.type(1), bias)
    unscaled, mean, inverse = normalized(
        x, [x.ndim - 1], call.attribute("epsilon", 1e-12), is_centered=is_centered
    )
    if not is_centered and call.node.outputs[1:2] not in ((), ("",)):
        raise call.unsupported("gives the mean, which it does not compute")
    result = as_input_type(call, 0, _affine(call, unscaled, float_input(call, 2), beta))
    inverse = convert(inverse, F32)
    mean = inverse if mean is None else convert(mean, F32)  # without one, nothing reads it
    return [result, mean, inverse, as_input_type(call, 0, x)]


def _by_channel(call: Call, index: int, shape: Sequence[int]) -> AnyArray:
    """Return an input with a number for each channel, which broadcasts."""
    value = float_input(call, index)
    if len(shape) < 2 or tuple(value.shape) != (shape[1],):
        raise call.error(
            f"has {call.input(index)} of shape {list(value.shape)} for the channels of "
            f"{list(shape)}"
        )
    return value.reshape((1, shape[1], *(1,) * (len(shape) - 2)))


@importer("GroupNormalization")
def group_normalization(call: Call) -> AnyArray:
    """GroupNormalization-21: ``X, scale, bias``: normalized groups of channels."""
    x, groups = float_input(call, 0), call.integer("num_groups")
    stash = call.attribute("stash_type", 1)
    if x.ndim < 2 or x.shape[1] % groups:
        raise call.error(f"has {groups} groups of the channels of {list(x.shape)}")
    if stash not in _STASH_TYPES:
        raise call.error(f"has the stash_type {stash}, expected one of {[*_STASH_TYPES]}")
    grouped = x.reshape((x.shape[0], groups, -1))
    unscaled, _, _ = normalized(grouped, [2], call.attribute("epsilon", 1e-5))
    scale, bias = (_by_channel(call, index, x.shape) for index in (1, 2))
    return as_input_type(call, 0, unscaled.reshape(x.shape) * scale + bias)


@importer("InstanceNormalization")
def instance_normalization(call: Call) -> AnyArray:
    """InstanceNormalization-22: ``input, scale, B``: each channel of each image normalized."""
    x = float_input(call, 0)
    scale, bias = (_by_channel(call, index, x.shape) for index in (1, 2))
    unscaled, _, _ = normalized(x, range(2, x.ndim), call.attribute("epsilon", 1e-5))
    return as_input_type(call, 0, unscaled * scale + bias)


@importer("BatchNormalization")
def batch_normalization(call: Call) -> AnyArray:
    """BatchNormalization-15: ``X * a + (B - mean * a)`` with constant statistics."""
    if call.attribute("training_mode", 0):
        raise call.unsupported(
            "is in training mode, which computes statistics of the batch; export the model for "
            "inference"
        )
    x = float_input(call, 0)
    scale, bias, mean, variance = (_by_channel(call, index, x.shape) for index in range(1, 5))
    factor = scale / np.sqrt(variance + x.dtype.type(call.attribute("epsilon", 1e-5)))
    return as_input_type(call, 0, x * factor + (bias - mean * factor))


@importer("MeanVarianceNormalization")
def mean_variance_normalization(call: Call) -> AnyArray:
    """MeanVarianceNormalization-13: ``(X - mean) / (deviation + 1e-9)``."""
    x = float_input(call, 0)
    stated = call.attribute("axes", [0, 2, 3])
    axes = [call.checked_axis(axis, x.ndim) for axis in stated]
    if len(set(axes)) != len(axes):
        raise call.error(f"has the axes {stated}, one of which is there twice")
    kind, count = x.dtype.type, math.prod(x.shape[axis] for axis in axes)
    mean = x.sum(axis=tuple(axes), dtype=x.dtype, keepdims=True) / kind(count)
    centered = x - mean
    square = (centered * centered).sum(axis=tuple(axes), dtype=x.dtype, keepdims=True)
    return as_input_type(call, 0, centered / (np.sqrt(square / kind(count)) + kind(1e-9)))


@importer("LpNormalization")
def lp_normalization(call: Call) -> AnyArray:
    """LpNormalization-22: ``input / norm`` along an axis; 0 where the norm is 0."""
    x, order = float_input(call, 0), call.attribute("p", 2)
    axis = call.axis("axis", x.ndim, -1)
    powers = np.abs(x) if order == 1 else x * x
    norm = powers.sum(axis=axis, dtype=x.dtype, keepdims=True)
    norm = norm if order == 1 else np.sqrt(norm)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    return as_input_type(call, 0, x / np.where(norm == zero, one, norm))
