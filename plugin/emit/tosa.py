"""Operations of TOSA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core._mlir import Value, ir
from ..dialects.dense import dense_of_array
from ..dialects.quant import element_type, parameters_of
from ..numerics.element_types import Array
from .operation import is_dynamic, value, with_shape


def create_rescale(
    tensor: Value,
    result_type: ir.Type,
    scale: tuple[Array, Array],
    zero_points: tuple[int, int],
    *,
    mode: str,
    scale32: bool,
    unsigned: tuple[bool, bool],
) -> Value:
    """Create a ``tosa.rescale`` and its constants; return its result.

    Args:
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


# -- shapes: the size of an axis that is dynamic stays as it is -----------------------------------


def pad(tensor: Value, ends: Sequence[tuple[int, int]], fill: Value) -> Value:
    """Pad each axis before and after by copies of `fill`, a tensor of one element."""
    if not any(map(any, ends)):
        return tensor
    shape = [
        size if is_dynamic(size) else size + before + after
        for size, (before, after) in zip(map(int, tensor.type.shape), ends, strict=True)
    ]
    padding = _shape([number for pair in ends for number in pair])
    return value("tosa.pad", [tensor, padding, fill], with_shape(tensor.type, shape))


def reshape(tensor: Value, shape: Sequence[int]) -> Value:
    """Give a tensor another shape, of which one size may be dynamic."""
    return value("tosa.reshape", [tensor, _shape(shape)], with_shape(tensor.type, shape))


def reverse(tensor: Value, axis: int) -> Value:
    """Reverse the order of elements along an axis."""
    i32 = ir.IntegerType.get_signless(32)
    return value("tosa.reverse", [tensor], tensor.type, {"axis": ir.IntegerAttr.get(i32, axis)})


def slice_(tensor: Value, starts: Sequence[int], sizes: Sequence[int]) -> Value:
    """Take a part of a tensor."""
    operands = [tensor, _shape(starts), _shape(sizes)]
    return value("tosa.slice", operands, with_shape(tensor.type, sizes))


def tile(vector: Value, count: int) -> Value:
    """Repeat a tensor of one axis."""
    if count == 1:
        return vector
    shape = [int(vector.type.shape[0]) * count]
    return value("tosa.tile", [vector, _shape([count])], with_shape(vector.type, shape))


def transpose(tensor: Value, order: Sequence[int]) -> Value:
    """Put axis ``order[i]`` at place ``i``."""
    shape = [int(tensor.type.shape[axis]) for axis in order]
    attributes = {"perms": ir.DenseI32ArrayAttr.get(list(order))}
    return value("tosa.transpose", [tensor], with_shape(tensor.type, shape), attributes)


def _shape(numbers: Sequence[int]) -> Value:
    """A constant shape; -1 for a size that is dynamic."""
    sizes = [-1 if is_dynamic(number) else number for number in numbers]
    attribute = ir.Attribute.parse(f"dense<{sizes}> : tensor<{len(sizes)}xindex>")
    type_ = ir.Type.parse(f"!tosa.shape<{len(sizes)}>")
    return value("tosa.const_shape", [], type_, {"values": attribute})


def _constant(numbers: Array, element: ir.Type) -> Value:
    attribute = dense_of_array(numbers.reshape(-1), element)
    return value("tosa.const", [], attribute.type, {"values": attribute})
