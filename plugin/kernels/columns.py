"""Writing the columns of a tile, of which some may be after the last of the weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._mlir import Value
from ..emit import Formula, scalar
from ..emit.linalg import constant_index
from ..emit.vectors import (
    element_at,
    load,
    loop,
    scratch,
    store,
    store_element,
    when,
)
from ..numerics.element_types import I32
from .epilogue import Finish
from .tiles import Tiles

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
    if columns % width == 0:
        store(given, result, [*row, column.value])
        return
    lanes = given.form.lanes
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
        rows: how many are computed together.
        finish: what is done with the sums, or None.
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
        finish: Finish | None,
        tables: Sequence[Value],
        result: Value,
        *,
        in_memory: bool = False,
    ) -> None:
        self._tiles, self._rows, self._result = tiles, rows, result
        self._finish, self._tables = finish, tables
        if finish or in_memory:
            self.sums = scratch([rows, tiles.width], I32)

    def write(self, sums: Sequence[Formula], line: Formula, row: Formula, tile: Formula) -> None:
        """Write sums.

        Args:
            sums: of each row, for each vector of columns of the tile.
            line: where they are in the result.
            row: the first in the line.
            tile: the number of the tile.
        """
        places = np.ndindex(self._rows, self._tiles.parts)
        for total, (index, part) in zip(sums, places, strict=True):
            if self._finish:
                store(total, self.sums, [index, part * self._tiles.lanes])
            else:
                at = [line.value, (row + index).value]
                self._store(total, at, tile, part * self._tiles.lanes)
        if self._finish:
            self.write_rows(scalar(constant_index(0)), self._rows, line, row, tile)

    def write_rows(
        self, first: Formula, count: int, line: Formula, row: Formula, tile: Formula
    ) -> None:
        """Write sums that are in memory: so many rows, from the first on.

        What all rows of a vector of columns read is read once.
        """
        lanes = self._tiles.lanes

        def of_part(offset: Value) -> None:
            def of_row(index: Value) -> None:
                total = load(self.sums, [(first + scalar(index)).value, offset], lanes, I32)
                if self._finish:
                    column = tile * self._tiles.width + scalar(offset)
                    total = self._finish.emit(self._tables, total, column)
                self._store(total, [line.value, (row + scalar(index)).value], tile, scalar(offset))

            loop(0, count, 1, of_row)

        loop(0, self._tiles.width, lanes, of_part)

    def _store(
        self, given: Formula, row: Sequence[Value], tile: Formula, offset: Formula | int
    ) -> None:
        tiles = self._tiles
        column = tile * tiles.width + offset
        store_columns(given, self._result, row, tiles.columns, column, tiles.width)
