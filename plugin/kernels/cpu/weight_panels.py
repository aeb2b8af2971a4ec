"""Integers of a weight out of their bytes: of a step, or of a panel before many rows need it.

A *panel* is what some tiles have of as much of the depth as fits the first cache. Unpacked, a byte
for each integer and f32 for scales and offsets, it is read by one group of rows after the other,
which unpack nothing then. 128 rows of 4096 times 4096 x 4096, one thread on Emerald Rapids, in ms:

    =================  ====  =====  =====  =====  =====  =====  =====
    ..                 int4  Q4_1   Q2_K   Q3_K   Q4_K   Q5_0   Q6_K
    =================  ====  =====  =====  =====  =====  =====  =====
    AVX512-VNNI        9.33  11.23  14.95  11.83  15.27   9.48  12.14
    unpacked by each   9.99  12.14  17.28  14.37  17.12  11.55  15.22
    AVX2               22.1                       25.6   35.5   29.7
    unpacked by each   23.8                       30.5   45.0   42.9
    =================  ====  =====  =====  =====  =====  =====  =====
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core._mlir import Value
from ...emit import Formula, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import bitcast, load, loop, prefetch, scratch, store
from ...numerics.element_types import U8, U16, ElementType
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight
from .weight_reader import BlockIndex, WeightReader, weight_bindings

__all__ = ["Panel", "Step"]

_INTEGERS = 8 << 10
"""Bytes of the integers of a panel, at most: a quarter of the first cache, which has rows, too."""


@dataclass(frozen=True)
class Step:
    """A step of a tile of the weight.

    Attributes:
        memory: the weight.
        stored: how it is given.
        target: what is multiplied with.
        tile: the number of the tile.
        start: where the step begins in the tile, in bytes.
        number: of the step.
        ahead: as of the rows.
        is_kept: vectors are read once.
        loaded: vectors by their place.
    """

    memory: Value
    stored: PackedWeight
    target: InstructionSet
    tile: Value
    start: Formula
    number: Value
    ahead: int
    is_kept: bool = True
    loaded: dict[int, Formula] = field(default_factory=dict)

    def group(self, part: int, number: int) -> Formula:
        """The integers of a group of a part of the columns, u8."""
        tiles, table, integer = self.stored.tiles, self.stored.codebook, None
        for plane, vector, bits, stored, low in tiles.bit_fields(number):
            piece = self._vector(tiles.vector_index(plane, vector * tiles.vectors + part))
            if bits < 8:
                # No target shifts bytes: bits of a neighbour come in, and are masked.
                moved, by = bitcast(piece, U16), stored - low
                if by:
                    piece = bitcast(moved >> by if by > 0 else moved << -by, U8)
                piece = piece & (((1 << bits) - 1) << low)
            integer = piece if integer is None else integer | piece
        return integer if table is None else self.target.shuffle_lookup(table, integer)

    def _vector(self, number: int) -> Formula:
        is_first = number not in self.loaded
        if is_first or not self.is_kept:
            size = self.stored.tiles.lanes * 4
            place = self.start + number * size
            self.loaded[number] = load(self.memory, [self.tile, place.value], size, U8)
            if self.ahead and is_first:
                prefetch(self.memory, [self.tile, (place + self.ahead).value])
        return self.loaded[number]


class Panel:
    """Memory for a panel, which a workgroup takes where its code begins.

    Args:
        stored: how the weight is given.
        count: how many tiles it has.
        target: what is multiplied with.

    Attributes:
        stored: how it lies there.
    """

    def __init__(self, stored: PackedWeight, count: int, target: InstructionSet) -> None:
        self._weight, self._target = stored, target
        self.stored = _unpacked(stored, count)
        self._memories = [
            scratch([size for size in each.shape if size is not None], U8)
            for each in weight_bindings(self.stored)
        ]

    @staticmethod
    def fits(stored: PackedWeight, count: int) -> bool:
        """True if the memory is enough for some tiles of a weight."""
        tiles = _unpacked(stored, count).tiles
        return count * tiles.nr * tiles.k <= _INTEGERS

    @property
    def turns(self) -> int:
        """How many turns of the weight it has."""
        return self.stored.tiles.k // self._weight.record_k

    def number(self, turn: Formula) -> Formula:
        """That of the first of its own turns that is in a turn of the weight."""
        return turn * (self._weight.record_k // self.stored.record_k)

    def unpack(
        self, weight: WeightReader, tiles: Sequence[Value], start: Formula, stop: Formula
    ) -> WeightReader:
        """Unpack some turns of tiles, and return what reads them.

        Args:
            weight: what is read.
            tiles: their numbers.
            start, stop: of the weight's turns.
        """
        for place, tile in enumerate(tiles):
            of_tile = functools.partial(self._unpack_turn, weight, place, tile, start)
            loop(start.value, stop.value, 1, of_tile)
        return WeightReader(self.stored, self._memories, self.number(start))

    def _unpack_turn(
        self, weight: WeightReader, place: int, tile: Value, start: Formula, number: Value
    ) -> None:
        given, turn, behind = self._weight, scalar(number), scalar(number) - start
        ahead = self._target.prefetch_bytes_gemm
        lanes, parts, width = given.tiles.lanes, given.tiles.vectors, given.tiles.nr

        def keep(vector: Formula, memory: Value, column: Formula, element: ElementType) -> None:
            size = element.bits // 8
            bytes_ = bitcast(vector, U8)
            store(bytes_, memory, [constant_index(place), (column * size).value])

        def of_step(step: Value) -> None:
            memory, begin = weight.step(turn, scalar(step))
            numbered = behind * given.steps_per_record + scalar(step)
            read = Step(memory, given, self._target, tile, begin, numbered.value, ahead)
            first = numbered * (given.tiles.k_per_step * width)
            for group in range(given.tiles.k_per_step // 4):
                for part in range(parts):
                    column = first + (group * parts + part) * lanes * 4
                    keep(read.group(part, group), self._memories[0], column, U8)

        loop(0, given.steps_per_record, 1, of_step)
        for each in range(given.blocks_per_record):
            first = (behind * given.blocks_per_record + each) * width
            for part in range(parts):
                where = tile, BlockIndex(turn, each), part * lanes, lanes
                found = [weight.scale(*where), weight.zero_point(*where), weight.offset(*where)]
                vectors = [vector for vector in found if vector is not None]
                fields, memories = self.stored.fields, self._memories[1:]
                for vector, one, memory in zip(vectors, fields, memories, strict=True):
                    keep(vector, memory, first + part * lanes, one.element)


def _unpacked(stored: PackedWeight, count: int) -> PackedWeight:
    unit = stored.records_per_superblock * stored.record_k
    most = max(1, _INTEGERS // (unit * count * stored.tiles.nr))
    return stored.unpacked(count, min(unit * most, stored.tiles.k))
