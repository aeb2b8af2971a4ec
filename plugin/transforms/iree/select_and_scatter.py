"""``select_and_scatter`` as a windowed reduction and a scatter.

``select`` compares elements of the operand, ``scatter`` accumulates elements of the source, and one
StableHLO operation has one element type for both. Converting the operand to the accumulator's type
may merge two values (a coarser scale, fewer bits), and then the other element of a window could be
selected. So the two are taken apart, each in its own type:

1. ``reduce_window`` over the operand and the number of each element, with ``select`` as it is,
   gives the number of the selected element of each window. Padding has the number -1 and is never
   selected while the window has another element.
2. ``scatter`` accumulates ``source`` at these numbers into a flat tensor that starts as
   ``init_value``. It has one more element for windows of padding alone, which is cut off.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._mlir import ir
from ...dialects.dense import dense_of_array
from ...dialects.quant import parameters_of, storage_mlir_type
from ...errors import UnsupportedError
from ..base import Builder

__all__ = ["expand_select_and_scatter"]

_PADDING = -1


def expand_select_and_scatter(op: Any, source: Any, init_value: Any) -> Any:
    """Build the two operations at the current insertion point; take the regions out of `op`.

    Args:
        op: a ``select_and_scatter`` of StableHLO or subquant; only the caller erases it.
        source: the source, in the element type of ``scatter``.
        init_value: the init value, in the element type of ``scatter``.

    Returns:
        The result, in the element type of ``scatter``.

    Raises:
        UnsupportedError: a dynamic shape, or more elements than a 32-bit number counts.
    """
    operand = op.operands[0]
    if not (operand.type.has_static_shape and source.type.has_static_shape):
        raise UnsupportedError(
            f"has a dynamic shape, got '{operand.type}' and '{op.operands[1].type}'; selected "
            "elements are numbered, which takes static shapes",
            op,
        )
    shape = [int(extent) for extent in operand.type.shape]
    element = init_value.type.element_type
    if math.prod(shape) == 0:
        return _broadcast(Builder(), init_value, shape)
    if math.prod(shape) >= (1 << 31) - 1:
        raise UnsupportedError(
            f"has {math.prod(shape)} elements; expected fewer than a 32-bit number counts", op
        )
    build = Builder()
    selected = _select(build, op, operand, shape)
    total = math.prod(shape)
    flat = _scatter(build, op, selected, source, _broadcast(build, init_value, [total + 1]))
    kept = build.op(
        "stablehlo.slice",
        [flat],
        ir.RankedTensorType.get([total], element),
        {
            "start_indices": ir.DenseI64ArrayAttr.get([0]),
            "limit_indices": ir.DenseI64ArrayAttr.get([total]),
            "strides": ir.DenseI64ArrayAttr.get([1]),
        },
    )
    return _reshape(build, kept, shape)


def _select(build: Builder, op: Any, operand: Any, shape: list[int]) -> Any:
    """The number of each window's selected element, for padding alone the number of elements."""
    total = math.prod(shape)
    flat_type = ir.RankedTensorType.get([total], build.i32)
    iota_dimension = {"iota_dimension": ir.IntegerAttr.get(build.i64, 0)}
    numbers = build.op("stablehlo.iota", [], flat_type, iota_dimension)
    counts = [int(extent) for extent in op.operands[1].type.shape]
    operands = [operand, _reshape(build, numbers, shape)]
    operands += [_any_constant(build, operand.type.element_type), _splat(build, _PADDING, [])]
    names = ("window_dimensions", "window_strides", "padding")
    window = ir.Operation.create(
        "stablehlo.reduce_window",
        results=[
            ir.RankedTensorType.get(counts, operand.type.element_type),
            ir.RankedTensorType.get(counts, build.i32),
        ],
        operands=operands,
        attributes={name: op.attributes[name] for name in names if name in op.attributes},
        regions=1,
    )
    _fill_window_body(op, window)
    picked = window.results[1]
    compared = ir.RankedTensorType.get(counts, build.i1)
    is_padding = _compare(build, "LT", picked, _splat(build, 0, counts), compared)
    outside = _splat(build, total, counts)
    return build.op("stablehlo.select", [is_padding, outside, picked], picked.type)


def _fill_window_body(op: Any, window: Any) -> None:
    """Give `window` the body ``(x, i), (y, j) -> select(x, y) ? (x, i) : (y, j)``."""
    old = op.regions[0].blocks[0]
    value, i1 = old.arguments[0].type, ir.IntegerType.get_signless(1)
    number = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    here = op.location
    block = window.regions[0].blocks.append(value, number, value, number, arg_locs=[here] * 4)
    left, left_number, right, right_number = block.arguments
    old.arguments[0].replace_all_uses_with(left)
    old.arguments[1].replace_all_uses_with(right)
    *operations, terminator = list(old.operations)
    with ir.InsertionPoint(block), here:
        build = Builder()
        for operation in operations:
            operation.operation.detach_from_parent()
            ir.InsertionPoint.current.insert(operation)
        scalar = ir.RankedTensorType.get([], i1)
        zero = _splat(build, 0, [])
        left_is_real = _compare(build, "GE", left_number, zero, scalar)
        right_is_padding = _compare(build, "LT", right_number, zero, scalar)
        either = build.op("stablehlo.or", [terminator.operands[0], right_is_padding], scalar)
        takes_left = build.op("stablehlo.and", [left_is_real, either], scalar)
        taken = build.op("stablehlo.select", [takes_left, left, right], value)
        picked = build.op("stablehlo.select", [takes_left, left_number, right_number], number)
        build.op("stablehlo.return", [taken, picked])


def _scatter(build: Builder, op: Any, selected: Any, source: Any, start: Any) -> Any:
    count = math.prod(int(extent) for extent in source.type.shape)
    numbers = ir.Attribute.parse(
        "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
        "index_vector_dim = 1>"
    )
    scatter = ir.Operation.create(
        "stablehlo.scatter",
        results=[start.type],
        operands=[start, _reshape(build, selected, [count, 1]), _reshape(build, source, [count])],
        attributes={"scatter_dimension_numbers": numbers},
        regions=1,
    )
    op.regions[1].blocks[0].append_to(scatter.regions[0])
    return scatter.results[0]


# -- small operations -----------------------------------------------------------------------------


def _splat(build: Builder, value: int, shape: list[int]) -> Any:
    type_ = ir.RankedTensorType.get(shape, build.i32)
    attribute = ir.DenseElementsAttr.get(np.array([value], np.int32), type=type_)
    return build.op("stablehlo.constant", [], type_, {"value": attribute})


def _any_constant(build: Builder, element: Any) -> Any:
    """A scalar constant; what padding holds does not matter."""
    type_ = ir.RankedTensorType.get([], element)
    parameters = parameters_of(element)
    if parameters is not None:
        storage = storage_mlir_type(parameters.storage)
        attribute: ir.Attribute = dense_of_array(parameters.zero_points.reshape(()), storage)
    elif isinstance(element, ir.ComplexType):
        attribute = ir.Attribute.parse(f"dense<(0.0, 0.0)> : {type_}")
    elif isinstance(element, ir.IntegerType):
        attribute = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(element, 0))
    else:
        attribute = ir.DenseElementsAttr.get_splat(type_, ir.FloatAttr.get(element, 1.0))
    return build.op("stablehlo.constant", [], type_, {"value": attribute})


def _compare(build: Builder, direction: str, left: Any, right: Any, type_: ir.Type) -> Any:
    attribute = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
    return build.op("stablehlo.compare", [left, right], type_, {"comparison_direction": attribute})


def _reshape(build: Builder, value: Any, shape: list[int]) -> Any:
    type_ = ir.RankedTensorType.get(shape, value.type.element_type)
    return value if type_ == value.type else build.op("stablehlo.reshape", [value], type_)


def _broadcast(build: Builder, scalar: Any, shape: list[int]) -> Any:
    type_ = ir.RankedTensorType.get(shape, scalar.type.element_type)
    nowhere = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}
    return build.op("stablehlo.broadcast_in_dim", [scalar], type_, nowhere)
