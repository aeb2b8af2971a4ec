"""AMX loop nest of blockwise GEMMs: tile products of each block, scaled and added in f32.

The formula is that of `cpu/blockwise_tile`. Results are equal to the bit, unless the weight has
offsets, whose products are added first (`offset_products`). Zero points are subtracted from the
weight where it is unpacked to signed bytes (`SignedPanel`). A tile product has the i32 dot products
of up to 16 rows, 16 columns and a block of K. It is stored to memory, scaled by AVX-512, and added
to f32 accumulators.

Loop nest of a workgroup: for a weight tile, for some activation tiles (a *pass*), panels of K; for
a panel, units (`AmxBlockwisePlan`), with accumulators in registers. Those of a pass are in memory
before, between and after panels: results that are stored between products would delay the stores
of tiles. The loop over blocks is software-pipelined, from a unit to the next: while a block is
scaled, a later one is multiplied, and one between them is stored. Each block prefetches a part of
the next panel's weight to the L2 cache.

Scaling limits the speed: while a thread uses AMX tiles, a core executes one 512-bit multiplication
or conversion of floats per cycle instead of two, at a lower clock (see
``docs/performance/kernels.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

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
    load,
    loop,
    quotient,
    remainder,
    scratch,
    store,
)
from ...numerics.element_types import F32, I32
from .activation_layout import index_plus
from .amx_blockwise_plan import AmxBlockwisePlan
from .amx_blockwise_tile import UnitTile
from .amx_nest import ACTIVATION_TILE, WEIGHT_TILE, AmxNest, AmxWorkgroup
from .amx_offsets import offset_products
from .blockwise_tile import TileNumber
from .weight_reader import BlockColumns, BlockIndex, SignedPanel, WeightReader


class _Group(NamedTuple):
    """The addresses of the tiles of a group's first block."""

    activations: ArrayLike
    weight: ArrayLike


class AmxBlockwise(AmxNest):
    """The loop nest of a workgroup, whose blocks are scaled one by one.

    Attributes:
        accumulators: f32, of the rows of a pass and the columns of a weight tile; None where panels
            hold all of K.
        dots: i32 dot products of some blocks, of an activation tile and a vector of columns each.
    """

    def __init__(self, plan: AmxBlockwisePlan, workgroup: AmxWorkgroup) -> None:
        super().__init__(plan, workgroup)
        self.plan, tiles = plan, plan.tiles
        self.panel = SignedPanel(plan.weight, plan.panel, self.target)
        self.accumulators: Value | None = None
        if not plan.holds_all_k:
            units = plan.tiles_per_pass * tiles.vectors
            self.accumulators = scratch([units * plan.rows_per_tile * tiles.lanes], F32)
        self.dots = scratch([plan.dot_words], I32)

    @property
    def _may_lack_infinities(self) -> bool:
        """True if scaling adds to `MAGIC`."""
        return self.plan.adds_to_magic

    def multiply(self, tile: TileNumber) -> None:
        """Multiply all rows with a weight tile."""
        plan, count, per_pass = self.plan, self.activation_tiles, self.plan.tiles_per_pass

        def multiply_pass(first: ArrayLike, end: ArrayLike) -> None:
            def add_panel(record: Value) -> None:
                _PanelProduct(self, first, end, tile, scalar(record)).emit()

            loop(0, plan.weight.records, self.panel.records, add_panel)

        def prefetch_fields(record: Value) -> None:
            self.operands.weight.prefetch_fields(tile[0], scalar(record))

        def add_pass(first: Value) -> None:
            end = np.minimum(scalar(first) + per_pass, count)
            units = _Pass(self, scalar(first), end, tile)
            if plan.weight.offset is not None:  # all of them are read before the first panel
                loop(0, plan.weight.records, 1, prefetch_fields)
            units.for_each(lambda unit: units.store(units.initial(unit), unit))
            multiply_pass(scalar(first), end)
            units.for_each(lambda unit: units.write(units.load(unit), unit))

        if plan.holds_all_k:
            multiply_pass(scalar(constant_index(0)), count)
            return
        loop(0, count.value, per_pass, add_pass)


class _Pass:
    """Activation tiles from `first` to `end` times a weight tile, in units.

    Attributes:
        units: the number of units.
    """

    def __init__(
        self, loop_nest: AmxBlockwise, first: ArrayLike, end: ArrayLike, tile: TileNumber
    ) -> None:
        self._nest, self._plan, self._first, self._tile = loop_nest, loop_nest.plan, first, tile
        self.units = (end - first) * self._plan.tiles.vectors

    def for_each(self, body: Callable[[ArrayLike], None]) -> None:
        """Emit a loop over units."""
        loop(0, self.units.value, 1, lambda unit: body(scalar(unit)))

    def initial(self, unit: ArrayLike) -> list[ArrayLike]:
        """The initial accumulators of a unit: zeros, or offset products."""
        nest, lanes = self._nest, self._plan.tiles.lanes
        if self._plan.weight.offset is None:
            return [Vectors(lanes).known(0.0, F32)] * self._plan.rows_per_tile
        block = BlockIndex(scalar(constant_index(0)), 0)
        columns = BlockColumns(self._tile[0], block, self._column_of(unit), lanes)
        rows = nest.row_words(self._row_of(unit))
        return offset_products(nest.operands.weight, columns, rows, nest.target)

    def load(self, unit: ArrayLike) -> list[ArrayLike]:
        """Load the accumulators of a unit from memory."""
        memory, lanes = self._nest.accumulators, self._plan.tiles.lanes
        assert memory is not None  # panels have a part of K
        return [load(memory, position, lanes, F32) for position in self._positions(unit)]

    def store(self, accumulators: Sequence[ArrayLike], unit: ArrayLike) -> None:
        """Store the accumulators of a unit to memory."""
        assert self._nest.accumulators is not None  # panels have a part of K
        for accumulator, position in zip(accumulators, self._positions(unit), strict=True):
            store(accumulator, self._nest.accumulators, position)

    def write(self, accumulators: Sequence[ArrayLike], unit: ArrayLike) -> None:
        """Write the results of a unit."""
        self._nest.write(accumulators, self._rows_of(unit), self._tile, self._column_of(unit))

    def _row_of(self, unit: ArrayLike) -> ArrayLike:
        """The first row of a unit: vectors of a weight tile are innermost, then M."""
        activation_tile = self._first + quotient(unit, self._plan.tiles.vectors)
        return self._nest.first_row + self._nest.row_of(activation_tile)

    def _rows_of(self, unit: ArrayLike) -> list[Value]:
        """The rows of a unit."""
        first = self._row_of(unit).value
        return [index_plus(first, offset) for offset in range(self._plan.rows_per_tile)]

    def _column_of(self, unit: ArrayLike) -> ArrayLike:
        """The first column of a unit in the weight tile."""
        tiles = self._plan.tiles
        return remainder(unit, tiles.vectors) * tiles.lanes

    def _positions(self, unit: ArrayLike) -> list[list[Value]]:
        """The indices of the accumulators of a unit in memory."""
        size, height = self._plan.tiles.lanes, self._plan.rows_per_tile
        first = (unit * (height * size)).value
        return [[index_plus(first, row * size)] for row in range(height)]


class _PanelProduct(_Pass):
    """The products of a pass with the panel that begins with a record."""

    def __init__(
        self,
        loop_nest: AmxBlockwise,
        first: ArrayLike,
        end: ArrayLike,
        tile: TileNumber,
        record: ArrayLike,
    ) -> None:
        super().__init__(loop_nest, first, end, tile)
        self._record = record
        panel, operands, weight = loop_nest.panel, loop_nest.operands, self._plan.weight
        reader = panel.unpack(operands.weight, [tile[0]], record, record + panel.records)
        reader = WeightReader(reader.weight, reader.memrefs)
        self._operands = replace(operands, weight=reader)
        self._first_block = record * weight.blocks_per_record
        panel_start = record * weight.record_k * loop_nest.all_rows
        self._activations = address(operands.activations) + i64_of(panel_start)
        self._weight = address(reader.memrefs[0])
        next_panel = (quotient(record, panel.records) + 1) * self._plan.panel_bytes
        next_panel = scalar(tile[0]) * weight.tile_bytes + next_panel
        self._next_panel = address(operands.weight.memrefs[0]) + i64_of(next_panel)

    def emit(self) -> None:
        """Emit the first products, and the loop over units."""
        plan = self._plan
        first = self._group_at(scalar(constant_index(0)))
        for block in range(plan.products_ahead):
            self._product(first, block)
            if block >= plan.stores_behind:
                self._store_dots(block - plan.stores_behind)
        self.for_each(self._multiply_unit)

    def _group_at(self, number: ArrayLike) -> _Group:
        """A group by its number; those of a unit are consecutive."""
        plan, tiles = self._plan, self._plan.tiles
        unit = quotient(number, plan.groups_per_panel)
        block = remainder(number, plan.groups_per_panel) * plan.blocks_per_group
        k, vector = block * tiles.block_size, remainder(unit, tiles.vectors)
        start = k * tiles.nr + vector * (tiles.block_size * tiles.lanes)
        return _Group(
            self._activations + i64_of(self._row_of(unit) * plan.panel.tiles.k + k),
            self._weight + i64_of(start),
        )

    def _multiply_unit(self, unit: ArrayLike) -> None:
        """Add the blocks of a unit to its accumulators, and multiply those of the next one."""
        plan, rows, column = self._plan, self._rows_of(unit), self._column_of(unit)
        initial = (self.initial if plan.holds_all_k else self.load)(unit)

        def add_group(group: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
            return self._add_group(unit, scalar(group), rows, column, accumulators)

        accumulators = loop(0, plan.groups_per_panel, 1, add_group, initial)

        (self.write if plan.holds_all_k else self.store)(accumulators, unit)

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
        last = self.units * plan.groups_per_panel - 1
        current, following = self._group_at(number), self._group_at(np.minimum(number + 1, last))
        for index in range(plan.blocks_per_group):
            block = group * plan.blocks_per_group + index
            first = plan.register(index) * plan.rows_per_tile
            dots = [
                load(nest.dots, [constant_index((first + row) * lanes)], lanes, I32)
                for row in range(plan.rows_per_tile)
            ]
            tile = UnitTile(
                *(self._operands, nest.target, None, [], rows, 0),
                *(column, plan, nest.row_words(self._row_of(unit))),
            )
            accumulators = tile.add_scaled(
                BlockIndex(block, 0), (self._first_block + block).value, dots, accumulators
            )
            self._prefetch(number, index)
            self._advance(index, current, following)
        return list(accumulators)

    def _prefetch(self, number: ArrayLike, block: int) -> None:
        """Prefetch the part of the next panel that belongs to a block of a group, by its number."""
        per_group, count = self._plan.prefetched_lines, self._plan.blocks_per_group
        first, end = (per_group * each // count for each in (block, block + 1))
        if first < end:
            start = self._next_panel + i64_of(number * (per_group * CACHE_LINE_BYTES))
            assembly = AmxAssembly()
            assembly.prefetch(start, range(first, end))
            assembly.emit()

    def _advance(self, block: int, current: _Group, following: _Group) -> None:
        """Multiply the block that is `products_ahead`, and store one between.

        After the last group it is multiplied again, in vain: a branch would be mispredicted, which
        costs more.
        """
        count, product = self._plan.blocks_per_group, block + self._plan.products_ahead
        self._product(current if product < count else following, product % count)
        self._store_dots((product - self._plan.stores_behind) % count)

    # -- tile registers ---------------------------------------------------------------------------

    def _product(self, group: _Group, block: int) -> None:
        """Multiply a block of a group."""
        plan, tiles = self._plan, self._plan.tiles
        activation_stride, weight_stride = (
            i64_constant(size) for size in (plan.panel.tiles.k, TILE_ROW_BYTES)
        )
        assembly, register = AmxAssembly(), plan.register(block)
        assembly.clear(register)
        for piece in range(plan.pieces_per_block):
            first, k = block * tiles.block_size, piece * plan.piece
            activations = TileMemory(group.activations, activation_stride, first + k)
            weight = TileMemory(group.weight, weight_stride, first * tiles.nr + k * tiles.lanes)
            assembly.load(ACTIVATION_TILE, activations)
            assembly.load(WEIGHT_TILE, weight)
            assembly.multiply(register, ACTIVATION_TILE, WEIGHT_TILE)
        assembly.emit()

    def _store_dots(self, block: int) -> None:
        """Store the dot products of a block of a group."""
        assembly, register = AmxAssembly(), self._plan.register(block)
        offset = register * self._plan.rows_per_tile * TILE_ROW_BYTES
        memory = TileMemory(address(self._nest.dots), i64_constant(TILE_ROW_BYTES), offset)
        assembly.store(register, memory)
        assembly.emit()
