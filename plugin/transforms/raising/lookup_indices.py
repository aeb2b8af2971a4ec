"""Indices of look-ups that a program extracts from words, as unpacked integers.

Weights of IQ4_NL, MXFP4, NVFP4 and NF4 are indices of 4 bits in a table of 16 entries. Before::

    %low = stablehlo.and %words, %fifteen : tensor<64x8xui8>
    %high = stablehlo.shift_right_logical %words, %four : tensor<64x8xui8>
    %n = stablehlo.concatenate ... : tensor<64x8x2xui8>, and its conversion to i32
    %q = "stablehlo.gather"(%table, %n) : (tensor<16xi8>, tensor<1024xi32>) -> tensor<1024xi8>

After::

    %u = "subquant.unpack"(%words) {bits = array<i64: 4>} : (tensor<64x8xi8>) -> tensor<64x16xi8>
    %n = stablehlo.convert, and a reshape : tensor<1024xi32>
    %q = "stablehlo.gather"(%table, %n) : (tensor<16xi8>, tensor<1024xi32>) -> tensor<1024xi8>

The entries are storage of a dequantization, or are scaled floats, and kernels look them up.
"""

from __future__ import annotations

import math

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS
from ...emit import stablehlo
from ...emit.gathers import AxisGather
from ...emit.operation import erase_unused
from ..base import named, producer_named
from .arithmetic import STEPS, Arithmetic
from .bit_fields import Field
from .views import View

_INDEX_BITS = 4
"""Bits of an index: kernels look up 16 entries."""


def unpack_lookup_indices(module: Operation) -> None:
    """Replace indices of look-ups that are all the fields of words, in their order."""
    gathers = [op for op in named(module, ["stablehlo.gather"]) if _is_lookup(op)]
    if not gathers:
        return
    arithmetic = Arithmetic(has_constant_words=True)
    for op in named(module, STEPS):
        arithmetic.follow(op)
    replaced = []
    for op in gathers:
        indices = op.operands[1]
        field = arithmetic.field_of(indices)
        if field is not None and _is_in_order(field):
            with ir.InsertionPoint(op), op.location:
                op.operands[1] = _unpacked(field, indices.type)
            replaced.append(indices.owner.operation)
    erase_unused(*replaced)


def _is_lookup(op: Operation) -> bool:
    """True for elements that are taken from a constant table of 16, each by its own index."""
    gather = AxisGather.of(op)
    if gather is None or not gather.is_of_elements:
        return False
    table = op.operands[0]
    is_small = math.prod(int(n) for n in table.type.shape) == 1 << _INDEX_BITS
    return is_small and producer_named(table, *CONSTANTS) is not None


def _is_in_order(field: Field) -> bool:
    packed = field.packed() if field.is_narrow and field.is_complete else None
    if packed is None or field.width != _INDEX_BITS or field.signed or field.bias:
        return False
    view, is_reversed = packed
    count = math.prod(view.shape)
    return not is_reversed and view.reshaped([count]) == View.of([count])


def _unpacked(field: Field, type_: ir.Type) -> Value:
    """Emit the indices in a type; 4 bits would be signed, and half of the indices negative."""
    integers = field.unpacked(is_reversed=False, element_bits=8)
    converted = stablehlo.convert(integers, type_.element_type)
    return stablehlo.reshape(converted, [int(n) for n in type_.shape])
