"""``tosa-rescale-legalize-to-stablehlo``: lower ``tosa.rescale`` to StableHLO's integers.

StableHLO's reference interpreter, and compilers of StableHLO, can then run a program that mixes
StableHLO with TOSA's rescales. In 64-bit words::

    value  = convert(x) - input_zp
    total  = value * multiplier + 2**(shift - 1)      (DOUBLE_ROUND: + sign(value) * 2**30 if
    scaled = total >> shift                            shift > 31)
    y      = convert(clamp(lowest, scaled + output_zp, greatest))

* Multipliers, shifts and zero points may be constants or values. Per channel, they are broadcast
  along the last axis.
* With ``scale32 = false`` multipliers have 15 bits, and TOSA has no double rounding.
  INEXACT_ROUND does not define the rounding; here it is SINGLE_ROUND.
* Bits are read as unsigned by the flags, an unsigned type or an unsigned quantized type.
* The result is clamped to its type, and to the range of a narrowed quantized type. TOSA does not
  define scaled values of more than 32 bits; here nothing wraps.
* Quantized values and their storage are connected by ``subquant.scast``.

Overflow: a signed value of 32 bits, for which TOSA allows the zero point 0 only, times a multiplier
below ``2**31`` stays inside 64 bits. Unsigned 32-bit values are refused with ``scale32 = true``.

Before::

    %y = tosa.rescale %x, %m, %s, %xz, %yz {rounding_mode = SINGLE_ROUND, scale32 = true, ...}
           : (tensor<4xi8>, ...) -> tensor<4xi32>

After::

    %v = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
    %p = stablehlo.multiply %v, %multiplier : tensor<4xi64>
    %t = stablehlo.add %p, %half : tensor<4xi64>
    %r = stablehlo.shift_right_arithmetic %t, %shift : tensor<4xi64>
    // minimum, maximum, convert

Source: TOSA specification 1.0, ``RESCALE``, ``apply_scale_32`` and ``apply_scale_16``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.stablehlo import STORAGE_WIDTHS
from ...dialects.tosa import RescaleView
from ...emit import Tensors, as_quantized, linalg, stablehlo, stored, tensor
from ...emit.operation import element_of, is_used, mlir_type
from ...errors import UnsupportedError
from ...numerics import fixed_point
from ...numerics.array_functions import convert
from ...numerics.element_types import I64, AnyArray, Array
from ..base import ModulePass, named, producer_named


@dataclass(frozen=True)
class TosaRescaleLegalizeToStablehlo(ModulePass):
    """Write every ``tosa.rescale`` with StableHLO's operations."""

    def run(self, module: ir.Operation) -> None:
        """Rewrite `module`; unused constants of TOSA are erased.

        Raises:
            UnsupportedError: a tensor that is unranked, or of integers that StableHLO lacks.
            VerificationError: a multiplier or shift that TOSA does not define.
        """
        for op in named(module, ["tosa.rescale"]):
            with op.location, ir.InsertionPoint(op):
                op.results[0].replace_all_uses_with(_lower(op, RescaleView.of(op)))
            operands = dict.fromkeys(list(op.operands)[1:])  # one may be used twice
            op.erase()
            for operand in operands:
                producer = producer_named(operand, "tosa.const")
                if producer is not None and not is_used(operand):
                    producer.erase()


def _lower(op: Operation, rescale: RescaleView) -> Value:
    for side in (rescale.source, rescale.result):
        if side.storage.width not in STORAGE_WIDTHS:
            raise UnsupportedError(
                f"has elements of type '{element_type(side.type)}', and StableHLO has no integers "
                f"of {side.storage.width} bits; use 2, 4, 8, 16 or 32",
                op,
            )
    source, target = rescale.source, rescale.result
    if rescale.scale32 and source.storage.width == 32 and not source.storage.signed:
        raise UnsupportedError(
            "scales unsigned 32-bit values with multipliers of 31 bits, whose products need more "
            "than 64 bits; rescale signed values, or use scale32 = false",
            op,
        )
    value = stored(op.operands[0]) if source.is_quantized else op.operands[0]
    if source.is_unsigned_type:  # StableHLO's conversions zero-extend it
        number = tensor(stablehlo.convert(value, mlir_type(I64)))
    else:
        number = tensor(value, source.storage.element)
    zero_points = (
        _parameter(number.form, rescale.input_zero_point, source.storage.signed),
        _parameter(number.form, rescale.output_zero_point, target.storage.signed),
    )
    multiplier, shift = (
        _parameter(number.form, parameter, signed=True)
        for parameter in (rescale.multiplier, rescale.shift)
    )
    scaled = fixed_point.rescale(number, multiplier, shift, zero_points, rescale.rounding)
    if target.is_unsigned_type:
        clamped = np.clip(scaled, target.storage.minimum, target.storage.maximum)
        result = stablehlo.convert(clamped.value, element_type(target.type))
        return linalg.cast(result, target.type)
    result = fixed_point.saturate(scaled, target.storage).value
    return (as_quantized if target.is_quantized else linalg.cast)(result, target.type)


def _parameter(form: Tensors, parameter: int | Array | Value, signed: bool) -> AnyArray:
    """A constant number or array, or 64-bit integers of the form's shape.

    A vector has one element, or one for each index of the last axis.
    """
    if isinstance(parameter, (int, np.ndarray)):
        return parameter
    vector = tensor(parameter, element_of(parameter.type, signed=signed))
    wide = convert(vector, I64).value
    if int(parameter.type.shape[0]) != 1:
        return form.emitted(form.broadcast(wide, [form.rank - 1]))
    return form.emitted(form.broadcast(stablehlo.reshape(wide, [])))
