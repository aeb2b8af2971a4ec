"""Blockwise GEMM kernel for GPUs with cooperative matrices (Vulkan).

::

    result[m, n] = sum_b scale[n, b] * row_scale[m, b] * dot[m, n, b]
    dot[m, n, b] = sum_k x[m, k] * (weight[n, k] - zero[n, b])     for the k of block b

Activations ``x`` are one term of f16 or three (`half_rows`), and differences of up to 9 bits are
exact in f16 too. A block is summed in chunks of at most 128 products: sums of int8 activations stay
below ``128 * 127 * 255 < 2**24``, and are exact.

A workgroup has a grid of subgroups, each of which has a grid of matrices of the result. In each
iteration over K the threads unpack the integers of the workgroup's columns to f16 in its memory, K
by K for each column, and load the scales; then the subgroups multiply. The memory is for two
iterations, so that one barrier is enough: a thread that writes for the next iteration does not
disturb one that still reads. With split-K, several workgroups have a part of K each, and another
dispatch adds the partial sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.cooperative import Matrix, load_matrix, multiply_add, store_matrix, zero_matrix
from ...emit.gpu_threads import barrier, for_each_thread, workgroup_memory
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import (
    element_at,
    from_elements,
    loop,
    quotient,
    remainder,
    store_element,
    when,
    workgroup_id,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import F16, F32
from ..pack.packed_weight import PackedWeight, Tiles
from .thread_weight import THREAD_N, KPack, StepWords, ThreadWeight, WeightMemrefs, weight_bindings

_MAX_CHUNK = 128
"""Products of int8 whose sums are exact in f32."""
_PADDING = 2
"""Vectors of four f16 after each column in the workgroup's memory: adjacent columns begin in other
banks."""


@dataclass(frozen=True)
class MatrixGrid:
    """The matrices of a workgroup.

    Attributes:
        side: the rows, columns and products of a matrix.
        subgroup: the threads of a subgroup.
        subgroups: the subgroups of a workgroup, along M and N.
        matrices: the matrices of a subgroup, along M and N.
    """

    side: int
    subgroup: int
    subgroups: tuple[int, int]
    matrices: tuple[int, int]

    @property
    def threads(self) -> int:
        """The threads of a workgroup."""
        return self.subgroup * math.prod(self.subgroups)

    @property
    def rows(self) -> int:
        """The rows of M of a workgroup."""
        return self.side * self.subgroups[0] * self.matrices[0]

    @property
    def columns(self) -> int:
        """The columns of a workgroup."""
        return self.side * self.subgroups[1] * self.matrices[1]


@dataclass(frozen=True)
class GpuMatrixGemm:
    """Blockwise GEMM with cooperative matrices.

    Args:
        weight: the planar layout of the weight, without offsets; its tiles divide the grid's
            columns.
        m: M, a multiple of the grid's rows; None where it is dynamic.
        terms: the terms of an activation.
        split_k: the number of workgroups that share K; it divides the steps.
    """

    weight: PackedWeight
    grid: MatrixGrid
    m: int | None
    terms: int
    split_k: int

    @property
    def tiles(self) -> Tiles:
        """The layout of the integers."""
        return self.weight.tiles

    @property
    def tiles_per_workgroup(self) -> int:
        """The tiles of a workgroup."""
        return self.grid.columns // self.tiles.nr

    @property
    def steps_per_iteration(self) -> int:
        """The steps of an iteration: at most as many as the threads have words to unpack."""
        words = self.tiles.plane_vectors[0] * self.grid.columns // THREAD_N
        limit, steps = max(1, self.grid.threads // words), self.tiles.steps // self.split_k
        return next(count for count in range(limit, 0, -1) if steps % count == 0)

    @property
    def k_per_iteration(self) -> int:
        """The products of an iteration."""
        return self.steps_per_iteration * self.tiles.k_per_step

    @property
    def chunk(self) -> int:
        """The products that are multiplied by one scale."""
        return math.gcd(self.tiles.block_size, self.k_per_iteration, _MAX_CHUNK)

    @property
    def column_vectors(self) -> int:
        """The vectors of four f16 from column to column in the workgroup's memory."""
        return self.k_per_iteration // THREAD_N + _PADDING

    @property
    def scale_vectors(self) -> int:
        """The vectors of four scales of an iteration."""
        return self.k_per_iteration // self.chunk * self.grid.columns // THREAD_N

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: the weight; the terms of the activations and their scales; the result, ``M x
        split_k x N``.
        """
        tiles, grid = self.tiles, self.grid
        bindings = [
            *weight_bindings(self.weight),
            *[Binding((None, tiles.k), F16)] * self.terms,
            Binding((None, tiles.k // tiles.block_size), F32),
            Binding((None, self.split_k, tiles.n), F32),
        ]
        workgroups = -(-tiles.count // self.tiles_per_workgroup) * self.split_k
        name = "matrix_gemm"
        return Kernel(name, bindings, workgroups, self._body, self.m, grid.threads, grid.rows)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        arguments = list(memories)
        memrefs = WeightMemrefs.take(self.weight, arguments)
        *terms, row_scales, result = arguments
        integers = workgroup_memory(2 * self.grid.columns * self.column_vectors, F16, THREAD_N)
        scales = workgroup_memory(2 * self.scale_vectors, F32, THREAD_N)
        memory = _Memory(memrefs, terms, row_scales, result, integers, scales)
        for_each_thread(
            self.grid.threads,
            lambda thread: _Thread(self, memory, scalar(thread), scalar(workgroup)).emit(),
        )


@dataclass(frozen=True)
class _Memory:
    """Memrefs: of the bindings, and of the workgroup's integers and scales."""

    weight: WeightMemrefs
    terms: Sequence[Value]
    row_scales: Value
    result: Value
    integers: Value
    scales: Value


@dataclass(frozen=True)
class _Thread:
    """The code of a thread."""

    gemm: GpuMatrixGemm
    memory: _Memory
    number: ArrayLike
    workgroup: ArrayLike

    def emit(self) -> None:
        """Emit the loop over K, and the stores."""
        gemm, grid, tiles = self.gemm, self.gemm.grid, self.gemm.tiles
        share = remainder(self.workgroup, gemm.split_k)
        iterations = tiles.k // gemm.k_per_iteration // gemm.split_k
        first = share * iterations

        def add(number: Value, *totals: Matrix) -> list[Matrix]:
            iteration = scalar(number)
            half = remainder(iteration, 2)
            self._unpack(iteration, half)
            self._load_scales(iteration, half)
            barrier()
            return self._multiply(iteration, half, totals)

        zeros = [zero_matrix(grid.side)] * math.prod(grid.matrices)
        totals = loop(first.value, (first + iterations).value, 1, add, zeros)
        for index, total in enumerate(totals):
            row, column = divmod(index, grid.matrices[1])
            first_row = (self._first_matrix + row) * grid.side
            first_column = self._group * grid.columns + self._first_column + column * grid.side
            start = (first_row * gemm.split_k + share) * tiles.n + first_column

            def store(total: Matrix = total, start: ArrayLike = start) -> None:
                store_matrix(total, self.memory.result, start, gemm.split_k * tiles.n)

            if tiles.n % grid.columns:
                when(first_column < tiles.n, store)
            else:
                store()

    @property
    def _group(self) -> ArrayLike:
        """The number of the workgroup's columns."""
        return quotient(self.workgroup, self.gemm.split_k)

    @property
    def _subgroup(self) -> ArrayLike:
        return quotient(self.number, self.gemm.grid.subgroup)

    @property
    def _first_matrix(self) -> ArrayLike:
        """The number of the subgroup's first row of matrices."""
        grid = self.gemm.grid
        group = scalar(workgroup_id(0)) * grid.subgroups[0]
        return (group + quotient(self._subgroup, grid.subgroups[1])) * grid.matrices[0]

    @property
    def _first_column(self) -> ArrayLike:
        """The number of the subgroup's first column among those of the workgroup."""
        grid = self.gemm.grid
        return remainder(self._subgroup, grid.subgroups[1]) * (grid.matrices[1] * grid.side)

    # -- the workgroup's memory -------------------------------------------------------------------

    def _columns(self, lane_group: ArrayLike, own_tile: ArrayLike) -> ThreadWeight:
        """Four columns of a tile of the workgroup; tiles after the last repeat it."""
        gemm, tiles = self.gemm, self.gemm.tiles
        tile = self._group * gemm.tiles_per_workgroup + own_tile
        if tiles.count % gemm.tiles_per_workgroup:
            tile = np.minimum(tile, tiles.count - 1)
        start = tile * (tiles.steps * tiles.step_bytes // (4 * THREAD_N)) + lane_group
        return ThreadWeight(gemm.weight, self.memory.weight, [tile], [start], lane_group)

    def _unpack(self, iteration: ArrayLike, half: ArrayLike) -> None:
        """Store the integers of an iteration, minus zero points, to a half of the memory."""
        gemm, grid, tiles = self.gemm, self.gemm.grid, self.gemm.tiles
        lane_groups, words = tiles.nr // THREAD_N, tiles.plane_vectors[0]
        k_packs = tiles.k_per_step // 4

        def unpack(item: ArrayLike) -> None:
            lane_group, rest = remainder(item, lane_groups), quotient(item, lane_groups)
            word, rest = remainder(rest, words), quotient(rest, words)
            own_step = remainder(rest, gemm.steps_per_iteration)
            own_tile = quotient(rest, gemm.steps_per_iteration)
            columns = self._columns(lane_group, own_tile)
            step = iteration * gemm.steps_per_iteration + own_step
            loaded = StepWords(columns, step)
            first = half * grid.columns + own_tile * tiles.nr + lane_group * THREAD_N
            for field in range(k_packs // words):
                k_pack = KPack(field, word)
                number = k_pack.number(tiles)
                block = quotient((step * k_packs + number) * 4, tiles.block_size)
                zero_point = columns.zero_points(block)[0]
                members = [
                    convert(convert(loaded.integers(k_pack, n, 0) - zero_point, F32), F16)
                    for n in range(4)
                ]
                for lane in range(THREAD_N):
                    column = from_elements([element_at(each, lane) for each in members])
                    position = (first + lane) * gemm.column_vectors + own_step * k_packs + number
                    store_element(column, self.memory.integers, [position.value])

        self._for_items(lane_groups * words * gemm.steps_per_iteration, unpack)

    def _load_scales(self, iteration: ArrayLike, half: ArrayLike) -> None:
        """Store the scales of an iteration to a half of the memory, chunk by chunk."""
        gemm, tiles = self.gemm, self.gemm.tiles
        lane_groups = tiles.nr // THREAD_N

        def load(item: ArrayLike) -> None:
            lane_group, rest = remainder(item, lane_groups), quotient(item, lane_groups)
            own_tile = remainder(rest, gemm.tiles_per_workgroup)
            columns = self._columns(lane_group, own_tile)
            block = self._block(iteration, quotient(rest, gemm.tiles_per_workgroup))
            [scale] = columns.scales(block)
            position = half * gemm.scale_vectors + item
            store_element(convert(scale, F32), self.memory.scales, [position.value])

        self._for_items(lane_groups * (gemm.k_per_iteration // gemm.chunk), load)

    def _for_items(self, per_tile: int, body: Callable[[ArrayLike], None]) -> None:
        """Distribute items of the workgroup's tiles over its threads."""
        items = per_tile * self.gemm.tiles_per_workgroup
        for first in range(0, items, self.gemm.grid.threads):
            item = self.number + first
            if items - first < self.gemm.grid.threads:
                when(item < items, functools.partial(body, item))
            else:
                body(item)

    def _block(self, iteration: ArrayLike, chunk: ArrayLike) -> ArrayLike:
        """The number of the block of a chunk."""
        k = iteration * self.gemm.k_per_iteration + chunk * self.gemm.chunk
        return quotient(k, self.gemm.tiles.block_size)

    # -- products ---------------------------------------------------------------------------------

    def _multiply(
        self, iteration: ArrayLike, half: ArrayLike, totals: Sequence[Matrix]
    ) -> list[Matrix]:
        """Add the products of an iteration, chunk by chunk."""
        gemm = self.gemm
        chunks = gemm.k_per_iteration // gemm.chunk

        def add_chunk(number: Value, *carried: Matrix) -> list[Matrix]:
            chunk = scalar(number)
            dots = self._dots(iteration, half, chunk)
            block = self._block(iteration, chunk)
            return self._add_scaled(dots, block, half * chunks + chunk, carried)

        return loop(0, chunks, 1, add_chunk, totals)

    def _dots(self, iteration: ArrayLike, half: ArrayLike, chunk: ArrayLike) -> list[Matrix]:
        """The sums of a chunk's products, by row and column of matrices."""
        gemm, grid, tiles = self.gemm, self.gemm.grid, self.gemm.tiles
        side, (rows, columns) = grid.side, grid.matrices
        dots = [zero_matrix(side)] * (rows * columns)
        per_chunk, vectors = gemm.chunk // side, side // THREAD_N
        for number in range(per_chunk):
            step = chunk * per_chunk + number
            right = []
            for column in range(columns):
                first = half * grid.columns + self._first_column + column * side
                start = first * gemm.column_vectors + step * vectors
                right.append(
                    load_matrix(
                        *(side, "BOp", self.memory.integers, start, gemm.column_vectors),
                        is_transposed=True,
                    )
                )
            k_matrix = iteration * (gemm.k_per_iteration // side) + step
            for row in range(rows):
                matrix = (self._first_matrix + row) * (tiles.k // side) + k_matrix
                for term in self.memory.terms:
                    left = load_matrix(side, "AOp", term, matrix * (side * side), side)
                    for column in range(columns):
                        index = row * columns + column
                        dots[index] = multiply_add(left, right[column], dots[index])
        return dots

    def _add_scaled(
        self,
        dots: Sequence[Matrix],
        block: ArrayLike,
        chunk: ArrayLike,
        totals: Sequence[Matrix],
    ) -> list[Matrix]:
        """Add sums times scales, which are matrices of equal rows, and of equal columns.

        `chunk` is the number of the chunk in the memory.
        """
        grid, tiles = self.gemm.grid, self.gemm.tiles
        side, (rows, columns) = grid.side, grid.matrices
        column_scales = []
        for column in range(columns):
            first = chunk * grid.columns + self._first_column + column * side
            start = quotient(first, THREAD_N)
            column_scales.append(load_matrix(side, "COp", self.memory.scales, start, 0))
        result = []
        for row in range(rows):
            matrix = (self._first_matrix + row) * (tiles.k // tiles.block_size) + block
            row_scale = load_matrix(
                side, "COp", self.memory.row_scales, matrix * side, 0, is_transposed=True
            )
            for column in range(columns):
                index = row * columns + column
                scaled = dots[index] * column_scales[column] * row_scale
                result.append(totals[index] + scaled)
        return result
