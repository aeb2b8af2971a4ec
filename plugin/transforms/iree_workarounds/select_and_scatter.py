"""``select_and_scatter`` as a windowed reduction and a scatter.

Symptom: IREE refuses the operation (all targets).
Cause: IREE 3.13 has no lowering for it.
Test: none; tests/test_stablehlo_rare_forms.py covers it.

``select`` compares elements of the operand, ``scatter`` accumulates elements of the source, and one
StableHLO operation has one element type for both. Converting the operand to the accumulator's type
may merge two values (a coarser scale, fewer bits), and then another element of a window could be
selected. So the two are separated, each in its own type:

1. ``reduce_window`` over the operand and the number of each element, with ``select`` as it is,
   computes the number of the selected element of each window. Padding has the number -1 and is
   never selected while the window has another element.
2. ``scatter`` accumulates ``source`` at these numbers into a flat tensor that starts as
   ``init_value``. It has one more element for windows of padding alone, which is cut off.
"""

from __future__ import annotations

import math

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import dense_of_array
from ...dialects.quant import parameters_of, storage_mlir_type
from ...emit import stablehlo
from ...emit.operation import mlir_type, parse_attribute, splat, tensor_type
from ...errors import UnsupportedError
from ...numerics.element_types import I32
from .loop_nests import is_static

_PADDING = -1
"""Number of a padding element."""


def expand_select_and_scatter(op: Operation, source: Value, init_value: Value) -> Value:
    """Build the two operations at the current insertion point; take the regions out of `op`.

    Source, init value and result have the element type of ``scatter``. The caller erases `op`, of
    StableHLO or subquant.

    Raises:
        UnsupportedError: a dynamic shape, or more elements than a 32-bit number counts.
    """
    operand = op.operands[0]
    if not is_static(operand, source):
        raise UnsupportedError(
            f"has a dynamic shape, got '{operand.type}' and '{op.operands[1].type}'; selected "
            "elements are numbered, which takes static shapes",
            op,
        )
    shape = [int(size) for size in operand.type.shape]
    total = math.prod(shape)
    if total >= (1 << 31) - 1:
        raise UnsupportedError(
            f"has {total} elements; expected fewer than a 32-bit number counts", op
        )
    element = init_value.type.element_type
    if not total:
        return stablehlo.broadcast(init_value, tensor_type(shape, element))
    selected = _select(op, operand, shape)
    start = stablehlo.broadcast(init_value, tensor_type([total + 1], element))
    flat = _scatter(op, selected, source, start)
    return stablehlo.reshape(stablehlo.slice_(flat, [0], [total]), shape)


def _select(op: Operation, operand: Value, shape: list[int]) -> Value:
    """The number of each window's selected element; for padding alone, the number of elements."""
    total = math.prod(shape)
    i32 = mlir_type(I32)
    numbers = stablehlo.reshape(stablehlo.iota(tensor_type([total], i32), 0), shape)
    counts = [int(size) for size in op.operands[1].type.shape]
    names = ("window_dimensions", "window_strides", "padding")
    window = emit.create(
        "stablehlo.reduce_window",
        [
            operand,
            numbers,
            _any_constant(operand.type.element_type),
            stablehlo.constant(_PADDING, i32),
        ],
        [tensor_type(counts, operand.type.element_type), tensor_type(counts, i32)],
        {name: op.attributes[name] for name in names if name in op.attributes},
        regions=1,
    )
    _fill_window_body(op, window)
    picked = emit.tensor(window.results[1])
    selected: emit.ArrayLike = np.where(picked < 0, total, picked)
    return selected.value


def _fill_window_body(op: Operation, window: Operation) -> None:
    """Give `window` the body ``(x, i), (y, j) -> select(x, y) ? (x, i) : (y, j)``."""
    old = op.regions[0].blocks[0]
    *operations, terminator = list(old.operations)

    def body(*arguments: Value) -> list[Value]:
        left, left_number, right, right_number = arguments
        old.arguments[0].replace_all_uses_with(left)
        old.arguments[1].replace_all_uses_with(right)
        for operation in operations:
            operation.operation.detach_from_parent()
            ir.InsertionPoint.current.insert(operation)
        form = emit.Tensors(left_number)
        i, j = form.emitted(left_number), form.emitted(right_number)
        takes_left = (i >= 0) & (emit.tensor(terminator.operands[0]) | (j < 0))
        number: emit.ArrayLike = np.where(takes_left, i, j)
        pair = [takes_left.value, left, right]
        return [emit.value("stablehlo.select", pair, left.type), number.value]

    types = [old.arguments[0].type, tensor_type([], mlir_type(I32))]
    stablehlo.fill_body(window.regions[0], types * 2, body)


def _scatter(op: Operation, selected: Value, source: Value, start: Value) -> Value:
    count = math.prod(int(size) for size in source.type.shape)
    numbers = (
        "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
        "index_vector_dim = 1>"
    )
    scatter = emit.create(
        "stablehlo.scatter",
        [start, stablehlo.reshape(selected, [count, 1]), stablehlo.reshape(source, [count])],
        [start.type],
        {"scatter_dimension_numbers": parse_attribute(numbers)},
        regions=1,
    )
    op.regions[1].blocks[0].append_to(scatter.regions[0])
    return scatter.results[0]


def _any_constant(element: ir.Type) -> Value:
    """A scalar constant; the value of padding does not matter."""
    type_ = tensor_type([], element)
    parameters = parameters_of(element)
    if parameters is not None:
        storage = storage_mlir_type(parameters.storage)
        zero_point = dense_of_array(parameters.zero_points.reshape(()), storage)
        return emit.value("stablehlo.constant", [], type_, {"value": zero_point})
    if isinstance(element, ir.ComplexType):
        return stablehlo.constant_of(parse_attribute(f"dense<(0.0, 0.0)> : {type_}"))
    return stablehlo.constant_of(splat(isinstance(element, ir.FloatType), type_))
