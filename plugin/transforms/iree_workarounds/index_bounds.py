"""``gather``, ``scatter`` and slices whose start indices stay inside their operands.

Symptom (all targets): out-of-bounds indices of a ``gather`` read arbitrary memory, those of a
``scatter`` write to it or end the process; start indices of fewer than 32 bits are taken for
unsigned; IREE crashes on batched index vectors that are not last, and on slices of tensors of rank
0.
Cause: IREE 3.13 lowers a ``gather`` to a selection of rows, and a ``scatter`` to stores, without
clamps.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py (`order_indices`,
`widen_starts`).

* ``gather``: each start index is clamped, so that its slice is inside the operand.
* ``scatter``: an element of an update outside the inputs is dropped, the others of its window are
  not. Each scattered dimension is padded by its window size ``w`` at both ends, ``w`` is added to
  the index after a clamp to ``-w`` and the dimension size, and the padding is cut off.

Source: StableHLO specification, ``gather`` and ``scatter``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core._mlir import stablehlo as bindings
from ...dialects.dense import array_of_dense
from ...dialects.quant import element_type
from ...emit import stablehlo
from ...emit.operation import element_of, is_dynamic
from ...numerics.array_functions import is_known
from ...numerics.element_types import AnyArray, Array
from ..base import NoMatch, Replacement, producer_of
from .loop_nests import is_static


def clamp_gather(op: Operation) -> NoMatch | None:
    """Clamp the start indices of a ``gather``, in place."""
    numbers = bindings.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand, indices = op.operands[0], op.operands[1]
    mapped, vector = list(numbers.start_index_map), int(numbers.index_vector_dim)
    sizes = [int(size) for size in op.attributes["slice_sizes"]]
    if not mapped:
        return NoMatch("takes no indices")
    if all(not operand.type.is_dynamic_dim(axis) for axis in mapped):
        limits = [int(operand.type.shape[axis]) - sizes[axis] for axis in mapped]
        if _are_in_bounds(indices, limits, vector):
            return NoMatch("has constant indices in bounds")
    indices = as_signed(indices)
    element = element_type(indices.type)
    upper = [_axis_size(operand, axis, element) - sizes[axis] for axis in mapped]
    if _are_equal(upper):  # bounds without axes need no broadcast
        low, high = (_scalar_value(bound, element) for bound in (0, upper[0]))
    else:
        low, high = (
            _by_component(indices, bounds, vector).value for bounds in ([0] * len(mapped), upper)
        )
    op.operands[1] = stablehlo.clamp(low, indices, high)
    return None


def order_indices(op: Operation) -> NoMatch | None:
    """Move the index vectors of a batched ``gather`` to the last axis, in place."""
    numbers = bindings.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    vector, indices = int(numbers.index_vector_dim), op.operands[1]
    last = indices.type.rank - 1
    batching = list(numbers.start_indices_batching_dims)
    if vector >= last or not batching:
        return NoMatch("has its index vectors last, or no batches")
    batches = [axis for axis in range(last + 1) if axis != vector]
    op.operands[1] = stablehlo.transpose(indices, [*batches, vector])
    op.attributes["dimension_numbers"] = bindings.GatherDimensionNumbers.get(
        list(numbers.offset_dims),
        list(numbers.collapsed_slice_dims),
        list(numbers.operand_batching_dims),
        [axis - (axis > vector) for axis in batching],
        list(numbers.start_index_map),
        last,
    )
    return None


def pad_scatter(op: Operation) -> Replacement:
    """Rewrite a ``scatter`` with padded inputs."""
    count = len(op.operands) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if 0 in inputs[0].type.shape or 0 in updates[0].type.shape:
        return inputs
    if not is_static(*operands):
        return NoMatch("has a dynamic shape")
    numbers = bindings.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    scattered = list(numbers.scattered_dims_to_operand_dims)
    if not scattered:
        return NoMatch("takes no indices")
    if any(not isinstance(element_type(v.type), (ir.IntegerType, ir.FloatType)) for v in inputs):
        return NoMatch("has elements without a zero")
    shape = [int(size) for size in inputs[0].type.shape]
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    sizes = iter(int(updates[0].type.shape[axis]) for axis in numbers.update_window_dims)
    windows = [1 if axis in single else next(sizes) for axis in range(len(shape))]
    vector = int(numbers.index_vector_dim)
    limits = [shape[axis] - windows[axis] for axis in scattered]
    if _are_in_bounds(indices, limits, vector):
        return NoMatch("has constant indices in bounds")
    indices = as_signed(indices)
    low, high, shift = (
        _by_component(indices, [bound[axis] for axis in scattered], vector)
        for bound in ([-window for window in windows], shape, windows)
    )
    moved = emit.tensor(stablehlo.clamp(low.value, indices, high.value)) + shift
    margin = [windows[axis] if axis in scattered else 0 for axis in range(len(shape))]
    padded = [stablehlo.pad(value, margin, margin) for value in inputs]
    types = [value.type for value in padded]
    created = emit.like(op, [*padded, moved.value, *updates], types, take_bodies=True)
    ends = [low + size for low, size in zip(margin, shape, strict=True)]
    return [stablehlo.slice_(value, margin, ends) for value in created.results]


def widen_starts(op: Operation) -> Replacement:
    """Widen start indices of ``dynamic_slice`` and ``dynamic_update_slice`` to 32 bits or more.

    Without start indices the operation is replaced: a slice of a tensor of rank 0 is that tensor,
    and an update all of it.
    """
    first = 1 if op.name == "stablehlo.dynamic_slice" else 2
    if len(op.operands) == first:
        return op.operands[first - 1]
    changed = False
    for number in range(first, len(op.operands)):
        element = element_type(op.operands[number].type)
        if isinstance(element, ir.IntegerType) and element.width < 32:
            op.operands[number] = as_signed(op.operands[number])
            changed = True
    return None if changed else NoMatch("has start indices of 32 bits or more")


# -- pieces ---------------------------------------------------------------------------------------


def _are_in_bounds(indices: Value, limits: list[int], vector: int) -> bool:
    """True for indices with constant bounds that are in bounds."""
    bounds = _constant_bounds(indices)
    if bounds is None:
        return False
    for numbers, lowest in zip(bounds, (True, False), strict=True):
        is_shared = numbers.ndim <= vector  # one component, or a scalar for every component
        components = [numbers] * len(limits) if is_shared else np.moveaxis(numbers, vector, 0)
        for component, limit in zip(components, limits, strict=True):
            if component.size and (component.min() < 0 if lowest else component.max() > limit):
                return False
    return True


def _constant_bounds(value: Value) -> tuple[Array, Array] | None:
    """Constant bounds of constants, clamps and sums; None for unsigned or other computed values."""
    operation, element = producer_of(value), element_type(value.type)
    if operation is None or not isinstance(element, ir.IntegerType):
        return None
    if operation.name == "stablehlo.constant" and not element.is_unsigned:
        numbers = array_of_dense(operation.attributes["value"])
        return numbers, numbers
    if operation.name == "stablehlo.clamp":
        low, high = _constant_bounds(operation.operands[0]), _constant_bounds(operation.operands[2])
        return None if low is None or high is None else (low[0], high[1])
    if operation.name == "stablehlo.add":
        left, right = map(_constant_bounds, operation.operands)
        if left is None or right is None:
            return None
        return left[0] + right[0], left[1] + right[1]
    return None


def as_signed(indices: Value) -> Value:
    """Convert indices to signed integers of 32 or 64 bits; values over 2**62 become 2**62."""
    element = element_type(indices.type)
    i32, i64 = (ir.IntegerType.get_signless(width) for width in (32, 64))
    if not isinstance(element, ir.IntegerType):  # index
        return stablehlo.convert(indices, i64)
    if element.is_unsigned and element.width == 64:
        most = emit.Tensors(indices).broadcast(_scalar_value(1 << 62, element))
        indices = emit.value("stablehlo.minimum", [indices, most], indices.type)
    elif not element.is_unsigned and element.width >= 32:
        return indices
    return stablehlo.convert(indices, i64 if element.width >= 32 else i32)


def _axis_size(value: Value, axis: int, element: ir.Type) -> AnyArray:
    """The size of an axis: a number, or a tensor of rank 0."""
    size = int(value.type.shape[axis])
    if not is_dynamic(size):
        return size
    return emit.tensor(stablehlo.convert(stablehlo.dimension_size(value, axis), element))


def _scalar_value(number: AnyArray, element: ir.Type) -> Value:
    """A number, or a tensor of rank 0, as a value of the program."""
    return stablehlo.constant(number, element) if is_known(number) else number.value


def _are_equal(numbers: Sequence[AnyArray]) -> bool:
    """True for one number, and for several constant ones that are equal."""
    return len(numbers) == 1 or (all(map(is_known, numbers)) and len(set(numbers)) == 1)


def _by_component(indices: Value, numbers: Sequence[AnyArray], vector: int) -> emit.ArrayLike:
    """A tensor shaped like the indices, with a number for each of their components."""
    form, element = emit.Tensors(indices), element_type(indices.type)
    if all(map(is_known, numbers)):
        axes = [len(numbers) if axis == vector else 1 for axis in range(form.rank)]
        by_axis = numbers[0] if _are_equal(numbers) else np.array(numbers).reshape(axes)
        return form.known(by_axis, element_of(element))
    if len(numbers) == 1:
        return form.emitted(form.broadcast(_scalar_value(numbers[0], element)))
    entries = [stablehlo.reshape(_scalar_value(number, element), [1]) for number in numbers]
    return form.emitted(form.broadcast(stablehlo.concatenate(entries, 0), [vector]))
