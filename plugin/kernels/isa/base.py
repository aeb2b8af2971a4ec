"""Instruction sets of CPUs: dot products of 8-bit integers, register blocking, and rounding.

A vector has ``lanes`` lanes of 32 bits, each of which accumulates one column ``n`` of the weight. A
*k-pack* is the number of consecutive ``k`` that one instruction multiplies within a lane. In a
blockwise GEMM a k-pack is four bytes of a row of activations, broadcast to all lanes, and four
bytes of each column of the weight. One operand is unsigned and one signed::

    accumulator[lane] += sum_i weight[lane, i] * activation[i]          (i32, exact)

Each subclass states its instructions and why no intermediate result saturates. All instruction sets
give the same accumulators.

Where both operands are signed bytes, as in int8 convolutions, both are converted before to the type
that the instruction multiplies (`multiplicand_type`), and a k-pack has `k_pack` of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...emit import ArrayLike
from ...emit.vectors import (
    Vectors,
    bitcast,
    broadcast,
    constant_vector,
    fma,
    intrinsic,
    scheduling_barrier,
    shuffle_lanes,
    slice_lanes,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I16, I32, U8, Array, ElementType

_ACTIVATION_COST_IN_VECTORS = 0.5
"""Loading activations for a tile costs about as much as half a vector of columns."""
_ROUNDING_SHIFT = np.float32(1.5 * 2**23)
"""The sum of this number and a number below 2**22 has no fraction."""
_MAX_UNCLAMPED = 2.0**21
"""`round_half_even` is exact below 2**22; half of that is margin."""


@dataclass(frozen=True)
class Accumulator:
    """Dot products that are being accumulated in the lanes of a vector.

    Attributes:
        i32: the part that is already widened to i32.
        i16: partial sums, two i16 a lane, that are still to be widened and added. There are several
            where the unsigned operand is split into digits of 4 bits, the lowest first.
        free_k_packs: number of k-packs that fit `i16` before it could overflow.
    """

    i32: ArrayLike
    i16: tuple[ArrayLike, ...] = ()
    free_k_packs: int = 0


def round_half_even(reals: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """Round floats below 2**22 half to even by + 1.5 * 2**23 (``roundeven``: 30 operations).

    The addition rounds to the unit in the last place, so that the lowest bits of the sum are the
    integer. IREE expands ``math.roundeven`` to 30 operations. Results are i32, and floats.
    """
    shifted = reals + _ROUNDING_SHIFT
    return bits_of(shifted, I32) - int(_ROUNDING_SHIFT.view(np.int32)), shifted - _ROUNDING_SHIFT


class InstructionSet(ABC):
    """Instructions and register limits of a CPU target.

    Attributes:
        name: spelling in pass options.
        features: LLVM names of the features that the target must have.
        processor_features: features that only tell the processor family; no kernel uses their
            instructions.
        lanes: columns in a vector.
        mr: MR of blockwise GEMMs, the rows of a register block.
        max_vectors_blockwise, max_vectors_int8: NR in vectors, of blockwise and of int8 weights.
        mr_float, max_vectors_float: MR, and NR in vectors, of weights of floats.
        vector_registers: number of vector registers.
        max_accumulators: register limit of int8 kernels.
        max_accumulators_pipelined: the same while the epilogue of the previous register block runs
            between the multiplications; 0 where it does not.
        max_accumulators_gemv: accumulators of a GEMV that reads several tiles side by side.
        prefetch_bytes_gemv: prefetch distance of a blockwise weight; 0 for none. Several streams
            hide memory latency better than one: a 4096 x 4096 int4 GEMV takes 0.80 ms without
            prefetch, 0.64 with, 0.56 with four tiles side by side, which is the speed of a plain
            read (Emerald Rapids, one thread).
        prefetch_bytes_float: the same of a weight of floats, f32 too.
        prefetch_bytes_gemm: the same where a tile is read once for each MR rows.
        prefetch_bytes_int8: the same of an int8 weight, each byte of which is read once.
        k_packs_per_barrier: k-packs between scheduling barriers, of weights of one and of two bit
            planes.
        adds_initial_value_last: the initial accumulator of a block is added after the products, and
            takes no register meanwhile.
        register_constraint: inline-assembly constraint of a vector register, for scheduling
            barriers; "" where there are none.
        k_pack: multiplicands that are multiplied in a lane.
        multiplicand_type: type that bytes are converted to for that.
        sign_offset: number added to activations to make them unsigned (+128 for VPDPBUSD).
        has_amx_tiles: AMX computes int8 GEMMs of many rows.
        vectors_per_narrowing: vectors of i32 that are narrowed to bytes together.
        pack_intrinsics: prefix and suffix of LLVM's saturating pack intrinsics.
        has_fma: `fma` rounds once.
        shuffle_intrinsic: LLVM's byte shuffle of 16-byte tables; "" for none. A negative index
            gives 0.
        shuffle_reads_low_bits: an index of 16 or more, and not negative, counts modulo 16; else it
            gives 0, too.
        f32_permute_intrinsic: LLVM's permutation of a vector of f32; "" for none. Its operands are
            the vector and indices for AVX-512 and AVX2.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]] = frozenset()
    processor_features: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[int]
    mr: ClassVar[int] = 4
    max_vectors_blockwise: ClassVar[int] = 1
    max_vectors_int8: ClassVar[int] = 2
    mr_float: ClassVar[int] = 6
    max_vectors_float: ClassVar[int] = 2
    vector_registers: ClassVar[int] = 16
    max_accumulators: ClassVar[int] = 8
    max_accumulators_pipelined: ClassVar[int] = 0
    max_accumulators_gemv: ClassVar[int] = 4
    prefetch_bytes_gemv: ClassVar[int] = 2048
    prefetch_bytes_float: ClassVar[int] = 2048
    prefetch_bytes_gemm: ClassVar[int] = 2048
    prefetch_bytes_int8: ClassVar[int] = 8192
    k_packs_per_barrier: ClassVar[tuple[int, int]] = 2, 2
    adds_initial_value_last: ClassVar[bool] = False
    register_constraint: ClassVar[str] = ""
    k_pack: ClassVar[int] = 4
    multiplicand_type: ClassVar[ElementType] = I8
    sign_offset: ClassVar[int] = 0
    has_amx_tiles: ClassVar[bool] = False
    vectors_per_narrowing: ClassVar[int] = 1
    pack_intrinsics: ClassVar[tuple[str, str]] = "", ""
    has_fma: ClassVar[bool] = True
    shuffle_intrinsic: ClassVar[str] = ""
    shuffle_reads_low_bits: ClassVar[bool] = True
    f32_permute_intrinsic: ClassVar[str] = ""

    @property
    def name_without_tiles(self) -> str:
        """Name of the instruction set that computes everything but AMX kernels."""
        return self.name

    @property
    def family(self) -> str:
        """Name of the instruction set without the vendor: ``avx512vnni`` of ``avx512vnni-amd``."""
        return self.name

    # -- register blocking -------------------------------------------------------------------------

    def vectors_per_tile(self, n: int, limit: int) -> int:
        """Return NR in vectors, at most `limit`: the one that computes the fewest padding columns.

        A tie goes to the larger number, which loads activations less often.
        """
        count = -(-n // self.lanes)
        choices = range(min(limit, count), 0, -1)
        return min(choices, key=lambda nr: -(-count // nr) * (nr + _ACTIVATION_COST_IN_VECTORS))

    def pixels_per_tile(self, vectors: int, *, is_pipelined: bool = False) -> int:
        """Return MR of int8 kernels: the output pixels whose accumulators fit the registers.

        NR has `vectors` vectors. With `is_pipelined` the previous register block's epilogue shares
        the registers.
        """
        return (
            self.max_accumulators_pipelined if is_pipelined else self.max_accumulators
        ) // vectors

    def tiles_per_gemv(self, rows: int, vectors: int) -> int:
        """Return the number of weight tiles that a GEMV of few rows reads side by side."""
        return max(1, self.max_accumulators_gemv // (rows * vectors))

    def tiles_per_gemm(self, rows: int, vectors: int, max_unsigned: int) -> int:
        """Return the number of weight tiles that a GEMM of many rows multiplies together.

        MR is `rows`, NR is `vectors` vectors, and `max_unsigned` the weight's greatest integer.
        """
        return 1

    # -- multiplication ----------------------------------------------------------------------------

    @abstractmethod
    def add_dot(
        self, accumulator: Accumulator, unsigned: ArrayLike, signed: ArrayLike, max_unsigned: int
    ) -> Accumulator:
        """Add the dot products of a k-pack of four bytes in each lane.

        Args:
            accumulator: the sums so far.
            unsigned: u8, ``lanes * 4`` of them.
            signed: i8, as many; one of both operands comes from `broadcast_k_pack`.
            max_unsigned: greatest unsigned integer.
        """

    @abstractmethod
    def add_products(
        self, accumulator: ArrayLike, activations: ArrayLike, weight: ArrayLike
    ) -> ArrayLike:
        """Add the products of `k_pack` multiplicands in each lane to an i32 accumulator.

        There are ``lanes * k_pack`` activations, of `multiplicands`, and as many weights, of
        `multiplicand_type`.
        """

    def multiplicands(self, activations: ArrayLike) -> ArrayLike:
        """Convert i8 activations to the type that is multiplied, with the sign offset."""
        wide = convert(activations, self.multiplicand_type)
        return wide ^ -self.sign_offset if self.sign_offset else wide

    def shuffle_lookup(self, table: Sequence[int], indices: ArrayLike) -> ArrayLike:
        """Look bytes up in a table of 16 bytes, by `shuffle_intrinsic`.

        A vector has as many u8 indices as bytes.
        """
        count = self.lanes * 4
        entries = constant_vector([*table] * (count // len(table)), U8)
        return intrinsic(self.shuffle_intrinsic, [entries, indices], U8, count)

    def byte_table_rows(self, table: Array) -> Array:
        """Return the 16 rows of 16 bytes that `byte_lookup` reads, of a table of 256 bytes."""
        halves = table.view(np.uint8).reshape(2, 8, 16)
        rows = halves.copy()
        if self.shuffle_reads_low_bits:
            rows[:, 1:] ^= halves[:, :-1]
        return rows.reshape(16, 16)

    def byte_lookup(self, rows: Sequence[ArrayLike], indices: ArrayLike) -> ArrayLike:
        """Look bytes up in a table of 256 bytes, by 16 shuffles.

        Each half of the table has eight rows. Row ``n`` is shuffled by ``index - 16 * n``, which is
        negative, so that the byte is 0, in lanes whose index is in an earlier row or in the other
        half. If ``shuffle_reads_low_bits``, lanes whose index is in a later row get a byte as well:
        row ``n`` is then ``T[n] ^ T[n - 1]``, and the result ``T[n]`` is the XOR of the rows up to
        ``n``.

        Args:
            rows: vectors of u8 with `byte_table_rows`, each repeated to the width of a vector.
            indices: a vector of i8, as many as bytes; each counts as unsigned.
        """
        count, result = self.lanes * 4, None
        sixteen = Vectors(count).known(16, I8)
        for position, half in ((indices, rows[:8]), (indices ^ -128, rows[8:])):
            for number, row in enumerate(half):
                if number:
                    position = intrinsic("llvm.ssub.sat", [position, sixteen], I8, count)
                entries = intrinsic(self.shuffle_intrinsic, [row, position], U8, count)
                result = entries if result is None else result ^ entries
        return result

    def f32_lookup(self, levels: Sequence[float], indices: ArrayLike) -> ArrayLike:
        """Look f32 up in a table of 16 levels, by `f32_permute_intrinsic`.

        A vector has a u32 index in each lane, of which the lowest four bits count: a permutation of
        16 lanes reads no more of them, and one of 8 lanes three, so that the fourth selects one of
        two permutations.
        """
        if not self.f32_permute_intrinsic:
            return self._selected_level(levels, indices, 8)
        lanes, words = self.lanes, bits_of(indices, I32)
        halves = []
        for first in range(0, len(levels), lanes):
            table = constant_vector(levels[first : first + lanes], F32)
            halves.append(intrinsic(self.f32_permute_intrinsic, [table, words], F32, lanes))
        if len(halves) == 1:
            return halves[0]
        return np.where((words << 28) < 0, halves[1], halves[0])

    def _selected_level(self, levels: Sequence[float], indices: ArrayLike, bit: int) -> ArrayLike:
        """Select a level by the bits of indices from `bit` down."""
        if len(levels) == 1:
            return Vectors(self.lanes).known(levels[0], F32)
        half = len(levels) // 2
        low, high = (
            self._selected_level(part, indices, bit // 2) for part in (levels[:half], levels[half:])
        )
        return np.where((indices & bit) != 0, high, low)

    def i32_of(self, accumulator: Accumulator) -> ArrayLike:
        """Return the accumulator as i32, with its i16 parts widened and added."""
        return accumulator.i32

    def fma(self, left: ArrayLike, right: ArrayLike, addend: ArrayLike) -> ArrayLike:
        """Compute ``left * right + addend`` of floats, rounded once if `has_fma`."""
        return fma(left, right, addend)

    def broadcast_k_pack(self, word: ArrayLike, element: ElementType) -> ArrayLike:
        """Broadcast a 32-bit k-pack to all lanes, as elements of a type."""
        return bitcast(broadcast(word, self.lanes), element)

    def with_barrier(self, accumulator: Accumulator) -> Accumulator:
        """Put a scheduling barrier after an accumulator: LLVM moves none of its operations past."""
        if not self.register_constraint:
            return accumulator
        if accumulator.i16:
            i16 = tuple(
                scheduling_barrier(each, self.register_constraint) for each in accumulator.i16
            )
            return replace(accumulator, i16=i16)
        return replace(
            accumulator, i32=scheduling_barrier(accumulator.i32, self.register_constraint)
        )

    # -- rounding and narrowing of the epilogue ----------------------------------------------------

    def clamp_for_rounding(
        self, reals: ArrayLike, max_magnitude: float, low: int, high: int
    ) -> ArrayLike:
        """Clamp floats to the range in which `round_to_i32` is exact.

        Their magnitude is at most `max_magnitude`. Numbers beyond `low` and `high` may become any
        integer that is beyond too.
        """
        if max_magnitude < _MAX_UNCLAMPED:
            return reals
        return np.minimum(np.maximum(reals, np.float32(low)), np.float32(high))

    def round_to_i32(self, reals: ArrayLike) -> ArrayLike:
        """Round floats to the nearest i32, ties to even."""
        return round_half_even(reals)[0]

    def distance_to_integer(self, reals: ArrayLike) -> ArrayLike:
        """Return the signed distances of floats from their nearest integers."""
        return reals - round_half_even(reals)[1]

    def max_magnitude(self, vectors: Sequence[ArrayLike]) -> ArrayLike:
        """Return the greatest magnitude in each lane of vectors of floats without NaN.

        Magnitudes are ordered as their bits are: one integer maximum replaces the five instructions
        of a float maximum, which looks for NaN.
        """
        result, *rest = (bits_of(np.abs(each), I32) for each in vectors)
        for each in rest:
            result = np.maximum(result, each)
        return bitcast(result, F32)

    def narrow_to_8_bits(self, vectors: Sequence[ArrayLike], element: ElementType) -> ArrayLike:
        """Narrow at most `vectors_per_narrowing` vectors of i32 to one of I8 or U8, saturated.

        x86 packs within 128-bit lanes, so that a permutation of words follows.
        """
        prefix, suffix = self.pack_intrinsics
        count = len(vectors)
        if not prefix:
            assert count == 1
            low, high = (0, 255) if element == U8 else (-128, 127)
            return convert(np.clip(vectors[0], low, high), element)
        four = [vectors[min(each, count - 1)] for each in range(4)]

        def packed(name: str, operands: Sequence[ArrayLike], result: ElementType) -> ArrayLike:
            lanes = self.lanes * 32 // result.bits
            return intrinsic(f"{prefix}.{name}{suffix}", operands, result, lanes)

        halves = [packed("packssdw", four[first : first + 2], I16) for first in (0, 2)]
        name = "packuswb" if element == U8 else "packsswb"
        words = bitcast(packed(name, halves, element), I32)
        words_per_vector = self.lanes // 4
        order = [4 * word + vector for vector in range(4) for word in range(words_per_vector)]
        return slice_lanes(
            bitcast(shuffle_lanes(words, words, order), element), 0, count * self.lanes
        )
