"""How fine and how large the numbers of a tensor are: which products are never rounded.

A product of two floats has at most as many bits as both together. Where these are known, from the
type that was converted or from a constant, and fit the float type, the product is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType

__all__ = ["PRECISION", "Grain"]

PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
"""Bits of the significand."""
_SMALLEST = {"f16": -24, "bf16": -133, "f32": -149, "f64": -1074}
_LARGEST = {"f16": 16, "bf16": 128, "f32": 128, "f64": 1024}


@dataclass(frozen=True)
class Grain:
    """Of numbers ``m * 2**e``, finite ones; what is infinite or NaN stays so in any order.

    Attributes:
        bits: ``|m| < 2**bits``.
        smallest: every number is a multiple of ``2**smallest``.
        largest: every number is less than ``2**largest``.
    """

    bits: int
    smallest: int
    largest: int

    @classmethod
    def of_type(cls, expressed: ExpressedType) -> Grain:
        """All numbers of a float type."""
        name = expressed.value
        return cls(PRECISION[name], _SMALLEST[name], _LARGEST[name])

    @classmethod
    def of_integers(cls, low: int, high: int) -> Grain:
        """All integers between bounds."""
        bits = max(abs(low), abs(high)).bit_length()
        return cls(bits, 0, bits)

    @classmethod
    def of_numbers(cls, numbers: Array) -> Grain | None:
        """The elements of a constant, or None if one is not finite."""
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

    def __mul__(self, other: Grain) -> Grain:
        return Grain(
            self.bits + other.bits, self.smallest + other.smallest, self.largest + other.largest
        )

    def fits(self, expressed: ExpressedType) -> bool:
        """True if a float type has all these numbers."""
        return self.is_fine_in(expressed) and self.largest <= _LARGEST[expressed.value]

    def is_fine_in(self, expressed: ExpressedType) -> bool:
        """True if a float type has all these numbers but those that are too large for it."""
        name = expressed.value
        return self.bits <= PRECISION[name] and self.smallest >= _SMALLEST[name]
