"""The kernel of products with a weight of few bits, for devices of many threads (Vulkan).

::

    result[m, n] = sum_k x[m, k] * ((weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b])

where ``b`` is the block of ``k``; for activations that are rounded to 8 bits::

    result[m, n] = sum_b row_scale[m, b] * (scale[n, b] * product[m, n, b]
                                            + offset[n, b] * sum_k x[m, k])
    product[m, n, b] = sum_k x[m, k] * (weight[n, k] - zero[n, b])

The sums over ``k`` are of integers there, and are added up in f32 for a step of at most 32 of them,
which is exact: they stay below ``32 * 128 * 255 < 2**24``.

A thread has four columns of each of some tiles, which are side by side in memory with those of its
neighbours, and some rows. It reads words of the weight, which have four integers of a column or
more, and shifts and masks these out, once for its rows: no real of the weight is written. Nothing
is shared between threads, so there is nothing to wait for. Where few rows and columns are too
little work for a device, several workgroups have a *share* each of the integers that are summed
over, and what adds their sums is a dispatch of its own. Some threads have the columns of a tile
together, and a workgroup has some such groups of threads, each with tiles of its own, however many
of them a thread reads: kernels of one row and of many read the same.

What is read takes the time, not what is multiplied: on GPUs for their bandwidth, and on Mesa's
llvmpipe because it reads for one thread after the other, with some 55 instructions for four
elements that are a vector, half of them for the first. Its two threads take 0.33 ms for one row of
1024 x 1024 integers of 4 bits, 0.54 ms for floats, and 4.9 ms for IREE's loops over the same
integers; of 128 rows 11 ms, and 20 ms for floats.

A turn of the inner loop has one word of each column: what is written out takes a device the longer
to translate, and two words take llvmpipe no less time than one. All rows are multiplied by the
integers of one tile before those of the next are read, so that sums stay in registers meanwhile:
that takes it an eighth less time, and a quarter less to translate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars, scalar
from ...emit.linalg import Extent
from ...emit.vectors import (
    Vectors,
    broadcast,
    constant_vector,
    element_at,
    for_each_thread,
    load_element,
    loop,
    quotient,
    remainder,
    store_element,
    when,
    workgroup_id,
)
from ...numerics.array_functions import convert, is_zero
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32, U8, U32, ElementType
from ..kernel import Binding, Kernel
from ..pack.packed_weight import ScaleEncoding, Tiles

__all__ = ["THREAD_N", "GpuBlockwiseGemm"]

THREAD_N = 4
"""Of a tile, that a thread has: SPIR-V's vectors have at most so many elements."""


@dataclass(frozen=True)
class GpuBlockwiseGemm:
    """What is computed.

    Args:
        tiles: how the weight lies in memory; a tile has one vector of columns.
        parts: how many tiles a thread has columns of.
        cast: from its integers to reals.
        rows: of activations, None where that is known at run time only.
        scale: how scales are stored.
        zero: the zero point of all blocks; None where each has its own.
        offset: how offsets are stored; None where there are none.
        at_once: how many rows a thread has.
        threads: of a workgroup, a multiple of those that have a tile together.
        is_rounded: activations are integers with a scale for each block.
        shares: how many workgroups have a part each of the steps, which it divides.
    """

    tiles: Tiles
    parts: int
    cast: Cast
    rows: int | None
    scale: ScaleEncoding
    zero: int | None
    offset: ScaleEncoding | None
    at_once: int
    threads: int
    is_rounded: bool
    split_k: int = 1

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are the weight, scales, zero points and offsets if there are such, all as `Tiles`
        lays them out; activations, of f32, or if these are rounded bytes, and the scales of their
        blocks; and the result, with the sums of each share (``rows x shares x columns``).
        """
        tiles = self.tiles
        blocks = tiles.k // tiles.block_size
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes // 4), I32, THREAD_N),
            *_bindings(self.scale, tiles),
            *([] if self.zero is not None else _bindings(ScaleEncoding(U8), tiles)),
            *([] if self.offset is None else _bindings(self.offset, tiles)),
            *(
                [Binding((None, tiles.k // 4), I32), Binding((None, blocks), F32)]
                if self.is_rounded
                else [Binding((None, tiles.k), F32, 4)]
            ),
            Binding(
                (None, self.split_k, tiles.n),
                F32,
                1 if tiles.n % THREAD_N else THREAD_N,
            ),
        ]
        workgroups = -(-tiles.count // self.most_tiles) * self.split_k
        return Kernel(
            "thread_product", bindings, workgroups, self._body, self.rows, self.threads,
            self.at_once,
        )  # fmt: skip

    @property
    def side(self) -> int:
        """How many threads have a tile together."""
        return self.tiles.lanes // THREAD_N

    @property
    def most_tiles(self) -> int:
        """How many tiles a workgroup has; the last may have fewer."""
        return self.threads // self.side * self.parts

    @property
    def has_whole_tiles(self) -> bool:
        """True if each workgroup has as many tiles."""
        return self.tiles.count % self.most_tiles == 0

    @property
    def unit(self) -> int:
        """How many steps of a share have outer scales in common, and outer offsets: read once.

        All steps where there are none; 1 where these change within a step.
        """
        tiles, kept = self.tiles, [self.scale, *([] if self.offset is None else [self.offset])]
        outer = [each.blocks * tiles.block_size for each in kept if each.outer is not None]
        length = math.gcd(tiles.k // self.split_k, *outer)
        return max(1, length // tiles.k_per_step) if length % tiles.k_per_step == 0 else 1

    def _body(self, memories: Sequence[Value], number: Value, rows: Extent) -> None:
        given = list(memories)

        def take(scale: ScaleEncoding) -> list[Value]:
            return [given.pop(0) for _ in _bindings(scale, self.tiles)]

        weight, scales = given.pop(0), take(self.scale)
        zeros = None if self.zero is not None else given.pop(0)
        offsets = [] if self.offset is None else take(self.offset)
        activations = given.pop(0)
        row_scales = given.pop(0) if self.is_rounded else None
        [result] = given
        first = scalar(workgroup_id(0)) * self.at_once
        places = [first + row for row in range(self.at_once)]
        if not isinstance(rows, int) or rows % self.at_once:
            # The rows after the last are the last again: threads write the same to one place.
            last = scalar(rows) - 1 if not isinstance(rows, int) else rows - 1
            places = [np.minimum(place, last) for place in places]
        memory = _Memory(weight, scales, zeros, offsets, activations, row_scales, result)
        group = quotient(scalar(number), self.split_k)
        share = remainder(scalar(number), self.split_k)

        def of_thread(thread: Value) -> None:
            place = scalar(thread)
            together = quotient(place, self.side) + group * (self.threads // self.side)
            first, own = together * self.parts, remainder(place, self.side)
            numbers = [first + part for part in range(self.parts)]
            if not self.has_whole_tiles:
                # The tiles after the last are the last again, and are not written.
                numbers = [np.minimum(tile, self.tiles.count - 1) for tile in numbers]
            words = self.tiles.steps * self.tiles.step_bytes // (4 * THREAD_N)
            starts = [tile * words + own for tile in numbers]
            _Thread(self, memory, first, numbers, starts, own, places, share).write()

        for_each_thread(self.threads, of_thread)


def _bindings(kept: ScaleEncoding, tiles: Tiles) -> list[Binding]:
    """Bindings of scales: bytes of four columns are words, floats of four columns are vectors."""
    blocks = tiles.k // tiles.block_size
    return [
        Binding((tiles.count, blocks // each.blocks, tiles.nr), each.element, THREAD_N)
        if each.element.is_float
        else Binding((tiles.count, blocks // each.blocks, tiles.nr // 4), I32)
        for each in kept.fields
    ]


@dataclass(frozen=True)
class _Memory:
    """The memrefs of the kernel's bindings."""

    weight: Value
    scales: Sequence[Value]
    zeros: Value | None
    offsets: Sequence[Value]
    activations: Value
    row_scales: Value | None
    result: Value


@dataclass(frozen=True)
class _Parameters:
    """What a block has, for the columns of each tile."""

    scales: Sequence[ArrayLike]
    zeros: Sequence[ArrayLike | int]
    offsets: Sequence[ArrayLike] | None


class _Outers(NamedTuple):
    """Outer scales and outer offsets, of each tile; none where there are none."""

    scales: Sequence[ArrayLike]
    offsets: Sequence[ArrayLike]


@dataclass(frozen=True)
class _Thread:
    """What one thread computes.

    Attributes:
        product: what is computed.
        memory: of the kernel.
        first: the number of the first tile; the others follow.
        tiles: their numbers; that of the last in place of those after it.
        starts: where the words of each begin.
        number: of the thread among those that have a tile together.
        rows: their numbers.
        share: its number.
    """

    product: GpuBlockwiseGemm
    memory: _Memory
    first: ArrayLike
    tiles: Sequence[ArrayLike]
    starts: Sequence[ArrayLike]
    number: ArrayLike
    rows: Sequence[ArrayLike]
    share: ArrayLike

    def write(self) -> None:
        """Compute the sums, and store them."""
        parts, unit = self.product.parts, self.product.unit
        count, steps = len(self.rows) * parts, self.product.tiles.steps // self.product.split_k
        zeros = [Vectors(THREAD_N).known(0.0, F32)] * count
        begin = self.share * steps
        sums = loop(begin.value, (begin + steps).value, unit, self._of_unit, zeros)
        for index, total in enumerate(sums):
            row, part = divmod(index, parts)
            self._store(total, self.rows[row], part)

    def _of_unit(self, number: Value, *sums: ArrayLike) -> list[ArrayLike]:
        """Add the products of the steps that have outer scales in common, from one of a number."""
        tiles, unit, first = self.product.tiles, self.product.unit, scalar(number)
        if unit == 1:
            return self._of_step(first, None, sums)
        outers = self._outers(quotient(first * tiles.k_per_step, tiles.block_size))

        def of_step(step: Value, *so_far: ArrayLike) -> list[ArrayLike]:
            return self._of_step(scalar(step), outers, so_far)

        return loop(number, (first + unit).value, 1, of_step, sums)

    def _of_step(
        self, step: ArrayLike, outers: _Outers | None, sums: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add the products of a step: its blocks, or those of its block that it has.

        Args:
            step: its number.
            outers: of its blocks; None where they are to be read.
            sums: what is added to.
        """
        tiles = self.product.tiles
        count = tiles.plane_vectors[0]
        if tiles.block_size >= tiles.k_per_step:
            block = quotient(step, tiles.block_size // tiles.k_per_step)
            fields = range(tiles.k_per_step // 4 // count)

            def of_words(place: Value, *so_far: ArrayLike) -> list[ArrayLike]:
                words = _Words(self, step)
                groups = [_Group(field, scalar(place)) for field in fields]
                return self._products(words, groups, parameters, so_far)

            parameters = self._parameters(block, outers)
            found = loop(0, count, 1, of_words, self._started(parameters, sums))
            return self._scaled(block, parameters, found, sums)
        words, found, blocks = _Words(self, step), list(sums), tiles.k_per_step // tiles.block_size
        for number_ in range(blocks):
            block = step * blocks + number_
            parameters = self._parameters(block, outers)
            own = range(number_ * tiles.block_size // 4, (number_ + 1) * tiles.block_size // 4)
            groups = [_Group(*divmod(group, count)) for group in own]
            started = self._started(parameters, found)
            products = self._products(words, groups, parameters, started)
            found = self._scaled(block, parameters, products, found)
        return found

    def _started(self, parameters: _Parameters, sums: Sequence[ArrayLike]) -> list[ArrayLike]:
        """What products of a block are added to: the sums, or zeros where these are scaled then.

        With offsets there is a sum of the activations of each row after them.
        """
        if not self.product.is_rounded:
            return list(sums)
        found = [Vectors(THREAD_N).known(0.0, F32)] * len(sums)
        if parameters.offsets is not None:
            found += [Scalars().known(0.0, F32)] * len(self.rows)
        return found

    def _products(
        self,
        words: _Words,
        groups: Sequence[_Group],
        parameters: _Parameters,
        sums: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of some groups of a step."""
        parts, found = self.product.parts, list(sums)
        count = len(self.rows) * parts
        read = [self._activations(words, group) for group in groups]
        for part in range(parts):
            for group, rows in zip(groups, read, strict=True):
                reals = [self._real(words, group, m, parameters, part) for m in range(4)]
                for row, activations in enumerate(rows):
                    index = row * parts + part
                    for activation, real in zip(activations, reals, strict=True):
                        found[index] = found[index] + broadcast(activation, THREAD_N) * real
        for rows in read:
            for row, activations in enumerate(rows[: len(found) - count]):
                for activation in activations:
                    found[count + row] = found[count + row] + activation
        return found

    def _activations(self, words: _Words, group: _Group) -> list[list[ArrayLike]]:
        """Those that the integers of a group are multiplied by, of each row."""
        tiles = self.product.tiles
        place = words.step * (tiles.k_per_step // 4) + group.number(tiles)
        found = [
            load_element(self.memory.activations, [(row * (tiles.k // 4) + place).value])
            for row in self.rows
        ]
        return [[self._activation(each, member) for member in range(4)] for each in found]

    def _activation(self, group: ArrayLike, member: int) -> ArrayLike:
        """One of four activations that are a vector, or the bytes of a word."""
        if not self.product.is_rounded:
            return element_at(group, member)
        return convert((group << (24 - 8 * member)) >> 24, F32)

    def _real(
        self, words: _Words, group: _Group, member: int, parameters: _Parameters, part: int
    ) -> ArrayLike:
        """What activations are multiplied by: reals of the weight, or its integers."""
        product, zero = self.product, parameters.zeros[part]
        integer = words.integer(group, member, part)
        if product.is_rounded:
            return convert(integer if is_zero(zero) else integer - zero, F32)
        offset = None if parameters.offsets is None else parameters.offsets[part]
        real = product.cast.dequantize(integer, parameters.scales[part], zero, offset)
        return convert(real, F32)

    def _scaled(
        self,
        block: ArrayLike,
        parameters: _Parameters,
        products: Sequence[ArrayLike],
        sums: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of a block's integers, times their scales, to the sums."""
        product, parts = self.product, self.product.parts
        if self.memory.row_scales is None:
            return list(products)
        blocks = product.tiles.k // product.tiles.block_size
        found = []
        for row, place in enumerate(self.rows):
            scale = load_element(self.memory.row_scales, [(place * blocks + block).value])
            spread = broadcast(scale, THREAD_N)
            for part in range(parts):
                index = row * parts + part
                real = products[index] * convert(parameters.scales[part], F32)
                if parameters.offsets is not None:
                    total = broadcast(products[len(sums) + row], THREAD_N)
                    real = real + total * convert(parameters.offsets[part], F32)
                found.append(sums[index] + real * spread)
        return found

    def _parameters(self, block: ArrayLike, outers: _Outers | None) -> _Parameters:
        product, memory = self.product, self.memory
        parts = range(product.parts)
        outers = outers or self._outers(block)
        scales = self._read(product.scale, memory.scales, block, outers.scales)
        zeros: list[ArrayLike | int] = [product.zero or 0 for _ in parts]
        if memory.zeros is not None:
            zeros = [self._bytes(memory.zeros, block, part, U8) for part in parts]
        if product.offset is None:
            return _Parameters(scales, zeros, None)
        offsets = self._read(product.offset, memory.offsets, block, outers.offsets)
        return _Parameters(scales, zeros, offsets)

    def _outers(self, block: ArrayLike) -> _Outers:
        """Outer scales and offsets of a block, if there are such."""
        product, memory = self.product, self.memory

        def read(kept: ScaleEncoding | None, memories: Sequence[Value]) -> list[ArrayLike]:
            if kept is None or kept.outer is None:
                return []
            place = quotient(block, kept.blocks)
            found = [
                self._floats(memories[1], place, part, kept.blocks) for part in range(product.parts)
            ]
            return [convert(each, F32) for each in found]

        return _Outers(read(product.scale, memory.scales), read(product.offset, memory.offsets))

    def _read(
        self,
        kept: ScaleEncoding,
        memories: Sequence[Value],
        block: ArrayLike,
        outers: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Scales or offsets of a block, of each tile."""
        parts = range(self.product.parts)
        if kept.outer is None:
            return [self._floats(memories[0], block, part, 1) for part in parts]
        stored = [self._bytes(memories[0], block, part, kept.element) for part in parts]
        return [convert(each, F32) * outer for each, outer in zip(stored, outers, strict=True)]

    def _floats(self, memory: Value, block: ArrayLike, part: int, blocks: int) -> ArrayLike:
        return load_element(memory, [self._place(block, part, blocks).value])

    def _bytes(self, memory: Value, block: ArrayLike, part: int, element: ElementType) -> ArrayLike:
        """Integers of a block as i32, a byte each in memory: those of four columns are a word."""
        word = load_element(memory, [self._place(block, part, 1).value])
        spread = broadcast(word, THREAD_N)
        if element.kind == "int":
            return (spread << constant_vector([24, 16, 8, 0], I32)) >> 24
        return (spread >> constant_vector([0, 8, 16, 24], I32)) & 255

    def _place(self, block: ArrayLike, part: int, blocks: int) -> ArrayLike:
        """Where what a block has of the thread's columns is; so many blocks have it together."""
        tiles = self.product.tiles
        count = tiles.k // tiles.block_size // blocks
        return (self.tiles[part] * count + block) * (tiles.nr // THREAD_N) + self.number

    def _store(self, total: ArrayLike, row: ArrayLike, part: int) -> None:
        """Write the thread's columns of a tile, of which some may be after the last."""
        tiles, result = self.product.tiles, self.memory.result
        row = row * self.product.split_k + self.share
        number = (self.first + part) * (tiles.nr // THREAD_N) + self.number
        whole, rest = divmod(tiles.n, THREAD_N)

        def write(count: int) -> None:
            if not rest:
                store_element(total, result, [(row * whole + number).value])
                return
            place = row * tiles.n + number * THREAD_N
            for lane in range(count):
                store_element(element_at(total, lane), result, [(place + lane).value])

        if tiles.n % tiles.nr == 0 and self.product.has_whole_tiles:
            write(THREAD_N)
            return
        when(number < whole, lambda: write(THREAD_N))
        if rest:
            when(number == whole, lambda: write(rest))


@dataclass(frozen=True)
class _Group:
    """Four integers of each column that follow each other: of a field of a word of the first plane.

    Attributes:
        field: of the word.
        word: its number in a step.
    """

    field: int
    word: ArrayLike | int

    def number(self, tiles: Tiles) -> ArrayLike | int:
        """Of the group in its step."""
        return self.word + self.field * tiles.plane_vectors[0]


@dataclass(frozen=True)
class _Words:
    """The words of a step of the weight, each of which is read once.

    Attributes:
        thread: that reads them.
        step: its number.
        loaded: by plane, tile of the thread and number where that is known.
    """

    thread: _Thread
    step: ArrayLike
    loaded: dict[tuple[int, int, int], ArrayLike] = field(default_factory=dict)

    def integer(self, group: _Group, member: int, part: int) -> ArrayLike:
        """One of the four integers of a group, i32, in the columns of a tile of the thread."""
        tiles, integer = self.thread.product.tiles, None
        pieces = tiles.bit_fields(group.word, group.field, self._divided)
        for plane, number, bits, stored, low in pieces:
            piece = _shifted(self._word(plane, number, part), stored + member * 8)
            if bits < 8 or member < 3:
                piece = piece & ((1 << bits) - 1)
            piece = piece.form.emitted(piece.value, I32)
            integer = piece if integer is None else integer | (piece << low)
        return integer

    def _divided(
        self, number: ArrayLike | int, count: int
    ) -> tuple[ArrayLike | int, ArrayLike | int]:
        """Quotient and remainder of the number of a word of the first plane."""
        if count == self.thread.product.tiles.plane_vectors[0]:
            return 0, number
        if isinstance(number, int):
            return divmod(number, count)
        return quotient(number, count), remainder(number, count)

    def _word(self, plane: int, word: ArrayLike | int, part: int) -> ArrayLike:
        key = (plane, part, word if isinstance(word, int) else -1)
        if key not in self.loaded:
            thread, product = self.thread, self.thread.product
            words_of_step = product.tiles.step_bytes // 4 // product.tiles.lanes
            number = self.step * words_of_step + product.tiles.vector_index(plane, word)
            place = thread.starts[part] + number * product.side
            words = load_element(thread.memory.weight, [place.value])
            self.loaded[key] = words.form.emitted(words.value, U32)
        return self.loaded[key]


def _shifted(words: ArrayLike, by: ArrayLike | int) -> ArrayLike:
    """Words, shifted to the right."""
    if isinstance(by, int):
        return words >> by if by else words
    return words >> broadcast(convert(by, U32), THREAD_N)
