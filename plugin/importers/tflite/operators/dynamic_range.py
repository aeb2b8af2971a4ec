"""Float operators with integer weights whose activations are rounded to 8 bits, as LiteRT does.

Each row (or image) has a scale of its own, found when it is computed: symmetric, or with a zero
point. Sums of products are integers, and floats again by the product of both scales. Only where the
model is imported with ``activations = "int8"``.

Sources: LiteRT, ``EvalHybridDense`` of ``fully_connected.cc``, ``EvalHybrid`` and
``EvalHybridPerChannel`` of ``conv.cc`` and ``depthwise_conv.cc``,
``EvalHybrid`` of ``transpose_conv.cc``, ``batch_matmul.cc`` and ``lstm_eval.cc``,
``EvalHybridSVDF`` of ``reference/svdf.h``, ``optimized/neon_tensor_utils.cc`` (which x86 has too).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....numerics.array_functions import contract, convert, rounded_product
from ....numerics.element_types import F32, F64, I32, AnyArray, Array
from ..call import Call, Operand

__all__ = ["batch_matmul", "convolved", "is_hybrid", "of_rows"]

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def is_hybrid(call: Call, weights: Operand) -> bool:
    """The operator rounds its activations: asked for, and the weights are known integers."""
    found = weights.tensor.quantization
    return (
        call.graphs.activations == "int8"
        and weights.is_constant
        and not weights.is_float
        and found is not None
        and not found.block_size
        and not found.zero_points.any()
    )


def _rounded(values: AnyArray, below_half: np.floating[Any] = _BELOW_HALF) -> AnyArray:
    """The nearest integers of f32 under ``2**23``, half away from zero.

    The float below a half takes the sum with ``n + 1/2`` to ``n + 1``, as a tie or from above, and
    no sum with less so far. It is added to a magnitude: IREE would make one rounding of a product
    and a sum.

    Args:
        values: f32, or another type with `below_half` of that.
        below_half: the greatest float that is less than a half.
    """
    nearest = convert(np.abs(values) + below_half, I32)
    return np.where(values < 0, -nearest, nearest)


def _symmetric(rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Integers from -127 to 127 in 8 bits, and the scale of each row ``[rows, 1]``."""
    most, one = np.float32(127), np.float32(1)
    span = np.abs(rows).max(axis=1, keepdims=True)
    is_zero = span == 0
    known = np.where(is_zero, one, span)
    nearest = _rounded(rows * np.where(is_zero, np.float32(0), most / known))
    integers = np.minimum(np.maximum(nearest, -127), 127).astype(np.int8)
    return integers, np.where(is_zero, one, known / most)


def _asymmetric(rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Integers less the zero point of each row, in 16 bits, and its scale.

    The span is of f32, all else of f64.
    """
    zero = np.float32(0)
    low = np.minimum(rows.min(axis=1, keepdims=True), zero)
    high = np.maximum(rows.max(axis=1, keepdims=True), zero)
    is_zero = low == high
    scale = np.where(is_zero, np.float64(1), convert(high - low, F64) / np.float64(255))
    below, above = convert(low, F64) / scale, convert(high, F64) / scale
    is_low = np.abs(below) + np.float64(128) < np.abs(above) + np.float64(127)
    place = np.where(is_low, np.float64(-128) - below, np.float64(127) - above)
    place = np.minimum(np.maximum(place, np.float64(-128)), np.float64(127))
    offset = _rounded(place, np.nextafter(np.float64(0.5), 0))
    offset = np.where(is_zero, np.int32(0), offset)
    factor = convert(scale, F32)
    nearest = _rounded(rows * (np.float32(1) / factor)) + offset
    nearest = np.minimum(np.maximum(nearest, -128), 127)
    return np.where(is_zero, np.int32(0), nearest - offset).astype(np.int16), factor


def _integers(call: Call, rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Rounded rows ``[rows, depth]``, as the operator says, and the scale of each."""
    quantize = _asymmetric if call.options.asymmetric_quantize_inputs else _symmetric
    return quantize(rows)


def of_rows(call: Call, rows: AnyArray, weights: Operand) -> AnyArray:
    """Products of the rows ``[..., depth]`` with ``[features, depth]``, rounded before any sum."""
    found = call.parameters(weights.tensor)
    shape = rows.shape
    integers, factors = _integers(call, rows.reshape((-1, shape[-1])))
    total = contract(integers, np.asarray(weights.value), ((1,), (1,)), dtype=np.int32)
    scaled = rounded_product(convert(total, F32), factors * found.scales.reshape(1, -1))
    return scaled.reshape((*shape[:-1], weights.shape[0]))


def batch_matmul(
    call: Call,
    left: AnyArray,
    weights: Operand,
    product: Callable[[AnyArray, AnyArray, type], AnyArray],
) -> AnyArray:
    """Products of rounded rows.

    Args:
        call: the operator.
        left: ``[..., rows, depth]``.
        weights: with one scale, or one for each column.
        product: of both sides, in a dtype.
    """
    shape = left.shape
    integers, factors = _integers(call, left.reshape((-1, shape[-1])))
    total = product(integers.reshape(shape), np.asarray(weights.value), np.int32)
    scales = call.parameters(weights.tensor).scales.reshape(-1)
    return convert(total, F32) * (factors.reshape((*shape[:-1], 1)) * scales)


def convolved(
    call: Call,
    images: Operand,
    weights: Operand,
    bias: Operand | None,
    product: Callable[[AnyArray, Array, float, type], AnyArray],
) -> AnyArray:
    """A convolution of rounded images.

    Args:
        call: the operator.
        images: ``[N, H, W, C]``.
        weights: with one scale, or one for each feature.
        bias: of each feature.
        product: of images and weights, with a fill for padding, in a dtype.
    """
    found, shape = call.parameters(weights.tensor), images.shape
    scales = found.scales.reshape(-1)
    is_depthwise = call.operator.name == "DEPTHWISE_CONV_2D"
    is_plain = call.operator.name == "CONV_2D" and (scales == scales[0]).all()
    if is_plain and shape[3] != weights.shape[3]:
        is_plain = False  # grouped
    quantize = _symmetric if is_plain else _asymmetric
    integers, factors = quantize(images.value.reshape((shape[0], -1)))
    total = convert(product(integers.reshape(shape), np.asarray(weights.value), 0, np.int32), F32)
    factors = factors.reshape((-1, 1, 1, 1))
    if is_plain or is_depthwise:
        scaled = rounded_product(total, factors * (scales[0] if is_plain else scales))
    else:
        scaled = rounded_product(total * scales, factors)
    return scaled if bias is None else scaled + bias.value
