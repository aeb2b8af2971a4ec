"""SDOT of AArch64: s8 x s8 dot products of four bytes, added to i32."""

from __future__ import annotations

from ...emit import ArrayLike
from ...emit.vectors import intrinsic
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32
from .base import Accumulator, InstructionSet

_I8_MAX = 2**7 - 1
"""The greatest i8."""


class NeonDotProduct(InstructionSet):
    """NEON with dot products: 4 columns in a vector.

    SDOT multiplies signed bytes. An unsigned integer ``w`` of 8 bits is ``(w - 128) + 128``: two
    more dot products with 64 add the sum of the k-pack times 128.
    """

    name = "neon-dotprod"
    features = frozenset(("neon", "dotprod"))
    lanes, max_vectors_float, vector_registers = 4, 4, 32
    shuffle_intrinsic = "llvm.aarch64.neon.tbl1.v16i8"
    shuffle_reads_low_bits = False

    def add_dot(
        self, accumulator: Accumulator, unsigned: ArrayLike, signed: ArrayLike, max_unsigned: int
    ) -> Accumulator:
        """Emit one instruction, or three for 8-bit integers."""
        total, left = accumulator.i32, convert(unsigned, I8)
        if max_unsigned > _I8_MAX:
            half = signed.form.known(64, I8)
            total = self.add_products(self.add_products(total, half, signed), half, signed)
            left = left ^ -128
        return Accumulator(self.add_products(total, left, signed))

    def add_products(
        self, accumulator: ArrayLike, activations: ArrayLike, weight: ArrayLike
    ) -> ArrayLike:
        """Emit one instruction."""
        operands = [accumulator, activations, weight]
        return intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", operands, I32, self.lanes)
