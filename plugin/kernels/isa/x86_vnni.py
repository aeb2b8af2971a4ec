"""VPDPBUSD of AVX512-VNNI and AVX-VNNI: u8 x s8 dot products of four bytes, added to i32.

VPDPBUSD has no intermediate result that saturates. Signed activations are biased by +128 to make
them unsigned, and ``-128 * sum_k(w)`` is folded into the initial accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ...emit import ArrayLike
from ...emit.values import Scalars
from ...emit.vectors import intrinsic
from ...numerics.element_types import F32, I16, I32, ElementType
from .base import Accumulator, InstructionSet

_AMD = "-amd"
_MAX_UNCLAMPED = 2.0**30
"""``vcvtps2dq`` is exact below 2**31; half of that is margin."""
_RANGE_MAX_MAGNITUDE = 0b1011
"""Immediate operand of ``vrangeps``: the greater magnitude, with the sign bit cleared."""
_CURRENT_ROUNDING = 4
"""Immediate operand of AVX-512 for the rounding mode of the processor."""


class _Vnni(InstructionSet):
    """``vpdpbusd`` with vectors of some width."""

    dot_intrinsic: ClassVar[str]
    sign_offset = 128

    def add_dot(
        self, accumulator: Accumulator, unsigned: ArrayLike, signed: ArrayLike, max_unsigned: int
    ) -> Accumulator:
        """Emit one instruction; it reads a signed k-pack that has one use from memory."""
        return Accumulator(self.add_products(accumulator.i32, unsigned, signed))

    def add_products(
        self, accumulator: ArrayLike, activations: ArrayLike, weight: ArrayLike
    ) -> ArrayLike:
        """Emit one instruction; `multiplicands` are unsigned."""
        operands = [accumulator, activations, weight]
        return intrinsic(self.dot_intrinsic, operands, I32, self.lanes)


class Avx512Vnni(_Vnni):
    """AVX512-VNNI: 16 columns in a vector.

    Scheduling barriers keep LLVM from loading the activations of eight k-packs first and spilling
    them: a 1x1 convolution of 64 channels takes 0.086 ms instead of 0.093 (Zen 4).
    """

    name = "avx512vnni"
    features = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vnni"))
    lanes, mr = 16, 8
    max_vectors_blockwise, max_vectors_int8 = 2, 4
    max_vectors_float = 4
    vector_registers, max_accumulators, max_accumulators_gemv = 32, 24, 8
    dot_intrinsic = "llvm.x86.avx512.vpdpbusd.512"
    vectors_per_narrowing, pack_intrinsics = 4, ("llvm.x86.avx512", ".512")
    shuffle_intrinsic = "llvm.x86.avx512.pshuf.b.512"
    f32_permute_intrinsic = "llvm.x86.avx512.permvar.sf.512"
    register_constraint = "v"

    def clamp_for_rounding(
        self, reals: ArrayLike, max_magnitude: float, low: int, high: int
    ) -> ArrayLike:
        """Clamp large numbers from above: ``vcvtps2dq`` returns INT_MIN out of range."""
        return reals if max_magnitude < _MAX_UNCLAMPED else np.minimum(reals, np.float32(high))

    def round_to_i32(self, reals: ArrayLike) -> ArrayLike:
        """Emit ``vcvtps2dq``."""
        return self._unmasked("cvtps2dq", [reals], reals.form.known(0, I32), I32)

    def distance_to_integer(self, reals: ArrayLike) -> ArrayLike:
        """Emit ``vreduceps``."""
        return self._unmasked("reduce.ps", [reals, self._scalar(0, I32)], reals, F32)

    def max_magnitude(self, vectors: Sequence[ArrayLike]) -> ArrayLike:
        """Emit ``vrangeps`` for each further vector."""
        result = vectors[0]
        for each in vectors[1:] or vectors:
            operands = [result, each, self._scalar(_RANGE_MAX_MAGNITUDE, I32)]
            result = self._unmasked("range.ps", operands, each, F32)
        return result

    def _unmasked(
        self, name: str, operands: Sequence[ArrayLike], passthrough: ArrayLike, result: ElementType
    ) -> ArrayLike:
        """Emit a masked intrinsic with a mask of ones and the current rounding mode."""
        mask, rounding = self._scalar(-1, I16), self._scalar(_CURRENT_ROUNDING, I32)
        arguments = [*operands, passthrough, mask, rounding]
        return intrinsic(f"llvm.x86.avx512.mask.{name}.512", arguments, result, self.lanes)

    @staticmethod
    def _scalar(number: int, element: ElementType) -> ArrayLike:
        return Scalars().known(number, element)


class Avx512VnniAmd(Avx512Vnni):
    """AVX512-VNNI of Zen 4 and 5, whose hardware prefetcher is best left alone.

    Software prefetch and several tiles side by side disturb it: a 4096 x 4096 int4 GEMV takes
    0.65 ms with the settings of other processors, 0.41 without prefetch, and 0.36 of one tile, the
    speed of a plain read (Zen 4, one thread). One of f32, 1024 x 2048 in the L3 cache, takes 107 us
    with a prefetch of 4,096 bytes ahead, and 87 without. Of bf16, 262144 x 640 in memory, Zen 4
    takes 10.2 instead of 12.2 ms without, and Zen 5 9.6 instead of 8.7. A GEMM does profit from
    prefetch, whose data the following rows reuse: 128 rows take 12.1 ms instead of 12.4.

    A scheduling barrier after every k-pack, instead of every other one, takes a GEMM of 128 rows
    with int4 from 14.5 to 13.1 ms, but 5 bits from 13.8 to 16.0 and 6 bits from 17.4 to 19.0.

    A 512-bit multiplication takes two cycles on Zen 4, so that a software-pipelined epilogue is
    free: a 3x3 convolution of 56x56x64 takes 0.39 ms instead of 0.48 on a busy host, MobileNet v2
    1.91 instead of 2.07. Intel's take one cycle, and would wait for the epilogue.
    """

    name = Avx512Vnni.name + _AMD
    k_packs_per_barrier = 1, 2
    processor_features = frozenset(("sse4a",))
    prefetch_bytes_gemv, prefetch_bytes_float = 0, 0
    prefetch_bytes_gemm, prefetch_bytes_int8 = 8192, 0
    max_accumulators_gemv = 1
    max_accumulators_pipelined = 16

    @property
    def family(self) -> str:
        """Name of the instruction set of all processors with AVX512-VNNI."""
        return self.name.removesuffix(_AMD)


class AvxVnni(_Vnni):
    """AVX-VNNI: 8 columns in a vector."""

    name = "avxvnni"
    features = frozenset(("avx2", "avxvnni"))
    lanes, max_vectors_blockwise, max_accumulators = 8, 2, 12
    vectors_per_narrowing, pack_intrinsics = 4, ("llvm.x86.avx2", "")
    shuffle_intrinsic = "llvm.x86.avx2.pshuf.b"
    f32_permute_intrinsic = "llvm.x86.avx2.permps"
    dot_intrinsic = "llvm.x86.avx512.vpdpbusd.256"
