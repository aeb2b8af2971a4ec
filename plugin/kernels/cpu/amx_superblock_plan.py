"""Scratch memory and tile registers of GEMMs with AMX whose superblocks are sums of integers."""

from __future__ import annotations

from dataclasses import dataclass

from ...emit.amx import TILE_ROW_BYTES
from ...emit.vectors import CACHE_LINE_BYTES
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight, ScaleEncoding
from .activation_layout import ActivationLayout
from .amx_nest import ACTIVATION_TILE, AmxNestPlan

DIGIT_BITS = 7
"""Bits of the lower plane: bytes are signed."""
_MAX_PRODUCT = 127 << DIGIT_BITS
"""The greatest magnitude of a weight times its factor, whose higher bits are a signed byte."""
_MAX_OFFSET = 127
"""The greatest magnitude of integers of offsets."""
_MAX_SUPERBLOCK_K = 1024
"""K of a superblock, at most: the sum over it is below 2**31."""
_MIN_ROWS, _MIN_ROWS_THREE_PLANES = 9, 17
"""AVX512-VNNI is as fast with fewer rows; `amx_blockwise` beats three planes for one tile."""


@dataclass(frozen=True)
class AmxSuperblockPlan(AmxNestPlan):
    """A GEMM with sums of integers over superblocks; `scale` is the encoding of its scales."""

    scale: ScaleEncoding

    @classmethod
    def of(
        cls, weight: PackedWeight, m: int | None, activation_block: int, target: InstructionSet
    ) -> AmxSuperblockPlan | None:
        """Return the plan; None where another loop nest computes the product."""
        scale, tiles = weight.scale, weight.tiles
        if not target.has_amx_tiles or scale is None or scale.greatest is None:
            return None
        if weight.zero_point is None or not 0 <= weight.zero_point <= 128:
            return None
        if weight.max_integer - weight.zero_point > 127:
            return None
        k = scale.blocks * tiles.block_size
        encodings = [scale] if weight.offset is None else [scale, weight.offset]
        if activation_block != k or k % TILE_ROW_BYTES or k > _MAX_SUPERBLOCK_K:
            return None
        if any(each.greatest is None or each.blocks != scale.blocks for each in encodings):
            return None
        plan = cls(weight, m, scale)
        if k % weight.record_k or plan.greatest_product > _MAX_PRODUCT:
            return None
        if m is not None and m < (_MIN_ROWS if plan.planes < 3 else _MIN_ROWS_THREE_PLANES):
            return None
        has_bytes = weight.offset is None or (weight.offset.greatest or 0) <= _MAX_OFFSET
        return plan if has_bytes and plan.tiles_per_pass else None

    @property
    def activation_layout(self) -> ActivationLayout:
        """The layout of activations: panels are superblocks."""
        return ActivationLayout(self.tiles.k, self.tiles.block_size, self.k)

    @property
    def k(self) -> int:
        """K of a superblock."""
        return self.scale.blocks * self.tiles.block_size

    @property
    def greatest_product(self) -> int:
        """The greatest magnitude of a weight times its factor."""
        zero_point = self.weight.zero_point or 0
        greatest = max(zero_point, self.weight.max_integer - zero_point)
        return greatest * (self.scale.greatest or 0)

    @property
    def digits(self) -> int:
        """The planes of a weight: 1 where its products with factors are bytes."""
        return 1 if self.greatest_product <= 127 else 2

    @property
    def planes(self) -> int:
        """The planes of a weight and of its offsets; each has accumulators of its own."""
        return self.digits + (self.weight.offset is not None)

    @property
    def plane_bytes(self) -> int:
        """The bytes of a plane: of K of a superblock, for a vector of columns."""
        return self.k * self.tiles.lanes

    @property
    def dot_words(self) -> int:
        """The words of the dot products of an activation tile, of one plane."""
        return self.rows_per_tile * self.tiles.lanes

    @property
    def tiles_per_pass(self) -> int:
        """The activation tiles whose accumulators are in memory; 0 if the planes do not fit."""
        return self.tiles_that_fit(self.planes * (self.plane_bytes + 4 * self.dot_words), 1)

    @property
    def pipelines_superblocks(self) -> bool:
        """True if the last tile of a superblock is scaled beside the first one of the next.

        An even number of tiles ends with the other set of accumulators.
        """
        tiles, per_pass = self.activation_tiles, self.tiles_per_pass
        return tiles is not None and per_pass % 2 == 0 and tiles % per_pass == 0

    @property
    def prefetched_lines(self) -> int:
        """The cache lines of the next superblock that are prefetched with each tile product."""
        if self.weight.is_planar:
            return 0
        products = self.tiles_per_pass * self.k // TILE_ROW_BYTES
        return -(-self.weight.superblock_bytes // (products * CACHE_LINE_BYTES))

    @property
    def tile_shapes(self) -> list[tuple[int, int]]:
        """Rows, and bytes of a row, of each tile: accumulators, activations and the weight."""
        rows = (self.rows_per_tile, TILE_ROW_BYTES)
        return [*[rows] * (ACTIVATION_TILE + 1), (TILE_ROW_BYTES // 4, TILE_ROW_BYTES)]
