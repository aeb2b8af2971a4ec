"""Blockwise GEMM kernel for GPUs: activations times a block-quantized weight (Vulkan).

::

    result[m, n] = sum_k x[m, k] * ((weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b])

where ``b`` is the block of ``k``; with int8 activations::

    result[m, n] = sum_b row_scale[m, b] * (scale[n, b] * dot[m, n, b]
                                            + offset[n, b] * sum_k x[m, k])
    dot[m, n, b] = sum_k x[m, k] * (weight[n, k] - zero[n, b])

`block_products` has the arithmetic.

A thread has MR rows, and four columns of each of some tiles (`ThreadWeight`). It unpacks the words
of its columns once for its rows. Adjacent threads share the columns of a tile; a workgroup has
several groups of threads. With `k_threads`, several groups have the same columns and a part of K
each: the first of them adds the partial sums, which are in the workgroup's memory. With split-K,
several workgroups have a part of K each, and another dispatch adds theirs.

Loads take the time, not multiplications: on GPUs for their bandwidth, on Mesa's llvmpipe because it
loads for one thread after the other. An iteration of the inner loop has one word of each column:
two take llvmpipe as long, and longer code takes a device longer to translate. All rows are
multiplied with one tile before the next is loaded, so that accumulators stay in registers
(llvmpipe: 12 % less time). ``docs/performance/kernels.md`` has the times.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.gpu_threads import barrier, for_each_thread, workgroup_memory
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.operation import index_type, value
from ...emit.vectors import (
    Vectors,
    element_at,
    load_element,
    loop,
    quotient,
    remainder,
    store_element,
    when,
    workgroup_id,
)
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ..pack.packed_weight import PackedWeight, Tiles
from .block_products import BlockProducts, FloatProducts, IntegerDots
from .thread_weight import (
    THREAD_N,
    KPack,
    OuterScales,
    StepWords,
    ThreadWeight,
    WeightMemrefs,
    weight_bindings,
)


@dataclass(frozen=True)
class GpuBlockwiseGemm:
    """Blockwise GEMM for GPUs.

    Args:
        weight: the planar layout of the weight, with one vector of columns in a tile.
        cast: from the integers to f32.
        m: M; None where it is dynamic.
        mr: MR, the rows of a thread.
        threads: of a workgroup, a multiple of `threads_per_tile` times `k_threads`.
        has_int8_activations: activations are int8 with a scale for each block, and not f32.
        k_threads: the number of threads of a workgroup that share K.
        split_k: the number of workgroups that share K.
        matrices: the number of packed weights, of which a number for each MR rows chooses one; None
            for a single weight. Numbers out of range are clamped.
    """

    weight: PackedWeight
    tiles_per_thread: int
    cast: Cast
    m: int | None
    mr: int
    threads: int
    has_int8_activations: bool
    k_threads: int = 1
    split_k: int = 1
    matrices: int | None = None

    @property
    def tiles(self) -> Tiles:
        """The layout of the integers."""
        return self.weight.tiles

    @property
    def threads_per_tile(self) -> int:
        """The adjacent threads that share a tile."""
        return self.tiles.lanes // THREAD_N

    @property
    def thread_groups(self) -> int:
        """The groups of threads of a workgroup that have different tiles."""
        return self.threads // self.threads_per_tile // self.k_threads

    @property
    def tiles_per_workgroup(self) -> int:
        """The tiles of a workgroup; the last may have fewer."""
        return self.thread_groups * self.tiles_per_thread

    @property
    def has_whole_workgroups(self) -> bool:
        """True if all workgroups have the same number of tiles."""
        return self.tiles.count % self.tiles_per_workgroup == 0

    @property
    def steps_per_outer_scale(self) -> int:
        """The steps that share outer scales and offsets, which are loaded once for them.

        It is those of a thread where there are none, and 1 where they change within a step.
        """
        tiles, weight = self.tiles, self.weight
        encodings = [each for each in (weight.scale, weight.offset) if each is not None]
        outer = [each.blocks * tiles.block_size for each in encodings if each.outer is not None]
        if not outer:
            return self._steps_of_thread(1)
        length = math.gcd(*outer)
        return length // tiles.k_per_step if length % tiles.k_per_step == 0 else 1

    @property
    def steps_per_thread(self) -> int:
        """The steps of a thread's part of K; the last parts may have fewer, or none."""
        return self._steps_of_thread(self.steps_per_outer_scale)

    def _steps_of_thread(self, multiple: int) -> int:
        steps = self.k_threads * self.split_k * multiple
        return -(-self.tiles.steps // steps) * multiple

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: the weight; the choices; activations, f32, or int8 k-packs and scales of their
        blocks; the result, ``M x split_k x N``.
        """
        tiles = self.tiles
        activations = [Binding((None, tiles.k), F32, 4)]
        if self.has_int8_activations:
            blocks = tiles.k // tiles.block_size
            activations = [Binding((None, tiles.k // 4), I32), Binding((None, blocks), F32)]
        result_lanes = 1 if tiles.n % THREAD_N else THREAD_N
        result = Binding((None, self.split_k, tiles.n), F32, result_lanes)
        stack, choices = self.weight, list[Binding]()
        if self.matrices is not None and self.m is not None:
            all_tiles = replace(tiles, n=self.matrices * tiles.count * tiles.nr)
            stack = replace(stack, tiles=all_tiles)
            choices = [Binding((self.m // self.mr,), I32)]
        bindings = [*weight_bindings(stack), *choices, *activations, result]
        workgroups = -(-tiles.count // self.tiles_per_workgroup) * self.split_k
        return Kernel(
            "blockwise_gemm", bindings, workgroups, self._body, self.m, self.threads, self.mr
        )

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: DimSize) -> None:
        arguments = list(memories)
        memrefs = WeightMemrefs.take(self.weight, arguments)
        first_stored_tile = self._first_stored_tile(arguments)
        activations = arguments.pop(0)
        row_scales = arguments.pop(0) if self.has_int8_activations else None
        [result] = arguments
        first_row = scalar(workgroup_id(0)) * self.mr
        own_rows = [first_row + row for row in range(self.mr)]
        if not isinstance(rows, int) or rows % self.mr:
            # Rows after the last repeat it: several threads store the same values.
            last = scalar(rows) - 1 if not isinstance(rows, int) else rows - 1
            own_rows = [np.minimum(row, last) for row in own_rows]
        group = quotient(scalar(workgroup), self.split_k)
        share = remainder(scalar(workgroup), self.split_k)
        count = self.threads * self.mr * self.tiles_per_thread
        partial_sums = workgroup_memory(count, F32, THREAD_N) if self.k_threads > 1 else None
        memory = _Memory(activations, row_scales, result, partial_sums)

        def emit_thread(thread: Value) -> None:
            number = scalar(thread)
            lane_group = remainder(number, self.threads_per_tile)
            slot = quotient(number, self.threads_per_tile)
            tile_group = remainder(slot, self.thread_groups) + group * self.thread_groups
            part = quotient(slot, self.thread_groups) + share * self.k_threads
            first_tile = tile_group * self.tiles_per_thread
            tiles = [first_tile + index for index in range(self.tiles_per_thread)]
            if not self.has_whole_workgroups:
                # Tiles after the last repeat it, and are not stored.
                tiles = [np.minimum(tile, self.tiles.count - 1) for tile in tiles]
            if first_stored_tile is not None:
                tiles = [first_stored_tile + tile for tile in tiles]
            tile_words = self.tiles.steps * self.tiles.step_bytes // (4 * THREAD_N)
            starts = [tile * tile_words + lane_group for tile in tiles]
            columns = ThreadWeight(self.weight, memrefs, tiles, starts, lane_group)
            _Thread(self, columns, memory, number, first_tile, own_rows, part, share).emit()

        for_each_thread(self.threads, emit_thread)

    def _first_stored_tile(self, arguments: list[Value]) -> ArrayLike | None:
        """The number of the first tile of the chosen weight; None for a single one.

        The memref of the choices is removed from the front of a list.
        """
        if self.matrices is None:
            return None
        choice = load_element(arguments.pop(0), [workgroup_id(0)])
        in_range = np.minimum(np.maximum(choice, 0), self.matrices - 1)
        number = value("arith.index_cast", [in_range.value], index_type())
        return scalar(number) * self.tiles.count


@dataclass(frozen=True)
class _Memory:
    """The memrefs of activations, their scales if they are int8, the result, and partial sums."""

    activations: Value
    row_scales: Value | None
    result: Value
    partial_sums: Value | None


@dataclass(frozen=True)
class _Thread:
    """The code of a thread, for its columns of the weight.

    `memory` has the other memrefs; `part` is the part of K, and `share` that of the workgroup.
    """

    gemm: GpuBlockwiseGemm
    columns: ThreadWeight
    memory: _Memory
    number: ArrayLike
    first_tile: ArrayLike
    rows: Sequence[ArrayLike]
    part: ArrayLike
    share: ArrayLike

    def emit(self) -> None:
        """Emit the loop over K, the sum of the parts, and the stores."""
        gemm, multiple = self.gemm, self.gemm.steps_per_outer_scale
        initial = [Vectors(THREAD_N).known(0.0, F32)] * (len(self.rows) * gemm.tiles_per_thread)
        first = self.part * gemm.steps_per_thread
        end = first + gemm.steps_per_thread
        if gemm.steps_per_thread * gemm.k_threads * gemm.split_k != gemm.tiles.steps:
            first, end = (np.minimum(each, gemm.tiles.steps) for each in (first, end))
        accumulators = loop(first.value, end.value, multiple, self._add_steps, initial)
        if self.memory.partial_sums is None:
            self._store_all(accumulators)
            return
        for index, accumulator in enumerate(accumulators):
            self._store_sum(accumulator, index)
        barrier()
        when(self.number < gemm.threads // gemm.k_threads, lambda: self._store_all(self._total()))

    # -- K loop -----------------------------------------------------------------------------------

    @property
    def _products(self) -> BlockProducts:
        """The arithmetic, by the type of the activations."""
        gemm, memory = self.gemm, self.memory
        arguments = gemm.tiles, gemm.tiles_per_thread, self.rows, memory.activations
        if memory.row_scales is not None:
            return IntegerDots(*arguments, memory.row_scales)
        return FloatProducts(*arguments, gemm.cast)

    def _add_steps(self, number: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
        """Add the steps that share outer scales."""
        gemm, first = self.gemm, scalar(number)
        if gemm.steps_per_outer_scale == 1:
            return self._add_step(first, None, accumulators)
        block = quotient(first * gemm.tiles.k_per_step, gemm.tiles.block_size)
        outer = self.columns.outer_scales(block)

        def add_step(step: Value, *carried: ArrayLike) -> list[ArrayLike]:
            return self._add_step(scalar(step), outer, carried)

        end = first + gemm.steps_per_outer_scale
        if gemm.tiles.steps % gemm.steps_per_outer_scale:
            end = np.minimum(end, gemm.tiles.steps)
        return loop(number, end.value, 1, add_step, accumulators)

    def _add_step(
        self, step: ArrayLike, outer: OuterScales | None, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add a step, several blocks or a part of one, to f32 accumulators.

        `outer` has the outer scales of its blocks; None to load them.
        """
        tiles, columns, products = self.gemm.tiles, self.columns, self._products
        words_per_step = tiles.plane_vectors[0]
        if tiles.block_size >= tiles.k_per_step:
            block = quotient(step, tiles.block_size // tiles.k_per_step)
            fields = range(tiles.k_per_step // 4 // words_per_step)

            def add_word(number: Value, *carried: ArrayLike) -> list[ArrayLike]:
                words = StepWords(columns, step)
                k_packs = [KPack(field, scalar(number)) for field in fields]
                return products.add(words, k_packs, parameters, carried)

            parameters = columns.parameters(block, outer)
            if self.gemm.k_threads > 1:  # loads of a step wait for memory together
                words, numbers = StepWords(columns, step), range(words_per_step)
                k_packs = [KPack(field, number) for number in numbers for field in fields]
                dots = products.add(words, k_packs, parameters, products.initial(accumulators))
                return products.finish(block, parameters, dots, accumulators)
            dots = loop(0, words_per_step, 1, add_word, products.initial(accumulators))
            return products.finish(block, parameters, dots, accumulators)
        words, totals = StepWords(columns, step), list(accumulators)
        blocks, k_packs_per_block = tiles.k_per_step // tiles.block_size, tiles.block_size // 4
        for number in range(blocks):
            block = step * blocks + number
            parameters = columns.parameters(block, outer)
            own = range(number * k_packs_per_block, (number + 1) * k_packs_per_block)
            k_packs = [KPack(*divmod(k_pack, words_per_step)) for k_pack in own]
            dots = products.add(words, k_packs, parameters, products.initial(totals))
            totals = products.finish(block, parameters, dots, totals)
        return totals

    # -- partial sums -----------------------------------------------------------------------------

    def _store_sum(self, accumulator: ArrayLike, index: int) -> None:
        """Store an accumulator to the workgroup's memory."""
        assert self.memory.partial_sums is not None
        position = self.number + index * self.gemm.threads
        store_element(accumulator, self.memory.partial_sums, [position.value])

    def _total(self) -> list[ArrayLike]:
        """The sums of all threads with the columns and rows of this one."""
        gemm, memory = self.gemm, self.memory.partial_sums
        assert memory is not None
        stride = gemm.threads // gemm.k_threads
        totals = []
        for index in range(len(self.rows) * gemm.tiles_per_thread):
            first = self.number + index * gemm.threads
            partial = [
                load_element(memory, [(first + part * stride).value])
                for part in range(gemm.k_threads)
            ]
            totals.append(functools.reduce(operator.add, partial))
        return totals

    # -- store ------------------------------------------------------------------------------------

    def _store_all(self, accumulators: Sequence[ArrayLike]) -> None:
        """Store the accumulators of all rows and tiles."""
        for index, accumulator in enumerate(accumulators):
            row, tile = divmod(index, self.gemm.tiles_per_thread)
            self._store(accumulator, self.rows[row], tile)

    def _store(self, accumulator: ArrayLike, row: ArrayLike, tile: int) -> None:
        """Store the thread's columns of a tile, without those at N or beyond."""
        gemm, tiles = self.gemm, self.gemm.tiles
        row = row * gemm.split_k + self.share
        group = (self.first_tile + tile) * (tiles.nr // THREAD_N) + self.columns.lane_group
        whole, tail = divmod(tiles.n, THREAD_N)

        def write(lanes: int) -> None:
            if not tail:
                store_element(accumulator, self.memory.result, [(row * whole + group).value])
                return
            first = row * tiles.n + group * THREAD_N
            for lane in range(lanes):
                index = [(first + lane).value]
                store_element(element_at(accumulator, lane), self.memory.result, index)

        if tiles.n % tiles.nr == 0 and gemm.has_whole_workgroups:
            write(THREAD_N)
            return
        when(group < whole, lambda: write(THREAD_N))
        if tail:
            when(group == whole, lambda: write(tail))
