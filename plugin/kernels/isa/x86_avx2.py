"""VPMADDUBSW and VPMADDWD of AVX2: u8 x s8 products, added in pairs in 16 and in 32 bits."""

from __future__ import annotations

from ...emit import ArrayLike
from ...emit.vectors import bitcast, intrinsic
from ...numerics.element_types import I16, I32, U8, U16
from .base import Accumulator, InstructionSet

_REGISTERS = 16
"""The number of vector registers."""
_I16_MAX, _MAX_DIGIT, _MAX_SIGNED_MAGNITUDE = 2**15 - 1, 15, 128
"""The greatest i16, digit of 4 bits and magnitude of i8: sums of products of bytes stay in i16."""


class Avx2(InstructionSet):
    """AVX2: 8 columns in a vector.

    ``vpmaddubsw`` adds two products in 16 bits, which saturate. Both are at most ``2 * max_unsigned
    * 128``, so that ``32767 // (2 * max_unsigned * 128)`` k-packs are added in 16 bits before
    ``vpmaddwd`` widens them: 8 of 4-bit integers (8 * 2 * 15 * 128 = 30,720), 4 of 5 bits, 2 of 6
    bits. Two products of 8-bit integers do not fit (2 * 255 * 128 = 65,280): their low and high
    digits of 4 bits are multiplied apart.

    A scheduling barrier after every k-pack keeps LLVM from unpacking all of a step first and
    spilling it, and initial accumulators are added last: 128 rows of a 4096 x 4096 int4 GEMM take
    21.3 ms instead of 24.6 with a barrier after every other k-pack and initial accumulators first;
    of 8 bits 38.8 ms instead of 44.3 with ``vpmaddwd`` alone (code for Zen 3 on Zen 4).

    Zen 3 profits from software prefetch, unlike Zen 4: a 4096 x 4096 int4 GEMV takes 0.70 ms
    without, and 0.54 with prefetch of four tiles; a plain read takes 0.51; of 6 bits 1.12 and 0.86.
    """

    name = "avx2"
    features = frozenset(("avx2",))
    lanes, register_constraint = 8, "x"
    k_packs_per_barrier, adds_initial_value_last = (1, 1), True
    k_pack, multiplicand_type = 2, I16
    vectors_per_narrowing, pack_intrinsics = 4, ("llvm.x86.avx2", "")
    shuffle_intrinsic = "llvm.x86.avx2.pshuf.b"
    f32_permute_intrinsic = "llvm.x86.avx2.permps"

    def add_dot(
        self, accumulator: Accumulator, unsigned: ArrayLike, signed: ArrayLike, max_unsigned: int
    ) -> Accumulator:
        """Emit two instructions, or four for 8-bit integers; widen i16 sums that are full."""
        digits = [unsigned]
        if self._k_packs_in_i16(max_unsigned) == 0:
            high = bitcast(bitcast(unsigned, U16) >> 4, U8)
            digits, max_unsigned = [unsigned & _MAX_DIGIT, high & _MAX_DIGIT], _MAX_DIGIT
        if accumulator.i16 and not accumulator.free_k_packs:
            accumulator = Accumulator(self.i32_of(accumulator))
        products = tuple(
            intrinsic("llvm.x86.avx2.pmadd.ub.sw", [each, signed], I16, 2 * self.lanes)
            for each in digits
        )
        if not accumulator.i16:
            free = self._k_packs_in_i16(max_unsigned) - 1
            return Accumulator(accumulator.i32, products, free)
        pairs = zip(accumulator.i16, products, strict=True)
        i16 = tuple(partial + product for partial, product in pairs)
        return Accumulator(accumulator.i32, i16, accumulator.free_k_packs - 1)

    def tiles_per_gemm(self, rows: int, vectors: int, max_unsigned: int) -> int:
        """Return the number of tiles whose accumulators fill half of the registers.

        A load of activations serves all tiles; on Zen 3 a load costs as much as a vector
        operation: 128 rows of a 4096 x 4096 GEMM take 237 operations for 2 x 1024 products instead
        of 138 for 1024 with one tile, and four operations a cycle (64 cycles instead of 71, by
        llvm-mca; Q4_K 74 instead of 86). On Emerald Rapids Q4_K takes 30.1 ms instead of 32.5,
        Q6_K 42.4 instead of 45.2, int4 24.1 instead of 23.8.
        """
        digits = 2 if self._k_packs_in_i16(max_unsigned) == 0 else 1
        return max(1, _REGISTERS // 2 // (rows * vectors * digits))

    def add_products(
        self, accumulator: ArrayLike, activations: ArrayLike, weight: ArrayLike
    ) -> ArrayLike:
        """Emit two instructions: two products of i16 are at most 2 * 128 * 128."""
        return accumulator + self._madd(activations, weight)

    def i32_of(self, accumulator: Accumulator) -> ArrayLike:
        """Add the pairs of each i16 digit sum, times 16 for the high digit."""
        total = accumulator.i32
        for digit, partial in enumerate(accumulator.i16):
            total = total + self._madd(partial, partial.form.known(16**digit, I16))
        return total

    @staticmethod
    def _k_packs_in_i16(max_unsigned: int) -> int:
        """Return the number of k-packs whose sum is sure to fit 16 bits."""
        return _I16_MAX // (2 * max_unsigned * _MAX_SIGNED_MAGNITUDE)

    def _madd(self, left: ArrayLike, right: ArrayLike) -> ArrayLike:
        return intrinsic("llvm.x86.avx2.pmadd.wd", [left, right], I32, self.lanes)
