"""AMX loop nest of blockwise GEMMs whose scales are integers times the scale of a superblock.

GGML's K-quants have such weights. Activations share a scale in a superblock, so that the products
of a superblock are one sum of integers, and so are those of its offsets::

    acc[m, n] += row_scale[m, s] * (scale[n, s] * sum_k weight[n, k] * factor[n, b] * x[m, k]
                                    + offset_scale[n, s] * sum_k offset[n, b] * x[m, k])

where ``b`` is the block of ``k``. A weight times its factor has up to 15 bits: it is unpacked to a
plane of the higher bits and one of the lower `DIGIT_BITS` bits, which are bytes::

    weight * factor = high * 2**DIGIT_BITS + low

Offsets are a plane of bytes, too, each repeated for the k of its block. So AMX multiplies 64 k at a
time, and its dot products are scaled once for a superblock instead of once for a block.

Loop nest of a workgroup: for a weight tile, for a vector of its columns, for some activation tiles
(a *pass*), superblocks; for a superblock, whose planes are unpacked to scratch memory, activation
tiles. Accumulators of a pass are in memory. While a tile is multiplied, the dot products of the one
before it are stored and scaled: they are in tile registers of their own.

``docs/performance/kernels.md`` compares it with `amx_blockwise`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import (
    TILE_ROW_BYTES,
    AmxAssembly,
    TileMemory,
    address,
    i64_constant,
    i64_of,
)
from ...emit.linalg import constant_index
from ...emit.vectors import (
    CACHE_LINE_BYTES,
    Vectors,
    bitcast,
    broadcast,
    load,
    loop,
    scratch,
    store,
    when,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I16, I32, U8, U16
from .activation_layout import BlockWord, index_plus
from .amx_nest import ACTIVATION_TILE, WEIGHT_TILE, AmxNest, AmxWorkgroup
from .amx_superblock_plan import DIGIT_BITS, AmxSuperblockPlan
from .blockwise_tile import TileNumber
from .weight_reader import BYTES_OF_A_WORD, BlockColumns, BlockIndex, UnpackedStep

_LOW_BYTES = 0x00FF
"""The bytes of the even k in lanes of 16 bits."""


class AmxSuperblock(AmxNest):
    """The loop nest of a workgroup, whose superblocks are scaled one by one.

    Attributes:
        planes: bytes of a superblock and a vector of columns, a row of a tile for four k.
        dots: i32 dot products of an activation tile with each plane.
        accumulators: f32, of the rows of a pass and a vector of columns.
    """

    def __init__(self, plan: AmxSuperblockPlan, workgroup: AmxWorkgroup) -> None:
        super().__init__(plan, workgroup)
        self.plan = plan
        self.planes = scratch([plan.planes * plan.plane_bytes], U8)
        self.dots = scratch([plan.planes * plan.dot_words], I32)
        self.accumulators = scratch([plan.tiles_per_pass * plan.dot_words], F32)

    @property
    def _may_lack_infinities(self) -> bool:
        """True: an infinite scale times a sum of 0 is NaN."""
        return True

    def multiply(self, tile: TileNumber) -> None:
        """Multiply all rows with a weight tile."""
        count, per_pass = self.activation_tiles, self.plan.tiles_per_pass
        for vector in range(self.plan.tiles.vectors):

            def multiply_pass(first: Value, vector: int = vector) -> None:
                end = np.minimum(scalar(first) + per_pass, count)
                _Pass(self, tile, vector, scalar(first), end - scalar(first)).emit()

            loop(0, count.value, per_pass, multiply_pass)


@dataclass(frozen=True)
class _Pass:
    """The products of `count` activation tiles from `first` on with a vector of columns."""

    nest: AmxSuperblock
    tile: TileNumber
    vector: int
    first: ArrayLike
    count: ArrayLike

    def emit(self) -> None:
        """Emit the loops over superblocks, and the results."""
        plan, nest = self.nest.plan, self.nest
        height, lanes = plan.rows_per_tile, plan.tiles.lanes
        zero = Vectors(lanes).known(0.0, F32)

        def clear(number: Value) -> None:
            for row in range(height):
                store(zero, nest.accumulators, [self.accumulator(scalar(number), row)])

        loop(0, self.count.value, 1, clear)
        superblocks = plan.tiles.k // plan.k
        if plan.pipelines_superblocks:
            # Dot products before the first ones are zeros.
            assembly = AmxAssembly()
            for register in _registers(1, plan.planes):
                assembly.clear(register)
            assembly.emit()
        loop(0, superblocks, 1, lambda each: _Superblock(self, scalar(each)).emit())
        if plan.pipelines_superblocks:
            _Superblock(self, scalar(constant_index(superblocks - 1))).finish(1)

        def write(number: Value) -> None:
            rows = [
                index_plus(self.row_of(scalar(number)).value, offset) for offset in range(height)
            ]
            accumulators = [
                load(nest.accumulators, [self.accumulator(scalar(number), row)], lanes, F32)
                for row in range(height)
            ]
            column = scalar(constant_index(self.vector * lanes))
            nest.write(accumulators, rows, self.tile, column)

        loop(0, self.count.value, 1, write)

    def row_of(self, number: ArrayLike) -> ArrayLike:
        """The first row of an activation tile of the pass, among those of all batches."""
        return self.nest.first_row + self.nest.row_of(self.first + number)

    def accumulator(self, number: ArrayLike, row: int) -> Value:
        """The index of the accumulators of a row of an activation tile of the pass."""
        plan = self.nest.plan
        index: Value = (number * plan.dot_words + row * plan.tiles.lanes).value
        return index


def _registers(tile_set: int, planes: int) -> range:
    """The tile registers of a set of accumulators, 0 or 1: one for each of up to three planes."""
    return range(3 * tile_set, 3 * tile_set + planes)


@dataclass(frozen=True)
class _Superblock:
    """The products of a pass with a superblock, by its number."""

    owner: _Pass
    number: ArrayLike

    @property
    def _plan(self) -> AmxSuperblockPlan:
        return self.owner.nest.plan

    def emit(self) -> None:
        """Emit the unpacking, and the loop over activation tiles, two at a time."""
        count, first = self.owner.count, scalar(constant_index(0))
        self._unpack()
        if self._plan.pipelines_superblocks:
            before = np.maximum(self.number, 1) - 1
            self._multiply(first, 0, replace(self, number=before), count - 1)
        else:
            self._multiply(first, 0)

        def multiply_two(number: Value) -> None:
            self._multiply(scalar(number), 1, self, scalar(number) - 1)
            following = scalar(number) + 1
            when(following < count, lambda: self._multiply(following, 0, self, scalar(number)))

        loop(1, count.value, 2, multiply_two)
        if not self._plan.pipelines_superblocks:
            is_even = (count & 1) == 0
            when(is_even, lambda: self.finish(1), lambda: self.finish(0))

    def finish(self, tile_set: int) -> None:
        """Store and scale the dot products of the last activation tile."""
        assembly = AmxAssembly()
        for plane in range(self._plan.planes):
            self._store_plane(assembly, tile_set, plane)
        assembly.emit()
        for part in range(self._k_pieces):
            self._scale(self.owner.count - 1, part)

    # -- unpacking --------------------------------------------------------------------------------

    def _columns(self, record: ArrayLike, block: int) -> BlockColumns:
        owner, lanes = self.owner, self._plan.tiles.lanes
        return BlockColumns(owner.tile[0], BlockIndex(record, block), owner.vector * lanes, lanes)

    @property
    def _records(self) -> int:
        """The weight's records in a superblock."""
        return self._plan.k // self._plan.weight.record_k

    def _unpack(self) -> None:
        """Write the planes of the superblock to scratch memory."""
        weight, first = self._plan.weight, self.number * self._records

        def unpack_record(record: Value) -> None:
            def unpack_step(step: Value) -> None:
                self._unpack_step(first + scalar(record), scalar(record), scalar(step))

            loop(0, weight.steps_per_record, 1, unpack_step)

        loop(0, self._records, 1, unpack_record)

    def _unpack_step(self, record: ArrayLike, own: ArrayLike, step: ArrayLike) -> None:
        plan, owner = self._plan, self.owner
        weight, tiles, reader = plan.weight, plan.tiles, owner.nest.operands.weight
        memory, start = reader.step(record, step)
        number = own * weight.steps_per_record + step
        source = UnpackedStep(
            *(memory, weight, owner.nest.target, owner.tile[0], start, number.value, 0)
        )
        factors: dict[int, ArrayLike] = {}
        offsets: dict[int, ArrayLike] = {}
        for k_pack in range(tiles.k_per_step // tiles.k_pack):
            block = k_pack * tiles.k_pack // tiles.block_size % weight.blocks_per_record
            columns = self._columns(record, block)
            if block not in factors:
                integers, _ = reader.quantized_scale(columns)
                words = integers & 0xFFFF | integers << 16
                factors[block] = bitcast(words, I16)
                if weight.offset is not None:
                    integers, _ = reader.quantized_offset(columns)
                    offsets[block] = bitcast((integers & 0xFF) * BYTES_OF_A_WORD, U8)
            planes = self._digits(source.k_pack(owner.vector, k_pack), factors[block])
            planes += [offsets[block]] if offsets else []
            row = number * (tiles.k_per_step // tiles.k_pack) + k_pack
            for plane, digits in enumerate(planes):
                position = row * TILE_ROW_BYTES + plane * plan.plane_bytes
                store(digits, owner.nest.planes, [position.value])

    def _digits(self, integers: ArrayLike, factors: ArrayLike) -> list[ArrayLike]:
        """The digits of bytes, less the zero point, times factors; the higher digit first."""
        words, zero_points = bitcast(integers, U16), factors * (self._plan.weight.zero_point or 0)
        even, odd = (
            bitcast(each, I16) * factors - zero_points for each in (words & _LOW_BYTES, words >> 8)
        )
        if self._plan.digits == 1:
            return [bitcast(even & _LOW_BYTES | odd << 8, U8)]
        low = (even & 0x7F) | (odd << 8 & 0x7F00)
        high = (even >> DIGIT_BITS & _LOW_BYTES) | (odd << 8 - DIGIT_BITS & ~_LOW_BYTES)
        return [bitcast(high, U8), bitcast(low, U8)]

    # -- products ---------------------------------------------------------------------------------

    @property
    def _k_pieces(self) -> int:
        """The tile products of a superblock with a plane; a tile is scaled in as many parts."""
        return self._plan.k // TILE_ROW_BYTES

    def _multiply(
        self,
        number: ArrayLike,
        tile_set: int,
        before: _Superblock | None = None,
        tile_before: ArrayLike | None = None,
    ) -> None:
        """Multiply an activation tile, and scale the dot products of the tile before it.

        That is `tile_before` of the superblock `before`; None where there is none.
        """
        registers = _registers(tile_set, self._plan.planes)
        plan, nest = self._plan, self.owner.nest
        row = self.number * nest.all_rows + self.owner.row_of(number)
        start = address(nest.operands.activations) + i64_of(row * plan.k)
        stride, planes = i64_constant(plan.k), address(nest.planes)
        row_bytes = i64_constant(TILE_ROW_BYTES)
        reader = nest.operands.weight
        next_superblock = address(reader.memrefs[0]) + i64_of(self._next_superblock)
        for part in range(self._k_pieces):
            assembly = AmxAssembly()
            if part == 0:
                for register in registers:
                    assembly.clear(register)
            memory = TileMemory(start, stride, part * TILE_ROW_BYTES)
            assembly.load(ACTIVATION_TILE, memory)
            for plane, register in enumerate(registers):
                offset = plane * plan.plane_bytes + part * (TILE_ROW_BYTES // 4) * TILE_ROW_BYTES
                assembly.load(WEIGHT_TILE, TileMemory(planes, row_bytes, offset))
                assembly.multiply(register, ACTIVATION_TILE, WEIGHT_TILE)
                if part == 0 and before is not None:
                    self._store_plane(assembly, 1 - tile_set, plane)
            cache_lines = plan.prefetched_lines
            if cache_lines and self.owner.vector == 0:
                index = (number * self._k_pieces + part) * (cache_lines * CACHE_LINE_BYTES)
                assembly.prefetch(next_superblock + i64_of(index), range(cache_lines))
            assembly.emit()
            if before is not None and tile_before is not None:
                before._scale(tile_before, part)

    def _store_plane(self, assembly: AmxAssembly, tile_set: int, plane: int) -> None:
        offset = 4 * plane * self._plan.dot_words
        memory = TileMemory(address(self.owner.nest.dots), i64_constant(TILE_ROW_BYTES), offset)
        assembly.store(_registers(tile_set, self._plan.planes)[plane], memory)

    @property
    def _next_superblock(self) -> ArrayLike:
        """The bytes of the weight before the next superblock."""
        weight = self._plan.weight
        before = (self.number + 1) * weight.superblock_bytes
        return scalar(self.owner.tile[0]) * weight.tile_bytes + before

    # -- scaling ----------------------------------------------------------------------------------

    def _scale(self, number: ArrayLike, part: int) -> None:
        """Add the scaled dot products of a part of an activation tile's rows."""
        plan, owner, nest = self._plan, self.owner, self.owner.nest
        weight, lanes, fma = plan.weight, plan.tiles.lanes, nest.target.fma
        reader, record = nest.operands.weight, self.number * self._records
        _, scale = reader.quantized_scale(self._columns(record, 0))
        height, block = plan.rows_per_tile, self.number * plan.scale.blocks
        row_scales = nest.row_words(owner.row_of(number)).load(block, BlockWord.SCALE)
        for row in range(height * part // self._k_pieces, height * (part + 1) // self._k_pieces):
            dots = [
                load(nest.dots, [plane * plan.dot_words + row * lanes], lanes, I32)
                for plane in range(plan.planes)
            ]
            total = dots[0] if plan.digits == 1 else (dots[0] << DIGIT_BITS) + dots[1]
            scaled = convert(total, F32) * scale
            if weight.offset is not None:
                _, offset_scale = reader.quantized_offset(self._columns(record, 0))
                scaled = fma(convert(dots[-1], F32), offset_scale, scaled)
            position = owner.accumulator(number, row)
            accumulator = load(nest.accumulators, [position], lanes, F32)
            accumulator = fma(scaled, broadcast(row_scales[row], lanes), accumulator)
            store(accumulator, nest.accumulators, [position])
