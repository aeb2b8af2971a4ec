"""Binary formats of numbers: significand bits and exponents, which tell where products are exact.

A product of two floats has at most as many significand bits as both factors together. Where a
converted type or a constant bounds them, and they fit the float type, the product is not rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType

PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
"""Bits of the significand."""
_SMALLEST = {"f16": -24, "bf16": -133, "f32": -149, "f64": -1074}
"""Exponents of the smallest subnormal numbers."""
_LARGEST = {"f16": 16, "bf16": 128, "f32": 128, "f64": 1024}
"""Exponents that bound all finite numbers."""


@dataclass(frozen=True)
class BinaryFormat:
    """Format of finite numbers ``m * 2**e``; infinities and NaN stay so in any order.

    Attributes:
        bits: ``|m| < 2**bits``.
        smallest: all numbers are multiples of ``2**smallest``.
        largest: all magnitudes are less than ``2**largest``.
    """

    bits: int
    smallest: int
    largest: int

    @classmethod
    def of_type(cls, expressed: ExpressedType) -> BinaryFormat:
        """The format of a float type."""
        name = expressed.value
        return cls(PRECISION[name], _SMALLEST[name], _LARGEST[name])

    @classmethod
    def of_integers(cls, low: int, high: int) -> BinaryFormat:
        """The format of the integers of a range."""
        bits = max(abs(low), abs(high)).bit_length()
        return cls(bits, 0, bits)

    @classmethod
    def of_numbers(cls, numbers: Array) -> BinaryFormat | None:
        """The format of a constant's elements; None if one is not finite."""
        reals = numbers.astype(np.float64).reshape(-1)
        if not np.isfinite(reals).all():
            return None
        reals = reals[reals != 0]
        if not reals.size:
            return cls(0, 0, 0)
        significands, exponents = np.frexp(reals)
        odd = np.abs(np.ldexp(significands, 53)).astype(np.int64)
        zeros = np.log2(odd & -odd).astype(np.int64)  # below the last bit that is 1
        return cls(
            int((53 - zeros).max()),
            int((exponents - 53 + zeros).min()),
            int(exponents.max()),
        )

    def __mul__(self, other: BinaryFormat) -> BinaryFormat:
        return BinaryFormat(
            self.bits + other.bits, self.smallest + other.smallest, self.largest + other.largest
        )

    def fits(self, expressed: ExpressedType) -> bool:
        """True if a float type represents all numbers."""
        return self.has_bits_of(expressed) and self.largest <= _LARGEST[expressed.value]

    def has_bits_of(self, expressed: ExpressedType) -> bool:
        """True if a float type represents all numbers, except those too large for it."""
        name = expressed.value
        return self.bits <= PRECISION[name] and self.smallest >= _SMALLEST[name]
