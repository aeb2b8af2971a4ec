"""32-bit multiplications, for targets without dot products of bytes."""

from __future__ import annotations

from ...emit import ArrayLike
from ...emit.vectors import bitcast
from ...numerics.array_functions import convert
from ...numerics.element_types import I32, U32
from .base import Accumulator, InstructionSet


class Portable(InstructionSet):
    """Generic vectors of 8 lanes, which LLVM splits as the target needs."""

    name = "portable"
    lanes, has_fma = 8, False
    mr_float, max_vectors_float = 4, 1
    k_pack, multiplicand_type = 1, I32

    def fma(self, left: ArrayLike, right: ArrayLike, addend: ArrayLike) -> ArrayLike:
        """Round twice: without an FMA instruction, one rounding calls the C library."""
        return left * right + addend

    def add_dot(
        self, accumulator: Accumulator, unsigned: ArrayLike, signed: ArrayLike, max_unsigned: int
    ) -> Accumulator:
        """Emit four multiplications and additions, one for each byte of a lane."""
        total, left, right = accumulator.i32, bitcast(unsigned, U32), bitcast(signed, I32)
        for byte in range(4):
            unsigned_byte = convert((left >> (8 * byte)) & 255, I32)
            total = total + unsigned_byte * ((right << (24 - 8 * byte)) >> 24)
        return Accumulator(total)

    def add_products(
        self, accumulator: ArrayLike, activations: ArrayLike, weight: ArrayLike
    ) -> ArrayLike:
        """Emit a multiplication and an addition."""
        return accumulator + activations * weight
