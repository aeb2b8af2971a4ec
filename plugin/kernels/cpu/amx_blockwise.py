"""AMX loop nest of blockwise GEMMs: tile products of each block, scaled and added in f32.

The formula and the order of its f32 operations are those of `cpu/blockwise_tile`: results are equal
to the bit. Zero points are subtracted from the weight where it is unpacked to signed bytes
(`SignedPanel`). A tile product has the i32 dot products of up to 16 rows, 16 columns and a block of
K. It is stored to memory, scaled by AVX-512, and added to f32 accumulators.

Loop nest of a workgroup: for a weight tile, for some activation tiles (a *pass*), panels of K; for
a panel, units (`AmxBlockwisePlan`). The accumulators of a unit are in registers, and those of a
pass in memory between units. The loop over blocks is software-pipelined, from a unit to the next:
while a block is scaled, a later one is multiplied, and one between them is stored.

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
from .amx_blockwise_plan import MAGIC, AmxBlockwisePlan
from .amx_plan import TILE_ROW_BYTES
from .blockwise_tile import BlockwiseOperands, BlockwiseTile, TileNumber, index_plus
from .weight_reader import BlockColumns, BlockIndex, SignedPanel, WeightReader

_ACTIVATION_TILE, _WEIGHT_TILE = 6, 7
"""The tile registers after those of accumulators."""


class _Unit(NamedTuple):
    """A unit of a panel: addresses of its tiles, and indices of its rows, column and block.

    Attributes:
        activations, weight: the addresses of the first block's tiles.
        row: the first row of M.
        accumulator_row: the same among the accumulators in memory.
        column: the first column in the weight tile.
        block: the first block in the panel.
    """

    activations: ArrayLike
    weight: ArrayLike
    row: ArrayLike
    accumulator_row: ArrayLike
    column: ArrayLike
    block: ArrayLike


@dataclass(frozen=True)
class _UnitTile(BlockwiseTile):
    """The register tile of a unit: rows of M, and one vector from `column` of the panel on.

    In memory, `_PanelProduct` puts scales and scaled sums of the rows after dot
    products.
    """

    column: ArrayLike
    plan: AmxBlockwisePlan
    dots: Value
    block: int

    @property
    def vectors(self) -> int:
        """One vector."""
        return 1

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
        index = self.plan.first_row_scale + self.rows.index(row)
        return bits_of(load_element(self.dots, [index, 2 * self.block]), F32)

    def _scaled_row_sum(self, row: Value, block_number: Value, row_scale: ArrayLike) -> ArrayLike:
        index = self.plan.first_row_sum + self.rows.index(row)
        return bits_of(load_element(self.dots, [index, self.block]), F32)


class AmxBlockwise:
    """The loop nest of a workgroup with AMX.

    It is constructed at the beginning of a kernel, where it allocates scratch memory and requests
    AMX from Linux.

    Args:
        rows: M of the batch.
        first_row: the number of rows before those of the batch.

    Attributes:
        accumulators: f32, of the rows of a pass and the columns of a weight tile.
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
        self.panel = SignedPanel(plan.weight, 1, target)
        self.accumulators = scratch([plan.tiles_per_pass * height, tiles.nr], F32)
        self.dots = scratch([plan.dot_rows, tiles.lanes], I32)
        self.status = scratch([tiles.lanes], F32)
        self._set_status(np.nan)
        self.is_usable: ArrayLike = request_permission()
        if plan.m is None:
            self.is_usable = self.is_usable & (self._rows >= height)

    def emit(self, for_tiles: Callable[[Callable[[TileNumber], None]], None]) -> None:
        """Emit the loop nest; `for_tiles` emits the loop over the workgroup's weight tiles."""

        def multiply() -> None:
            self._set_status(0.0)
            configuration = self._configuration()
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

    def _configuration(self) -> TileConfiguration:
        """The tile configuration: accumulators, then activations and the weight."""
        plan = self.plan
        accumulators = [(plan.rows_per_tile, TILE_ROW_BYTES)] * _ACTIVATION_TILE
        shapes = [
            *accumulators,
            (plan.rows_per_tile, plan.piece),
            (plan.piece // 4, TILE_ROW_BYTES),
        ]
        return TileConfiguration(shapes)

    def _multiply(self, tile: TileNumber) -> None:
        """Multiply all rows with a weight tile."""
        height, per_pass = self.plan.rows_per_tile, self.plan.tiles_per_pass
        count = quotient(self._rows + (height - 1), height)

        def multiply_pass(first: Value) -> None:
            end = np.minimum(scalar(first) + per_pass, count)
            accumulators = ((end - scalar(first)) * height).value
            loop(0, accumulators, 1, self._clear)
            records, panel_records = self.plan.weight.records, self.panel.records

            def add_panel(record: Value) -> None:
                _PanelProduct(self, scalar(record), scalar(first), end, tile).emit()

            loop(0, records, panel_records, add_panel)
            loop(0, accumulators, 1, lambda row: self._write(scalar(first), row, tile))

        loop(0, count.value, per_pass, multiply_pass)

    def row_of(self, activation_tile: ArrayLike) -> ArrayLike:
        """The first row of an activation tile in the batch; the last one ends with the last row."""
        height = self.plan.rows_per_tile
        return np.minimum(activation_tile * height, self._rows - height)

    def _positions(self, row: Value) -> list[list[Value]]:
        """The indices of the vectors of accumulators of a row in memory."""
        tiles = self.plan.tiles
        columns = range(0, tiles.nr, tiles.lanes)
        return [[row, constant_index(column)] for column in columns]

    def _clear(self, row: Value) -> None:
        for position in self._positions(row):
            store(Vectors(self.plan.tiles.lanes).known(0.0, F32), self.accumulators, position)

    def _write(self, first: ArrayLike, row: Value, tile: TileNumber) -> None:
        """Apply the epilogue to a row of accumulators, and store it."""
        height, lanes = self.plan.rows_per_tile, self.plan.tiles.lanes
        activation_tile = first + quotient(scalar(row), height)
        own = self.first_row + self.row_of(activation_tile) + remainder(scalar(row), height)
        accumulators = [load(self.accumulators, each, lanes, F32) for each in self._positions(row)]
        if self.plan.adds_to_magic:
            status = load(self.status, [0], lanes, F32)
            for accumulator in accumulators:
                status = status + accumulator * 0.0
            store(status, self.status, [0])
        output = BlockwiseTile(
            self.operands, self.target, self._epilogue, [tile], [own.value], prefetch_bytes=0
        )
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
        panel, operands = loop_nest.panel, loop_nest.operands
        reader = panel.unpack(operands.weight, [tile[0]], record, record + panel.records)
        reader = WeightReader(reader.weight, reader.memrefs)
        self._operands = replace(operands, weight=reader)
        self._units = (end - first) * self._plan.units_per_panel
        blocks_per_record = self._plan.weight.blocks_per_record
        self._first_block = record * blocks_per_record
        self._activations = address(operands.activations)
        self._weight = address(reader.memrefs[0])

    def emit(self) -> None:
        """Emit the first products, and the loop over units."""
        plan = self._plan
        first = self._unit_at(scalar(constant_index(0)))
        for block in range(plan.products_ahead):
            self._product(first, block)
            if block >= plan.stores_behind:
                self._store(block - plan.stores_behind)
        loop(0, self._units.value, 1, lambda unit: self._scale_unit(scalar(unit)))

    def _unit_at(self, number: ArrayLike) -> _Unit:
        """A unit by its number: the vectors of a tile are innermost, then K, then M."""
        plan, tiles = self._plan, self._plan.tiles
        activation_tile = self._first + quotient(number, plan.units_per_panel)
        own = remainder(number, plan.units_per_panel)
        block = quotient(own, tiles.vectors) * plan.blocks_per_unit
        column = remainder(own, tiles.vectors) * tiles.lanes
        row = self._nest.first_row + self._nest.row_of(activation_tile)
        k = (self._first_block + block) * tiles.block_size
        return _Unit(
            self._activations + i64_of(row * plan.activation_row_bytes + k),
            self._weight + i64_of(block * (tiles.block_size * tiles.nr) + column * 4),
            row,
            quotient(number, plan.units_per_panel) * plan.rows_per_tile,
            column,
            block,
        )

    def _scale_unit(self, number: ArrayLike) -> None:
        """Scale the dot products of a unit, and multiply blocks of it and of the next one."""
        plan, nest = self._plan, self._nest
        count, lanes, height = plan.blocks_per_unit, plan.tiles.lanes, plan.rows_per_tile
        unit, has_next = self._unit_at(number), number + 1 < self._units
        following = self._unit_at(np.minimum(number + 1, self._units - 1))
        rows = [index_plus(unit.row.value, offset) for offset in range(height)]
        # Vectors of a tile are consecutive units with equal rows and blocks.
        when(unit.column == 0, lambda: self._copy_block_words(rows, unit.block))
        positions = [
            [index_plus(unit.accumulator_row.value, offset), unit.column.value]
            for offset in range(height)
        ]
        accumulators = [load(nest.accumulators, each, lanes, F32) for each in positions]
        for block in range(count):
            own = unit.block + block
            first_dot = plan.register(block) * height
            dots = [load(nest.dots, [first_dot + row, 0], lanes, I32) for row in range(height)]
            tile = _UnitTile(
                *(self._operands, nest.target, None, [], rows, 0),
                *(unit.column, plan, nest.dots, block),
            )
            accumulators = tile.add_scaled(
                BlockIndex(own, 0), (self._first_block + own).value, dots, accumulators
            )
            self._advance(block, unit, following, has_next)
        for accumulator, position in zip(accumulators, positions, strict=True):
            store(accumulator, nest.accumulators, position)

    def _advance(self, block: int, unit: _Unit, following: _Unit, has_next: ArrayLike) -> None:
        """Multiply the block that is `products_ahead`, and store one between."""
        count, product = self._plan.blocks_per_unit, block + self._plan.products_ahead
        stored = product - self._plan.stores_behind

        def multiply() -> None:
            self._product(unit if product < count else following, product % count)

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

    def _copy_block_words(self, rows: Sequence[Value], block: ArrayLike) -> None:
        """Copy the scales of the rows in the blocks of a unit, and scale their sums."""
        plan, dots = self._plan, self._nest.dots
        count, factor = plan.blocks_per_unit, 1 / plan.weight.row_sum_factor
        first = ((self._first_block + block) * 2).value
        source = self._operands.activation_blocks
        assert source is not None  # int8 activations have them
        for number, row in enumerate(rows):
            words = load(source, [row, first], 2 * count, I32)
            store(words, dots, [plan.first_row_scale + number, 0])
            if plan.weight.offset is None:
                continue
            scales, row_sums = (shuffle_lanes(words, words, range(n, 2 * count, 2)) for n in (0, 1))
            scaled = convert(row_sums, F32) * factor * bits_of(scales, F32)
            store(bitcast(scaled, I32), dots, [plan.first_row_sum + number, 0])

    # -- tile registers ---------------------------------------------------------------------------

    def _product(self, unit: _Unit, block: int) -> None:
        """Multiply a block of a unit."""
        plan, tiles = self._plan, self._plan.tiles
        activation_stride, weight_stride = (
            i64_constant(size) for size in (plan.activation_row_bytes, tiles.nr * 4)
        )
        assembly, register = AmxAssembly(), plan.register(block)
        assembly.clear(register)
        for piece in range(plan.pieces_per_block):
            k = block * tiles.block_size + piece * plan.piece
            activations = TileMemory(unit.activations, activation_stride, k)
            assembly.load(_ACTIVATION_TILE, activations)
            assembly.load(_WEIGHT_TILE, TileMemory(unit.weight, weight_stride, k * tiles.nr))
            assembly.multiply(register, _ACTIVATION_TILE, _WEIGHT_TILE)
        assembly.emit()

    def _store(self, block: int) -> None:
        """Store the dot products of a block of a unit."""
        assembly, register = AmxAssembly(), self._plan.register(block)
        offset = register * self._plan.rows_per_tile * TILE_ROW_BYTES
        memory = TileMemory(address(self._nest.dots), i64_constant(TILE_ROW_BYTES), offset)
        assembly.store(register, memory)
        assembly.emit()
