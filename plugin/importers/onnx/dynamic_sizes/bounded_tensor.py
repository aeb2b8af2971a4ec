"""Tensors with an axis whose extent the program counts, as the results of NonZero.

The number of results is bounded when the program is written: NonZero has at most one for each
element. A `BoundedTensor` is an array of the bound's extent along one axis, and a count. The rows
after the count are padding and hold any numbers: a kernel never sees a `BoundedTensor`, and
`counted_operators` decides which operators may compute on the padding::

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

__all__ = [
    "COUNT_CODE_LIMIT",
    "DYNAMIC_SIZE_ADVICE",
    "BoundedTensor",
    "ShapeValue",
    "bounded",
    "is_row",
    "true_positions",
]

DYNAMIC_SIZE_ADVICE = (
    "the number of its rows is known only when the program runs; make the tensor a result of the "
    "model and compute this after the call, or use a mask in place of NonZero"
)
"""The end of a message about an operator that takes no tensor with a counted axis."""


class BoundedTensor(Symbolic):
    """A tensor with a counted axis; formulas over arrays refuse it.

    Args:
        value: an array, or a real as integers and scales, of the bound's extent along `axis`.
        axis: the counted axis, from 0.
        count: i32 without axes, of the program; one object for all tensors with the same rows.
    """

    __slots__ = ("axis", "count", "value")

    def __init__(self, value: Any, axis: int, count: AnyArray) -> None:
        self.value = value
        self.axis = axis
        self.count = count

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, with the bound for the counted axis."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        dtype: DType = np.dtype(self.value.dtype)
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def is_row(self) -> AnyArray:
        """Return an array that is true on the rows that count, and broadcasts to the value."""
        return is_row(self.shape, self.axis, self.count)

    def convert(self, element: ElementType) -> AnyArray:
        """Refuse: the padding must not reach a formula."""
        self._refuse()

    def bits_of(self, element: ElementType) -> AnyArray:
        """Refuse: the padding must not reach a formula."""
        self._refuse()

    def __array_function__(self, *_: Any) -> NoReturn:
        """Refuse: the padding must not reach a formula."""
        self._refuse()

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self._refuse()

    __array_ufunc__ = None

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(f"takes a tensor with a counted axis: {DYNAMIC_SIZE_ADVICE}")


COUNT_CODE_LIMIT = -(1 << 50)
"""The number below which a code of `ShapeValue` is that of a count."""


class ShapeValue(Symbolic):
    """A shape that is computed from counts, or a part of one: see `counted_extents`.

    Args:
        array: the elements, INT64, of the program.
        codes: the elements that are known, and a code for each count.
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
        """Return extents, or an array if no count is among them."""
        return ShapeValue(array, codes, counts) if (codes < COUNT_CODE_LIMIT).any() else codes

    @staticmethod
    def of_shape(array: AnyArray, extents: Sequence[int | None], own: BoundedTensor) -> Any:
        """Return the extents of a tensor with a counted axis, None for the count."""
        code = COUNT_CODE_LIMIT - 1 - id(own.count)  # the count lives as long as this
        codes = np.array([code if n is None else n for n in extents], np.int64)
        return ShapeValue.of(array, codes, {code: (own.count, own.shape[own.axis])})

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the array."""
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
        """The bits of the array."""
        return self.array.bits_of(element)

    def __array_function__(self, *_: Any) -> NoReturn:
        """Refuse: the array is what formulas take."""
        raise UnsupportedError("takes a shape that is computed from a count")


def is_row(shape: Sequence[int], axis: int, count: AnyArray) -> AnyArray:
    """Return an array that is true at the first `count` positions of an axis, and broadcasts."""
    positions = np.arange(shape[axis], dtype=np.int32)
    return positions.reshape([-1 if a == axis else 1 for a in range(len(shape))]) < count


def bounded(value: AnyArray, axis: int, count: AnyArray | None) -> Any:
    """Return a tensor with a counted axis, or an array where the count is known.

    Args:
        value: of the bound's extent along the axis.
        axis: from 0.
        count: None if all rows count.
    """
    if count is None:
        return value
    if is_known(count):
        return value[(slice(None),) * axis + (slice(0, int(count)),)]
    return BoundedTensor(value, axis, count)


def true_positions(mask: AnyArray) -> tuple[AnyArray, AnyArray | None]:
    """Return the positions of true elements in ascending order.

    In a program, position ``k`` is the first one with ``k + 1`` true elements up to it, which a
    binary search in the cumulative sums finds for all ``k`` at once.

    Args:
        mask: booleans, of one axis.

    Returns:
        i32 positions, and their number. In a program they are as many as `mask` has elements, and 0
        after the number; otherwise the number is None, and there are no others.
    """
    if is_known(mask):
        return np.flatnonzero(mask).astype(np.int32), None
    extent = mask.shape[0]
    ends = cumulative(convert(mask, I32), 0, "add", is_exclusive=False, is_reversed=False)
    count = ends[extent - 1]
    order = np.arange(extent, dtype=np.int32)
    positions: AnyArray = np.zeros(extent, np.int32)
    step = 1 << (extent.bit_length() - 1)
    while step:
        further = positions + np.int32(step)
        sums = take(ends, np.minimum(further, np.int32(extent)) - np.int32(1), 0)
        is_before = (further <= np.int32(extent)) & (sums <= order)
        positions = np.where(is_before, further, positions)
        step //= 2
    return np.where(order < count, positions, np.int32(0)), count
