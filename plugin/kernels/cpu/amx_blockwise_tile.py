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
from .amx_nest import VectorTile
from .weight_reader import BlockColumns, BlockIndex


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
