"""Parts of the loop nests of blockwise GEMMs with AMX: permission, rows of tiles, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import TileConfiguration, request_permission
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import Vectors, load, quotient, reduce_lanes, scratch, store, when
from ...numerics.element_types import F32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .activation_layout import RowWords
from .amx_plan import TILE_ROW_BYTES
from .blockwise_tile import BlockwiseOperands, BlockwiseTile, TileNumber

_TILE_ROWS = 16
"""A tile register has up to 16 rows."""
MAX_SCRATCH_BYTES = 30 << 10
"""IREE gives a workgroup 32 KiB; 2 KiB are left for the stack."""
MAX_TILES_PER_PASS = 8
"""The f32 accumulators of up to 128 rows and a vector of columns take 8 KiB of the L1 cache."""


@dataclass(frozen=True)
class AmxShape:
    """The sizes of a blockwise GEMM with AMX; `m` is M of a batch, None where it is dynamic."""

    tiles: Tiles
    m: int | None

    @property
    def rows_per_tile(self) -> int:
        """The rows of M of an activation tile; the last two tiles may share some."""
        return _TILE_ROWS if self.m is None else -(-self.m // -(-self.m // _TILE_ROWS))

    @property
    def activation_tiles(self) -> int | None:
        """The activation tiles; None where M is dynamic."""
        return None if self.m is None else -(-self.m // self.rows_per_tile)

    def tiles_per_pass(self, used_bytes: int, vectors: int) -> int:
        """The activation tiles whose accumulators fit scratch memory, the same for all passes.

        Args:
            used_bytes: the scratch memory that is used otherwise; with too many there are 0 tiles.
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


class AmxNest(ABC):
    """The loop nest of a workgroup with AMX.

    It is constructed at the beginning of a kernel, where it allocates scratch memory and requests
    AMX from Linux.

    Args:
        rows: M of the batch.
        first_row: the number of rows before those of the batch.
        batches: the number of batches, which have as many rows each.

    Attributes:
        all_rows: M of all batches.
        status: f32, zeros, or some NaN where the results must be computed without tiles.
        is_usable: true where the process may use AMX and there are enough rows.
    """

    def __init__(
        self,
        shape: AmxShape,
        target: InstructionSet,
        epilogue: FusedEpilogue | None,
        operands: BlockwiseOperands,
        rows: Extent,
        first_row: ArrayLike,
        batches: int,
    ) -> None:
        self.target, self._epilogue = target, epilogue
        self.operands, self.first_row, self._shape = operands, first_row, shape
        self._rows = scalar(constant_index(rows) if isinstance(rows, int) else rows)
        self.all_rows = self._rows * batches
        self.status = scratch([shape.tiles.lanes], F32)
        self._set_status(np.nan)
        self.is_usable: ArrayLike = request_permission()
        if shape.m is None:
            self.is_usable = self.is_usable & (self._rows >= shape.rows_per_tile)

    @property
    @abstractmethod
    def tile_shapes(self) -> Sequence[tuple[int, int]]:
        """Rows, and bytes of a row, of each tile register."""

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
        height = self._shape.rows_per_tile
        return quotient(self._rows + (height - 1), height)

    def emit(self, for_tiles: Callable[[Callable[[TileNumber], None]], None]) -> None:
        """Emit the loop nest; `for_tiles` emits the loop over the workgroup's weight tiles."""

        def multiply() -> None:
            self._set_status(0.0)
            configuration = TileConfiguration(self.tile_shapes)
            configuration.load()
            for_tiles(self.multiply)
            configuration.restore()

        when(self.is_usable, multiply)

    def needs_repetition(self) -> ArrayLike:
        """True if the workgroup must compute its results without tiles.

        That is where AMX is not usable, or where a sum is infinite or NaN, and infinities may be
        lacking.
        """
        total = reduce_lanes("add", load(self.status, [0], self._shape.tiles.lanes, F32))
        return total != total

    def _set_status(self, number: float) -> None:
        store(Vectors(self._shape.tiles.lanes).known(number, F32), self.status, [0])

    def row_of(self, activation_tile: ArrayLike) -> ArrayLike:
        """The first row of an activation tile in the batch; the last one ends with the last row."""
        height = self._shape.rows_per_tile
        return np.minimum(activation_tile * height, self._rows - height)

    def row_words(self, first: ArrayLike) -> RowWords:
        """The words of the rows of an activation tile, by its first row."""
        words, height = self.operands.activation_blocks, self._shape.rows_per_tile
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
            status = load(self.status, [0], self._shape.tiles.lanes, F32)
            for accumulator in accumulators:
                status = status + accumulator * 0.0
            store(status, self.status, [0])
        output = VectorTile(self.operands, self.target, self._epilogue, [tile], rows, 0, column)
        output.store(accumulators)
