"""Arguments and results: conversion between the arrays of the user and the arrays of a program.

The recorded signature of a function (`subquant.signature`) has the types of its arguments and
results. Quantized values are given and returned as storage values or as reals.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import InputError, SignatureError, UsageError, counted, quoted, shape_text
from ..numerics.casts import dequantize, is_masked, quantize
from ..numerics.element_types import I64, Array, DType, ElementType
from ..numerics.packed_integers import pack_planes, plane_shapes, unpack_planes, wrapped
from ..signature import ValueType

Conversion: TypeAlias = Callable[[ValueType, DType], str]
"""Returns advice on the conversion of an argument to a type and a dtype, in Python or a shell."""


_MAX_SHOWN_ARGUMENTS = 8
"""Arguments whose types an error lists, at most."""


def _with_astype(type_: ValueType, dtype: DType) -> str:
    return f"convert it with astype({str(dtype)!r})"


def check_arguments(
    arguments: Sequence[npt.ArrayLike],
    inputs: Sequence[ValueType],
    function: str,
    *,
    quantized_io: bool,
    conversion: Conversion,
) -> None:
    """Check the number, the dtypes and the shapes of the arguments of a call.

    Args:
        quantized_io: reals are given for quantized arguments.
        conversion: advice on an argument of another dtype.

    Raises:
        SignatureError: there are too many or too few arguments, or one does not fit its type.
    """
    for argument, type_, label in _arguments_of(arguments, inputs, function):
        array = _as_array(argument, type_, label, quantized_io, conversion)
        check_shape(array.shape, type_, label)


def storage_of_arguments(
    arguments: Sequence[npt.ArrayLike],
    inputs: Sequence[ValueType],
    function: str,
    *,
    quantized_io: bool,
) -> list[Array]:
    """Check the arguments of a call and return the arrays that the program stores for them."""
    return [
        storage_of_argument(argument, type_, label, quantized_io)
        for argument, type_, label in _arguments_of(arguments, inputs, function)
    ]


def check_count(arguments: Sequence[object], inputs: Sequence[object], function: str) -> None:
    """Raise SignatureError if the number of arguments is not that of the function."""
    if len(arguments) != len(inputs):
        types = [str(each) for each in inputs[:_MAX_SHOWN_ARGUMENTS]]
        rest = ["..."] if len(inputs) > _MAX_SHOWN_ARGUMENTS else []
        raise SignatureError(
            f"function '{function}' takes {counted(len(inputs), 'argument')}, got {len(arguments)}"
            + (f"; expected: {', '.join(types + rest)}" if types else "")
        )


def _arguments_of(
    arguments: Sequence[npt.ArrayLike], inputs: Sequence[ValueType], function: str
) -> list[tuple[npt.ArrayLike, ValueType, str]]:
    """Return each argument with its type and its label for errors."""
    check_count(arguments, inputs, function)
    return [
        (argument, type_, f"argument {number} of '{function}'")
        for number, (argument, type_) in enumerate(zip(arguments, inputs, strict=True))
    ]


def storage_of_argument(
    argument: npt.ArrayLike,
    type_: ValueType,
    label: str,
    quantized_io: bool,
) -> Array:
    """Check an argument and return the array that the program stores for it.

    An array needs the dtype of its type; integers may have any integer dtype. Numbers and lists of
    numbers are integers, for any type, or floats, for float types only.

    Raises:
        SignatureError: it does not fit its type.
    """
    array = _as_array(argument, type_, label, quantized_io, _with_astype)
    check_shape(array.shape, type_, label)
    parameters = type_.parameters
    if parameters is None:
        return _check_integers(array, type_, label)
    if quantized_io:
        try:
            return quantize(array, parameters)
        except UsageError as error:
            raise SignatureError(f"{label}: {error.message}") from None
    storage = parameters.storage
    all_fit = (array.dtype, storage.minimum, storage.maximum) == _all_values(storage.dtype)
    if array.size and not all_fit:
        low, high = int(array.min()), int(array.max())
        if low < storage.minimum or high > storage.maximum:
            raise SignatureError(
                f"{label} must have storage values in {storage.minimum}:{storage.maximum}, got "
                f"{low}:{high}"
            )
    return array.astype(storage.dtype, copy=False)


@functools.cache
def _all_values(dtype: DType) -> tuple[DType, int, int]:
    return dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


_NARROW = {
    np.dtype(narrow): np.dtype(byte_type)
    for narrow, byte_type in (
        (ml_dtypes.int2, np.int8),
        (ml_dtypes.int4, np.int8),
        (ml_dtypes.uint2, np.uint8),
        (ml_dtypes.uint4, np.uint8),
    )
}
"""JAX's narrow integer types, one byte each, and the types of NumPy for them."""


def _as_array(
    argument: npt.ArrayLike,
    type_: ValueType,
    label: str,
    quantized_io: bool,
    conversion: Conversion,
) -> Array:
    """Return an argument as an array of the dtype of its type, or of integers of any width.

    Raises:
        SignatureError: it has another dtype.
    """
    has_dtype = hasattr(argument, "dtype")
    if is_masked(argument):
        raise SignatureError(
            f"{label} is a masked array, and programs know no masks; fill it: x.filled(0)"
        )
    try:
        array = np.asarray(argument)
    except ValueError:
        raise SignatureError(f"{label} is no rectangular array") from None
    if array.dtype in _NARROW:
        array = array.astype(_NARROW[array.dtype])
    is_integral = _is_integral(array)
    is_empty = not has_dtype and not array.size  # NumPy makes an empty list an array of floats
    parameters = type_.parameters
    if parameters is not None and quantized_io:
        if _is_real(array) or (is_integral and not has_dtype):
            return array.astype(parameters.expressed.dtype)
        raise SignatureError(
            f"{label} must be reals, to be quantized, got {array.dtype}; to give storage values, "
            "leave out quantized_io (--quantized-io)"
        )
    if parameters is not None:
        if is_integral or is_empty:
            return array.astype(np.int64) if is_empty else array
        raise SignatureError(
            f"{label} must be storage values ({parameters.storage}), got {array.dtype}; to give "
            "reals, set quantized_io (--quantized-io)"
        )
    return _as_plain_array(array, type_, label, has_dtype, conversion)


def _as_plain_array(
    array: Array, type_: ValueType, label: str, has_dtype: bool, conversion: Conversion
) -> Array:
    """Return an argument of a type that is not quantized, as `_as_array`.

    Args:
        has_dtype: the argument was an array; else it was a number, or lists of numbers.
    """
    expected = element_type(type_.element).dtype
    if array.dtype == expected:
        return array
    if not has_dtype:
        numbers = _as_array_of_numbers(array, type_, label)
        if numbers is not None:
            return numbers
    elif _is_integral(array) and expected.kind in "iu" and not type_.element.startswith("u"):
        return array  # checked against the width below
    raise SignatureError(
        f"{label} must be of dtype {expected} ({type_.element}), got {array.dtype}; "
        f"{conversion(type_, expected)}"
    )


def _as_array_of_numbers(array: Array, type_: ValueType, label: str) -> Array | None:
    """Return numbers without a dtype as `_as_plain_array`; None if a float type has no such ones.

    Raises:
        SignatureError: they are no booleans or integers.
    """
    element, is_integral = element_type(type_.element), _is_integral(array)
    expected = element.dtype
    if not array.size:
        return array.astype(expected)
    if element.is_float:
        if not (is_integral or _is_real(array)):
            return None
        with np.errstate(over="ignore"):
            return array.astype(expected)
    if is_integral and expected.kind in "iu":
        return array  # checked against the width below
    if is_integral and expected.kind == "b" and ((array == 0) | (array == 1)).all():
        return array.astype(expected)
    kind = "booleans" if expected.kind == "b" else "integers of 64 bits or less"
    wrong_value = _first_of(array, lambda value: not (is_integral and value in (0, 1)))
    raise SignatureError(f"{label} must be {kind} ({type_.element}), got {wrong_value}")


def _is_real(array: Array) -> bool:
    """True for an array of floats."""
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def _is_integral(array: Array) -> bool:
    """True for an array of integers."""
    return array.dtype.kind in "iu"


def _first_of(array: Array, is_wrong: Callable[[Any], bool]) -> str:
    """Return the first invalid value of a list of numbers, for a message."""
    flat = array.reshape(-1)
    return quoted(str(next((value for value in flat if is_wrong(value)), flat[0])))[1:-1]


def _check_integers(array: Array, type_: ValueType, label: str) -> Array:
    """Refuse integers that do not fit their type (signed, or unsigned with the same bits)."""
    expected = element_type(type_.element).dtype
    if expected.kind not in "iu":
        return array
    match = re.search(r"\d+", type_.element)
    width = int(match.group()) if match else 64
    if width == 8 * expected.itemsize == 8 * array.dtype.itemsize:
        return array.view(expected)  # of one sign or the other
    if array.size and width < 64:
        low, high = int(array.min()), int(array.max())
        if low < -(1 << (width - 1)) or high >= 1 << width:
            raise SignatureError(f"{label} must fit {type_.element}, got values {low}:{high}")
        if high < 1 << (width - 1):
            return array.astype(expected, copy=False)
        array = wrapped(array.astype(np.int64), width)
    return array.astype(np.int64).astype(expected)


def check_shape(shape: tuple[int, ...], type_: ValueType, label: str) -> None:
    """Raise SignatureError if a shape does not match a type."""
    if type_.shape is None or shape == type_.shape:
        return
    fits = len(shape) == len(type_.shape) and all(
        expected is None or expected == size
        for size, expected in zip(shape, type_.shape, strict=True)
    )
    if not fits:
        raise SignatureError(
            f"{label} must have the shape {shape_text(type_.shape)}, got {shape_text(shape)}"
        )


def element_type(element: str) -> ElementType:
    """Return the element type of an MLIR type name; an ``index`` is exchanged as ``i64``.

    Raises:
        InputError: NumPy has no such type.
    """
    if element == "index":
        return I64
    try:
        return ElementType.of_mlir(element)
    except UsageError:
        raise InputError(f"values of type '{element}' cannot be exchanged with NumPy") from None


_ABI_ELEMENT = re.compile(r"tensor<(?:[0-9?]+x)*([a-z0-9]+)[^>]*>")


def abi_element(abi: str) -> str:
    """Return the element type of a parameter of a compiled function, as MLIR text."""
    match = _ABI_ELEMENT.fullmatch(abi)
    return match.group(1) if match else abi


def pack_storage(array: Array, type_: ValueType) -> Array:
    """Return storage values in a program's layout: sign-extended in a container, or bit-packed."""
    if type_.plane_bits is not None:
        planes = [plane.view(np.int8) for plane in pack_planes(array, type_.plane_bits)]
        return planes[0] if len(planes) == 1 else np.concatenate([p.reshape(-1) for p in planes])
    dtype = element_type(abi_element(type_.abi[0])).dtype
    parameters = type_.parameters
    if parameters is None or parameters.storage.signed:
        return array.astype(dtype, copy=False)
    width = parameters.storage.width
    if width == 8 * array.dtype.itemsize == 8 * dtype.itemsize:
        return array.view(dtype)
    return wrapped(array.astype(np.int64), width).astype(dtype)


def unpack_storage(array: Array, type_: ValueType) -> Array:
    """Return the storage values of a bit-packed array; the inverse of `pack_storage`."""
    bits, shape = type_.plane_bits, [size or 0 for size in type_.shape or ()]
    assert bits is not None
    shapes = plane_shapes(shape, bits) or []
    flat, planes = array.reshape(-1).view(np.uint8), []
    for plane_shape in shapes:
        size = math.prod(plane_shape)
        planes.append(flat[:size].reshape(plane_shape))
        flat = flat[size:]
    values = unpack_planes(planes[0], bits, *planes[1:])
    shift = np.int8(8 - sum(bits))
    return np.asarray(values).view(np.int8) << shift >> shift


def user_array_of_result(array: Array, type_: ValueType, quantized_io: bool) -> Array:
    """Return the array of the user for a result that the program stores."""
    parameters = type_.parameters
    if parameters is None:
        unsigned = re.fullmatch(r"ui(\d+)", type_.element)
        if unsigned:
            array = _unsigned(array, int(unsigned.group(1)))
        return array.astype(element_type(type_.element).dtype, copy=False).reshape(array.shape)
    storage = parameters.storage
    if not storage.signed:
        array = _unsigned(array, storage.width)
    stored = array.astype(storage.dtype, copy=False)
    return dequantize(stored, parameters) if quantized_io else stored


def _unsigned(array: Array, width: int) -> Array:
    """Return the numbers of integers of `width` bits without a sign, which are sign-extended."""
    size = array.dtype.itemsize
    if width == 8 * size:
        return array.view(f"u{size}")
    return np.asarray(array.astype(np.int64) & ((1 << width) - 1))
