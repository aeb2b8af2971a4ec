"""Loads of packed weights in kernels: integers, scales, zero points and offsets of blocks.

Extracting integers from bit fields in registers (`UnpackedStep`) takes as long as multiplying them.
So a kernel of many rows of M first unpacks a panel, part of K of some tiles, to scratch memory as
bytes with f32 scales and offsets (`UnpackedPanel`). It fits the L1 cache, and all rows read it.

``docs/performance/kernels.md`` has times with and without panels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding
from ...emit.linalg import constant_index
from ...emit.vectors import (
    CACHE_LINE_BYTES,
    bitcast,
    load,
    loop,
    prefetch,
    quotient,
    remainder,
    scratch,
    store,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I32, U8, U16, ElementType
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight, ScaleEncoding

_MAX_UNPACKED_BYTES = 8 << 10
"""Bytes of a panel's integers, at most: a quarter of an L1 cache, which activations share."""

BYTES_OF_A_WORD = 0x01010101
"""A byte times this number is in all four bytes of a 32-bit lane."""


def weight_bindings(weight: PackedWeight) -> list[Binding]:
    """Return the bindings of a packed weight: one, or those of its integers and fields."""
    return [Binding((weight.tiles.count, size), U8) for size in weight.binding_bytes()]


class BlockIndex(NamedTuple):
    """The position of a block in a tile; `block` is its number in the record."""

    record: ArrayLike
    block: int


class BlockColumns(NamedTuple):
    """Consecutive columns of a block of a tile; `column` is the first one in the tile."""

    tile: Value
    block: BlockIndex
    column: ArrayLike | int
    lanes: int


@dataclass(frozen=True)
class WeightReader:
    """Emits loads of a packed weight from the memrefs of `weight_bindings`.

    The memrefs start with the record `first_record`; None for 0.
    """

    weight: PackedWeight
    memrefs: Sequence[Value]
    first_record: ArrayLike | None = None

    @classmethod
    def take(cls, weight: PackedWeight, memrefs: list[Value]) -> WeightReader:
        """Remove the memrefs of a weight from the front of a list, and return their reader."""
        return cls(weight, [memrefs.pop(0) for _ in weight.binding_bytes()])

    def step(self, record: ArrayLike, step: ArrayLike | int) -> tuple[Value, ArrayLike]:
        """Return the memref of a step of a record, and its byte offset in a tile."""
        weight, size = self.weight, self.weight.tiles.step_bytes
        if weight.is_planar:
            first = _times(self._local(record), weight.steps_per_record)
            return self.memrefs[0], (first + step) * size
        return self.memrefs[0], self._record_offset(record) + step * size

    def prefetch_fields(self, tile: Value, record: ArrayLike) -> None:
        """Prefetch the fields of the blocks of a record, which follow its integers."""
        weight = self.weight
        integers = weight.steps_per_record * weight.tiles.step_bytes
        if weight.is_planar:
            return
        start = self._record_offset(record) + integers
        for offset in range(0, weight.record_bytes - integers, CACHE_LINE_BYTES):
            prefetch(self.memrefs[0], [tile, (start + offset).value])

    def scale(self, columns: BlockColumns) -> ArrayLike:
        """Load the scales of columns, f32."""
        assert self.weight.scale is not None
        return self._decoded(self.weight.scale, 0, columns)

    def quantized_scale(self, columns: BlockColumns) -> tuple[ArrayLike, ArrayLike]:
        """Load the integers of scales of columns, i32, and the scales of their superblock, f32."""
        return self._quantized(0, columns)

    def quantized_offset(self, columns: BlockColumns) -> tuple[ArrayLike, ArrayLike]:
        """Load the integers of offsets of columns, i32, and the scales of their superblock, f32."""
        assert self.weight.offset is not None
        return self._quantized(len(self.weight.fields) - len(self.weight.offset.fields), columns)

    def _quantized(self, field: int, columns: BlockColumns) -> tuple[ArrayLike, ArrayLike]:
        integers = convert(self._load(field, columns), I32)
        return integers, convert(self._load(field + 1, columns), F32)

    def zero_point(self, columns: BlockColumns) -> ArrayLike | None:
        """Load the zero points of columns, u8; None where all blocks have the same."""
        if self.weight.zero_point is not None:
            return None
        return self._load(len(self.weight.scale_fields), columns)

    def offset(self, columns: BlockColumns) -> ArrayLike | None:
        """Load the offsets of columns, f32; None where there are none."""
        encoding = self.weight.offset
        if encoding is None:
            return None
        return self._decoded(encoding, len(self.weight.fields) - len(encoding.fields), columns)

    def _decoded(self, encoding: ScaleEncoding, field: int, columns: BlockColumns) -> ArrayLike:
        """Load a field: an integer times its outer scale, or a float divided by it."""
        stored = self._load(field, columns)
        if encoding.outer is None:
            return convert(stored, F32)
        outer = convert(self._load(field + 1, columns), F32)
        if encoding.element.is_float:
            return convert(stored, F32) / outer
        return convert(convert(stored, I32), F32) * outer

    def _load(self, field: int, columns: BlockColumns) -> ArrayLike:
        element, lanes = self.weight.fields[field].element, columns.lanes
        width = element.bits // 8
        memref, start = self._field(field, columns.block)
        position = [columns.tile, (start + columns.column * width).value]
        if width == 1:
            return load(memref, position, lanes, element)
        return bitcast(load(memref, position, lanes * width, U8), element)

    def _field(self, number: int, block: BlockIndex) -> tuple[Value, ArrayLike]:
        """Return the memref of a field of a block, and its byte offset in a tile."""
        weight, field = self.weight, self.weight.fields[number]
        size = weight.field_bytes(field)
        if weight.is_planar:
            index = _times(self._local(block.record), weight.blocks_per_record) + block.block
            return self.memrefs[number + 1], _divided(index, field.blocks) * size
        [memref], start = self.memrefs, weight.field_offset(number)
        if field.blocks == 1:
            start += weight.steps_per_record * weight.tiles.step_bytes
            start += block.block * weight.block_field_bytes
            return memref, self._record_offset(block.record) + start
        superblock = _divided(block.record, weight.records_per_superblock)
        first = superblock * weight.superblock_bytes + start
        if field.blocks == weight.records_per_superblock * weight.blocks_per_record:
            return memref, first
        record = remainder(block.record, weight.records_per_superblock)
        index = _times(record, weight.blocks_per_record) + block.block
        return memref, first + _divided(index, field.blocks) * size

    def _record_offset(self, record: ArrayLike) -> ArrayLike:
        """Return the byte offset of a record in a tile."""
        weight = self.weight
        header = weight.superblock_header_bytes
        if weight.records_per_superblock == 1:
            return record * weight.record_bytes + header
        superblock = _divided(record, weight.records_per_superblock)
        first = superblock * weight.superblock_bytes + header
        return first + remainder(record, weight.records_per_superblock) * weight.record_bytes

    def _local(self, record: ArrayLike) -> ArrayLike:
        return record if self.first_record is None else record - self.first_record


def _times(index: ArrayLike, factor: int) -> ArrayLike:
    return index if factor == 1 else index * factor


def _divided(index: ArrayLike, divisor: int) -> ArrayLike:
    return index if divisor == 1 else quotient(index, divisor)


@dataclass(frozen=True)
class UnpackedStep:
    """The integers of a step of a weight tile, extracted from bit fields in registers.

    Attributes:
        memory: the memref of the weight.
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
        """The bytes of a k-pack of a vector of columns, u8."""
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
            size = self.weight.tiles.vector_bytes
            offset = self.start + number * size
            self.loaded[number] = load(self.memory, [self.tile, offset.value], size, U8)
            # A vector of floats may be a quarter of a cache line. Those of integers are half of one
            # or more, and their records may begin within one.
            spacing = size if self.weight.floats is None else CACHE_LINE_BYTES
            if self.prefetch_bytes and is_first and number * size % spacing < size:
                prefetch(self.memory, [self.tile, (offset + self.prefetch_bytes).value])
        return self.loaded[number]


class UnpackedPanel:
    """A panel of a blockwise weight: integers as bytes, scales and offsets as f32.

    It is constructed at the beginning of a kernel, where it allocates its memory. `layout` is the
    layout of the panel.
    """

    _keeps_all_fields: ClassVar[bool] = True

    def __init__(self, weight: PackedWeight, layout: PackedWeight, target: InstructionSet) -> None:
        self._weight, self.layout, self._target = weight, layout, target
        self._memories = [
            scratch([size for size in each.shape if size is not None], U8)
            for each in weight_bindings(self.layout)
        ]

    @classmethod
    def fits(cls, weight: PackedWeight, tiles: int) -> bool:
        """True if the least panel of some tiles fits `_MAX_UNPACKED_BYTES`."""
        layout = cls.layout_of(weight, tiles).tiles
        return tiles * layout.nr * layout.k <= _MAX_UNPACKED_BYTES

    @staticmethod
    def layout_of(weight: PackedWeight, tiles: int) -> PackedWeight:
        """The layout of a panel: as many superblocks as fit."""
        unit = _least_panel_k(weight)
        count = max(1, _MAX_UNPACKED_BYTES // (unit * tiles * weight.tiles.nr))
        return weight.unpacked(tiles, min(unit * count, weight.tiles.k))

    @property
    def _prefetch_bytes(self) -> int:
        """The prefetch distance of the weight; 0 for none."""
        return self._target.prefetch_bytes_gemm

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
        """Emit the unpacking of records from `start` to `stop`; return the panel's reader."""
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
            source = UnpackedStep(
                *(memory, weight, self._target, tile, step_start, own.value, self._prefetch_bytes)
            )
            integers_of = self._integers(reader, source, record)
            for k_pack in range(tiles.k_per_step // 4):
                for vector in range(tiles.vectors):
                    start = self._start(own, vector, k_pack)
                    write(integers_of(vector, k_pack), self._memories[0], start, U8)

        loop(0, weight.steps_per_record, 1, unpack_step)
        for block in range(weight.blocks_per_record):
            first = (offset * weight.blocks_per_record + block) * nr
            for vector in range(tiles.vectors):
                own = BlockColumns(tile, BlockIndex(record, block), vector * lanes, lanes)
                loads: list[ArrayLike | None] = [reader.scale(own)]
                if self._keeps_all_fields:
                    loads += [reader.zero_point(own), reader.offset(own)]
                vectors = [each for each in loads if each is not None]
                fields, memories = self.layout.fields, self._memories[1:]
                for each, block_field, memory in zip(vectors, fields, memories, strict=True):
                    write(each, memory, first + vector * lanes, block_field.element)

    def _start(self, step: ArrayLike, vector: int, k_pack: int) -> ArrayLike:
        """The byte offset of a k-pack of a vector, in a step by its number in the panel."""
        tiles = self._weight.tiles
        number = k_pack * tiles.vectors + vector
        return step * (tiles.k_per_step * tiles.nr) + number * tiles.lanes * 4

    def _integers(
        self, reader: WeightReader, source: UnpackedStep, record: ArrayLike
    ) -> Callable[[int, int], ArrayLike]:
        """Return a function that emits the bytes of a k-pack, of a vector and its number."""
        return source.k_pack


class SignedPanel(UnpackedPanel):
    """A panel of integers less their zero points, as signed bytes, and scales.

    All panels of a weight have the same size, which divides K. A vector of columns of a block is
    contiguous: its k-packs are rows of 64 bytes of AMX tiles.
    """

    _keeps_all_fields = False

    @classmethod
    def fits(cls, weight: PackedWeight, tiles: int) -> bool:
        """True if a panel fits, and integers less zero points fit signed bytes."""
        low, high = -weight.max_integer, weight.max_integer
        if weight.zero_point is not None:
            low, high = -weight.zero_point, weight.max_integer - weight.zero_point
        return low >= -128 and high <= 127 and super().fits(weight, tiles)

    def _start(self, step: ArrayLike, vector: int, k_pack: int) -> ArrayLike:
        tiles = self._weight.tiles
        size, k_packs = tiles.block_size, tiles.k_per_step // 4
        first = step * (tiles.k_per_step * tiles.nr)
        if size > tiles.k_per_step:
            steps = size // tiles.k_per_step
            own = remainder(step, steps)
            first = (step - own) * (tiles.k_per_step * tiles.nr) + own * (k_packs * tiles.lanes * 4)
        block, number = divmod(k_pack, size // 4)
        vectors = block * tiles.vectors + vector
        return first + (vectors * (size // 4) + number) * tiles.lanes * 4

    @property
    def _prefetch_bytes(self) -> int:
        """The prefetch distance of the weight; 0 where `AmxBlockwise` prefetches panels."""
        return super()._prefetch_bytes if self._weight.is_planar else 0

    @staticmethod
    def layout_of(weight: PackedWeight, tiles: int, k: int | None = None) -> PackedWeight:
        """The layout of a panel of up to `k`: whole superblocks, of a number that divides K.

        Without `k` it has as many as fit `_MAX_UNPACKED_BYTES`.
        """
        unit = _least_panel_k(weight)
        limit = max(1, (k or _MAX_UNPACKED_BYTES // (tiles * weight.tiles.nr)) // unit)
        units = weight.tiles.k // unit
        count = next(n for n in range(min(limit, units), 0, -1) if units % n == 0)
        return replace(weight.unpacked(tiles, unit * count), zero_point=0, offset=None)

    def _integers(
        self, reader: WeightReader, source: UnpackedStep, record: ArrayLike
    ) -> Callable[[int, int], ArrayLike]:
        weight = self._weight
        tiles, zero_point = weight.tiles, weight.zero_point
        if zero_point is not None:
            return lambda vector, k_pack: source.k_pack(vector, k_pack) - zero_point
        zero_points: dict[tuple[int, int], ArrayLike] = {}

        def difference(vector: int, k_pack: int) -> ArrayLike:
            block = k_pack * tiles.k_pack // tiles.block_size % weight.blocks_per_record
            if (block, vector) not in zero_points:
                index = BlockIndex(record, block)
                columns = BlockColumns(source.tile, index, vector * tiles.lanes, tiles.lanes)
                loaded = reader.zero_point(columns)
                assert loaded is not None  # blocks have zero points of their own
                zero_points[block, vector] = bitcast(convert(loaded, I32) * BYTES_OF_A_WORD, U8)
            return source.k_pack(vector, k_pack) - zero_points[block, vector]

        return difference


def _least_panel_k(weight: PackedWeight) -> int:
    """K of a whole superblock, or of a record if a superblock is all of K."""
    records = weight.records_per_superblock
    return weight.record_k * (records if records < weight.records else 1)
