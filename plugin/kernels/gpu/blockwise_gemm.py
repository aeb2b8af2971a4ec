"""Blockwise GEMM kernel for GPUs: activations times a block-quantized weight (Vulkan).

::

    result[m, n] = sum_k x[m, k] * ((weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b])

where ``b`` is the block of ``k``; with int8 activations::

    result[m, n] = sum_b row_scale[m, b] * (scale[n, b] * dot[m, n, b]
                                            + offset[n, b] * sum_k x[m, k])
    dot[m, n, b] = sum_k x[m, k] * (weight[n, k] - zero[n, b])

``dot`` is of integers, accumulated in f32 over a step of at most 32 of them. That is exact: sums
stay below ``32 * 128 * 255 < 2**24``.

A thread has MR rows, and four columns of each of some tiles (`ThreadWeight`). It unpacks the words
of its columns once for its rows. Threads share nothing, so there are no barriers. Adjacent threads
share the columns of a tile; a workgroup has several groups of threads. With split-K, several
workgroups have a part of K each, and another dispatch adds their partial sums.

Loads take the time, not multiplications: on GPUs for their bandwidth, on Mesa's llvmpipe because it
loads for one thread after the other. An iteration of the inner loop has one word of each column:
two take llvmpipe as long, and longer code takes a device longer to translate. All rows are
multiplied with one tile before the next is loaded, so that accumulators stay in registers
(llvmpipe: 12 % less time). ``docs/performance/kernels.md`` has the times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import Extent
from ...emit.operation import index_type, value
from ...emit.vectors import (
    Vectors,
    broadcast,
    element_at,
    for_each_thread,
    load_element,
    loop,
    quotient,
    remainder,
    store_element,
    when,
    workgroup_id,
)
from ...numerics.array_functions import convert, is_zero
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ..pack.packed_weight import PackedWeight, Tiles
from .thread_weight import (
    THREAD_N,
    BlockParameters,
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
        threads: of a workgroup, a multiple of `threads_per_tile`.
        has_int8_activations: activations are int8 with a scale for each block, and not f32.
        split_k: the number of workgroups that share K; it divides the steps.
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
    def tiles_per_workgroup(self) -> int:
        """The tiles of a workgroup; the last may have fewer."""
        return self.threads // self.threads_per_tile * self.tiles_per_thread

    @property
    def has_whole_workgroups(self) -> bool:
        """True if all workgroups have the same number of tiles."""
        return self.tiles.count % self.tiles_per_workgroup == 0

    @property
    def steps_per_outer_scale(self) -> int:
        """The steps that share outer scales and offsets, which are loaded once for them.

        It is the part of K of a workgroup where there are none, and 1 where they change within a
        step.
        """
        tiles, weight = self.tiles, self.weight
        encodings = [each for each in (weight.scale, weight.offset) if each is not None]
        outer = [each.blocks * tiles.block_size for each in encodings if each.outer is not None]
        length = math.gcd(tiles.k // self.split_k, *outer)
        return max(1, length // tiles.k_per_step) if length % tiles.k_per_step == 0 else 1

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
            "thread_product", bindings, workgroups, self._body, self.m, self.threads, self.mr
        )

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: Extent) -> None:
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

        def emit_thread(thread: Value) -> None:
            number = scalar(thread)
            groups = self.threads // self.threads_per_tile
            tile_group = quotient(number, self.threads_per_tile) + group * groups
            first_tile = tile_group * self.tiles_per_thread
            lane_group = remainder(number, self.threads_per_tile)
            tiles = [first_tile + index for index in range(self.tiles_per_thread)]
            if not self.has_whole_workgroups:
                # Tiles after the last repeat it, and are not stored.
                tiles = [np.minimum(tile, self.tiles.count - 1) for tile in tiles]
            if first_stored_tile is not None:
                tiles = [first_stored_tile + tile for tile in tiles]
            tile_words = self.tiles.steps * self.tiles.step_bytes // (4 * THREAD_N)
            starts = [tile * tile_words + lane_group for tile in tiles]
            columns = ThreadWeight(self.weight, memrefs, tiles, starts, lane_group)
            memory = _Memory(activations, row_scales, result)
            _Thread(self, columns, memory, first_tile, own_rows, share).emit()

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
    """The memrefs of activations, their scales if they are int8, and the result."""

    activations: Value
    row_scales: Value | None
    result: Value


@dataclass(frozen=True)
class _Thread:
    """The code of a thread, for its columns of the weight.

    `memory` has the other memrefs; `share` is the part of K, with split-K.
    """

    gemm: GpuBlockwiseGemm
    columns: ThreadWeight
    memory: _Memory
    first_tile: ArrayLike
    rows: Sequence[ArrayLike]
    share: ArrayLike

    def emit(self) -> None:
        """Emit the loop over K, and the stores."""
        gemm, steps = self.gemm, self.gemm.tiles.steps // self.gemm.split_k
        initial = [Vectors(THREAD_N).known(0.0, F32)] * (len(self.rows) * gemm.tiles_per_thread)
        first = self.share * steps
        accumulators = loop(
            *(first.value, (first + steps).value, gemm.steps_per_outer_scale),
            self._add_steps,
            initial,
        )
        for index, accumulator in enumerate(accumulators):
            row, tile = divmod(index, gemm.tiles_per_thread)
            self._store(accumulator, self.rows[row], tile)

    # -- K loop -----------------------------------------------------------------------------------

    def _add_steps(self, number: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
        """Add the steps that share outer scales."""
        gemm, first = self.gemm, scalar(number)
        if gemm.steps_per_outer_scale == 1:
            return self._add_step(first, None, accumulators)
        block = quotient(first * gemm.tiles.k_per_step, gemm.tiles.block_size)
        outer = self.columns.outer_scales(block)

        def add_step(step: Value, *carried: ArrayLike) -> list[ArrayLike]:
            return self._add_step(scalar(step), outer, carried)

        end = (first + gemm.steps_per_outer_scale).value
        return loop(number, end, 1, add_step, accumulators)

    def _add_step(
        self, step: ArrayLike, outer: OuterScales | None, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add a step, several blocks or a part of one, to f32 accumulators.

        `outer` has the outer scales of its blocks; None to load them.
        """
        tiles, columns = self.gemm.tiles, self.columns
        words_per_step = tiles.plane_vectors[0]
        if tiles.block_size >= tiles.k_per_step:
            block = quotient(step, tiles.block_size // tiles.k_per_step)
            fields = range(tiles.k_per_step // 4 // words_per_step)

            def add_word(number: Value, *carried: ArrayLike) -> list[ArrayLike]:
                words = StepWords(columns, step)
                k_packs = [KPack(field, scalar(number)) for field in fields]
                return self._add_k_packs(words, k_packs, parameters, carried)

            parameters = columns.parameters(block, outer)
            initial = self._initial(parameters, accumulators)
            dots = loop(0, words_per_step, 1, add_word, initial)
            return self._add_scaled(block, parameters, dots, accumulators)
        words, totals = StepWords(columns, step), list(accumulators)
        blocks, k_packs_per_block = tiles.k_per_step // tiles.block_size, tiles.block_size // 4
        for number in range(blocks):
            block = step * blocks + number
            parameters = columns.parameters(block, outer)
            own = range(number * k_packs_per_block, (number + 1) * k_packs_per_block)
            k_packs = [KPack(*divmod(k_pack, words_per_step)) for k_pack in own]
            initial = self._initial(parameters, totals)
            dots = self._add_k_packs(words, k_packs, parameters, initial)
            totals = self._add_scaled(block, parameters, dots, totals)
        return totals

    def _initial(
        self, parameters: BlockParameters, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """The initial sums of a block: the accumulators of f32 activations, zeros of int8 ones.

        With offsets the sum of each row's activations follows.
        """
        if not self.gemm.has_int8_activations:
            return list(accumulators)
        dots = [Vectors(THREAD_N).known(0.0, F32)] * len(accumulators)
        if parameters.offsets is not None:
            dots += [Scalars().known(0.0, F32)] * len(self.rows)
        return dots

    def _add_k_packs(
        self,
        words: StepWords,
        k_packs: Sequence[KPack],
        parameters: BlockParameters,
        initial: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of some k-packs of a step."""
        tiles, accumulators = self.gemm.tiles_per_thread, list(initial)
        count = len(self.rows) * tiles
        activations = [self._activations(words, k_pack) for k_pack in k_packs]
        for tile in range(tiles):
            for k_pack, by_row in zip(k_packs, activations, strict=True):
                weights = [self._weight(words, k_pack, m, parameters, tile) for m in range(4)]
                for row, members in enumerate(by_row):
                    index = row * tiles + tile
                    for activation, weight in zip(members, weights, strict=True):
                        accumulators[index] = (
                            accumulators[index] + broadcast(activation, THREAD_N) * weight
                        )
        for by_row in activations:
            for row, members in enumerate(by_row[: len(accumulators) - count]):
                for activation in members:
                    accumulators[count + row] = accumulators[count + row] + activation
        return accumulators

    def _activations(self, words: StepWords, k_pack: KPack) -> list[list[ArrayLike]]:
        """The four activations of a k-pack, of each row."""
        tiles = self.gemm.tiles
        position = words.step * (tiles.k_per_step // 4) + k_pack.number(tiles)
        loaded = [
            load_element(self.memory.activations, [(row * (tiles.k // 4) + position).value])
            for row in self.rows
        ]
        if not self.gemm.has_int8_activations:  # lanes of a vector
            return [[element_at(each, member) for member in range(4)] for each in loaded]
        shifts = (24, 16, 8, 0)  # bytes of a word
        return [[convert((each << shift) >> 24, F32) for shift in shifts] for each in loaded]

    def _weight(
        self, words: StepWords, k_pack: KPack, member: int, parameters: BlockParameters, tile: int
    ) -> ArrayLike:
        """The multiplicands of a tile, f32: dequantized, or integers for int8 activations."""
        gemm, zero_point = self.gemm, parameters.zero_points[tile]
        integers = words.integers(k_pack, member, tile)
        if gemm.has_int8_activations:
            return convert(integers if is_zero(zero_point) else integers - zero_point, F32)
        offset = None if parameters.offsets is None else parameters.offsets[tile]
        real = gemm.cast.dequantize(integers, parameters.scales[tile], zero_point, offset)
        return convert(real, F32)

    def _add_scaled(
        self,
        block: ArrayLike,
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add a block's sums of int8 activations, times scales, to the accumulators."""
        gemm, tiles = self.gemm, self.gemm.tiles_per_thread
        if self.memory.row_scales is None:
            return list(dots)
        blocks = gemm.tiles.k // gemm.tiles.block_size
        totals = []
        for number, row in enumerate(self.rows):
            scale = load_element(self.memory.row_scales, [(row * blocks + block).value])
            row_scale = broadcast(scale, THREAD_N)
            for tile in range(tiles):
                index = number * tiles + tile
                real = dots[index] * convert(parameters.scales[tile], F32)
                if parameters.offsets is not None:
                    row_sum = broadcast(dots[len(accumulators) + number], THREAD_N)
                    real = real + row_sum * convert(parameters.offsets[tile], F32)
                totals.append(accumulators[index] + real * row_scale)
        return totals

    # -- store ------------------------------------------------------------------------------------

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
