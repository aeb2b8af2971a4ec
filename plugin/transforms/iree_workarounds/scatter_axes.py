"""``scatter`` as IREE takes it: rows of updates at indices of the first axes of the inputs.

Symptom: IREE refuses windows that extend along a scattered axis, or along another axis only in
part, input axes that are neither scattered nor in a window, several scattered axes that are not the
first ones, and batching dimensions (all targets).
Cause: IREE 3.13 lowers a ``scatter`` to ``iree_linalg_ext.scatter``, whose updates are whole
slices.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

An index can name each of the affected elements. So an axis of the inputs stays in the window only
if the window covers it. The other axes come first, and each of their updates is one more row, whose
index along an axis is the sum of

* the component of the index, if the axis is scattered,
* the position in the batch, if it is a batching dimension,
* the position in the window, if it has one.

Source: StableHLO specification, ``scatter``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core._mlir import stablehlo as bindings
from ...emit import stablehlo
from ...emit.operation import parse_attribute, tensor_type
from ..base import NoMatch, Replacement
from .index_bounds import as_signed
from .loop_nests import is_static


def scatter_rows(op: Operation) -> Replacement:
    """Rewrite a ``scatter`` that IREE refuses as one of rows."""
    numbers = bindings.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    count = len(op.operands) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if not is_static(*operands):
        return NoMatch("has a dynamic shape")
    if 0 in inputs[0].type.shape or 0 in updates[0].type.shape:
        return NoMatch("updates nothing")
    shape, update_shape = ([int(n) for n in v.type.shape] for v in (inputs[0], updates[0]))
    scattered = list(numbers.scattered_dims_to_operand_dims)
    batching = list(numbers.input_batching_dims)
    single = {*numbers.inserted_window_dims, *batching}
    in_window = [axis for axis in range(len(shape)) if axis not in single]
    windows = dict(zip(in_window, numbers.update_window_dims, strict=True))
    whole = [
        axis
        for axis, dim in windows.items()
        if axis not in scattered and update_shape[dim] == shape[axis]
    ]
    unscattered = [axis for axis in range(len(shape)) if axis not in (*scattered, *whole)]
    is_first = len(scattered) == 1 or scattered == list(range(len(scattered)))
    if is_first and not unscattered and single == set(scattered):
        return NoMatch("has rows already, at indices of one axis or the first ones")
    indexed = [*scattered, *unscattered]
    batches = [axis for axis in range(len(update_shape)) if axis not in windows.values()]
    spread = [windows[axis] for axis in indexed if axis in windows]
    rows = [update_shape[axis] for axis in (*batches, *spread)]
    whole_dims = [windows[axis] for axis in whole]

    vector = int(numbers.index_vector_dim)
    components = _index_components(as_signed(indices), vector, len(scattered))
    row_axes: dict[int, list[int]] = {axis: [] for axis in indexed}
    for axis, dim in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        row_axes[axis].append(dim - (dim > vector))
    for position, axis in enumerate((a for a in indexed if a in windows), len(batches)):
        row_axes[axis].append(position)
    element = components[0].type.element_type if components else ir.IntegerType.get_signless(32)
    along = dict(zip(scattered, components, strict=True))
    columns = [_index_column(rows, element, along.get(axis), row_axes[axis]) for axis in indexed]

    total = math.prod(rows)
    order = [*indexed, *whole]
    transposed = [stablehlo.transpose(value, order) for value in inputs]
    flat = [
        stablehlo.reshape(
            stablehlo.transpose(value, [*batches, *spread, *whole_dims]),
            [total, *(update_shape[axis] for axis in whole_dims)],
        )
        for value in updates
    ]
    attribute = parse_attribute(
        f"#stablehlo.scatter<update_window_dims = {list(range(1, len(whole_dims) + 1))}, "
        f"inserted_window_dims = {list(range(len(indexed)))}, "
        f"scatter_dims_to_operand_dims = {list(range(len(indexed)))}, index_vector_dim = 1>"
    )
    created = emit.like(
        op,
        [*transposed, stablehlo.concatenate(columns, 1), *flat],
        [value.type for value in transposed],
        {"scatter_dimension_numbers": attribute, "indices_are_sorted": ir.BoolAttr.get(False)},
        take_bodies=True,
    )
    back = [order.index(axis) for axis in range(len(shape))]
    return [stablehlo.transpose(value, back) for value in created.results]


def _index_components(indices: Value, vector: int, count: int) -> list[Value]:
    """The components of the indices, each a tensor of the batches."""
    shape = [int(size) for size in indices.type.shape]
    if vector == len(shape):
        return [indices]
    batches = shape[:vector] + shape[vector + 1 :]
    components = []
    for number in range(count):
        low = [number if axis == vector else 0 for axis in range(len(shape))]
        high = [number + 1 if axis == vector else size for axis, size in enumerate(shape)]
        components.append(stablehlo.reshape(stablehlo.slice_(indices, low, high), batches))
    return components


def _index_column(
    rows: Sequence[int], element: ir.Type, component: Value | None, axes: Sequence[int]
) -> Value:
    """The indices along an axis, one for each row, as a column."""
    type_ = tensor_type(rows, element)
    terms = [stablehlo.iota(type_, axis) for axis in axes]
    if component is not None:
        terms.insert(0, stablehlo.broadcast(component, type_, list(range(component.type.rank))))
    total = terms[0] if terms else stablehlo.broadcast(stablehlo.zero_of(element), type_)
    for term in terms[1:]:
        total = emit.value("stablehlo.add", [total, term], type_)
    return stablehlo.reshape(total, [math.prod(rows), 1])
