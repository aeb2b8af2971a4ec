"""GPU kernel that converts f32 activations to f16, for cooperative matrices (Vulkan).

The activations of a block of K share a scale::

    x[m, k] = scale[m, b] * sum_i term[i, m, k]

With int8 activations there is one term, of integers from -127 to 127
(`subquant.numerics.block_contraction`). Float activations have three terms of 11 bits each, which
are exact: the scale is a power of two, so that the greatest magnitude of the block is from 2**14 to
2**15 in f16. Bits below ``2**-29`` of it may be lost.

Infinities and NaN are in the first term, and zeros in the others.

Terms are ``M / side x K / side`` matrices, whose elements are adjacent in memory. A thread has a
block of a row, as in `quantize_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.gpu_threads import for_each_thread
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import (
    broadcast,
    load_element,
    loop,
    quotient,
    remainder,
    store_element,
    workgroup_id,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.block_contraction import activation_scale
from ...numerics.element_types import F16, F32, I32
from .quantize_rows import INT8_CAST, K_PACK, block_maximum, block_of_thread

FLOAT_TERMS = 3
"""The terms of an f32: 24 bits in terms of 11."""
_LOW_BITS = 13
"""The bits of an f32 that an f16 does not have."""
_F32_BIAS, _F32_FRACTION_BITS, _MAX_F16_EXPONENT = 127, 23, 15


@dataclass(frozen=True)
class GpuHalfRows:
    """Conversion of ``M x K`` activations (f32) to f16.

    Args:
        m: M, a multiple of `side`; None where it is dynamic.
        scale_size: consecutive activations that share a scale, a multiple of `block_size`.
        block_size: consecutive activations of a thread, a multiple of 4; each block gets its scale.
        threads: of a workgroup.
        side: the rows and columns of a matrix.
        terms: 1 for int8 activations, `FLOAT_TERMS` for floats.
    """

    m: int | None
    k: int
    scale_size: int
    block_size: int
    threads: int
    side: int
    terms: int

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are activations, terms, and scales by rows of matrices."""
        blocks = self.k // self.block_size
        bindings = [
            Binding((None, self.k), F32, K_PACK),
            *[Binding((None, self.k), F16, K_PACK)] * self.terms,
            Binding((None, blocks), F32),
        ]
        workgroups = -(-blocks // self.threads)
        return Kernel("half_rows", bindings, workgroups, self._body, self.m, self.threads)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        activations, *terms, scales = memories
        row, blocks = scalar(workgroup_id(0)), self.k // self.block_size
        words = self.block_size // K_PACK
        row_of_matrices, own_row = quotient(row, self.side), remainder(row, self.side)

        def convert_block(thread: Value) -> None:
            block = block_of_thread(workgroup, thread, self.threads, blocks)
            first = (row * blocks + block) * words
            maximum = block_maximum(
                *(activations, row * blocks + block, self.scale_size, self.block_size)
            )
            factor, scale = _power_of_two(maximum)
            if self.terms == 1:
                scale = activation_scale(maximum)
            position = (row_of_matrices * blocks + block) * self.side + own_row
            store_element(scale, scales, [position.value])

            def convert_word(index: Value) -> None:
                vector = load_element(activations, [(first + scalar(index)).value])
                halves = (
                    [INT8_CAST.quantize(vector, broadcast(scale, K_PACK))]
                    if self.terms == 1
                    else _terms(vector * broadcast(factor, K_PACK))
                )
                target = self._word(row_of_matrices, own_row, block * words + scalar(index))
                for half, term in zip(halves, terms, strict=True):
                    store_element(convert(convert(half, F32), F16), term, [target.value])

            loop(0, words, 1, convert_word)

        for_each_thread(self.threads, convert_block)

    def _word(self, row: ArrayLike, own_row: ArrayLike, word: ArrayLike) -> ArrayLike:
        """The index of a word of a row, among the words of the matrices."""
        words = self.side // K_PACK
        matrix = row * (self.k // self.side) + quotient(word, words)
        return (matrix * self.side + own_row) * words + remainder(word, words)


def _power_of_two(maximum: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """A power of two that scales a magnitude to the exponent 14, and its reciprocal; normal f32."""
    exponent = bits_of(maximum, I32) >> _F32_FRACTION_BITS
    scaled = 2 * _F32_BIAS + _MAX_F16_EXPONENT - 1 - exponent
    scaled = np.minimum(scaled, 2 * _F32_BIAS - 1)
    reciprocal = 2 * _F32_BIAS - scaled
    return tuple(bits_of(each << _F32_FRACTION_BITS, F32) for each in (scaled, reciprocal))


def _terms(vector: ArrayLike) -> list[ArrayLike]:
    """Split f32 into terms that are f16, whose sum it is."""
    terms, rest = [], vector
    for _ in range(FLOAT_TERMS - 1):
        high = bits_of(bits_of(rest, I32) & -(1 << _LOW_BITS), F32)
        high = np.where(rest == rest, high, rest)  # a NaN may have low bits only
        terms.append(high)
        rest = rest - high
        rest = np.where(rest == rest, rest, 0.0)  # an infinity minus itself
    return [*terms, rest]
