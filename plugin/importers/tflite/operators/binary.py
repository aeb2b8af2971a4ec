"""Functions of elements, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``add.cc``, ``sub.cc``, ``mul.cc``, ``div.cc``, ``activations.cc``,
``quantize.cc``, ``dequantize.cc``, ``reference/integer_ops/add.h``, ``mul.h``,
``reference/div.h``, ``requantize.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated, lookup
from ....numerics.element_types import I32, I64, AnyArray, Array
from ....numerics.fixed_point import divide_by_power, high_product
from ..arithmetic import int16_functions, requantization
from ..call import Call, Operand, kernel

__all__ = ["by_table"]


@kernel("ADD", "SUB")
def add(call: Call) -> AnyArray:
    """Both operands in units of half the greater scale with 20 (or 15) more bits; rounded twice."""
    left, right = call.input(0), call.input(1)
    is_sum = call.operator.name == "ADD"
    if left.is_float or left.tensor.quantization is None:
        total = left.value + right.value if is_sum else left.value - right.value
        return call.activated(total)
    scales = [call.per_tensor(operand.tensor).scale for operand in (left, right)]
    target = call.per_tensor(call.output)
    is_short = call.output.type == "INT16"
    exponents = [requantization.power_of_two(scale) for scale in (*scales, target.scale)]
    if is_short and getattr(call.options, "pot_scale_int16", True) and None not in exponents:
        return _add_powers(call, left, right, [e for e in exponents if e is not None])
    bits = 15 if is_short else 20
    twice = np.float64(np.float32(2) * max(scales))
    parts = [
        requantization.scaled(
            convert(call.centered(operand), I64) << bits, np.float64(scale) / twice
        )
        for operand, scale in zip((left, right), scales, strict=True)
    ]
    total = parts[0] + parts[1] if is_sum else parts[0] - parts[1]
    factor = twice / (np.float64(1 << bits) * np.float64(target.scale))
    return call.stored(requantization.scaled(total, factor))


def _add_powers(call: Call, left: Operand, right: Operand, exponents: Sequence[int]) -> AnyArray:
    """16 bits with scales that are powers of two: one operand is shifted to the result's."""
    shifts = [exponents[2] - exponent for exponent in exponents[:2]]
    if 0 not in shifts or min(shifts) < 0:
        raise call.error(
            f"has the scales 2**{exponents[0]} and 2**{exponents[1]} for a result of "
            f"2**{exponents[2]}; expected one of them to be that, and none to be greater"
        )
    x, y = (
        requantization.divided(convert(operand.value, I32), shift)
        for operand, shift in zip((left, right), shifts, strict=True)
    )
    return call.stored(x + y if call.operator.name == "ADD" else x - y)


@kernel("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
def of_storage(call: Call) -> AnyArray:
    """Of elements as they are, which LiteRT has for floats and integers without a scale."""
    left, right = call.input(0), call.input(1)
    if left.tensor.quantization is not None and not left.is_float:
        raise call.error(f"of {left.tensor} with a scale is not lowered", UnsupportedError)
    x, y = left.value, right.value
    name = call.operator.name.removeprefix("STABLEHLO_")
    if name in ("MAXIMUM", "MINIMUM"):
        return np.maximum(x, y) if name == "MAXIMUM" else np.minimum(x, y)
    return x + y if name == "ADD" else x * y


@kernel("MUL")
def multiply(call: Call) -> AnyArray:
    """The product of centered storage, times the factor of scales."""
    left, right = call.input(0), call.input(1)
    if left.is_float or left.tensor.quantization is None:
        product = left.value * right.value
        return call.activated(product)
    x, y, z = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    factor = np.float64(x.scale * y.scale / z.scale)
    return call.stored(requantization.scaled(call.centered(left) * call.centered(right), factor))


@kernel("DIV")
def divide(call: Call) -> AnyArray:
    """Integers without a scale are divided towards zero; storage by a reciprocal of 31 bits.

    The dividend is shifted to all of its bits first, and the quotient back with the factor of
    scales. LiteRT refuses divisors of 0 when it runs; here they are taken for 1.
    """
    left, right = call.input(0), call.input(1)
    if left.is_float:
        return call.activated(left.value / right.value)
    if left.tensor.quantization is None:
        divisor = right.value
        dividend = np.where(divisor < 0, -left.value, left.value)
        return call.activated(divide_truncated(dividend, np.abs(divisor)))
    x, y, z = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    divisor = convert(call.centered(right), I64)
    dividend = convert(call.centered(left), I64)
    dividend = np.where(divisor < 0, -dividend, dividend)
    inverse, shift = requantization.reciprocal(np.maximum(np.abs(divisor), 1))
    magnitude = np.where(dividend < 0, ~dividend, dividend)
    headroom = requantization.leading_zeros(magnitude) - 1
    quotient = high_product(dividend << headroom, inverse)
    multiplier, exponent = requantization.multiplier_and_exponent(
        np.float64(x.scale / (y.scale * z.scale))
    )
    total = high_product(quotient, np.int64(multiplier))
    right_shift = shift + headroom - int(exponent)
    small = divide_by_power(total, np.minimum(np.maximum(right_shift, 0), 31))
    small = np.where(right_shift > 31, 0, small << np.minimum(np.maximum(-right_shift, 0), 31))
    limit = np.int64(1 << 20)  # beyond every storage value
    return call.stored(convert(np.minimum(np.maximum(small, -limit), limit), I32))


@kernel("QUANTIZE")
def quantize(call: Call) -> AnyArray:
    """Floats, or storage of other parameters, become storage."""
    operand, target = call.input(0), call.per_tensor(call.output)
    if not operand.is_float:
        source = call.per_tensor(operand.tensor)
        factor = np.float64(source.scale) / np.float64(target.scale)
        return call.stored(requantization.scaled(call.centered(operand), factor))
    info = np.iinfo(call.dtype(call.output))
    return requantization.quantized(
        operand.value, target.scale, target.zero_point, int(info.min), int(info.max)
    ).astype(info.dtype)


@kernel("DEQUANTIZE")
def dequantize(call: Call) -> AnyArray:
    """Storage becomes floats, and f16 becomes f32."""
    operand = call.input(0)
    if operand.is_float:
        return operand.value.astype(np.float32)
    return call.reals(operand, operand.value)


# -- functions of one operand ---------------------------------------------------------------------


def by_table(call: Call, function: Callable[[Array], Array]) -> AnyArray:
    """A function of reals, of 8-bit storage by the table of what it gives for all."""
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    dtype = call.dtype(operand.tensor)
    if dtype.itemsize != 1:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    table = requantization.function_table(
        function, x.scale, x.zero_point, y.scale, y.zero_point, dtype
    )  # fmt: skip
    index = convert(operand.value, I32) - int(np.iinfo(dtype).min)
    return lookup(table, index)


@kernel("LOGISTIC")
def logistic(call: Call) -> AnyArray:
    """``1 / (1 + exp(-x))``; of integers by a table."""
    operand, one = call.input(0), np.float32(1)
    if operand.is_float:
        return one / (one + np.exp(-operand.value))
    if operand.tensor.type == "INT16":
        return _by_short_table(call, int16_functions.logistic_by_table)
    return by_table(call, lambda x: one / (one + requantization.in_double(np.exp)(-x)))


@kernel("TANH")
def tanh(call: Call) -> AnyArray:
    """Of integers by a table."""
    operand = call.input(0)
    if operand.is_float:
        return np.tanh(operand.value)
    if operand.tensor.type == "INT16":
        return _by_short_table(call, int16_functions.tanh_by_table)
    return by_table(call, requantization.in_double(np.tanh))


def _by_short_table(call: Call, function: Callable[[AnyArray, np.float32], AnyArray]) -> AnyArray:
    """16 bits without zero points; the scale of the result is ``2**-15``."""
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if x.zero_point or y.zero_point or requantization.power_of_two(y.scale) != -15:
        raise call.error(
            f"needs zero points of 0 and a result with the scale 2**-15, got {x.zero_point}, "
            f"{y.zero_point} and {y.scale}"
        )
    return function(convert(operand.value, I32), x.scale).astype(np.int16)


@kernel("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(call: Call) -> AnyArray:
    """The storage times the factor of scales, clamped to what the function leaves."""
    operand = call.input(0)
    bounds = {"RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0),
              "RELU_0_TO_1": (0.0, 1.0)}  # fmt: skip
    low, high = bounds[call.operator.name]
    if operand.is_float:
        real = np.maximum(operand.value, np.float32(low))
        return real if high is None else np.minimum(real, np.float32(high))
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = requantization.scaled(call.centered(operand), np.float64(x.scale / y.scale))
    info = np.iinfo(call.dtype(call.output))
    range_ = requantization.activation_range(
        call.operator.name, y.scale, y.zero_point, int(info.min), int(info.max)
    )
    return requantization.narrowed(total + y.zero_point, *range_, info.dtype)


@kernel("SOFTMAX")
def softmax(call: Call) -> AnyArray:
    """Along the last axis."""
    operand, beta = call.input(0), call.options.beta
    if operand.is_float:
        shifted = operand.value - operand.value.max(axis=-1, keepdims=True)
        exps = np.exp(shifted * np.float32(beta))
        return exps / exps.sum(axis=-1, dtype=np.float32, keepdims=True)
    x = call.per_tensor(operand.tensor)
    if operand.tensor.type == "INT16":
        return int16_functions.softmax(operand.value, x.scale, float(beta))
    return requantization.softmax(
        operand.value, float(x.scale), float(beta), call.dtype(call.output)
    )
