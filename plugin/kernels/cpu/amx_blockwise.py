"""AMX loop nest of blockwise GEMMs: tile products of each block, scaled and added in f32.

The formula and the order of its f32 operations are those of `cpu/blockwise_tile`: results are equal
to the bit. Zero points are subtracted from the weight where it is unpacked to signed bytes
(`SignedPanel`). A tile product has the i32 dot products of up to 16 rows, 16 columns and a block of
K. It is stored to memory, scaled by AVX-512, and added to f32 accumulators.

Loop nest of a workgroup: for a weight tile, for some activation tiles (a *pass*), panels of K; for
a panel, units (`AmxBlockwisePlan`), with accumulators in registers. Those of a pass are in memory
between panels. The loop over blocks is software-pipelined, from a unit to the next: while a block
is scaled, a later one is multiplied, and one between them is stored. Each group of blocks
prefetches a part of the next panel's weight to the L2 cache.

Scaling limits the speed: while a processor uses AMX tiles, it executes one 512-bit multiplication
or conversion of floats per cycle instead of two (see ``docs/performance/kernels.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import (
    CACHE_LINE_BYTES,
    AmxAssembly,
    TileConfiguration,
    TileMemory,
    address,
    i64_constant,
    i64_of,
    request_permission,
)
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import (
    Vectors,
    bitcast,
    load,
    load_element,
    loop,
    quotient,
    reduce_lanes,
    remainder,
    scratch,
    shuffle_lanes,
    store,
    when,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from .amx_blockwise_plan import ACTIVATION_TILE, MAGIC, WEIGHT_TILE, AmxBlockwisePlan
from .amx_plan import TILE_ROW_BYTES
from .blockwise_tile import BlockwiseOperands, BlockwiseTile, TileNumber, index_plus
from .weight_reader import BlockColumns, BlockIndex, SignedPanel, WeightReader


class _Group(NamedTuple):
    """The addresses of the tiles of a group's first block."""

    activations: ArrayLike
    weight: ArrayLike


@dataclass(frozen=True)
class _VectorTile(BlockwiseTile):
    """A register tile of rows of M, and one vector from `column` of the weight tile on."""

    column: ArrayLike

    @property
    def vectors(self) -> int:
        """One vector."""
        return 1

    def _first_column(self, vector: int) -> ArrayLike:
        _, tile = self.tile_numbers[0]
        return scalar(tile) * self.tiles.nr + self.column


@dataclass(frozen=True)
class _UnitTile(_VectorTile):
    """The register tile of a unit, whose weight is an unpacked panel.

    Where the weight has offsets, `_PanelProduct` puts scales and scaled sums of the rows after dot
    products in `dots`; those of a block have the number `block` in the panel.
    """

    plan: AmxBlockwisePlan
    dots: Value
    block: ArrayLike

    def _columns(self, vector: int, block: BlockIndex) -> BlockColumns:
        return BlockColumns(constant_index(0), block, self.column, self.tiles.lanes)

    def _scaled(self, dot: ArrayLike, scale: ArrayLike) -> ArrayLike:
        """Dot products times scales, rounded once.

        ``(MAGIC + dot) * scale - MAGIC * scale`` is one FMA. An infinite scale gives NaN, which
        `AmxBlockwise.needs_repetition` finds.
        """
        if not self.plan.adds_to_magic:
            return super()._scaled(dot, scale)
        floats = bitcast(dot + int(np.float32(MAGIC).view(np.int32)), F32)
        return self.target.fma(floats, scale, scale * -MAGIC)

    def _row_scale(self, row: Value, block_number: Value) -> ArrayLike:
        """The scale of a block of a row.

        The rows of a tile are contiguous, so that it is a word after the tile's first row, at a
        constant distance: LLVM would keep the address of each row in a register otherwise.
        """
        memory, tiles = self.operands.activation_blocks, self.plan.tiles
        assert memory is not None  # int8 activations have them
        if self.plan.weight.offset is not None:
            return self._row_word(row, 0)
        distance = self.rows.index(row) * (tiles.k // tiles.block_size)
        word = (scalar(block_number) + distance) * 2
        return bits_of(load_element(memory, [self.rows[0], word.value]), F32)

    def _scaled_row_sum(self, row: Value, block_number: Value, row_scale: ArrayLike) -> ArrayLike:
        return self._row_word(row, 1)

    def _row_word(self, row: Value, word: int) -> ArrayLike:
        index = self.block * 2 + (self.plan.first_row_word(self.rows.index(row)) + word)
        return bits_of(load_element(self.dots, [index.value]), F32)


class AmxBlockwise:
    """The loop nest of a workgroup with AMX.

    It is constructed at the beginning of a kernel, where it allocates scratch memory and requests
    AMX from Linux.

    Args:
        rows: M of the batch.
        first_row: the number of rows before those of the batch.

    Attributes:
        accumulators: f32, of the rows of a pass and the columns of a weight tile; None where panels
            hold all of K.
        dots: i32 dot products of some blocks, of an activation tile and a vector of columns each.
        status: f32, zeros, or some NaN where the results must be computed without tiles.
        is_usable: true where the process may use AMX and there are enough rows.
    """

    def __init__(
        self,
        plan: AmxBlockwisePlan,
        target: InstructionSet,
        epilogue: FusedEpilogue | None,
        operands: BlockwiseOperands,
        rows: Extent,
        first_row: ArrayLike,
    ) -> None:
        self.plan, self.target, self._epilogue = plan, target, epilogue
        self.operands, self.first_row = operands, first_row
        tiles, height = plan.tiles, plan.rows_per_tile
        self._rows = scalar(constant_index(rows) if isinstance(rows, int) else rows)
        self.panel = SignedPanel(plan.weight, plan.panel, target)
        self.accumulators: Value | None = None
        if not plan.holds_all_k:
            self.accumulators = scratch([plan.tiles_per_pass * height, tiles.nr], F32)
        self.dots = scratch([plan.dot_words], I32)
        self.status = scratch([tiles.lanes], F32)
        self._set_status(np.nan)
        self.is_usable: ArrayLike = request_permission()
        if plan.m is None:
            self.is_usable = self.is_usable & (self._rows >= height)

    def emit(self, for_tiles: Callable[[Callable[[TileNumber], None]], None]) -> None:
        """Emit the loop nest; `for_tiles` emits the loop over the workgroup's weight tiles."""

        def multiply() -> None:
            self._set_status(0.0)
            configuration = TileConfiguration(self.plan.tile_shapes)
            configuration.load()
            for_tiles(self._multiply)
            configuration.restore()

        when(self.is_usable, multiply)

    def needs_repetition(self) -> ArrayLike:
        """True if the workgroup must compute its results without tiles.

        That is where AMX is not usable, or where a sum is infinite or NaN: it may be a NaN of
        `_UnitTile._scaled` in place of an infinity.
        """
        total = reduce_lanes("add", load(self.status, [0], self.plan.tiles.lanes, F32))
        return total != total

    def _set_status(self, number: float) -> None:
        store(Vectors(self.plan.tiles.lanes).known(number, F32), self.status, [0])

    def _multiply(self, tile: TileNumber) -> None:
        """Multiply all rows with a weight tile."""
        plan = self.plan
        count = quotient(self._rows + (plan.rows_per_tile - 1), plan.rows_per_tile)

        def multiply_pass(first: ArrayLike, end: ArrayLike) -> None:
            def add_panel(record: Value) -> None:
                _PanelProduct(self, scalar(record), first, end, tile).emit()

            loop(0, plan.weight.records, self.panel.records, add_panel)

        if plan.holds_all_k:
            multiply_pass(scalar(constant_index(0)), count)
            return
        per_pass = plan.tiles_per_pass
        loop(
            *(0, count.value, per_pass),
            lambda first: multiply_pass(scalar(first), np.minimum(scalar(first) + per_pass, count)),
        )

    def row_of(self, activation_tile: ArrayLike) -> ArrayLike:
        """The first row of an activation tile in the batch; the last one ends with the last row."""
        height = self.plan.rows_per_tile
        return np.minimum(activation_tile * height, self._rows - height)

    def write(
        self,
        accumulators: Sequence[ArrayLike],
        rows: Sequence[Value],
        tile: TileNumber,
        column: ArrayLike,
    ) -> None:
        """Apply the epilogue to accumulators of some rows and a vector of columns; store them."""
        if self.plan.adds_to_magic:
            status = load(self.status, [0], self.plan.tiles.lanes, F32)
            for accumulator in accumulators:
                status = status + accumulator * 0.0
            store(status, self.status, [0])
        output = _VectorTile(self.operands, self.target, self._epilogue, [tile], rows, 0, column)
        output.store(accumulators)


class _PanelProduct:
    """The products of a panel with the activation tiles of a pass, from `first` to `end`."""

    def __init__(
        self,
        loop_nest: AmxBlockwise,
        record: ArrayLike,
        first: ArrayLike,
        end: ArrayLike,
        tile: TileNumber,
    ) -> None:
        self._nest, self._plan, self._first = loop_nest, loop_nest.plan, first
        self._tile, self._record = tile, record
        panel, operands = loop_nest.panel, loop_nest.operands
        reader = panel.unpack(operands.weight, [tile[0]], record, record + panel.records)
        reader = WeightReader(reader.weight, reader.memrefs)
        self._operands = replace(operands, weight=reader)
        self._units = (end - first) * self._plan.tiles.vectors
        self._first_block = record * self._plan.weight.blocks_per_record
        self._activations = address(operands.activations)
        self._weight = address(reader.memrefs[0])
        next_panel = (quotient(record, panel.records) + 1) * self._plan.panel_bytes
        next_panel = scalar(tile[0]) * self._plan.weight.tile_bytes + next_panel
        self._next_panel = address(operands.weight.memrefs[0]) + i64_of(next_panel)

    def emit(self) -> None:
        """Emit the first products, and the loop over units."""
        plan = self._plan
        first = self._group_at(scalar(constant_index(0)))
        for block in range(plan.products_ahead):
            self._product(first, block)
            if block >= plan.stores_behind:
                self._store(block - plan.stores_behind)
        loop(0, self._units.value, 1, lambda unit: self._multiply_unit(scalar(unit)))

    def _row_of(self, unit: ArrayLike) -> ArrayLike:
        """The first row of a unit: vectors of a weight tile are innermost, then M."""
        activation_tile = self._first + quotient(unit, self._plan.tiles.vectors)
        return self._nest.first_row + self._nest.row_of(activation_tile)

    def _column_of(self, unit: ArrayLike) -> ArrayLike:
        """The first column of a unit in the weight tile."""
        tiles = self._plan.tiles
        return remainder(unit, tiles.vectors) * tiles.lanes

    def _group_at(self, number: ArrayLike) -> _Group:
        """A group by its number; those of a unit are consecutive."""
        plan, tiles = self._plan, self._plan.tiles
        unit = quotient(number, plan.groups_per_panel)
        block = remainder(number, plan.groups_per_panel) * plan.blocks_per_group
        k = (self._first_block + block) * tiles.block_size
        start = block * (tiles.block_size * tiles.nr) + self._column_of(unit) * 4
        return _Group(
            self._activations + i64_of(self._row_of(unit) * plan.activation_row_bytes + k),
            self._weight + i64_of(start),
        )

    def _multiply_unit(self, unit: ArrayLike) -> None:
        """Add the blocks of a unit to its accumulators, and multiply those of the next one."""
        plan, height = self._plan, self._plan.rows_per_tile
        first_row, column = self._row_of(unit), self._column_of(unit)
        rows = [index_plus(first_row.value, offset) for offset in range(height)]
        if plan.weight.offset is not None:
            # Vectors of a tile are consecutive units with equal rows.
            when(column == 0, lambda: self._scale_row_sums(rows))

        def add_group(group: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
            return self._add_group(unit, scalar(group), rows, column, accumulators)

        accumulators = loop(0, plan.groups_per_panel, 1, add_group, self._initial(unit))

        def write() -> None:
            self._nest.write(accumulators, rows, self._tile, column)

        def store_for_next_panel() -> None:
            assert self._nest.accumulators is not None  # the panel has a part of K
            for accumulator, position in zip(accumulators, self._positions(unit), strict=True):
                store(accumulator, self._nest.accumulators, position)

        if plan.holds_all_k:
            write()
            return
        is_last = self._record + self._nest.panel.records == plan.weight.records
        when(is_last, write, store_for_next_panel)

    def _initial(self, unit: ArrayLike) -> list[ArrayLike]:
        """The accumulators of a unit: zeros, or those in memory after the first panel."""
        zero, memory = Vectors(self._plan.tiles.lanes).known(0.0, F32), self._nest.accumulators
        if memory is None:
            return [zero] * self._plan.rows_per_tile
        loads = [load(memory, each, zero.form.lanes, F32) for each in self._positions(unit)]
        return [np.where(self._record == 0, zero, each) for each in loads]

    def _positions(self, unit: ArrayLike) -> list[list[Value]]:
        """The indices of the accumulators of a unit in memory."""
        height = self._plan.rows_per_tile
        row = quotient(unit, self._plan.tiles.vectors) * height
        column = self._column_of(unit).value
        return [[index_plus(row.value, offset), column] for offset in range(height)]

    def _add_group(
        self,
        unit: ArrayLike,
        group: ArrayLike,
        rows: Sequence[Value],
        column: ArrayLike,
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Scale the dot products of a group, and multiply blocks of it and of the next one."""
        plan, nest = self._plan, self._nest
        lanes, number = plan.tiles.lanes, unit * plan.groups_per_panel + group
        last = self._units * plan.groups_per_panel - 1
        current, following = self._group_at(number), self._group_at(np.minimum(number + 1, last))
        self._prefetch(number)
        for index in range(plan.blocks_per_group):
            block = group * plan.blocks_per_group + index
            first = plan.register(index) * plan.rows_per_tile
            dots = [
                load(nest.dots, [constant_index((first + row) * lanes)], lanes, I32)
                for row in range(plan.rows_per_tile)
            ]
            tile = _UnitTile(
                *(self._operands, nest.target, None, [], rows, 0),
                *(column, plan, nest.dots, block),
            )
            accumulators = tile.add_scaled(
                BlockIndex(block, 0), (self._first_block + block).value, dots, accumulators
            )
            self._advance(index, current, following, number < last)
        return list(accumulators)

    def _prefetch(self, number: ArrayLike) -> None:
        """Prefetch the part of the next panel that belongs to a group, by its number."""
        cache_lines = self._plan.prefetched_lines
        if cache_lines:
            start = self._next_panel + i64_of(number * (cache_lines * CACHE_LINE_BYTES))
            assembly = AmxAssembly()
            assembly.prefetch(start, cache_lines)
            assembly.emit()

    def _advance(self, block: int, current: _Group, following: _Group, has_next: ArrayLike) -> None:
        """Multiply the block that is `products_ahead`, and store one between."""
        count, product = self._plan.blocks_per_group, block + self._plan.products_ahead
        stored = product - self._plan.stores_behind

        def multiply() -> None:
            self._product(current if product < count else following, product % count)

        def multiply_and_store() -> None:
            multiply()
            self._store(stored % count)

        if product < count:
            multiply_and_store()
        elif stored < count:
            when(has_next, multiply)
            self._store(stored)
        else:
            when(has_next, multiply_and_store)

    def _scale_row_sums(self, rows: Sequence[Value]) -> None:
        """Copy the scales of the rows in the blocks of a panel, and their sums times these."""
        plan, dots = self._plan, self._nest.dots
        count, factor = 2 * plan.blocks_per_group, 1 / plan.weight.row_sum_factor
        source = self._operands.activation_blocks
        assert source is not None  # int8 activations have them

        def scale_group(group: Value) -> None:
            word = scalar(group) * count
            first = (self._first_block * 2 + word).value
            for number, row in enumerate(rows):
                words = load(source, [row, first], count, I32)
                scales = bits_of(shuffle_lanes(words, words, [n & ~1 for n in range(count)]), F32)
                scaled = bitcast(convert(words, F32) * factor * scales, I32)
                order = [n + count * (n % 2) for n in range(count)]
                words = shuffle_lanes(words, scaled, order)
                store(words, dots, [(word + plan.first_row_word(number)).value])

        loop(0, plan.groups_per_panel, 1, scale_group)

    # -- tile registers ---------------------------------------------------------------------------

    def _product(self, group: _Group, block: int) -> None:
        """Multiply a block of a group."""
        plan, tiles = self._plan, self._plan.tiles
        activation_stride, weight_stride = (
            i64_constant(size) for size in (plan.activation_row_bytes, tiles.nr * 4)
        )
        assembly, register = AmxAssembly(), plan.register(block)
        assembly.clear(register)
        for piece in range(plan.pieces_per_block):
            k = block * tiles.block_size + piece * plan.piece
            activations = TileMemory(group.activations, activation_stride, k)
            assembly.load(ACTIVATION_TILE, activations)
            assembly.load(WEIGHT_TILE, TileMemory(group.weight, weight_stride, k * tiles.nr))
            assembly.multiply(register, ACTIVATION_TILE, WEIGHT_TILE)
        assembly.emit()

    def _store(self, block: int) -> None:
        """Store the dot products of a block of a group."""
        assembly, register = AmxAssembly(), self._plan.register(block)
        offset = register * self._plan.rows_per_tile * TILE_ROW_BYTES
        memory = TileMemory(address(self._nest.dots), i64_constant(TILE_ROW_BYTES), offset)
        assembly.store(register, memory)
        assembly.emit()
