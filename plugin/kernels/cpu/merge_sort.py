"""Merge sort kernel: rows of one or several tensors in the order of a comparator.

    result = operand[order],  order[i] before order[i + 1], equal elements in their order

IREE 3.13 compares each element with each: 1,000 elements take 4.4 ms, and a row of more than 32 KiB
is refused. Here runs of 2, 4, 8, ... elements are merged, from one buffer into another. Elements
that the comparator reads, the keys, move with their positions; the others are read once, at their
positions, by the last merge. A merge has no branches, which processors would predict wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel, items_per_workgroup
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import load_element, loop, store_element, workgroup_range
from ...numerics.array_functions import convert
from ...numerics.element_types import I32, ElementType

_INT8_MACS_PER_MOVE = 512
"""int8 MACs that take about as long as moving an element in a merge."""


@dataclass(frozen=True)
class Comparator:
    """The order of elements.

    Attributes:
        keys: the numbers of the operands whose elements are compared.
        text: equal for equal comparators.
        is_before: emits the comparison of two elements, each a key of every operand of `keys`.
    """

    keys: tuple[int, ...]
    text: str
    is_before: Callable[[Sequence[ArrayLike], Sequence[ArrayLike]], ArrayLike] = field(
        compare=False
    )


@dataclass(frozen=True)
class MergeSort:
    """The sort of `rows` rows of `size` elements, at least 2.

    Attributes:
        elements: the types of the operands.
    """

    rows: int
    size: int
    elements: tuple[ElementType, ...]
    comparator: Comparator

    @property
    def scratch_elements(self) -> list[ElementType]:
        """The types of the buffers behind the results: two of each key and of the positions."""
        keys = [self.elements[number] for number in self.comparator.keys]
        return [*keys, I32] * 2

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the operands, the results and the buffers, flattened."""
        elements = [*self.elements, *self.elements, *self.scratch_elements]
        bindings = [Binding((self.rows * self.size,), element) for element in elements]
        macs = self.rows * self._macs_per_row
        return Kernel("merge_sort", bindings, self._workgroups, self._body, 0, macs=macs)

    @property
    def _merges(self) -> int:
        """The number of times that each element moves."""
        return (self.size - 1).bit_length()

    @property
    def _macs_per_row(self) -> int:
        return self.size * self._merges * _INT8_MACS_PER_MOVE

    @property
    def _workgroups(self) -> int:
        return -(-self.rows // items_per_workgroup(self.rows, self._macs_per_row))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        first, end = workgroup_range(scalar(workgroup), self._workgroups, self.rows)

        def sort_row(row: Value) -> None:
            for number in range(self._merges):
                _Merge(self, memories, scalar(row) * self.size, number).emit()

        loop(first.value, end.value, 1, sort_row)


@dataclass(frozen=True)
class _Runs:
    """Two sorted runs of a row: ``[first, middle)`` and ``[middle, last)``."""

    first: ArrayLike
    middle: ArrayLike
    last: ArrayLike


@dataclass(frozen=True)
class _Merge:
    """The merges of all pairs of runs of ``2**number`` elements of a row.

    Attributes:
        row: the position of the row's first element.
    """

    sort: MergeSort
    memories: Sequence[Value]
    row: ArrayLike
    number: int

    def emit(self) -> None:
        """Emit the loop over pairs of runs, two at a time."""
        length, end = 1 << self.number, constant_index(self.sort.size)

        def merge(index: Value) -> None:
            first = scalar(index)
            bounds = [np.minimum(first + n * length, scalar(end)) for n in range(5)]
            runs = [_Runs(*bounds[:3]), _Runs(*bounds[2:])]
            # Each pair waits for its last comparison, and a processor computes both meanwhile.
            shorter = (bounds[4] - bounds[2]).value
            starts = [bound for each in runs for bound in (each.first, each.middle)]
            ends = loop(0, shorter, 1, lambda *step: self._steps(runs, *step), starts)
            longer = (bounds[2] - bounds[0]).value
            loop(shorter, longer, 1, lambda *step: self._steps(runs[:1], *step), ends[:2])

        loop(0, end, 4 * length, merge)

    def _steps(self, runs: Sequence[_Runs], index: Value, *positions: ArrayLike) -> list[ArrayLike]:
        """Move one element of each pair of runs, and return the positions of the next ones.

        Every element moves once, for comparators that are no order, too: by ``<``, NaN has no
        place.
        """
        one, following = scalar(constant_index(1)), list[ArrayLike]()
        for number, each in enumerate(runs):
            left, right = positions[2 * number : 2 * number + 2]
            left_key, right_key = self._keys(self._inside(left)), self._keys(self._inside(right))
            is_before = self.sort.comparator.is_before(right_key, left_key)
            takes_right = (right < each.last) & ((left >= each.middle) | is_before)
            keys = [np.where(takes_right, *pair) for pair in zip(right_key, left_key, strict=True)]
            source = np.where(takes_right, right, left)
            self._move(keys, source, each.first + scalar(index))
            following.append(np.where(takes_right, left, left + one))
            following.append(np.where(takes_right, right + one, right))
        return following

    def _inside(self, position: ArrayLike) -> ArrayLike:
        """A position of the row, which may be read; a run that has ended has none."""
        return np.minimum(position, scalar(constant_index(self.sort.size - 1)))

    @property
    def _is_first(self) -> bool:
        return self.number == 0

    @property
    def _is_last(self) -> bool:
        return self.number == self.sort._merges - 1

    def _buffers(self, number: int) -> Sequence[Value]:
        """The buffers of keys and positions that a merge writes."""
        count = len(self.sort.comparator.keys) + 1
        start = 2 * len(self.sort.elements) + number % 2 * count
        return self.memories[start : start + count]

    def _keys(self, position: ArrayLike) -> list[ArrayLike]:
        """Load the keys of an element."""
        keys = self.sort.comparator.keys
        sources = (
            [self.memories[number] for number in keys]
            if self._is_first
            else self._buffers(self.number - 1)[:-1]
        )
        index = (self.row + position).value
        return [
            scalar(load_element(source, [index]).value, self.sort.elements[number])
            for number, source in zip(keys, sources, strict=True)
        ]

    def _move(self, keys: Sequence[ArrayLike], source: ArrayLike, target: ArrayLike) -> None:
        """Write an element with some keys to its place in the merged run."""
        sort, index = self.sort, (self.row + target).value
        if self._is_first:
            position = convert(source, I32)
        else:
            position = load_element(self._buffers(self.number - 1)[-1], [(self.row + source).value])
        if not self._is_last:
            for element, buffer in zip([*keys, position], self._buffers(self.number), strict=True):
                store_element(element, buffer, [index])
            return
        count = len(sort.elements)
        operands, results = self.memories[:count], self.memories[count : 2 * count]
        origin = None
        for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
            if number in sort.comparator.keys:
                element = keys[sort.comparator.keys.index(number)]
            else:
                if origin is None:
                    origin = self.row + convert(position, self.row.element)
                element = load_element(operand, [origin.value])
            store_element(element, result, [index])
