"""``tosa.rescale``: what its operands and attributes say.

The bindings have no operation classes for TOSA, so operations are known by name. A rescale is

    y = clamp(apply_scale(x - input_zp, multiplier[c], shift[c]) + output_zp)

with ``c`` the index along the last axis (``per_channel``) or 0. Multipliers are i32 with
``scale32 = true``, else i16; the zero points have the width of the tensors, and the flags
``input_unsigned`` and ``output_unsigned`` say how the bits of tensors and zero points are read.

Source: TOSA specification 1.0, ``RESCALE``, and the verifier of upstream's ``tosa.rescale``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..core.option_fields import FixedPointRounding
from ..errors import UnsupportedError, VerificationError
from ..numerics.element_types import Array
from ..numerics.fixed_point import MAX_SHIFT
from ..numerics.parameters import StorageType
from .dense import CONSTANTS, constant_array
from .quant import element_type, parameters_of

MIN_SHIFT = 2
"""The least shift that TOSA allows; upstream's verifier does not look."""

ROUNDING_MODES: dict[str, FixedPointRounding] = {
    "SINGLE_ROUND": "tosa-single-round",
    "INEXACT_ROUND": "tosa-inexact-round",
    "DOUBLE_ROUND": "tosa-double-round",
}
"""The roundings of `subquant.numerics.fixed_point`, by the name that TOSA gives them."""

_CONSTANTS = ("tosa.const", *CONSTANTS)


@dataclass(frozen=True)
class RescaleTensor:
    """The input or the output of a rescale, as its bits are read.

    Args:
        storage: width, sign and range of the integers. A quantized type says its own sign and
            range; for other types the flag of the operation or an unsigned type does.
    """

    type: ir.RankedTensorType
    storage: StorageType
    is_quantized: bool

    @staticmethod
    def of(value: Value, flag: bool, op: Operation) -> RescaleTensor:
        """Read a value's type.

        Raises:
            UnsupportedError: a type that is not a ranked tensor of integers of 2 to 32 bits, plain
                or quantized.
        """
        type_ = value.type
        if not isinstance(type_, ir.RankedTensorType):
            raise UnsupportedError(f"has a value of type '{type_}'; expected a ranked tensor", op)
        parameters = parameters_of(type_, op)
        if parameters is not None:
            return RescaleTensor(type_, parameters.storage, True)
        element = element_type(type_)
        if not isinstance(element, ir.IntegerType) or not 2 <= element.width <= 32:
            raise UnsupportedError(
                f"has elements of type '{element}', expected integers of 2 to 32 bits; "
                "StableHLO has none between 32 and 64",
                op,
            )
        signed = not (flag or element.is_unsigned)
        return RescaleTensor(type_, StorageType(element.width, signed), False)

    @property
    def is_unsigned_type(self) -> bool:
        """True for ``ui8`` and the like, whose conversions StableHLO reads as unsigned."""
        element = element_type(self.type)
        return isinstance(element, ir.IntegerType) and bool(element.is_unsigned)


@dataclass(frozen=True)
class RescaleView:
    """A ``tosa.rescale`` read.

    Attributes:
        multiplier, shift: integer arrays of shape () or with one dimension for each axis (1 but
            for the last), or the operands where they are not constants.
        input_zero_point, output_zero_point: numbers, or operands.
        rounding: of `subquant.numerics.fixed_point`.
        scale32: whether multipliers have 31 bits and not 15.
    """

    source: RescaleTensor
    result: RescaleTensor
    multiplier: Array | Value
    shift: Array | Value
    input_zero_point: int | Value
    output_zero_point: int | Value
    rounding: FixedPointRounding
    scale32: bool
    per_channel: bool

    @staticmethod
    def of(op: Operation) -> RescaleView:
        """Read an operation.

        Raises:
            UnsupportedError: types that `RescaleTensor` refuses.
            VerificationError: a constant multiplier or shift that TOSA does not define.
        """
        flags = {
            name: bool(op.attributes[name].value)
            for name in ("scale32", "per_channel", "input_unsigned", "output_unsigned")
        }
        source = RescaleTensor.of(op.operands[0], flags["input_unsigned"], op)
        result = RescaleTensor.of(op.results[0], flags["output_unsigned"], op)
        rank = len(source.type.shape)
        multiplier = _parameter(op.operands[1], rank)
        shift = _parameter(op.operands[2], rank)
        _check_range(multiplier, 0, (1 << 31) - 1, "multiplier", op)
        _check_range(shift, 0, MAX_SHIFT, "shift", op)
        mode = str(op.attributes["rounding_mode"]).partition("<")[2].rstrip(">")
        rounding = ROUNDING_MODES[mode]
        if not flags["scale32"]:
            rounding = "tosa-single-round"  # TOSA has no other with multipliers of 15 bits
        return RescaleView(
            source,
            result,
            multiplier,
            shift,
            _zero_point(op.operands[3], source.storage),
            _zero_point(op.operands[4], result.storage),
            rounding,
            flags["scale32"],
            flags["per_channel"],
        )


def _parameter(value: Value, rank: int) -> Array | Value:
    constant = constant_array(value, _CONSTANTS)
    if constant is None:
        return value
    if constant.size == 1:
        return constant.reshape(())
    return constant.reshape([1] * (rank - 1) + [constant.size])


def _zero_point(value: Value, storage: StorageType) -> int | Value:
    constant = constant_array(value, _CONSTANTS)
    if constant is None:
        return value
    number = int(constant.reshape(-1)[0])
    return number if storage.signed else number & ((1 << storage.width) - 1)


def _check_range(parameter: Array | Value, low: int, high: int, what: str, op: Operation) -> None:
    """Refuse constants beyond the range that TOSA allows."""
    if isinstance(parameter, np.ndarray):
        wrong = parameter[(parameter < low) | (parameter > high)]
        if wrong.size:
            raise VerificationError(
                f"has a {what} of {int(wrong[0])}, expected {low} to {high}", op
            )
