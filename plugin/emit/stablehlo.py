"""StableHLO's operations that take more than values of one shape: each written in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..numerics.element_types import Array
from .operation import (
    create,
    dense,
    integer,
    integers,
    is_dynamic,
    parse_attribute,
    splat,
    tensor_type,
    value,
    with_element,
    with_shape,
)

# -- constants ------------------------------------------------------------------------------------


def constant_of(attribute: ir.Attribute) -> Value:
    """A constant of a dense attribute."""
    return value("stablehlo.constant", [], attribute.type, {"value": attribute})


def constant(values: Array | float | int, element: ir.Type) -> Value:
    """A constant of the shape of `values`."""
    return constant_of(dense(values, element))


def zero_of(element: ir.Type) -> Value:
    """A zero without axes, of any integer or float type."""
    return constant_of(splat(0, tensor_type([], element)))


def iota(type_: ir.Type, axis: int) -> Value:
    """The position along an axis."""
    return value("stablehlo.iota", [], type_, {"iota_dimension": integer(axis)})


# -- elements -------------------------------------------------------------------------------------


def convert(operand: Value, element: ir.Type) -> Value:
    """Convert the elements of a tensor, unless they are of that type."""
    type_ = with_element(operand.type, element)
    return operand if operand.type == type_ else value("stablehlo.convert", [operand], type_)


def compare(direction: str, kind: str, left: Value, right: Value, result: ir.Type) -> Value:
    """Compare elements of the kind ``SIGNED``, ``UNSIGNED`` or ``FLOAT``.

    The direction is ``EQ``, ``NE``, ``LT``, ``LE``, ``GT`` or ``GE``.
    """
    attributes = {
        "comparison_direction": parse_attribute(f"#stablehlo<comparison_direction {direction}>"),
        "compare_type": parse_attribute(f"#stablehlo<comparison_type {kind}>"),
    }
    return value("stablehlo.compare", [left, right], result, attributes)


def clamp(low: Value, operand: Value, high: Value) -> Value:
    """The elements of a tensor, but `low` and `high` (of its shape, or without axes) at most."""
    return value("stablehlo.clamp", [low, operand, high], operand.type)


# -- shapes ---------------------------------------------------------------------------------------


def dimension_size(operand: Value, axis: int) -> Value:
    """The size of an axis, an i32 without axes."""
    scalar = tensor_type([], ir.IntegerType.get_signless(32))
    dimension = {"dimension": integer(axis)}
    return value("stablehlo.get_dimension_size", [operand], scalar, dimension)


def dim_sizes(operand: Value) -> Value:
    """The shape of a ranked tensor as a tensor of i32, one entry for each axis."""
    i32 = ir.IntegerType.get_signless(32)
    rank = len(operand.type.shape)
    if operand.type.has_static_shape or not rank:
        return constant(np.array([int(n) for n in operand.type.shape], np.int32), i32)
    return concatenate([reshape(dimension_size(operand, axis), [1]) for axis in range(rank)], 0)


def broadcast(
    operand: Value, type_: ir.Type, axes: Sequence[int] = (), shape: Value | None = None
) -> Value:
    """Broadcast a tensor.

    Args:
        axes: where each of its dimensions is in the result. One of dynamic size is not repeated.
        shape: the shape of the result as a tensor, where `type_` is dynamic.
    """
    if operand.type == type_ and list(axes) == list(range(type_.rank)):
        return operand
    attributes = {"broadcast_dimensions": integers(axes)}
    if shape is None:
        return value("stablehlo.broadcast_in_dim", [operand], type_, attributes)
    whole = [axis for axis in range(operand.type.rank) if operand.type.is_dynamic_dim(axis)]
    if whole:
        attributes["known_nonexpanding_dimensions"] = integers(whole)
    return value("stablehlo.dynamic_broadcast_in_dim", [operand, shape], type_, attributes)


def reshape(operand: Value, shape: Sequence[int]) -> Value:
    """Give a tensor another static shape; nothing is written where it is the same."""
    type_ = tensor_type(shape, operand.type.element_type)
    return operand if operand.type == type_ else value("stablehlo.reshape", [operand], type_)


def transpose(operand: Value, order: Sequence[int]) -> Value:
    """Put axis ``order[i]`` of a tensor at place ``i``; nothing is written where they stay."""
    if list(order) == list(range(len(order))):
        return operand
    type_ = with_shape(operand.type, [int(operand.type.shape[axis]) for axis in order])
    return value("stablehlo.transpose", [operand], type_, {"permutation": integers(order)})


def slice_(
    operand: Value,
    starts: Sequence[int],
    limits: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Value:
    """The elements from `starts` to before `limits`; the operand itself if these are all."""
    steps = [1] * len(starts) if strides is None else strides
    if not any(starts) and set(steps) <= {1} and list(limits) == list(operand.type.shape):
        return operand
    shape = [
        -(-(high - low) // step) for low, high, step in zip(starts, limits, steps, strict=True)
    ]
    attributes = {
        "start_indices": integers(starts),
        "limit_indices": integers(limits),
        "strides": integers(steps),
    }
    return value("stablehlo.slice", [operand], with_shape(operand.type, shape), attributes)


def slice_at(operand: Value, index: Value) -> Value:
    """Slice of one element along the first axis, at a signed scalar index, in range."""
    sizes = [1, *(int(size) for size in operand.type.shape[1:])]
    return take_part(operand, _starts(operand, index), sizes)


def take_part(operand: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Extract a slice at signed scalar offsets in range, one for each axis."""
    type_ = tensor_type(list(sizes), operand.type.element_type)
    attributes = {"slice_sizes": integers(sizes)}
    return value("stablehlo.dynamic_slice", [operand, *starts], type_, attributes)


def put_slice(operand: Value, part: Value, index: Value) -> Value:
    """Replace a whole slice along the first axis at a signed scalar index, in range."""
    return put_part(operand, part, _starts(operand, index))


def put_part(operand: Value, part: Value, starts: Sequence[Value]) -> Value:
    """Replace a slice at signed scalar offsets in range, one for each axis."""
    return value("stablehlo.dynamic_update_slice", [operand, part, *starts], operand.type)


def reverse(operand: Value, axes: Sequence[int]) -> Value:
    """Reverse the elements along axes."""
    attributes = {"dimensions": integers(axes)}
    return value("stablehlo.reverse", [operand], operand.type, attributes)


def _starts(operand: Value, index: Value) -> list[Value]:
    zeros = [zero_of(index.type.element_type) for _ in operand.type.shape[1:]]
    return [index, *zeros]


def pad(
    operand: Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
    fill: Value | None = None,
) -> Value:
    """Add elements, by default zeros, before, after and between those of a tensor.

    Args:
        low, high: elements before and after, along each axis; negative numbers crop. Dynamic
            sizes must not change.
        interior: elements between each two.
    """
    type_ = operand.type
    between = [0] * len(low) if interior is None else interior
    shape = [
        size if is_dynamic(size) else max((size - 1) * (step + 1) + 1, 0) + before + after
        for size, before, after, step in zip(map(int, type_.shape), low, high, between, strict=True)
    ]
    attributes = {
        "edge_padding_low": integers(low),
        "edge_padding_high": integers(high),
        "interior_padding": integers(between),
    }
    filling = zero_of(type_.element_type) if fill is None else fill
    return value("stablehlo.pad", [operand, filling], with_shape(type_, shape), attributes)


def concatenate(operands: Sequence[Value], axis: int) -> Value:
    """Join tensors of static shapes along an axis."""
    first = operands[0].type
    shape = [int(n) for n in first.shape]
    shape[axis] = sum(int(operand.type.shape[axis]) for operand in operands)
    dimension = {"dimension": integer(axis)}
    return value("stablehlo.concatenate", operands, with_shape(first, shape), dimension)


def gather(
    operand: Value,
    indices: Value,
    result: ir.Type,
    sizes: Sequence[int],
    *,
    offsets: Sequence[int],
    axis: int,
    index_axis: int,
) -> Value:
    """Take slices at positions along one axis.

    Args:
        sizes: the sizes of a slice, 1 along `axis`.
        offsets: where the other axes of a slice are in the result.
        axis: the axis that indices are of.
        index_axis: the axis of `indices` that holds components; its rank where it has none.
    """
    of_slices = f"offset_dims = [{', '.join(map(str, offsets))}], " if offsets else ""
    numbers = (
        f"#stablehlo.gather<{of_slices}collapsed_slice_dims = [{axis}], "
        f"start_index_map = [{axis}], index_vector_dim = {index_axis}>"
    )
    attributes = {
        "dimension_numbers": parse_attribute(numbers),
        "slice_sizes": integers(sizes),
        "indices_are_sorted": ir.BoolAttr.get(False),
    }
    return value("stablehlo.gather", [operand, indices], result, attributes)


def take(operand: Value, indices: Value, axis: int = 0) -> Value:
    """Return ``np.take`` along an axis, for indices in range."""
    type_, positions = operand.type, indices.type
    operand_shape = [int(size) for size in type_.shape]
    shape = [*operand_shape[:axis], *positions.shape, *operand_shape[axis + 1 :]]
    rank = len(positions.shape)
    result = tensor_type(shape, type_.element_type, positions.encoding if not axis else None)
    sizes = [1 if other == axis else size for other, size in enumerate(operand_shape)]
    offsets = [*range(axis), *range(axis + rank, len(shape))]
    return gather(operand, indices, result, sizes, offsets=offsets, axis=axis, index_axis=rank)


def barrier(operand: Value) -> Value:
    """Return the operand; its producers are not fused with its users."""
    return value("stablehlo.optimization_barrier", [operand], operand.type)


def scatter(operand: Value, indices: Value, updates: Value, function: str) -> Value:
    """Combine updates into rows, or elements, with one operation on one element type.

    Args:
        indices: the row of each update, one axis; or an index of as many first axes of the operand
            as an update has not, along a second axis.
        updates: rows or elements, along the first axis.
        function: the operation of StableHLO, or ``set`` to replace the row.
    """
    windows = list(range(1, updates.type.rank))
    of_windows = f"update_window_dims = {windows}, " if windows else ""
    axes = list(range(operand.type.rank - len(windows)))
    numbers = (
        f"#stablehlo.scatter<{of_windows}inserted_window_dims = {axes}, "
        f"scatter_dims_to_operand_dims = {axes}, index_vector_dim = 1>"
    )
    attributes = {"scatter_dimension_numbers": parse_attribute(numbers)}
    scattered = create(
        "stablehlo.scatter", [operand, indices, updates], [operand.type], attributes, regions=1
    )
    return _combined_by(function, scattered)


# -- reductions -----------------------------------------------------------------------------------


def reduce(
    operand: Value,
    axes: Sequence[int],
    function: str = "add",
    start: Value | None = None,
    result: ir.Type | None = None,
) -> Value:
    """Reduce a tensor over axes with one operation.

    Args:
        function: the operation of StableHLO that combines two elements.
        start: the initial value, a scalar tensor; zero by default.
        result: the type of the result, if it has an encoding.
    """
    type_ = operand.type
    element = type_.element_type
    sizes = [int(n) for axis, n in enumerate(type_.shape) if axis not in axes]
    operands = [operand, zero_of(element) if start is None else start]
    results = [tensor_type(sizes, element) if result is None else result]
    attributes = {"dimensions": integers(axes)}
    return _combined_by(
        function, create("stablehlo.reduce", operands, results, attributes, regions=1)
    )


def reduce_window(
    operand: Value,
    shape: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    function: str,
    start: Value,
) -> Value:
    """Reduce windows of a tensor, without padding; `function` as in `reduce`."""
    result = tensor_type(shape, operand.type.element_type)
    attributes = {"window_dimensions": integers(sizes), "window_strides": integers(strides)}
    return _combined_by(
        function,
        create("stablehlo.reduce_window", [operand, start], [result], attributes, regions=1),
    )


def _combined_by(function: str, op: Operation) -> Value:
    """The result of an operation whose body is one operation; the later element for ``set``."""
    scalar = tensor_type([], op.operands[0].type.element_type)
    fill_body(op.regions[0], [scalar, scalar], lambda *pair: [
        pair[1] if function == "set" else value(f"stablehlo.{function}", pair, scalar)
    ])  # fmt: skip
    return op.results[0]


def fill_body(
    region: ir.Region, types: Sequence[ir.Type], body: Callable[..., Sequence[Value]]
) -> ir.Block:
    """Give a region a block that returns what `body` makes of its arguments; return the block."""
    block = region.blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        create("stablehlo.return", body(*block.arguments))
    return block


# -- contractions ---------------------------------------------------------------------------------


def dot_general(
    left: Value,
    right: Value,
    result: ir.Type,
    contracting: Sequence[Sequence[int]],
    batching: Sequence[Sequence[int]] = ((), ()),
) -> Value:
    """Contract two tensors over axes of both, which `batching` ones have in common."""
    numbers = (
        f"#stablehlo.dot<lhs_batching_dimensions = {list(batching[0])}, "
        f"rhs_batching_dimensions = {list(batching[1])}, "
        f"lhs_contracting_dimensions = {list(contracting[0])}, "
        f"rhs_contracting_dimensions = {list(contracting[1])}>"
    )
    attributes = {"dot_dimension_numbers": parse_attribute(numbers)}
    return value("stablehlo.dot_general", [left, right], result, attributes)


def convolution(
    left: Value,
    right: Value,
    result: ir.Type,
    layout: str,
    attributes: Mapping[str, ir.Attribute],
    groups: int = 1,
) -> Value:
    """A convolution of a layout as MLIR writes it, ``[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]``."""
    numbers = {
        "dimension_numbers": parse_attribute(f"#stablehlo.conv<{layout}>"),
        "feature_group_count": integer(groups),
        "batch_group_count": integer(1),
    }
    return value("stablehlo.convolution", [left, right], result, {**attributes, **numbers})
