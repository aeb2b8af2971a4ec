"""Gathers and slices of tables ahead of their unpacking or dequantization.

A program that dequantizes a table and then gathers a few rows equals one that gathers rows of
integers and of scales: each element is computed from the same numbers. The same holds for rows of
packed integers, as long as each row is whole.

A loop over layers, ``jax.lax.scan``, slices stacked weights that it carries unchanged. Weights that
are unpacked before the loop are read there directly, and sliced while they are packed.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.subquant import DEQUANTIZE, UNPACK, operands_of
from ...emit import stablehlo as emit_stablehlo
from ...emit import subquant
from ...emit.gathers import AxisGather
from ...emit.operation import integers, is_used, value, with_shape
from ..base import producer_named


def gather_before_unpacking(op: Operation) -> None:
    """Gather bytes of unpacked integers, and unpack the result."""
    unpacking = producer_named(op.operands[0], UNPACK)
    gather = AxisGather.of(op) if unpacking else None
    last = op.operands[0].type.rank - 1
    if gather is None or gather.axis == last or gather.result_axis(last) != len(gather.shape) - 1:
        return
    bits = [int(count) for count in unpacking.attributes["bits"]]
    with ir.InsertionPoint(op), op.location:
        planes = [gather.take(plane) for plane in unpacking.operands]
        unpacked = subquant.unpack(planes, bits, op.results[0].type.element_type)
    _replace(op, unpacked)


def use_loop_invariants(op: Operation) -> None:
    """Have the regions of a ``while`` read unpacked integers that it carries unchanged directly.

    The loop carries zeros in their place, which no operation reads.
    """
    for number, operand in enumerate(op.operands):
        if producer_named(operand, UNPACK) is None:
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


def slice_before_unpacking(op: Operation) -> None:
    """Slice bytes of unpacked integers, and unpack the result."""
    unpacking = producer_named(op.operands[0], UNPACK)
    if unpacking is None:
        return
    *sizes, last = (int(n) for n in op.attributes["slice_sizes"])
    if last != int(op.operands[0].type.shape[-1]):
        return
    bits = [int(count) for count in unpacking.attributes["bits"]]
    with ir.InsertionPoint(op), op.location:
        planes = []
        for plane in unpacking.operands:
            shape = [*sizes, int(plane.type.shape[-1])]
            attributes = {"slice_sizes": integers(shape)}
            operands, type_ = [plane, *list(op.operands)[1:]], with_shape(plane.type, shape)
            planes.append(value("stablehlo.dynamic_slice", operands, type_, attributes))
        unpacked = subquant.unpack(planes, bits, op.results[0].type.element_type)
    _replace(op, unpacked)


def gather_before_dequantizing(op: Operation) -> None:
    """Gather integers and parameters of a dequantized table, and dequantize."""
    dequantization = producer_named(op.operands[0], DEQUANTIZE)
    gather = AxisGather.of(op) if dequantization else None
    if gather is None:
        return
    operands = operands_of(dequantization)
    extents = [int(n) for n in operands["input"].type.shape]
    blocks = [int(n) for n in dequantization.attributes["block_sizes"]]
    count = extents[gather.axis]
    if count > 1 and 1 < blocks[gather.axis] < count:
        return
    is_each = blocks[gather.axis] == 1

    def gathered(name: str) -> Value | None:
        operand = operands.get(name)
        if operand is None or is_each:
            return operand and gather.take(operand)
        shape = gather.spread([int(n) for n in operand.type.shape], [1] * len(gather.shape))
        # A parameter that all slices share, with its axes in the result's order.
        axes = [axis for axis in range(operand.type.rank) if axis != gather.axis]
        by_result_axis = sorted(axes, key=gather.result_axis)
        moved = emit_stablehlo.transpose(operand, [gather.axis, *by_result_axis])
        return emit_stablehlo.reshape(moved, shape)

    with ir.InsertionPoint(op), op.location:
        scales = gathered("scales")
        assert scales is not None  # there always are
        result = subquant.dequantize(
            gather.take(operands["input"]),
            scales,
            gather.spread(blocks, [1] * len(gather.shape) if is_each else gather.shape),
            dequantization.attributes["quantized_type"],
            op.results[0].type.element_type,
            gathered("zero_points"),
            gathered("offsets"),
        )
    _replace(op, result)


def _replace(op: Operation, result: Value) -> None:
    source = op.operands[0]
    op.results[0].replace_all_uses_with(result)
    op.erase()
    if not is_used(source):
        source.owner.operation.erase()
