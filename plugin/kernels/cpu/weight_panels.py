"""Weight panels: part of K of some weight tiles, unpacked to workgroup memory once for many rows.

Extracting integers from bit fields (`UnpackedStep`), and widening bytes to i16, take as long as
multiplying them. So a kernel of many rows of M first writes a panel that fits the L1 cache, which
all its rows then read: as bytes with f32 scales and offsets in blockwise GEMMs (`UnpackedPanel`),
as i16 in int8 convolutions (`WidenedPanels`).

``docs/performance/kernels.md`` has times with and without panels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import bitcast, load, loop, prefetch, scratch, store
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I16, U8, U16, ElementType
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight, Tiles
from .weight_reader import BlockIndex, WeightReader, weight_bindings

_MAX_UNPACKED_BYTES = 8 << 10
"""The integers of a panel take a quarter of the L1 cache at most; activations need room, too."""
_MAX_WHOLE_TILE_BYTES = 18 << 10
"""A widened tile up to this size is one panel: 3x3 taps, 64 channels, 16 columns."""
_MAX_SPLIT_PANEL_BYTES = 10 << 10
"""A widened panel of a split tile leaves room for the accumulators that wait in memory."""
_MIN_SPLIT_K_PACKS = 32
"""A panel of a split tile has at least this many k-packs for each reload of an accumulator."""
_MIN_PIXELS_PER_PANEL = 32
"""Fewer output pixels save less time than writing the panel takes."""


@dataclass(frozen=True)
class UnpackedStep:
    """The integers of a step of a weight tile, extracted from bit fields in registers.

    Attributes:
        memory: the memref of the weight.
        weight: the layout.
        target: the instruction set.
        tile: the number of the tile.
        start: the byte offset of the step in the tile.
        number: the number of the step, counted from the activations' first.
        prefetch_bytes: the prefetch distance; 0 for none.
        reuses_loads: each vector of bytes is loaded once.
        loaded: vectors of bytes by their number.
    """

    memory: Value
    weight: PackedWeight
    target: InstructionSet
    tile: Value
    start: ArrayLike
    number: Value
    prefetch_bytes: int
    reuses_loads: bool = True
    loaded: dict[int, ArrayLike] = field(default_factory=dict)

    def k_pack(self, vector: int, number: int) -> ArrayLike:
        """The integers of a k-pack of a vector of columns, u8."""
        tiles, codebook, integers = self.weight.tiles, self.weight.codebook, None
        for plane, index, bits, byte_shift, integer_shift in tiles.bit_fields(number):
            piece = self._load(tiles.vector_index(plane, index * tiles.vectors + vector))
            if bits < 8:
                # No target shifts bytes: the bits of a neighbor are shifted in, and masked.
                words, shift = bitcast(piece, U16), byte_shift - integer_shift
                if shift:
                    piece = bitcast(words >> shift if shift > 0 else words << -shift, U8)
                piece = piece & (((1 << bits) - 1) << integer_shift)
            integers = piece if integers is None else integers | piece
        return integers if codebook is None else self.target.shuffle_lookup(codebook, integers)

    def _load(self, number: int) -> ArrayLike:
        is_first = number not in self.loaded
        if is_first or not self.reuses_loads:
            size = self.weight.tiles.lanes * 4
            offset = self.start + number * size
            self.loaded[number] = load(self.memory, [self.tile, offset.value], size, U8)
            if self.prefetch_bytes and is_first:
                prefetch(self.memory, [self.tile, (offset + self.prefetch_bytes).value])
        return self.loaded[number]


class UnpackedPanel:
    """A panel of a blockwise weight: integers as bytes, scales and offsets as f32.

    It is constructed at the beginning of a kernel, where it allocates its memory.

    Args:
        weight: the layout of the weight.
        tiles: the number of tiles of the panel.
        target: the instruction set.

    Attributes:
        layout: the layout of the panel.
    """

    def __init__(self, weight: PackedWeight, tiles: int, target: InstructionSet) -> None:
        self._weight, self._target = weight, target
        self.layout = _panel_layout(weight, tiles)
        self._memories = [
            scratch([size for size in each.shape if size is not None], U8)
            for each in weight_bindings(self.layout)
        ]

    @staticmethod
    def fits(weight: PackedWeight, tiles: int) -> bool:
        """True if a superblock of some tiles fits `_MAX_UNPACKED_BYTES`."""
        layout = _panel_layout(weight, tiles).tiles
        return tiles * layout.nr * layout.k <= _MAX_UNPACKED_BYTES

    @property
    def records(self) -> int:
        """The weight's records in a panel."""
        return self.layout.tiles.k // self._weight.record_k

    def first_record(self, record: ArrayLike) -> ArrayLike:
        """The first of the panel's own, shorter records within a record of the weight."""
        return record * (self._weight.record_k // self.layout.record_k)

    def unpack(
        self, reader: WeightReader, tiles: Sequence[Value], start: ArrayLike, stop: ArrayLike
    ) -> WeightReader:
        """Emit the unpacking of a range of records, and return the reader of the panel.

        Args:
            reader: the reader of the weight.
            tiles: the numbers of the tiles.
            start, stop: the range of the weight's records.
        """
        for index, tile in enumerate(tiles):
            unpack_record = functools.partial(self._unpack_record, reader, index, tile, start)
            loop(start.value, stop.value, 1, unpack_record)
        return WeightReader(self.layout, self._memories, self.first_record(start))

    def _unpack_record(
        self, reader: WeightReader, index: int, tile: Value, start: ArrayLike, number: Value
    ) -> None:
        weight, record, offset = self._weight, scalar(number), scalar(number) - start
        tiles = weight.tiles
        lanes, nr = tiles.lanes, tiles.nr

        def write(
            vector: ArrayLike, memory: Value, column: ArrayLike, element: ElementType
        ) -> None:
            size = element.bits // 8
            bytes_ = bitcast(vector, U8)
            store(bytes_, memory, [constant_index(index), (column * size).value])

        def unpack_step(step: Value) -> None:
            memory, step_start = reader.step(record, scalar(step))
            own = offset * weight.steps_per_record + scalar(step)
            distance = self._target.prefetch_bytes_gemm
            source = UnpackedStep(
                memory, weight, self._target, tile, step_start, own.value, distance
            )
            first = own * (tiles.k_per_step * nr)
            for k_pack in range(tiles.k_per_step // 4):
                for vector in range(tiles.vectors):
                    column = first + (k_pack * tiles.vectors + vector) * lanes * 4
                    write(source.k_pack(vector, k_pack), self._memories[0], column, U8)

        loop(0, weight.steps_per_record, 1, unpack_step)
        for block in range(weight.blocks_per_record):
            first = (offset * weight.blocks_per_record + block) * nr
            for vector in range(tiles.vectors):
                where = tile, BlockIndex(record, block), vector * lanes, lanes
                loads = [reader.scale(*where), reader.zero_point(*where), reader.offset(*where)]
                vectors = [each for each in loads if each is not None]
                fields, memories = self.layout.fields, self._memories[1:]
                for each, block_field, memory in zip(vectors, fields, memories, strict=True):
                    write(each, memory, first + vector * lanes, block_field.element)


def _panel_layout(weight: PackedWeight, tiles: int) -> PackedWeight:
    superblock_k = weight.records_per_superblock * weight.record_k
    count = max(1, _MAX_UNPACKED_BYTES // (superblock_k * tiles * weight.tiles.nr))
    return weight.unpacked(tiles, min(superblock_k * count, weight.tiles.k))


@dataclass(frozen=True)
class WidenedPanels:
    """Panels of an int8 weight tile, widened to i16 multiplicands.

    Attributes:
        tiles: the layout of the weight; a step has one k-pack.
        target: the instruction set.
        k_packs: the k-packs of a panel.
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


def widened_panels(
    tiles: Tiles, target: InstructionSet, pixels: int, max_bytes: int, *, can_split: bool
) -> WidenedPanels | None:
    """Return the panels of an int8 weight tile; None where the kernel reads the weight itself.

    Args:
        tiles: the layout of the weight.
        target: the instruction set.
        pixels: the output pixels of a workgroup, all of which read the tile.
        max_bytes: the memory that a workgroup has for a panel.
        can_split: a tile may have several panels.
    """
    k_pack_bytes = tiles.step_bytes * target.multiplicand_type.bits // I8.bits
    if target.multiplicand_type != I16 or pixels < _MIN_PIXELS_PER_PANEL:
        return None
    if tiles.steps * k_pack_bytes <= min(max_bytes, _MAX_WHOLE_TILE_BYTES):
        return WidenedPanels(tiles, target, tiles.steps)
    limit = min(max_bytes, _MAX_SPLIT_PANEL_BYTES) // k_pack_bytes if can_split else 0
    choices = [n for n in range(_MIN_SPLIT_K_PACKS, limit + 1) if tiles.steps % n == 0]
    if not choices:
        return None
    # The K loop unrolls up to 8 k-packs: prefer multiples.
    return WidenedPanels(tiles, target, max(choices, key=lambda n: (math.gcd(n, 8), n)))
