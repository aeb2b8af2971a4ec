"""Signless bits of unsigned integers, and ``reduce_window`` on them.

Symptom: IREE refuses a ``reduce_window`` that pads unsigned integers (all targets).
Cause: not located; IREE 3.13 takes the same of signless integers.
Test: none; tests/test_stablehlo_rare_forms.py covers it.

The bits are reduced instead; the body casts them to unsigned integers.

Source: StableHLO specification, ``reduce_window``.
"""

from __future__ import annotations

import functools

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit.operation import with_element
from ..base import NoMatch, Replacement, has_type, replace_uses


def reduce_window_of_bits(op: Operation) -> Replacement:
    """Rewrite a ``reduce_window`` of unsigned integers as one of their bits."""
    if not has_type(op, is_unsigned):
        return NoMatch("reduces no unsigned integers")
    operands = [bits_as(value, signless(value.type)) for value in op.operands]
    created = emit.like(op, operands, [signless(v.type) for v in op.results], take_bodies=True)
    block = created.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block):
        for argument in block.arguments:
            type_ = argument.type
            if is_unsigned(type_):
                argument.set_type(signless(type_))
                replace_uses(argument, functools.partial(bits_as, type_=type_))
    terminator = list(block.operations)[-1].operation
    with ir.InsertionPoint(terminator):
        for number, value in enumerate(list(terminator.operands)):
            terminator.operands[number] = bits_as(value, signless(value.type))
    types = [result.type for result in op.results]
    return [bits_as(value, type_) for value, type_ in zip(created.results, types, strict=True)]


def is_unsigned(type_: ir.Type) -> bool:
    """True for a type with unsigned integers."""
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and bool(element.is_unsigned)


def signless(type_: ir.Type) -> ir.Type:
    """The type with signless integers instead of unsigned ones."""
    if not is_unsigned(type_):
        return type_
    return with_element(type_, ir.IntegerType.get_signless(element_type(type_).width))


def bits_as(value: Value, type_: ir.Type) -> Value:
    """The bits of a tensor as another type."""
    return value if value.type == type_ else emit.value("stablehlo.bitcast_convert", [value], type_)
