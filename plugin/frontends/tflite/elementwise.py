"""Functions of elements, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``add.cc``, ``sub.cc``, ``mul.cc``, ``activations.cc``, ``quantize.cc``,
``dequantize.cc``, ``reference/integer_ops/add.h``, ``mul.h``, ``reference/requantize.h``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import UnsupportedError
from ...numerics import litert
from ...numerics.array_functions import convert, lookup
from ...numerics.element_types import I32, I64, AnyArray, Array
from .call import Call, Operand, kernel

__all__: list[str] = []


@kernel("ADD", "SUB")
def add(call: Call) -> AnyArray:
    """Both operands in units of half the greater scale with 20 (or 15) more bits; rounded twice."""
    left, right = call.input(0), call.input(1)
    is_sum = call.operator.name == "ADD"
    if left.is_float or left.tensor.quantization is None:
        total = left.value + right.value if is_sum else left.value - right.value
        return call.activated(total) if left.is_float else total
    scales = [call.per_tensor(operand.tensor).scale for operand in (left, right)]
    target = call.per_tensor(call.output)
    is_short = call.output.type == "INT16"
    if (
        is_short
        and getattr(call.options, "pot_scale_int16", True)
        and all(np.frexp(scale)[0] == 0.5 for scale in (*scales, target.scale))
    ):
        return _add_powers(call, left, right, is_sum)
    bits = 15 if is_short else 20
    twice = np.float64(np.float32(2) * max(scales))
    parts = [
        litert.scaled(convert(call.centered(operand), I64) << bits, np.float64(scale) / twice)
        for operand, scale in zip((left, right), scales, strict=True)
    ]
    total = parts[0] + parts[1] if is_sum else parts[0] - parts[1]
    factor = twice / (np.float64(1 << bits) * np.float64(target.scale))
    return call.stored(litert.scaled(total, factor))


def _add_powers(call: Call, left: Operand, right: Operand, is_sum: bool) -> AnyArray:
    """16 bits with scales that are powers of two: one operand is shifted."""
    raise call.error("has 16 bits and scales that are powers of two", UnsupportedError)


@kernel("MUL")
def multiply(call: Call) -> AnyArray:
    """The product of centered storage, times the factor of scales."""
    left, right = call.input(0), call.input(1)
    if left.is_float or left.tensor.quantization is None:
        product = left.value * right.value
        return call.activated(product) if left.is_float else product
    x, y, z = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    factor = np.float64(x.scale * y.scale / z.scale)
    return call.stored(litert.scaled(call.centered(left) * call.centered(right), factor))


@kernel("DIV")
def divide(call: Call) -> AnyArray:
    """Floats only."""
    left, right = call.input(0), call.input(1)
    if not left.is_float:
        raise call.error(f"of {left.tensor.type} is not lowered", UnsupportedError)
    return call.activated(left.value / right.value)


@kernel("QUANTIZE")
def quantize(call: Call) -> AnyArray:
    """Floats, or storage of other parameters, become storage."""
    operand, target = call.input(0), call.per_tensor(call.output)
    if not operand.is_float:
        source = call.per_tensor(operand.tensor)
        factor = np.float64(source.scale) / np.float64(target.scale)
        return call.stored(litert.scaled(call.centered(operand), factor))
    info = np.iinfo(call.dtype(call.output))
    return litert.quantized(
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


def _by_table(call: Call, function: Callable[[Array], Array]) -> AnyArray:
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    dtype = call.dtype(operand.tensor)
    if dtype.itemsize != 1:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    table = litert.function_table(
        function, x.scale, x.zero_point, y.scale, y.zero_point, dtype
    )  # fmt: skip
    index = convert(operand.value, I32) - int(np.iinfo(dtype).min)
    return lookup(table, index)


@kernel("LOGISTIC")
def logistic(call: Call) -> AnyArray:
    """``1 / (1 + exp(-x))``; of 8 bits by a table."""
    operand, one = call.input(0), np.float32(1)
    if operand.is_float:
        return one / (one + np.exp(-operand.value))
    return _by_table(call, lambda x: one / (one + np.exp(-x)))


@kernel("TANH")
def tanh(call: Call) -> AnyArray:
    """Of 8 bits by a table."""
    operand = call.input(0)
    return np.tanh(operand.value) if operand.is_float else _by_table(call, np.tanh)


@kernel("RELU", "RELU6", "RELU_N1_TO_1")
def relu(call: Call) -> AnyArray:
    """The storage times the factor of scales, clamped to what the function leaves."""
    operand = call.input(0)
    bounds = {"RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
    low, high = bounds[call.operator.name]
    if operand.is_float:
        real = np.maximum(operand.value, np.float32(low))
        return real if high is None else np.minimum(real, np.float32(high))
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = litert.scaled(call.centered(operand), np.float64(x.scale / y.scale))
    info = np.iinfo(call.dtype(call.output))
    range_ = litert.activation_range(
        call.operator.name, y.scale, y.zero_point, int(info.min), int(info.max)
    )
    return litert.narrowed(total + y.zero_point, *range_, info.dtype)


@kernel("SOFTMAX")
def softmax(call: Call) -> AnyArray:
    """Along the last axis."""
    operand, beta = call.input(0), call.options.beta
    if operand.is_float:
        shifted = operand.value - operand.value.max(axis=-1, keepdims=True)
        exps = np.exp(shifted * np.float32(beta))
        return exps / exps.sum(axis=-1, dtype=np.float32, keepdims=True)
    x = call.per_tensor(operand.tensor)
    if operand.value.dtype.itemsize != 1:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    return litert.softmax(operand.value, float(x.scale), float(beta), call.dtype(call.output))
