"""8-bit floats as their bits, which integer arithmetic decodes and encodes exactly.

IREE has no 8-bit floats on most targets, and kernels read them as bytes. Before::

    %c = stablehlo.constant dense<...> : tensor<512x256xf8E4M3FN>
    %0 = stablehlo.transpose %c, dims = [1, 0] : ... -> tensor<256x512xf8E4M3FN>
    %1 = stablehlo.convert %0 : (tensor<256x512xf8E4M3FN>) -> tensor<256x512xf32>

After::

    %c = stablehlo.constant dense<...> : tensor<512x256xi8>
    %0 = stablehlo.transpose %c, dims = [1, 0] : ... -> tensor<256x512xi8>
    %1 = stablehlo.convert %0 : (tensor<256x512xi8>) -> tensor<256x512xi32>
    ...
    %9 = stablehlo.bitcast_convert %8 : (tensor<256x512xi32>) -> tensor<256x512xf32>

Where an argument or another operation has 8-bit floats, only the conversions are written.
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, constant_attribute, dense_of_array, narrow_array_of_dense
from ...emit import stablehlo
from ...emit.float8 import decode_float8, encode_float8, float8_format
from ...emit.operation import mlir_type, value, with_element
from ...numerics.element_types import F32
from ..base import named, walk

_BITCAST = "stablehlo.bitcast_convert"
_CONVERT = "stablehlo.convert"
_MOVEMENT = (
    *("stablehlo.broadcast_in_dim", "stablehlo.concatenate", "stablehlo.dynamic_reshape"),
    *("stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose", _BITCAST),
)
"""Operations that move elements of any type."""
_SATURATED = "f8E4M3FN"
"""The format in which PyTorch 2.13 writes the greatest float for greater ones, and for infinity.

The other formats overflow to infinity, or to NaN where they have none.
"""


def write_bytes(module: Operation) -> None:
    """Write 8-bit floats as i8, and their conversions as integer arithmetic."""
    for op in filter(_has_float8, named(module, [_CONVERT])):
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_converted(op))
        op.erase()
    operations = list(filter(_has_float8, walk(module)))
    if not all(map(_is_written, operations)):
        return
    i8 = ir.IntegerType.get_signless(8)
    for op in operations:
        [result] = op.results
        type_ = with_element(result.type, i8) if float8_format(result.type) else result.type
        with ir.InsertionPoint(op), op.location:
            if op.name in CONSTANTS:
                elements = narrow_array_of_dense(op.attributes["value"]).view(np.int8)
                constant = stablehlo.constant_of(dense_of_array(elements, i8))
                result.replace_all_uses_with(constant)
            elif op.name == _BITCAST:
                result.replace_all_uses_with(_bits_as(op.operands[0], type_))
            else:
                result.set_type(type_)
    for op in operations:
        if op.name == _BITCAST or op.name in CONSTANTS:
            op.erase()


def _has_float8(op: Operation) -> bool:
    return any(float8_format(each.type) for each in (*op.operands, *op.results))


def _is_written(op: Operation) -> bool:
    if op.name in CONSTANTS:
        return constant_attribute(op.results[0]) is not None
    return op.name in _MOVEMENT


def _bits_as(operand: Value, type_: ir.Type) -> Value:
    return operand if operand.type == type_ else value(_BITCAST, [operand], type_)


def _converted(op: Operation) -> Value:
    """Return the result of a conversion; its 8-bit floats are operands and results of bitcasts."""
    [operand], element = op.operands, op.results[0].type.element_type
    reals = decode_float8(operand) if float8_format(operand.type) else operand
    if not float8_format(op.results[0].type):
        return stablehlo.convert(reals, element)
    reals = stablehlo.convert(reals, mlir_type(F32))
    return encode_float8(reals, element, saturates=str(element) == _SATURATED)
