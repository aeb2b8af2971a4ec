"""``scatter`` as IREE takes it: rows of updates at indices of the first axes of the inputs.

Symptom: IREE refuses windows that extend along a scattered axis, or along another axis only in
part, input axes that are neither scattered nor in a window, several scattered axes that are not the
first ones, and batching dimensions (all targets). It transposes updates whose windows are not at
the end in the dispatch of the ``scatter``, on the stack: more than 32 KiB are refused (llvm-cpu).
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
from dataclasses import dataclass

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
    count = len(op.operands) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if not is_static(*operands):
        return NoMatch("has a dynamic shape")
    if 0 in inputs[0].type.shape or 0 in updates[0].type.shape:
        return NoMatch("updates nothing")
    axes = _ScatterAxes.of(op, inputs[0], updates[0])
    if axes.are_rows:
        return NoMatch("has rows already, at indices of one axis or the first ones")
    columns = _index_columns(axes, as_signed(indices))
    transposed = [stablehlo.transpose(value, axes.order) for value in inputs]
    rows = [
        stablehlo.reshape(
            stablehlo.transpose(value, axes.update_order),
            [math.prod(axes.row_sizes), *axes.slice_sizes],
        )
        for value in updates
    ]
    indexed = list(range(len(axes.indexed)))
    attribute = parse_attribute(
        f"#stablehlo.scatter<update_window_dims = {list(range(1, len(axes.whole) + 1))}, "
        f"inserted_window_dims = {indexed}, "
        f"scatter_dims_to_operand_dims = {indexed}, index_vector_dim = 1>"
    )
    created = emit.like(
        op,
        [*transposed, stablehlo.concatenate(columns, 1), *rows],
        [value.type for value in transposed],
        {"scatter_dimension_numbers": attribute, "indices_are_sorted": ir.BoolAttr.get(False)},
        take_bodies=True,
    )
    back = [axes.order.index(axis) for axis in range(len(axes.order))]
    return [stablehlo.transpose(value, back) for value in created.results]


@dataclass(frozen=True)
class _ScatterAxes:
    """The axes of the inputs of a ``scatter``, and of its updates.

    Attributes:
        numbers: the dimension numbers of the operation.
        update_sizes: the sizes of the updates.
        windows: the axis of the updates by axis of the inputs, for those that windows have.
        indexed: axes of the inputs that are indexed in the result: the scattered ones first.
        whole: the other axes of the inputs, which windows cover.
    """

    numbers: bindings.ScatterDimensionNumbers
    update_sizes: list[int]
    windows: dict[int, int]
    indexed: list[int]
    whole: list[int]

    @classmethod
    def of(cls, op: Operation, input_: Value, update: Value) -> _ScatterAxes:
        """The axes of an operation, given its first input and updates."""
        numbers = bindings.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        sizes, update_sizes = ([int(n) for n in v.type.shape] for v in (input_, update))
        scattered = list(numbers.scattered_dims_to_operand_dims)
        without_window = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
        in_window = [axis for axis in range(len(sizes)) if axis not in without_window]
        windows = dict(zip(in_window, numbers.update_window_dims, strict=True))
        whole = [
            axis
            for axis, dim in windows.items()
            if axis not in scattered and update_sizes[dim] == sizes[axis]
        ]
        unscattered = [axis for axis in range(len(sizes)) if axis not in (*scattered, *whole)]
        return cls(numbers, update_sizes, windows, [*scattered, *unscattered], whole)

    @property
    def scattered(self) -> list[int]:
        """Axes of the inputs that the components of an index are for."""
        return list(self.numbers.scattered_dims_to_operand_dims)

    @property
    def are_rows(self) -> bool:
        """True for the form that IREE takes, and whose updates it does not transpose."""
        scattered = self.scattered
        without_window = {*self.numbers.inserted_window_dims, *self.numbers.input_batching_dims}
        first_of_window = len(self.update_sizes) - len(self.windows)
        return (
            scattered == list(range(len(scattered)))
            and self.indexed == scattered
            and without_window == set(scattered)
            and all(axis >= first_of_window for axis in self.windows.values())
        )

    @property
    def order(self) -> list[int]:
        """The axes of the inputs in the order of the result."""
        return [*self.indexed, *self.whole]

    @property
    def batches(self) -> list[int]:
        """The axes of the updates that are those of the indices."""
        axes = range(len(self.update_sizes))
        return [axis for axis in axes if axis not in self.windows.values()]

    @property
    def row_dims(self) -> list[int]:
        """The axes of the updates that become the axis of rows."""
        return [*self.batches, *(self.windows[a] for a in self.indexed if a in self.windows)]

    @property
    def row_sizes(self) -> list[int]:
        """The sizes of `row_dims`."""
        return [self.update_sizes[dim] for dim in self.row_dims]

    @property
    def update_order(self) -> list[int]:
        """The axes of the updates, those of rows first."""
        return [*self.row_dims, *(self.windows[axis] for axis in self.whole)]

    @property
    def slice_sizes(self) -> list[int]:
        """The sizes of a row of updates."""
        return [self.update_sizes[self.windows[axis]] for axis in self.whole]


def _index_columns(axes: _ScatterAxes, indices: Value) -> list[Value]:
    """The indices of the rows along each indexed axis."""
    vector = int(axes.numbers.index_vector_dim)
    components = _index_components(indices, vector, len(axes.scattered))
    row_axes: dict[int, list[int]] = {axis: [] for axis in axes.indexed}
    batching = axes.numbers.input_batching_dims
    for axis, dim in zip(batching, axes.numbers.scatter_indices_batching_dims, strict=True):
        row_axes[axis].append(dim - (dim > vector))
    windowed = (axis for axis in axes.indexed if axis in axes.windows)
    for position, axis in enumerate(windowed, len(axes.batches)):
        row_axes[axis].append(position)
    element = components[0].type.element_type if components else ir.IntegerType.get_signless(32)
    along = dict(zip(axes.scattered, components, strict=True))
    sizes = axes.row_sizes
    return [_index_column(sizes, element, along.get(axis), row_axes[axis]) for axis in axes.indexed]


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
