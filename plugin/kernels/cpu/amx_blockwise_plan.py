"""Tile shapes, scratch memory and software pipelining of blockwise GEMMs with AMX."""

from __future__ import annotations

from dataclasses import dataclass

from ...emit.amx import TILE_ROW_BYTES
from ...emit.vectors import CACHE_LINE_BYTES, MAX_SCRATCH_BYTES
from ...numerics.element_types import F16
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight
from .activation_layout import ActivationLayout, BlockWord
from .amx_nest import ACTIVATION_TILE, MAX_TILES_PER_PASS, AmxNestPlan
from .weight_reader import SignedPanel

_MIN_ROWS, _MIN_ROWS_8_BITS = 9, 12
"""AVX512-VNNI is as fast with fewer rows; a weight of 8 bits has nothing to unpack there."""
_MIN_PIECE = 16
"""A tile product takes 16 cycles for 16 rows, whatever its K."""
_BLOCKS_PER_GROUP = (8, 4, 6, 5, 3, 2, 1)
"""Blocks that are unrolled as a group: the first number that divides those of a panel.

Of 8 and 4 blocks, four tile registers have the accumulators in turn; other groups have at most
`ACTIVATION_TILE` blocks, a register for each.
"""
_PRODUCTS_AHEAD, _STORES_BEHIND = 4, 2
"""Blocks from a product to its scaling, and from a product to its store.

A store that follows its product at once waits for it, and later products wait for the store: 29
cycles for each instead of 18 (Xeon with AMX).
"""
MAGIC = 1.5 * 2**23
"""The bits of this f32 plus an integer below 2**22 are those of the sum of both.

Beside AMX tiles a processor converts and multiplies 512 bits of floats on one execution port, and
adds integers on others: 128 rows take 7 % less time with Q4_0 than with conversions, and 12 % with
Q4_K.
"""
_MAX_ACTIVATION = 127
"""The greatest magnitude of activations that are quantized to int8."""


@dataclass(frozen=True)
class AmxBlockwisePlan(AmxNestPlan):
    """A blockwise GEMM with AMX whose blocks are scaled one by one.

    A *unit* is the product of an activation tile, a panel and a vector of columns; its blocks of K
    are multiplied in groups.
    """

    @classmethod
    def of(
        cls, weight: PackedWeight, m: int | None, target: InstructionSet
    ) -> AmxBlockwisePlan | None:
        """Return the plan; None where AMX does not compute the product."""
        if not target.has_amx_tiles or weight.floats is not None:
            return None
        is_unpacked = weight.tiles.bits == 8 and weight.codebook is None
        has_few_rows = m is not None and m < (_MIN_ROWS_8_BITS if is_unpacked else _MIN_ROWS)
        plan = cls(weight, m)
        if has_few_rows or plan.piece < _MIN_PIECE:
            return None
        return plan if SignedPanel.fits(weight, 1) else None

    # -- tiles ------------------------------------------------------------------------------------

    @property
    def tile_shapes(self) -> list[tuple[int, int]]:
        """Rows, and bytes of a row, of each tile: accumulators, activations and the weight."""
        accumulators = [(self.rows_per_tile, TILE_ROW_BYTES)] * ACTIVATION_TILE
        return [*accumulators, (self.rows_per_tile, self.piece), (self.piece // 4, TILE_ROW_BYTES)]

    @property
    def piece(self) -> int:
        """The k of a tile product, in whole k-packs: those of a block, or up to 64 of them."""
        size = self.tiles.block_size
        return next(n for n in range(TILE_ROW_BYTES, 0, -4) if size % n == 0)

    @property
    def pieces_per_block(self) -> int:
        """The tile products of a block."""
        return self.tiles.block_size // self.piece

    @property
    def adds_to_magic(self) -> bool:
        """True if dot products become floats by an addition to the bits of `MAGIC`.

        That is exact for dot products below 2**22, and for scales whose product with `MAGIC` is
        exact and finite: those of f16, or integers of 8 bits times f16.
        """
        scale, weight = self.weight.scale, self.weight
        assert scale is not None
        is_f16 = scale.element == F16 and scale.outer is None
        is_exact = is_f16 or (not scale.element.is_float and scale.outer == F16)
        bound = weight.max_integer
        if weight.zero_point is not None:
            bound = max(weight.zero_point, weight.max_integer - weight.zero_point)
        return is_exact and self.tiles.block_size * bound * _MAX_ACTIVATION < 1 << 22

    @property
    def activation_layout(self) -> ActivationLayout:
        """The layout of activations: panels as those of the weight."""
        words = len(BlockWord) - (self.weight.offset is None)
        return ActivationLayout(self.tiles.k, self.tiles.block_size, self.panel.tiles.k, words)

    # -- scratch memory ---------------------------------------------------------------------------

    @property
    def holds_all_k(self) -> bool:
        """True if a panel has all of K.

        Accumulators are in registers then, and panels are unpacked once for all of M.
        """
        k = self.tiles.k
        panel = sum(SignedPanel.layout_of(self.weight, 1, k).binding_bytes())
        return panel + 4 * self._dot_words(k // self.tiles.block_size) <= MAX_SCRATCH_BYTES

    @property
    def panel(self) -> PackedWeight:
        """The layout of an unpacked panel."""
        return SignedPanel.layout_of(self.weight, 1, self.tiles.k if self.holds_all_k else None)

    @property
    def blocks_per_panel(self) -> int:
        """The blocks of a panel."""
        return self.panel.tiles.k // self.tiles.block_size

    @property
    def tiles_per_pass(self) -> int:
        """The activation tiles whose accumulators are in memory while panels are unpacked."""
        used_bytes = sum(self.panel.binding_bytes()) + 4 * self.dot_words
        return self.tiles_that_fit(used_bytes, self.tiles.vectors)

    @property
    def dot_words(self) -> int:
        """The words of dot products in memory."""
        return self._dot_words(self.blocks_per_panel)

    def _dot_words(self, blocks: int) -> int:
        return self.rows_per_tile * _registers(blocks) * self.tiles.lanes

    # -- prefetch ---------------------------------------------------------------------------------

    @property
    def panel_bytes(self) -> int:
        """The bytes of a panel in a constant weight."""
        return self.weight.tile_bytes * self.panel.tiles.k // self.tiles.k

    @property
    def prefetched_lines(self) -> int:
        """The cache lines of the next panel that are prefetched with each group of this one."""
        if self.weight.is_planar:
            return 0
        tiles = min(MAX_TILES_PER_PASS, self.activation_tiles or MAX_TILES_PER_PASS)
        groups = tiles * self.tiles.vectors * self.groups_per_panel
        return -(-self.panel_bytes // (groups * CACHE_LINE_BYTES))

    # -- software pipelining ----------------------------------------------------------------------

    @property
    def blocks_per_group(self) -> int:
        """The blocks of a group, which are unrolled."""
        return _blocks_per_group(self.blocks_per_panel)

    @property
    def groups_per_panel(self) -> int:
        """The groups of a unit."""
        return self.blocks_per_panel // self.blocks_per_group

    @property
    def products_ahead(self) -> int:
        """Blocks from a product to its scaling."""
        return min(_PRODUCTS_AHEAD, self.blocks_per_group)

    @property
    def stores_behind(self) -> int:
        """Blocks from a product to the store of its accumulators."""
        return min(_STORES_BEHIND, self.products_ahead - 1)

    @property
    def registers(self) -> int:
        """The tile registers of accumulators, and the tiles of them in memory."""
        return _registers(self.blocks_per_panel)

    def register(self, block: int) -> int:
        """The tile register of a block of a group, and its number in memory."""
        return block % self.registers


def _blocks_per_group(blocks: int) -> int:
    return next(n for n in _BLOCKS_PER_GROUP if blocks % n == 0)


def _registers(blocks: int) -> int:
    group = _blocks_per_group(blocks)
    return 4 if group % 4 == 0 else group
