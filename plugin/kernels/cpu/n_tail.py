"""Writing the columns of a tile, of which some may be after the last of the weight."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np

from ...core._mlir import Value
from ...emit import Formula, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import element_at, load, loop, scratch, slice_lanes, store, store_element, when
from ...numerics.element_types import I32
from ..epilogue.matcher import FusedEpilogue
from ..pack.packed_weight import Tiles

__all__ = ["SumWriter", "store_columns"]


def store_columns(
    given: Formula, result: Value, row: Sequence[Value], columns: int, column: Formula, width: int
) -> None:
    """Write a vector of columns to a row of the result.

    Args:
        given: the vector.
        result: whose last axis has `columns`.
        row: where, along the axes before.
        columns: how many there are.
        column: the first of the vector; a multiple of its lanes.
        width: the vectors of so many columns are computed together, from a multiple of it on.
    """
    lanes = given.form.lanes
    if columns % width == 0:
        store(given, result, [*row, column.value])
        return
    when(column + lanes <= columns, lambda: store(given, result, [*row, column.value]))
    whole, rest = divmod(columns, lanes)
    if not rest:
        return

    def write() -> None:
        for lane in range(rest):
            store_element(element_at(given, lane), result, [*row, (column + lane).value])

    when(column == whole * lanes, write)


class SumWriter:
    """Writes the sums of some rows and a tile of columns, finished if there is something to do.

    Args:
        tiles: the layout of the weight.
        rows: how many are computed together, or wait in memory.
        epilogue: what is done with the sums, or None.
        tables: what it reads.
        result: ``lines x rows x columns``.
        in_memory: whether the kernel writes sums to `sums` by itself.

    It is made at the beginning of a kernel, where it takes memory for sums that are to be finished:
    the code for that is written once, as a loop.
    """

    def __init__(
        self,
        tiles: Tiles,
        rows: int,
        epilogue: FusedEpilogue | None,
        tables: Sequence[Value],
        result: Value,
        *,
        in_memory: bool = False,
    ) -> None:
        self._tiles, self._rows, self._result = tiles, rows, result
        self._epilogue, self._tables = epilogue, tables
        if in_memory or (epilogue and epilogue.needs_fallback):
            self.sums = scratch([rows, tiles.nr], I32)

    def write(self, sums: Sequence[Formula], line: Formula, row: Formula, tile: Formula) -> None:
        """Write sums.

        Args:
            sums: of each row, for each vector of columns of the tile.
            line: where they are in the result.
            row: the first in the line.
            tile: the number of the tile.
        """
        parts, lanes = self._tiles.vectors, self._tiles.lanes
        first = scalar(constant_index(0))
        if self._epilogue and self._epilogue.vectors_per_estimate:
            rows = [row + index for index in range(self._rows)]
            is_near = self._estimate(sums, line, rows, tile)

            def again() -> None:
                self.keep(sums)
                self._write_exactly(first, self._rows, line, row, tile)

            if is_near is not None:
                when(is_near, again)
        elif self._epilogue:
            self.keep(sums)
            self._write_exactly(first, self._rows, line, row, tile)
        else:
            for total, (index, part) in zip(sums, np.ndindex(self._rows, parts), strict=True):
                self._store(total, [line.value, (row + index).value], tile, part * lanes)

    def keep(self, sums: Sequence[Formula], first: Formula | None = None) -> None:
        """Write sums to memory.

        Args:
            sums: of some rows, for each vector of columns of the tile.
            first: where the first row is in memory; None for its begin.
        """
        for total, at in zip(sums, self._places(len(sums), first), strict=True):
            store(total, self.sums, at)

    def kept(self, first: Formula, rows: int) -> list[Formula]:
        """The sums that are in memory, of some rows, as of `keep`."""
        places = self._places(rows * self._tiles.vectors, first)
        return [load(self.sums, at, self._tiles.lanes, I32) for at in places]

    def _places(self, count: int, first: Formula | None) -> list[list[Value | int]]:
        """Where so many vectors of sums are in memory."""
        lanes, parts = self._tiles.lanes, self._tiles.vectors
        rows = [n if first is None else (first + n).value for n in range(count // parts)]
        return [[row, part * lanes] for row in rows for part in range(parts)]

    def together(self, count: int) -> int:
        """How many rows of so many, that are in memory, are written together."""
        if not self._epilogue or not self._epilogue.vectors_per_estimate:
            return 1
        return min(count, max(1, self._epilogue.vectors_per_estimate // self._tiles.vectors))

    def write_group(
        self,
        group: Formula,
        count: int,
        place: Formula,
        line: Formula,
        row: Formula,
        tile: Formula,
    ) -> None:
        """Write sums that are in memory: a group of rows, of which the last may be some of others.

        Args:
            group: the number of these rows.
            count: of all rows.
            place: where the first of all rows is in memory.
            line, row: where it is in the result.
            tile: the number of the tile.
        """
        together, parts, lanes = self.together(count), self._tiles.vectors, self._tiles.lanes
        first = group * together
        if count % together:
            first = np.minimum(first, count - together)
        place, row = place + first, row + first
        if not self._epilogue or not self._epilogue.vectors_per_estimate:
            self._write_exactly(place, together, line, row, tile)
            return
        rows = [(index, part) for index in range(together) for part in range(parts)]
        sums = [load(self.sums, [(place + i).value, p * lanes], lanes, I32) for i, p in rows]
        is_near = self._estimate(sums, line, [row + index for index in range(together)], tile)
        if is_near is not None:
            when(is_near, lambda: self._write_exactly(place, together, line, row, tile))

    def _estimate(
        self, sums: Sequence[Formula], line: Formula, rows: Sequence[Formula], tile: Formula
    ) -> Formula | None:
        """Write what floats tell of the sums of rows; true if that is wrong for one of them.

        None if it never is.
        """
        epilogue, parts, lanes = self._epilogue, self._tiles.vectors, self._tiles.lanes
        assert epilogue is not None
        width = min(epilogue.vectors_per_estimate, parts)
        places = [
            (row, range(part, min(part + width, parts)))
            for row in range(len(rows))
            for part in range(0, parts, width)
        ]
        nears, many = [], max(1, epilogue.vectors_per_estimate // width)
        for at in range(0, len(places), many):
            group = places[at : at + many]
            given = [sums[row * parts + part] for row, of_row in group for part in of_row]
            columns = [
                tile * self._tiles.nr + part * lanes for _, of_row in group for part in of_row
            ]
            which = [part for _, of_row in group for part in of_row]
            made, is_near = epilogue.estimate(self._tables, given, columns, which)
            if is_near is not None:
                nears.append(is_near)
            done = 0
            for row, of_row in group:
                part = slice_lanes(made, done, len(of_row) * lanes)
                self._store(part, [line.value, rows[row].value], tile, of_row.start * lanes)
                done += len(of_row) * lanes
        return functools.reduce(operator.or_, nears) if nears else None

    def _write_exactly(
        self, first: Formula, count: int, line: Formula, row: Formula, tile: Formula
    ) -> None:
        """Write sums that are in memory.

        What all rows of a vector of columns read is read once.
        """
        lanes, epilogue = self._tiles.lanes, self._epilogue

        def of_part(offset: Value) -> None:
            def of_row(index: Value) -> None:
                total = load(self.sums, [(first + scalar(index)).value, offset], lanes, I32)
                at = [line.value, (row + scalar(index)).value]
                if epilogue is None:
                    self._store(total, at, tile, scalar(offset))
                    return
                column = tile * self._tiles.nr + scalar(offset)

                def write() -> None:
                    made = epilogue.emit(self._tables, total, column)
                    self._store(made, at, tile, scalar(offset))

                if epilogue.vectors_per_estimate:  # of some vectors one is near a tie
                    _, is_near = epilogue.estimate(self._tables, [total], [column])
                    assert is_near is not None  # else nothing is written again
                    when(is_near, write)
                else:
                    write()

            loop(0, count, 1, of_row)

        loop(0, self._tiles.nr, lanes, of_part)

    def _store(
        self, given: Formula, row: Sequence[Value], tile: Formula, offset: Formula | int
    ) -> None:
        tiles, lanes = self._tiles, self._tiles.lanes
        column, whole = tile * tiles.nr + offset, given.form.lanes

        def write(part: int) -> None:
            vector = slice_lanes(given, part, lanes)
            store_columns(vector, self._result, row, tiles.n, column + part, tiles.nr)

        def of_parts() -> None:
            for part in range(0, whole, lanes):
                write(part)

        if whole == lanes or tiles.n % tiles.nr == 0:
            store_columns(given, self._result, row, tiles.n, column, tiles.nr)
        else:
            is_whole = column + whole <= tiles.n
            when(is_whole, lambda: store(given, self._result, [*row, column.value]), of_parts)
