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

import numpy as np

from ...core._mlir import Operation, ir
from ...dialects.dense import CONSTANTS, dense_of_array
from ...dialects.stablehlo import CONTRACTIONS
from ...emit import stablehlo
from ...emit.constant_evaluation import (
    evaluate,
    operations_on_constants,
    reduction_of,
    replace_by_constant,
)
from ...emit.operation import backward_slice, is_used
from ...emit.stablehlo_semantics import MOVEMENT
from ..base import named, walk
from ..raising.facts import MAX_STORAGE_BITS

_BROADCAST = "stablehlo.broadcast_in_dim"
_ROUND = "stablehlo.round_nearest_even"

_MAX_ELEMENTS = 1 << 12
"""Elements of a folded result, at most: parameters, not weights."""

_EVALUATED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "broadcast_in_dim", "clamp", "compare", "convert", "divide", "maximum"),
        *("minimum", "multiply", "negate", "power", "reshape", "round_nearest_even", "select"),
        *("subtract", "transpose"),
    )
)
"""The operations that are evaluated; reductions are too."""


def _is_evaluated(op: Operation) -> bool:
    """True for static floats and signless integers; NumPy's quotients of integers are floats."""
    if op.name not in _EVALUATED and reduction_of(op) is None:
        return False
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
    computed = operations_on_constants(
        (op for op in walk(module) if len(op.results) == 1), _is_evaluated
    )
    values = {op.results[0] for op in computed}
    for op in computed:
        if math.prod(op.results[0].type.shape) <= _MAX_ELEMENTS and not _is_left(op):
            replace_by_constant(op)
    for op in named(module, ["stablehlo.multiply"]):
        for number, operand in enumerate(op.operands):
            if operand in values and _is_contracted(op):
                _round_to_bytes(op, number)
    for op in [*reversed(computed), *named(module, CONSTANTS)]:
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


def _round_to_bytes(op: Operation, number: int) -> None:
    """Replace a rounded constant operand by converted bytes, if it fits them."""
    operand = op.operands[number]
    producers = backward_slice(operand.owner.operation)
    if not any(each.name == _ROUND for each in producers):
        return
    elements = evaluate(operand.owner.operation)
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
