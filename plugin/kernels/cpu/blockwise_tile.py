"""Register tiles of blockwise GEMMs: MR rows times some weight tiles, over one record of K.

With int8 activations an i32 accumulator has the dot product of a block, with an f32 accumulator
beside it for the sum over blocks (`BlockwiseTile`)::

    dot[m, n] = sum_k (weight[n, k] - zero[n, b]) * x[m, k]
    acc[m, n] += row_scale[m, b] * (scale[n, b] * dot[m, n] + offset[n, b] * sum_k x[m, k])

The zero point is part of the initial i32 accumulator: ``-zero[n, b] * sum_k x[m, k]``.

A weight of floats without scales has one sum over all of K (`FloatWeightTile`).

With f32 activations, integers of up to 8 bits become f32 in registers (`BlockwiseF32Tile`): ``q``
is the lowest byte of the bits of ``2**23 + q``, from which ``2**23 + zero`` is subtracted, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.vectors import Vectors, bitcast, broadcast, load_element, loop, store_with_tail
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I32, U32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import Accumulator, InstructionSet
from ..pack.packed_weight import PackedWeight, Tiles
from .activation_layout import ActivationLayout, BlockWord, index_plus
from .float_decoding import decode_floats
from .weight_reader import BlockColumns, BlockIndex, UnpackedStep, WeightReader

_BITS_OF_2_23 = 0x4B000000
"""The bits of ``2**23`` as f32: its lowest bit counts units.

A byte ``q`` or-ed into them gives ``2**23 + q``, from which `_zero` (``2**23`` and the zero point)
is subtracted: both must have one power of two.
"""

TileNumber: TypeAlias = tuple[Value, Value]
"""The number of a weight tile among those of all batches, and among those of its own."""
_Position: TypeAlias = tuple[Value, int]
"""The row and the vector of columns of an accumulator."""


@dataclass(frozen=True)
class BlockwiseOperands:
    """The memrefs of a blockwise GEMM.

    Attributes:
        weight: the reader of the weight, or of an unpacked panel.
        layout: the layout of int8 activations.
        activations: i32 k-packs, or ``M x K`` f32.
        activation_blocks: the words of each block of int8 activations; None for f32.
        result: ``M x N``.
    """

    weight: WeightReader
    layout: ActivationLayout
    activations: Value
    activation_blocks: Value | None
    tables: Sequence[Value]
    result: Value


@dataclass(frozen=True)
class BlockwiseTile:
    """A register tile with int8 activations.

    The weight's prefetch distance is `prefetch_bytes`; 0 for none.
    """

    PREFETCHES_FIELDS: ClassVar[bool] = False
    """True if the fields of a block of several steps are prefetched when it begins."""

    operands: BlockwiseOperands
    target: InstructionSet
    epilogue: FusedEpilogue | None
    tile_numbers: Sequence[TileNumber]
    rows: Sequence[Value]
    prefetch_bytes: int

    @property
    def weight(self) -> PackedWeight:
        """The layout of the weight."""
        return self.operands.weight.weight

    @property
    def tiles(self) -> Tiles:
        """The layout of the integers."""
        return self.weight.tiles

    @property
    def vectors(self) -> int:
        """NR of all weight tiles, in vectors."""
        return len(self.tile_numbers) * self.tiles.vectors

    @property
    def positions(self) -> list[_Position]:
        """The positions of the accumulators."""
        return [(row, vector) for row in self.rows for vector in range(self.vectors)]

    def _columns(self, vector: int, block: BlockIndex) -> BlockColumns:
        """The columns of a vector, in a block."""
        number, own = divmod(vector, self.tiles.vectors)
        lanes, (tile, _) = self.tiles.lanes, self.tile_numbers[number]
        return BlockColumns(tile, block, own * lanes, lanes)

    # -- K loop -----------------------------------------------------------------------------------

    def accumulate(self, record: Value, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Add the products of a record of K to the f32 accumulators."""
        if self.tiles.block_size > self.tiles.k_per_step:
            return self._accumulate_block(record, accumulators)
        return self._accumulate_step(record, accumulators)

    def _accumulate_step(self, step: Value, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Add the blocks of a step, unrolled."""
        blocks, tiles = self.weight.blocks_per_record, self.tiles
        k_packs = tiles.block_size // tiles.k_pack
        steps = self._unpacked_steps(step, 0, step)
        for number in range(blocks):
            block = BlockIndex(scalar(step), number)
            position = index_plus(_times(step, blocks), number)
            own = range(number * k_packs, (number + 1) * k_packs)
            dots = self._dot_products(block, position, steps, own)
            accumulators = self.add_scaled(block, position, dots, accumulators)
        return list(accumulators)

    def _accumulate_block(
        self, record: Value, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add a block of several steps, in a loop over the steps."""
        block, steps = BlockIndex(scalar(record), 0), self.weight.steps_per_record
        first = scalar(_times(record, steps))

        def add_step(number: Value, *dots: ArrayLike) -> list[ArrayLike]:
            step = (first + scalar(number)).value
            unpacked = self._unpacked_steps(record, scalar(number), step)
            k_packs = range(self.tiles.k_per_step // self.tiles.k_pack)
            return self._add_k_packs(block, unpacked, k_packs, [Accumulator(dot) for dot in dots])

        if self.PREFETCHES_FIELDS:
            for tile, _ in self.tile_numbers:
                self.operands.weight.prefetch_fields(tile, block.record)
        initial = [self._initial(each, block, record) for each in self.positions]
        dots = loop(0, steps, 1, add_step, initial)
        return self.add_scaled(block, record, dots, accumulators)

    def _unpacked_steps(
        self, record: Value, number: ArrayLike | int, step: Value
    ) -> list[UnpackedStep]:
        """A step of each weight tile, by its number in the record and in K.

        With several tiles few registers are free: the vectors of a single plane are loaded again
        for each k-pack (AVX2, 128 rows, int4: 2 to 3 % faster).
        """
        memory, start = self.operands.weight.step(scalar(record), number)
        reuses_loads = len(self.tile_numbers) == 1 or len(self.tiles.plane_bits) > 1
        return [
            UnpackedStep(
                *(memory, self.weight, self.target, tile, start, step),
                *(self.prefetch_bytes, reuses_loads),
            )
            for tile, _ in self.tile_numbers
        ]

    def _dot_products(
        self, block: BlockIndex, position: Value, steps: Sequence[UnpackedStep], k_packs: range
    ) -> list[ArrayLike]:
        """The dot products of a block, less zero points, i32."""
        if not self.target.adds_initial_value_last:
            initial = [Accumulator(self._initial(each, block, position)) for each in self.positions]
            return self._add_k_packs(block, steps, k_packs, initial)
        zero = Accumulator(Vectors(self.tiles.lanes).known(0, I32))
        dots = self._add_k_packs(block, steps, k_packs, [zero] * len(self.positions))
        return [
            dot + self._initial(each, block, position)
            for dot, each in zip(dots, self.positions, strict=True)
        ]

    def _initial(self, position: _Position, block: BlockIndex, block_number: Value) -> ArrayLike:
        """The initial accumulator of a block's dot product: minus the zero point times the sum."""
        (row, vector), lanes = position, self.tiles.lanes
        if self.weight.zero_point == 0:
            return Vectors(lanes).known(0, I32)
        row_sum = broadcast(self._activation_word(row, block_number, BlockWord.SUM), lanes)
        zero_points = self.operands.weight.zero_point(self._columns(vector, block))
        return row_sum if zero_points is None else convert(zero_points, I32) * row_sum

    def _add_k_packs(
        self,
        block: BlockIndex,
        steps: Sequence[UnpackedStep],
        k_packs: range,
        initial: Sequence[Accumulator],
    ) -> list[ArrayLike]:
        """Add k-packs of a step to accumulators, unrolled; return them as i32."""
        tiles, target, accumulators = self.tiles, self.target, list(initial)
        first = _times(steps[0].number, tiles.k_per_step // 4)
        barrier_interval = target.k_packs_per_barrier[len(tiles.plane_bits) - 1]
        for count, number in enumerate(k_packs, 1):
            weights, broadcasts = self._integers(steps, number), {}
            for index, (row, vector) in enumerate(self.positions):
                if row not in broadcasts:
                    position = self.operands.layout.integer_index(row, first, 4, number)
                    word = load_element(self.operands.activations, position)
                    broadcasts[row] = target.broadcast_k_pack(word, I8)
                accumulators[index] = target.add_dot(
                    accumulators[index], weights[vector], broadcasts[row], self.weight.max_integer
                )
            if count % barrier_interval == 0:
                accumulators = [target.with_barrier(each) for each in accumulators]
        return [target.i32_of(each) for each in accumulators]

    def _integers(self, steps: Sequence[UnpackedStep], k_pack: int) -> list[ArrayLike]:
        """The integers of a k-pack, u8, of each vector of columns."""
        return [
            step.k_pack(vector, k_pack) for step in steps for vector in range(self.tiles.vectors)
        ]

    # -- scales and offsets -----------------------------------------------------------------------

    def add_scaled(
        self,
        block: BlockIndex,
        block_number: Value,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add dot products times scales, and offsets times row sums, to the f32 accumulators."""
        lanes = self.tiles.lanes
        scales, offsets = self._scales(block), self._offsets(block)
        row_scales = self._row_scales(block_number)
        totals = [
            self.target.fma(
                self._scaled(dot, scales[vector]), broadcast(row_scales[row], lanes), accumulator
            )
            for (row, vector), dot, accumulator in zip(
                self.positions, dots, accumulators, strict=True
            )
        ]
        if not offsets:
            return totals
        row_sums = {
            row: broadcast(self._scaled_row_sum(row, block_number, scale), lanes)
            for row, scale in row_scales.items()
        }
        return [
            self.target.fma(offsets[vector], row_sums[row], accumulator)
            for (row, vector), accumulator in zip(self.positions, totals, strict=True)
        ]

    def _scaled(self, dot: ArrayLike, scale: ArrayLike) -> ArrayLike:
        """Dot products, i32, times scales, rounded to f32 once."""
        return convert(dot, F32) * scale

    def _row_scales(self, block_number: Value) -> dict[Value, ArrayLike]:
        """The scales of a block of each row, f32."""
        words = {r: self._activation_word(r, block_number, BlockWord.SCALE) for r in self.rows}
        return {row: bits_of(word, F32) for row, word in words.items()}

    def _scaled_row_sum(self, row: Value, block_number: Value, row_scale: ArrayLike) -> ArrayLike:
        """The sum of a block of a row, f32."""
        row_sum = convert(self._activation_word(row, block_number, BlockWord.SUM), F32)
        return row_sum * (1 / self.weight.row_sum_factor) * row_scale

    def _activation_word(self, row: Value, block_number: Value, word: BlockWord) -> ArrayLike:
        """A word of a block of a row."""
        memory = self.operands.activation_blocks
        assert memory is not None  # int8 activations have them
        return load_element(memory, self.operands.layout.word_index(row, block_number, word))

    def _scales(self, block: BlockIndex) -> list[ArrayLike]:
        """The scales of a block, for each vector of columns."""
        columns = [self._columns(vector, block) for vector in range(self.vectors)]
        return [self.operands.weight.scale(each) for each in columns]

    def _offsets(self, block: BlockIndex) -> list[ArrayLike]:
        """The offsets of a block, for each vector of columns; empty where there are none."""
        columns = [self._columns(vector, block) for vector in range(self.vectors)]
        offsets = [self.operands.weight.offset(each) for each in columns]
        return [each for each in offsets if each is not None]

    # -- store ------------------------------------------------------------------------------------

    def store(self, accumulators: Sequence[ArrayLike]) -> None:
        """Apply the epilogue to the f32 accumulators, and store them."""
        tiles, operands = self.tiles, self.operands
        for (row, vector), accumulator in zip(self.positions, accumulators, strict=True):
            column = self._first_column(vector)
            if self.epilogue is not None:
                accumulator = self.epilogue.emit(operands.tables, accumulator, column)
            store_with_tail(accumulator, operands.result, [row], tiles.n, column, tiles.nr)

    def _first_column(self, vector: int) -> ArrayLike:
        """The first column of a vector."""
        number, own = divmod(vector, self.tiles.vectors)
        _, tile = self.tile_numbers[number]
        return scalar(tile) * self.tiles.nr + own * self.tiles.lanes


@dataclass(frozen=True)
class BlockwiseF32Tile(BlockwiseTile):
    """A register tile with f32 activations.

    ``acc[m, n] += scale[n, b] * sum_k (weight[n, k] - zero[n, b]) * x[m, k]``; with offsets each
    weight is dequantized first: ``(weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b]``.

    Loads wait for the decoding of elements, so that the scales of a block are read late: they are
    prefetched. With int8 activations that gains nothing.
    """

    PREFETCHES_FIELDS: ClassVar[bool] = True

    def _dot_products(
        self, block: BlockIndex, position: Value, steps: Sequence[UnpackedStep], k_packs: range
    ) -> list[ArrayLike]:
        initial = [Accumulator(self._initial(each, block, position)) for each in self.positions]
        return self._add_k_packs(block, steps, k_packs, initial)

    def _initial(self, position: _Position, block: BlockIndex, block_number: Value) -> ArrayLike:
        return Vectors(self.tiles.lanes).known(0.0, F32)

    def _add_k_packs(
        self,
        block: BlockIndex,
        steps: Sequence[UnpackedStep],
        k_packs: range,
        initial: Sequence[Accumulator],
    ) -> list[ArrayLike]:
        lanes, accumulators = self.tiles.lanes, [each.i32 for each in initial]
        first = _times(steps[0].number, self.tiles.k_per_step)
        weights_of = self._dequantized(block)
        for number in k_packs:
            for member, weights in enumerate(weights_of(self._integers(steps, number))):
                position = number * self.tiles.k_pack + member
                k, broadcasts = index_plus(first, position), dict[Value, ArrayLike]()
                for index, (row, vector) in enumerate(self.positions):
                    if row not in broadcasts:
                        element = load_element(self.operands.activations, [row, k])
                        broadcasts[row] = broadcast(element, lanes)
                    accumulators[index] = self.target.fma(
                        weights[vector], broadcasts[row], accumulators[index]
                    )
            if self.weight.floats is not None:  # else LLVM decodes all of a step first, and spills
                barriers = [self.target.with_barrier(Accumulator(each)) for each in accumulators]
                accumulators = [each.i32 for each in barriers]
        return accumulators

    def _dequantized(
        self, block: BlockIndex
    ) -> Callable[[Sequence[ArrayLike]], Iterator[list[ArrayLike]]]:
        """Return a generator of a k-pack's weights as f32, before scales if there are no offsets.

        It yields the weights of each member of the k-pack, for each vector of columns.
        """
        floats = self.weight.floats
        if floats is not None:
            return lambda k_packs: iter(decode_floats(floats, self.target, k_packs))
        zeros = [self._zero(vector, block) for vector in range(self.vectors)]
        offsets = self._offsets(block)
        scales = self._scales(block) if offsets else []

        def of_integers(k_packs: Sequence[ArrayLike]) -> Iterator[list[ArrayLike]]:
            words = [bitcast(each, U32) for each in k_packs]
            for member in range(4):
                weights = []
                for vector, word in enumerate(words):
                    bits = ((word >> (8 * member)) & 255) | _BITS_OF_2_23
                    weight = bitcast(bits, F32) - zeros[vector]
                    if offsets:
                        weight = self.target.fma(weight, scales[vector], offsets[vector])
                    weights.append(weight)
                yield weights

        return of_integers

    def _zero(self, vector: int, block: BlockIndex) -> ArrayLike:
        """``2**23`` plus the zero point."""
        lanes, zero_point = self.tiles.lanes, self.weight.zero_point
        if zero_point is not None:
            return Vectors(lanes).known(float(2**23 + zero_point), F32)
        zero_points = self.operands.weight.zero_point(self._columns(vector, block))
        return convert(zero_points, F32) + float(2**23)

    def add_scaled(
        self,
        block: BlockIndex,
        block_number: Value,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add dot products times scales to the f32 accumulators."""
        if self.weight.offset is not None:  # scales are part of the weights
            return [dot + sum_ for dot, sum_ in zip(dots, accumulators, strict=True)]
        scales = self._scales(block)
        if self.weight.floats is not None and self.weight.floats.factor != 1:
            scales = [scale * np.float32(self.weight.floats.factor) for scale in scales]
        return [
            self.target.fma(dot, scales[vector], accumulator)
            for (_, vector), dot, accumulator in zip(
                self.positions, dots, accumulators, strict=True
            )
        ]


@dataclass(frozen=True)
class FloatWeightTile(BlockwiseF32Tile):
    """A register tile of a weight of floats without scales.

    Products are added to the accumulators in the order of K, each with one rounding where the
    target has FMA: ``acc[m, n] = fma(weight[n, k], x[m, k], acc[m, n])``.
    """

    def accumulate(self, record: Value, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Add the products of a record of K to the f32 accumulators."""
        steps = self._unpacked_steps(record, 0, record)
        k_packs = range(self.tiles.k_per_step // self.tiles.k_pack)
        block = BlockIndex(scalar(record), 0)
        return self._add_k_packs(block, steps, k_packs, [Accumulator(a) for a in accumulators])


def _times(index: Value, factor: int) -> Value:
    return (scalar(index) * factor).value if factor != 1 else index
