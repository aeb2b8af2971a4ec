"""Rules of nonlinear functions: tables for operands of few values, else the expressed type.

A table has at most 65,536 entries (`subquant.numerics.function_tables`). Other operands are
dequantized, and results quantized, as the specification defines it ("dequantize_op_quantize"); f16
and bf16 are computed in f32 throughout: intermediate results of f16 or bf16 would be several steps
off.

Source: StableHLO specification, the functions' own sections.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from ....core._mlir import Value, ir
from ....dialects.quant import is_quantized, parameters_of
from ....dialects.stablehlo import OPERATIONS, of_category
from ....emit import ArrayLike, like, tensor
from ....emit import stablehlo as emit_stablehlo
from ....emit.operation import element_of, with_element
from ....numerics import function_tables
from ....numerics.array_functions import convert
from ....numerics.element_types import I64, Array, ElementType
from ....numerics.parameters import ExpressedType, QuantizationParameters
from .operands import Operand, dequantize, float_type
from .rules import QuantizedOperation, Results, lowers

__all__: list[str] = []

_F16_OVERFLOW = 65520.0
"""The least f32 that rounds to infinity in f16."""
_HALVES = (ExpressedType.F16, ExpressedType.BF16)
_MAX_RADIANS = 1000.0
"""Radians below which a device's sine is accurate, without a reduction of whole turns."""
_PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)


@lowers(*(f"stablehlo.{name}" for name in function_tables.UNARY_FUNCTIONS))
def unary(op: QuantizedOperation) -> Results:
    """``q2 = table[q1]``, or ``f(x)`` in the expressed type."""
    (operand,) = op.operands
    if not _takes_table(op):
        return through_float(op)
    return _look_up(op, function_tables.unary_table(op.name, operand.parameters, op.target))


@lowers(*(f"stablehlo.{name}" for name in function_tables.BINARY_FUNCTIONS))
def binary(op: QuantizedOperation) -> Results:
    """``q3 = table[q1, q2]``, or ``f(x, y)`` in the expressed type."""
    left, right = op.operands
    if not _takes_table(op):
        return through_float(op)
    table = function_tables.binary_table(op.name, left.parameters, right.parameters, op.target)
    return _look_up(op, table)


@lowers("stablehlo.reduce_precision")
def reduce_precision(op: QuantizedOperation) -> Results:
    """``q2 = table[q1]`` for the numbers of bits in the attributes."""
    (operand,) = op.operands
    if not _takes_table(op):
        return through_float(op)
    exponent, mantissa = (
        int(op.op.attributes[f"{field}_bits"].value) for field in ("exponent", "mantissa")
    )
    table = function_tables.reduce_precision_table(
        exponent, mantissa, operand.parameters, op.target
    )
    return _look_up(op, table)


def _takes_table(op: QuantizedOperation) -> bool:
    """True for few enough operand values, a per-tensor result, and no body of scalar code."""
    parent = OPERATIONS.get(op.op.parent.operation.name)
    in_scalar_code = parent is not None and parent.bodies is not None
    return (
        function_tables.fits_table(*(operand.parameters for operand in op.operands))
        and op.target.granularity == "per-tensor"
        and not in_scalar_code
    )


def _look_up(op: QuantizedOperation, table: Array) -> Value:
    """The entries at the operands' storage values, counted from the minimum of their types."""
    index: ArrayLike = None
    for operand in op.operands:
        storage = operand.parameters.storage
        position = operand.widened() + -storage.type_range[0]
        index = position if index is None else (index << storage.width) + position
    container = ElementType.parse(f"i{op.target.storage.container_width}")
    return op.holding(index.form.look_up(table, index, container))


@lowers(*of_category("normalization", "linear-algebra"))
def through_float(op: QuantizedOperation) -> list[Value]:
    """``q = quantize(f(dequantize(q1), ...))``."""
    operands = [_in_single(op, number) for number in range(len(op.op.operands))]
    if OPERATIONS[op.op.name].is_periodic:
        operands = [_angle(op.operand(0), operands[0])]
    types = [_single_type(result.type) for result in op.op.results]
    created = like(op.op, [operand.value for operand in operands], types)
    results = []
    for value, result in zip(created.results, op.op.results, strict=True):
        target = parameters_of(result.type, op.op)
        if target is None:
            results.append(emit_stablehlo.convert(value, result.type.element_type))
        else:
            results.append(op.quantized(tensor(value), _with_single(target), result.type))
    return results


@lowers("stablehlo.is_finite")
def is_finite(op: QuantizedOperation) -> Value:
    """True, unless a wide storage value times a scale can be infinite (in f16)."""
    (source,) = op.operands
    largest = source.bound * max(source.scales().reshape(-1), default=Fraction(0))
    if largest <= Fraction(source.parameters.expressed.largest):
        return op.form.known(True, element_of(ir.IntegerType.get_signless(1))).value
    return like(op.op, [op.dequantized(0).value]).results[0]


def _in_single(op: QuantizedOperation, number: int) -> ArrayLike:
    """An operand's expressed values, with f32 for f16 and bf16."""
    value = op.op.operands[number]
    if not is_quantized(value.type):
        return tensor(emit_stablehlo.convert(value, _single_type(value.type).element_type))
    operand = op.operand(number)
    single = Operand(operand.quantized, _with_single(operand.parameters))
    # The f32 value of an f16 operand, infinite where f16 is: half a step beyond its maximum.
    real = dequantize(single, op.op, op.division)
    parameters = operand.parameters
    largest = max(operand.scales().reshape(-1), default=Fraction(0))
    if parameters.expressed is not ExpressedType.F16 or operand.bound * largest < _F16_OVERFLOW:
        return real
    return np.where(np.abs(real) >= _F16_OVERFLOW, real * np.inf, real)


def _with_single(parameters: QuantizationParameters) -> QuantizationParameters:
    """The same parameters with f32 for f16 and bf16."""
    if parameters.expressed not in _HALVES:
        return parameters
    return dataclasses.replace(
        parameters, expressed=ExpressedType.F32, scales=parameters.scales.astype(np.float32)
    )


def _single_type(type_: ir.Type) -> ir.Type:
    """The expressed or float tensor type of a tensor, with f32 for f16 and bf16."""
    expressed: ir.Type = float_type(type_) if is_quantized(type_) else type_
    if not isinstance(expressed.element_type, (ir.F16Type, ir.BF16Type)):
        return expressed
    return with_element(expressed, ir.F32Type.get())


def _angle(operand: Operand, real: ArrayLike) -> ArrayLike:
    """A large angle without whole turns.

    A device's sine of 10**9 is garbage. The number of turns is ``d * s / (2 pi)``; its fraction, in
    units of ``2**-64`` of a turn, is a wrapping product of 64-bit integers.
    """
    parameters = operand.parameters
    largest = operand.bound * float(parameters.scales.max(initial=0))
    if largest < _MAX_RADIANS or parameters.granularity != "per-tensor":
        return real
    step = round(Fraction(float(parameters.scales)) / (2 * _PI) * (1 << 64)) % (1 << 64)
    step -= (1 << 64) if step >> 63 else 0
    fraction = convert(operand.difference, I64) * step
    return convert(fraction, real.element) * float(2 * _PI / (1 << 64))
