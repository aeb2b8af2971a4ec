"""Factors that are widened from truth values or unsigned integers, without a conversion.

IREE 3.13 takes a conversion to more bits away that gives a ``dot`` or a ``dot_general`` an operand,
or a ``convolution`` both, and has the product read the narrow integers, as signed ones: true counts
as -1, and 200 of ``ui8`` as -56. Truth values are chosen numbers in place of it, and unsigned
integers are widened as signed ones, of which only the bits that were there are kept::

    %f = stablehlo.convert %x : (tensor<4x8xui8>) -> tensor<4x8xf32>
    %r = stablehlo.dot_general %f, ...

becomes ::

    %b = stablehlo.bitcast_convert %x : (tensor<4x8xui8>) -> tensor<4x8xi8>
    %i = stablehlo.convert %b : (tensor<4x8xi8>) -> tensor<4x8xi32>
    %a = stablehlo.and %i, %c255 : tensor<4x8xi32>
    %f = stablehlo.convert %a : (tensor<4x8xi32>) -> tensor<4x8xf32>

It also looks through a conversion of what is converted, and through what moves elements: IREE has
one of two conversions, and may exchange it with a reshape. LLVM makes the same instructions of both
forms.

Source: StableHLO specification, ``convert``.
"""

from __future__ import annotations

from ... import emit
from ..._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...emit import Tensors, tensor
from ...emit.operation import element_of, mlir_type, with_element
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL
from ..base import NoMatch

__all__ = ["is_widening", "widen_factors"]

_MOVES = ("stablehlo.reshape", "stablehlo.transpose")


def widen_factors(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write the conversions of a product's operands to more bits, of what has no sign."""
    found = [each for value in op.operands for each in _conversions(value)]
    for each in dict.fromkeys(found):
        with ir.InsertionPoint(each), each.location:
            widened = _widened(each.operands[0], each.results[0].type)
        rewriter.replace_op(each, [widened])
    return None if found else NoMatch("multiplies nothing that was widened without a sign")


def _conversions(value: Value) -> list[Operation]:
    """The conversions behind a value of integers without a sign, or truth values, to more bits."""
    found = []
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name == "stablehlo.convert":
            if is_widening(op) and _has_no_sign(op.operands[0].type):
                found.append(op)
        elif op.name not in _MOVES:
            break
        value = op.operands[0]
    return found


def is_widening(op: Operation) -> bool:
    """True for a conversion of integers or floats to such of more bits."""
    source, target = (element_type(each.type) for each in (op.operands[0], op.results[0]))
    kinds = ir.IntegerType, ir.FloatType
    if not isinstance(source, kinds) or not isinstance(target, kinds):
        return False
    return bool(source.width < target.width)


def _has_no_sign(type_: ir.Type) -> bool:
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and (element.width == 1 or element.is_unsigned)


def _widened(given: Value, type_: ir.Type) -> Value:
    """What a tensor is converted to."""
    source, element = element_of(given.type), element_of(type_)
    if source == BOOL:
        form = Tensors(given)
        one, zero = form.known(1, element), form.known(0, element)
        return _cast(form.select(given, one.value, zero.value), type_)
    bits = _cast(given, with_element(given.type, mlir_type(source)))
    return _cast(convert(tensor(bits, source), element).value, type_)


def _cast(value: Value, type_: ir.Type) -> Value:
    return value if value.type == type_ else emit.value("stablehlo.bitcast_convert", [value], type_)
