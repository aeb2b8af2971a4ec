"""Base of the loop nests of blockwise GEMMs with AMX: sizes, permission, rows of tiles, results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TileConfiguration,
    request_permission,
)
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    MAX_SCRATCH_BYTES,
    Vectors,
    load,
    quotient,
    reduce_lanes,
    scratch,
    store,
    when,
)
from ...numerics.element_types import F32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight, Tiles
from .activation_layout import RowWords
from .blockwise_tile import BlockwiseOperands, BlockwiseTile, TileNumber

ACTIVATION_TILE, WEIGHT_TILE = 6, 7
"""The tile registers of an activation tile and a weight tile; those before have accumulators."""
MAX_TILES_PER_PASS = 8
"""Activation tiles of a pass, at most.

The f32 accumulators of their 128 rows and a vector of columns take 8 KiB of the L1 cache.
"""


@dataclass(frozen=True)
class AmxNestPlan(ABC):
    """The sizes of a blockwise GEMM with AMX; `m` is M of a batch, None where it is dynamic."""

    weight: PackedWeight
    m: int | None

    @property
    def tiles(self) -> Tiles:
        """The layout of the weight's integers."""
        return self.weight.tiles

    @property
    @abstractmethod
    def tile_shapes(self) -> list[tuple[int, int]]:
        """Rows, and bytes of a row, of each tile register: accumulators, activations, weight."""

    @property
    def rows_per_tile(self) -> int:
        """The rows of M of an activation tile; the last two tiles may share some."""
        return TILE_ROWS if self.m is None else -(-self.m // -(-self.m // TILE_ROWS))

    @property
    def activation_tiles(self) -> int | None:
        """The activation tiles; None where M is dynamic."""
        return None if self.m is None else -(-self.m // self.rows_per_tile)

    def tiles_that_fit(self, used_bytes: int, vectors: int) -> int:
        """The activation tiles of a pass: their accumulators are in scratch memory together.

        Args:
            used_bytes: the scratch memory that is used otherwise; if it is too much, 0 tiles fit.
            vectors: vectors of columns that have accumulators.
        """
        tile_bytes = self.rows_per_tile * vectors * TILE_ROW_BYTES
        limit = max(0, min((MAX_SCRATCH_BYTES - used_bytes) // tile_bytes, MAX_TILES_PER_PASS))
        tiles = self.activation_tiles
        return limit if tiles is None or not limit else -(-tiles // -(-tiles // limit))


@dataclass(frozen=True)
class VectorTile(BlockwiseTile):
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
class AmxWorkgroup:
    """The operands of a workgroup.

    Attributes:
        rows: M of the batch.
        first_row: the number of rows before those of the batch.
        batches: the number of batches, which have as many rows each.
    """

    target: InstructionSet
    epilogue: FusedEpilogue | None
    operands: BlockwiseOperands
    rows: DimSize
    first_row: ArrayLike
    batches: int


class AmxNest(ABC):
    """The loop nest of a workgroup with AMX.

    It is constructed at the beginning of a kernel, where it allocates scratch memory and requests
    AMX from Linux.

    Attributes:
        all_rows: M of all batches.
        status: f32, zeros, or some NaN where the results must be computed without tiles.
        is_usable: true where the process may use AMX and there are enough rows.
    """

    def __init__(self, plan: AmxNestPlan, workgroup: AmxWorkgroup) -> None:
        rows = workgroup.rows
        self._plan, self._epilogue, self.target = plan, workgroup.epilogue, workgroup.target
        self.operands, self.first_row = workgroup.operands, workgroup.first_row
        self._rows = scalar(constant_index(rows) if isinstance(rows, int) else rows)
        self.all_rows = self._rows * workgroup.batches
        self.status = scratch([plan.tiles.lanes], F32)
        self._set_status(np.nan)
        self.is_usable: ArrayLike = request_permission()
        if plan.m is None:
            self.is_usable = self.is_usable & (self._rows >= plan.rows_per_tile)

    @property
    @abstractmethod
    def _may_lack_infinities(self) -> bool:
        """True if a result may be a NaN in place of an infinity."""

    @abstractmethod
    def multiply(self, tile: TileNumber) -> None:
        """Emit the product of all rows and a weight tile."""

    @property
    def activation_tiles(self) -> ArrayLike:
        """The number of activation tiles of the batch."""
        height = self._plan.rows_per_tile
        return quotient(self._rows + (height - 1), height)

    def emit(self, for_tiles: Callable[[Callable[[TileNumber], None]], None]) -> None:
        """Emit the loop nest; `for_tiles` emits the loop over the workgroup's weight tiles."""

        def multiply() -> None:
            self._set_status(0.0)
            configuration = TileConfiguration(self._plan.tile_shapes)
            configuration.load()
            for_tiles(self.multiply)
            configuration.restore()

        when(self.is_usable, multiply)

    def needs_repetition(self) -> ArrayLike:
        """True if the workgroup must compute its results without tiles.

        That is where AMX is not usable, or where a sum is infinite or NaN, and infinities may be
        lacking.
        """
        total = reduce_lanes("add", load(self.status, [0], self._plan.tiles.lanes, F32))
        return total != total

    def _set_status(self, number: float) -> None:
        store(Vectors(self._plan.tiles.lanes).known(number, F32), self.status, [0])

    def row_of(self, activation_tile: ArrayLike) -> ArrayLike:
        """The first row of an activation tile in the batch; the last one ends with the last row."""
        height = self._plan.rows_per_tile
        return np.minimum(activation_tile * height, self._rows - height)

    def row_words(self, first: ArrayLike) -> RowWords:
        """The words of the rows of an activation tile, by its first row."""
        words, height = self.operands.activation_blocks, self._plan.rows_per_tile
        assert words is not None  # int8 activations have them
        return RowWords(self.operands.layout, words, self.all_rows, first, height)

    def write(
        self,
        accumulators: Sequence[ArrayLike],
        rows: Sequence[Value],
        tile: TileNumber,
        column: ArrayLike,
    ) -> None:
        """Apply the epilogue to accumulators of some rows and a vector of columns; store them."""
        if self._may_lack_infinities:
            status = load(self.status, [0], self._plan.tiles.lanes, F32)
            for accumulator in accumulators:
                status = status + accumulator * 0.0
            store(status, self.status, [0])
        output = VectorTile(self.operands, self.target, self._epilogue, [tile], rows, 0, column)
        output.store(accumulators)
