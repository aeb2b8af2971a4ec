"""Factors without a sign, truth values and unsigned integers, in products of more bits.

IREE 3.13 reads unsigned factors of a product of more bits as signed: 200 of ``ui8`` as -56; and on
Vulkan refuses some. They are widened before, and are signless.

It takes a conversion to more bits away that gives a ``dot`` or a ``dot_general`` an operand, or a
``convolution`` both, and has the product read the narrow integers, as signed ones: true counts as
-1. So truth values are chosen numbers in place of such a conversion, and unsigned integers are
widened as signed ones, of which only the bits that were there are kept::

    %f = stablehlo.convert %x : (tensor<4x8xui8>) -> tensor<4x8xf32>
    %r = stablehlo.dot_general %f, ...

becomes ::

    %b = stablehlo.bitcast_convert %x : (tensor<4x8xui8>) -> tensor<4x8xi8>
    %i = stablehlo.convert %b : (tensor<4x8xi8>) -> tensor<4x8xi32>
    %a = stablehlo.and %i, %c255 : tensor<4x8xi32>
    %f = stablehlo.convert %a : (tensor<4x8xi32>) -> tensor<4x8xf32>

So are conversions before others, and before what moves elements: IREE makes one of two conversions,
and may exchange it with a reshape. LLVM makes the same instructions of both forms.

Source: StableHLO specification, ``convert`` and ``dot_general``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...emit import Tensors, tensor
from ...emit.operation import element_of, with_element
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL
from ..base import NoMatch
from .unsigned_integers import bits_as, is_unsigned, signless

__all__ = ["is_widening", "widen_factors"]

_MOVES = ("stablehlo.reshape", "stablehlo.transpose")


def widen_factors(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write what a product reads without a sign, and has fewer bits, otherwise."""
    found = [each for value in op.operands for each in _conversions(value)]
    for each in dict.fromkeys(found):
        with ir.InsertionPoint(each), each.location:
            widened = _widened(each.operands[0], each.results[0].type)
        rewriter.replace_op(each, [widened])
    type_, values = op.results[0].type, [*op.operands, *op.results]
    if any(is_unsigned(value.type) for value in values):
        result = emit.like(op, [_factor(each, type_) for each in op.operands], [signless(type_)])
        rewriter.replace_op(op, [bits_as(result.results[0], type_)])
        return None
    return None if found else NoMatch("multiplies nothing that was widened without a sign")


def _factor(value: Value, result: ir.Type) -> Value:
    """An operand with signless integers, of no fewer bits than those of a result."""
    if is_unsigned(value.type) and _is_narrower(value.type, result):
        value = _widened(value, with_element(value.type, element_type(result)))
    return bits_as(value, signless(value.type))


def _conversions(value: Value) -> list[Operation]:
    """The conversions behind a value of integers without a sign, or truth values, to more bits."""
    found = []
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name == "stablehlo.convert":
            given = op.operands[0].type
            is_truth = element_type(given) == ir.IntegerType.get_signless(1)
            if is_widening(op) and (is_truth or is_unsigned(given)):
                found.append(op)
        elif op.name not in _MOVES:
            break
        value = op.operands[0]
    return found


def is_widening(op: Operation) -> bool:
    """True for a conversion of integers or floats to such of more bits."""
    return _is_narrower(op.operands[0].type, op.results[0].type)


def _is_narrower(type_: ir.Type, other: ir.Type) -> bool:
    """True for integers or floats of fewer bits than others."""
    narrow, wide = element_type(type_), element_type(other)
    kinds = ir.IntegerType, ir.FloatType
    return isinstance(narrow, kinds) and isinstance(wide, kinds) and narrow.width < wide.width


def _widened(given: Value, type_: ir.Type) -> Value:
    """The numbers of a tensor as a type of more bits."""
    source, element = element_of(given.type), element_of(type_)
    if source == BOOL:
        form = Tensors(given)
        one, zero = form.known(1, element), form.known(0, element)
        return bits_as(form.select(given, one.value, zero.value), type_)
    bits = bits_as(given, signless(given.type))
    return bits_as(convert(tensor(bits, source), element).value, type_)
