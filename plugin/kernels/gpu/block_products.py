"""Products of a GPU thread's rows and columns, block by block of K.

`FloatProducts` multiplies f32 activations by dequantized weights. `IntegerDots` multiplies int8
activations by integers, four at a time: ``VK_KHR_shader_integer_dot_product``, which each device
of Vulkan 1.3 has. Its sums are i32, and exact.

The weight's integers ``w`` are unsigned, of up to 8 bits. `IntegerDots` subtracts the zero point
from the sum of a block::

    sum_k x[k] * (w[k] - zero) = sum_k x[k] * w[k] - zero * sum_k x[k]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars
from ...emit.gpu_threads import byte_dot, byte_dots
from ...emit.vectors import Vectors, broadcast, constant_word, element_at, fma, load_element
from ...numerics.array_functions import bits_of, convert
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ...numerics.parameters import ExpressedType
from ..pack.packed_weight import Tiles
from .thread_weight import THREAD_N, BlockParameters, KPack, StepWords

_BITS_OF_2_23 = 0x4B000000
"""``2**23`` in f32, whose last bit is 1."""


@dataclass(frozen=True)
class BlockProducts(ABC):
    """Accumulators of a thread's rows and tiles, which are vectors of columns.

    Args:
        tiles: the layout of the weight.
        count: the number of tiles.
        rows: the rows of M.
        activations: their memref: vectors of four f32, or words of four bytes.
    """

    tiles: Tiles
    count: int
    rows: Sequence[ArrayLike]
    activations: Value

    @abstractmethod
    def initial(self, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Return the initial sums of a block."""

    @abstractmethod
    def add(
        self,
        words: StepWords,
        k_packs: Sequence[KPack],
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of some k-packs of a block."""

    @abstractmethod
    def finish(
        self,
        block: ArrayLike,
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Return the accumulators with the sums of a block."""

    def _load(self, words: StepWords, k_pack: KPack) -> list[ArrayLike]:
        """Load the four activations of a k-pack, of each row."""
        position = words.step * (self.tiles.k_per_step // 4) + k_pack.number(self.tiles)
        return [
            load_element(self.activations, [(row * (self.tiles.k // 4) + position).value])
            for row in self.rows
        ]


@dataclass(frozen=True)
class FloatProducts(BlockProducts):
    """Sums of f32 products, in one accumulator for all blocks.

    `cast` is from the integers to the expressed type.
    """

    cast: Cast

    def initial(self, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Return the accumulators."""
        return list(accumulators)

    def add(
        self,
        words: StepWords,
        k_packs: Sequence[KPack],
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add products, each rounded together with its addition."""
        totals = list(dots)
        loaded = [self._load(words, k_pack) for k_pack in k_packs]
        for tile in range(self.count):
            for k_pack, by_row in zip(k_packs, loaded, strict=True):
                for member in range(4):
                    weight = self._weight(words, k_pack, member, parameters, tile)
                    for row, activations in enumerate(by_row):
                        activation = broadcast(element_at(activations, member), THREAD_N)
                        index = row * self.count + tile
                        totals[index] = fma(activation, weight, totals[index])
        return totals

    def finish(
        self,
        block: ArrayLike,
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Return the sums."""
        return list(dots)

    def _weight(
        self, words: StepWords, k_pack: KPack, member: int, parameters: BlockParameters, tile: int
    ) -> ArrayLike:
        """Dequantize integers of a tile to f32."""
        integers, zero_point = words.integers(k_pack, member, tile), parameters.zero_points[tile]
        scale = parameters.scales[tile]
        offset = None if parameters.offsets is None else parameters.offsets[tile]
        if self.cast.expressed is not ExpressedType.F32:
            return convert(self.cast.dequantize(integers, scale, zero_point, offset), F32)
        # The same without a conversion of each integer: 2**23 plus an integer has its bits.
        zero = 2.0**23 + (zero_point if isinstance(zero_point, int) else convert(zero_point, F32))
        real = (bits_of(integers | _BITS_OF_2_23, F32) - zero) * convert(scale, F32)
        return real if offset is None else real + convert(offset, F32)


@dataclass(frozen=True)
class IntegerDots(BlockProducts):
    """Sums of int8 products of a block, i32, followed by the sums of each row's activations.

    `scales` is the memref of the activations' scales.
    """

    scales: Value

    def initial(self, accumulators: Sequence[ArrayLike]) -> list[ArrayLike]:
        """Return zeros."""
        dots = [Vectors(THREAD_N).known(0, I32)] * len(accumulators)
        return [*dots, *[Scalars().known(0, I32)] * len(self.rows)]

    def add(
        self,
        words: StepWords,
        k_packs: Sequence[KPack],
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add dot products of four activations and four integers."""
        totals, ones = list(dots), constant_word(0x01010101)
        for k_pack in k_packs:
            loaded = self._load(words, k_pack)
            for tile in range(self.count):
                packed = words.bytes(k_pack, tile)
                for row, activations in enumerate(loaded):
                    index = row * self.count + tile
                    totals[index] = totals[index] + byte_dots(activations, packed)
            for row, activations in enumerate(loaded, len(self.rows) * self.count):
                totals[row] = totals[row] + byte_dot(activations, ones)
        return totals

    def finish(
        self,
        block: ArrayLike,
        parameters: BlockParameters,
        dots: Sequence[ArrayLike],
        accumulators: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the sums of a block times scales, and the sums of activations times offsets."""
        blocks, totals = self.tiles.k // self.tiles.block_size, list(accumulators)
        for number, row in enumerate(self.rows):
            loaded = load_element(self.scales, [(row * blocks + block).value])
            row_scale = broadcast(loaded, THREAD_N)
            row_sum = broadcast(dots[len(accumulators) + number], THREAD_N)
            for tile in range(self.count):
                index = number * self.count + tile
                dot = dots[index] - row_sum * parameters.zero_points[tile]
                real = convert(dot, F32) * convert(parameters.scales[tile], F32)
                if parameters.offsets is not None:
                    real = real + convert(row_sum, F32) * convert(parameters.offsets[tile], F32)
                totals[index] = totals[index] + real * row_scale
        return totals
