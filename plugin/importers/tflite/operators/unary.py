"""Functions of one operand's elements, as LiteRT's reference kernels compute them.

A function of 8-bit storage is a table of its 256 values, each computed as LiteRT computes it.

Sources: LiteRT, ``elementwise.cc``, ``activations.cc``, ``exp.cc``, ``neg.cc``, ``cast.cc``,
``reference/hard_swish.h``, ``leaky_relu.h``, ``prelu.h``, ``gelu.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, lookup, rounded_product
from ....numerics.element_types import I32, I64, AnyArray, Array, ElementType
from ....numerics.fixed_point import apply_scale, high_product
from ..arithmetic import int16_functions, requantization
from ..call import Call, kernel
from .binary import by_table

__all__: list[str] = []

_ONE = np.float32(1)


def _tabulated(call: Call, function: Callable[[Array], Array], most_bits: int = 8) -> AnyArray:
    """A function of storage by the table of what it gives for all.

    Args:
        call: with the operand as input 0.
        function: of all storage values as int64, less the zero point; to storage values, less the
            zero point of the result.
        most_bits: of the storage.
    """
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    info = np.iinfo(call.dtype(operand.tensor))
    if info.bits > most_bits:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    centered = np.arange(int(info.min), int(info.max) + 1, dtype=np.int64) - x.zero_point
    table = np.clip(function(centered) + y.zero_point, info.min, info.max).astype(info.dtype)
    return lookup(table, convert(operand.value, I32) - int(info.min))


def _by_function(call: Call, function: Callable[[Array], Array]) -> AnyArray:
    """Integers by a table of a function of reals; of 16 bits an interpolated one."""
    operand = call.input(0)
    if operand.tensor.type != "INT16":
        return by_table(call, function)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    table = int16_functions.function_table(function, x.scale, x.zero_point, y.scale, y.zero_point)
    return int16_functions.interpolated(table, convert(operand.value, I32)).astype(np.int16)


# -- arithmetic -----------------------------------------------------------------------------------


@kernel("ABS")
def absolute(call: Call) -> AnyArray:
    """The magnitude, in the scale of the result."""
    operand = call.input(0)
    if operand.tensor.quantization is None:
        return np.abs(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = np.abs(call.centered(operand))
    if x.scale != y.scale:
        total = requantization.scaled(total, np.float64(x.scale / y.scale))
    return call.stored(total)


@kernel("NEG")
def negate(call: Call) -> AnyArray:
    """Storage with zero points of 0 is negated as it is."""
    operand = call.input(0)
    found = operand.tensor.quantization
    if found is not None and (found.zero_point or call.per_tensor(call.output).zero_point):
        raise call.error("needs zero points of 0", UnsupportedError)
    return -operand.value


@kernel("SQUARE", "SIN", "COS", "FLOOR", "CEIL", "ROUND")
def of_reals(call: Call) -> AnyArray:
    """Of floats; halves are rounded to even integers."""
    functions: dict[str, Callable[[AnyArray], AnyArray]] = {
        "SQUARE": lambda x: x * x, "SIN": np.sin, "COS": np.cos, "FLOOR": np.floor,
        "CEIL": np.ceil, "ROUND": np.rint,
    }  # fmt: skip
    operand = call.input(0)
    if not operand.is_float:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    return functions[call.operator.name](operand.value)


@kernel("SIGN")
def sign(call: Call) -> AnyArray:
    """1, 0 or -1; NaN of NaN."""
    x = call.input(0).value
    one, zero = x.dtype.type(1), x.dtype.type(0)
    found = np.where(x > 0, one, np.where(x < 0, -one, zero))
    return np.where(x == x, found, x) if call.input(0).is_float else found


@kernel("FAKE_QUANT")
def fake_quantize(call: Call) -> AnyArray:
    """Floats rounded to one of ``2**num_bits`` steps from `min` to `max`, of which 0 is one."""
    options, x = call.options, call.input(0).value
    least, most = np.float32(options.min), np.float32(options.max)
    if not least <= 0 <= most or not least < most or not 2 <= options.num_bits <= 16:
        raise call.error(
            f"has num_bits = {options.num_bits}, min = {least} and max = {most}, expected 2 to 16 "
            "bits, and a range with 0 in it"
        )
    steps = np.float32((1 << options.num_bits) - 1)
    scale = (most - least) / steps
    zero_point = np.minimum(
        np.maximum(requantization.round_away(-least / scale), np.float32(0)), steps
    )
    low, high = np.asarray(-zero_point * scale), np.asarray((steps - zero_point) * scale)
    inside = np.minimum(np.maximum(x, low), high)
    scaled = (inside - low) * (_ONE / scale)
    whole = np.floor(scaled)
    rounded = np.where(scaled - whole >= np.float32(0.5), whole + _ONE, whole)
    return rounded_product(rounded, scale) + low


@kernel("SQRT")
def square_root(call: Call) -> AnyArray:
    """Of integers: the quotient by the scale of the result, cut; by a table of all of them."""
    operand = call.input(0)
    if operand.is_float:
        return np.sqrt(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)

    def stored(centered: Array) -> Array:
        reals = np.maximum(x.scale * centered.astype(np.float32), np.float32(0))
        return np.asarray(np.trunc(np.sqrt(reals) / y.scale), np.int64)

    return _tabulated(call, stored, 16)


@kernel("RSQRT")
def reciprocal_square_root(call: Call) -> AnyArray:
    """Of 8 bits by Newton's method in integers, of 16 by a table."""
    operand = call.input(0)
    if operand.is_float:
        return _ONE / np.sqrt(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if operand.tensor.type == "INT16":
        most = np.float32(32767) * y.scale

        def real(values: Array) -> Array:
            positive = np.where(values > 0, values, _ONE)
            return np.where(values > 0, _ONE / np.sqrt(positive), most)

        return _by_function(call, real)
    factor = 1.0 / np.float64(np.sqrt(x.scale) * y.scale)
    multiplier, exponent = requantization.multiplier_and_exponent(factor)

    def stored(centered: Array) -> Array:
        inverse, shift = requantization.inverse_square_root(np.maximum(centered, 1))
        unit = apply_scale(np.int64(1), inverse, shift + (31 - 20), "gemmlowp")
        scaled = np.asarray(requantization.scaled_by(unit, multiplier, exponent - 20))
        return np.where(centered > 0, scaled, 1 << 20)  # beyond every storage value

    return _tabulated(call, stored)


@kernel("EXP")
def exponential(call: Call) -> AnyArray:
    """Of integers by a table."""
    operand = call.input(0)
    if operand.is_float:
        return np.exp(operand.value)
    return _by_function(call, requantization.in_double(np.exp))


@kernel("LOG")
def logarithm(call: Call) -> AnyArray:
    """Of integers by a table, in which what has no logarithm becomes the least result."""
    operand = call.input(0)
    if operand.is_float:
        return np.log(operand.value)
    y = call.per_tensor(call.output)
    info = np.iinfo(call.dtype(call.output))
    least = np.float32(int(info.min) - y.zero_point) * y.scale

    def real(values: Array) -> Array:
        return np.where(values > 0, np.log(np.where(values > 0, values, _ONE)), least)

    return _by_function(call, requantization.in_double(real))


@kernel("CAST")
def cast(call: Call) -> AnyArray:
    """Floats are cut to integers, and saturate; NaN is the greatest."""
    value, element = call.input(0).value, ElementType.parse(call.output.element)
    if not call.input(0).is_float or not element.is_integer:
        return convert(value, element)
    real = value if value.dtype.itemsize >= 4 else value.astype(np.float32)
    kind, info = real.dtype.type, np.iinfo(element.dtype)
    beyond = kind(float(int(info.max) + 1))
    known = np.where(real == real, real, beyond)
    inside = np.minimum(np.maximum(known, kind(float(info.min))), np.nextafter(beyond, kind(0)))
    wide = I32 if info.max <= np.iinfo(np.int32).max else I64
    cut = convert(convert(inside, wide), element)
    return np.where(known >= beyond, element.dtype.type(info.max), cut)


@kernel("LOGICAL_NOT")
def logical_not(call: Call) -> AnyArray:
    """Of truth values."""
    return ~call.input(0).value


# -- activation functions -------------------------------------------------------------------------


@kernel("ELU")
def elu(call: Call) -> AnyArray:
    """``exp(x) - 1`` below 0."""
    operand = call.input(0)

    def real(x: AnyArray) -> AnyArray:
        return np.where(x < 0, np.expm1(x), x)

    return (
        real(operand.value)
        if operand.is_float
        else _by_function(call, requantization.in_double(real))
    )


_ERF = (
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
     -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
     -1.42647390514189e-02),
)  # fmt: skip
"""``erf(x) = x * p(x * x) / q(x * x)`` up to 4, to 3e-7: the polynomials, highest power first."""


def _erf(values: AnyArray) -> AnyArray:
    x = np.minimum(np.maximum(values, np.float32(-4)), np.float32(4))
    square = x * x
    sides = []
    for coefficients in _ERF:
        total: AnyArray = np.float32(coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * square + np.float32(coefficient)
        sides.append(total)
    return x * sides[0] / sides[1]


@kernel("GELU")
def gelu(call: Call) -> AnyArray:
    """``x`` times the normal distribution's integral, or its approximation by ``tanh``."""
    operand, half = call.input(0), np.float32(0.5)
    root, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)

    tanh = np.tanh if operand.is_float else requantization.in_double(np.tanh)

    def approximate(x: AnyArray) -> AnyArray:
        return half * x * (_ONE + tanh(root * (x + cubic * x * x * x)))

    def exact(x: Array) -> Array:
        halves = [math.erfc(-each * math.sqrt(0.5)) / 2 for each in x.reshape(-1).tolist()]
        return np.array(halves, np.float32).reshape(x.shape) * x

    if call.options.approximate:
        return approximate(operand.value) if operand.is_float else _by_function(call, approximate)
    if operand.is_float:
        x = operand.value
        return half * x * (_ONE + _erf(x * np.float32(math.sqrt(0.5))))
    return _by_function(call, exact)


@kernel("HARD_SWISH")
def hard_swish(call: Call) -> AnyArray:
    """``x * relu6(x + 3) / 6``; of 8 bits in 16-bit fixed point."""
    operand = call.input(0)
    if operand.is_float:
        x = operand.value
        six = np.float32(6)
        return x * np.minimum(np.maximum(x + np.float32(3), np.float32(0)), six) / six
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    fine = np.float32(1 / 128) * x.scale
    factors = [np.float64(fine / y.scale), np.float64(fine / (np.float32(3) / np.float32(32768)))]
    pairs = [requantization.multiplier_and_exponent(factor) for factor in factors]
    (scale, exponent), (slope, slope_exponent) = (
        (np.minimum(m + (1 << 15), (1 << 31) - 1) >> 16, int(e)) for m, e in pairs
    )
    if exponent > 0:
        raise call.error("has a result of a much smaller scale than the operand")

    def short(values: Array) -> Array:
        return np.clip(values, -32768, 32767)

    def stored(centered: Array) -> Array:
        wide = (centered << 7).astype(np.int16).astype(np.int64)
        gate = wide
        if slope_exponent > 0:
            gate = short(gate << (slope_exponent - 1))
        gate = short(high_product(gate, slope, 15))
        if slope_exponent > 0:
            gate = short(gate << 1)
        gate = np.asarray(requantization.divided(gate, max(-slope_exponent, 0)))
        gate = (gate + (1 << 15)) >> 1
        product = gate * short(high_product(wide, scale, 15))
        cut = np.where(product < 0, -(-product >> 15), product >> 15)
        return np.asarray(requantization.divided(cut, -exponent))

    return _tabulated(call, stored)


@kernel("LEAKY_RELU")
def leaky_relu(call: Call) -> AnyArray:
    """``alpha * x`` below 0; integers are scaled by one factor or another."""
    operand, alpha = call.input(0), np.float32(call.options.alpha)
    if operand.is_float:
        return np.where(operand.value > 0, operand.value, operand.value * alpha)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    centered = call.centered(operand)
    below = np.float64(x.scale * alpha / y.scale)
    negative = requantization.scaled(centered, abs(below))
    total = np.where(
        centered >= 0,
        requantization.scaled(centered, np.float64(x.scale / y.scale)),
        -negative if below < 0 else negative,
    )
    return call.stored(total)


@kernel("PRELU")
def prelu(call: Call) -> AnyArray:
    """As LEAKY_RELU, with the slopes as input 1."""
    operand, slopes = call.input(0), call.input(1)
    if operand.is_float:
        return np.where(operand.value >= 0, operand.value, operand.value * slopes.value)
    x, a, y = (call.per_tensor(t) for t in (operand.tensor, slopes.tensor, call.output))
    centered = call.centered(operand)
    total = np.where(
        centered >= 0,
        requantization.scaled(centered, np.float64(x.scale / y.scale)),
        requantization.scaled(
            centered * call.centered(slopes), np.float64(x.scale * a.scale / y.scale)
        ),
    )
    return call.stored(total)
