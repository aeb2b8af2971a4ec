"""Operations of TOSA."""

from __future__ import annotations

import numpy as np

from .._mlir import Value, ir
from ..dialects.dense import dense_of_array
from ..dialects.quant import element_type, parameters_of
from ..numerics.element_types import Array
from .operation import value

__all__ = ["create_rescale"]


def create_rescale(
    tensor: Value,
    result_type: ir.Type,
    scale: tuple[Array, Array],
    zero_points: tuple[int, int] = (0, 0),
    *,
    mode: str = "SINGLE_ROUND",
    scale32: bool = True,
    unsigned: tuple[bool, bool] = (False, False),
) -> Value:
    """Create a ``tosa.rescale`` and its constants; return its result.

    Args:
        tensor: the tensor to rescale.
        result_type: the type of the result, of the same shape.
        scale: multipliers and shifts: of shape (), or (n,) for the n channels of the last axis.
        zero_points: of the input and of the output.
        mode: a key of `subquant.dialects.tosa.ROUNDING_MODES`.
        scale32: whether multipliers have 31 bits and not 15.
        unsigned: how input and output are read.
    """
    multipliers, shifts = (np.asarray(array) for array in scale)
    i8 = ir.IntegerType.get_signless(8)
    width = ir.IntegerType.get_signless(32 if scale32 else 16)
    operands = [tensor, _constant(multipliers, width), _constant(shifts, i8)]
    for type_, zero_point in zip((tensor.type, result_type), zero_points, strict=True):
        parameters = parameters_of(type_)
        bits = parameters.storage.width if parameters else element_type(type_).width
        storage = ir.IntegerType.get_signless(bits)
        operands.append(_constant(np.array(zero_point), storage))
    attributes: dict[str, ir.Attribute] = {
        "scale32": ir.BoolAttr.get(scale32),
        "rounding_mode": ir.Attribute.parse(f"#tosa.rounding_mode<{mode}>"),
        "per_channel": ir.BoolAttr.get(multipliers.ndim == 1),
        "input_unsigned": ir.BoolAttr.get(unsigned[0]),
        "output_unsigned": ir.BoolAttr.get(unsigned[1]),
    }
    return value("tosa.rescale", operands, result_type, attributes)


def _constant(numbers: Array, element: ir.Type) -> Value:
    attribute = dense_of_array(numbers.reshape(-1), element)
    return value("tosa.const", [], attribute.type, {"values": attribute})
