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
from collections.abc import Callable

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense, dense_of_array
from ...emit.operation import backward_slice, element_of, erase_unused, value
from ...emit.stablehlo_semantics import EVALUATED, MOVEMENT, broadcast_in_dim
from ...numerics.element_types import Array
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
    """Replace integers that shifts and masks extract from constants by constants."""
    unpacking = _ConstantUnpacking()
    for op in named(module, (*_BITS, *_CASTS, *_MOVES)):
        unpacking.visit(op)
    unpacking.fold()


class _ConstantUnpacking:
    """Integers that are computed from constants alone."""

    def __init__(self) -> None:
        self._known: dict[Operation, None] = {}

    def visit(self, op: Operation) -> None:
        """Record an operation on known integers; its producers were visited before."""
        types = [each.type for each in (*op.operands, *op.results)]
        if not all(map(_has_integers, types)):
            return
        if op.name == "stablehlo.bitcast_convert" and types[0].rank != types[-1].rank:
            return
        if all(map(self._is_known, op.operands)):
            self._known[op] = None

    def _is_known(self, operand: Value) -> bool:
        if isinstance(operand.owner, ir.Block):
            return False
        op = operand.owner.operation
        is_dense = op.name in CONSTANTS and isinstance(op.attributes["value"], ir.DenseElementsAttr)
        return is_dense or op in self._known

    def fold(self) -> None:
        """Replace the results that other operations use, without their widening."""
        folded: dict[Operation, None] = {}
        for op in self._known:
            if any(use.owner.operation not in self._known for use in op.results[0].uses):
                while op.name == "stablehlo.convert" and _widens(op):
                    op = op.operands[0].owner.operation
                if op in self._known and _is_unpacking(op):
                    folded[op] = None
        for op in folded:
            elements = _evaluate(op)
            type_ = op.results[0].type
            with ir.InsertionPoint(op), op.location:
                attribute = dense_of_array(elements, type_.element_type)
                constant = value("stablehlo.constant", [], type_, {"value": attribute})
            op.results[0].replace_all_uses_with(constant)
        for op in folded:
            erase_unused(op)


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


def _evaluate(op: Operation) -> Array:
    arrays: dict[Operation, Array] = {}
    for each in backward_slice(op):
        operands = [arrays[operand.owner.operation] for operand in each.operands]
        dtype = element_of(each.results[0].type).dtype
        if each.name in CONSTANTS:
            arrays[each] = array_of_dense(each.attributes["value"]).astype(dtype)
        else:
            function = _FUNCTIONS.get(each.name) or EVALUATED[each.name]
            arrays[each] = np.asarray(function(each, *operands)).astype(dtype, copy=False)
    return arrays[op]


def _shift_right_logical(op: Operation, words: Array, counts: Array) -> Array:
    unsigned = words.view(f"u{words.dtype.itemsize}")
    bits = 8 * words.dtype.itemsize
    is_overlong = (counts < 0) | (counts >= bits)
    shifted = unsigned >> np.where(is_overlong, 0, counts).astype(unsigned.dtype)
    return np.where(is_overlong, 0, shifted).astype(unsigned.dtype).view(words.dtype)


def _concatenate(op: Operation, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=int(op.attributes["dimension"]))


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: MOVEMENT[name] for name in _MOVES if name in MOVEMENT},
    **dict.fromkeys(_CASTS, lambda op, array: array),
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.shift_right_logical": _shift_right_logical,
}
"""Functions of an operation and its operands; casts are of the dtype of the result."""
