"""Writing the columns of a tile, of which some may be after the last of the weight."""

from __future__ import annotations

from collections.abc import Sequence

from .._mlir import Value
from ..emit import Formula
from ..emit.vectors import element_at, store, store_element, when
from .tiles import Tiles

__all__ = ["store_columns"]


def store_columns(
    given: Formula, result: Value, row: Sequence[Value], tiles: Tiles, tile: Formula, part: int
) -> None:
    """Write a vector of columns to a row of the result.

    Args:
        given: a part of the columns of a tile.
        result: whose last axis has ``tiles.columns``.
        row: where, along the axes before.
        tiles: the layout of the weight.
        tile, part: the number of the tile, and of the vector in it.
    """
    column = tile * tiles.width + part * tiles.lanes
    if tiles.columns % tiles.width == 0:
        store(given, result, [*row, column.value])
        return
    when(column + tiles.lanes <= tiles.columns, lambda: store(given, result, [*row, column.value]))
    whole, rest = divmod(tiles.columns, tiles.lanes)
    if not rest or whole % tiles.parts != part:
        return

    def write() -> None:
        for lane in range(rest):
            store_element(element_at(given, lane), result, [*row, (column + lane).value])

    when(tile == whole // tiles.parts, write)
