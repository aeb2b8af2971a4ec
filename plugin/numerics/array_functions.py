"""Functions for formulas over arrays, where NumPy's functions do not fit traced values.

Each takes NumPy arrays, or values of a program, which implement it: by a method of its name, or by
``__array_function__`` as for NumPy's functions.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec

import numpy as np
import numpy.typing as npt

from .element_types import F32, I32, AnyArray, ElementType

__all__ = [
    "Symbolic",
    "beside",
    "bits_of",
    "both",
    "choose",
    "concatenate",
    "contract",
    "convert",
    "convolve",
    "convolve_last",
    "dilate",
    "divide_truncated",
    "erf",
    "is_known",
    "is_zero",
    "lookup",
    "over_time",
    "pool",
    "put_slice",
    "repeat_while",
    "rounded_product",
    "scatter",
    "stack",
    "take",
    "take_slice",
    "tanh",
    "truncate",
    "unpack_bits",
    "unpack_nibbles",
]

_P = ParamSpec("_P")


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


def dispatched(function: Callable[_P, AnyArray]) -> Callable[_P, AnyArray]:
    """Let a value of a program among the arguments answer the call, as it answers NumPy's."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> AnyArray:
        for argument in args:
            if isinstance(argument, Symbolic):
                return argument.__array_function__(call, (type(argument),), args, kwargs)
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

    Args:
        value: numbers, an array, or a value of a program.
        element: the new element type. Floats become integers as `truncate` says.
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


def concatenate(arrays: Sequence[AnyArray], axis: int = -1) -> AnyArray:
    """Join arrays along an axis."""
    return np.concatenate(list(arrays), axis=axis)


def stack(arrays: Sequence[AnyArray], axis: int = -1) -> AnyArray:
    """Join arrays along a new axis."""
    return np.stack(list(arrays), axis=axis)


@dispatched
def contract(
    left: AnyArray,
    right: AnyArray,
    axes: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
    """Sum products over axes of both operands.

    Args:
        left, right: arrays; integers if `dtype` is.
        axes: the axes that are summed over, of each operand.
        batch: the axes that both have, of each operand; first in the result.
        dtype: what products are summed in. Integers must not overflow it; float sums are in any
            order.

    Returns:
        The batch axes, the other axes of `left`, and those of `right`.
    """
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * left.ndim, [""] * right.ndim]
    for group in (batch, axes):
        for x, y in zip(*group, strict=True):
            names[0][x] = names[1][y] = next(letters)
    shared = [names[0][x] for x in batch[0]]
    for side in names:
        side[:] = [name or next(letters) for name in side]
    summed = {names[0][x] for x in axes[0]}
    free = [n for side in names for n in side if n not in summed and n not in shared]
    subscripts = f"{''.join(names[0])},{''.join(names[1])}->{''.join([*shared, *free])}"
    return np.einsum(subscripts, left.astype(dtype), right.astype(dtype), optimize=True)


@dispatched
def convolve(
    images: AnyArray,
    kernels: AnyArray,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
    """Convolve images of any number of spatial dimensions, without padding.

    Args:
        images: ``[N, C, H, W]``, or with one, three or more spatial dimensions; integers if
            `dtype` is.
        kernels: ``[F, C / groups, KH, KW]``, with as many spatial dimensions.
        strides, dilations: one for each spatial dimension.
        groups: the number of groups of features; each reads as many channels.
        dtype: see `contract`.

    Returns:
        ``[N, F, OH, OW]``.
    """
    count, channels, *_ = images.shape
    features, per_group, *sizes = kernels.shape
    rank = len(sizes)
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(images, spans, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    windows = windows.reshape((count, groups, channels // groups, *windows.shape[2:]))
    filters = kernels.reshape((groups, features // groups, per_group, *sizes))
    outer, inner = "hwdxyz"[:rank], "ijklmo"[:rank]
    result = np.einsum(f"ngc{outer}{inner},gfc{inner}->ngf{outer}", windows.astype(dtype),
                       filters.astype(dtype), optimize=True)  # fmt: skip
    return result.reshape((count, features, *result.shape[3:]))


@dispatched
def dilate(array: AnyArray, steps: Sequence[int]) -> AnyArray:
    """Insert ``steps[axis] - 1`` zeros between each two elements along each axis."""
    shape = [max((n - 1) * step + 1, 0) for n, step in zip(array.shape, steps, strict=True)]
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(None, None, step) for step in steps)] = array
    return result


@dispatched
def convolve_last(
    images: AnyArray,
    kernels: AnyArray,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> AnyArray:
    """Convolve images with channels last: see `convolve`.

    Args:
        images: ``[N, H, W, C]``; integers if `dtype` is.
        kernels: ``[KH, KW, C / groups, F]``.
        strides, dilations, groups, dtype: see `convolve`.

    Returns:
        ``[N, OH, OW, F]``.
    """
    first = convolve(
        images.transpose(0, 3, 1, 2), kernels.transpose(3, 2, 0, 1), strides, dilations, groups,
        dtype,
    )  # fmt: skip
    return first.transpose(0, 2, 3, 1)


@dispatched
def pool(
    images: AnyArray,
    sizes: Sequence[int],
    strides: Sequence[int],
    function: str,
    axes: Sequence[int] = (1, 2),
) -> AnyArray:
    """Reduce windows of some axes, without padding.

    Args:
        images: floats or signed integers.
        sizes, strides: of the windows, one for each of `axes`.
        function: ``add`` or ``maximum``.
        axes: the spatial dimensions; by default those of ``[N, H, W, C]``.

    Returns:
        As many axes, of the dtype of `images`.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images, tuple(sizes), tuple(axes))
    steps = [slice(None)] * images.ndim
    for axis, step in zip(axes, strides, strict=True):
        steps[axis] = slice(None, None, step)
    windows = windows[tuple(steps)]
    reduction = {"add": np.add, "maximum": np.maximum}[function]
    last = tuple(range(-len(sizes), 0))
    return reduction.reduce(windows, axis=last, dtype=images.dtype)


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
def lookup(table: AnyArray, indices: AnyArray) -> AnyArray:
    """The entry of a table (an array of one axis) for each index."""
    return np.take(table, indices)


@dispatched
def put_slice(array: AnyArray, part: AnyArray, starts: AnyArray | Sequence[AnyArray]) -> AnyArray:
    """Return a copy of an array with a slice replaced.

    Args:
        array, part: arrays of one rank.
        starts: the offset of the slice along each axis, in range.
    """
    result = array.copy()
    result[tuple(slice(s, s + n) for s, n in zip(starts, part.shape, strict=True))] = part
    return result


@dispatched
def take_slice(
    array: AnyArray, starts: AnyArray | Sequence[AnyArray], sizes: Sequence[int]
) -> AnyArray:
    """Return a slice of an array.

    Args:
        array: an array of any rank.
        starts: the offset of the slice along each axis, in range.
        sizes: the sizes of the slice.
    """
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
def beside(value: AnyArray, array: AnyArray, element: ElementType | None = None) -> AnyArray:
    """Return an array as a constant of the program of `value`, or the array if `value` is one.

    Args:
        value: an array, or a value of a program.
        array: the array.
        element: the element type in a program; by default the dtype's.
    """
    return array


# -- loops -----------------------------------------------------------------------------------------


@dispatched
def choose(
    condition: AnyArray,
    yes: Callable[[], Sequence[AnyArray]],
    no: Callable[[], Sequence[AnyArray]],
) -> Sequence[AnyArray]:
    """Return the results of one of two functions; the other one is not computed.

    Args:
        condition: a scalar boolean.
        yes, no: functions with the same number, shapes and dtypes of results.
    """
    return list(yes() if condition else no())


def repeat_while(
    condition: Callable[..., AnyArray],
    body: Callable[..., Sequence[AnyArray]],
    values: Sequence[AnyArray],
) -> list[AnyArray]:
    """Replace values by the results of `body`, while `condition` of the values is true.

    In a program, `values` keep their shapes and dtypes.

    Args:
        condition: a function from the values to a scalar boolean.
        body: a function from the values to the next values.
        values: the initial values.
    """
    for value in values:
        if isinstance(value, Symbolic):
            results = value.__array_function__(
                repeat_while, (type(value),), (condition, body, values), {}
            )
            return list(results)
    while bool(condition(*values)):
        values = body(*values)
    return list(values)


def over_time(
    step: Callable[..., Sequence[AnyArray]],
    carried: Sequence[AnyArray],
    sequences: Sequence[AnyArray],
) -> tuple[list[AnyArray], AnyArray]:
    """Scan over the first axis of arrays.

    Args:
        step: a function from the loop-carried values and one slice of each array to the next
            loop-carried values, of the same shapes and dtypes.
        carried: the initial loop-carried values.
        sequences: arrays with one length, at least 1, of the first axis.

    Returns:
        The final loop-carried values, and the first one after each step, stacked along a new first
        axis.
    """
    for value in (*carried, *sequences):
        if isinstance(value, Symbolic):
            results = value.__array_function__(
                over_time, (type(value),), (step, carried, sequences), {}
            )
            return results  # type: ignore[no-any-return]
    results = []
    for slices in zip(*sequences, strict=True):
        carried = step(*carried, *slices)
        results.append(carried[0])
    return list(carried), np.stack(results)


def unpack_bits(packed: AnyArray, bits: int) -> AnyArray:
    """The values of 1, 2 or 4 bits in each byte of the last axis, the lowest first, as uint8."""
    count = 8 // bits
    values = stack([(packed >> (bits * index)) & (2**bits - 1) for index in range(count)])
    return values.reshape((*packed.shape[:-1], count * packed.shape[-1]))


def unpack_nibbles(packed: AnyArray) -> AnyArray:
    """Two 4-bit values for each byte of the last axis, the low one first, as uint8."""
    return unpack_bits(packed, 4)
