"""Arguments and results: what the user gives and sees, and the arrays that a program stores.

What an argument or result stands for comes from the function's recorded signature
(`subquant.signature`), so that quantized values can be given and taken as storage or as reals.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import InputError, SignatureError, UsageError
from ..numerics.casts import dequantize, quantize
from ..numerics.element_types import I64, Array, ElementType
from ..numerics.packed_integers import pack_planes
from ..signature import ValueType

__all__ = ["abi_element", "array_of_argument", "array_of_result", "element_type", "held"]


def array_of_argument(
    argument: npt.ArrayLike, type_: ValueType, where: str, quantized_io: bool
) -> Array:
    """Check an argument and return the array that the program stores for it.

    Raises:
        SignatureError: it does not fit its type.
    """
    array = _as_array(argument, type_, where, quantized_io)
    _check_shape(array, type_, where)
    parameters = type_.parameters
    if parameters is None:
        return _check_integers(array, type_, where)
    if quantized_io:
        try:
            return quantize(array, parameters)
        except UsageError as error:
            raise SignatureError(f"{where}: {error.message}") from None
    storage = parameters.storage
    if array.size and not (
        storage.minimum <= int(array.min()) and int(array.max()) <= storage.maximum
    ):
        raise SignatureError(
            f"{where} must have storage values in {storage.minimum}:{storage.maximum}, got "
            f"{int(array.min())}:{int(array.max())}"
        )
    return array.astype(storage.dtype)


def _as_array(argument: npt.ArrayLike, type_: ValueType, where: str, quantized_io: bool) -> Array:
    parameters = type_.parameters
    given = hasattr(argument, "dtype")
    try:
        array = np.asarray(argument)
    except ValueError:
        raise SignatureError(f"{where} is no rectangular array") from None
    real = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    integral = array.dtype.kind in "iu"
    if parameters is not None and quantized_io:
        if real or (integral and not given):
            return array.astype(parameters.expressed.dtype)
        raise SignatureError(
            f"{where} must be reals, to be quantized, got {array.dtype}; to give storage values, "
            "leave out quantized_io (--quantized-io)"
        )
    if parameters is not None:
        if integral:
            return array
        raise SignatureError(
            f"{where} must be storage values ({parameters.storage}), got {array.dtype}; to give "
            "reals, set quantized_io (--quantized-io)"
        )
    expected = element_type(type_.element).dtype
    if array.dtype == expected:
        return array
    if not given and (integral or (real and expected.kind != "i") or not array.size):
        if expected.kind in "iu" and array.size:
            return array  # checked against the width below
        with np.errstate(over="ignore"):
            return array.astype(expected)
    if integral and expected.kind in "iu" and not type_.element.startswith("u"):
        return array
    raise SignatureError(
        f"{where} must be of dtype {expected} ({type_.element}), got {array.dtype}; convert it "
        f"with astype"
    )


def _check_integers(array: Array, type_: ValueType, where: str) -> Array:
    """Check that integers fit their type (signed, or unsigned with the same bits)."""
    expected = element_type(type_.element).dtype
    if expected.kind not in "iu":
        return array
    match = re.search(r"\d+", type_.element)
    width = int(match.group()) if match else 64
    if array.size and width < 64:
        low, high = int(array.min()), int(array.max())
        if low < -(1 << (width - 1)) or high >= 1 << width:
            raise SignatureError(f"{where} must fit {type_.element}, got values {low}:{high}")
        bits = array.astype(np.int64) & ((1 << width) - 1)
        array = np.where(bits >> (width - 1), bits - (1 << width), bits)
    return array.astype(np.int64).astype(expected)


def _check_shape(array: Array, type_: ValueType, where: str) -> None:
    if type_.shape is None:
        return
    fits = array.ndim == len(type_.shape) and all(
        expected is None or expected == extent
        for extent, expected in zip(array.shape, type_.shape, strict=True)
    )
    if not fits:
        expected = "x".join("?" if n is None else str(n) for n in type_.shape) or "scalar"
        got = "x".join(str(n) for n in array.shape) or "scalar"
        raise SignatureError(f"{where} must have the shape {expected}, got {got}")


def element_type(element: str) -> ElementType:
    """Return the element type that MLIR's text names; an ``index`` is exchanged as ``i64``.

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
    """Return the element type of a type that a compiled function takes, as MLIR text."""
    match = _ABI_ELEMENT.fullmatch(abi)
    return match.group(1) if match else abi


def held(array: Array, type_: ValueType) -> Array:
    """Storage values as a program takes them: sign-extended in a container, or packed."""
    if type_.plane_bits is not None:
        planes = [plane.view(np.int8) for plane in pack_planes(array, type_.plane_bits)]
        return planes[0] if len(planes) == 1 else np.concatenate([p.reshape(-1) for p in planes])
    dtype = element_type(abi_element(type_.abi[0])).dtype
    parameters = type_.parameters
    if parameters is None or parameters.storage.signed:
        return array.astype(dtype)
    width = parameters.storage.width
    values = array.astype(np.int64)
    return np.where(values >> (width - 1), values - (1 << width), values).astype(dtype)


def array_of_result(array: Array, type_: ValueType, quantized_io: bool) -> Array:
    """Return what the user sees of an array that the program stores."""
    parameters = type_.parameters
    if parameters is None:
        unsigned = re.fullmatch(r"ui(\d+)", type_.element)
        if unsigned and int(unsigned.group(1)) < 64:  # narrow ones are held sign-extended
            array = array.astype(np.int64) & ((1 << int(unsigned.group(1))) - 1)
        return array.astype(element_type(type_.element).dtype, copy=False).reshape(array.shape)
    storage = parameters.storage
    if not storage.signed:
        array = array.astype(np.int64) & ((1 << storage.width) - 1)
    stored = array.astype(storage.dtype)
    return dequantize(stored, parameters) if quantized_io else stored
