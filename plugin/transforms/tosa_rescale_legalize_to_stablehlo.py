"""``tosa-rescale-legalize-to-stablehlo``: ``tosa.rescale`` as StableHLO's integer operations.

So a program that mixes StableHLO with TOSA's rescales can be evaluated by StableHLO's reference
interpreter, and compiled by what takes StableHLO. In 64-bit words::

    value  = convert(x) - input_zp
    total  = value * multiplier + 2**(shift - 1)      (DOUBLE_ROUND: + sign(value) * 2**30 if
    scaled = total >> shift                            shift > 31)
    y      = convert(clamp(lowest, scaled + output_zp, greatest))

* Multipliers, shifts and zero points may be constants or values. Per channel, they are broadcast
  along the last axis.
* ``scale32 = false`` differs only in that multipliers have 15 bits and TOSA knows no double
  rounding. INEXACT_ROUND leaves the rounding open; here it is SINGLE_ROUND.
* Bits are read as unsigned where the flags, an unsigned type or an unsigned quantized type say so.
* The result is clamped to its type, and to the range of a quantized type that has a narrower one.
  TOSA leaves a scaled value of more than 32 bits open; here nothing wraps.
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
from typing import Any, ClassVar

import numpy as np

from .._mlir import ir
from ..dialects.quant import element_type
from ..dialects.tosa import RescaleTensor, RescaleView
from ..errors import UnsupportedError
from .base import ModulePass, walk
from .fixed_point_arithmetic import emit_scale, emit_shift
from .quantized_values import as_quantized, stored
from .requantization import saturate
from .tensor_builder import TensorBuilder

__all__ = ["TosaRescaleLegalizeToStablehlo"]

_SGE, _SGT = 5, 4  # arith.cmpi predicates
_DOUBLE_BIT = 30  # DOUBLE_ROUND first rounds to a multiple of 2**31
_STABLEHLO_WIDTHS = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class TosaRescaleLegalizeToStablehlo(ModulePass):
    """Write every ``tosa.rescale`` with StableHLO's operations."""

    name: ClassVar[str] = "tosa-rescale-legalize-to-stablehlo"

    def run(self, module: ir.Operation) -> None:
        """Rewrite `module`; constants of TOSA that nobody uses any more go away.

        Raises:
            UnsupportedError: a tensor that is unranked, or of integers that StableHLO lacks.
            VerificationError: a multiplier or shift that TOSA does not define.
        """
        rescales = [op for op in walk(module) if op.name == "tosa.rescale"]
        for op in rescales:
            with op.location, ir.InsertionPoint(op):
                op.results[0].replace_all_uses_with(_lower(op, RescaleView.of(op)))
            operands = dict.fromkeys(list(op.operands)[1:])  # one may be used twice
            op.erase()
            for operand in operands:
                _erase_if_unused(operand)


def _lower(op: Any, rescale: RescaleView) -> Any:
    for tensor in (rescale.source, rescale.result):
        _check_width(tensor, op)
    source, target = rescale.source, rescale.result
    if rescale.scale32 and source.storage.width == 32 and not source.storage.signed:
        raise UnsupportedError(
            "scales unsigned 32-bit values with multipliers of 31 bits, whose products need more "
            "than 64 bits; rescale signed values, or use scale32 = false",
            op,
        )
    value = stored(op.operands[0]) if source.is_quantized else op.operands[0]
    b = TensorBuilder(value)
    wide = _extend(b, value, source.storage.signed)
    if rescale.input_zero_point != 0:
        zero_point = _zero_point(b, rescale.input_zero_point, source)
        wide = b.op("arith.subi", [wide, zero_point], b.i64)
    scaled = _scale(b, wide, rescale)
    if rescale.output_zero_point != 0:
        zero_point = _zero_point(b, rescale.output_zero_point, target)
        scaled = b.op("arith.addi", [scaled, zero_point], b.i64)
    if target.is_unsigned_type:
        limits = [b.constant(n, b.i64) for n in (target.storage.minimum, target.storage.maximum)]
        raised = b.op("arith.maxsi", [scaled, limits[0]], b.i64)
        clamped = b.op("arith.minsi", [raised, limits[1]], b.i64)
        result = b.op("stablehlo.convert", [clamped], element_type(target.type))
    else:
        result = saturate(b, scaled, target.storage)
    if target.is_quantized:
        return as_quantized(result, target.type)
    return result if result.type == target.type else b.op("tensor.cast", [result], target.type)


def _scale(b: TensorBuilder, value: Any, rescale: RescaleView) -> Any:
    multiplier, shift = (_parameter(b, p) for p in (rescale.multiplier, rescale.shift))
    if rescale.rounding != "tosa-double-round":
        return emit_scale(b, value, multiplier, shift, rescale.rounding)
    # Half of the first of the two roundings, with the sign of the value.
    zero = b.constant(0, b.i64)
    bit = b.constant(1 << _DOUBLE_BIT, b.i64)
    opposite = b.constant(-(1 << _DOUBLE_BIT), b.i64)
    nudge = b.op("arith.select", [b.compare(_SGE, value, zero), bit, opposite], b.i64)
    if isinstance(shift, (int, np.ndarray)):
        applies = np.asarray(shift) > _DOUBLE_BIT + 1
        if not applies.any():
            return emit_scale(b, value, multiplier, shift, "tosa-single-round")
        if not applies.all():
            nudge = b.op("arith.muli", [nudge, b.grid(applies.astype(np.int64), b.i64)], b.i64)
    else:
        large = b.compare(_SGT, shift, b.constant(_DOUBLE_BIT + 1, b.i64))
        nudge = b.op("arith.select", [large, nudge, zero], b.i64)
    known = isinstance(multiplier, (int, np.ndarray))
    factor = b.grid(np.asarray(multiplier), b.i64) if known else multiplier
    product = b.op("arith.muli", [value, factor], b.i64)
    return emit_shift(b, b.op("arith.addi", [product, nudge], b.i64), shift, "tosa-single-round")


# -- operands -------------------------------------------------------------------------------------


def _parameter(b: TensorBuilder, parameter: Any) -> Any:
    """A multiplier or shift as a number, a grid, or a 64-bit tensor of the builder's shape."""
    if isinstance(parameter, np.ndarray):
        return parameter if parameter.ndim else int(parameter)
    return _broadcast(b, parameter, signed=True)


def _zero_point(b: TensorBuilder, zero_point: Any, tensor: RescaleTensor) -> Any:
    if isinstance(zero_point, int):
        return b.constant(zero_point, b.i64)
    return _broadcast(b, zero_point, tensor.storage.signed)


def _broadcast(b: TensorBuilder, vector: Any, signed: bool) -> Any:
    """A tensor of one element, or of one for each index of the last axis, as 64-bit integers."""
    extent = int(vector.type.shape[0])
    wide = _extend(TensorBuilder(vector), vector, signed)
    if extent != 1:
        return b.broadcast(wide, [b.rank - 1])
    scalar = ir.RankedTensorType.get([], b.i64)
    return b.broadcast(TensorBuilder.op(b, "stablehlo.reshape", [wide], scalar), [])


def _extend(b: TensorBuilder, value: Any, signed: bool) -> Any:
    """Widen to 64 bits; a type that is itself unsigned is converted as such."""
    is_signless = element_type(value.type).is_signless
    return b.op("arith.extui" if is_signless and not signed else "arith.extsi", [value], b.i64)


def _check_width(tensor: RescaleTensor, op: Any) -> None:
    if tensor.storage.width not in _STABLEHLO_WIDTHS:
        raise UnsupportedError(
            f"has elements of type '{element_type(tensor.type)}', and StableHLO has no integers "
            f"of {tensor.storage.width} bits; use 2, 4, 8, 16 or 32",
            op,
        )


def _erase_if_unused(value: Any) -> None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "tosa.const":
        return
    if next(iter(value.uses), None) is None:
        owner.operation.erase()
