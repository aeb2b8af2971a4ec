"""The kernel of products of 8-bit integers with AMX's tiles: matrices and convolutions.

What is computed is what `Int8Conv` computes, but activations are signed, as they are::

    result[l, m, n] = sum_(t, c) x[l * line_step + m * step + t, c] * weight[n, t, c]

A tile of activations has up to 16 windows of a line, and 64 integers of each, which are read from
where they lie. Positions of a window that follow one another in memory are a *run*, which is read
in equal *pieces*; the last of them may begin before the one before ends: the weight has zeros for
what is read twice (`KRuns.pack`). What is around pictures is put into memory of the workgroup, with
the lines that are inside, for the windows of some lines at a time, which are a *block*.

Sums are written to memory of the workgroup too, from where they are read as vectors of columns:
while tiles are multiplied, what they are multiplied in being a unit of its own, the sums of the
tiles before are finished and written to the result, some rows with each piece.

A tile of the weight is multiplied with two tiles of activations as soon as it is read, and these
with two of the weight: the processor multiplies for as long as it takes to read two.

Linux is asked for the tiles by each workgroup, which takes 0.1 us: a program may be run by any
process. Where it refuses them, the same is computed without, at a fraction of the speed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.amx import AmxAssembly, TileMemory, address, request_permission, tile_configuration
from ...emit.linalg import Extent, constant_index
from ...emit.scalars import Scalars
from ...emit.vectors import (
    Vectors,
    bitcast,
    constant_vector,
    element_at,
    load,
    loop,
    quotient,
    remainder,
    scratch,
    store,
    when,
)
from ...numerics.array_functions import concatenate, convert
from ...numerics.element_types import I8, I32, I64, U8, AnyArray
from ..conv_geometry import ConvGeometry
from ..epilogue.fused_epilogue import epilogue_bindings
from ..isa.base import Accumulator
from ..kernel import Binding, Kernel
from .conv_gemm import ROOM, ConvGemm
from .output_tile import OutputTile

__all__ = ["AmxGemm", "KRuns"]

_ROWS, _BYTES, _REGISTERS = 16, 64, 8
"""Of a tile at most, and how many tiles there are."""
_WRITTEN_OUT = 4
"""Groups of rows that are written out at most; more are a loop."""
_FIRST_CACHE, _SECOND_CACHE = 32 << 10, 1 << 20
"""Bytes that stay in the caches of a core beside sums, tables and what is written.

Processors with tiles have 48 KiB and 2 MiB, which two threads may share.
"""
_LARGE, _MOST_LINES = 1 << 14, 8
"""Bytes of a tile of the weight, and lines of 64 bytes of the next that are asked for at once."""


@dataclass(frozen=True)
class KRuns:
    """What is summed over, as it lies in memory.

    Args:
        windows: of the activations.
        channels: integers of a position; those of a run are a multiple of 4.
    """

    geometry: ConvGeometry
    channels: int

    @property
    def _is_joined(self) -> bool:
        """True if the positions of a window's last axis follow one another."""
        return bool(self.geometry.taps) and self.geometry.taps[-1][1] == 1

    @property
    def length(self) -> int:
        """Integers of a run."""
        return self.channels * (self.geometry.taps[-1][0] if self._is_joined else 1)

    @property
    def outer(self) -> list[tuple[int, int]]:
        """How many runs there are along each axis, and how many integers apart."""
        taps = self.geometry.taps[:-1] if self._is_joined else self.geometry.taps
        return [(count, apart * self.channels) for count, apart in taps]

    @property
    def pieces(self) -> int:
        """How many pieces a run is read in."""
        return -(-self.length // _BYTES)

    @property
    def piece(self) -> int:
        """Integers of a piece, a multiple of 4."""
        return -(-self.length // self.pieces // 4) * 4

    @property
    def depth(self) -> int:
        """Integers of all pieces."""
        return math.prod(count for count, _ in self.outer) * self.pieces * self.piece

    def pack(self, rows: AnyArray) -> AnyArray:
        """A weight of ``columns x integers``, with zeros where a piece reads again."""
        again = self.pieces * self.piece - self.length
        if not again:
            return rows
        columns, last = rows.shape[0], (self.pieces - 1) * self.piece
        apart = rows.reshape((columns, rows.shape[1] // self.length, self.length))
        before = np.pad(apart[:, :, :last], [(0, 0), (0, 0), (0, again)])
        return concatenate([before, apart[:, :, last:]], 2).reshape((columns, self.depth))


@dataclass(frozen=True)
class AmxGemm(ConvGemm):
    """A product by tiles, of which workgroups share the windows of all tiles of the weight."""

    @property
    def runs(self) -> KRuns:
        """What is summed over."""
        return KRuns(self.geometry, self.channels)

    @cached_property
    def rows_per_block(self) -> int:
        """How many lines of windows read what is written together: all if nothing is written."""
        lines, images = self.geometry.output_rows, self.geometry.images
        if self.pad_copy is None:
            return lines * images
        most = next(n for n in range(lines, 0, -1) if self.room_of(n) <= ROOM)
        return -(-lines // -(-lines // most))

    @property
    def _blocks(self) -> int:
        """How many blocks there are; the last one of an image may share lines with another."""
        if self.pad_copy is None:
            return 1
        return -(-self.geometry.output_rows // self.rows_per_block) * self.geometry.images

    @property
    def room(self) -> int:
        """How many bytes the windows of a block read."""
        return self.room_of(self.rows_per_block)

    @property
    def at_once(self) -> int:
        """How many tiles of windows are computed together: as many as there are registers for."""
        parts = self.tiles.vectors
        most = (_REGISTERS - parts) // (parts + 1)
        return min(most, -(-self.geometry.output_columns // _ROWS) * self.rows_per_block)

    @property
    def of_line(self) -> int:
        """How many tiles the windows of a line are."""
        count = -(-self.geometry.output_columns // _ROWS)
        return -(-count // self.at_once) * self.at_once if self.rows_per_block == 1 else count

    @property
    def _every(self) -> int:
        """How many tiles the windows of a block are."""
        return self.of_line * self.rows_per_block

    @property
    def units(self) -> int:
        """How often tiles of a block are computed together."""
        return -(-self._every // self.at_once)

    @property
    def is_weight_passing(self) -> bool:
        """True if all tiles of the weight are multiplied with some windows, then with the next.

        Else all windows of a block are multiplied with a tile, which stays in the first cache if
        they do, and is read once from memory if the weight is large. Where neither is so, windows
        stay in the first cache, and tiles come from the second: these lie one behind the other,
        and are read in a third less time than windows are whose rows are apart.
        """
        if self.pad_copy is not None or self.units == 1:
            return False
        of_all = self.geometry.input_pixels * self.channels
        of_tile = self.tiles.k * self.tiles.nr
        return (
            of_all + of_tile > _FIRST_CACHE
            and self._bytes_at_once <= _FIRST_CACHE
            and self._weight_bytes <= _SECOND_CACHE
        )

    @property
    def is_weight_kept_out(self) -> bool:
        """True if the weight passes by, and there is no place for it in the first cache."""
        return self.is_weight_passing and self._weight_bytes + self._bytes_at_once > _FIRST_CACHE

    @property
    def _weight_bytes(self) -> int:
        return self.tiles.count * self.tiles.k * self.tiles.nr

    @property
    def _bytes_at_once(self) -> int:
        """How many bytes of activations the tiles of windows read that are computed together."""
        runs = self.runs
        of_run = (self.rows - 1) * min(
            self.geometry.column_stride * self.channels, runs.length
        ) + runs.length
        return self.at_once * math.prod(count for count, _ in runs.outer) * of_run

    @property
    def lines_ahead(self) -> int:
        """How much of the next tile of a large weight is asked for with each piece of this one."""
        of_piece = self.runs.piece * self.tiles.nr
        is_large = self.tiles.k * self.tiles.nr >= _LARGE and self._blocks == 1
        is_large = is_large and not self.is_weight_passing
        is_read_once = is_large and self.workgroups <= self.tiles.count
        return min(of_piece // _BYTES // self.units, _MOST_LINES) if is_read_once else 0

    @property
    def rows(self) -> int:
        """Windows of a tile; the last one of a line may share some with the one before."""
        return -(-self.geometry.output_columns // self.of_line)

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, activations, tables of `epilogue`, and the result.
        """
        tiles, windows, pad_copy = self.tiles, self.geometry, self.pad_copy
        given = windows.input_pixels * self.channels if pad_copy is None else pad_copy.given
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((given,), I8),
            *epilogue_bindings(self.epilogue, tiles.count * tiles.nr, self.shape),
        ]
        products = windows.output_pixels * tiles.k * tiles.n
        return Kernel("matrix_product", bindings, self.workgroups, self._body, 0, macs=products)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        has_tiles = request_permission()
        when(has_tiles, self._configure)
        work = _Work(self, memories, has_tiles)
        every = self._blocks * self.tiles.count * self.units
        begin = quotient(scalar(number) * every, self.workgroups)
        end = quotient((scalar(number) + 1) * every, self.workgroups)
        # The sums of a unit are written while the next one is multiplied.
        loop(begin.value, (end + 1).value, 1, lambda unit: work.write(scalar(unit), begin, end))

        def release() -> None:
            made = AmxAssembly()
            made.release()
            made.emit()

        when(has_tiles, release)

    def _configure(self) -> None:
        piece, parts = self.runs.piece, self.tiles.vectors
        shapes = [
            *[(self.rows, piece)] * self.at_once,
            *[(piece // 4, _BYTES)] * parts,
            *[(self.rows, _BYTES)] * (self.at_once * parts),
        ]
        memory = scratch([_BYTES], I8)
        store(constant_vector(tile_configuration(shapes), I8), memory, [0])
        made = AmxAssembly()
        made.configure(address(memory))
        made.emit()

    def pieces(self, body: Callable[[ArrayLike, ArrayLike], None]) -> None:
        """Call the body with the number of each piece, and with where it is in a window."""
        runs = self.runs
        loops = [*runs.outer, (runs.pieces, runs.piece)]

        def of_loop(level: int, number: ArrayLike, place: ArrayLike) -> None:
            if level == len(loops):
                body(number, place)
                return
            count, apart = loops[level]

            def of_position(position: Value) -> None:
                offset = scalar(position) * apart
                if level == len(loops) - 1 and runs.pieces * runs.piece > runs.length:
                    offset = np.minimum(offset, runs.length - runs.piece)
                of_loop(level + 1, number * count + scalar(position), place + offset)

            loop(0, count, 1, of_position)

        zero = scalar(constant_index(0))
        of_loop(0, zero, zero)

    def place(self, unit: ArrayLike) -> _Place:
        """Where a unit of all is."""
        if self.is_weight_passing:  # there is one block
            number, tile = quotient(unit, self.tiles.count), remainder(unit, self.tiles.count)
            first = number * self.at_once
        else:
            number, first = quotient(unit, self.units), remainder(unit, self.units) * self.at_once
            block, tile = quotient(number, self.tiles.count), remainder(number, self.tiles.count)
        within = [self._within(first + index) for index in range(self.at_once)]
        starts = [self.geometry.first_tap(*each) * self.channels for each in within]
        image, begin = scalar(constant_index(0)), scalar(constant_index(0))
        if self.pad_copy is not None:
            of_image = -(-self.geometry.output_rows // self.rows_per_block)
            image = quotient(block, of_image)
            begin = remainder(block, of_image) * self.rows_per_block
            if self.geometry.output_rows % self.rows_per_block:
                begin = np.minimum(begin, self.geometry.output_rows - self.rows_per_block)
        lines = [image * self.geometry.output_rows + begin + line for line, _ in within]
        return _Place(image, begin, tile, lines, [row for _, row in within], starts, unit)

    def _within(self, number: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """The line of a tile of windows in its block, and its first one there.

        The last tiles of all may share windows with those before, and the last one of a line.
        """
        if self._every % self.at_once:
            number = np.minimum(number, self._every - 1)
        row = remainder(number, self.of_line) * self.rows
        if self.of_line * self.rows > self.geometry.output_columns:
            row = np.minimum(row, self.geometry.output_columns - self.rows)
        return quotient(number, self.of_line), row


@dataclass(frozen=True)
class _Place:
    """Where tiles of windows are that are computed together.

    Attributes:
        image: of the block.
        begin: the first line of the block in the image.
        tile: of the weight.
        lines, rows: of each, in the result.
        starts: its first integer among those that the block reads.
        unit: its number.
    """

    image: ArrayLike
    begin: ArrayLike
    tile: ArrayLike
    lines: Sequence[ArrayLike]
    rows: Sequence[ArrayLike]
    starts: Sequence[ArrayLike]
    unit: ArrayLike


class _Work:
    """What a workgroup does.

    Args:
        product: what is computed.
        memories: of the kernel.
        has_tiles: whether there are tiles.
    """

    def __init__(self, product: AmxGemm, memories: Sequence[Value], has_tiles: ArrayLike) -> None:
        self.product, self.has_tiles = product, has_tiles
        self.weight, self.given, *tables, result = memories
        self.rows = product.at_once * product.rows
        self.writer = OutputTile(
            product.tiles, 2 * self.rows, product.epilogue, tables, result, in_memory=True
        )
        self.read = self.given
        if product.pad_copy is not None:
            self.read = scratch([product.room], I8)

    def write(self, unit: ArrayLike, begin: ArrayLike, end: ArrayLike) -> None:
        """Multiply a unit, if it is one of these, and write the sums of the one before."""
        product, writer = self.product, self.writer
        place, before = product.place(unit), product.place(np.maximum(unit, begin + 1) - 1)
        is_there, is_later = unit < end, unit > begin
        is_tiled = is_there & self.has_tiles
        if product.pad_copy is not None:
            is_new = remainder(unit, product.units * product.tiles.count) == 0
            when(is_there & (is_new | ~is_later), lambda: self._fill(place))
        room = remainder(unit, 2) * self.rows
        when(is_tiled, self._clear)
        when(is_there & ~self.has_tiles, lambda: self._words(place, room))
        pieces = product.tiles.k // product.runs.piece
        groups = -(-product.rows // writer.pixels_per_group(product.rows)) * product.at_once
        of_piece = -(-groups // pieces)

        def body(number: ArrayLike, offset: ArrayLike) -> None:
            when(is_tiled, lambda: self._multiply(place, number, offset))
            first = number * of_piece

            def write(group: ArrayLike) -> None:
                self._write_group(np.minimum(group, groups - 1), before, self.rows - room)

            def write_groups() -> None:
                if of_piece > _WRITTEN_OUT:
                    loop(0, of_piece, 1, lambda group: write(first + scalar(group)))
                    return
                for group in range(of_piece):
                    write(first + group)

            when(is_later & (first < groups), write_groups)

        product.pieces(body)
        when(is_tiled, lambda: self._keep(room))

    def _write_group(self, group: ArrayLike, place: _Place, room: ArrayLike) -> None:
        """Write the sums of some rows, which are in memory from `room` on."""
        product, writer = self.product, self.writer
        of_tile = -(-product.rows // writer.pixels_per_group(product.rows))
        inner, line, row, first = group, place.lines[0], place.rows[0], room
        for number in range(1, product.at_once):
            is_of_tile = group >= number * of_tile
            inner = np.where(is_of_tile, group - number * of_tile, inner)
            line = np.where(is_of_tile, place.lines[number], line)
            row = np.where(is_of_tile, place.rows[number], row)
            first = np.where(is_of_tile, room + number * product.rows, first)
        writer.write_group(inner, product.rows, first, line, row, place.tile)

    def _fill(self, place: _Place) -> None:
        """Write the lines that a block reads, with what is around them."""
        product, pad_copy = self.product, self.product.pad_copy
        assert pad_copy is not None
        *_, positions, channels = pad_copy.shape
        axis = pad_copy.vertical

        def of_line(number: Value) -> None:
            line = place.begin * axis.stride + scalar(number)
            start = scalar(number) * (positions * channels)
            pad_copy.write_line(self.given, self.read, place.image, line, start)

        loop(0, (product.rows_per_block - 1) * axis.stride + axis.receptive_field, 1, of_line)

    # -- tiles ------------------------------------------------------------------------------------

    @property
    def _of_weight(self) -> range:
        return range(self.product.at_once, self.product.at_once + self.product.tiles.vectors)

    @property
    def _summed(self) -> range:
        first = self._of_weight.stop
        return range(first, first + self.product.at_once * self.product.tiles.vectors)

    def _clear(self) -> None:
        """Begin the sums of a unit."""
        made = AmxAssembly()
        for register in self._summed:
            made.clear(register)
        made.emit()

    def _multiply(self, place: _Place, number: ArrayLike, offset: ArrayLike) -> None:
        """Add the products of a piece."""
        product, tiles, piece = self.product, self.product.tiles, self.product.runs.piece
        parts, width, lines = tiles.vectors, tiles.nr, self.product.lines_ahead
        begin = address(self.weight) + _wide(place.tile * (tiles.k * width))
        step, apart = AmxAssembly(), _known(product.geometry.column_stride * product.channels)
        stored, of_weight = begin + _wide(number * (piece * width)), _known(parts * _BYTES)
        for part, register in enumerate(self._of_weight):
            rows = TileMemory(stored, of_weight, part * _BYTES, product.is_weight_kept_out)
            step.load(register, rows)
        for window, start in enumerate(place.starts):
            step.load(window, TileMemory(address(self.read) + _wide(start + offset), apart))
            for part, register in enumerate(self._of_weight):
                step.multiply(self._summed[window * parts + part], window, register)
        if lines:
            so_far = remainder(place.unit, product.units) * (tiles.k // piece) + number
            behind = begin + tiles.k * width
            step.prefetch(behind + _wide(so_far * (lines * _BYTES)), lines)
        step.emit()

    def _keep(self, room: ArrayLike) -> None:
        """Write sums to memory, where there is room."""
        parts, width = self.product.tiles.vectors, self.product.tiles.nr
        end, apart = AmxAssembly(), _known(width * 4)
        place = address(self.writer.accumulators) + _wide(room * (width * 4))
        for index, register in enumerate(self._summed):
            window, part = divmod(index, parts)
            offset = window * self.product.rows * width * 4 + part * _BYTES
            end.store(register, TileMemory(place, apart, offset))
        end.emit()

    # -- without tiles ----------------------------------------------------------------------------

    def _words(self, place: _Place, room: ArrayLike) -> None:
        """Write the same sums, a window after another.

        An activation is ``(x + 128) - 128``: the sum of the weight times 128 is taken off.
        """
        product, sums = self.product, self.writer.accumulators
        tiles, apart = product.tiles, product.geometry.column_stride * product.channels
        lanes, groups, target = tiles.lanes, product.runs.piece // 4, product.target
        half, zero = Vectors(4 * lanes).known(128, U8), Vectors(lanes).known(0, I32)
        parts = range(0, tiles.nr, lanes)

        def begin(row: Value) -> None:
            for part in parts:
                store(zero, sums, [(room + scalar(row)).value, part])

        def of_piece(number: ArrayLike, offset: ArrayLike) -> None:
            def of_row(index: int, start: ArrayLike, row: Value) -> None:
                at = start + offset + scalar(row) * apart
                summed = (room + scalar(row) + index * product.rows).value
                memory = [[summed, part] for part in parts]
                before = [load(sums, each, lanes, I32) for each in memory]

                def of_group(group: Value, *totals: ArrayLike) -> list[ArrayLike]:
                    four = load(self.read, [(at + scalar(group) * 4).value], 4, I8)
                    unsigned = target.broadcast_k_pack(element_at(bitcast(four, I32), 0), U8) ^ 128
                    step, made = (number * groups + scalar(group)).value, []
                    for total, part in zip(totals, parts, strict=True):
                        stored = [place.tile.value, step, part * 4]
                        signed = load(self.weight, stored, lanes * 4, I8)
                        more = target.add_dot(Accumulator(total), unsigned, signed, 255)
                        less = target.add_dot(Accumulator(zero), half, signed, 255)
                        made.append(target.i32_of(more) - target.i32_of(less))
                    return made

                after = loop(0, groups, 1, of_group, before)
                for total, each in zip(after, memory, strict=True):
                    store(total, sums, each)

            for index, start in enumerate(place.starts):
                loop(0, product.rows, 1, functools.partial(of_row, index, start))

        loop(0, self.rows, 1, begin)
        product.pieces(of_piece)


def _wide(position: ArrayLike) -> ArrayLike:
    return convert(position, I64)


def _known(number: int) -> ArrayLike:
    return Scalars().known(number, I64)
