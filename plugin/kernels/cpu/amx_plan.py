"""Register blocking, loop order and prefetching of the AMX kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import TILE_REGISTERS, TILE_ROWS
from ...emit.linalg import constant_index
from ...emit.vectors import CACHE_LINE_BYTES, loop, quotient, remainder
from ..pack.k_runs import KRuns
from .conv_gemm import MAX_PADDED_BYTES, ConvGemm

_L1_BYTES, _L2_BYTES = 32 << 10, 1 << 20
"""The part of the L1 and of the L2 cache that activations, or a weight, may take.

Processors with AMX have 48 KiB of L1 and 2 MiB of L2, which two threads may share; accumulators,
tables and results take the rest.
"""
_MIN_PREFETCHED_TILE_BYTES = 1 << 14
"""A weight tile of at least this many bytes is prefetched while the one before is multiplied."""
_MAX_PREFETCHED_LINES = 8
"""Cache lines that are prefetched with each piece, at most."""


@dataclass(frozen=True)
class AmxUnit:
    """One unit of an AMX kernel: activation tiles times one weight tile, and where they are read.

    Attributes:
        image: the image of the block of output rows.
        first_row: the first output row of the block in the image.
        tile: the number of the weight tile.
        rows, pixels: of each activation tile, the output row over all images and the first pixel.
        starts: of each activation tile, the index of the first byte that it reads.
        number: the number of the unit among those of all blocks.
    """

    image: ArrayLike
    first_row: ArrayLike
    tile: ArrayLike
    rows: Sequence[ArrayLike]
    pixels: Sequence[ArrayLike]
    starts: Sequence[ArrayLike]
    number: ArrayLike


@dataclass(frozen=True)
class AmxPlan(ConvGemm):
    """An int8 convolution, or GEMM, with AMX.

    A *unit* is the product of some activation tiles, MR output pixels, with a weight tile of NR
    columns. Workgroups share the units of all weight tiles.
    """

    @property
    def runs(self) -> KRuns:
        """K, as it lies in memory."""
        return KRuns(self.geometry, self.channels)

    # -- register blocking ------------------------------------------------------------------------

    @cached_property
    def rows_per_block(self) -> int:
        """The output rows of a block, whose padded rows are copied together; all without copies."""
        rows, images = self.geometry.output_rows, self.geometry.images
        if self.pad_copy is None:
            return rows * images
        fits = (n for n in range(rows, 0, -1) if self.padded_bytes(n) <= MAX_PADDED_BYTES)
        return -(-rows // -(-rows // next(fits)))

    @property
    def blocks(self) -> int:
        """The number of blocks; the last two of an image may share rows."""
        if self.pad_copy is None:
            return 1
        return -(-self.geometry.output_rows // self.rows_per_block) * self.geometry.images

    @property
    def tiles_per_unit(self) -> int:
        """The activation tiles of a unit, as many as there are registers for."""
        vectors = self.tiles.vectors
        limit = (TILE_REGISTERS - vectors) // (vectors + 1)
        return min(limit, -(-self.geometry.output_columns // TILE_ROWS) * self.rows_per_block)

    @property
    def tiles_per_row(self) -> int:
        """The activation tiles of an output row."""
        count = -(-self.geometry.output_columns // TILE_ROWS)
        if self.rows_per_block > 1:
            return count
        return -(-count // self.tiles_per_unit) * self.tiles_per_unit

    @property
    def pixels_per_tile(self) -> int:
        """The output pixels of an activation tile; the last two of a row may share some."""
        return -(-self.geometry.output_columns // self.tiles_per_row)

    @property
    def tiles_per_block(self) -> int:
        """The activation tiles of a block."""
        return self.tiles_per_row * self.rows_per_block

    @property
    def units_per_block(self) -> int:
        """The units of a block, for each weight tile."""
        return -(-self.tiles_per_block // self.tiles_per_unit)

    # -- caches -----------------------------------------------------------------------------------

    @property
    def streams_weight(self) -> bool:
        """True if the loop over weight tiles is the inner one, and that over pixels the outer one.

        Otherwise a weight tile is multiplied with all pixels of a block: it stays in the L1 cache
        if they do, and is read from memory once if the weight is large. Where neither holds, the
        pixels of a unit stay in L1 and the weight comes from L2: it is contiguous, and read in a
        third less time than pixels, whose rows are apart.
        """
        if self.pad_copy is not None or self.units_per_block == 1:
            return False
        activations = self.geometry.input_pixels * self.channels
        return (
            activations + self._weight_tile_bytes > _L1_BYTES
            and self._unit_bytes <= _L1_BYTES
            and self._weight_bytes <= _L2_BYTES
        )

    @property
    def bypasses_l1(self) -> bool:
        """True if the weight is streamed and does not fit the L1 cache beside the pixels."""
        return self.streams_weight and self._weight_bytes + self._unit_bytes > _L1_BYTES

    @property
    def _weight_tile_bytes(self) -> int:
        return self.tiles.k * self.tiles.nr

    @property
    def _weight_bytes(self) -> int:
        return self.tiles.count * self._weight_tile_bytes

    @property
    def _unit_bytes(self) -> int:
        """Bytes of activations that a unit reads."""
        runs, stride = self.runs, self.geometry.column_stride * self.channels
        run_bytes = (self.pixels_per_tile - 1) * min(stride, runs.length) + runs.length
        return self.tiles_per_unit * math.prod(count for count, _ in runs.outer) * run_bytes

    @property
    def prefetched_lines(self) -> int:
        """Cache lines of the next weight tile that are prefetched with each piece of this one."""
        piece_bytes = self.runs.piece * self.tiles.nr
        is_large = self._weight_tile_bytes >= _MIN_PREFETCHED_TILE_BYTES and self.blocks == 1
        is_read_once = self.workgroups <= self.tiles.count and not self.streams_weight
        if not is_large or not is_read_once:
            return 0
        cache_lines = piece_bytes // CACHE_LINE_BYTES // self.units_per_block
        return min(cache_lines, _MAX_PREFETCHED_LINES)

    # -- positions --------------------------------------------------------------------------------

    def for_pieces(self, body: Callable[[ArrayLike, ArrayLike], None]) -> None:
        """Emit loops over K; the body gets a piece's number, and its offset from the first tap."""
        runs = self.runs
        loops = [*runs.outer, (runs.pieces, runs.piece)]

        def emit_level(level: int, number: ArrayLike, offset: ArrayLike) -> None:
            if level == len(loops):
                body(number, offset)
                return
            count, distance = loops[level]

            def emit_iteration(index: Value) -> None:
                own = scalar(index) * distance
                if level == len(loops) - 1 and runs.pieces * runs.piece > runs.length:
                    own = np.minimum(own, runs.length - runs.piece)
                emit_level(level + 1, number * count + scalar(index), offset + own)

            loop(0, count, 1, emit_iteration)

        zero = scalar(constant_index(0))
        emit_level(0, zero, zero)

    def unit_at(self, unit: ArrayLike) -> AmxUnit:
        """Return a unit, by its number among those of all blocks."""
        if self.streams_weight:  # there is one block
            group, tile = quotient(unit, self.tiles.count), remainder(unit, self.tiles.count)
            first = group * self.tiles_per_unit
        else:
            pair = quotient(unit, self.units_per_block)
            first = remainder(unit, self.units_per_block) * self.tiles_per_unit
            block, tile = quotient(pair, self.tiles.count), remainder(pair, self.tiles.count)
        positions = []  # of each activation tile, the row in its block and the first pixel
        for number in range(self.tiles_per_unit):
            activation_tile = first + number
            if self.tiles_per_block % self.tiles_per_unit:  # the last may overlap
                activation_tile = np.minimum(activation_tile, self.tiles_per_block - 1)
            pixel = remainder(activation_tile, self.tiles_per_row) * self.pixels_per_tile
            if self.tiles_per_row * self.pixels_per_tile > self.geometry.output_columns:
                pixel = np.minimum(pixel, self.geometry.output_columns - self.pixels_per_tile)
            positions.append((quotient(activation_tile, self.tiles_per_row), pixel))
        starts = [self.geometry.first_tap(*each) * self.channels for each in positions]
        image, first_row = scalar(constant_index(0)), scalar(constant_index(0))
        if self.pad_copy is not None:
            rows = self.geometry.output_rows
            blocks_per_image = -(-rows // self.rows_per_block)
            image = quotient(block, blocks_per_image)
            first_row = remainder(block, blocks_per_image) * self.rows_per_block
            if rows % self.rows_per_block:
                first_row = np.minimum(first_row, rows - self.rows_per_block)
        rows_before = [image * self.geometry.output_rows + first_row + row for row, _ in positions]
        pixels = [pixel for _, pixel in positions]
        return AmxUnit(image, first_row, tile, rows_before, pixels, starts, unit)
