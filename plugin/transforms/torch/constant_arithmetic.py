"""Fold arithmetic on constants, ahead of the patterns of dequantization.

PyTorch writes numbers as f64 or i64 scalars that are converted and broadcast. Before::

    %c = arith.constant dense<1.275e+02> : tensor<1xf64>
    %0 = stablehlo.convert %c : (tensor<1xf64>) -> tensor<1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>

After::

    %1 = stablehlo.constant dense<1.275e+02> : tensor<f32>

Brevitas computes its quantized weights from float ones, ``round(w / s) * s`` with clamps. Rounded
constants that are multiplied become converted bytes, which ``raise-dequantization`` takes::

    %q = stablehlo.constant dense<...> : tensor<128x256xi8>
    %0 = stablehlo.convert %q : (tensor<128x256xi8>) -> tensor<128x256xf32>
    %1 = stablehlo.multiply %0, %scales : tensor<128x256xf32>

NumPy computes in the element types of the program, so each result has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense, constant_attribute, dense_of_array
from ...emit import stablehlo
from ...emit.operation import backward_slice, is_used, value
from ...emit.stablehlo_semantics import EVALUATED, MOVEMENT, broadcast_in_dim
from ...numerics.element_types import Array, ElementType
from ...numerics.packed_integers import wrapped
from ..base import named, walk
from ..quantization.math.contraction import CONTRACTIONS
from ..raising.facts import MAX_STORAGE_BITS

_BROADCAST = "stablehlo.broadcast_in_dim"
_ROUND = "stablehlo.round_nearest_even"

_MAX_ELEMENTS = 1 << 12
"""Elements of a folded result, at most: parameters, not weights."""

_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "stablehlo.maximum": np.max,
    "stablehlo.minimum": np.min,
}


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{
        f"stablehlo.{name}": EVALUATED[f"stablehlo.{name}"]
        for name in (
            *("abs", "add", "clamp", "compare", "convert", "divide", "maximum", "minimum"),
            *("multiply", "negate", "round_nearest_even", "select", "subtract"),
        )
    },
    **{name: MOVEMENT[name] for name in ("stablehlo.reshape", "stablehlo.transpose")},
    _BROADCAST: broadcast_in_dim,
    "stablehlo.power": lambda op, base, exponent: np.power(base, exponent),
}


class _Constants:
    """Values that constants determine, evaluated where they are needed."""

    def __init__(self) -> None:
        self._known: set[Value] = set()
        self._arrays: dict[Value, Array] = {}

    def follow(self, op: Operation) -> bool:
        """Record the result of an operation; True if it is computed of constants."""
        is_constant = op.name in CONSTANTS and constant_attribute(op.results[0]) is not None
        is_evaluated = op.name in _FUNCTIONS or _reduction(op) is not None
        is_known = is_constant or (
            is_evaluated
            and all(operand in self._known for operand in op.operands)
            and _is_of_numpy(op)
        )
        if is_known:
            self._known.add(op.results[0])
        return is_known and not is_constant

    def __contains__(self, item: Value) -> bool:
        return item in self._known

    def evaluate(self, result: Value) -> Array:
        """The elements of a recorded value."""
        if result in self._arrays:
            return self._arrays[result]
        for op in backward_slice(result.owner.operation):
            [each] = op.results
            if each not in self._arrays:
                self._arrays[each] = self._computed(op)
        return self._arrays[result]

    def _computed(self, op: Operation) -> Array:
        element = op.results[0].type.element_type
        operands = [self._arrays[operand] for operand in op.operands]
        reduction = _reduction(op)
        with np.errstate(all="ignore"):
            if op.name in CONSTANTS:
                result = array_of_dense(op.attributes["value"])
            elif reduction is not None:
                axes = tuple(int(axis) for axis in op.attributes["dimensions"])
                combined = EVALUATED[reduction](op, operands[0], operands[1])
                result = _REDUCTIONS[reduction](combined, axis=axes)
            else:
                result = np.asarray(_FUNCTIONS[op.name](op, *operands))
        if isinstance(element, ir.IntegerType):
            integers: Array = result.astype(np.int64)
            return (
                integers.astype(np.bool_)
                if element.width == 1
                else wrapped(integers, element.width)
            )
        return np.asarray(result, ElementType.of_mlir(str(element)).dtype)


def _reduction(op: Operation) -> str | None:
    """The operation of a reduction of one tensor; None for others."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return None
    names = [each.operation.name for each in op.regions[0].blocks[0].operations]
    return names[0] if len(names) == 2 and names[0] in _REDUCTIONS else None


def _is_of_numpy(op: Operation) -> bool:
    """True for static floats and signless integers; NumPy's quotients of integers are floats."""
    for each in (*op.operands, *op.results):
        type_ = each.type
        if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
            return False
        element = type_.element_type
        is_signless = isinstance(element, ir.IntegerType) and element.is_signless
        if not is_signless and str(element) not in ("bf16", "f16", "f32", "f64"):
            return False
    is_integer = isinstance(op.results[0].type.element_type, ir.IntegerType)
    return not (is_integer and op.name in ("stablehlo.divide", "stablehlo.power"))


def fold_constant_arithmetic(module: Operation) -> None:
    """Fold arithmetic on constants with small results, and rounded constants to bytes."""
    constants = _Constants()
    folded = [op for op in walk(module) if len(op.results) == 1 and constants.follow(op)]
    for op in folded:
        result = op.results[0]
        count = math.prod(result.type.shape)
        if count <= _MAX_ELEMENTS and not _is_left(op):
            attribute = dense_of_array(constants.evaluate(result), result.type.element_type)
            with ir.InsertionPoint(op), op.location:
                constant = value("stablehlo.constant", [], result.type, {"value": attribute})
            result.replace_all_uses_with(constant)
    for op in named(module, ["stablehlo.multiply"]):
        for number, operand in enumerate(op.operands):
            if operand in constants and _is_contracted(op):
                _round_to_bytes(op, number, constants)
    for op in [*reversed(folded), *named(module, CONSTANTS)]:
        if not is_used(op.results[0]):
            op.erase()


def _is_left(op: Operation) -> bool:
    """True for many elements of a broadcast, and of integers that may be quantized weights.

    A constant of equal elements looks like one parameter for each element.
    """
    is_scalar = math.prod(op.results[0].type.shape) == 1
    for each in backward_slice(op):
        if each.name == _BROADCAST and not is_scalar:
            return True
        if each.name == "stablehlo.convert":
            element = each.operands[0].type.element_type
            if isinstance(element, ir.IntegerType) and 1 < element.width <= MAX_STORAGE_BITS:
                return True
    return False


def _is_contracted(op: Operation) -> bool:
    """True if only contractions read a result, which take -0 (a rounded -0.3) as the byte 0."""
    users = [use.owner.operation for use in op.results[0].uses]
    return all(
        user.name in CONTRACTIONS or (user.name in MOVEMENT and _is_contracted(user))
        for user in users
    )


def _round_to_bytes(op: Operation, number: int, constants: _Constants) -> None:
    """Replace a rounded constant operand by converted bytes, if it fits them."""
    operand = op.operands[number]
    producers = backward_slice(operand.owner.operation)
    if not any(each.name == _ROUND for each in producers):
        return
    elements = constants.evaluate(operand)
    if elements.dtype.kind != "f" or math.prod(elements.shape) <= _MAX_ELEMENTS // 16:
        return
    integers = np.rint(elements)
    fits = integers.min() >= -128 and integers.max() <= 127
    if not fits or (integers != elements).any():
        return
    i8 = ir.IntegerType.get_signless(8)
    with ir.InsertionPoint(op), op.location:
        stored = stablehlo.constant_of(dense_of_array(integers.astype(np.int8), i8))
        op.operands[number] = stablehlo.convert(stored, operand.type.element_type)
