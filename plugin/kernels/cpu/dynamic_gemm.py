"""Int8 GEMM kernel with a dynamic M: i8 x i8 -> i32, one workgroup for each tile of N.

::

    result[m, n] = first[n] + sum_k multiplicand(x[m, k]) * weight[n, k]

`InstructionSet.multiplicands` converts activations to multiplicands, and ``first`` subtracts what
their sign offset adds to the accumulators. Accumulators are i32 and wrap, like those of IREE's
loops.

Loop nest of a workgroup: MR rows at a time, then the remaining rows one by one; within them K, of
which up to `MAX_UNROLL` k-packs are unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import load, load_element, loop, quotient, store_with_tail
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .k_loop_nest import MAX_UNROLL


@dataclass(frozen=True)
class DynamicGemm:
    """Int8 GEMM with a dynamic M; `tiles` is the layout of the packed weight."""

    tiles: Tiles
    target: InstructionSet

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are weight, initial accumulators, multiplicands, result."""
        tiles = self.tiles
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((tiles.count, tiles.nr), I32),
            Binding((None, tiles.steps), I32),
            Binding((None, tiles.n), I32),
        ]
        return Kernel("dynamic_gemm", bindings, tiles.count, self._body, None)

    def _body(self, memories: Sequence[Value], tile: Value, rows: DimSize) -> None:
        mr = self.target.pixels_per_tile(self.tiles.vectors)
        whole = (quotient(scalar(rows), mr) * mr).value
        loop(0, whole, mr, lambda row: self._write_tile(memories, tile, row, mr))
        loop(whole, rows, 1, lambda row: self._write_tile(memories, tile, row, 1))

    def _write_tile(self, memories: Sequence[Value], tile: Value, row: Value, mr: int) -> None:
        """Compute ``mr`` rows of a tile of N and store them."""
        weight, first, activations, result = memories
        tiles, target = self.tiles, self.target
        vectors, lanes, length = tiles.vectors, tiles.lanes, tiles.lanes * target.k_pack
        rows = [(scalar(row) + offset).value if offset else row for offset in range(mr)]
        initial = [load(first, [tile, n * lanes], lanes, I32) for n in range(vectors)]
        unroll = next(count for count in range(MAX_UNROLL, 0, -1) if tiles.steps % count == 0)

        def accumulate(position: Value, *carried: ArrayLike) -> list[ArrayLike]:
            accumulators = list(carried)
            for offset in range(unroll):
                k = (scalar(position) + offset).value if offset else position
                weight_vectors = [
                    convert(
                        load(weight, [tile, k, n * length], length, I8), target.multiplicand_type
                    )
                    for n in range(vectors)
                ]
                for m, row_index in enumerate(rows):
                    element = load_element(activations, [row_index, k])
                    multiplicands = target.broadcast_k_pack(element, target.multiplicand_type)
                    for n, weight_vector in enumerate(weight_vectors):
                        index = m * vectors + n
                        accumulators[index] = target.add_products(
                            accumulators[index], multiplicands, weight_vector
                        )
            return accumulators

        accumulators = loop(0, tiles.steps, unroll, accumulate, initial * mr)
        for index, accumulator in enumerate(accumulators):
            m, n = divmod(index, vectors)
            column = scalar(tile) * tiles.nr + n * lanes
            store_with_tail(accumulator, result, [rows[m]], tiles.n, column, tiles.nr)
