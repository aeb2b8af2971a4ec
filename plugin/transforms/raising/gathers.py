"""Rows that are taken of a packed or dequantized table, before they are unpacked or dequantized.

A program that dequantizes a table and then takes a few of its rows is the same as one that takes
rows of integers and of scales: each element is computed from the same numbers. So is one that takes
rows of a table of packed integers, as long as each row is whole.

A loop over layers, ``jax.lax.scan``, slices stacked weights, which it hands from step to step as
they are. What is unpacked before it is used there as if it were in the loop, and sliced packed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core._mlir import Operation, Value, ir
from ...dialects.subquant import DEQUANTIZE, UNPACK, operands_of
from ...emit import stablehlo as emit_stablehlo
from ...emit import subquant
from ...emit.gathers import AxisGather
from ...emit.operation import integers, is_used, value, with_shape

__all__ = [
    "slice_before_unpacking",
    "take_before_dequantizing",
    "take_before_unpacking",
    "use_what_loops_keep",
]


def take_before_unpacking(op: Operation) -> bool:
    """Let a gather of integers that are unpacked take bytes; True if it does."""
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != UNPACK:
        return False
    taking, rank = AxisGather.of(op), op.operands[0].type.rank
    if (
        taking is None
        or taking.axis == rank - 1
        or taking.result_axis(rank - 1) != len(taking.shape) - 1
    ):
        return False
    unpacking = owner.operation
    bits = [int(count) for count in unpacking.attributes["bits"]]
    with ir.InsertionPoint(op), op.location:
        planes = [taking.take(plane) for plane in unpacking.operands]
        taken = subquant.unpack(planes, bits, op.results[0].type.element_type)
    _replace(op, taken)
    return True


def use_what_loops_keep(op: Operation) -> None:
    """Let a ``while`` use unpacked integers that it never changes from where they are made.

    In their place it is handed zeros, which nobody reads.
    """
    for number, operand in enumerate(op.operands):
        owner = operand.owner
        if isinstance(owner, ir.Block) or owner.operation.name != UNPACK:
            continue
        blocks = [region.blocks[0] for region in op.regions]
        body = blocks[1]
        returned = list(body.operations)[-1].operation
        if returned.operands[number] != body.arguments[number]:
            continue
        for block in blocks:
            block.arguments[number].replace_all_uses_with(operand)
        returned.operands[number] = body.arguments[number]
        op.results[number].replace_all_uses_with(operand)
        with ir.InsertionPoint(op), op.location:
            zero = emit_stablehlo.zero_of(operand.type.element_type)
            op.operands[number] = emit_stablehlo.broadcast(zero, operand.type)


def slice_before_unpacking(op: Operation) -> bool:
    """Let a ``dynamic_slice`` of integers that are unpacked take bytes; True if it does."""
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != UNPACK:
        return False
    *sizes, last = (int(n) for n in op.attributes["slice_sizes"])
    if last != int(op.operands[0].type.shape[-1]):
        return False
    unpacking = owner.operation
    bits = [int(count) for count in unpacking.attributes["bits"]]
    with ir.InsertionPoint(op), op.location:
        planes = []
        for plane in unpacking.operands:
            shape = [*sizes, int(plane.type.shape[-1])]
            attributes = {"slice_sizes": integers(shape)}
            operands = [plane, *list(op.operands)[1:]]
            planes.append(
                value(
                    "stablehlo.dynamic_slice", operands, with_shape(plane.type, shape), attributes
                )
            )
        taken = subquant.unpack(planes, bits, op.results[0].type.element_type)
    _replace(op, taken)
    return True


def take_before_dequantizing(op: Operation) -> bool:
    """Let a gather of a dequantized table take integers, scales and the like; True if it does."""
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != DEQUANTIZE:
        return False
    dequantization, taking = owner.operation, AxisGather.of(op)
    if taking is None:
        return False
    parts = operands_of(dequantization)
    extents = [int(n) for n in parts["input"].type.shape]
    blocks = [int(n) for n in dequantization.attributes["block_sizes"]]
    count = extents[taking.axis]
    if count > 1 and 1 < blocks[taking.axis] < count:
        return False
    is_each = blocks[taking.axis] == 1

    def taken(name: str) -> Value | None:
        part = parts.get(name)
        if part is None or is_each:
            return part and taking.take(part)
        shape = taking.spread([int(n) for n in part.type.shape], [1] * len(taking.shape))
        return _moved(part, taking, shape)

    with ir.InsertionPoint(op), op.location:
        scales = taken("scales")
        assert scales is not None  # there always are
        result = subquant.dequantize(
            taking.take(parts["input"]),
            scales,
            taking.spread(blocks, [1] * len(taking.shape) if is_each else taking.shape),
            dequantization.attributes["quantized_type"],
            op.results[0].type.element_type,
            taken("zero_points"),
            taken("offsets"),
        )
    _replace(op, result)
    return True


def _moved(part: Value, taking: AxisGather, shape: Sequence[int]) -> Value:
    """A part that all slices share, with its axes where the result has them."""
    axes = [axis for axis in range(part.type.rank) if axis != taking.axis]
    by_result_axis = sorted(axes, key=taking.result_axis)
    moved = emit_stablehlo.transpose(part, [taking.axis, *by_result_axis])
    return emit_stablehlo.reshape(moved, shape)


def _replace(op: Operation, taken: Value) -> None:
    source = op.operands[0]
    op.results[0].replace_all_uses_with(taken)
    op.erase()
    if not is_used(source):
        source.owner.operation.erase()
