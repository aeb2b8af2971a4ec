"""The kernel that looks rows up in a table of few bits, which lies in tiles for products.

A row of the table is a column of the tiles (`subquant.kernels.pack.packed_weight`)::

    result[m, k] = (weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b]
    n = min(max(index[m], 0), columns - 1)

where ``b`` is the block of ``k``: the formula of `subquant.numerics.casts`, with an offset where
there is one. Of each vector of a step it reads the integers of a lane, which are side by side. So
a table that is multiplied with, too, such as that of the tokens of a language model, is in memory
once; and of a row no more pages are read than a tile has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import Extent
from ...emit.operation import index_type, value
from ...emit.vectors import (
    broadcast,
    element_at,
    load,
    load_element,
    loop,
    quotient,
    remainder,
    store,
)
from ...numerics.array_functions import convert
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32, U8, ElementType
from ...numerics.parameters import ExpressedType, StorageType
from ..kernel import Binding, Kernel
from ..pack.packed_weight import PackedWeight
from .weight_reader import BlockIndex, WeightReader, weight_bindings

__all__ = ["GatherRows"]

_CAST = Cast(StorageType(8, False), ExpressedType.F32)
_AS_LONG = 8
"""How many products of bytes take as long as to look one element up, about."""
_LEAST_ROWS = 32
"""Of a workgroup: a row of 640 takes a thread 0.5 us."""


@dataclass(frozen=True)
class GatherRows:
    """Look ``rows`` rows up in a table that lies in tiles.

    Args:
        stored: how the table is given, as a weight.
        rows: how many are looked up.
        indices: the element type of their numbers, i32 or i64.
    """

    stored: PackedWeight
    rows: int
    indices: ElementType

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are those of the table; the numbers of the rows; and the result, f32 ``rows x
        depth``.
        """
        tiles = self.stored.tiles
        bindings = [
            *weight_bindings(self.stored),
            Binding((self.rows,), self.indices),
            Binding((self.rows, tiles.k), F32),
        ]
        workgroups = -(-self.rows // _LEAST_ROWS)
        products = _AS_LONG * self.rows * tiles.k
        return Kernel("take_rows", bindings, workgroups, self._body, self.rows, macs=products)

    def _body(self, memories: Sequence[Value], number: Value, rows: Extent) -> None:
        first = scalar(number) * _LEAST_ROWS
        last = first + _LEAST_ROWS
        if self.rows % _LEAST_ROWS:
            last = np.minimum(last, self.rows)
        loop(first.value, last.value, 1, lambda row: _Row(self, memories, row).write())


class _Row:
    """A row of the result.

    Args:
        kernel: what is computed.
        memories: the memrefs of its bindings.
        row: its number.
    """

    def __init__(self, kernel: GatherRows, memories: Sequence[Value], row: Value) -> None:
        given, self.stored, self.row = list(memories), kernel.stored, row
        self.tiles = tiles = kernel.stored.tiles
        self.weight = WeightReader.take(self.stored, given)
        indices, self.result = given
        index = load_element(indices, [row])
        inside = np.minimum(np.maximum(index, 0), tiles.n - 1)
        place = scalar(value("arith.index_cast", [inside.value], index_type()))
        self.tile, self.column = quotient(place, tiles.nr).value, remainder(place, tiles.nr)
        self.part, self.lane = (
            quotient(self.column, tiles.lanes),
            remainder(self.column, tiles.lanes),
        )

    def write(self) -> None:
        """Compute the row, turn after turn."""
        stored = self.stored
        steps, blocks = stored.steps_per_record, stored.blocks_per_record

        def of_turn(turn: Value) -> None:
            place = scalar(turn)
            parameters = [self._parameters(BlockIndex(place, n)) for n in range(blocks)]
            loop(0, steps, 1, lambda n: self._write(place, scalar(n), parameters))

        loop(0, stored.records, 1, of_turn)

    def _write(
        self, turn: ArrayLike, number: ArrayLike, parameters: Sequence[Sequence[ArrayLike | None]]
    ) -> None:
        """Compute the integers of a step of a turn, whose blocks have such parameters."""
        tiles, loaded = self.tiles, dict[tuple[int, int], ArrayLike]()
        groups = tiles.k_per_step // tiles.k_pack
        start = (turn * self.stored.steps_per_record + number) * tiles.k_per_step
        memory, step = self.weight.step(turn, number)
        for group in range(groups):
            integers: ArrayLike | None = None
            for plane, vector, bits, stored, low in tiles.bit_fields(group):
                if (plane, vector) not in loaded:
                    loaded[plane, vector] = self._read(memory, step, plane, vector)
                piece = loaded[plane, vector]
                if bits < 8:
                    piece = (piece >> stored) & ((1 << bits) - 1)
                piece = piece << low if low else piece
                integers = piece if integers is None else integers | piece
            scale, zero, offset = parameters[group * len(parameters) // groups]
            real = _CAST.dequantize(integers, scale, zero, offset)
            store(real, self.result, [self.row, (start + group * tiles.k_pack).value])

    def _read(self, memory: Value, step: ArrayLike, plane: int, vector: int) -> ArrayLike:
        """The bytes of the column in a vector of a plane of a step, i32."""
        tiles = self.tiles
        number = tiles.vector_index(plane, self.part + vector * tiles.vectors)
        place = step + (number * tiles.lanes + self.lane) * tiles.k_pack
        return convert(load(memory, [self.tile, place.value], tiles.k_pack, U8), I32)

    def _parameters(self, block: BlockIndex) -> tuple[ArrayLike, ArrayLike | int, ArrayLike | None]:
        """The scale, the zero point and the offset of a block, for each integer of a group."""
        of_column, weight = (self.tile, block, self.column, 1), self.weight

        def spread(given: ArrayLike | None) -> ArrayLike | None:
            return None if given is None else broadcast(element_at(given, 0), self.tiles.k_pack)

        zero = spread(weight.zero_point(*of_column))
        return (
            spread(weight.scale(*of_column)),
            self.stored.zero_point if zero is None else convert(zero, I32),
            spread(weight.offset(*of_column)),
        )
