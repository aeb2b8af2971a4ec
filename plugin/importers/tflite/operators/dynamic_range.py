"""Dynamic-range quantization: float operators with integer weights, activations rounded to 8 bits.

LiteRT calls these operators hybrid. Each row (or image) gets its own scale at run time, symmetric
or with a zero point. Accumulators are integers, multiplied by both scales. Used only for models
imported with ``activations = "int8"``.

Sources: LiteRT, ``EvalHybridDense`` of ``fully_connected.cc``, ``EvalHybrid`` and
``EvalHybridPerChannel`` of ``conv.cc`` and ``depthwise_conv.cc``, ``EvalHybrid`` of
``transpose_conv.cc``, ``batch_matmul.cc`` and ``lstm_eval.cc``, ``EvalHybridSVDF`` of
``reference/svdf.h``, ``optimized/neon_tensor_utils.cc`` (which x86 uses too).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....numerics.array_functions import convert, rounded_product
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, F64, I32, AnyArray, Array
from ..call import Call
from ..operand import Operand

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def applies(call: Call, weights: Operand) -> bool:
    """Return True if the import rounds activations and the weights are constant integers."""
    quantization = weights.tensor.quantization
    return (
        call.context.activations == "int8"
        and weights.is_constant
        and not weights.is_float
        and quantization is not None
        and not quantization.block_size
        and not quantization.zero_points.any()
    )


def _round_half_away(values: AnyArray, below_half: np.floating[Any] = _BELOW_HALF) -> AnyArray:
    """Round f32 values under ``2**23`` to integers, half away from zero.

    `below_half`, the greatest float below a half, takes ``n + 1/2`` to ``n + 1``, exactly or as a
    tie, and takes no lesser number so far. It is added to the magnitude: IREE would fuse a product
    and a sum into one rounding.
    """
    nearest = convert(np.abs(values) + below_half, I32)
    return np.where(values < 0, -nearest, nearest)


def _quantize_symmetric(rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Quantize rows to int8 from -127 to 127; return storage and scales ``[rows, 1]``."""
    greatest, one = np.float32(127), np.float32(1)
    span = np.abs(rows).max(axis=1, keepdims=True)
    is_zero = span == 0
    divisor = np.where(is_zero, one, span)
    nearest = _round_half_away(rows * np.where(is_zero, np.float32(0), greatest / divisor))
    storage = np.minimum(np.maximum(nearest, -127), 127).astype(np.int8)
    return storage, np.where(is_zero, one, divisor / greatest)


def _quantize_asymmetric(rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Quantize rows to 8 bits minus their zero points, as int16; return storage and scales.

    The span is computed in f32, all else in f64.
    """
    zero = np.float32(0)
    low = np.minimum(rows.min(axis=1, keepdims=True), zero)
    high = np.maximum(rows.max(axis=1, keepdims=True), zero)
    is_zero = low == high
    scale = np.where(is_zero, np.float64(1), convert(high - low, F64) / np.float64(255))
    scaled_low, scaled_high = convert(low, F64) / scale, convert(high, F64) / scale
    is_low = np.abs(scaled_low) + np.float64(128) < np.abs(scaled_high) + np.float64(127)
    offset = np.where(is_low, np.float64(-128) - scaled_low, np.float64(127) - scaled_high)
    offset = np.minimum(np.maximum(offset, np.float64(-128)), np.float64(127))
    zero_point = _round_half_away(offset, np.nextafter(np.float64(0.5), 0))
    zero_point = np.where(is_zero, np.int32(0), zero_point)
    scale_f32 = convert(scale, F32)
    nearest = _round_half_away(rows * (np.float32(1) / scale_f32)) + zero_point
    nearest = np.minimum(np.maximum(nearest, -128), 127)
    return np.where(is_zero, np.int32(0), nearest - zero_point).astype(np.int16), scale_f32


def _quantize_rows(call: Call, rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Quantize rows ``[M, K]`` as the options say; return storage and scales."""
    is_asymmetric = call.options.asymmetric_quantize_inputs
    return (_quantize_asymmetric if is_asymmetric else _quantize_symmetric)(rows)


def multiply_rows(call: Call, rows: AnyArray, weights: Operand) -> AnyArray:
    """Multiply rows ``[..., K]``, rounded to 8 bits, by weights ``[N, K]``."""
    scales = call.parameters(weights.tensor).scales
    shape = rows.shape
    storage, row_scales = _quantize_rows(call, rows.reshape((-1, shape[-1])))
    total = contract(storage, np.asarray(weights.value), ((1,), (1,)), dtype=np.int32)
    scaled = rounded_product(convert(total, F32), row_scales * scales.reshape(1, -1))
    return scaled.reshape((*shape[:-1], weights.shape[0]))


def matmul(
    call: Call,
    left: AnyArray,
    weights: Operand,
    product: Callable[[AnyArray, AnyArray, type], AnyArray],
) -> AnyArray:
    """Multiply ``[..., M, K]``, its rows rounded to 8 bits, by weights with `product`."""
    shape = left.shape
    storage, row_scales = _quantize_rows(call, left.reshape((-1, shape[-1])))
    total = product(storage.reshape(shape), np.asarray(weights.value), np.int32)
    scales = call.parameters(weights.tensor).scales.reshape(-1)
    return convert(total, F32) * (row_scales.reshape((*shape[:-1], 1)) * scales)


def convolve(
    call: Call,
    images: Operand,
    weights: Operand,
    bias: Operand | None,
    product: Callable[[AnyArray, Array, float, type], AnyArray],
) -> AnyArray:
    """Convolve images ``[N, H, W, C]`` that are rounded to 8 bits, each with its own scale.

    `product` convolves images and weights, with a padding value, in a dtype.
    """
    shape, scales = images.shape, call.parameters(weights.tensor).scales.reshape(-1)
    is_depthwise = call.operator.name == "DEPTHWISE_CONV_2D"
    is_per_tensor = (
        call.operator.name == "CONV_2D"
        and bool((scales == scales[0]).all())
        and shape[3] == weights.shape[3]  # not grouped
    )
    quantize = _quantize_symmetric if is_per_tensor else _quantize_asymmetric
    storage, image_scales = quantize(images.value.reshape((shape[0], -1)))
    total = convert(product(storage.reshape(shape), np.asarray(weights.value), 0, np.int32), F32)
    image_scales = image_scales.reshape((-1, 1, 1, 1))
    if is_per_tensor or is_depthwise:
        scaled = rounded_product(total, image_scales * (scales[0] if is_per_tensor else scales))
    else:
        scaled = rounded_product(total * scales, image_scales)
    return scaled if bias is None else scaled + bias.value
