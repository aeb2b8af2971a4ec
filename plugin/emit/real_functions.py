"""Functions of reals that IREE's devices lack or compute otherwise.

**The arctangent**, which IREE lacks of f64, and computes of f32 with errors of 40 units in the last
place. The range of ``x`` is reduced by ``atan(x) = atan(c) + atan((x - c) / (1 + c x))`` with
``c`` = 0, 1/2, 1, 3/2 and infinity, to less than 0.42; there it is ``x - x * p(x * x)`` with a
polynomial. The error is less than two units in the last place.

**ceil and floor of subnormals**: devices compute with 0 instead of a subnormal. Its bits tell that
it is not 0.

Sources: FDLIBM 5.3, ``s_atan.c`` and ``e_atan2.c`` (Sun Microsystems, 1993); Cephes 2.8,
``atanf.c`` (S. Moshier).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..numerics.array_functions import bits_of
from ..numerics.element_types import F32, F64, ElementType
from .values import ArrayLike

_COEFFICIENTS = {
    F32: (3.33329491539e-1, -1.99777106478e-1, 1.38776856032e-1, -8.05374449538e-2),
    F64: (
        *(3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01),
        *(-1.11111104054623557880e-01, 9.09088713343650656196e-02, -7.69187620504482999495e-02),
        *(6.66107313738753120669e-02, -5.83357013379057348645e-02, 4.97687799461593236017e-02),
        *(-3.65315727442169155270e-02, 1.62858201153657823623e-02),
    ),
}
"""Coefficients of ``p``, from the lowest power."""
_RANGES = (
    (13 / 32, 0.0, 0.0),
    (11 / 16, 4.63647609000806093515e-01, 2.26987774529616870924e-17),
    (19 / 16, 7.85398163397448278999e-01, 3.06161699786838301793e-17),
    (39 / 16, 9.82793723247329054082e-01, 1.39033110312309984516e-17),
    (math.inf, 1.57079632679489655800e00, 6.12323399573676603587e-17),
)
"""The end of each range of ``x``, and ``atan(c)``: its f64, and the rest."""
_PI_REST = 1.2246467991473531772e-16
"""Pi less its f64."""
_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
"""Bits of the significand without the leading one."""


def _arctangent(x: ArrayLike) -> ArrayLike:
    """The arctangent of numbers that are not negative."""
    # Numerator and denominator of the reduced argument, from the last range to the first.
    numerator, denominator = x.form.known(-1.0, x.element), x
    high, low = (x.form.known(number, x.element) for number in _split_constant(x, _RANGES[-1]))
    for range_, above, below in (
        (_RANGES[3], x - 1.5, 1.5 * x + 1.0),
        (_RANGES[2], x - 1.0, x + 1.0),
        (_RANGES[1], 2.0 * x - 1.0, x + 2.0),
        (_RANGES[0], x, x.form.known(1.0, x.element)),
    ):
        is_below = x < range_[0]
        known, rest = _split_constant(x, range_)
        numerator = np.where(is_below, above, numerator)
        denominator = np.where(is_below, below, denominator)
        high, low = np.where(is_below, known, high), np.where(is_below, rest, low)
    reduced = numerator / denominator
    square = reduced * reduced
    *coefficients, last = _COEFFICIENTS[x.element]
    polynomial = square * last
    for coefficient in reversed(coefficients):
        polynomial = (polynomial + coefficient) * square
    return high - ((reduced * polynomial - low) - reduced)


def _split_constant(x: ArrayLike, range_: tuple[float, float, float]) -> tuple[float, float]:
    """The number of a range in the element type of ``x``, and the rest of it."""
    _, known, rest = range_
    if x.element == F64:
        return known, rest
    return float(np.float32(known)), float(known - np.float32(known).astype(np.float64))


def angle_of(y: ArrayLike, x: ArrayLike, is_left: ArrayLike) -> ArrayLike:
    """The angle from 0 to pi of a point above the axis.

    Args:
        y: f32 or f64 greater than 0; infinite only where `x` is finite.
        x: any number, whose sign does not matter.
        is_left: the sign of `x` is negative.
    """
    angle = _arctangent(np.abs(y) / np.abs(x))
    pi, rest = _split_constant(x, (math.inf, math.pi, _PI_REST))
    return np.where(is_left, pi - (angle - rest), angle)


def signed_bits(x: ArrayLike) -> ArrayLike:
    """The bits of floats, as signed integers of their width."""
    return bits_of(x, ElementType.parse(f"i{x.element.bits}"))


def with_sign(magnitude: ArrayLike, sign: ArrayLike) -> ArrayLike:
    """A number that is not negative, negated where the sign bit of another is set."""
    return np.where(signed_bits(sign) < 0, -magnitude, magnitude)


def ceil(x: ArrayLike, ordinary: Callable[[ArrayLike], ArrayLike]) -> ArrayLike:
    """Return ``ceil``; a positive subnormal, detected by its bits, gives 1."""
    bits = signed_bits(x)
    is_subnormal = (bits > 0) & (bits < _least_normal(x))
    return np.where(is_subnormal, 1.0, ordinary(x))


def floor(x: ArrayLike, ordinary: Callable[[ArrayLike], ArrayLike]) -> ArrayLike:
    """Return ``floor``; a negative subnormal, detected by its bits, gives -1."""
    bits = signed_bits(x)
    least = -1 << (x.element.bits - 1)
    is_subnormal = (bits > least) & (bits < least + _least_normal(x))
    return np.where(is_subnormal, -1.0, ordinary(x))


def _least_normal(x: ArrayLike) -> int:
    """The bits of the least normal number."""
    return 1 << _MANTISSA[str(x.element)]
