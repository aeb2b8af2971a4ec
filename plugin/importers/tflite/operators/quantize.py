"""Importers that convert between element types, and between floats and storage.

Sources: LiteRT, ``quantize.cc``, ``dequantize.cc``, ``reference/requantize.h``,
``fake_quant.cc``, ``cast.cc``.
"""

from __future__ import annotations

import numpy as np

from ....numerics.array_functions import convert, rounded_product
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ..arithmetic.requantization import quantize_f32, rescale, round_half_away
from ..call import Call, importer


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
    steps, one = np.float32((1 << options.num_bits) - 1), np.float32(1)
    scale = (high - low) / steps
    zero_point = np.minimum(np.maximum(round_half_away(-low / scale), np.float32(0)), steps)
    least, greatest = np.asarray(-zero_point * scale), np.asarray((steps - zero_point) * scale)
    clamped = np.minimum(np.maximum(x, least), greatest)
    scaled = (clamped - least) * (one / scale)
    whole = np.floor(scaled)
    rounded = np.where(scaled - whole >= np.float32(0.5), whole + one, whole)
    return rounded_product(rounded, scale) + least


@importer("CAST")
def cast(call: Call) -> AnyArray:
    """Import CAST; floats are truncated to integers with saturation, NaN to the greatest."""
    value, element = call.input(0).value, ElementType.parse(call.output.element)
    if not call.input(0).is_float or not element.is_integer:
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
