"""Importers of elementwise functions of one operand, and of conversions.

A function of 8-bit storage is a table of its 256 values, each computed as LiteRT computes it.

Sources: LiteRT, ``elementwise.cc``, ``exp.cc``, ``neg.cc``, ``sign.cc``, ``quantize.cc``,
``dequantize.cc``, ``reference/requantize.h``, ``fake_quant.cc``, ``cast.cc``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, rounded_product, take
from ....numerics.element_types import I32, I64, AnyArray, Array, ElementType
from ....numerics.fixed_point import apply_scale
from ..arithmetic.fixed_point_functions import inverse_square_root
from ..arithmetic.lookup_tables import in_f64, interpolate, interpolation_table, lookup_table
from ..arithmetic.requantization import (
    multiplier_and_exponent,
    quantize_f32,
    rescale,
    rescale_by,
    round_half_away,
)
from ..call import Call, importer
from ..operand import ComplexValue

_ONE = np.float32(1)


def apply_by_table(call: Call, function: Callable[[Array], Array]) -> AnyArray:
    """Apply a function of f32 to integers by a table; the table of 16 bits is interpolated."""
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    parameters = (x.scale, x.zero_point, y.scale, y.zero_point)
    if operand.tensor.type == "INT16":
        if y.zero_point:  # LiteRT adds none to the entries of the table
            raise call.error(f"needs a zero point of 0 of {call.output}, got {y.zero_point}")
        table = interpolation_table(function, *parameters)
        return interpolate(table, convert(operand.value, I32)).astype(np.int16)
    dtype = call.dtype(operand.tensor)
    if dtype.itemsize != 1:
        raise call.unsupported_type(operand)
    index = convert(operand.value, I32) - int(np.iinfo(dtype).min)
    return take(lookup_table(function, *parameters, dtype), index)


def tabulate_storage(call: Call, function: Callable[[Array], Array], max_bits: int = 8) -> AnyArray:
    """Apply a function of centered int64 storage by a table of all its values."""
    operand = call.input(0)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    info = np.iinfo(call.dtype(operand.tensor))
    if info.bits > max_bits:
        raise call.unsupported_type(operand)
    centered = np.arange(int(info.min), int(info.max) + 1, dtype=np.int64) - x.zero_point
    table = np.clip(function(centered) + y.zero_point, info.min, info.max).astype(info.dtype)
    return take(table, convert(operand.value, I32) - int(info.min))


@importer("ABS")
def absolute(call: Call) -> AnyArray:
    """Import ABS."""
    (operand,) = call.alike(0)
    if operand.tensor.quantization is None:
        return np.abs(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = np.abs(call.centered(operand))
    if x.scale != y.scale:
        total = rescale(total, np.float64(x.scale / y.scale))
    return call.to_storage(total)


@importer("NEG")
def negate(call: Call) -> AnyArray:
    """Import NEG; storage must have zero points of 0."""
    (operand,) = call.alike(0)
    parameters = operand.tensor.quantization
    if parameters is not None and (
        parameters.zero_point or call.per_tensor(call.output).zero_point
    ):
        raise call.error("needs zero points of 0", UnsupportedError)
    return -operand.value


_FLOAT_FUNCTIONS: dict[str, Callable[[AnyArray], AnyArray]] = {
    "SQUARE": lambda x: x * x, "SIN": np.sin, "COS": np.cos, "FLOOR": np.floor,
    "CEIL": np.ceil, "ROUND": np.rint,
}  # fmt: skip


@importer(*_FLOAT_FUNCTIONS)
def float_function(call: Call) -> AnyArray:
    """Import SQUARE, SIN, COS, FLOOR, CEIL and ROUND (half to even), of floats."""
    call.require_float(call.input(0))
    return _FLOAT_FUNCTIONS[call.operator.name](call.input(0).value)


@importer("SIGN")
def sign(call: Call) -> AnyArray:
    """Import SIGN; NaN of NaN."""
    x = call.input(0).value
    one, zero = x.dtype.type(1), x.dtype.type(0)
    result = np.where(x > 0, one, np.where(x < 0, -one, zero))
    return np.where(x == x, result, x) if call.input(0).is_float else result


@importer("SQRT")
def square_root(call: Call) -> AnyArray:
    """Import SQRT; integers are truncated in units of the result's scale, by a table."""
    operand = call.input(0)
    if operand.is_float:
        return np.sqrt(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)

    def to_storage(centered: Array) -> Array:
        values = np.maximum(x.scale * centered.astype(np.float32), np.float32(0))
        return np.asarray(np.trunc(np.sqrt(values) / y.scale), np.int64)

    return tabulate_storage(call, to_storage, 16)


@importer("RSQRT")
def reciprocal_square_root(call: Call) -> AnyArray:
    """Import RSQRT; 8 bits by Newton's method in integers, 16 bits by an interpolated table."""
    operand = call.input(0)
    if operand.is_float:
        return _ONE / np.sqrt(operand.value)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if operand.tensor.type == "INT16":
        greatest = np.float32(32767) * y.scale

        def rsqrt(values: Array) -> Array:
            positive = np.where(values > 0, values, _ONE)
            return np.where(values > 0, _ONE / np.sqrt(positive), greatest)

        return apply_by_table(call, rsqrt)
    factor = 1.0 / np.float64(np.sqrt(x.scale) * y.scale)
    multiplier, exponent = multiplier_and_exponent(factor)

    def to_storage(centered: Array) -> Array:
        inverse, shift = inverse_square_root(np.maximum(centered, 1))
        unit = apply_scale(np.int64(1), inverse, shift + (31 - 20), "gemmlowp")
        scaled = np.asarray(rescale_by(unit, multiplier, exponent - 20))
        return np.where(centered > 0, scaled, 1 << 20)  # beyond every storage value

    return tabulate_storage(call, to_storage)


@importer("LOG")
def logarithm(call: Call) -> AnyArray:
    """Import LOG; integers by a table, where numbers up to 0 become the least result."""
    operand = call.input(0)
    if operand.is_float:
        return np.log(operand.value)
    y = call.per_tensor(call.output)
    info = np.iinfo(call.dtype(call.output))
    least = np.float32(int(info.min) - y.zero_point) * y.scale

    def log(values: Array) -> Array:
        return np.where(values > 0, np.log(np.where(values > 0, values, _ONE)), least)

    return apply_by_table(call, in_f64(log))


# -- conversions between element types, and between floats and storage -----------------------------


@importer("QUANTIZE")
def quantize(call: Call) -> AnyArray:
    """Import QUANTIZE, of floats, or of storage with other parameters."""
    operand, target = call.input(0), call.per_tensor(call.output)
    if not operand.is_float:
        source = call.per_tensor(operand.tensor)
        factor = np.float64(source.scale) / np.float64(target.scale)
        return call.to_storage(rescale(call.centered(operand), factor))
    info = np.iinfo(call.dtype(call.output))
    return quantize_f32(
        operand.value, target.scale, target.zero_point, int(info.min), int(info.max)
    ).astype(info.dtype)


@importer("DEQUANTIZE")
def dequantize(call: Call) -> AnyArray:
    """Import DEQUANTIZE, of storage or f16."""
    operand = call.input(0)
    if operand.is_float:
        return operand.value.astype(np.float32)
    return call.expressed(operand, operand.value)


@importer("FAKE_QUANT")
def fake_quant(call: Call) -> AnyArray:
    """Import FAKE_QUANT: rounds to ``2**num_bits`` steps from `min` to `max`, one of which is 0."""
    options, x = call.options, call.input(0).value
    low, high = np.float32(options.min), np.float32(options.max)
    if not low <= 0 <= high or not low < high or not 2 <= options.num_bits <= 16:
        raise call.error(
            f"has num_bits = {options.num_bits}, min = {low} and max = {high}, expected 2 to 16 "
            "bits, and a range with 0 in it"
        )
    steps = np.float32((1 << options.num_bits) - 1)
    scale = (high - low) / steps
    zero_point = np.minimum(np.maximum(round_half_away(-low / scale), np.float32(0)), steps)
    least, greatest = np.asarray(-zero_point * scale), np.asarray((steps - zero_point) * scale)
    clamped = np.minimum(np.maximum(x, least), greatest)
    scaled = (clamped - least) * (_ONE / scale)
    whole = np.floor(scaled)
    rounded = np.where(scaled - whole >= np.float32(0.5), whole + _ONE, whole)
    return rounded_product(rounded, scale) + least


@importer("CAST")
def cast(call: Call) -> AnyArray:
    """Import CAST; floats are truncated to integers with saturation, NaN to the greatest.

    A complex number is cast by its real part.
    """
    operand = call.input(0)
    is_complex = isinstance(operand.value, ComplexValue)
    if call.output.type == "COMPLEX64":
        raise call.error("does not support results of type COMPLEX64", UnsupportedError)
    value = operand.value.real if is_complex else operand.value
    element = ElementType.parse(call.output.element)
    if not (is_complex or operand.is_float) or not element.is_integer:
        return convert(value, element)
    floats = value if value.dtype.itemsize >= 4 else value.astype(np.float32)
    kind, info = floats.dtype.type, np.iinfo(element.dtype)
    limit = kind(float(int(info.max) + 1))
    without_nan = np.where(floats == floats, floats, limit)
    clamped = np.minimum(
        np.maximum(without_nan, kind(float(info.min))), np.nextafter(limit, kind(0))
    )
    wide = I32 if info.max <= np.iinfo(np.int32).max else I64
    truncated = convert(convert(clamped, wide), element)
    return np.where(without_nan >= limit, element.dtype.type(info.max), truncated)
