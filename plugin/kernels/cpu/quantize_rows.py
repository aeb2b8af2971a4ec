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
from ...emit.linalg import Extent
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

_INT8_MACS_PER_ELEMENT = 32
"""Quantizing an activation takes about as long as this many int8 MACs."""
_MAGNITUDE_MASK = 0x7FFFFFFF
"""The mask clears the sign bit of an f32."""
_MAX_UNROLL = 8
"""Up to this many vectors of a block are unrolled; longer blocks are a loop."""
_DYNAMIC_WORKGROUPS = 16
"""Workgroups where M is dynamic; with few rows some of them have none."""


@dataclass(frozen=True)
class QuantizeRows:
    """Quantization of ``M x K`` activations (f32) to int8, with row sums.

    Args:
        m: M; None where it is dynamic.
        block_size: consecutive activations that share a scale, a multiple of 4.
        lanes: f32 lanes of a vector.
        row_sum_factor: the sum of each block is multiplied by this number.
        row_bytes: bytes from a row of integers to the next; 0 for K. Those after K are not written.
    """

    m: int | None
    k: int
    block_size: int
    lanes: int
    row_sum_factor: int = 1
    row_bytes: int = 0

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: the activations; the integers ``M x row_bytes``; and for each block the bits of
        its scale (f32) and its row sum (i32), interleaved as ``M x 2 * blocks``. Two tensors would
        often be 64 KiB apart, which aliases on Zen 3 (128 rows, 4096 x 4096: Q4_K 5 % slower, int4
        2 %).
        """
        bindings = [
            Binding((None, self.k), F32),
            Binding((None, self.row_bytes or self.k), I8),
            Binding((None, 2 * (self.k // self.block_size)), I32),
        ]
        macs = None if self.m is None else _INT8_MACS_PER_ELEMENT * self.m * self.k
        return Kernel("round_rows", bindings, self._workgroups, self._body, self.m, macs=macs)

    @property
    def _workgroups(self) -> int:
        if self.m is None:
            return _DYNAMIC_WORKGROUPS
        return -(-self.m // items_per_workgroup(self.m, _INT8_MACS_PER_ELEMENT * self.k))

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: Extent) -> None:
        activations, integers, block_words = memories
        lanes = next(n for n in (self.lanes, 8, 4) if self.block_size % n == 0)
        known = Vectors(lanes).known

        def quantize_block(row: Value, block: Value) -> None:
            first = scalar(block) * self.block_size

            def max_magnitude(index: ArrayLike, greatest: ArrayLike) -> ArrayLike:
                bits = bitcast(load(activations, [row, index.value], lanes, F32), U32)
                return np.maximum(greatest, bits & _MAGNITUDE_MASK)

            # Magnitudes are ordered as their bits, with NaN last: an integer maximum suffices.
            bits = self._reduce(first, lanes, max_magnitude, known(0, U32))
            greatest = reduce_lanes("maxui", bits)
            divisor = activation_scale(bitcast(broadcast(greatest, lanes), F32))
            scale = element_at(divisor, 0)

            def quantize(index: ArrayLike, total: ArrayLike) -> ArrayLike:
                reals = load(activations, [row, index.value], lanes, F32) / divisor
                # No quotient exceeds 127 by half a unit; those of infinities and NaN are NaN.
                rounded = np.where(reals == reals, round_half_even(reals)[0], 0)
                store(convert(rounded, I8), integers, [row, index.value])
                return total + rounded

            total = self._reduce(first, lanes, quantize, known(0, I32))
            word = scalar(block) * 2
            store_element(bits_of(scale, I32), block_words, [row, word.value])
            row_sum = reduce_lanes("add", total) * self.row_sum_factor
            store_element(row_sum, block_words, [row, (word + 1).value])

        def quantize_row(row: Value) -> None:
            loop(0, self.k // self.block_size, 1, lambda block: quantize_block(row, block))

        if self._workgroups == 1:
            loop(0, rows, 1, quantize_row)
            return
        count = rows if isinstance(rows, int) else scalar(rows)
        first, end = workgroup_range(scalar(workgroup), self._workgroups, count)
        loop(first.value, end.value, 1, quantize_row)

    def _reduce(
        self,
        first: ArrayLike,
        lanes: int,
        body: Callable[[ArrayLike, ArrayLike], ArrayLike],
        initial: ArrayLike,
    ) -> ArrayLike:
        """Fold the vectors of a block: the body maps an index and the result so far to the next."""
        if self.block_size <= _MAX_UNROLL * lanes:
            for offset in range(0, self.block_size, lanes):
                initial = body(first + offset, initial)
            return initial
        end = (first + self.block_size).value

        def step(index: Value, result: ArrayLike) -> list[ArrayLike]:
            return [body(scalar(index), result)]

        [result] = loop(first.value, end, lanes, step, [initial])
        return result
