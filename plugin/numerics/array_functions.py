"""Functions for formulas over arrays, where NumPy's functions do not fit traced values.

Each takes NumPy arrays, or values of a program, which implement it: by a method of its name, or by
``__array_function__`` as for NumPy's functions.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from .element_types import F32, I32, AnyArray, DType, ElementType

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Symbolic:
    """A value that a program computes; `subquant.emit` says how."""

    # mypy asks for the abstract methods without ABC too. With it, isinstance takes 0.25 us in place
    # of 0.03, and formulas use it at each step.

    __slots__ = ()

    @abstractmethod
    def convert(self, element: ElementType) -> AnyArray:
        """Return the converted value: see the function `convert`."""

    @abstractmethod
    def bits_of(self, element: ElementType) -> AnyArray:
        """Return the bits: see the function `bits_of`."""

    @abstractmethod
    def __array_function__(
        self,
        function: Callable[..., AnyArray],
        types: Iterable[type],
        args: Sequence[AnyArray],
        options: Mapping[str, object],
    ) -> AnyArray:
        """Answer a function of arrays."""


def dispatched(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a value of a program among the arguments answer the call, as it answers NumPy's.

    The value may be in a list or tuple.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for argument in args:
            values = argument if isinstance(argument, (list, tuple)) else (argument,)
            for value in values:
                if isinstance(value, Symbolic):
                    answer = value.__array_function__(call, (type(value),), args, kwargs)
                    return answer  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return call


def is_known(value: AnyArray) -> bool:
    """True for a number or an array: a value that is known when a program is written."""
    return not isinstance(value, Symbolic)


def both(left: AnyArray, right: AnyArray) -> AnyArray:
    """Return the conjunction of two booleans; a constant true operand is left out."""
    for one, remaining in ((left, right), (right, left)):
        if is_known(one) and np.all(one):
            return remaining
    return left & right


def is_zero(value: AnyArray) -> bool:
    """True for a value that is known to be 0 everywhere."""
    if isinstance(value, (int, float)):  # np.any takes 3 us
        return value == 0
    return is_known(value) and not np.any(value)


def convert(value: AnyArray, element: ElementType) -> AnyArray:
    """Convert elements: integers are extended or cut, floats rounded to nearest even.

    Floats become integers as `truncate` says.
    """
    if isinstance(value, Symbolic):
        return value.convert(element)
    array = np.asarray(value)
    if element.is_integer and array.dtype.kind not in "biuO":
        return truncate(array, element)
    return array.astype(element.dtype)


def truncate(value: AnyArray, element: ElementType) -> AnyArray:
    """Convert floats to integers towards zero.

    Out of range, a program's result is the device's; NumPy saturates, and NaN becomes 0.
    """
    if isinstance(value, Symbolic):
        return value.convert(element)
    info = np.iinfo(element.dtype)
    wide = np.trunc(np.asarray(value).astype(np.float64))
    inside = np.clip(np.where(np.isnan(wide), 0.0, wide), info.min, info.max)
    return inside.astype(element.dtype)


def bits_of(value: AnyArray, element: ElementType) -> AnyArray:
    """The bits of elements, read as another type of the same width."""
    if isinstance(value, Symbolic):
        return value.bits_of(element)
    return np.asarray(value).view(element.dtype)


def bits_rounded_to_bf16(value: AnyArray) -> AnyArray:
    """Round f32 to the nearest bf16 (ties to even): i32, whose upper half has the bits of the bf16.

    The lower half is no part of the result. NaN may become other numbers.
    """
    bits = bits_of(value, I32)
    return bits + (((bits >> 16) & 1) + 0x7FFF)


def rounded_product(left: AnyArray, right: AnyArray) -> AnyArray:
    """Multiply f32, rounded before anything is added.

    A compiler may compute ``x * y + z`` with one rounding. In a program, the sign is put on the
    product of the magnitudes as a bit, which none takes for a product. NaN may have another sign.
    """
    if is_known(left) and is_known(right):
        return left * right
    signs = [bits_of(side, I32) for side in (left, right)]
    sign = (signs[0] ^ signs[1]) & np.int32(-(1 << 31))
    magnitude = np.abs(left) * np.abs(right)
    return bits_of(bits_of(magnitude, I32) | sign, F32)


def tanh(x: AnyArray) -> AnyArray:
    """Compute ``np.tanh`` of floats. In a program, that of f64 is written with ``expm1``.

    ``tanh |x| = -e / (e + 2)`` with ``e = expm1(-2 |x|)``: IREE has no f64 tanh. IREE's f64 expm1
    has an absolute error of a unit in the last place of 1.
    """
    if is_known(x) or x.dtype != np.float64:
        return np.tanh(x)
    less = np.expm1(np.float64(-2) * np.abs(x))
    magnitude = -less / (less + np.float64(2))
    return np.where(x < np.float64(0), -magnitude, magnitude)


# -- shapes and sums -------------------------------------------------------------------------------


@dispatched
def divide_truncated(dividend: AnyArray, divisor: AnyArray) -> AnyArray:
    """Divide integers towards zero, as C++ does; divisors are not 0."""
    quotient = dividend // divisor
    is_inexact = quotient * divisor != dividend
    has_other_sign = (np.asarray(dividend) < 0) != (np.asarray(divisor) < 0)
    return quotient + (is_inexact & has_other_sign).astype(np.asarray(quotient).dtype)


@dispatched
def erf(value: AnyArray) -> AnyArray:
    """The error function of floats.

    A program computes it in f32 by IREE's approximation, within 2 units in the last place; f64 has
    no translation.
    """
    array = np.asarray(value)
    results = np.array([math.erf(each) for each in array.reshape(-1).tolist()], array.dtype)
    return results.reshape(array.shape)


@dispatched
def take(array: AnyArray, indices: AnyArray, axis: int = 0) -> AnyArray:
    """Return ``np.take`` for indices in range."""
    return np.take(array, indices, axis=axis)


@dispatched
def put_slice(array: AnyArray, part: AnyArray, starts: AnyArray | Sequence[AnyArray]) -> AnyArray:
    """Return a copy of an array with a slice replaced, at offsets in range along each axis."""
    result = array.copy()
    result[tuple(slice(s, s + n) for s, n in zip(starts, part.shape, strict=True))] = part
    return result


@dispatched
def take_slice(
    array: AnyArray, starts: AnyArray | Sequence[AnyArray], sizes: Sequence[int]
) -> AnyArray:
    """Return a slice of an array, at offsets in range along each axis."""
    return array[tuple(slice(int(s), int(s) + n) for s, n in zip(starts, sizes, strict=True))]


@dispatched
def scatter(
    array: AnyArray, indices: AnyArray, updates: AnyArray, function: str = "add"
) -> AnyArray:
    """Return a copy of an array with updates combined into its rows.

    Args:
        array: at least one axis.
        indices: the row of each update, one axis, in range.
        updates: rows, along the first axis.
        function: ``add``, ``multiply``, ``maximum``, ``minimum``, or ``set``, which replaces the
            row; several updates of one row apply in any order.
    """
    result = array.copy()
    if function == "set":
        result[indices] = updates
    else:
        getattr(np, function).at(result, indices, updates)
    return result


@dispatched
def barrier(value: AnyArray) -> AnyArray:
    """Return the value. A program does not fuse its computation with that of its users."""
    return value


@dispatched
def beside(value: AnyArray, array: AnyArray, element: ElementType | None = None) -> AnyArray:
    """Return an array as a constant of the program of `value`, or the array if `value` is one.

    In a program it has the type `element`, by default that of the dtype.
    """
    return array


def filled(value: AnyArray, shape: Sequence[AnyArray], number: int, dtype: DType) -> AnyArray:
    """Return an array of equal elements; of the program of `value` if its shape is symbolic."""
    if all(isinstance(extent, int) for extent in shape):
        return np.full(tuple(shape), number, dtype)
    return np.broadcast_to(beside(value, np.full((), number, dtype)), tuple(shape))


# -- loops -----------------------------------------------------------------------------------------


@dispatched
def choose(
    condition: AnyArray,
    yes: Callable[[], Sequence[AnyArray]],
    no: Callable[[], Sequence[AnyArray]],
) -> Sequence[AnyArray]:
    """Compute one of two functions, whose results have equal types; the other is not run."""
    return list(yes() if condition else no())


@dispatched
def repeat_while(
    condition: Callable[..., AnyArray],
    body: Callable[..., Sequence[AnyArray]],
    values: Sequence[AnyArray],
) -> list[AnyArray]:
    """Replace values by the results of `body`, while `condition` of the values is true.

    In a program, `values` keep their shapes and dtypes.
    """
    while bool(condition(*values)):
        values = body(*values)
    return list(values)


@dispatched
def over_time(
    step: Callable[..., Sequence[AnyArray]],
    carried: Sequence[AnyArray],
    sequences: Sequence[AnyArray],
) -> tuple[list[AnyArray], AnyArray]:
    """Scan over the first axis of arrays.

    Args:
        step: a function from the loop-carried values and one slice of each array to the next
            loop-carried values, of the same shapes and dtypes.
        sequences: arrays with one length, at least 1, of the first axis.

    Returns:
        The final loop-carried values, and the first one after each step, stacked along a new first
        axis.
    """
    results = []
    for slices in zip(*sequences, strict=True):
        carried = step(*carried, *slices)
        results.append(carried[0])
    return list(carried), np.stack(results)


def unpack_bits(packed: AnyArray, bits: int) -> AnyArray:
    """The values of 1, 2 or 4 bits in each byte of the last axis, the lowest first, as uint8."""
    count = 8 // bits
    values = np.stack(
        [(packed >> (bits * index)) & (2**bits - 1) for index in range(count)], axis=-1
    )
    return values.reshape((*packed.shape[:-1], count * packed.shape[-1]))


def rounded_by_addition(x: AnyArray) -> AnyArray:
    """Round f32 half to even, as ``np.rint``, by additions, where a target has no instruction.

    The unit in the last place of ``2**23 + a`` is 1 for ``0 <= a < 2**23``, so the addition rounds
    ``a`` half to even, and subtracting ``2**23`` is exact. Greater magnitudes, infinities and NaN
    are integers or stay as they are. The sign bit is the operand's: -0.25 becomes -0.

    The magnitude stands between a product and the addition: LLVM would fuse ``x * y + 2**23`` into
    one operation, which does not round the product.
    """
    magnitude, integral = np.abs(x), float(1 << 23)
    rounded = (magnitude + integral) - integral
    rounded = np.where(magnitude < integral, rounded, magnitude)
    return bits_of(bits_of(rounded, I32) | (bits_of(x, I32) & -(1 << 31)), F32)
