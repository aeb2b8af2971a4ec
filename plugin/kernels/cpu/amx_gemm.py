"""AMX convolution and GEMM kernel: i8 x i8 -> i32 in tile registers.

The formula is that of `subquant.kernels.cpu.int8_conv`, but activations are signed::

    result[row, column, n] = sum_(t, c) x[row, column, t, c] * weight[n, t, c]

An activation tile has up to 16 output pixels of a row, and up to 64 bytes of K of each. Its rows
are loaded from the image itself (`KRuns`). Tile registers have the weight and the activations of
one step of K, and the accumulators: two weight tiles times two activation tiles, as the processor
multiplies for as long as it loads two tiles.

Loop nest of a workgroup, which has a range of *units*, MR pixels times NR columns: for a unit, all
pieces of K. The accumulators are stored to one half of a buffer; between the multiplications of a
unit, the epilogue of the unit before reads the other half.

Each workgroup requests AMX from Linux, which takes 0.1 us: any process may run a program. Where
Linux refuses, the kernel computes the same with AVX512-VNNI, at a fraction of the speed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import (
    TILE_ROW_BYTES,
    AmxAssembly,
    TileConfiguration,
    TileMemory,
    address,
    i64_constant,
    i64_of,
    request_permission,
)
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import (
    Vectors,
    bitcast,
    element_at,
    load,
    loop,
    quotient,
    remainder,
    scratch,
    store,
    when,
)
from ...numerics.element_types import I8, I32, U8
from ..epilogue.fused_epilogue import epilogue_bindings
from ..isa.base import Accumulator
from .amx_plan import AmxPlan, AmxUnit
from .output_tile import OutputTile

_MAX_UNROLL = 4
"""Groups of pixels of the epilogue that are unrolled, at most; more make the code larger."""
_K_PACK = 4
"""Consecutive k of a 32-bit lane: the products that AMX adds to one accumulator."""


@dataclass(frozen=True)
class AmxGemm(AmxPlan):
    """Int8 convolution or GEMM for AMX."""

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are weight, activations, tables of the epilogue, result."""
        tiles, geometry, pad_copy = self.tiles, self.geometry, self.pad_copy
        size = geometry.input_pixels * self.channels if pad_copy is None else pad_copy.input_size
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((size,), I8),
            *epilogue_bindings(self.epilogue, tiles.count * tiles.nr, self.result_shape),
        ]
        macs = geometry.output_pixels * tiles.k * tiles.n
        return Kernel("amx_gemm", bindings, self.workgroups, self._body, 0, macs=macs)

    def _body(self, memories: Sequence[Value], number: Value, _: DimSize) -> None:
        has_amx = request_permission()
        configuration = self._configuration()
        when(has_amx, configuration.load)
        workgroup = _Workgroup(self, memories, has_amx)
        units = self.blocks * self.tiles.count * self.units_per_block
        first = quotient(scalar(number) * units, self.workgroups)
        end = quotient((scalar(number) + 1) * units, self.workgroups)
        # One iteration more: the epilogue of a unit runs while the next one is multiplied.
        loop(first.value, (end + 1).value, 1, lambda unit: workgroup.emit(scalar(unit), first, end))

        when(has_amx, configuration.restore)

    def _configuration(self) -> TileConfiguration:
        """The tile configuration: activation tiles, weight tiles, then accumulators."""
        pixels, piece, vectors = self.pixels_per_tile, self.runs.piece, self.tiles.vectors
        shapes = [
            *[(pixels, piece)] * self.tiles_per_unit,
            *[(piece // 4, TILE_ROW_BYTES)] * vectors,
            *[(pixels, TILE_ROW_BYTES)] * (self.tiles_per_unit * vectors),
        ]
        return TileConfiguration(shapes)


class _Workgroup:
    """The units of a workgroup; `has_amx` is true where the process may use AMX."""

    def __init__(self, gemm: AmxGemm, memories: Sequence[Value], has_amx: ArrayLike) -> None:
        self.gemm, self.has_amx = gemm, has_amx
        self.weight, self.source, *tables, result = memories
        self.unit_pixels = gemm.tiles_per_unit * gemm.pixels_per_tile
        self.output = OutputTile(
            gemm.tiles, 2 * self.unit_pixels, gemm.epilogue, tables, result, in_memory=True
        )
        self.activations = self.source
        if gemm.pad_copy is not None:
            self.activations = scratch([gemm.padded_bytes(gemm.rows_per_block)], I8)
        self.activation_tiles = range(gemm.tiles_per_unit)
        first = gemm.tiles_per_unit
        self.weight_tiles = range(first, first + gemm.tiles.vectors)
        first = self.weight_tiles.stop
        self.accumulator_tiles = range(first, first + gemm.tiles_per_unit * gemm.tiles.vectors)

    def emit(self, unit: ArrayLike, first: ArrayLike, end: ArrayLike) -> None:
        """Multiply a unit if it is before ``end``, and write the one before if it is there."""
        gemm = self.gemm
        position = gemm.unit_at(unit)
        previous = gemm.unit_at(np.maximum(unit, first + 1) - 1)
        is_inside, has_previous = unit < end, unit > first
        uses_amx = is_inside & self.has_amx
        if gemm.pad_copy is not None:
            is_first = remainder(unit, gemm.units_per_block * gemm.tiles.count) == 0
            is_new_block = is_inside & (is_first | ~has_previous)
            when(is_new_block, lambda: self._copy_padded(position))
        buffer = remainder(unit, 2) * self.unit_pixels
        when(uses_amx, self._clear)

        when(is_inside & ~self.has_amx, lambda: self._fall_back(position, buffer))
        pieces = gemm.tiles.k // gemm.runs.piece
        groups = self.output.groups(gemm.pixels_per_tile) * gemm.tiles_per_unit
        piece_groups = -(-groups // pieces)

        def emit_piece(number: ArrayLike, offset: ArrayLike) -> None:
            when(uses_amx, lambda: self._multiply(position, number, offset))
            first_group = number * piece_groups

            def write(group: ArrayLike) -> None:
                own = np.minimum(group, groups - 1)
                self._write_group(own, previous, self.unit_pixels - buffer)

            def write_groups() -> None:
                if piece_groups > _MAX_UNROLL:
                    loop(0, piece_groups, 1, lambda group: write(first_group + scalar(group)))
                    return
                for group in range(piece_groups):
                    write(first_group + group)

            when(has_previous & (first_group < groups), write_groups)

        gemm.for_pieces(emit_piece)
        when(uses_amx, lambda: self._store(buffer))

    def _write_group(self, group: ArrayLike, position: AmxUnit, buffer: ArrayLike) -> None:
        """Write a group of the pixels of a unit whose accumulators are in memory."""
        gemm, pixels = self.gemm, self.gemm.pixels_per_tile
        tile_groups = self.output.groups(pixels)
        own, row, pixel, first = group, position.rows[0], position.pixels[0], buffer
        for number in range(1, gemm.tiles_per_unit):
            is_in_tile = group >= number * tile_groups
            own = np.where(is_in_tile, group - number * tile_groups, own)
            row = np.where(is_in_tile, position.rows[number], row)
            pixel = np.where(is_in_tile, position.pixels[number], pixel)
            first = np.where(is_in_tile, buffer + number * pixels, first)
        self.output.write_group(own, pixels, first, row, pixel, position.tile)

    def _copy_padded(self, position: AmxUnit) -> None:
        """Copy the padded rows of a block to scratch memory."""
        gemm, pad_copy = self.gemm, self.gemm.pad_copy
        assert pad_copy is not None
        *_, width, channels = pad_copy.padded_shape

        def copy(number: Value) -> None:
            row = position.first_row * pad_copy.vertical.stride + scalar(number)
            start = scalar(number) * (width * channels)
            pad_copy.copy_row(self.source, self.activations, position.image, row, start)

        loop(0, gemm.padded_rows(gemm.rows_per_block), 1, copy)

    # -- tile registers ---------------------------------------------------------------------------

    def _clear(self) -> None:
        """Clear the accumulators."""
        assembly = AmxAssembly()
        for tile in self.accumulator_tiles:
            assembly.clear(tile)
        assembly.emit()

    def _multiply(self, position: AmxUnit, piece: ArrayLike, offset: ArrayLike) -> None:
        """Add the products of a piece of K to the accumulators."""
        gemm, tiles, size = self.gemm, self.gemm.tiles, self.gemm.runs.piece
        vectors, nr, cache_lines = tiles.vectors, tiles.nr, gemm.prefetched_lines
        weight = address(self.weight) + i64_of(position.tile * (tiles.k * nr))
        assembly, stride = AmxAssembly(), i64_constant(gemm.geometry.column_stride * gemm.channels)
        start, row_bytes = (
            weight + i64_of(piece * (size * nr)),
            i64_constant(vectors * TILE_ROW_BYTES),
        )
        for vector, tile in enumerate(self.weight_tiles):
            rows = TileMemory(start, row_bytes, vector * TILE_ROW_BYTES, gemm.bypasses_l1)
            assembly.load(tile, rows)
        for number, first in zip(self.activation_tiles, position.starts, strict=True):
            rows = TileMemory(address(self.activations) + i64_of(first + offset), stride)
            assembly.load(number, rows)
            for vector, tile in enumerate(self.weight_tiles):
                accumulator = self.accumulator_tiles[number * vectors + vector]
                assembly.multiply(accumulator, number, tile)
        if cache_lines:
            unit = remainder(position.number, gemm.units_per_block)
            pieces = unit * (tiles.k // size) + piece
            next_tile = weight + tiles.k * nr
            start = next_tile + i64_of(pieces * (cache_lines * TILE_ROW_BYTES))
            assembly.prefetch(start, range(cache_lines))
        assembly.emit()

    def _store(self, buffer: ArrayLike) -> None:
        """Store the accumulators to a half of the buffer."""
        vectors, nr = self.gemm.tiles.vectors, self.gemm.tiles.nr
        assembly, stride = AmxAssembly(), i64_constant(nr * 4)
        start = address(self.output.accumulators) + i64_of(buffer * (nr * 4))
        for index, tile in enumerate(self.accumulator_tiles):
            number, vector = divmod(index, vectors)
            offset = number * self.gemm.pixels_per_tile * nr * 4 + vector * TILE_ROW_BYTES
            assembly.store(tile, TileMemory(start, stride, offset))
        assembly.emit()

    def _fall_back(self, position: AmxUnit, buffer: ArrayLike) -> None:
        """Compute the accumulators of a unit without AMX, one output pixel after the other.

        An activation is ``(x + 128) - 128``: two u8 x s8 dot products, of ``x + 128`` and of 128,
        are subtracted.
        """
        gemm, lanes, memory = self.gemm, self.gemm.tiles.lanes, self.output.accumulators
        stride, k_packs = gemm.geometry.column_stride * gemm.channels, gemm.runs.piece // _K_PACK
        zero, columns = Vectors(lanes).known(0, I32), range(0, gemm.tiles.nr, lanes)

        def clear(pixel: Value) -> None:
            for column in columns:
                store(zero, memory, [(buffer + scalar(pixel)).value, column])

        def add_pixel(
            piece: ArrayLike, offset: ArrayLike, index: int, start: ArrayLike, pixel: Value
        ) -> None:
            """Add a piece of K of a pixel of an activation tile, by its index in the unit."""
            first_byte = start + offset + scalar(pixel) * stride
            row = (buffer + scalar(pixel) + index * gemm.pixels_per_tile).value
            positions = [[row, column] for column in columns]
            initial = [load(memory, each, lanes, I32) for each in positions]

            def add_k_pack(k_pack: Value, *carried: ArrayLike) -> list[ArrayLike]:
                byte, step = first_byte + scalar(k_pack) * _K_PACK, piece * k_packs + scalar(k_pack)
                return self._add_k_pack(byte, position.tile, step, carried)

            accumulators = loop(0, k_packs, 1, add_k_pack, initial)
            for accumulator, each in zip(accumulators, positions, strict=True):
                store(accumulator, memory, each)

        def add_piece(number: ArrayLike, offset: ArrayLike) -> None:
            for index, start in enumerate(position.starts):
                add = functools.partial(add_pixel, number, offset, index, start)
                loop(0, gemm.pixels_per_tile, 1, add)

        loop(0, gemm.tiles_per_unit * gemm.pixels_per_tile, 1, clear)
        gemm.for_pieces(add_piece)

    def _add_k_pack(
        self, byte: ArrayLike, tile: ArrayLike, step: ArrayLike, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add the products of a k-pack of activations and a step of a weight tile, without AMX."""
        target, lanes = self.gemm.target, self.gemm.tiles.lanes
        word = element_at(bitcast(load(self.activations, [byte.value], 4, I8), I32), 0)
        unsigned = target.broadcast_k_pack(word, U8) ^ 128
        zero, half = Vectors(lanes).known(0, I32), Vectors(_K_PACK * lanes).known(128, U8)
        results = []
        for vector, accumulator in enumerate(accumulators):
            index = [tile.value, step.value, vector * lanes * _K_PACK]
            signed = load(self.weight, index, lanes * _K_PACK, I8)
            biased = target.add_dot(Accumulator(accumulator), unsigned, signed, 255)
            bias = target.add_dot(Accumulator(zero), half, signed, 255)
            results.append(target.i32_of(biased) - target.i32_of(bias))
        return results
