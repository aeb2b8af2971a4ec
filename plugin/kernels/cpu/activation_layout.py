"""Layout of int8 activations: the integers, and 32-bit words (scale, row sum) of each block.

Loops over rows read ``M x K`` integers, and the words of a row are consecutive. AMX loop nests read
16 rows of a panel of K, and one word of 16 rows, at once. For them panels are consecutive, and so
are the ``M`` words of one kind of a block.

Rows that are a power of two apart would share few sets of the L1 cache, so rows are padded to an
odd number of cache lines (``docs/performance/kernels.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.addresses import load_elements
from ...emit.amx import address, i64_of
from ...emit.kernel import Binding
from ...emit.linalg import constant_index
from ...emit.vectors import quotient, remainder
from ...numerics.element_types import F32, I8, I32, ElementType

_CACHE_LINE = 64
"""Bytes of a cache line."""


class BlockWord(IntEnum):
    """The words of a block of a row; there is a `SCALED_SUM` only where AMX multiplies offsets."""

    SCALE = 0
    """f32."""
    SUM = 1
    """i32: the sum of the integers, times `PackedWeight.row_sum_factor`."""
    SCALED_SUM = 2
    """f32: the sum of the integers, times the scale."""


@dataclass(frozen=True)
class ActivationLayout:
    """Layout of int8 activations ``M x K`` with scales for each `block_size` along K.

    Args:
        panel_k: K of a panel, which divides K and has whole blocks; None for rows of all of K. With
            panels, integers are ``K / panel_k x M x panel_k``, and words ``words x blocks x M``;
            without, both have a row of padded size for each of ``M``.
        words: the words of a block.
    """

    k: int
    block_size: int
    panel_k: int | None = None
    words: int = 2

    @property
    def blocks(self) -> int:
        """The blocks of a row."""
        return self.k // self.block_size

    def integers_shape(self, m: int | None) -> tuple[int | None, ...]:
        """The shape of the integers."""
        if self.panel_k is None:
            return (m, _padded(self.k, I8))
        return (self.k // self.panel_k, m, self.panel_k)

    def words_shape(self, m: int | None) -> tuple[int | None, ...]:
        """The shape of the words."""
        if self.panel_k is None:
            return (m, _padded(self.words * self.blocks, I32))
        return (self.words, self.blocks, m)

    def integers(self, element: ElementType) -> Binding:
        """The binding of the integers, as elements with one (i8) or four integers (i32)."""
        *outer, size = self.integers_shape(None)
        assert size is not None  # M is not the last axis
        return Binding((*outer, size * 8 // element.bits), element)

    @property
    def block_words(self) -> Binding:
        """The binding of the words."""
        return Binding(self.words_shape(None), I32)

    def integer_index(
        self, row: Value, position: Value, integers: int = 1, offset: int = 0
    ) -> list[Value]:
        """The index of an element of a row, in a binding of `integers`.

        Args:
            position: the number of the element along K.
            integers: the number of integers that an element has: 4 for a k-pack.
            offset: a constant that is added to the position, within its panel.
        """
        if self.panel_k is None:
            return [row, index_plus(position, offset)]
        if self.panel_k == self.k:
            return [constant_index(0), row, index_plus(position, offset)]
        size = self.panel_k // integers
        panel, own = quotient(scalar(position), size), remainder(scalar(position), size)
        return [panel.value, row, index_plus(own.value, offset)]

    def word_index(self, row: Value, block: Value, word: int) -> list[Value]:
        """The index of a word of a block of a row."""
        if self.panel_k is None:
            return [row, index_plus((scalar(block) * self.words).value, word)]
        return [constant_index(word), block, row]


@dataclass(frozen=True)
class RowWords:
    """Loads of the words of consecutive rows, where the layout has panels.

    Args:
        words: the memref of the words.
        m: M of all batches.
        first: the first row.
        count: the number of rows.
    """

    layout: ActivationLayout
    words: Value
    m: ArrayLike
    first: ArrayLike
    count: int

    def load(self, block: ArrayLike, word: BlockWord) -> list[ArrayLike]:
        """Load a word of a block of each row, f32."""
        number = (block + word * self.layout.blocks) * self.m + self.first
        start = address(self.words) + i64_of(number * (F32.bits // 8))
        return load_elements(start, self.count, F32)


def _padded(size: int, element: ElementType) -> int:
    """The least size of a row that has an odd number of whole cache lines."""
    per_line = _CACHE_LINE * 8 // element.bits
    return (-(-size // per_line) | 1) * per_line


def index_plus(index: Value, offset: int) -> Value:
    """An index plus a constant."""
    return (scalar(index) + offset).value if offset else index
