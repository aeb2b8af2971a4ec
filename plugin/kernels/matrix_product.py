"""The kernel of products of 8-bit integers with AMX's tiles: matrices and convolutions.

What is computed is what `IntegerProduct` computes, but activations are signed, as they are::

    result[l, m, n] = sum_(t, c) x[l * line_step + m * step + t, c] * weight[n, t, c]

A tile of activations has up to 16 windows of a line, and 64 integers of each, which are read from
where they lie. Positions of a window that follow one another in memory are a *run*, which is read
in equal *pieces*; the last of them may begin before the one before ends: the weight has zeros for
what is read twice (`Runs.pack`). Sums are written to memory of the workgroup, from where they are
read as vectors of columns.

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

import numpy as np

from .._mlir import Value
from ..emit import Formula, scalar
from ..emit.amx import Rows, Tiled, address, configuration, permitted
from ..emit.linalg import Extent, constant_index
from ..emit.values import Scalars
from ..emit.vectors import (
    Vectors,
    element_at,
    load,
    loop,
    numbers,
    quotient,
    remainder,
    reread,
    scratch,
    store,
    when,
)
from ..numerics.array_functions import concatenate, convert
from ..numerics.element_types import I8, I32, I64, U8, AnyArray
from .columns import SumWriter
from .epilogue import Finish, last_bindings
from .executables import Binding, Kernel
from .instructions import INSTRUCTIONS, Instructions, Sum
from .tiles import Tiles
from .windows import Windows

__all__ = ["MatrixProduct", "Runs"]

_ROWS, _BYTES, _REGISTERS = 16, 64, 8
"""Of a tile at most, and how many tiles there are."""
_LARGE, _MOST_LINES = 1 << 14, 8
"""Bytes of a tile of the weight, and lines of 64 bytes of the next that are asked for at once."""


@dataclass(frozen=True)
class Runs:
    """What is summed over, as it lies in memory.

    Args:
        windows: of the activations.
        channels: integers of a position; those of a run are a multiple of 4.
    """

    windows: Windows
    channels: int

    @property
    def _is_joined(self) -> bool:
        """True if the positions of a window's last axis follow one another."""
        return bool(self.windows.taps) and self.windows.taps[-1][1] == 1

    @property
    def length(self) -> int:
        """Integers of a run."""
        return self.channels * (self.windows.taps[-1][0] if self._is_joined else 1)

    @property
    def outer(self) -> list[tuple[int, int]]:
        """How many runs there are along each axis, and how many integers apart."""
        taps = self.windows.taps[:-1] if self._is_joined else self.windows.taps
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
class MatrixProduct:
    """What is computed.

    Args:
        tiles: how the weight lies in memory: its depth is that of the runs.
        instructions: what multiplies where there are no tiles, a name in `INSTRUCTIONS`.
        windows: where they are on the activations.
        channels: integers of a position.
        workgroups: how many share the windows of each tile of the weight.
        finish: what is done with the sums before they are written.
    """

    tiles: Tiles
    instructions: str
    windows: Windows
    channels: int
    workgroups: int
    finish: Finish | None = None

    @property
    def target(self) -> Instructions:
        """What multiplies where there are no tiles."""
        return INSTRUCTIONS[self.instructions]

    @property
    def runs(self) -> Runs:
        """What is summed over."""
        return Runs(self.windows, self.channels)

    @property
    def at_once(self) -> int:
        """How many tiles of windows are computed together: as many as there are registers for."""
        parts = self.tiles.parts
        most = (_REGISTERS - parts) // (parts + 1)
        every = -(-self.windows.count // _ROWS) * self.windows.lines * self.windows.images
        return min(most, every)

    @property
    def of_line(self) -> int:
        """How many tiles the windows of a line are."""
        windows, count = self.windows, -(-self.windows.count // _ROWS)
        if windows.lines * windows.images == 1:
            count = -(-count // self.at_once) * self.at_once
        return count

    @property
    def _every(self) -> int:
        """How many tiles all windows are."""
        return self.of_line * self.windows.lines * self.windows.images

    @property
    def _units(self) -> int:
        """How often tiles are computed together."""
        return -(-self._every // self.at_once)

    @property
    def _lines_ahead(self) -> int:
        """How much of the next tile of a large weight is asked for with each piece of this one."""
        of_piece = self.runs.piece * self.tiles.width
        is_large = self.tiles.depth * self.tiles.width >= _LARGE and self.workgroups == 1
        return min(of_piece // _BYTES // self._units, _MOST_LINES) if is_large else 0

    @property
    def rows(self) -> int:
        """Windows of a tile; the last one of a line may share some with the one before."""
        return -(-self.windows.count // self.of_line)

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, activations, tables of `finish`, and the result.
        """
        tiles, windows = self.tiles, self.windows
        shape = windows.images * windows.lines, windows.count, tiles.columns
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((windows.positions * self.channels,), I8),
            *last_bindings(self.finish, tiles.count * tiles.width, shape),
        ]
        count = tiles.count * self.workgroups
        products = windows.images * windows.lines * windows.count * tiles.depth * tiles.columns
        return Kernel("matrix_product", bindings, count, self._body, 0, products=products)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        weight, activations, *tables, result = memories
        rows = self.at_once * self.rows
        writer = SumWriter(self.tiles, rows, self.finish, tables, result, in_memory=True)
        units = self._units
        share = -(-units // self.workgroups)
        tile = quotient(scalar(number), self.workgroups)
        begin = remainder(scalar(number), self.workgroups) * share
        end = np.minimum(begin + share, units)
        has_tiles = permitted()
        when(has_tiles, self._configure)

        def of_unit(unit: Value) -> None:
            first = scalar(unit) * self.at_once
            places = [self._place(first + index) for index in range(self.at_once)]
            starts = [self.windows.start(*place) * self.channels for place in places]
            when(
                has_tiles,
                lambda: self._tiles(weight, activations, tile, starts, writer.sums, scalar(unit)),
                lambda: self._words(weight, activations, tile, starts, writer.sums),
            )

            def of_tile(index: Value) -> None:
                line, row = self._place(first + scalar(index))
                writer.write_rows(scalar(index) * self.rows, self.rows, line, row, tile)

            loop(0, self.at_once, 1, of_tile)

        loop(begin.value, end.value, 1, of_unit)

        def release() -> None:
            made = Tiled()
            made.release()
            made.emit()

        when(has_tiles, release)

    def _place(self, number: Formula) -> tuple[Formula, Formula]:
        """The line of a tile of windows, and its first one there.

        The last tiles of all may share windows with those before, and the last one of a line.
        """
        if self._every % self.at_once:
            number = np.minimum(number, self._every - 1)
        row = remainder(number, self.of_line) * self.rows
        if self.of_line * self.rows > self.windows.count:
            row = np.minimum(row, self.windows.count - self.rows)
        return quotient(number, self.of_line), row

    # -- tiles ------------------------------------------------------------------------------------

    def _configure(self) -> None:
        piece, parts = self.runs.piece, self.tiles.parts
        shapes = [
            *[(self.rows, piece)] * self.at_once,
            *[(piece // 4, _BYTES)] * parts,
            *[(self.rows, _BYTES)] * (self.at_once * parts),
        ]
        memory = scratch([_BYTES], I8)
        store(numbers(configuration(shapes), I8), memory, [0])
        made = Tiled()
        made.configure(address(memory))
        made.emit()

    def _tiles(
        self,
        weight: Value,
        activations: Value,
        tile: Formula,
        starts: Sequence[Formula],
        sums: Value,
        unit: Formula,
    ) -> None:
        """Write the sums of tiles of windows, the unit of a number, that start at some integers."""
        parts, width, piece = self.tiles.parts, self.tiles.width, self.runs.piece
        of_weight = range(self.at_once, self.at_once + parts)
        summed = range(of_weight.stop, of_weight.stop + self.at_once * parts)
        begin = Tiled()
        for register in summed:
            begin.clear(register)
        begin.emit()
        from_weight = address(weight) + _wide(tile * (self.tiles.depth * width))
        from_start = [address(activations) + _wide(start) for start in starts]

        def of_piece(number: Formula, offset: Formula) -> None:
            step, apart = Tiled(), _known(self.windows.step * self.channels)
            stored = from_weight + _wide(number * (piece * width))
            for part, register in enumerate(of_weight):
                step.load(register, Rows(stored, _known(parts * _BYTES), part * _BYTES))
            for window, start in enumerate(from_start):
                step.load(window, Rows(start + _wide(offset), apart))
                for part, register in enumerate(of_weight):
                    step.multiply(summed[window * parts + part], window, register)
            if lines:
                so_far = unit * (self.tiles.depth // piece) + number
                step.prefetch(behind + _wide(so_far * (lines * _BYTES)), lines)
            step.emit()

        lines, behind = self._lines_ahead, from_weight + self.tiles.depth * width
        self._pieces(of_piece)
        end, place, apart = Tiled(), address(sums), _known(width * 4)
        for index, register in enumerate(summed):
            window, part = divmod(index, parts)
            offset = window * self.rows * width * 4 + part * _BYTES
            end.store(register, Rows(place, apart, offset))
        end.emit()

    def _pieces(self, body: Callable[[Formula, Formula], None]) -> None:
        """Call the body with the number of each piece, and with where it is in a window."""
        runs = self.runs
        loops = [*runs.outer, (runs.pieces, runs.piece)]

        def of_loop(level: int, number: Formula, place: Formula) -> None:
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

    # -- without tiles ----------------------------------------------------------------------------

    def _words(
        self,
        weight: Value,
        activations: Value,
        tile: Formula,
        starts: Sequence[Formula],
        sums: Value,
    ) -> None:
        """Write the same sums, a window after another.

        An activation is ``(x + 128) - 128``: the sum of the weight times 128 is taken off.
        """
        lanes, groups = self.tiles.lanes, self.runs.piece // 4
        target, half = self.target, Vectors(4 * lanes).known(128, U8)
        zero, parts = Vectors(lanes).known(0, I32), range(0, self.tiles.width, lanes)

        def begin(row: Value) -> None:
            for part in parts:
                store(zero, sums, [row, part])

        def of_piece(number: Formula, offset: Formula) -> None:
            def of_row(index: int, start: Formula, row: Value) -> None:
                place = start + offset + scalar(row) * (self.windows.step * self.channels)
                memory = [[(scalar(row) + index * self.rows).value, part] for part in parts]
                before = [load(sums, each, lanes, I32) for each in memory]

                def of_group(group: Value, *totals: Formula) -> list[Formula]:
                    four = load(activations, [(place + scalar(group) * 4).value], 4, I8)
                    unsigned = target.spread(element_at(reread(four, I32), 0), U8) ^ 128
                    step, made = (number * groups + scalar(group)).value, []
                    for total, part in zip(totals, parts, strict=True):
                        signed = load(weight, [tile.value, step, part * 4], lanes * 4, I8)
                        more = target.add(Sum(total), unsigned, signed, 255)
                        less = target.add(Sum(zero), half, signed, 255)
                        made.append(target.words(more) - target.words(less))
                    return made

                after = loop(0, groups, 1, of_group, before)
                for total, each in zip(after, memory, strict=True):
                    store(total, sums, each)

            for index, start in enumerate(starts):
                loop(0, self.rows, 1, functools.partial(of_row, index, start))

        loop(0, self.at_once * self.rows, 1, begin)
        self._pieces(of_piece)


def _wide(position: Formula) -> Formula:
    return convert(position, I64)


def _known(number: int) -> Formula:
    return Scalars().known(number, I64)
