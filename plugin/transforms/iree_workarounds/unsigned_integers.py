"""Windowed reductions of unsigned integers, on signless ones.

IREE refuses a ``reduce_window`` that pads unsigned integers. Their bits are reduced instead, and
the body takes them for unsigned again.

Source: StableHLO specification, ``reduce_window``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...emit.operation import with_element
from ..base import NoMatch

__all__ = ["bits_as", "is_unsigned", "signless", "signless_window"]


def signless_window(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``reduce_window`` of unsigned integers as one of their bits."""
    if not any(is_unsigned(value.type) for value in (*op.operands, *op.results)):
        return NoMatch("reduces no unsigned integers")
    operands = [bits_as(value, signless(value.type)) for value in op.operands]
    created = emit.like(op, operands, [signless(v.type) for v in op.results], take_bodies=True)
    block = created.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block):
        for argument in block.arguments:
            type_ = argument.type
            if is_unsigned(type_):
                argument.set_type(signless(type_))
                users = [(use.owner, use.operand_number) for use in argument.uses]
                unsigned = bits_as(argument, type_)
                for user, number in users:
                    user.operands[number] = unsigned
    terminator = list(block.operations)[-1].operation
    with ir.InsertionPoint(terminator):
        for number, value in enumerate(list(terminator.operands)):
            terminator.operands[number] = bits_as(value, signless(value.type))
    types = [result.type for result in op.results]
    rewriter.replace_op(
        op, [bits_as(value, type_) for value, type_ in zip(created.results, types, strict=True)]
    )
    return None


def is_unsigned(type_: ir.Type) -> bool:
    """True for a type with unsigned integers."""
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and bool(element.is_unsigned)


def signless(type_: ir.Type) -> ir.Type:
    """The type with signless integers for unsigned ones."""
    if not is_unsigned(type_):
        return type_
    return with_element(type_, ir.IntegerType.get_signless(element_type(type_).width))


def bits_as(value: Value, type_: ir.Type) -> Value:
    """The bits of a tensor as another type."""
    return value if value.type == type_ else emit.value("stablehlo.bitcast_convert", [value], type_)
