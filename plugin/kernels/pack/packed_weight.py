"""Packed layout of weights: tiles of integers, and block records of a block-quantized weight.

**Tiles.** A tile has NR columns of the weight, one for each lane of some vectors, and all of K. A
*k-pack* is the number of consecutive ``k`` that an instruction multiplies in a lane (four in
blockwise kernels); k-packs that are some distance apart share bytes, as bit fields. A *step* is the
least part of K whose bit fields fill whole vectors. Of a plane of ``bits`` bits, field ``f`` of
vector ``v`` of a step is the k-pack ``f * plane_vectors + v``::

    bytes[tile, step, v, vector, lane, i] = sum_f weight[n, k] << (bits * f)
    n = tile * NR + vector * lanes + lane
    k = step * k_per_step + (f * plane_vectors + v) * k_pack + i

A 16-bit float is an element of two bytes, and a k-pack by itself.

A second plane has the higher bits and fewer vectors; each follows the vector of the first plane
with its number. So vectors lie in the order in which a kernel reads them first: memory is read up
to a third faster than where vectors or planes are apart (Zen 4; 8 and 5 bits). Columns after N are
zeros.

**Block records.** A constant weight is one stream of bytes per tile, as a core reads one stream
faster than several: a 4096 x 4096 int4 GEMV takes 0.28 ms where scales are interleaved with the
integers and 0.33 where they are planar, of Q6_K 0.42 and 0.50 (Zen 4, one thread, from memory). A
*record* has the steps of a block, or the blocks of a longer step. Their fields follow, for all
columns::

    record = steps | scale, zero point, offset | those of the next block | ...

Outer scales, which several blocks share, precede the records of the blocks. A *superblock* is
the least number of records with whole outer scales and outer offsets::

    superblock = outer scales | outer offsets | record | record | ...

**Planar (SoA) weights.** Where a weight is not constant, its integers and each field of its blocks
are tensors of their own, fields as ``[tile, block, vector, lane]``.

The pack functions take NumPy arrays and traced values alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ...numerics.array_pieces import ArrayPieces
from ...numerics.element_types import F32, U8, AnyArray, Array, ElementType
from ...numerics.packed_integers import PLANE_BITS
from .float_codes import FloatCodes

_TILES_PER_PIECE = 64
"""Tiles that are packed at a time, which limits the memory for copies of their integers."""
_MAX_K_PER_STEP = 32
"""k of a step, at most, if that fills whole vectors; a longer block has several steps."""

_Index = TypeVar("_Index", int, Any)


class BitField(NamedTuple):
    """The bits of a k-pack in one plane.

    Attributes:
        vector: number of the vector among those of the plane.
        bits: width of the field.
        byte_shift: number of its lowest bit in the byte.
        integer_shift: number of its lowest bit in the integer.
    """

    plane: int
    vector: Any
    bits: int
    byte_shift: Any
    integer_shift: int


@dataclass(frozen=True)
class Tiles:
    """Tile layout of the integers of a weight.

    Args:
        bits: width of an integer, 2 to 6 or 8, or of a float, 8 or 16.
        block_size: consecutive integers that share a scale; four times a power of two. Of floats
            without scales, those that a kernel unrolls.
        n: columns of the weight.
        k: integers of a column, a multiple of `block_size`.
        lanes: columns in a vector.
        vectors: vectors of columns in a tile.
        k_pack: consecutive integers of a column in a lane.

    Attributes:
        VERSION: number of the layout; a change of the layout increments it, because parameter
            archives contain packed weights.
    """

    VERSION: ClassVar[int] = 3

    bits: int
    block_size: int
    n: int
    k: int
    lanes: int
    vectors: int
    k_pack: int = 4

    def __str__(self) -> str:
        """Return the label in names of parameters: lanes, vectors, k-pack, bits and block size."""
        return f"{self.lanes}x{self.vectors}x{self.k_pack}-u{self.bits}-{self.block_size}"

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """Bits of an integer in each plane."""
        return PLANE_BITS.get(self.bits, (8,))

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector: a k-pack, or those that share its bytes, of each lane."""
        return self.lanes * self.k_pack * max(1, self.bits // 8)

    @property
    def k_per_step(self) -> int:
        """Integers of a column in a step: they fill whole vectors."""
        least = 8 * self.k_pack // min(self.plane_bits)
        return max(least, min(self.block_size, _MAX_K_PER_STEP))

    @property
    def steps(self) -> int:
        """Steps of a column."""
        return self.k // self.k_per_step

    @property
    def plane_vectors(self) -> list[int]:
        """Vectors of a step in each plane, for each vector of columns."""
        return [self.k_per_step // self.k_pack * bits // 8 for bits in self.plane_bits]

    @property
    def nr(self) -> int:
        """NR, the columns of a tile."""
        return self.lanes * self.vectors

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.n // self.nr)

    @property
    def step_bytes(self) -> int:
        """Bytes of a step of a tile."""
        return self.vectors * sum(self.plane_vectors) * self.vector_bytes

    @property
    def is_valid(self) -> bool:
        """True if steps and blocks have whole k-packs, and one is whole in the other."""
        step, block = self.k_per_step, self.block_size
        nests = step % block == 0 or block % step == 0
        return block % self.k_pack == 0 and nests and self.k % math.lcm(step, block) == 0

    def vector_index(self, plane: int, vector: _Index) -> _Index:
        """Return the number of a vector in a step.

        `vector` is its number in the plane, times `vectors`, plus the vector of columns.
        """
        if plane:
            return 2 * vector + 1
        interleaved = self.vectors * sum(self.plane_vectors[1:])
        if isinstance(vector, int):
            return vector + min(vector, interleaved)
        return vector + np.minimum(vector, interleaved) if interleaved else vector

    def bit_fields(
        self,
        k_pack: _Index,
        field: int = 0,
        divided: Callable[[_Index, int], tuple[_Index, _Index]] = divmod,
    ) -> list[BitField]:
        """Return the bit field of a k-pack of a step in each plane.

        Args:
            k_pack: number of the k-pack, or of its vector in the first plane.
            field: field of that vector that the k-pack is.
            divided: returns the quotient and the remainder of a number: `divmod`, or its emitter.
        """
        fields, integer_shift, vectors = [], 0, self.plane_vectors
        for plane, (bits, count) in enumerate(zip(self.plane_bits, vectors, strict=True)):
            quotient, vector = divided(k_pack, count)
            number = quotient + field * (vectors[0] // count)
            fields.append(BitField(plane, vector, bits, number * bits, integer_shift))
            integer_shift += bits
        return fields

    def pack(self, integers: AnyArray) -> AnyArray:
        """Pack uint8 ``N x K``, less than ``2**bits``, to uint8 ``count x steps x step_bytes``.

        Elements of 16 bits are uint16.
        """
        padded = _with_rows(integers, self.count * self.nr)
        shift, planes = 0, []
        for bits, vectors in zip(self.plane_bits, self.plane_vectors, strict=True):
            fields = 8 // bits
            shape = (self.count, self.vectors, self.lanes, self.steps, fields, vectors, self.k_pack)
            plane = padded if len(self.plane_bits) == 1 else (padded >> shift) & (2**bits - 1)
            by_field = plane.reshape(shape).transpose((0, 3, 5, 1, 2, 6, 4))
            bytes_ = by_field[..., 0]
            for field in range(1, fields):
                bytes_ = bytes_ | (by_field[..., field] << (bits * field))
            size = self.lanes * self.k_pack
            planes.append(bytes_.reshape((self.count, self.steps, vectors * self.vectors, size)))
            shift += bits
        packed = planes[0]
        if len(planes) == 2:
            paired = planes[1].shape[2]
            pairs = np.stack([planes[0][:, :, :paired], planes[1]], axis=3)
            pairs = pairs.reshape((self.count, self.steps, 2 * paired, -1))
            packed = np.concatenate([pairs, planes[0][:, :, paired:]], axis=2)
        if self.bits == 16:
            packed = np.ascontiguousarray(packed).view(np.uint8)
        return packed.reshape((self.count, self.steps, self.step_bytes))

    def pack_block_parameters(self, parameters: AnyArray, blocks: int) -> AnyArray:
        """Pack scales, zero points or offsets to ``count x K / (block_size * blocks) x NR``.

        They are ``N x K / (block_size * blocks)``: consecutive `blocks` share a parameter.
        """
        padded = _with_rows(parameters, self.count * self.nr)
        by_tile = padded.reshape((self.count, self.nr, self.k // self.block_size // blocks))
        return by_tile.transpose((0, 2, 1))


@dataclass(frozen=True)
class ScaleEncoding:
    """Encoding of the scales or offsets of blocks.

    Args:
        element: f16, bf16 or f32; u8 or i8 where an integer is multiplied by an outer scale.
        outer: element type of the outer scales, which divide floats; or None.
        blocks: consecutive blocks that share an outer scale.
        greatest: the greatest magnitude of integers; None for floats.
    """

    element: ElementType
    outer: ElementType | None = None
    blocks: int = 1
    greatest: int | None = None

    @property
    def fields(self) -> list[BlockField]:
        """The field of scales, and that of outer scales."""
        outer = [] if self.outer is None else [BlockField(self.outer, self.blocks)]
        return [BlockField(self.element, 1), *outer]


class BlockField(NamedTuple):
    """A parameter of one or several consecutive blocks, which share it."""

    element: ElementType
    blocks: int


@dataclass(frozen=True)
class PackedWeight:
    """Layout of a block-quantized weight, or of one of floats.

    Args:
        tiles: layout of the integers.
        scale: encoding of the scales; None where there are none.
        zero_point: zero point of all blocks; None where each block has its own.
        offset: encoding of the offsets; None where there are none.
        is_planar: the integers and each field are tensors of their own.
        decoding: 16 bytes that 4-bit integers are indices of, or the format of floats; None where
            the integers are multiplied.
        integer_bound: greatest integer; None for that of `bits`.
    """

    tiles: Tiles
    scale: ScaleEncoding | None
    zero_point: int | None
    offset: ScaleEncoding | None
    is_planar: bool
    decoding: tuple[int, ...] | FloatCodes | None = None
    integer_bound: int | None = None

    @property
    def codebook(self) -> tuple[int, ...] | None:
        """The 16 bytes that 4-bit integers are indices of."""
        return self.decoding if isinstance(self.decoding, tuple) else None

    @property
    def floats(self) -> FloatCodes | None:
        """The format of elements that are codes of floats."""
        return None if isinstance(self.decoding, tuple) else self.decoding

    @property
    def scale_fields(self) -> list[BlockField]:
        """The fields of scales and of their outer scales."""
        return [] if self.scale is None else self.scale.fields

    @property
    def max_integer(self) -> int:
        """Greatest integer that is multiplied."""
        if self.integer_bound is not None:
            return self.integer_bound
        return 2**self.tiles.bits - 1 if self.codebook is None else max(self.codebook)

    @property
    def row_sum_factor(self) -> int:
        """The factor of row sums that makes them initial accumulators: minus the common zero point.

        It is -1 where zero points differ, and 1 where there is none: offsets are multiplied by the
        sums too.
        """
        return -1 if self.zero_point is None else -self.zero_point or 1

    def unpacked(self, tiles: int, k: int) -> PackedWeight:
        """Return the layout of a panel of some tiles and part of K, as bytes and f32."""
        layout = replace(self.tiles, bits=8, n=tiles * self.tiles.nr, k=k)
        f32 = ScaleEncoding(F32)
        offset = None if self.offset is None else f32
        bound = self.max_integer
        return PackedWeight(layout, f32, self.zero_point, offset, True, integer_bound=bound)

    @property
    def fields(self) -> list[BlockField]:
        """Fields of blocks: scales, zero points unless all are equal, and offsets if any."""
        zero_points = [] if self.zero_point is not None else [BlockField(U8, 1)]
        offsets = [] if self.offset is None else self.offset.fields
        return [*self.scale_fields, *zero_points, *offsets]

    def field_bytes(self, field: BlockField) -> int:
        """Return the bytes of a field, for all columns of a tile."""
        return self.tiles.nr * field.element.bits // 8

    # -- records -----------------------------------------------------------------------------------

    @property
    def record_k(self) -> int:
        """Integers of a column in a record."""
        return max(self.tiles.k_per_step, self.tiles.block_size)

    @property
    def records(self) -> int:
        """Records of a tile."""
        return self.tiles.k // self.record_k

    @property
    def blocks_per_record(self) -> int:
        """Blocks of a record."""
        return self.record_k // self.tiles.block_size

    @property
    def steps_per_record(self) -> int:
        """Steps of a record."""
        return self.record_k // self.tiles.k_per_step

    @property
    def block_field_bytes(self) -> int:
        """Bytes of the fields of a block, without outer scales."""
        return sum(self.field_bytes(each) for each in self.fields if each.blocks == 1)

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        integers = self.steps_per_record * self.tiles.step_bytes
        return integers + self.blocks_per_record * self.block_field_bytes

    # -- superblocks -------------------------------------------------------------------------------

    @property
    def records_per_superblock(self) -> int:
        """Records of a superblock."""
        blocks = math.lcm(self.blocks_per_record, *[each.blocks for each in self.fields])
        return blocks // self.blocks_per_record

    def _outer_bytes(self, field: BlockField) -> int:
        blocks = self.records_per_superblock * self.blocks_per_record
        return blocks // field.blocks * self.field_bytes(field)

    @property
    def superblock_header_bytes(self) -> int:
        """Bytes of a superblock before its first record."""
        return sum(self._outer_bytes(each) for each in self.fields if each.blocks > 1)

    @property
    def superblock_bytes(self) -> int:
        """Bytes of a superblock."""
        return self.superblock_header_bytes + self.records_per_superblock * self.record_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return self.records // self.records_per_superblock * self.superblock_bytes

    def field_offset(self, number: int) -> int:
        """Return the offset of a field: in its superblock's header, or in its block's fields."""
        fields = self.fields
        is_outer = fields[number].blocks > 1
        size = self._outer_bytes if is_outer else self.field_bytes
        return sum(size(each) for each in fields[:number] if (each.blocks > 1) == is_outer)

    def binding_bytes(self) -> list[int]:
        """Return the bytes of a tile in each tensor: in one, or of integers and each field."""
        if not self.is_planar:
            return [self.tile_bytes]
        tiles = self.tiles
        blocks = tiles.k // tiles.block_size
        fields = [blocks // each.blocks * self.field_bytes(each) for each in self.fields]
        return [tiles.steps * tiles.step_bytes, *fields]

    def pack(self, integers: Array, fields: Sequence[Array]) -> ArrayPieces:
        """Pack a constant weight into records, uint8 ``count x tile_bytes``, in pieces of tiles.

        Integers are as for `Tiles.pack`. Fields are results of `Tiles.pack_block_parameters`, each
        with its element type.
        """
        tiles = self.tiles
        pieces = (
            self._pack_tiles(
                integers[first * tiles.nr : (first + _TILES_PER_PIECE) * tiles.nr],
                [field[first : first + _TILES_PER_PIECE] for field in fields],
            )
            for first in range(0, tiles.count, _TILES_PER_PIECE)
        )
        return ArrayPieces((tiles.count, self.tile_bytes), np.dtype(np.uint8), pieces)

    def _pack_tiles(self, integers: Array, fields: Sequence[Array]) -> Array:
        """Pack tiles into records, uint8 ``tiles x tile_bytes``."""
        tiles = replace(self.tiles, n=len(integers))
        count, superblocks = tiles.count, self.records // self.records_per_superblock
        packed = np.empty((count, superblocks, self.superblock_bytes), np.uint8)
        record_shape = (count, superblocks, self.records_per_superblock)
        records = packed[:, :, self.superblock_header_bytes :]
        records = records.reshape((*record_shape, self.record_bytes))
        size = self.steps_per_record * tiles.step_bytes
        records[..., :size] = tiles.pack(integers).reshape((*record_shape, size))
        blocks = records[..., size:]
        blocks = blocks.reshape((*record_shape, self.blocks_per_record, self.block_field_bytes))
        for number, (field, array) in enumerate(zip(self.fields, fields, strict=True)):
            offset, size = self.field_offset(number), self.field_bytes(field)
            bytes_ = np.ascontiguousarray(array).view(np.uint8)
            if field.blocks == 1:
                blocks[..., offset : offset + size] = bytes_.reshape((*blocks.shape[:4], size))
            else:
                end = offset + self._outer_bytes(field)
                packed[:, :, offset:end] = bytes_.reshape((count, superblocks, end - offset))
        return packed.reshape((count, self.tile_bytes))


def _with_rows(array: AnyArray, count: int) -> AnyArray:
    """Append zeros to a matrix, up to a number of rows."""
    missing = count - array.shape[0]
    return array if not missing else np.pad(array, ((0, missing), (0, 0)))
