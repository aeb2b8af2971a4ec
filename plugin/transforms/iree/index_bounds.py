"""Gathers and scatters that stay inside their operands, as the specification says.

* ``gather``: each start index is clamped, so that its slice is inside the operand.
* ``scatter``: an element of an update that falls outside the inputs is left out, the others of its
  window are not. Each scattered dimension gets room for a window of ``w`` elements before and after
  it, ``w`` is added to the index after a clamp to ``-w`` and the extent, and the room is cut off.

Source: StableHLO specification, ``gather`` and ``scatter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._mlir import ir, stablehlo
from ...dialects.dense import array_of_dense, dense_of_array
from ...dialects.quant import element_type
from ..base import Builder, NoMatch
from ..tensor_builder import TensorBuilder

__all__ = ["clamp_gather", "contain_scatter", "widen_starts"]

_CLAMP = "stablehlo.clamp"


def clamp_gather(op: Any) -> NoMatch | None:
    """Clamp the start indices of a ``gather``, in place."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand, indices = op.operands[0], op.operands[1]
    mapped, vector = list(numbers.start_index_map), int(numbers.index_vector_dim)
    sizes = [int(size) for size in op.attributes["slice_sizes"]]
    if not mapped:
        return NoMatch("takes no indices")
    known = all(not operand.type.is_dynamic_dim(axis) for axis in mapped)
    if known:
        limits = [int(operand.type.shape[axis]) - sizes[axis] for axis in mapped]
        if _are_within(indices, limits, vector):
            return NoMatch("has indices that are known to be in bounds")
    indices = _as_signed(indices)
    b = TensorBuilder(indices)
    upper: list[Any] = []
    for axis in mapped:
        extent = _extent(b, operand, axis)
        if isinstance(extent, int):
            upper.append(extent - sizes[axis])
        else:
            size = _scalar(b, sizes[axis], extent.type)
            upper.append(Builder.op(b, "stablehlo.subtract", [extent, size], extent.type))
    if len(set(upper)) == 1:  # bounds of rank 0 need no broadcast
        scalar = ir.RankedTensorType.get([], element_type(indices.type))
        limit = upper[0]
        bounds = [
            _scalar(b, 0, scalar),
            _scalar(b, limit, scalar) if isinstance(limit, int) else limit,
        ]
    else:
        bounds = [_entries(b, values, vector) for values in ([0] * len(mapped), upper)]
    op.operands[1] = b.op(_CLAMP, [bounds[0], indices, bounds[1]], indices.type)
    return None


def contain_scatter(op: Any) -> list[Any] | NoMatch:
    """Write a ``scatter`` with room around its inputs; return the new results."""
    count = len(op.operands) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if _is_empty(inputs[0].type) or _is_empty(updates[0].type):
        return inputs
    if not all(value.type.has_static_shape for value in operands):
        return NoMatch("has a dynamic shape")
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    scattered = list(numbers.scattered_dims_to_operand_dims)
    windows = _window_sizes(numbers, updates[0].type, len(inputs[0].type.shape))
    vector = int(numbers.index_vector_dim)
    room = {axis: windows[axis] for axis in scattered}
    if not room:
        return NoMatch("takes no indices")
    if any(not isinstance(element_type(v.type), (ir.IntegerType, ir.FloatType)) for v in inputs):
        return NoMatch("has elements without a zero")
    limits = [int(inputs[0].type.shape[axis]) - room[axis] for axis in scattered]
    if _are_within(indices, limits, vector):
        return NoMatch("has indices that are known to be in bounds")
    indices = _as_signed(indices)
    b = TensorBuilder(indices)
    low = _entries(b, [-room[axis] for axis in scattered], vector)
    high = _entries(b, [_extent(b, inputs[0], axis) for axis in scattered], vector)
    shift = _entries(b, [room[axis] for axis in scattered], vector)
    moved = b.op(_CLAMP, [low, indices, high], indices.type)
    moved = b.op("stablehlo.add", [moved, shift], indices.type)
    padded = [_pad(b, value, room) for value in inputs]
    created = ir.Operation.create(
        "stablehlo.scatter",
        results=[value.type for value in padded],
        operands=[*padded, moved, *updates],
        attributes={name: op.attributes[name] for name in op.attributes},
        regions=1,
    )
    op.regions[0].blocks[0].append_to(created.regions[0])
    return [
        _cut(b, value, source, room) for value, source in zip(created.results, inputs, strict=True)
    ]


def widen_starts(op: Any) -> NoMatch | None:
    """Give ``dynamic_slice`` and ``dynamic_update_slice`` start indices of 32 bits or more.

    IREE takes narrower ones for unsigned.
    """
    first = 1 if op.name == "stablehlo.dynamic_slice" else 2
    changed = False
    for number in range(first, len(op.operands)):
        element = element_type(op.operands[number].type)
        if isinstance(element, ir.IntegerType) and element.width < 32:
            op.operands[number] = _as_signed(op.operands[number])
            changed = True
    return None if changed else NoMatch("has start indices of 32 bits or more")


# -- pieces ---------------------------------------------------------------------------------------


def _is_empty(type_: Any) -> bool:
    return any(not type_.is_dynamic_dim(a) and int(n) == 0 for a, n in enumerate(type_.shape))


def _window_sizes(numbers: Any, updates: Any, rank: int) -> list[int]:
    """The extent of an update along each axis of the inputs."""
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    sizes = iter(int(updates.shape[axis]) for axis in numbers.update_window_dims)
    return [1 if axis in single else next(sizes) for axis in range(rank)]


def _are_within(indices: Any, limits: list[int], vector: int) -> bool:
    """True for indices with constant bounds that are in bounds."""
    bounds = _bounds(indices)
    if bounds is None:
        return False
    for numbers, lowest in zip(bounds, (True, False), strict=True):
        whole = numbers.ndim <= vector  # one component, or a scalar that is every component
        parts = [numbers] * len(limits) if whole else list(np.moveaxis(numbers, vector, 0))
        for part, limit in zip(parts, limits, strict=True):
            if part.size and (part.min() < 0 if lowest else part.max() > limit):
                return False
    return True


def _bounds(value: Any) -> tuple[Any, Any] | None:
    """Constants that a tensor of integers is between: of constants, clamps, and their sums."""
    owner, element = value.owner, element_type(value.type)
    if isinstance(owner, ir.Block) or not isinstance(element, ir.IntegerType):
        return None
    operation = owner.operation
    if operation.name == "stablehlo.constant" and not element.is_unsigned:
        numbers = array_of_dense(operation.attributes["value"])
        return numbers, numbers
    if operation.name == _CLAMP:
        low, high = _bounds(operation.operands[0]), _bounds(operation.operands[2])
        return None if low is None or high is None else (low[0], high[1])
    if operation.name == "stablehlo.add":
        left, right = _bounds(operation.operands[0]), _bounds(operation.operands[1])
        if left is None or right is None:
            return None
        return left[0] + right[0], left[1] + right[1]
    return None


def _as_signed(indices: Any) -> Any:
    """Indices as signed integers of 32 or 64 bits, of the same value (or 2**62, if it is more)."""
    element, b = element_type(indices.type), TensorBuilder(indices)
    if not isinstance(element, ir.IntegerType):  # index
        return b.op("stablehlo.convert", [indices], b.i64)
    if element.is_unsigned and element.width == 64:
        most = b.constant(1 << 62, element)
        indices = b.op("stablehlo.minimum", [indices, most], element)
    elif not element.is_unsigned and element.width >= 32:
        return indices
    wide = b.i64 if element.width >= 32 else b.i32
    return b.op("stablehlo.convert", [indices], wide)


def _extent(b: TensorBuilder, value: Any, axis: int) -> Any:
    """The extent of an axis: an int, or a scalar tensor of the builder's element type."""
    if not value.type.is_dynamic_dim(axis):
        return int(value.type.shape[axis])
    dimension = {"dimension": ir.IntegerAttr.get(b.i64, axis)}
    size = Builder.op(
        b,
        "stablehlo.get_dimension_size",
        [value],
        ir.RankedTensorType.get([], b.i32),
        dimension,
    )
    wanted = ir.RankedTensorType.get([], element_type(b.like.type))
    return size if size.type == wanted else Builder.op(b, "stablehlo.convert", [size], wanted)


def _scalar(b: TensorBuilder, value: int, type_: Any) -> Any:
    dense = dense_of_array(np.array(value, np.int64), type_.element_type)
    return b.dense(dense)


def _entries(b: TensorBuilder, values: Sequence[Any], vector: int) -> Any:
    """A tensor of the shape of the indices with one value for each of their components."""
    element = element_type(b.like.type)
    if all(isinstance(value, int) for value in values):
        if len(set(values)) == 1:
            return b.constant(values[0], element)
        form = [1] * b.rank
        form[vector] = len(values)
        return b.grid(np.array(values).reshape(form), element)
    scalar, one = ir.RankedTensorType.get([], element), ir.RankedTensorType.get([1], element)
    tensors = [_scalar(b, v, scalar) if isinstance(v, int) else v for v in values]
    if len(tensors) == 1:
        return b.broadcast(tensors[0], [])
    parts = [Builder.op(b, "stablehlo.reshape", [tensor], one) for tensor in tensors]
    whole = ir.RankedTensorType.get([len(parts)], element)
    zero = {"dimension": ir.IntegerAttr.get(b.i64, 0)}
    return b.broadcast(Builder.op(b, "stablehlo.concatenate", parts, whole, zero), [vector])


def _pad(b: TensorBuilder, value: Any, room: dict[int, int]) -> Any:
    """Add elements at both ends of some axes."""
    rank, element = len(value.type.shape), value.type.element_type
    ends = ir.DenseI64ArrayAttr.get([room.get(axis, 0) for axis in range(rank)])
    extents = [int(n) + 2 * room.get(axis, 0) for axis, n in enumerate(value.type.shape)]
    scalar = ir.RankedTensorType.get([], element)
    is_integer = isinstance(element, ir.IntegerType)
    zero = ir.IntegerAttr.get(element, 0) if is_integer else ir.FloatAttr.get(element, 0.0)
    constant = b.dense(ir.DenseElementsAttr.get_splat(scalar, zero))
    attributes = {
        "edge_padding_low": ends,
        "edge_padding_high": ends,
        "interior_padding": ir.DenseI64ArrayAttr.get([0] * rank),
    }
    type_ = ir.RankedTensorType.get(extents, element, value.type.encoding)
    return Builder.op(b, "stablehlo.pad", [value, constant], type_, attributes)


def _cut(b: TensorBuilder, value: Any, source: Any, room: dict[int, int]) -> Any:
    """What `_pad` has added to `source`, taken from a value of that shape."""
    type_ = source.type
    starts = [room.get(axis, 0) for axis in range(len(type_.shape))]
    limits = [start + int(n) for start, n in zip(starts, type_.shape, strict=True)]
    attributes = {
        "start_indices": ir.DenseI64ArrayAttr.get(starts),
        "limit_indices": ir.DenseI64ArrayAttr.get(limits),
        "strides": ir.DenseI64ArrayAttr.get([1] * len(starts)),
    }
    return Builder.op(b, "stablehlo.slice", [value], type_, attributes)
