"""Importers of activation functions and of EXP.

Sources: LiteRT, ``activations.cc``, ``exp.cc``, ``reference/hard_swish.h``, ``leaky_relu.h``,
``prelu.h``, ``gelu.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import I32, AnyArray, Array
from ....numerics.fixed_point import high_product
from ..arithmetic.lookup_tables import in_f64, logistic_by_table, tanh_by_table
from ..arithmetic.requantization import (
    activation_range,
    checked_log2,
    clamp_activation,
    multiplier_and_exponent,
    rescale,
    rounding_right_shift,
    saturating_cast,
)
from ..call import Call, importer
from .unary import apply_by_table, tabulate_storage

_ONE = np.float32(1)


def _logistic(exp: Callable[[AnyArray], AnyArray]) -> Callable[[AnyArray], AnyArray]:
    return lambda x: _ONE / (_ONE + exp(-x))


def _elu(x: AnyArray) -> AnyArray:
    return np.where(x < 0, np.expm1(x), x)


_FUNCTIONS: dict[str, tuple[Callable[[AnyArray], AnyArray], Callable[[Array], Array]]] = {
    "ELU": (_elu, in_f64(_elu)),
    "EXP": (np.exp, in_f64(np.exp)),
    "LOGISTIC": (_logistic(np.exp), _logistic(in_f64(np.exp))),
    "TANH": (np.tanh, in_f64(np.tanh)),
}
"""Functions of floats, and as LiteRT computes them for the tables of integers."""

_INT16_FUNCTIONS = {"LOGISTIC": logistic_by_table, "TANH": tanh_by_table}
"""Functions of int16 storage without zero points; the scale of their results is ``2**-15``."""


@importer(*_FUNCTIONS)
def tabulated_function(call: Call) -> AnyArray:
    """Import ELU, EXP, LOGISTIC and TANH; integers by a table."""
    operand, name = call.input(0), call.operator.name
    on_floats, on_table = _FUNCTIONS[name]
    if operand.is_float:
        return on_floats(operand.value)
    if operand.tensor.type != "INT16" or name not in _INT16_FUNCTIONS:
        return apply_by_table(call, on_table)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if x.zero_point or y.zero_point or checked_log2(y.scale) != -15:
        raise call.error(
            f"needs zero points of 0 and a result with the scale 2**-15, got {x.zero_point}, "
            f"{y.zero_point} and {y.scale}"
        )
    return _INT16_FUNCTIONS[name](convert(operand.value, I32), x.scale).astype(np.int16)


@importer("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(call: Call) -> AnyArray:
    """Import RELU, RELU6, RELU_N1_TO_1 and RELU_0_TO_1: storage is rescaled and clamped."""
    operand, name = call.input(0), call.operator.name
    if operand.is_float:
        return clamp_activation(operand.value, name)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = rescale(call.centered(operand), np.float64(x.scale / y.scale))
    info = np.iinfo(call.dtype(call.output))
    bounds = activation_range(name, y.scale, y.zero_point, int(info.min), int(info.max))
    return saturating_cast(total + y.zero_point, *bounds, info.dtype)


_ERF_NUMERATOR = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_DENOMINATOR = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
"""``erf(x) = x * p(x * x) / q(x * x)`` up to 4, to 3e-7: coefficients, highest power first."""


def _erf(values: AnyArray) -> AnyArray:
    x = np.minimum(np.maximum(values, np.float32(-4)), np.float32(4))
    square = x * x

    def polynomial(coefficients: tuple[float, ...]) -> AnyArray:
        total: AnyArray = np.float32(coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * square + np.float32(coefficient)
        return total

    numerator, denominator = map(polynomial, (_ERF_NUMERATOR, _ERF_DENOMINATOR))
    return x * numerator / denominator


@importer("GELU")
def gelu(call: Call) -> AnyArray:
    """Import GELU: ``x`` times the normal distribution function, exact or by ``tanh``."""
    operand, half = call.input(0), np.float32(0.5)
    root, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    tanh = np.tanh if operand.is_float else in_f64(np.tanh)

    def approximate(x: AnyArray) -> AnyArray:
        return half * x * (_ONE + tanh(root * (x + cubic * x * x * x)))

    def exact(x: Array) -> Array:
        angles = x * np.float32(-math.sqrt(0.5))
        tails = [math.erfc(each) for each in angles.reshape(-1).tolist()]
        return half * x * np.array(tails, np.float32).reshape(x.shape)

    if call.options.approximate:
        return approximate(operand.value) if operand.is_float else apply_by_table(call, approximate)
    if operand.is_float:
        x = operand.value
        return half * x * (_ONE + _erf(x * np.float32(math.sqrt(0.5))))
    return apply_by_table(call, exact)


@importer("HARD_SWISH")
def hard_swish(call: Call) -> AnyArray:
    """Import HARD_SWISH, ``x * relu6(x + 3) / 6``; 8 bits in 16-bit fixed point."""
    operand = call.input(0)
    if operand.is_float:
        x = operand.value
        six = np.float32(6)
        return x * np.minimum(np.maximum(x + np.float32(3), np.float32(0)), six) / six
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    fine = np.float32(1 / 128) * x.scale
    factors = [np.float64(fine / y.scale), np.float64(fine / (np.float32(3) / np.float32(32768)))]
    pairs = [multiplier_and_exponent(factor) for factor in factors]
    (scale, exponent), (slope, slope_exponent) = (
        (np.minimum(m + (1 << 15), (1 << 31) - 1) >> 16, int(e)) for m, e in pairs
    )
    if exponent > 0:
        raise call.error("has a result of a much smaller scale than the operand")

    def clamp_int16(values: Array) -> Array:
        return np.clip(values, -32768, 32767)

    def to_storage(centered: Array) -> Array:
        wide = (centered << 7).astype(np.int16).astype(np.int64)
        gate = wide
        if slope_exponent > 0:
            gate = clamp_int16(gate << (slope_exponent - 1))
        gate = clamp_int16(high_product(gate, slope, 15))
        if slope_exponent > 0:
            gate = clamp_int16(gate << 1)
        gate = np.asarray(rounding_right_shift(gate, max(-slope_exponent, 0)))
        gate = (gate + (1 << 15)) >> 1
        product = gate * clamp_int16(high_product(wide, scale, 15))
        truncated = np.where(product < 0, -(-product >> 15), product >> 15)
        return np.asarray(rounding_right_shift(truncated, -exponent))

    return tabulate_storage(call, to_storage)


@importer("LEAKY_RELU")
def leaky_relu(call: Call) -> AnyArray:
    """Import LEAKY_RELU, ``alpha * x`` below 0; integers have a multiplier for each sign."""
    operand, alpha = call.input(0), np.float32(call.options.alpha)
    if operand.is_float:
        return np.where(operand.value > 0, operand.value, operand.value * alpha)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    centered = call.centered(operand)
    factor = np.float64(x.scale * alpha / y.scale)
    negative = rescale(centered, abs(factor))
    total = np.where(
        centered >= 0,
        rescale(centered, np.float64(x.scale / y.scale)),
        -negative if factor < 0 else negative,
    )
    return call.to_storage(total)


@importer("PRELU")
def prelu(call: Call) -> AnyArray:
    """Import PRELU: as LEAKY_RELU, with the slopes in input 1."""
    operand, slopes = call.input(0), call.input(1)
    if operand.is_float:
        call.require_float(slopes)
        return np.where(operand.value >= 0, operand.value, operand.value * slopes.value)
    x, a, y = (call.per_tensor(t) for t in (operand.tensor, slopes.tensor, call.output))
    centered = call.centered(operand)
    total = np.where(
        centered >= 0,
        rescale(centered, np.float64(x.scale / y.scale)),
        rescale(centered * call.centered(slopes), np.float64(x.scale * a.scale / y.scale)),
    )
    return call.to_storage(total)
