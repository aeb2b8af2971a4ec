"""Sorts that keep the order of equal elements, which IREE's loops do not.

The position of each element along the sorted dimension becomes one more operand, and decides where
the comparator says of neither of two elements that it comes first::

    before(a, b) or (not before(b, a) and position(a) < position(b))

Source: StableHLO specification, ``sort``, ``is_stable``.
"""

from __future__ import annotations

from typing import Any

from ..._mlir import ir
from ...dialects.quant import element_type
from ..base import Builder, NoMatch

__all__ = ["stabilize_sort"]


def stabilize_sort(op: Any) -> list[Any] | NoMatch:
    """Write a stable ``sort`` with the positions as an operand; return the results."""
    if "is_stable" not in op.attributes or not op.attributes["is_stable"].value:
        return NoMatch("need not be stable")
    block = op.regions[0].blocks[0]
    *operations, terminator = [operation.operation for operation in block.operations]
    if _equals_are_alike(op, operations):
        return NoMatch("has equal elements that are alike")
    axis, like = int(op.attributes["dimension"].value), op.operands[0].type
    if any(like.is_dynamic_dim(n) for n in range(len(like.shape))):
        return NoMatch("sorts a dynamic shape")
    if any(len(operation.regions) for operation in operations):
        return NoMatch("has control flow in its comparator")
    b, scalar = Builder(), ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    positions = ir.RankedTensorType.get(list(like.shape), b.i32)
    dimension = {"iota_dimension": ir.IntegerAttr.get(b.i64, axis)}
    iota = b.op("stablehlo.iota", [], positions, dimension)
    created = ir.Operation.create(
        op.name,
        results=[*(result.type for result in op.results), positions],
        operands=[*op.operands, iota],
        attributes={name: op.attributes[name] for name in op.attributes},
        regions=1,
    )
    types = [argument.type for argument in block.arguments] + [scalar, scalar]
    with op.location:
        body = created.regions[0].blocks.append(*types, arg_locs=[op.location] * len(types))
        with ir.InsertionPoint(body):
            _fill(body, list(block.arguments), operations, terminator)
    return list(created.results)[:-1]


def _equals_are_alike(op: Any, operations: list[Any]) -> bool:
    """True for one operand of integers that are compared as they are."""
    if len(op.operands) != 1 or len(operations) != 1 or operations[0].name != "stablehlo.compare":
        return False
    element = element_type(op.operands[0].type)
    arguments = list(op.regions[0].blocks[0].arguments)
    return isinstance(element, ir.IntegerType) and sorted(
        arguments.index(value) if value in arguments else -1 for value in operations[0].operands
    ) == [0, 1]


def _fill(body: Any, old: list[Any], operations: list[Any], terminator: Any) -> None:
    b, truth = Builder(), ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    *new, here, there = list(body.arguments)
    swapped = [new[n ^ 1] for n in range(len(new))]  # the arguments are pairs of two elements
    first = _copy(operations, terminator, dict(zip(old, new, strict=True)))
    second = _copy(operations, terminator, dict(zip(old, swapped, strict=True)))
    attributes = {
        "comparison_direction": ir.Attribute.parse("#stablehlo<comparison_direction LT>"),
        "compare_type": ir.Attribute.parse("#stablehlo<comparison_type SIGNED>"),
    }
    earlier = b.op("stablehlo.compare", [here, there], truth, attributes)
    neither = b.op("stablehlo.not", [second], truth)
    decided = b.op("stablehlo.and", [neither, earlier], truth)
    b.op("stablehlo.return", [b.op("stablehlo.or", [first, decided], truth)])


def _copy(operations: list[Any], terminator: Any, values: dict[Any, Any]) -> Any:
    """Copy a comparator's operations for other arguments; return its answer."""
    for operation in operations:
        copied = operation.clone()
        for number, operand in enumerate(operation.operands):
            copied.operands[number] = values.get(operand, operand)
        values |= dict(zip(operation.results, copied.results, strict=True))
    answer = terminator.operands[0]
    return values.get(answer, answer)
