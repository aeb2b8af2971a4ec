"""Additive reductions of quantized values: integer accumulators that are saturated once.

``canonicalize-reductions`` gives operands, init values, body and results one quantized type. With
its scale ``s`` and zero point ``z``, ``add`` of the expressed values is::

    s * ((x - z) + (y - z)) = s * (r - z)    so    r = z + sum_k (q_k - z)

The differences are accumulated in i32, or in i64 if their maximum (or a dynamic) number could
overflow i32: no order of the additions saturates or wraps. A maximum or minimum of one type is that
of the storage; other bodies keep their operations, which are legalized in place, on storage values.

Sources: RFC "StableHLO quantization for reduction ops"; StableHLO specification, ``reduce``,
``reduce_window``, ``select_and_scatter``, ``scatter``, ``all_reduce``, ``reduce_scatter``.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ....core._mlir import Operation, Value, ir
from ....dialects.grids import exact, zero_point_grid
from ....dialects.quant import is_quantized, parameters_of
from ....dialects.stablehlo import of_category
from ....emit import ArrayLike, as_quantized, tensor
from ....emit.casts import saturate
from ....emit.operation import mlir_type, tensor_type, with_element
from ....numerics.array_functions import convert
from ....numerics.element_types import I32, I64
from ....numerics.parameters import QuantizationParameters
from ...base import producer_named, replace_uses
from .operands import Operand

REDUCTIONS = frozenset(of_category("reduction"))
_WITH_ONE_BODY = ("stablehlo.all_reduce", "stablehlo.collective_reduce", "stablehlo.reduce_scatter")


def legalize_reductions(operations: list[Operation]) -> None:
    """Rewrite the additive reductions among `operations` with integer accumulators, in place.

    Raises:
        UnsupportedError: a sub-channel type.
    """
    for op in operations:
        if op.name in REDUCTIONS and any(is_quantized(value.type) for value in op.operands):
            with op.location:
                _legalize(op)


def _legalize(op: Operation) -> None:
    body = op.regions[-1].blocks[0]
    for number, group in enumerate(_groups(op)):
        value = op.results[number]
        parameters = parameters_of(value.type, op)
        if parameters is None or not all(
            op.operands[n].type.element_type == value.type.element_type for n in group
        ):
            continue
        addition = _addition(body, number, len(op.results))
        if addition is not None:
            _sum_differences(op, number, group, addition, parameters)


def _groups(op: Operation) -> list[list[int]]:
    """For each result, the numbers of the operands that share its element type."""
    count = len(op.operands)
    if op.name == "stablehlo.select_and_scatter":
        return [[0, 1, 2]]
    if op.name in _WITH_ONE_BODY:
        return [[number] for number in range(count)]
    if op.name == "stablehlo.scatter":  # inputs, the indices, updates
        inputs = count // 2
        return [[number, number + inputs + 1] for number in range(inputs)]
    return [[number, number + count // 2] for number in range(count // 2)]


def _addition(body: ir.Block, number: int, results: int) -> Operation | None:
    """The operation that adds the two arguments of a result and does nothing else, or None."""
    arguments = list(body.arguments)
    if len(arguments) != 2 * results:
        return None  # all_reduce has one body for all its operands
    value = list(body.operations)[-1].operation.operands[number]
    addition = producer_named(value, "stablehlo.add")
    if addition is None:
        return None
    pair = [arguments[number], arguments[number + results]]
    if list(addition.operands) not in (pair, pair[::-1]):
        return None
    used_elsewhere = any(len(list(argument.uses)) != 1 for argument in (*pair, value))
    return None if used_elsewhere else addition


def _sum_differences(
    op: Operation,
    number: int,
    group: list[int],
    addition: Operation,
    parameters: QuantizationParameters,
) -> None:
    """Give one result's operands, arguments and addition an integer type."""
    with ir.InsertionPoint(op):
        operands = [Operand.of(op.operands[n], op, _bound_of_change(op.operands[n])) for n in group]
    count = _max_addends(op)
    bound = None if count is None else max(operand.bound for operand in operands) * count
    accumulator = I32 if bound is not None and bound < 1 << 31 else I64
    with ir.InsertionPoint(op):
        for n, operand in zip(group, operands, strict=True):
            op.operands[n] = convert(operand.difference, accumulator).value
    scalar = tensor_type([], mlir_type(accumulator))
    for argument in addition.operands:
        argument.set_type(scalar)
    addition.results[0].set_type(scalar)
    if op.name == "stablehlo.select_and_scatter":
        _restore_arguments(op.regions[0].blocks[0], operands[0], scalar)
    result = op.results[number]
    type_ = result.type
    result.set_type(with_element(type_, mlir_type(accumulator)))
    with ir.InsertionPoint.after(op):
        replace_uses(
            result, lambda total: as_quantized(_saturated(tensor(total), bound, parameters), type_)
        )


def _saturated(total: ArrayLike, bound: int | None, parameters: QuantizationParameters) -> Value:
    """``z + total`` in the storage range, without overflow if ``|total| <= bound``."""
    storage = parameters.storage
    zero_points = zero_point_grid(parameters, len(total.value.type.shape))
    if zero_points.any():
        if (bound or 1 << 40) + int(np.abs(zero_points).max()) >= 1 << 31:
            total = convert(total, I64)
        total = total + zero_points
    elif storage.width == 32 and not storage.signed:
        total = convert(total, I64)
    if total.element.bits == storage.width and not storage.is_narrowed:
        return total.value
    return saturate(total, storage)


def _bound_of_change(value: Value) -> int | None:
    """The greatest difference after a change of parameters; None for floats, blocks, no change."""
    producer = producer_named(value, "stablehlo.uniform_quantize")
    if producer is None:
        return None
    source, target = producer.operands[0].type, value.type
    if not is_quantized(source):
        return None
    before, after = parameters_of(source), parameters_of(target)
    assert before is not None and after is not None  # both are quantized
    if before.granularity == "sub-channel" or after.granularity == "sub-channel":
        return None
    greatest: Fraction = max(exact(before.scales).reshape(-1))
    ratio = greatest / min(exact(after.scales).reshape(-1))
    bound: int = math.ceil(before.greatest_difference * ratio) + 1
    return bound


def _restore_arguments(block: ir.Block, operand: Operand, scalar: ir.Type) -> None:
    """Recompute quantized values from differences, for a body that compares them."""
    parameters, written = operand.parameters, block.arguments[0].type

    def quantized(argument: Value) -> Value:
        total = tensor(argument) + int(parameters.zero_points)
        return as_quantized(convert(total, parameters.storage.element).value, written)

    with ir.InsertionPoint.at_block_begin(block):
        for argument in block.arguments:
            argument.set_type(scalar)
            replace_uses(argument, quantized)


def _max_addends(op: Operation) -> int | None:
    """The most addends of an accumulator, init value included; None for dynamic sizes, groups."""
    if op.name == "stablehlo.reduce":
        type_ = op.operands[0].type
        axes = [int(axis) for axis in op.attributes["dimensions"]]
        if any(type_.is_dynamic_dim(axis) for axis in axes):
            return None
        return math.prod(int(type_.shape[axis]) for axis in axes) + 1
    if op.name == "stablehlo.reduce_window":
        return math.prod(int(n) for n in op.attributes["window_dimensions"]) + 1
    if op.name in ("stablehlo.scatter", "stablehlo.select_and_scatter"):
        updates = op.operands[1 if op.name.endswith("select_and_scatter") else -1].type
        if not updates.has_static_shape:
            return None
        return math.prod(int(extent) for extent in updates.shape) + 1
    groups = ir.DenseElementsAttr(op.attributes["replica_groups"]).type.shape
    return int(groups[1]) if len(groups) == 2 and groups[1] else None
