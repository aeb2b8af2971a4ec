"""Importers of softmax and normalizations along the last axis.

Sources: LiteRT, ``activations.cc``, ``reference/log_softmax.h``, ``reference/l2normalization.h``
and their ``integer_ops``; ``reference/reference_ops.h`` and ``local_response_norm.cc``.
"""

from __future__ import annotations

import numpy as np

from ....errors import SubquantError
from ....numerics.array_functions import convert
from ....numerics.element_types import I64, AnyArray
from ....numerics.fixed_point import apply_scale
from ..arithmetic import softmax as integer_softmax
from ..arithmetic.fixed_point_functions import inverse_square_root
from ..arithmetic.requantization import saturating_cast
from ..call import Call, importer
from ..reading.model import Quantization

_SCALE_TOLERANCE = 1e-3
"""LiteRT accepts a scale of SOFTMAX's results that differs by this share."""


def _wrong_result(call: Call, scale: str, zero_point: int, actual: Quantization) -> SubquantError:
    return call.error(
        f"needs a result with the scale {scale} and the zero point {zero_point}, got "
        f"{actual.scale} and {actual.zero_point}"
    )


@importer("SOFTMAX")
def softmax(call: Call) -> AnyArray:
    """Import SOFTMAX."""
    operand, beta = call.input(0), call.options.beta
    if operand.is_float:
        shifted = operand.value - operand.value.max(axis=-1, keepdims=True)
        exponentials = np.exp(shifted * np.float32(beta))
        return exponentials / exponentials.sum(axis=-1, dtype=np.float32, keepdims=True)
    scale, y = call.per_tensor(operand.tensor).scale, call.per_tensor(call.output)
    dtype = call.dtype(call.output)
    info, is_int16 = np.iinfo(dtype), operand.tensor.type == "INT16"
    steps, zero_point = (1 << 15, 0) if is_int16 else (1 << info.bits, int(info.min))
    if abs(float(y.scale) * steps - 1) > _SCALE_TOLERANCE or y.zero_point != zero_point:
        raise _wrong_result(call, f"1/{steps}", zero_point, y)
    if is_int16:
        return integer_softmax.softmax_int16(operand.value, scale, float(beta))
    return integer_softmax.softmax(operand.value, float(scale), float(beta), dtype)


@importer("LOG_SOFTMAX")
def log_softmax(call: Call) -> AnyArray:
    """Import LOG_SOFTMAX."""
    operand = call.input(0)
    if operand.is_float:
        shifted = operand.value - operand.value.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, dtype=np.float32, keepdims=True))
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    info = np.iinfo(call.dtype(operand.tensor))
    if info.bits != 8:
        raise call.unsupported_type(operand)
    if y.scale != np.float32(1 / 16) or y.zero_point != info.max:
        raise _wrong_result(call, "1/16", int(info.max), y)
    return integer_softmax.log_softmax(operand.value, float(x.scale), info.dtype)


@importer("L2_NORMALIZATION")
def l2_normalization(call: Call) -> AnyArray:
    """Import L2_NORMALIZATION; 8-bit results have the scale 1/128."""
    operand = call.input(0)
    if operand.is_float:
        x = operand.value
        length = np.sqrt((x * x).sum(axis=-1, dtype=np.float32, keepdims=True))
        return call.activated(x / np.maximum(length, np.float32(1e-6)))
    y, info = call.per_tensor(call.output), np.iinfo(call.dtype(call.output))
    middle = (int(info.max) + int(info.min) + 1) // 2
    if info.bits != 8:
        raise call.unsupported_type(operand)
    if y.scale != np.float32(1 / 128) or y.zero_point != middle:
        raise _wrong_result(call, "1/128", middle, y)
    centered = convert(call.centered(operand), I64)
    squares = (centered * centered).sum(axis=-1, dtype=np.int64, keepdims=True)
    inverse, shift = inverse_square_root(squares)
    # The factor 128 comes before the multiplier for uint8, and in its shift for int8.
    factor, bits = (128, 31) if operand.tensor.type == "UINT8" else (1, 24)
    total = apply_scale(centered * factor, inverse, shift + bits, "gemmlowp")
    return saturating_cast(total + middle, int(info.min), int(info.max), info.dtype)


@importer("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(call: Call) -> AnyArray:
    """Import LOCAL_RESPONSE_NORMALIZATION, over ``2 * radius`` neighboring channels of floats."""
    operand, options = call.input(0), call.options
    call.require_float(operand)
    x, channels, radius = operand.value, operand.shape[-1], options.radius
    if radius < 0:
        raise call.error(f"has the radius {radius}")
    index = np.arange(channels)
    distance = index[:, None] - index[None, :]  # from a channel of the result to one of the sum
    is_neighbor = ((distance <= radius) & (distance > -radius)).astype(np.float32)
    squares = ((x * x)[..., None, :] * is_neighbor).sum(axis=-1, dtype=np.float32)
    base = np.float32(options.bias) + np.float32(options.alpha) * squares
    return x * np.power(base, np.float32(-options.beta))
