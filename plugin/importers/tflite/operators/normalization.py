"""Operators that normalize along an axis, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``reference/log_softmax.h``, ``reference/l2normalization.h`` and their
``integer_ops``; ``reference/reference_ops.h`` and ``local_response_norm.cc``.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import I64, AnyArray
from ....numerics.fixed_point import apply_scale
from ..arithmetic import requantization, softmax
from ..call import Call, kernel

__all__: list[str] = []


@kernel("LOG_SOFTMAX")
def log_softmax(call: Call) -> AnyArray:
    """Along the last axis."""
    operand = call.input(0)
    if operand.is_float:
        shifted = operand.value - operand.value.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, dtype=np.float32, keepdims=True))
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    info = np.iinfo(call.dtype(operand.tensor))
    if info.bits != 8:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    if y.scale != np.float32(1 / 16) or y.zero_point != info.max:
        raise call.error(
            f"needs a result with the scale 1/16 and the zero point {info.max}, got {y.scale} and "
            f"{y.zero_point}"
        )
    return softmax.log_softmax(operand.value, float(x.scale), info.dtype)


@kernel("L2_NORMALIZATION")
def l2_normalization(call: Call) -> AnyArray:
    """The last axis divided by its length; of 8 bits in units of 1/128."""
    operand = call.input(0)
    if operand.is_float:
        x = operand.value
        length = np.sqrt((x * x).sum(axis=-1, dtype=np.float32, keepdims=True))
        return call.activated(x / np.maximum(length, np.float32(1e-6)))
    y, info = call.per_tensor(call.output), np.iinfo(call.dtype(call.output))
    middle = (int(info.max) + int(info.min) + 1) // 2
    if info.bits != 8:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    if y.scale != np.float32(1 / 128) or y.zero_point != middle:
        raise call.error(
            f"needs a result with the scale 1/128 and the zero point {middle}, got {y.scale} and "
            f"{y.zero_point}"
        )
    centered = convert(call.centered(operand), I64)
    squares = (centered * centered).sum(axis=-1, dtype=np.int64, keepdims=True)
    inverse, shift = requantization.inverse_square_root(squares)
    # Times 128: before the multiplier of uint8, with its shift of int8.
    times, bits = (128, 31) if operand.tensor.type == "UINT8" else (1, 24)
    total = apply_scale(centered * times, inverse, shift + bits, "gemmlowp")
    return requantization.narrowed(total + middle, int(info.min), int(info.max), info.dtype)


@kernel("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(call: Call) -> AnyArray:
    """Divided by a power of the sum of squares of ``2 * radius`` channels around, of floats."""
    operand, options = call.input(0), call.options
    if not operand.is_float:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    x, depth, radius = operand.value, operand.shape[-1], options.radius
    if radius < 0:
        raise call.error(f"has the radius {radius}")
    places = np.arange(depth)
    distance = places[:, None] - places[None, :]  # from a channel of the result to one of the sum
    is_near = ((distance <= radius) & (distance > -radius)).astype(np.float32)
    squares = ((x * x)[..., None, :] * is_near).sum(axis=-1, dtype=np.float32)
    base = np.float32(options.bias) + np.float32(options.alpha) * squares
    return x * np.power(base, np.float32(-options.beta))
