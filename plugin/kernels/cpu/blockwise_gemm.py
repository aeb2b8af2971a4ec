"""The kernel of products of activations with a weight of few bits, a scale for each block.

Where activations are int8::

    result[m, n] = sum_b row_scale[m, b] * (scale[n, b] * product[m, n, b]
                                            + offset[n, b] * sum_k x[m, k])
    product[m, n, b] = sum_k (weight[n, k] - zero[n, b]) * x[m, k]

where ``k`` are those of block ``b``. The sums over ``k`` are of integers, and exact; those over
blocks are of f32. A workgroup has some tiles of the weight. For each it goes through the rows,
several at once, whose sums over blocks stay in registers. Integers of the weight are shifted out of
their bytes once for many rows, a panel of the tile after the other
(`subquant.kernels.cpu.weight_panels`), or where few rows use them. Where there are few rows in all,
it reads several tiles side by side.

Where activations are floats, integers of the weight become f32 in registers, less their zero point,
and sums over ``k`` are of f32 too::

    result[m, n] = sum_b scale[n, b] * sum_k (weight[n, k] - zero[n, b]) * x[m, k]

Integers that are entries of a table (`subquant.kernels.pack.codebook`) are looked up before.

An offset is added to each real of the weight: ``(weight[n, k] - zero[n, b]) * scale[n, b] +
offset[n, b]`` is what is multiplied then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value
from ...emit import Formula, scalar
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import (
    Vectors,
    bitcast,
    broadcast,
    load,
    load_element,
    loop,
    quotient,
    remainder,
    scratch,
    store,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I32, U32
from ..epilogue.matcher import FusedEpilogue, epilogue_bindings
from ..isa.base import Accumulator, InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..kernel import Binding, Kernel
from ..pack.packed_weight import PackedWeight, Tiles
from .output_tile import store_with_tail
from .weight_panels import Panel, Step
from .weight_reader import BlockIndex, WeightReader, weight_bindings

__all__ = ["BlockwiseGemm"]

_AS_LONG, _AS_LONG_OF_FLOATS = 2, 8
"""How many products of bytes take as long as one of these, about."""
_GROUPS = 4
"""Of rows that are computed together, from which on a weight is unpacked for all of them.

With AVX2 16 rows of 4096 times 4096 x 4096 take 2.86 ms for 2.96 so, those of Q4_K 3.23 for 3.74.
"""
_ROWS = 64
"""Whose sums are in memory while panels of a weight are unpacked."""
_BITS_OF_2_23 = 0x4B000000
"""Those of ``2**23`` as f32, whose last bits are for integers."""


@dataclass(frozen=True)
class BlockwiseGemm:
    """What is computed, and with what.

    Args:
        stored: how the weight is given.
        instructions: a name in `INSTRUCTION_SETS`.
        rows: of activations, None where that is known at run time only.
        at_once: how many rows are computed together.
        tiles_at_once: how many tiles a workgroup has.
        of_floats: activations are f32.
        batches: how many weights there are, whose tiles follow one another, and each of which is
            multiplied with as many of the rows.
        epilogue: what is done with the sums before they are written, without batches.
    """

    stored: PackedWeight
    instructions: str
    rows: int | None
    at_once: int
    tiles_per_workgroup: int
    of_floats: bool = False
    batches: int = 1
    epilogue: FusedEpilogue | None = None

    @property
    def tiles(self) -> Tiles:
        """How the integers of the weight lie in memory."""
        return self.stored.tiles

    @property
    def target(self) -> InstructionSet:
        """What is multiplied with."""
        return INSTRUCTION_SETS[self.instructions]

    @property
    def row_sum_factor(self) -> int:
        """What sums of activations are multiplied by, for this kernel: zero points count less."""
        zero = self.stored.zero_point
        return -1 if zero is None else -zero or 1

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are those of the weight; activations, and scale and sum times `row_sum_factor` of
        each of their blocks, as `QuantizeRows` gives them, or activations alone; and the result.
        """
        tiles = self.tiles
        blocks, count = tiles.k // tiles.block_size, self.batches * tiles.count
        every = replace(tiles, n=count * tiles.nr)
        bindings = [
            *weight_bindings(replace(self.stored, tiles=every)),
            *(
                [Binding((None, tiles.k), F32)]
                if self.of_floats
                else [
                    Binding((None, tiles.k // 4), I32),
                    Binding((None, 2 * blocks), I32),
                ]
            ),
            *epilogue_bindings(self.epilogue, tiles.count * tiles.nr, (None, tiles.n), sums=F32),
        ]
        workgroups = self.batches * self._workgroups
        products = None
        if self.rows is not None:
            as_long = _AS_LONG_OF_FLOATS if self.of_floats else _AS_LONG
            products = as_long * self.rows * tiles.n * tiles.k
        return Kernel("block_product", bindings, workgroups, self._body, self.rows, macs=products)

    @property
    def _workgroups(self) -> int:
        """How many share the tiles of a weight."""
        return -(-self.tiles.count // self.tiles_per_workgroup)

    def _body(self, memories: Sequence[Value], number: Value, rows: Extent) -> None:
        given = list(memories)
        weight = WeightReader.take(self.stored, given)
        activations, result = given[0], given[-1]
        first_table = 1 if self.of_floats else 2
        of_blocks, tables = given[1:first_table], given[first_table:-1]
        memory = _Memory(weight, activations, of_blocks, tables, result)
        batch, share = number, scalar(number)
        if self.batches > 1:
            batch = quotient(share, self._workgroups).value
            share = remainder(share, self._workgroups)
            rows = rows // self.batches if isinstance(rows, int) else self._rows_of_batch(rows)
        first = share * self.tiles_per_workgroup
        last = first + self.tiles_per_workgroup
        if self.tiles.count % self.tiles_per_workgroup:
            last = np.minimum(last, self.tiles.count)

        def of_all(tile: Value) -> Value:
            """The number of a tile among those of all weights."""
            if self.batches == 1:
                return tile
            return (scalar(batch) * self.tiles.count + scalar(tile)).value

        def of_tiles(together: int, body: Callable[[Sequence[Value]], None]) -> None:
            """Do something with so many tiles at a time, and with those that are left."""
            rest = last - remainder(last - first, together)
            loop(
                *(first.value, rest.value, together),
                lambda tile: body([_plus(tile, number) for number in range(together)]),
            )
            if self.tiles.count % together or self.tiles_per_workgroup % together:
                loop(rest.value, last.value, 1, lambda tile: body([tile]))

        def numbered(row: Value, count: int) -> list[Value]:
            """The numbers of some rows among those of all weights."""
            if self.batches > 1:
                before = scalar(batch) * (rows if isinstance(rows, int) else scalar(rows))
                row = (before + scalar(row)).value
            return [_plus(row, number) for number in range(count)]

        def of_rows(count: int, row: Value, tiles: Sequence[Sequence[Value]], ahead: int) -> None:
            numbers = numbered(row, count)
            rows_of = _FloatRows if self.of_floats else _Rows
            _write(
                [
                    rows_of(self, memory, [(of_all(tile), tile) for tile in each], numbers, ahead)
                    for each in tiles
                ]
            )

        def of_few(count: int, row: Value) -> None:
            ahead = self.target.prefetch_bytes_gemv
            of_tiles(
                self.target.tiles_per_gemv(count, self.tiles.vectors),
                lambda tiles: of_rows(count, row, [[tile] for tile in tiles], ahead),
            )

        def of_many(tiles: Sequence[Value]) -> None:
            whole = rows - rows % self.at_once if isinstance(rows, int) else self._whole(rows)
            ahead, first = self.target.prefetch_bytes_gemm, 0
            if panels is not None:
                first = panels.write([(of_all(tile), tile) for tile in tiles], whole, numbered)
            if not isinstance(rows, int) or first == 0:
                loop(
                    first,
                    whole,
                    self.at_once,
                    lambda row: of_rows(self.at_once, row, [tiles], ahead),
                )
            if isinstance(rows, int) and whole < rows:
                of_rows(rows - whole, constant_index(whole), [tiles], ahead)

        if isinstance(rows, int) and rows <= self.at_once:
            of_few(rows, constant_index(0))
            return
        panels = _Panels.of(self, memory, rows)
        of_tiles(self.tiles_of_many, of_many)
        if not isinstance(rows, int):
            loop(self._whole(rows), rows, 1, lambda row: of_few(1, row))

    @property
    def tiles_per_iteration(self) -> int:
        """How many tiles are multiplied with the same rows; with one, if rows are not known."""
        rows = 1 if self.rows is None else self.rows // self.batches
        if rows <= self.at_once:
            return self.target.tiles_per_gemv(rows, self.tiles.vectors)
        return self.tiles_of_many

    @property
    def tiles_of_many(self) -> int:
        """How many tiles many rows are multiplied with together."""
        if self.of_floats:
            return 1
        return self.target.tiles_per_gemm(self.at_once, self.tiles.vectors, self.stored.max_integer)

    def _rows_of_batch(self, rows: Value) -> Value:
        """How many of the rows each weight is multiplied with."""
        return quotient(scalar(rows), self.batches).value

    def _whole(self, rows: Value) -> Value:
        """How many rows there are in whole groups of `at_once`."""
        return (scalar(rows) - remainder(scalar(rows), self.at_once)).value


@dataclass(frozen=True)
class _Memory:
    """The memrefs of the kernel's bindings; `of_blocks` has scales and sums of integers.

    `tables` are what is read to finish sums.
    """

    weight: WeightReader
    activations: Value
    of_blocks: Sequence[Value]
    tables: Sequence[Value]
    result: Value


@dataclass(frozen=True)
class _Rows:
    """Some rows of the result, of the columns of tiles that use activations together.

    Attributes:
        product: what is computed.
        memory: of the kernel.
        together: of each tile its number, and that among those of its weight.
        rows: their numbers.
        ahead: bytes of the weight that are asked for before they are read; 0 for none.
    """

    product: BlockwiseGemm
    memory: _Memory
    together: Sequence[tuple[Value, Value]]
    rows: Sequence[Value]
    ahead: int

    @property
    def tiles(self) -> Tiles:
        return self.product.tiles

    @property
    def target(self) -> InstructionSet:
        return self.product.target

    @property
    def pairs(self) -> list[_Pair]:
        """Those of which there is a sum."""
        return [(row, part) for row in self.rows for part in range(self.parts)]

    @property
    def parts(self) -> int:
        """How many vectors of columns the tiles have."""
        return len(self.together) * self.tiles.vectors

    def place(self, part: int) -> tuple[Value, Value, int]:
        """The tile of a part, as in `together`, and the first of its columns there."""
        number, part = divmod(part, self.tiles.vectors)
        return *self.together[number], part * self.tiles.lanes

    def added(self, number: Value, reals: Sequence[Formula]) -> list[Formula]:
        """The sums, and those of a block or step."""
        is_long = self.tiles.block_size > self.tiles.k_per_step
        return (self._of_block if is_long else self._of_step)(self.pairs, number, reals)

    def store(self, reals: Sequence[Formula]) -> None:
        """Write the sums to the result."""
        tiles, result = self.tiles, self.memory.result
        for (row, part), real in zip(self.pairs, reals, strict=True):
            _, tile, start = self.place(part)
            column = scalar(tile) * tiles.nr + start
            if self.product.epilogue is not None:
                real = self.product.epilogue.emit(self.memory.tables, real, column)
            store_with_tail(real, result, [row], tiles.n, column, tiles.nr)

    def _of_step(
        self, pairs: Sequence[_Pair], step: Value, reals: Sequence[Formula]
    ) -> list[Formula]:
        """Add the blocks of a step, all of whose groups are written out."""
        tiles = self.tiles
        blocks, groups = self.product.stored.blocks_per_record, tiles.block_size // 4
        weight = self._steps(step, 0, step)
        found = list(reals)
        for number in range(blocks):
            block = BlockIndex(scalar(step), number)
            place = _plus(_times(step, blocks), number)
            own = range(number * groups, (number + 1) * groups)
            words = self._sums(pairs, block, place, weight, own)
            found = self._scaled(pairs, block, place, words, found)
        return found

    def _sums(
        self,
        pairs: Sequence[_Pair],
        block: BlockIndex,
        place: Value,
        weight: Sequence[Step],
        numbers: range,
    ) -> list[Formula]:
        """The sums of a block whose groups are these of a step."""
        if self.product.of_floats or not self.target.adds_initial_value_last:
            sums = [Accumulator(self._first(pair, block, place)) for pair in pairs]
            return self._groups(pairs, block, weight, numbers, sums)
        zero = Accumulator(Vectors(self.tiles.lanes).known(0, I32))
        words = self._groups(pairs, block, weight, numbers, [zero] * len(pairs))
        return [
            word + self._first(pair, block, place) for word, pair in zip(words, pairs, strict=True)
        ]

    def _of_block(
        self, pairs: Sequence[_Pair], turn: Value, reals: Sequence[Formula]
    ) -> list[Formula]:
        """Add a block of several steps."""
        tiles, block = self.tiles, BlockIndex(scalar(turn), 0)
        steps = self.product.stored.steps_per_record
        first = scalar(_times(turn, steps))

        def of_step(number: Value, *words: Formula) -> list[Formula]:
            weight = self._steps(turn, scalar(number), (first + scalar(number)).value)
            groups = range(tiles.k_per_step // 4)
            return self._groups(pairs, block, weight, groups, [Accumulator(w) for w in words])

        words = loop(0, steps, 1, of_step, [self._first(pair, block, turn) for pair in pairs])
        return self._scaled(pairs, block, turn, words, reals)

    def _steps(self, turn: Value, number: Formula | int, step: Value) -> list[Step]:
        """A step of each tile: of a turn, and of all.

        Sums with several tiles leave few registers: vectors of one plane are read again, and not
        kept, for their next groups (AVX2: 128 rows times integers of 4 bits take 2 to 3 % less).
        """
        memory, start = self.memory.weight.step(scalar(turn), number)
        is_kept = len(self.together) == 1 or len(self.tiles.plane_bits) > 1
        return [
            Step(
                *(memory, self.product.stored, self.target, tile, start, step),
                *(self.ahead, is_kept),
            )
            for tile, _ in self.together
        ]

    def _first(self, pair: _Pair, block: BlockIndex, place: Value) -> Formula:
        """What the zero points take from the sum of a block's products."""
        row, part = pair
        lanes, (tile, _, column) = self.tiles.lanes, self.place(part)
        if self.product.stored.zero_point == 0:
            return Vectors(lanes).known(0, I32)
        total = broadcast(self._total(row, place), lanes)
        zeros = self.memory.weight.zero_point(tile, block, column, lanes)
        return total if zeros is None else convert(zeros, I32) * total

    def _groups(
        self,
        pairs: Sequence[_Pair],
        block: BlockIndex,
        weight: Sequence[Step],
        numbers: range,
        sums: Sequence[Accumulator],
    ) -> list[Formula]:
        """Add the products of some groups of a step to the sums, which are i32 then."""
        tiles, target, totals = self.tiles, self.target, list(sums)
        first, greatest = (
            _times(weight[0].number, tiles.k_per_step // 4),
            self.product.stored.max_integer,
        )
        held_after = target.k_packs_per_barrier[len(tiles.plane_bits) - 1]
        for done, number in enumerate(numbers, 1):
            stored = self._group(weight, number)
            place, given = _plus(first, number), {}
            for index, (row, part) in enumerate(pairs):
                if row not in given:
                    group = load_element(self.memory.activations, [row, place])
                    given[row] = target.broadcast_k_pack(group, I8)
                totals[index] = target.add_dot(totals[index], stored[part], given[row], greatest)
            if done % held_after == 0:
                totals = [target.with_barrier(total) for total in totals]
        return [target.i32_of(total) for total in totals]

    def _group(self, weight: Sequence[Step], number: int) -> list[Formula]:
        """The integers of a group of a step, u8, of each part of the columns."""
        return [each.group(part, number) for each in weight for part in range(self.tiles.vectors)]

    def _scaled(
        self,
        pairs: Sequence[_Pair],
        block: BlockIndex,
        place: Value,
        words: Sequence[Formula],
        reals: Sequence[Formula],
    ) -> list[Formula]:
        """Add the sums of a block's integers, times its scales, to those of f32."""
        lanes, given = self.tiles.lanes, {}
        scales, offsets = self._scales(block), self._offsets(block)
        for row, _ in pairs:
            if row not in given:
                given[row] = self._scale(row, place)
        found = [
            self.target.fma(convert(word, F32) * scales[part], broadcast(given[row], lanes), real)
            for (row, part), word, real in zip(pairs, words, reals, strict=True)
        ]
        if not offsets:
            return found
        totals = {}
        for row, scale in given.items():
            total = convert(self._total(row, place), F32)
            totals[row] = broadcast(total * (1 / self.product.row_sum_factor) * scale, lanes)
        return [
            self.target.fma(offsets[part], totals[row], real)
            for (row, part), real in zip(pairs, found, strict=True)
        ]

    def _scale(self, row: Value, place: Value) -> Formula:
        """The scale of a block of a row of activations."""
        return bits_of(self._of_activations(row, place, 0), F32)

    def _total(self, row: Value, place: Value) -> Formula:
        """The sum of a block of a row of activations, times `row_sum_factor`."""
        return self._of_activations(row, place, 1)

    def _of_activations(self, row: Value, place: Value, which: int) -> Formula:
        """One of two words of a block of a row, as `QuantizeRows` writes them."""
        [of_blocks] = self.memory.of_blocks
        return load_element(of_blocks, [row, _plus(_times(place, 2), which)])

    def _scales(self, block: BlockIndex) -> list[Formula]:
        """Scales of a block, for each part of the columns."""
        places = map(self.place, range(self.parts))
        return [
            self.memory.weight.scale(tile, block, column, self.tiles.lanes)
            for tile, _, column in places
        ]

    def _offsets(self, block: BlockIndex) -> list[Formula]:
        """Offsets of a block in the same way, if there are such."""
        places = map(self.place, range(self.parts))
        found = [
            self.memory.weight.offset(tile, block, column, self.tiles.lanes)
            for tile, _, column in places
        ]
        return [each for each in found if each is not None]


@dataclass(frozen=True)
class _FloatRows(_Rows):
    """The same of activations that are floats.

    An integer ``q`` of 8 bits at most becomes a float as the bits of ``2**23 + q``, from which
    ``2**23`` and the zero point are subtracted at once, exactly.
    """

    def _first(self, pair: _Pair, block: BlockIndex, place: Value) -> Formula:
        return Vectors(self.tiles.lanes).known(0.0, F32)

    def _groups(
        self,
        pairs: Sequence[_Pair],
        block: BlockIndex,
        weight: Sequence[Step],
        numbers: range,
        sums: Sequence[Accumulator],
    ) -> list[Formula]:
        tiles, lanes, found = self.tiles, self.tiles.lanes, [each.i32 for each in sums]
        first = _times(weight[0].number, tiles.k_per_step)
        zeros = [self._zero(part, block) for part in range(self.parts)]
        offsets = self._offsets(block)
        scales = self._scales(block) if offsets else []
        for number in numbers:
            words = [bitcast(each, U32) for each in self._group(weight, number)]
            for place in range(4):
                reals = []
                for part, word in enumerate(words):
                    bits = ((word >> (8 * place)) & 255) | _BITS_OF_2_23
                    real = bitcast(bits, F32) - zeros[part]
                    if offsets:
                        real = self.target.fma(real, scales[part], offsets[part])
                    reals.append(real)
                position, given = _plus(first, number * 4 + place), {}
                for index, (row, part) in enumerate(pairs):
                    if row not in given:
                        element = load_element(self.memory.activations, [row, position])
                        given[row] = broadcast(element, lanes)
                    found[index] = self.target.fma(reals[part], given[row], found[index])
        return found

    def _zero(self, part: int, block: BlockIndex) -> Formula:
        """``2**23`` and the zero point."""
        lanes, zero = self.tiles.lanes, self.product.stored.zero_point
        tile, _, column = self.place(part)
        if zero is not None:
            return Vectors(lanes).known(float(2**23 + zero), F32)
        zeros = self.memory.weight.zero_point(tile, block, column, lanes)
        return convert(zeros, F32) + float(2**23)

    def _scaled(
        self,
        pairs: Sequence[_Pair],
        block: BlockIndex,
        place: Value,
        words: Sequence[Formula],
        reals: Sequence[Formula],
    ) -> list[Formula]:
        if self.product.stored.offset is not None:
            return [word + real for word, real in zip(words, reals, strict=True)]
        scales = self._scales(block)
        return [
            self.target.fma(word, scales[part], real)
            for (_, part), word, real in zip(pairs, words, reals, strict=True)
        ]


class _Panels:
    """Many rows, with panels of tiles that are unpacked for all of them.

    Some rows are multiplied with one panel after the other, their sums being in memory meanwhile.
    """

    def __init__(self, product: BlockwiseGemm, memory: _Memory) -> None:
        count, tiles = product.tiles_of_many, product.tiles
        self._product, self._memory = product, memory
        self._panel = Panel(product.stored, count, product.target)
        self._sums = scratch([_ROWS, count * tiles.nr], F32)

    @classmethod
    def of(cls, product: BlockwiseGemm, memory: _Memory, rows: Extent) -> _Panels | None:
        """None where rows are few, or floats, or there is nothing to unpack, or no room for it."""
        stored = product.stored
        is_few = isinstance(rows, int) and rows < _GROUPS * product.at_once
        is_plain = stored.tiles.bits == 8 and stored.codebook is None
        if is_few or is_plain or product.of_floats:
            return None
        return cls(product, memory) if Panel.fits(stored, product.tiles_of_many) else None

    def write(
        self,
        tiles: Sequence[tuple[Value, Value]],
        rows: Extent,
        numbered: Callable[[Value, int], list[Value]],
    ) -> Extent:
        """Compute the sums of tiles, and store them; return of how many rows: all, if it pays.

        Args:
            tiles: as of `_Rows`.
            rows: how many there are, whole groups of those that are computed together.
            numbered: gives the numbers of some rows from one on, among those of all weights.
        """
        last = rows
        if not isinstance(rows, int):
            pays = scalar(rows) >= _GROUPS * self._product.at_once
            chosen: Formula = np.where(pays, scalar(rows), scalar(constant_index(0)))
            last = chosen.value
        loop(0, last, _ROWS, lambda begin: self._write_some(tiles, begin, last, numbered))
        return last

    def _write_some(
        self,
        tiles: Sequence[tuple[Value, Value]],
        begin: Value,
        last: Extent,
        numbered: Callable[[Value, int], list[Value]],
    ) -> None:
        product, panel, at_once = self._product, self._panel, self._product.at_once
        lanes, turns = product.tiles.lanes, product.stored.records
        vectors = range(len(tiles) * product.tiles.vectors)
        end = scalar(begin) + _ROWS
        if not isinstance(last, int) or last % _ROWS:
            end = np.minimum(end, last if isinstance(last, int) else scalar(last))

        def kept(row: Value) -> list[tuple[Value, Value]]:
            """Where the sums of rows are."""
            first = scalar(row) - scalar(begin)
            places = [constant_index(vector * lanes) for vector in vectors]
            return [((first + each).value, place) for each in range(at_once) for place in places]

        def keep(row: Value, reals: Sequence[Formula]) -> None:
            for place, real in zip(kept(row), reals, strict=True):
                store(real, self._sums, place)

        def loaded(row: Value) -> list[Formula]:
            return [load(self._sums, place, lanes, F32) for place in kept(row)]

        def add_panel(turn: Value) -> None:
            start, stop = scalar(turn), scalar(turn) + panel.turns
            if turns % panel.turns:
                stop = np.minimum(stop, turns)
            weight = panel.unpack(self._memory.weight, [tile for tile, _ in tiles], start, stop)
            memory = replace(self._memory, weight=weight)
            unpacked = replace(product, stored=panel.stored)
            local = [(constant_index(place), tile) for place, (_, tile) in enumerate(tiles)]

            def add(row: Value) -> None:
                some = _Rows(unpacked, memory, local, numbered(row, at_once), 0)
                bounds = panel.number(start).value, panel.number(stop).value
                keep(row, loop(*bounds, 1, lambda at, *sums: some.added(at, sums), loaded(row)))

            loop(begin, end.value, at_once, add)

        def clear(row: Value) -> None:
            keep(row, [Vectors(lanes).known(0.0, F32)] * (at_once * len(vectors)))

        def finish(row: Value) -> None:
            _Rows(product, self._memory, tiles, numbered(row, at_once), 0).store(loaded(row))

        loop(begin, end.value, at_once, clear)
        loop(0, turns, panel.turns, add_panel)
        loop(begin, end.value, at_once, finish)


def _write(together: Sequence[_Rows]) -> None:
    """Compute the sums of tiles in one loop, and store them."""
    tiles, count = together[0].tiles, len(together[0].pairs)
    turns = together[0].product.stored.records

    def add(number: Value, *so_far: Formula) -> list[Formula]:
        found: list[Formula] = []
        for place, each in enumerate(together):
            found += each.added(number, so_far[place * count : (place + 1) * count])
        return found

    sums = [Vectors(tiles.lanes).known(0.0, F32)] * (count * len(together))
    found = loop(0, turns, 1, add, sums)
    for place, each in enumerate(together):
        each.store(found[place * count : (place + 1) * count])


_Pair = tuple[Value, int]
"""A row, and a part of a tile's columns."""


def _plus(position: Value, number: int) -> Value:
    return (scalar(position) + number).value if number else position


def _times(position: Value, number: int) -> Value:
    return (scalar(position) * number).value if number != 1 else position
