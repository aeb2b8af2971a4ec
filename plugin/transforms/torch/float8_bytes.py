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

A program is left as it is where an argument or another operation has 8-bit floats.
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, constant_attribute, dense_of_array, narrow_array_of_dense
from ...emit import stablehlo, tensor
from ...emit.operation import mlir_type, with_element
from ...numerics.element_types import F32, U8
from ...numerics.small_floats import FLOAT8_FORMATS, SmallFloat
from ..base import walk

_CONVERT = "stablehlo.convert"
_MOVEMENT = (
    *("stablehlo.broadcast_in_dim", "stablehlo.concatenate", "stablehlo.dynamic_reshape"),
    *("stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose"),
)
"""Operations that move elements of any type."""
_REALS = ("bf16", "f16", "f32")
"""Types of reals whose conversion is exact, or rounds once."""
_SATURATED = FLOAT8_FORMATS["f8E4M3FN"]
"""The format in which PyTorch 2.13 writes the greatest float for greater ones, and for infinity.

The other formats overflow to infinity, or to NaN where they have none.
"""


def write_bytes(module: Operation) -> None:
    """Write 8-bit floats as i8, and their conversions as integer arithmetic."""
    formats = {op: _formats(op) for op in walk(module)}
    operations = {op: each for op, each in formats.items() if any(each)}
    if not all(map(_is_written, operations)):
        return
    i8 = ir.IntegerType.get_signless(8)
    for op, (source, target) in operations.items():
        [result] = op.results
        with ir.InsertionPoint(op), op.location:
            if op.name == _CONVERT:
                result.replace_all_uses_with(_converted(op, source, target))
            elif op.name in CONSTANTS:
                elements = narrow_array_of_dense(op.attributes["value"]).view(np.int8)
                constant = stablehlo.constant_of(dense_of_array(elements, i8))
                result.replace_all_uses_with(constant)
            else:
                result.set_type(with_element(result.type, i8))
    for op in operations:
        if op.name == _CONVERT or op.name in CONSTANTS:
            op.erase()


def _formats(op: Operation) -> tuple[SmallFloat | None, SmallFloat | None]:
    """Return the formats of the operands, and of the results, None for other types."""
    source, target = (
        next(filter(None, (_format(each.type) for each in values)), None)
        for values in (op.operands, op.results)
    )
    return source, target


def _format(type_: ir.Type) -> SmallFloat | None:
    return FLOAT8_FORMATS.get(str(getattr(type_, "element_type", None)))


def _is_written(op: Operation) -> bool:
    if op.name in CONSTANTS:
        return constant_attribute(op.results[0]) is not None
    if op.name == _CONVERT:
        reals = [str(each.type.element_type) for each in (op.operands[0], op.results[0])]
        return all(each in FLOAT8_FORMATS or each in _REALS for each in reals)
    return op.name in _MOVEMENT


def _converted(op: Operation, source: SmallFloat | None, target: SmallFloat | None) -> Value:
    """Return the reals of bytes, or the bytes of reals."""
    [operand], element = op.operands, op.results[0].type.element_type
    if source is None:
        reals = tensor(stablehlo.convert(operand, mlir_type(F32)))
    else:
        reals = source.compute(tensor(operand, U8))
    if target is None:
        return stablehlo.convert(reals.value, element)
    return target.encode(reals, saturate=target is _SATURATED).value
