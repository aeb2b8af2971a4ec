"""The kernel that rounds rows of activations to 8 bits, a scale for each block of them.

`subquant.numerics.block_contraction` has the formulas, which are used here on vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
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
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.block_contraction import activation_scale
from ...numerics.element_types import F32, I8, I32, U32
from ..isa.base import round_half_even
from ..kernel import Binding, Kernel
from ..workgroups import MAX_LARGE_WORKGROUPS

__all__ = ["QuantizeRows"]

_AS_LONG = 32
"""How many products of bytes take as long as to round one activation, about."""
_MAGNITUDE = 0x7FFFFFFF
"""The bits of an f32 but its sign."""
_WRITTEN_OUT = 8
"""Vectors of a block that are kept in registers; longer blocks are read twice."""


_LEAST_ROWS = 8
"""Of a workgroup: 128 rows of 2048 take a thread 0.3 ms, which is a tenth of their product."""


@dataclass(frozen=True)
class QuantizeRows:
    """Round ``rows x depth`` activations (f32) to integers of 8 bits, and sum these.

    Args:
        rows: None where that is known at run time only.
        depth: how many activations a row has.
        block: how many share a scale; a multiple of 4.
        lanes: of f32 in a vector.
        factor: what sums are multiplied by.
    """

    rows: int | None
    depth: int
    block: int
    lanes: int
    factor: int = 1

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are the activations; and as results the integers (``rows x depth``), and for each
        block of each row the bits of the scale, f32, and the sum times `factor`, side by side
        (``rows x 2 * depth / block``, i32). In tensors of their own they would often be 64 KiB
        apart, which Zen 3 takes for the same memory at first: a product of 128 rows with 4096 x
        4096 weights of Q4_K would take 5 % longer, of int4 2 %.
        """
        bindings = [
            Binding((None, self.depth), F32),
            Binding((None, self.depth), I8),
            Binding((None, 2 * (self.depth // self.block)), I32),
        ]
        workgroups = 1 if self.rows is None else -(-self.rows // self._together)
        products = None if self.rows is None else _AS_LONG * self.rows * self.depth
        return Kernel("round_rows", bindings, workgroups, self._body, self.rows, macs=products)

    @property
    def _together(self) -> int:
        """How many rows a workgroup has, where they are known."""
        return max(_LEAST_ROWS, -(-(self.rows or 0) // MAX_LARGE_WORKGROUPS))

    def _body(self, memories: Sequence[Value], number: Value, rows: Extent) -> None:
        given, integers, of_blocks = memories
        lanes = next(n for n in (self.lanes, 8, 4) if self.block % n == 0)
        known = Vectors(lanes).known

        def of_block(row: Value, block: Value) -> None:
            first = scalar(block) * self.block

            def greater(place: ArrayLike, so_far: ArrayLike) -> ArrayLike:
                bits = bitcast(load(given, [row, place.value], lanes, F32), U32)
                return np.maximum(so_far, bits & _MAGNITUDE)

            # Bits of magnitudes are in their order, and those of NaN are above: one instruction.
            greatest = reduce_lanes("maxui", self._folded(first, lanes, greater, known(0, U32)))
            divisor = activation_scale(bitcast(broadcast(greatest, lanes), F32))
            scale = element_at(divisor, 0)

            def round_(place: ArrayLike, total: ArrayLike) -> ArrayLike:
                reals = load(given, [row, place.value], lanes, F32) / divisor
                # No quotient is more than 127 by half a unit; those of infinities and NaN are NaN.
                rounded = np.where(reals == reals, round_half_even(reals)[0], 0)
                store(convert(rounded, I8), integers, [row, place.value])
                return total + rounded

            total = self._folded(first, lanes, round_, known(0, I32))
            place = scalar(block) * 2
            store_element(bits_of(scale, I32), of_blocks, [row, place.value])
            total = reduce_lanes("add", total) * self.factor
            store_element(total, of_blocks, [row, (place + 1).value])

        def of_row(row: Value) -> None:
            loop(0, self.depth // self.block, 1, lambda block: of_block(row, block))

        if self.rows is None or self.rows <= self._together:
            loop(0, rows, 1, of_row)
            return
        start = scalar(number) * self._together
        end = start + self._together
        if self.rows % self._together:
            end = np.minimum(end, self.rows)
        loop(start.value, end.value, 1, of_row)

    def _folded(
        self,
        first: ArrayLike,
        lanes: int,
        body: Callable[[ArrayLike, ArrayLike], ArrayLike],
        start: ArrayLike,
    ) -> ArrayLike:
        """What a function makes of the vectors of a block, of the position of each and so far."""
        if self.block <= _WRITTEN_OUT * lanes:
            for place in range(0, self.block, lanes):
                start = body(first + place, start)
            return start
        last = (first + self.block).value
        [found] = loop(
            first.value, last, lanes, lambda p, so_far: [body(scalar(p), so_far)], [start]
        )
        return found
