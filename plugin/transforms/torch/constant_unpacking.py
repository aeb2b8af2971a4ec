"""Evaluate the unpacking of constant integers, where ``raise-dequantization`` would not know it.

Integers of 3, 5 and 6 bits lie in two planes, whose parts an ``or`` combines, and words of small
constants are numbers to that pass. Before::

    %low = stablehlo.and %c, %mask : tensor<64xui8>
    %high = stablehlo.shift_left %d, %four : tensor<64xui8>
    %q = stablehlo.or %low, %high : tensor<64xui8>

After::

    %q = stablehlo.constant dense<...> : tensor<64xui8>

The integers are packed again by their range, in ``raise-dequantization``.
"""

from __future__ import annotations

import math

from ...core._mlir import Operation, ir
from ...dialects.dense import CONSTANTS
from ...emit.constant_evaluation import operations_on_constants, replace_by_constant
from ...emit.operation import backward_slice, erase_unused
from ..base import named
from ..raising.facts import MAX_STORAGE_BITS

_BITS = ("stablehlo.and", "stablehlo.or", "stablehlo.xor", "stablehlo.shift_left",
         "stablehlo.shift_right_arithmetic", "stablehlo.shift_right_logical")  # fmt: skip
_CASTS = ("stablehlo.bitcast_convert", "stablehlo.convert")
_MOVES = ("stablehlo.broadcast_in_dim", "stablehlo.concatenate", "stablehlo.reshape",
          "stablehlo.slice", "stablehlo.transpose")  # fmt: skip

_MAX_WORDS = 1 << 16
"""Elements of a constant that ``raise-dequantization`` reads as numbers, at most."""


def fold_constant_unpacking(module: Operation) -> None:
    """Replace integers that shifts and masks extract from constants by constants.

    The results are replaced that other operations use, without their widening.
    """
    operations = named(module, (*_BITS, *_CASTS, *_MOVES))
    known = dict.fromkeys(operations_on_constants(operations, _is_of_integers))
    folded: dict[Operation, None] = {}
    for op in known:
        if any(use.owner.operation not in known for use in op.results[0].uses):
            while op.name == "stablehlo.convert" and _widens(op):
                op = op.operands[0].owner.operation
            if op in known and _is_unpacking(op):
                folded[op] = None
    for op in folded:
        replace_by_constant(op)
    for op in folded:
        erase_unused(op)


def _is_of_integers(op: Operation) -> bool:
    types = [each.type for each in (*op.operands, *op.results)]
    if not all(map(_has_integers, types)):
        return False
    return op.name != "stablehlo.bitcast_convert" or bool(types[0].rank == types[-1].rank)


def _has_integers(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and element.width in (8, 16, 32, 64)


def _widens(op: Operation) -> bool:
    source, target = op.operands[0].type.element_type, op.results[0].type.element_type
    return bool(source.width < target.width)


def _is_unpacking(op: Operation) -> bool:
    """True for narrow integers of words that ``raise-dequantization`` does not unpack."""
    type_ = op.results[0].type
    if type_.element_type.width > MAX_STORAGE_BITS:
        return False
    steps = backward_slice(op)
    if not any(each.name in _BITS for each in steps):
        return False
    words = [math.prod(each.results[0].type.shape) for each in steps if each.name in CONSTANTS]
    return max(words) <= _MAX_WORDS or any(each.name == "stablehlo.or" for each in steps)
