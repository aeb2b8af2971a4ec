"""Tensors with a data-dependent dimension size, as the results of NonZero.

NonZero has at most one result for each element, so a bound of the dimension size is known when the
program is written. A `BoundedTensor` is an array with the bound as the size of one axis, and the
number of valid rows along it. The rows after the valid ones are padding and hold any numbers. No
operator importer gets a `BoundedTensor`: `bounded_operators` decides which operators may compute on
the padding. XLA calls this a bounded dynamic dimension::

    value = [[0, 0, 0, 0], [1, 3, 0, 0]]    axis = 1    count = 2    (bound 4)
    result of the model: [[0, 0], [1, 3]]

Source: ONNX, NonZero 13, "data-dependent shapes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import Symbolic, convert, is_known, take
from ....numerics.element_types import I32, AnyArray, Array, DType, ElementType
from ....numerics.ordering import cumulative
from ....numerics.shapes import Shaped

DYNAMIC_SIZE_ADVICE = (
    "the number of its rows is known only when the program runs; make the tensor a result of the "
    "model and compute this after the call, or use a mask in place of NonZero"
)
"""Errors about operators that take no bounded tensor end with this text."""


BOUNDED_REFUSAL = f"takes a tensor with a data-dependent dimension size: {DYNAMIC_SIZE_ADVICE}"


class BoundedTensor(Shaped, Symbolic):
    """A tensor with a data-dependent dimension size; formulas over arrays refuse it.

    Args:
        value: an array, or integers and scales, with the bound as the size of `axis`.
        axis: the axis of the data-dependent size, from 0.
        count: the number of valid rows, i32 without axes, of the program; one object for all
            tensors with the same rows.
    """

    __slots__ = ("axis", "count", "value")

    def __init__(self, value: Any, axis: int, count: AnyArray) -> None:
        self.value = value
        self.axis = axis
        self.count = count

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimension sizes, with the bound for the data-dependent one."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        dtype: DType = np.dtype(self.value.dtype)
        return dtype

    def is_valid_row(self) -> AnyArray:
        """Return an array that is true on the valid rows, and broadcasts to the value."""
        return is_valid_row(self.shape, self.axis, self.count)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse a bounded tensor where an importer would read it as an array."""
        raise UnsupportedError(BOUNDED_REFUSAL)

    convert = bits_of = _refuse
    __array_function__ = __array__ = _refuse
    __array_ufunc__ = None


COUNT_CODE_LIMIT = -(1 << 50)
"""Codes of a `ShapeValue` below this number stand for counts."""


class ShapeValue(Symbolic):
    """A shape that is computed from counts, or a part of one: see `shape_values`.

    Args:
        array: the elements, INT64, of the program.
        codes: the constant elements, and a code for each count.
        counts: the count and its bound, by code.
    """

    __slots__ = ("array", "codes", "counts")

    def __init__(
        self, array: AnyArray, codes: Array, counts: Mapping[int, tuple[AnyArray, int]]
    ) -> None:
        self.array = array
        self.codes = codes
        self.counts = counts

    @staticmethod
    def of(array: AnyArray, codes: Array, counts: Mapping[int, tuple[AnyArray, int]]) -> Any:
        """Return a shape value, or an array if no count is among its elements."""
        return ShapeValue(array, codes, counts) if (codes < COUNT_CODE_LIMIT).any() else codes

    @staticmethod
    def of_shape(array: AnyArray, sizes: Sequence[int | None], tensor: BoundedTensor) -> Any:
        """Return dimension sizes of a bounded tensor, None for the data-dependent one."""
        code = COUNT_CODE_LIMIT - 1 - id(tensor.count)  # the count lives as long as this
        codes = np.array([code if n is None else n for n in sizes], np.int64)
        bound = tensor.shape[tensor.axis]
        return ShapeValue.of(array, codes, {code: (tensor.count, bound)})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.codes.shape)

    @property
    def dtype(self) -> DType:
        """INT64."""
        dtype: DType = self.codes.dtype
        return dtype

    def convert(self, element: ElementType) -> AnyArray:
        """Convert the array."""
        return convert(self.array, element)

    def bits_of(self, element: ElementType) -> AnyArray:
        """Return the bits of the array."""
        return self.array.bits_of(element)

    def __array_function__(self, *_: Any) -> NoReturn:
        """Refuse: formulas take the array."""
        raise UnsupportedError("takes a shape that is computed from a count")


def is_valid_row(shape: Sequence[int], axis: int, count: AnyArray) -> AnyArray:
    """Return an array that is true at the first `count` positions of an axis, and broadcasts."""
    positions = np.arange(shape[axis], dtype=np.int32)
    return positions.reshape([-1 if a == axis else 1 for a in range(len(shape))]) < count


def bounded(value: AnyArray, axis: int, count: AnyArray | None) -> Any:
    """Return a bounded tensor, or an array where the count is constant.

    `value` has the bound as the size of `axis`, from 0; `count` is None if all rows are valid.
    """
    if count is None:
        return value
    if is_known(count):
        return value[(slice(None),) * axis + (slice(0, int(count)),)]
    return BoundedTensor(value, axis, count)


def true_positions(mask: AnyArray) -> tuple[AnyArray, AnyArray | None]:
    """Return the positions of true elements of booleans, of one axis, in ascending order.

    In a program, position ``k`` is the first one with ``k + 1`` true elements up to it. A binary
    search in the cumulative sums finds the positions for all ``k`` at once.

    Returns:
        i32 positions, and their number. In a program they are as many as `mask` has elements, and 0
        after the number; otherwise the number is None, and there are no others.
    """
    if is_known(mask):
        return np.flatnonzero(mask).astype(np.int32), None
    size = mask.shape[0]
    ends = cumulative(convert(mask, I32), 0, "add", is_exclusive=False, is_reversed=False)
    count = ends[size - 1]
    order = np.arange(size, dtype=np.int32)
    positions: AnyArray = np.zeros(size, np.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        candidates = positions + np.int32(step)
        true_counts = take(ends, np.minimum(candidates, np.int32(size)) - np.int32(1), 0)
        is_before = (candidates <= np.int32(size)) & (true_counts <= order)
        positions = np.where(is_before, candidates, positions)
        step //= 2
    return np.where(order < count, positions, np.int32(0)), count
