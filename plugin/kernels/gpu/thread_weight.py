"""Loads of a packed weight by a GPU thread, which has four adjacent columns of some tiles.

Words and vectors of four columns are adjacent in memory to those of the neighboring threads. A word
of the first plane has one or more k-packs of four integers; a second plane has the higher bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core._mlir import Value
from ...emit import ArrayLike
from ...emit.kernel import Binding
from ...emit.vectors import broadcast, constant_vector, load_element, quotient, remainder
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I32, U8, U32, ElementType
from ..pack.packed_weight import PackedWeight, ScaleEncoding, Tiles

THREAD_N = 4
"""A thread has this many adjacent columns of a tile, the most lanes of a SPIR-V vector."""


def weight_bindings(weight: PackedWeight) -> list[Binding]:
    """The bindings of a planar weight: words of four columns, and vectors of four floats."""
    tiles = weight.tiles
    bindings = [Binding((tiles.count, tiles.steps, tiles.step_bytes // 4), I32, THREAD_N)]
    for each in weight.fields:
        blocks = tiles.k // tiles.block_size // each.blocks
        if each.element.is_float:
            bindings.append(Binding((tiles.count, blocks, tiles.nr), each.element, THREAD_N))
        else:
            bindings.append(Binding((tiles.count, blocks, tiles.nr // 4), I32))
    return bindings


@dataclass(frozen=True)
class WeightMemrefs:
    """The memrefs of a planar weight.

    Attributes:
        integers: the words of integers.
        scales: the scales, and the outer scales if there are any.
        zero_points: the zero points; None where all blocks have the same.
        offsets: the offsets, and the outer offsets if there are any.
    """

    integers: Value
    scales: Sequence[Value]
    zero_points: Value | None
    offsets: Sequence[Value]

    @classmethod
    def take(cls, weight: PackedWeight, memories: list[Value]) -> WeightMemrefs:
        """Remove the memrefs of a weight from the front of a list."""
        integers = memories.pop(0)
        scales = [memories.pop(0) for _ in weight.scale_fields]
        zero_points = None if weight.zero_point is not None else memories.pop(0)
        offset_fields = [] if weight.offset is None else weight.offset.fields
        return cls(integers, scales, zero_points, [memories.pop(0) for _ in offset_fields])


@dataclass(frozen=True)
class BlockParameters:
    """Scales, zero points and offsets of a block, in a vector for each tile of a thread."""

    scales: Sequence[ArrayLike]
    zero_points: Sequence[ArrayLike | int]
    offsets: Sequence[ArrayLike] | None


class OuterScales(NamedTuple):
    """Outer scales and outer offsets, for each tile of a thread; empty where there are none."""

    scales: Sequence[ArrayLike]
    offsets: Sequence[ArrayLike]


@dataclass(frozen=True)
class ThreadWeight:
    """The columns of a thread.

    `starts` has the index of its first vector of words in each tile, `lane_group` is its number
    among the threads that share a tile.
    """

    weight: PackedWeight
    memrefs: WeightMemrefs
    tiles: Sequence[ArrayLike]
    starts: Sequence[ArrayLike]
    lane_group: ArrayLike

    def parameters(self, block: ArrayLike, outer: OuterScales | None) -> BlockParameters:
        """Load the parameters of a block; outer scales too if they are None."""
        outer = outer or self.outer_scales(block)
        scales, zero_points = self.scales(block, outer), self.zero_points(block)
        if self.weight.offset is None:
            return BlockParameters(scales, zero_points, None)
        offsets = self._load_field(self.weight.offset, self.memrefs.offsets, block, outer.offsets)
        return BlockParameters(scales, zero_points, offsets)

    def scales(self, block: ArrayLike, outer: OuterScales | None = None) -> list[ArrayLike]:
        """Load the scales of a block."""
        outer = outer or self.outer_scales(block)
        assert self.weight.scale is not None  # only weights of floats have none
        return self._load_field(self.weight.scale, self.memrefs.scales, block, outer.scales)

    def zero_points(self, block: ArrayLike) -> list[ArrayLike | int]:
        """Load the zero points of a block, or return the one of all blocks."""
        memory = self.memrefs.zero_points
        if memory is None:
            return [self.weight.zero_point or 0 for _ in self.tiles]
        return [self._load_bytes(memory, block, n, U8) for n in range(len(self.tiles))]

    def outer_scales(self, block: ArrayLike) -> OuterScales:
        """Load the outer scales and offsets of a block, f32."""

        def load(encoding: ScaleEncoding | None, memories: Sequence[Value]) -> list[ArrayLike]:
            if encoding is None or encoding.outer is None:
                return []
            outer_block = quotient(block, encoding.blocks)
            loaded = [
                self._load_floats(memories[1], outer_block, index, encoding.blocks)
                for index in range(len(self.tiles))
            ]
            return [convert(each, F32) for each in loaded]

        weight, memrefs = self.weight, self.memrefs
        return OuterScales(load(weight.scale, memrefs.scales), load(weight.offset, memrefs.offsets))

    def _load_field(
        self,
        encoding: ScaleEncoding,
        memories: Sequence[Value],
        block: ArrayLike,
        outer: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Load the scales or offsets of a block, times the outer ones."""
        indices = range(len(self.tiles))
        if encoding.outer is None:
            return [self._load_floats(memories[0], block, index, 1) for index in indices]
        stored = [
            self._load_bytes(memories[0], block, index, encoding.element) for index in indices
        ]
        return [convert(each, F32) * scale for each, scale in zip(stored, outer, strict=True)]

    def _load_floats(self, memory: Value, block: ArrayLike, tile: int, blocks: int) -> ArrayLike:
        return load_element(memory, [self._field_index(block, tile, blocks).value])

    def _load_bytes(
        self, memory: Value, block: ArrayLike, tile: int, element: ElementType
    ) -> ArrayLike:
        """Load the bytes of four columns, which are a word, as a vector of i32."""
        word = load_element(memory, [self._field_index(block, tile, 1).value])
        words = broadcast(word, THREAD_N)
        if element.kind == "int":
            return (words << constant_vector([24, 16, 8, 0], I32)) >> 24
        return (words >> constant_vector([0, 8, 16, 24], I32)) & 255

    def _field_index(self, block: ArrayLike, tile: int, blocks: int) -> ArrayLike:
        """The index of a field of the thread's columns, which ``blocks`` blocks share."""
        layout = self.weight.tiles
        count = layout.k // layout.block_size // blocks
        groups = layout.nr // THREAD_N
        return (self.tiles[tile] * count + block) * groups + self.lane_group


@dataclass(frozen=True)
class KPack:
    """Four consecutive integers of each column: a bit field of a word of the first plane.

    `word` is the number of the word in its step.
    """

    field: int
    word: ArrayLike | int

    def number(self, tiles: Tiles) -> ArrayLike | int:
        """The number of the k-pack in its step."""
        return self.word + self.field * tiles.plane_vectors[0]


@dataclass(frozen=True)
class StepWords:
    """The words of a step for the columns of a thread, each of which is loaded once.

    `loaded` has words by plane, tile, and number if that is constant.
    """

    columns: ThreadWeight
    step: ArrayLike
    loaded: dict[tuple[int, int, int], ArrayLike] = field(default_factory=dict)

    def integers(self, k_pack: KPack, member: int, tile: int) -> ArrayLike:
        """One of the four integers of a k-pack, i32, of the columns in a tile."""
        return self._fields(k_pack, member * 8, tile, 1)

    def bytes(self, k_pack: KPack, tile: int) -> ArrayLike:
        """The four integers of a k-pack of each column, the bytes of a word."""
        return self._fields(k_pack, 0, tile, 0x01010101)

    def _fields(self, k_pack: KPack, first_bit: int, tile: int, ones: int) -> ArrayLike:
        """Join the bits of integers from all planes; ``ones`` has the lowest bit of each."""
        tiles, fields = self.columns.weight.tiles, None
        for plane, number, bits, byte_shift, integer_shift in tiles.bit_fields(
            k_pack.word, k_pack.field, self._divided
        ):
            piece, shift = self._word(plane, number, tile), byte_shift + first_bit
            if not isinstance(shift, int):
                piece = piece >> broadcast(convert(shift, U32), THREAD_N)
            elif shift:
                piece = piece >> shift
            if bits < 8 or (ones == 1 and first_bit < 24):
                piece = piece & (((1 << bits) - 1) * ones)
            piece = piece.form.emitted(piece.value, I32)
            fields = piece if fields is None else fields | (piece << integer_shift)
        return fields

    def _divided(
        self, word: ArrayLike | int, count: int
    ) -> tuple[ArrayLike | int, ArrayLike | int]:
        """The quotient and the remainder of the number of a word of the first plane."""
        if count == self.columns.weight.tiles.plane_vectors[0]:
            return 0, word
        if isinstance(word, int):
            return divmod(word, count)
        return quotient(word, count), remainder(word, count)

    def _word(self, plane: int, word: ArrayLike | int, tile: int) -> ArrayLike:
        key = (plane, tile, word if isinstance(word, int) else -1)
        if key not in self.loaded:
            columns, tiles = self.columns, self.columns.weight.tiles
            step_words = tiles.step_bytes // 4 // tiles.lanes
            number = self.step * step_words + tiles.vector_index(plane, word)
            index = columns.starts[tile] + number * (tiles.lanes // THREAD_N)
            words = load_element(columns.memrefs.integers, [index.value])
            self.loaded[key] = words.form.emitted(words.value, U32)
        return self.loaded[key]
