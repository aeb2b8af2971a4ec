"""Quantization kernel: rows of f32 activations to int8, with a scale for each block.

`subquant.numerics.block_contraction` has the formulas, which are applied to vectors here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel, items_per_workgroup
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    Vectors,
    bitcast,
    broadcast,
    element_at,
    load,
    loop,
    reduce_lanes,
    store,
    store_element,
    workgroup_range,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.block_contraction import activation_scale
from ...numerics.element_types import F32, I8, I32, U32
from ..isa.base import round_half_even
from .activation_layout import ActivationLayout, BlockWord

_INT8_MACS_PER_ELEMENT = 32
"""Quantizing an activation takes about as long as this many int8 MACs."""
_MAGNITUDE_MASK = 0x7FFFFFFF
"""The mask clears the sign bit of an f32."""
_MAX_UNROLL = 8
"""Vectors of a block that are unrolled, at most; longer blocks are a loop."""
_DYNAMIC_WORKGROUPS = 16
"""Workgroups if M is dynamic; they share the rows, and some have none if M is less."""


@dataclass(frozen=True)
class QuantizeRows:
    """Quantization of ``M x K`` activations (f32) to int8, with row sums.

    Args:
        m: M; None where it is dynamic.
        layout: the layout of the results; blocks have a multiple of 4 activations.
        scale_size: consecutive activations that share a scale, those of one or several blocks.
        lanes: f32 lanes of a vector.
        row_sum_factor: the sum of each block is multiplied by this number.
    """

    m: int | None
    layout: ActivationLayout
    scale_size: int
    lanes: int
    row_sum_factor: int = 1

    @property
    def k(self) -> int:
        """The activations of a row."""
        return self.layout.k

    @property
    def block_size(self) -> int:
        """The consecutive activations that have a row sum."""
        return self.layout.block_size

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: the activations; the integers; and the words of blocks, interleaved without
        panels. Two tensors would often be 64 KiB apart, which aliases on Zen 3 (128 rows, 4096 x
        4096: Q4_K 5 % slower, int4 2 %).
        """
        layout = self.layout
        bindings = [Binding((None, self.k), F32), layout.integers(I8), layout.block_words]
        macs = None if self.m is None else _INT8_MACS_PER_ELEMENT * self.m * self.k
        return Kernel("quantize_rows", bindings, self._workgroups, self._body, self.m, macs=macs)

    @property
    def _workgroups(self) -> int:
        if self.m is None:
            return _DYNAMIC_WORKGROUPS
        return -(-self.m // items_per_workgroup(self.m, _INT8_MACS_PER_ELEMENT * self.k))

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: DimSize) -> None:
        activations, integers, block_words = memories
        lanes = next(n for n in (self.lanes, 8, 4) if self.block_size % n == 0)
        known = Vectors(lanes).known

        def quantize_superblock(row: Value, number: Value) -> None:
            def max_magnitude(index: ArrayLike, greatest: ArrayLike) -> ArrayLike:
                bits = bitcast(load(activations, [row, index.value], lanes, F32), U32)
                return np.maximum(greatest, bits & _MAGNITUDE_MASK)

            # Magnitudes are ordered as their bits, with NaN last: an integer maximum suffices.
            first = scalar(number) * self.scale_size
            bits = self._reduce(first, self.scale_size, lanes, max_magnitude, known(0, U32))
            greatest = reduce_lanes("maxui", bits)
            divisor = activation_scale(bitcast(broadcast(greatest, lanes), F32))
            scale = element_at(divisor, 0)

            def quantize(index: ArrayLike, total: ArrayLike) -> ArrayLike:
                reals = load(activations, [row, index.value], lanes, F32) / divisor
                # No quotient exceeds 127 by half a unit; those of infinities and NaN are NaN.
                rounded = np.where(reals == reals, round_half_even(reals)[0], 0)
                store(convert(rounded, I8), integers, self.layout.integer_index(row, index.value))
                return total + rounded

            count = self.scale_size // self.block_size

            def quantize_block(own: Value) -> None:
                start = first + scalar(own) * self.block_size
                block = (scalar(number) * count + scalar(own)).value

                def store_word(word: BlockWord, content: ArrayLike) -> None:
                    store_element(content, block_words, self.layout.word_index(row, block, word))

                total = self._reduce(start, self.block_size, lanes, quantize, known(0, I32))
                store_word(BlockWord.SCALE, bits_of(scale, I32))
                row_sum = reduce_lanes("add", total)
                store_word(BlockWord.SUM, row_sum * self.row_sum_factor)
                if self.layout.words > BlockWord.SCALED_SUM:
                    store_word(BlockWord.SCALED_SUM, bits_of(convert(row_sum, F32) * scale, I32))

            if count == 1:
                quantize_block(constant_index(0))
            else:
                loop(0, count, 1, quantize_block)

        def quantize_row(row: Value) -> None:
            loop(0, self.k // self.scale_size, 1, lambda block: quantize_superblock(row, block))

        if self._workgroups == 1:
            loop(0, rows, 1, quantize_row)
            return
        count = rows if isinstance(rows, int) else scalar(rows)
        first, end = workgroup_range(scalar(workgroup), self._workgroups, count)
        loop(first.value, end.value, 1, quantize_row)

    def _reduce(
        self,
        first: ArrayLike,
        size: int,
        lanes: int,
        body: Callable[[ArrayLike, ArrayLike], ArrayLike],
        initial: ArrayLike,
    ) -> ArrayLike:
        """Fold vectors of `size` elements: the body maps an index and the result to the next."""
        if size <= _MAX_UNROLL * lanes:
            for offset in range(0, size, lanes):
                initial = body(first + offset, initial)
            return initial
        end = (first + size).value

        def step(index: Value, result: ArrayLike) -> list[ArrayLike]:
            return [body(scalar(index), result)]

        [result] = loop(first.value, end, lanes, step, [initial])
        return result
