"""Contractions of unsigned integers and booleans with results of more bits.

Symptom: 200 of ``ui8`` is read as -56, and true as -1 (all targets); some contractions are refused
(Vulkan).
Cause: IREE 3.13 reads unsigned operands of a contraction with a wider result as signed. It also
folds a widening conversion of an operand of ``dot`` or ``dot_general``, or of both of a
``convolution``, and reads the narrow integers as signed ones.
Test: `test_multiplicands_are_still_read_as_signed` in tests/test_iree_limits_numbers.py.

Unsigned operands are widened first, and are signless. Instead of a conversion, booleans are
selected numbers, and unsigned integers are sign-extended and masked to their bits::

    %f = stablehlo.convert %x : (tensor<4x8xui8>) -> tensor<4x8xf32>
    %r = stablehlo.dot_general %f, ...

becomes ::

    %b = stablehlo.bitcast_convert %x : (tensor<4x8xui8>) -> tensor<4x8xi8>
    %i = stablehlo.convert %b : (tensor<4x8xi8>) -> tensor<4x8xi32>
    %a = stablehlo.and %i, %c255 : tensor<4x8xi32>
    %f = stablehlo.convert %a : (tensor<4x8xi32>) -> tensor<4x8xf32>

The same goes for conversions before other conversions and before data movement: IREE merges two
conversions, and may swap one with a reshape. LLVM makes the same instructions of both forms.

Source: StableHLO specification, ``convert`` and ``dot_general``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import Tensors, tensor
from ...emit.operation import element_of, with_element
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL
from ..base import NoMatch, Replacement, has_type, producer_of
from .unsigned_integers import bits_as, is_unsigned, signless

_MOVES = ("stablehlo.reshape", "stablehlo.transpose")


def widen_multiplicands(op: Operation) -> Replacement:
    """Widen the unsigned operands of a contraction, and rewrite their conversions."""
    conversions = [each for value in op.operands for each in _conversions(value)]
    for each in dict.fromkeys(conversions):
        with ir.InsertionPoint(each), each.location:
            widened = _widened(each.operands[0], each.results[0].type)
        each.results[0].replace_all_uses_with(widened)
        each.erase()
    type_ = op.results[0].type
    if has_type(op, is_unsigned):
        result = emit.like(
            op, [_signless_multiplicand(each, type_) for each in op.operands], [signless(type_)]
        )
        return bits_as(result.results[0], type_)
    return None if conversions else NoMatch("has no widened unsigned multiplicands")


def _signless_multiplicand(value: Value, result: ir.Type) -> Value:
    """An operand with signless integers of at least the bits of the result."""
    if is_unsigned(value.type) and is_narrower(value.type, result):
        value = _widened(value, with_element(value.type, element_type(result)))
    return bits_as(value, signless(value.type))


def _conversions(value: Value) -> list[Operation]:
    """The conversions of booleans or unsigned integers to more bits that lead to a value."""
    conversions = []
    while (op := producer_of(value)) is not None:
        if op.name == "stablehlo.convert":
            source = op.operands[0].type
            is_boolean = element_type(source) == ir.IntegerType.get_signless(1)
            if is_narrower(source, op.results[0].type) and (is_boolean or is_unsigned(source)):
                conversions.append(op)
        elif op.name not in _MOVES:
            break
        value = op.operands[0]
    return conversions


def is_narrower(type_: ir.Type, other: ir.Type) -> bool:
    """True for integers or floats of fewer bits than another type."""
    narrow, wide = element_type(type_), element_type(other)
    kinds = ir.IntegerType, ir.FloatType
    return isinstance(narrow, kinds) and isinstance(wide, kinds) and narrow.width < wide.width


def _widened(value: Value, type_: ir.Type) -> Value:
    """Convert a tensor to a type of more bits."""
    source, element = element_of(value.type), element_of(type_)
    if source == BOOL:
        form = Tensors(value)
        one, zero = form.known(1, element), form.known(0, element)
        return bits_as(form.select(value, one.value, zero.value), type_)
    bits = bits_as(value, signless(value.type))
    return bits_as(convert(tensor(bits, source), element).value, type_)
