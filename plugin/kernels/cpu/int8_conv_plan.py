"""Register blocking, memory and pipelining of the int8 convolution kernel."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.vectors import load, loop, scratch, store
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I16, I32
from ..conv_geometry import ConvAxis
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .conv_gemm import MAX_PADDED_BYTES, ConvGemm
from .k_loop_nest import MAX_UNROLL

_MIN_K_WITHOUT_PIPELINING = 1 << 11
"""With this K or more, the epilogue takes less than 1 % of the time, and is not pipelined."""
_MAX_CONVERTED_BYTES = 8 << 10
"""Scratch memory of converted multiplicands, at most.

It is faster to read them there than to convert them in registers for each use (Emerald Rapids, 1x1
filter, 14x14x576 to 24 channels: 12 us instead of 20).
"""
_WEIGHT_COST_IN_PIXELS = 0.25
"""Loading a weight vector for a register tile costs about as much as this many output pixels."""
_L1_WEIGHT_BYTES = 24 << 10
"""Bytes of a weight tile, at most, that stays in the L1 cache beside activations."""
_L2_WEIGHT_BYTES = 256 << 10
"""Bytes of a weight, at most, that is still in the L2 cache from the call before."""
_MIN_SKIPPED_SHARE = 0.01
"""Share of padding in all MACs, at least, that is skipped (Zen 4, 3x3 of 7x7x512: 9 % faster)."""
_MAX_PANEL_SCRATCH_BYTES = 24 << 10
"""Scratch memory of padded rows and a widened panel together, at most."""
_MAX_WAITING_BYTES = 8 << 10
"""Scratch memory of accumulators that wait for the next panel, at most."""
_MIN_TILES_FOR_PIPELINED_COPY = 4
"""Register tiles of an output row, at least, for which padded rows are copied ahead of reads."""

_MAX_WHOLE_TILE_BYTES = 18 << 10
"""Bytes of a widened tile, at most, that is one panel: 3x3 taps, 64 channels, 16 columns."""
_MAX_SPLIT_PANEL_BYTES = 10 << 10
"""Bytes of a widened panel of a split tile, at most; accumulators wait in memory beside it."""
_MIN_SPLIT_K_PACKS = 32
"""k-packs of a panel of a split tile, at least: each accumulator is reloaded once for them."""
_MIN_PIXELS_PER_PANEL = 32
"""Output pixels of a workgroup, at least: fewer save less time than writing the panel takes."""


@dataclass(frozen=True)
class WidenedPanels:
    """Panels of an int8 weight tile, widened to i16 multiplicands.

    Widening takes as long as multiplying. So a panel, part of K of a tile, is widened to scratch
    memory once for all output pixels of a workgroup; it fits the L1 cache.

    Args:
        tiles: the layout of the weight, whose steps have one k-pack.
        k_packs: the k-packs of a panel, which divide those of a tile.
    """

    tiles: Tiles
    target: InstructionSet
    k_packs: int

    @property
    def count(self) -> int:
        """The number of panels of a tile."""
        return self.tiles.steps // self.k_packs

    def allocate(self) -> Value:
        """Allocate a panel, which has the shape of a weight of one tile."""
        return scratch([1, self.k_packs, self.tiles.step_bytes], self.target.multiplicand_type)

    def write(self, weight: Value, tile: ArrayLike, panel: ArrayLike, memory: Value) -> None:
        """Emit the widening of a panel of a tile."""
        length = self.tiles.lanes * self.target.k_pack
        first = panel * self.k_packs

        def widen(number: Value) -> None:
            k_pack = first + scalar(number)
            for vector in range(self.tiles.vectors):
                offset = vector * length
                bytes_ = load(weight, [tile.value, k_pack.value, offset], length, I8)
                widened = convert(bytes_, self.target.multiplicand_type)
                store(widened, memory, [0, number, offset])

        loop(0, self.k_packs, 1, widen)


@dataclass(frozen=True)
class Int8ConvPlan(ConvGemm):
    """An int8 convolution, or GEMM, with SIMD accumulators.

    Args:
        slices: channel slices; a weight tile reads one of them. The tiles of a slice are
            consecutive, and all slices have the same number.
        converts_activations: activations are i8, and converted to multiplicands when they are read;
            that pays where each is read once.
        skipped_padding: the vertical axis, whose padding taps are skipped; None to multiply them.
        batches: matrix products of a batch, each of an image of one row with weight tiles of its
            own, which are consecutive.
        has_row_addends: the kernel adds a number to all accumulators of an output pixel.
    """

    channel_slices: int = 1
    converts_activations: bool = False
    skipped_padding: ConvAxis | None = None
    batches: int = 1
    has_row_addends: bool = False

    # -- padding ----------------------------------------------------------------------------------

    def can_skip_padding(self, vertical: ConvAxis) -> bool:
        """True if rows of taps in the vertical padding can be skipped, and that pays."""
        (taps, distance), *_ = (*self.geometry.taps, (0, 0))
        if taps != vertical.taps or distance == 0 or vertical.min_taps_inside == 0:
            return False
        k_packs_per_row = (
            self.geometry.tap_count // taps * self.k_packs_per_pixel // self.channel_slices
        )
        return vertical.padding_share >= _MIN_SKIPPED_SHARE and k_packs_per_row >= MAX_UNROLL

    @property
    def skipped_taps(self) -> list[tuple[int, int]]:
        """Numbers of skipped rows of taps at both sides, each with initial accumulators."""
        if self.skipped_padding is None:
            return [(0, 0)]
        low, high = self.skipped_padding.max_padding_taps
        return list(itertools.product(range(low + 1), range(high + 1)))

    @cached_property
    def rows_per_block(self) -> int:
        """The output rows of a block, whose padded rows are copied together."""
        rows, images = self.geometry.output_rows, self.geometry.images
        limit = max(1, rows * images // self.workgroups)
        choices = (n for n in range(min(limit, rows), 0, -1) if rows % n == 0)
        return next(n for n in choices if n == 1 or self.padded_bytes(n) <= MAX_PADDED_BYTES)

    @property
    def is_copy_pipelined(self) -> bool:
        """True if padded rows are copied between the multiplications of the pixels before.

        A 3x3 convolution of 56x56x64 with stride 2 takes 2 % less time (Zen 4).
        """
        if self.pad_copy is None or not self.is_epilogue_pipelined:
            return False
        limit = self.pad_copy.horizontal.size * self.channels - self.copy_step
        is_whole = self.copy_step % (self.target.lanes * self.target.k_pack) == 0
        is_long = self.geometry.output_columns >= _MIN_TILES_FOR_PIPELINED_COPY * self.mr
        return is_whole and is_long and 0 < self.first_copy_length <= limit

    @property
    def copy_step(self) -> int:
        """Elements of a padded row that a register tile reads and the one before does not."""
        return self.mr * self.geometry.column_stride * self.channels

    @property
    def first_copy_length(self) -> int:
        """Elements of an image row that the first register tile reads."""
        assert self.pad_copy is not None
        axis = self.pad_copy.horizontal
        return ((self.mr - 1) * axis.stride + axis.receptive_field - axis.pad_low) * self.channels

    # -- register blocking ------------------------------------------------------------------------

    @property
    def k_packs_per_pixel(self) -> int:
        """The k-packs of an input pixel."""
        return self.channels // self.target.k_pack

    @property
    def pixel_step(self) -> int:
        """The k-packs from an output pixel's first to that of the next."""
        return self.geometry.column_stride * self.k_packs_per_pixel

    @property
    def mr(self) -> int:
        """MR, the output pixels of a register tile: the choice with the least recomputation.

        A larger MR loads the weight less often; less than half the registers is not considered.
        """
        columns, vectors = self.geometry.output_columns, self.tiles.vectors
        limit = self.target.pixels_per_tile(vectors, is_pipelined=self.is_epilogue_pipelined)
        limit = min(limit, columns)
        choices = range((limit + 1) // 2, limit + 1)
        return min(choices, key=lambda n: (-(-columns // n) * (n + _WEIGHT_COST_IN_PIXELS), -n))

    @property
    def tiles_per_row(self) -> int:
        """The register tiles of an output row; the last two may share pixels."""
        return -(-self.geometry.output_columns // self.mr)

    @property
    def is_epilogue_pipelined(self) -> bool:
        """True if the epilogue of a register tile runs between the multiplications of the next."""
        is_estimated = self.epilogue is not None and self.epilogue.vectors_per_estimate > 0
        has_registers = self.target.max_accumulators_pipelined > 0
        return is_estimated and has_registers and self.tiles.k < _MIN_K_WITHOUT_PIPELINING

    @property
    def alternates_k_order(self) -> bool:
        """True if every other register tile goes through K backwards.

        Then the part of the weight that was read last is still in the L1 cache, of a weight that is
        somewhat larger (Zen 4, 3x3 of 56x56x64 with stride 2: 1 % faster).
        """
        tile_bytes = self.tiles.steps * self.tiles.step_bytes
        return _L1_WEIGHT_BYTES < tile_bytes <= 4 * _L1_WEIGHT_BYTES

    @property
    def prefetch_bytes(self) -> int:
        """The prefetch distance of the weight; 0 for none.

        A register tile of one pixel reads each byte of the weight once, perhaps from memory. From
        the L2 cache a prefetch takes as long as the load (Emerald Rapids: 10 % slower).
        """
        size = self.tiles.count * self.tiles.steps * self.tiles.step_bytes
        is_streamed = self.mr == 1 and size >= _L2_WEIGHT_BYTES
        return self.target.prefetch_bytes_int8 if is_streamed else 0

    # -- multiplicands ----------------------------------------------------------------------------

    @property
    def can_convert_activations(self) -> bool:
        """True if the kernel can convert i8 activations, and multiplicands differ from them."""
        target = self.target
        is_biased_byte = target.multiplicand_type.bits == I8.bits and target.sign_offset != 0
        return self.converts_to_scratch or is_biased_byte

    @property
    def converts_to_scratch(self) -> bool:
        """True if the multiplicands of a register tile are written to scratch memory.

        Only those of 1x1 filters: pixels of larger filters share them, and are apart in memory.
        """
        size = self.mr * self.k_packs_per_pass * I32.bits // 8
        are_equal = self.target.multiplicand_type == I8 and not self.target.sign_offset
        is_small = self.geometry.tap_count == 1 and size <= _MAX_CONVERTED_BYTES
        return self.converts_activations and is_small and not are_equal

    @cached_property
    def panels(self) -> WidenedPanels | None:
        """Widened panels of the weight; None where the kernel reads the weight itself.

        Only a tile of a 1x1 filter is split, whose k-packs are consecutive in a pixel.
        """
        tiles, target = self.tiles, self.target
        k_pack_bytes = tiles.step_bytes * target.multiplicand_type.bits // I8.bits
        pixels = self.geometry.output_pixels // self.batches // self.workgroups
        if target.multiplicand_type != I16 or pixels < _MIN_PIXELS_PER_PANEL:
            return None
        max_bytes = _MAX_PANEL_SCRATCH_BYTES - self.padded_bytes(self.rows_per_block)
        if tiles.steps * k_pack_bytes <= min(max_bytes, _MAX_WHOLE_TILE_BYTES):
            return WidenedPanels(tiles, target, tiles.steps)
        if self.geometry.tap_count > 1 or self.channel_slices > 1:
            return None
        limit = min(max_bytes, _MAX_SPLIT_PANEL_BYTES) // k_pack_bytes
        choices = [n for n in range(_MIN_SPLIT_K_PACKS, limit + 1) if tiles.steps % n == 0]
        # Multiples of the K loop's unroll factor leave no remainder.
        k_packs = max(choices, key=lambda n: (math.gcd(n, MAX_UNROLL), n), default=None)
        return None if k_packs is None else WidenedPanels(tiles, target, k_packs)

    @property
    def splits_panels(self) -> bool:
        """True if accumulators wait in memory from one panel to the next."""
        return self.panels is not None and self.panels.count > 1

    @property
    def k_packs_per_pass(self) -> int:
        """The k-packs of a pixel that are multiplied before the next register tile."""
        return self.panels.k_packs if self.panels and self.splits_panels else self.k_packs_per_pixel

    @property
    def waiting_tiles(self) -> int:
        """The register tiles whose accumulators wait in memory from one panel to the next."""
        return _MAX_WAITING_BYTES // (self.mr * self.tiles.nr * I32.bits // 8)
