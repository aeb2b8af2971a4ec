"""How a weight in blocks is given to a kernel: its integers, and what blocks have besides.

A weight that is known when a program is compiled lies in memory in the order in which a row of
activations reads it, as a core reads one stream of bytes faster than several: one row of 4096 x
4096 integers takes 0.28 ms where scales are with integers of 4 bits, and 0.33 where they are apart;
of Q6_K 0.42 and 0.50 (Zen 4, one thread, weights in turn out of 200 MB and more).

The bytes of a tile (`subquant.kernels.pack.tiles`) are those of its *turns*, one after another: a
turn is a step, or all steps of a block if that is longer. After its integers there is what each of
its blocks has, for all columns of the tile::

    turn = steps | scale, zero point, offset | those of the next block | ...

Outer scales, which several blocks have in common, are before the turns of these blocks. Where those
of scales and of offsets are of different numbers of blocks, a *unit* has as many turns as are whole
in both::

    unit = outer scales | outer offsets | turn | turn | ...

Of other weights the integers, and each of what blocks have, are a tensor of their own, in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...core._mlir import Value
from ...emit import Formula
from ...emit.vectors import bitcast, load, quotient, remainder
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I32, U8, Array, ElementType
from ..kernel_table import Binding
from .tiles import Tiles

__all__ = ["Block", "Field", "PackedWeight", "Reader", "Scale"]

_AT_ONCE = 64
"""Tiles that are packed together: in between they take memory twice."""


@dataclass(frozen=True)
class Scale:
    """How scales or offsets of blocks are stored.

    Args:
        element: f16 or f32; u8 or i8 where they are integers times an outer scale.
        outer: the element type of outer scales, or None.
        blocks: how many blocks have one outer scale.
    """

    element: ElementType
    outer: ElementType | None = None
    blocks: int = 1

    @property
    def fields(self) -> list[Field]:
        """What is stored, and outer scales."""
        outer = [] if self.outer is None else [Field(self.outer, self.blocks)]
        return [Field(self.element, 1), *outer]


class Field(NamedTuple):
    """What blocks have besides integers.

    Attributes:
        element: the element type.
        blocks: how many blocks have one.
    """

    element: ElementType
    blocks: int


class Block(NamedTuple):
    """The place of a block.

    Attributes:
        turn: the number of its turn.
        number: its own among the blocks of the turn.
    """

    turn: Formula
    number: int


@dataclass(frozen=True)
class PackedWeight:
    """How a weight is given to a kernel.

    Args:
        tiles: how its integers lie in memory.
        scale: how scales are stored.
        zero: the zero point of all blocks; None where each has its own.
        offset: how offsets are stored; None where there are none.
        is_apart: integers, and each of what blocks have, are tensors of their own.
        table: the bytes that integers of 4 bits are the numbers of; None where they are integers.
        limit: the greatest integer that there may be; None for what the bits hold.
    """

    tiles: Tiles
    scale: Scale
    zero: int | None
    offset: Scale | None
    is_apart: bool
    table: tuple[int, ...] | None = None
    limit: int | None = None

    @property
    def greatest(self) -> int:
        """The greatest integer that there may be."""
        if self.limit is not None:
            return self.limit
        return 2**self.tiles.bits - 1 if self.table is None else max(self.table)

    def unpacked(self, count: int, depth: int) -> PackedWeight:
        """How some tiles lie, up to a depth, when they are unpacked.

        Integers are bytes, scales and offsets f32.
        """
        tiles = replace(self.tiles, bits=8, columns=count * self.tiles.width, depth=depth)
        offset = None if self.offset is None else Scale(F32)
        return PackedWeight(tiles, Scale(F32), self.zero, offset, True, limit=self.greatest)

    @property
    def fields(self) -> list[Field]:
        """What blocks have: scales, zero points, and offsets, if there are such."""
        zeros = [] if self.zero is not None else [Field(U8, 1)]
        return [*self.scale.fields, *zeros, *([] if self.offset is None else self.offset.fields)]

    def size(self, field: Field) -> int:
        """The bytes of a field of the columns of a tile."""
        return self.tiles.width * field.element.bits // 8

    # -- turns ------------------------------------------------------------------------------------

    @property
    def turn(self) -> int:
        """How many integers of a column a turn has."""
        return max(self.tiles.step, self.tiles.block)

    @property
    def turns(self) -> int:
        """How many turns a tile has."""
        return self.tiles.depth // self.turn

    @property
    def turn_blocks(self) -> int:
        """How many blocks a turn has."""
        return self.turn // self.tiles.block

    @property
    def turn_steps(self) -> int:
        """How many steps a turn has."""
        return self.turn // self.tiles.step

    @property
    def block_bytes(self) -> int:
        """The bytes that the fields of a block have, but for those of several blocks."""
        return sum(self.size(each) for each in self.fields if each.blocks == 1)

    @property
    def turn_bytes(self) -> int:
        """The bytes of a turn."""
        return self.turn_steps * self.tiles.step_bytes + self.turn_blocks * self.block_bytes

    # -- units ------------------------------------------------------------------------------------

    @property
    def unit_turns(self) -> int:
        """How many turns a unit has."""
        whole = math.lcm(self.turn_blocks, *[each.blocks for each in self.fields])
        return whole // self.turn_blocks

    @property
    def first_bytes(self) -> int:
        """The bytes of a unit before its first turn."""
        return sum(self._outer_bytes(each) for each in self.fields if each.blocks > 1)

    def _outer_bytes(self, field: Field) -> int:
        return self.unit_turns * self.turn_blocks // field.blocks * self.size(field)

    @property
    def unit_bytes(self) -> int:
        """The bytes of a unit."""
        return self.first_bytes + self.unit_turns * self.turn_bytes

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile."""
        return self.turns // self.unit_turns * self.unit_bytes

    def start(self, number: int) -> int:
        """Where a field begins: in a unit, or, after the integers, among those of a block."""
        fields = self.fields
        before = [
            each for each in fields[:number] if (each.blocks > 1) == (fields[number].blocks > 1)
        ]
        return sum(
            self.size(each) if each.blocks == 1 else self._outer_bytes(each) for each in before
        )

    # -- memory -----------------------------------------------------------------------------------

    def bindings(self) -> list[Binding]:
        """Of the bytes of all tiles: of integers and of each field, or of all that together."""
        tiles = self.tiles
        if not self.is_apart:
            return [Binding((tiles.count, self.tile_bytes), U8)]
        blocks = tiles.depth // tiles.block
        sizes = [tiles.steps * tiles.step_bytes]
        sizes += [blocks // each.blocks * self.size(each) for each in self.fields]
        return [Binding((tiles.count, size), U8) for size in sizes]

    def take(self, memories: list[Value]) -> Reader:
        """Take the memrefs of `bindings` from the begin of a list."""
        return Reader(self, [memories.pop(0) for _ in self.bindings()])

    def pack(self, integers: Array, fields: Sequence[Array]) -> Array:
        """Lay a weight out together.

        Args:
            integers: as for `Tiles.pack`.
            fields: as of `Tiles.pack_parameters`, each with its element type.

        Returns:
            uint8, ``count x tile_bytes``.
        """
        tiles, count = self.tiles, self.tiles.count
        units = self.turns // self.unit_turns
        packed = np.empty((count, units, self.unit_bytes), np.uint8)
        first = self.first_bytes
        turns = packed[:, :, first:].reshape((count, units, self.unit_turns, self.turn_bytes))
        of_blocks = self.turn_steps * tiles.step_bytes
        shape = (count, units, self.unit_turns, of_blocks)
        for start in range(0, count, _AT_ONCE):
            columns = integers[start * tiles.width : (start + _AT_ONCE) * tiles.width]
            some = replace(tiles, columns=len(columns)).pack(columns)
            turns[start : start + _AT_ONCE, ..., :of_blocks] = some.reshape((-1, *shape[1:]))
        blocks = turns[..., of_blocks:].reshape((*shape[:3], self.turn_blocks, self.block_bytes))
        for number, (field, given) in enumerate(zip(self.fields, fields, strict=True)):
            place, size = self.start(number), self.size(field)
            stored = np.ascontiguousarray(given).view(np.uint8)
            if field.blocks == 1:
                blocks[..., place : place + size] = stored.reshape((*blocks.shape[:4], size))
            else:
                outer = self._outer_bytes(field)
                packed[:, :, place : place + outer] = stored.reshape((count, units, outer))
        return packed.reshape((count, self.tile_bytes))


@dataclass(frozen=True)
class Reader:
    """Reads a weight.

    Args:
        stored: how it is given.
        memories: the memrefs of its bindings.
        first: the turn that they begin with; None for that of the weight.
    """

    stored: PackedWeight
    memories: Sequence[Value]
    first: Formula | None = None

    def step(self, turn: Formula, number: Formula | int) -> tuple[Value, Formula]:
        """The memref and the byte of a tile at which a step of a turn begins."""
        stored, size = self.stored, self.stored.tiles.step_bytes
        if stored.is_apart:
            turn = _after(turn, self.first)
            return self.memories[0], (_times(turn, stored.turn_steps) + number) * size
        return self.memories[0], self._turn(turn) + number * size

    def scale(self, tile: Value, block: Block, column: Formula | int, lanes: int) -> Formula:
        """Scales of a block, f32, of so many columns of a tile from one on."""
        return self._real(self.stored.scale, 0, tile, block, column, lanes)

    def zero(self, tile: Value, block: Block, column: Formula | int, lanes: int) -> Formula | None:
        """Zero points, u8, in the same way; None where all blocks have one."""
        if self.stored.zero is not None:
            return None
        return self._read(len(self.stored.scale.fields), tile, block, column, lanes)

    def offset(
        self, tile: Value, block: Block, column: Formula | int, lanes: int
    ) -> Formula | None:
        """Offsets, f32, in the same way; None where there are none."""
        kept = self.stored.offset
        if kept is None:
            return None
        first = len(self.stored.fields) - len(kept.fields)
        return self._real(kept, first, tile, block, column, lanes)

    def _real(
        self,
        kept: Scale,
        first: int,
        tile: Value,
        block: Block,
        column: Formula | int,
        lanes: int,
    ) -> Formula:
        stored = self._read(first, tile, block, column, lanes)
        if kept.outer is None:
            return convert(stored, F32)
        outer = convert(self._read(first + 1, tile, block, column, lanes), F32)
        return convert(convert(stored, I32), F32) * outer

    def _read(
        self, number: int, tile: Value, block: Block, column: Formula | int, lanes: int
    ) -> Formula:
        """Elements of a field, as they are stored."""
        element = self.stored.fields[number].element
        width = element.bits // 8
        memory, start = self._place(number, block)
        place = [tile, (start + column * width).value]
        if width == 1:
            return load(memory, place, lanes, element)
        return bitcast(load(memory, place, lanes * width, U8), element)

    def _place(self, number: int, block: Block) -> tuple[Value, Formula]:
        """The memref of a field, and where what a block has begins in a tile."""
        stored, field = self.stored, self.stored.fields[number]
        size = stored.size(field)
        if stored.is_apart:
            place = _times(_after(block.turn, self.first), stored.turn_blocks) + block.number
            return self.memories[number + 1], _divided(place, field.blocks) * size
        [memory], start = self.memories, stored.start(number)
        if field.blocks == 1:
            start += stored.turn_steps * stored.tiles.step_bytes
            return memory, self._turn(block.turn) + (start + block.number * stored.block_bytes)
        unit = _divided(block.turn, stored.unit_turns) * stored.unit_bytes + start
        if field.blocks == stored.unit_turns * stored.turn_blocks:
            return memory, unit
        turn = _times(remainder(block.turn, stored.unit_turns), stored.turn_blocks)
        return memory, unit + _divided(turn + block.number, field.blocks) * size

    def _turn(self, turn: Formula) -> Formula:
        """Where a turn begins in a tile."""
        stored = self.stored
        if stored.unit_turns == 1:
            return turn * stored.turn_bytes + stored.first_bytes
        unit = _divided(turn, stored.unit_turns) * stored.unit_bytes + stored.first_bytes
        return unit + remainder(turn, stored.unit_turns) * stored.turn_bytes


def _after(position: Formula, first: Formula | None) -> Formula:
    return position if first is None else position - first


def _times(position: Formula, number: int) -> Formula:
    return position if number == 1 else position * number


def _divided(position: Formula, number: int) -> Formula:
    return position if number == 1 else quotient(position, number)
