"""Fixed-point scaling: a real factor as an integer multiplier and a right shift.

``value * factor`` becomes ``value * multiplier / 2**shift``, rounded to an integer. The multiplier
has 31 bits (30 to 31 significant ones), so the product of a 32-bit value fits 64 bits; TOSA's
``scale32 = false`` has 15 bits, for values of up to 48.

Roundings, by name (``p = value * multiplier``, ``s = shift``):

* ``half-up``: ``(p + 2**(s - 1)) >> s``, ties towards plus infinity. The lowering document's
  "Requantization Scaling", and TOSA's SINGLE_ROUND.
* ``half-away-from-zero``: the magnitude of ``p`` rounded half up, with its sign.
* ``gemmlowp``: gemmlowp's and LiteRT's double rounding: a saturating, rounding high half of
  ``2 * value * multiplier`` (half up), then a rounding shift (half away from zero).
  Factors of 1 and more shift the value left before; it saturates where that leaves 32 bits, which
  LiteRT leaves undefined.
* ``tosa-single-round``: as ``half-up``.
* ``tosa-inexact-round``: TOSA leaves it to the implementation; here as ``tosa-single-round``.
* ``tosa-double-round``: ``p`` plus ``2**30`` with the sign of the value where ``s > 31``, then as
  ``tosa-single-round``. TOSA has it for multipliers of 31 bits only.

Every rounding is at most one step away from the exact real product, and its shift is 0 to 62.

Formulas are in 64-bit integers, on NumPy's arrays and on the values of a program alike.

Sources: "Lowering quantized operations to integer arithmetic", step 4; TOSA specification,
``RESCALE`` and ``apply_scale_32``, ``apply_scale_16``; gemmlowp, ``fixedpoint.h``; LiteRT,
``MultiplyByQuantizedMultiplier``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import get_args

import numpy as np
import numpy.typing as npt

from ..core.option_fields import FixedPointRounding
from ..errors import UsageError
from .array_functions import convert, is_zero
from .element_types import I64, AnyArray, Array
from .parameters import StorageType

__all__ = [
    "MAX_SHIFT",
    "ROUNDINGS",
    "apply_scale",
    "divide_by_power",
    "high_product",
    "multiplier_and_shift",
    "rescale",
    "saturate",
    "shift_right",
]

ROUNDINGS: tuple[FixedPointRounding, ...] = get_args(FixedPointRounding)
MAX_SHIFT = 62
"""The greatest right shift; a smaller factor loses bits of its multiplier, as TOSA's does."""


def multiplier_and_shift(real: npt.ArrayLike | Fraction, bits: int = 31) -> tuple[Array, Array]:
    """Return the fixed-point form of positive factors.

    Args:
        real: positive factors, finite: floats, `Fraction`, or an array.
        bits: the bits of the multiplier, 31 or 15.

    Returns:
        Multipliers and shifts, int64 arrays of the shape of `real`: the factor is
        ``multiplier / 2**shift`` to within ``2**-bits`` of itself. A factor of ``2**bits`` and more
        becomes the greatest that there is, ``2**bits - 1``: any value but 0 saturates with it.
        A factor below ``2**(bits - 63)`` loses a bit of its multiplier for each power of two, and
        is 0 at last.

    Raises:
        UsageError: a factor that is not positive and finite, or another number of bits.
    """
    if bits not in (15, 31):
        raise UsageError(f"expected a multiplier of 15 or 31 bits, got {bits}")
    factors = np.asarray(real, object)
    pairs = [_pair(factor, bits) for factor in factors.reshape(-1)]
    multipliers = np.array([pair[0] for pair in pairs], np.int64).reshape(factors.shape)
    shifts = np.array([pair[1] for pair in pairs], np.int64).reshape(factors.shape)
    return multipliers, shifts


def _pair(factor: Fraction | float, bits: int) -> tuple[int, int]:
    if not isinstance(factor, Fraction):
        number = float(factor)
        if not math.isfinite(number):
            raise UsageError(f"expected a finite factor, got {number}")
        factor = Fraction(number)
    if factor <= 0:
        raise UsageError(f"expected a positive factor, got {float(factor)}")
    # factor = mantissa * 2**exponent with 1/2 <= mantissa < 1
    exponent = factor.numerator.bit_length() - factor.denominator.bit_length()
    if factor >= Fraction(2) ** exponent:
        exponent += 1
    multiplier = round(factor / Fraction(2) ** exponent * (1 << bits))
    if multiplier == 1 << bits:
        multiplier, exponent = multiplier >> 1, exponent + 1
    shift = bits - exponent
    if shift < 0:
        return (1 << bits) - 1, 0
    if shift > MAX_SHIFT:
        multiplier >>= min(bits, shift - MAX_SHIFT)
        shift = MAX_SHIFT
    return multiplier, shift


def apply_scale(
    values: AnyArray,
    multiplier: AnyArray,
    shift: AnyArray,
    rounding: FixedPointRounding = "half-up",
) -> AnyArray:
    """Scale integers.

    Args:
        values: integers of up to 32 bits (48 with multipliers of 15 bits).
        multiplier, shift: as `multiplier_and_shift` gives them; they broadcast with `values`.
        rounding: one of `ROUNDINGS`.

    Returns:
        64-bit integers, not saturated (``gemmlowp`` saturates to 32 bits on the way, as it does).

    Raises:
        UsageError: an unknown rounding.
    """
    if rounding not in ROUNDINGS:
        raise UsageError(f"expected a rounding among {', '.join(ROUNDINGS)}, got '{rounding}'")
    v, m, s = (convert(number, I64) for number in (values, multiplier, shift))
    if rounding == "gemmlowp":
        # LiteRT's: `shift` counts from the product, its own from the high half: 31 less.
        left, right = np.maximum(31 - s, 0), np.maximum(s - 31, 0)
        shifted = np.clip(v << np.minimum(left, 31), -(1 << 31), (1 << 31) - 1)
        return divide_by_power(high_product(shifted, m), right)
    product = v * m
    if rounding == "tosa-double-round":
        # Half of the first of TOSA's two roundings, with the sign of the value, where there is one.
        product = product + np.where(s > 31, np.where(v >= 0, 1 << 30, -(1 << 30)), 0)
    return shift_right(product, s, rounding)


def shift_right(products: AnyArray, shift: AnyArray, rounding: FixedPointRounding) -> AnyArray:
    """Shift 64-bit products, or sums of products, to the right, rounded.

    Args:
        products: 64-bit integers.
        shift: 64-bit integers, 0 to 62, which broadcast with `products`.
        rounding: ``half-away-from-zero``, ``gemmlowp`` as that, or else half up.
    """
    half = np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
    if rounding not in ("half-away-from-zero", "gemmlowp"):
        return (products + half) >> shift
    negative = products < 0
    magnitude = (np.where(negative, -products, products) + half) >> shift
    return np.where(negative, -magnitude, magnitude)


def high_product(values: AnyArray, multiplier: AnyArray, bits: int = 31) -> AnyArray:
    """``values * multiplier / 2**bits``, half up: ``SaturatingRoundingDoublingHighMul``.

    It adds ``2**(bits - 1)``, or ``1 - 2**(bits - 1)`` to negative products, and divides towards
    zero: for those that is the floor of one less than ``2**bits`` more. It does not saturate.

    Args:
        values, multiplier: integers of 32 bits in 64 (of 16 in 32), not both the least.
        bits: 31, or 15.
    """
    return (values * multiplier + (1 << (bits - 1))) >> bits


def divide_by_power(values: AnyArray, exponent: AnyArray) -> AnyArray:
    """``values / 2**exponent``, ties away from zero: gemmlowp's ``RoundingDivideByPOT``.

    Exponents are 0 to 31.
    """
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (values < 0)
    return (values >> exponent) + ((values & mask) > threshold)


def saturate(values: AnyArray, storage: StorageType, bound: int | None = None) -> AnyArray:
    """Clamp integers to a storage range, and narrow them to the storage type.

    Args:
        values: signed integers, wider than the storage type.
        bound: the greatest magnitude of `values`; a clamp that cannot act is left out.
    """
    if bound is None or bound > storage.maximum:
        values = np.minimum(values, storage.maximum)
    if bound is None or -bound < storage.minimum:
        values = np.maximum(values, storage.minimum)
    return convert(values, storage.element)


def rescale(
    values: AnyArray,
    multiplier: AnyArray,
    shift: AnyArray,
    zero_points: tuple[AnyArray, AnyArray],
    rounding: FixedPointRounding,
) -> AnyArray:
    """TOSA's ``RESCALE`` to i64, not saturated: ``apply_scale(value - input_zp) + output_zp``.

    Args:
        values: integers of up to 32 bits, or 48 with multipliers of 15 bits.
        multiplier, shift: numbers, arrays, or values of a program, of up to 64 bits.
        zero_points: of the input and of the output, in the same forms.
    """
    wide = convert(values, I64)
    before, after = zero_points
    if not is_zero(before):
        wide = wide - convert(before, I64)
    scaled = apply_scale(wide, multiplier, shift, rounding)
    return scaled if is_zero(after) else scaled + convert(after, I64)
