"""Output tiles of CPU kernels: fused epilogue, exact fallback, and stores."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import load, loop, scratch, slice_lanes, store, store_with_tail, when
from ...numerics.element_types import I32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..pack.packed_weight import Tiles


class OutputTile:
    """The i32 accumulators of some output pixels and a tile of N, and their stores.

    It is constructed at the beginning of a kernel, where it allocates `accumulators` if they are
    spilled to memory: the epilogue is then emitted once, as a loop over them.

    Args:
        pixels: the output pixels that are computed together, or are in memory together.
        result: ``rows x pixels x N``.
        in_memory: the kernel itself writes accumulators to memory.

    Attributes:
        accumulators: ``pixels x NR``, i32.
    """

    def __init__(
        self,
        tiles: Tiles,
        pixels: int,
        epilogue: FusedEpilogue | None,
        tables: Sequence[Value],
        result: Value,
        *,
        in_memory: bool,
    ) -> None:
        self._tiles, self._pixels, self._result = tiles, pixels, result
        self._epilogue, self._tables = epilogue, tables
        if in_memory or (epilogue and epilogue.needs_fallback):
            self.accumulators = scratch([pixels, tiles.nr], I32)

    @property
    def _estimated_vectors(self) -> int:
        """The number of vectors whose f32 estimates are computed together; 0 for none."""
        return self._epilogue.vectors_per_estimate if self._epilogue else 0

    def write(
        self, accumulators: Sequence[ArrayLike], row: ArrayLike, pixel: ArrayLike, tile: ArrayLike
    ) -> None:
        """Apply the epilogue to accumulators in registers, and store the results.

        Each pixel, from `pixel` in the row on, has an accumulator for each vector of the tile.
        """
        vectors, lanes = self._tiles.vectors, self._tiles.lanes
        first = scalar(constant_index(0))
        if self._estimated_vectors:
            pixels = [pixel + index for index in range(self._pixels)]
            needs_fallback = self._write_estimates(accumulators, row, pixels, tile)

            def fall_back() -> None:
                self.spill(accumulators)
                self._write_exactly(first, self._pixels, row, pixel, tile)

            if needs_fallback is not None:
                when(needs_fallback, fall_back)
        elif self._epilogue:
            self.spill(accumulators)
            self._write_exactly(first, self._pixels, row, pixel, tile)
        else:
            positions = np.ndindex(self._pixels, vectors)
            for accumulator, (index, n) in zip(accumulators, positions, strict=True):
                self._store(accumulator, [row.value, (pixel + index).value], tile, n * lanes)

    def spill(self, accumulators: Sequence[ArrayLike], first: ArrayLike | None = None) -> None:
        """Store accumulators, as for `write`, to memory from the pixel `first` on (None for 0)."""
        positions = self._positions(len(accumulators), first)
        for accumulator, position in zip(accumulators, positions, strict=True):
            store(accumulator, self.accumulators, position)

    def reload(self, first: ArrayLike, pixels: int) -> list[ArrayLike]:
        """Load the accumulators of pixels from memory."""
        positions = self._positions(pixels * self._tiles.vectors, first)
        lanes = self._tiles.lanes
        return [load(self.accumulators, position, lanes, I32) for position in positions]

    def _positions(self, count: int, first: ArrayLike | None) -> list[list[Value | int]]:
        """The indices of vectors of accumulators in memory."""
        lanes, vectors = self._tiles.lanes, self._tiles.vectors
        pixels = [n if first is None else (first + n).value for n in range(count // vectors)]
        return [[pixel, n * lanes] for pixel in pixels for n in range(vectors)]

    def pixels_per_group(self, pixels: int) -> int:
        """The pixels of a group of `write_group`."""
        if not self._estimated_vectors:
            return 1
        return min(pixels, max(1, self._estimated_vectors // self._tiles.vectors))

    def groups(self, pixels: int) -> int:
        """The number of groups of `write_group`; the last two may share pixels."""
        return -(-pixels // self.pixels_per_group(pixels))

    def write_group(
        self,
        group: ArrayLike,
        pixels: int,
        first: ArrayLike,
        row: ArrayLike,
        pixel: ArrayLike,
        tile: ArrayLike,
    ) -> None:
        """Apply the epilogue to a group of accumulators in memory, and store the results.

        All groups have `pixels` pixels, from `first` in memory on. The group is at `row` and
        `pixel` of the result.
        """
        size, vectors, lanes = self.pixels_per_group(pixels), self._tiles.vectors, self._tiles.lanes
        offset = group * size
        if pixels % size:
            offset = np.minimum(offset, pixels - size)
        first, pixel = first + offset, pixel + offset
        if not self._estimated_vectors:
            self._write_exactly(first, size, row, pixel, tile)
            return
        accumulators = [
            load(self.accumulators, [(first + index).value, n * lanes], lanes, I32)
            for index in range(size)
            for n in range(vectors)
        ]
        own_pixels = [pixel + index for index in range(size)]
        needs_fallback = self._write_estimates(accumulators, row, own_pixels, tile)
        if needs_fallback is not None:
            when(needs_fallback, lambda: self._write_exactly(first, size, row, pixel, tile))

    def _write_estimates(
        self,
        accumulators: Sequence[ArrayLike],
        row: ArrayLike,
        pixels: Sequence[ArrayLike],
        tile: ArrayLike,
    ) -> ArrayLike | None:
        """Store f32 estimates; return whether one needs the exact fallback (None for never)."""
        epilogue, vectors, lanes = self._epilogue, self._tiles.vectors, self._tiles.lanes
        assert epilogue is not None
        width = min(epilogue.vectors_per_estimate, vectors)
        slices = [
            (index, range(n, min(n + width, vectors)))
            for index in range(len(pixels))
            for n in range(0, vectors, width)
        ]
        conditions, count = [], max(1, epilogue.vectors_per_estimate // width)
        for start in range(0, len(slices), count):
            group = slices[start : start + count]
            operands = [accumulators[index * vectors + n] for index, own in group for n in own]
            columns = [tile * self._tiles.nr + n * lanes for _, own in group for n in own]
            numbers = [n for _, own in group for n in own]
            estimate, needs_fallback = epilogue.estimate(self._tables, operands, columns, numbers)
            if needs_fallback is not None:
                conditions.append(needs_fallback)
            lane = 0
            for index, own in group:
                vector = slice_lanes(estimate, lane, len(own) * lanes)
                self._store(vector, [row.value, pixels[index].value], tile, own.start * lanes)
                lane += len(own) * lanes
        return functools.reduce(operator.or_, conditions) if conditions else None

    def _write_exactly(
        self, first: ArrayLike, pixels: int, row: ArrayLike, pixel: ArrayLike, tile: ArrayLike
    ) -> None:
        """Apply the exact epilogue to accumulators in memory, and store the results.

        The loop over pixels is the inner one, so that the tables of a vector are loaded once.
        """
        lanes, epilogue = self._tiles.lanes, self._epilogue

        def write_vector(offset: Value) -> None:
            def write_pixel(index: Value) -> None:
                memory = [(first + scalar(index)).value, offset]
                accumulator = load(self.accumulators, memory, lanes, I32)
                position = [row.value, (pixel + scalar(index)).value]
                if epilogue is None:
                    self._store(accumulator, position, tile, scalar(offset))
                    return
                column = tile * self._tiles.nr + scalar(offset)

                def write() -> None:
                    vector = epilogue.emit(self._tables, accumulator, column)
                    self._store(vector, position, tile, scalar(offset))

                if epilogue.vectors_per_estimate:  # only vectors near a tie are written again
                    _, needs_fallback = epilogue.estimate(self._tables, [accumulator], [column])
                    assert needs_fallback is not None  # callers test this
                    when(needs_fallback, write)
                else:
                    write()

            loop(0, pixels, 1, write_pixel)

        loop(0, self._tiles.nr, lanes, write_vector)

    def _store(
        self, vector: ArrayLike, row: Sequence[Value], tile: ArrayLike, offset: ArrayLike | int
    ) -> None:
        """Store consecutive vectors of a tile to a row, without the lanes at N or beyond."""
        n, nr, lanes = self._tiles.n, self._tiles.nr, self._tiles.lanes
        column, width = tile * nr + offset, vector.form.lanes

        def store_each() -> None:
            for lane in range(0, width, lanes):
                own = slice_lanes(vector, lane, lanes)
                store_with_tail(own, self._result, row, n, column + lane, nr)

        if width == lanes or n % nr == 0:
            store_with_tail(vector, self._result, row, n, column, nr)
        else:
            is_inside = column + width <= n
            when(is_inside, lambda: store(vector, self._result, [*row, column.value]), store_each)
