"""Register tiles of AMX loop nests of blockwise GEMMs: scales, epilogue and store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import bitcast
from ...numerics.element_types import F32
from .activation_layout import BlockWord, RowWords
from .amx_blockwise_plan import MAGIC, AmxBlockwisePlan
from .blockwise_tile import BlockwiseTile
from .weight_reader import BlockColumns, BlockIndex


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
class UnitTile(VectorTile):
    """The register tile of a unit, whose weight is an unpacked panel."""

    plan: AmxBlockwisePlan
    row_words: RowWords

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

    def _row_scales(self, block_number: Value) -> dict[Value, ArrayLike]:
        scales = self.row_words.load(scalar(block_number), BlockWord.SCALE)
        return dict(zip(self.rows, scales, strict=True))

    def _offsets(self, block: BlockIndex) -> list[ArrayLike]:
        """None: `offset_products` are part of the initial accumulators."""
        return []
