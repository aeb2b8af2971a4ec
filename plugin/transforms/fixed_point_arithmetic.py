"""Fixed-point scaling as integer operations: `subquant.numerics.fixed_point`, step by step.

Each function repeats the NumPy reference in 64-bit arithmetic, for a scalar builder in the body of
a loop or a `TensorBuilder` for whole tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dialects.quant import element_type
from ..numerics.fixed_point import FixedPointRounding
from .requantization import resize

__all__ = ["emit_scale", "emit_shift"]

_SLT, _SGE, _SGT = 2, 5, 4  # arith.cmpi predicates


def emit_scale(
    b: Any, value: Any, multiplier: Any, shift: Any, rounding: FixedPointRounding
) -> Any:
    """Emit `subquant.numerics.fixed_point.apply_scale`.

    Args:
        b: a `Builder`, or one with `grid` for arrays.
        value: integers of up to 32 bits (48 with 15-bit multipliers), as i32, i48 or i64.
        multiplier, shift: ints, integer arrays (for a builder with `grid`), or integer values.
        rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`.

    Returns:
        The scaled integers as i64.
    """
    wide = resize(b, value, b.i64) if element_type(value.type).width < 64 else value
    m, s = _operand(b, multiplier), _operand(b, shift)
    if rounding == "gemmlowp":
        return _gemmlowp(b, wide, m, s)
    product = b.op("arith.muli", [wide, m], b.i64)
    if rounding != "tosa-double-round":
        return emit_shift(b, product, shift, rounding)
    total = b.op("arith.addi", [product, _double_half(b, wide, s, _half(b, shift, s))], b.i64)
    return b.op("arith.shrsi", [total, s], b.i64)


def emit_shift(b: Any, product: Any, shift: Any, rounding: FixedPointRounding) -> Any:
    """Emit the rounding right shift of a product or a sum of products.

    Args:
        b: as for `emit_scale`.
        product: integers as i64.
        shift: as for `emit_scale`.
        rounding: ``half-away-from-zero``, ``gemmlowp`` as that, or else half up.
    """
    s = _operand(b, shift)
    half = _half(b, shift, s)
    if rounding not in ("half-away-from-zero", "gemmlowp"):
        return b.op("arith.shrsi", [b.op("arith.addi", [product, half], b.i64), s], b.i64)
    zero = b.constant(0, b.i64)
    negated = b.op("arith.subi", [zero, product], b.i64)
    negative = b.compare(_SLT, product, zero)
    magnitude = b.op("arith.select", [negative, negated, product], b.i64)
    total = b.op("arith.addi", [magnitude, half], b.i64)
    rounded = b.op("arith.shrsi", [total, s], b.i64)
    opposite = b.op("arith.subi", [zero, rounded], b.i64)
    return b.op("arith.select", [negative, opposite, rounded], b.i64)


def _operand(b: Any, number: Any) -> Any:
    if isinstance(number, (int, np.integer)):
        return b.constant(int(number), b.i64)
    if isinstance(number, np.ndarray):
        return b.grid(number, b.i64)
    return resize(b, number, b.i64) if element_type(number.type).width < 64 else number


def _known(shift: Any) -> np.ndarray[Any, Any] | None:
    """The shifts as an array where they are known when the program is made."""
    return np.asarray(shift) if isinstance(shift, (int, np.integer, np.ndarray)) else None


def _half(b: Any, shift: Any, s: Any) -> Any:
    """``2**(shift - 1)``, and 0 for a shift of 0."""
    known = _known(shift)
    if known is not None:
        halves = np.where(known > 0, np.int64(1) << np.maximum(known - 1, 0).astype(np.int64), 0)
        return _operand(b, halves if halves.ndim else int(halves))
    zero, one = b.constant(0, b.i64), b.constant(1, b.i64)
    less = b.op("arith.maxsi", [b.op("arith.subi", [s, one], b.i64), zero], b.i64)
    power = b.op("arith.shli", [one, less], b.i64)
    return b.op("arith.select", [b.compare(_SGT, s, zero), power, zero], b.i64)


def _double_half(b: Any, value: Any, s: Any, half: Any) -> Any:
    """Half, and ``2**30`` with the sign of the value where the shift is more than 31."""
    zero = b.constant(0, b.i64)
    up, down = b.constant(1 << 30, b.i64), b.constant(-(1 << 30), b.i64)
    extra = b.op("arith.select", [b.compare(_SGE, value, zero), up, down], b.i64)
    large = b.compare(_SGT, s, b.constant(31, b.i64))
    added = b.op("arith.select", [large, extra, zero], b.i64)
    return b.op("arith.addi", [half, added], b.i64)


def _gemmlowp(b: Any, value: Any, m: Any, s: Any) -> Any:
    zero, one, base = b.constant(0, b.i64), b.constant(1, b.i64), b.constant(31, b.i64)

    def op(name: str, *operands: Any) -> Any:
        return b.op(f"arith.{name}", list(operands), b.i64)

    left = op("maxsi", op("subi", base, s), zero)
    right = op("maxsi", op("subi", s, base), zero)
    shifted = op("shli", value, op("minsi", left, base))
    shifted = op("minsi", shifted, b.constant((1 << 31) - 1, b.i64))
    shifted = op("maxsi", shifted, b.constant(-(1 << 31), b.i64))
    product = op("muli", shifted, m)
    positive = b.compare(_SGE, product, zero)
    nudges = [b.constant(1 << 30, b.i64), b.constant(1 - (1 << 30), b.i64)]
    total = op("addi", product, b.op("arith.select", [positive, *nudges], b.i64))
    negated = op("subi", zero, op("shrsi", op("subi", zero, total), base))
    plain = op("shrsi", total, base)
    halved = b.op("arith.select", [b.compare(_SGE, total, zero), plain, negated], b.i64)
    mask = op("subi", op("shli", one, right), one)
    remainder = op("andi", halved, mask)
    negative = b.op("arith.select", [b.compare(_SLT, halved, zero), one, zero], b.i64)
    threshold = op("addi", op("shrsi", mask, one), negative)
    up = b.op("arith.select", [b.compare(_SGT, remainder, threshold), one, zero], b.i64)
    return op("addi", op("shrsi", halved, right), up)
