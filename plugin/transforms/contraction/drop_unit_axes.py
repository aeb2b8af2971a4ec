"""Convolutions along one axis that programs write as convolutions of images of one row.

A kernel computes elementwise operations that follow a convolution directly. Importers of
convolutions along one axis give their operands a spatial axis of size 1, which IREE compiles to
better code, and remove it from the result::

    %i = stablehlo.reshape %x : (tensor<1x256x200xi8>) -> tensor<1x256x1x200xi8>
    %y = stablehlo.convolution(%i, %w) ... : (...) -> tensor<1x64x1x200xi32>
    %z = stablehlo.reshape %y : (tensor<1x64x1x200xi32>) -> tensor<1x64x200xi32>

After::

    %z = stablehlo.convolution(%x, %w) ... : (...) -> tensor<1x64x200xi32>
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.dense import constant_array
from ...dialects.windows import has_reversal, pad_amounts, window_padding, window_steps
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import dense, integers, producer_named

_RESHAPE = "stablehlo.reshape"


def drop_unit_axis(op: Operation) -> Operation | None:
    """Emit a convolution of images of one row or one column as one along the other axis.

    Returns:
        The new convolution, which the reshape after `op` is replaced by; None where there is no
        such reshape, or no axis of size 1 in image, filter and result.
    """
    types = [each.type for each in (*op.operands, *op.results)]
    if op.name != "stablehlo.convolution" or not all(type_.has_static_shape for type_ in types):
        return None
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    sides = [
        list(numbers.input_spatial_dimensions),
        list(numbers.kernel_spatial_dimensions),
        list(numbers.output_spatial_dimensions),
    ]
    uses = list(op.results[0].uses)
    if len(sides[0]) != 2 or len(uses) != 1 or uses[0].owner.operation.name != _RESHAPE:
        return None
    reshape, padding = uses[0].owner.operation, window_padding(op, 2)
    if has_reversal(op):
        return None
    shape = [int(size) for size in reshape.results[0].type.shape]
    for number in (0, 1):
        axes = [side[number] for side in sides]
        is_one = all(type_.shape[axis] == 1 for type_, axis in zip(types, axes, strict=True))
        if is_one and not padding[number].any() and shape == _without(types[2].shape, axes[2]):
            return _along_other_axis(op, reshape, sides, number)
    return None


def _without(sizes: Sequence[int], axis: int) -> list[int]:
    return [int(size) for number, size in enumerate(sizes) if number != axis]


def _along_other_axis(
    op: Operation, reshape: Operation, sides: Sequence[Sequence[int]], number: int
) -> Operation:
    """Emit the convolution without the spatial axis of a number."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    layouts = []
    for side, names in zip(
        sides,
        (
            {"b": numbers.input_batch_dimension, "f": numbers.input_feature_dimension},
            {
                "i": numbers.kernel_input_feature_dimension,
                "o": numbers.kernel_output_feature_dimension,
            },
            {"b": numbers.output_batch_dimension, "f": numbers.output_feature_dimension},
        ),
        strict=True,
    ):
        by_axis = {axis: name for name, axis in names.items()} | {side[1 - number]: "0"}
        layouts.append(f"[{', '.join(by_axis[axis] for axis in sorted(by_axis))}]")
    attributes: dict[str, ir.Attribute] = {
        name: integers([window_steps(op, name, 2)[1 - number]])
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    }
    padding = window_padding(op, 2)[[1 - number]]
    attributes["padding"] = dense(padding, ir.IntegerType.get_signless(64))
    attributes["batch_group_count"] = op.attributes["batch_group_count"]
    left, right = (
        _reshaped(operand, side[number])
        for operand, side in zip(op.operands, sides[:2], strict=True)
    )
    groups = int(op.attributes["feature_group_count"].value)
    layout = f"{layouts[0]}x{layouts[1]}->{layouts[2]}"
    type_ = reshape.results[0].type
    value = emit_stablehlo.convolution(left, right, type_, layout, attributes, groups)
    reshape.results[0].replace_all_uses_with(value)
    return value.owner.operation


def _reshaped(operand: Value, axis: int) -> Value:
    """Emit the operand without an axis of size 1.

    A reshape that has added the axis is undone, also ahead of a pad.
    """
    shape = _without(operand.type.shape, axis)
    before = producer_named(operand, _RESHAPE)
    if before is not None and [int(size) for size in before.operands[0].type.shape] == shape:
        return before.operands[0]
    pad = producer_named(operand, "stablehlo.pad")
    if pad is not None and int(pad.operands[0].type.shape[axis]) == 1:
        low, high, interior = (_without(each.tolist(), axis) for each in pad_amounts(pad))
        inner = _reshaped(pad.operands[0], axis)
        return emit_stablehlo.pad(inner, low, high, interior, pad.operands[1])
    elements = constant_array(operand)
    if elements is not None:
        return emit_stablehlo.constant(elements.reshape(shape), operand.type.element_type)
    return emit_stablehlo.reshape(operand, shape)
