"""Conversions of 8-bit floats by integer arithmetic on their bits."""

from __future__ import annotations

from ..core._mlir import Value, ir
from ..numerics.element_types import U8
from ..numerics.small_floats import FLOAT8_FORMATS, SmallFloat
from . import operation
from .operation import with_element
from .tensors import tensor_or_scalar


def float8_format(type_: ir.Type) -> SmallFloat | None:
    """Return the format of a tensor's elements, or of a scalar; None for another type."""
    element = getattr(type_, "element_type", type_)
    is_of_8_bits = isinstance(element, ir.FloatType) and element.width == 8
    return FLOAT8_FORMATS.get(str(element)) if is_of_8_bits else None


def decode_float8(operand: Value) -> Value:
    """Return 8-bit floats (a tensor, or a scalar in a body) as f32, exactly."""
    source = float8_format(operand.type)
    assert source is not None
    codes = _bits_as(operand, ir.IntegerType.get_signless(8))
    result: Value = source.compute(tensor_or_scalar(codes, U8)).value
    return result


def encode_float8(reals: Value, element: ir.Type, *, saturates: bool = False) -> Value:
    """Return f32 rounded to nearest even as 8-bit floats.

    Args:
        reals: a tensor, or a scalar in a body, of f32.
        element: the type of the 8-bit floats.
        saturates: reals beyond the greatest become that one; else infinity, or NaN where the format
            has no infinity.
    """
    codes = FLOAT8_FORMATS[str(element)].encode(tensor_or_scalar(reals), saturate=saturates)
    return _bits_as(codes.value, element)


def _bits_as(operand: Value, element: ir.Type) -> Value:
    if not isinstance(operand.type, ir.ShapedType):
        return operation.value("arith.bitcast", [operand], element)
    return operation.value(
        "stablehlo.bitcast_convert", [operand], with_element(operand.type, element)
    )
