"""Float operands in the type that importers compute in: f32, or f64 for f64 operands.

f16 and bf16 are computed in f32, and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import F32, F64, AnyArray, DType, ElementType
from ..call import Call


def element_type(call: Call, index: int) -> ElementType:
    """Return the element type of an input."""
    return ElementType.of_dtype(np.dtype(call.input(index).value.dtype))


def computing_type(call: Call) -> ElementType:
    """Return f64 if input 0 is f64, else f32."""
    return F64 if element_type(call, 0) == F64 else F32


def computing_dtype(dtype: DType) -> DType:
    """Return f64 for f64, else f32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def float_input(call: Call, index: int = 0, target: ElementType | None = None) -> AnyArray:
    """Return an input as f32, or as f64 if input 0 is f64."""
    return convert(call.array(index), target or computing_type(call))


def optional_float(call: Call, index: int, target: ElementType | None = None) -> AnyArray:
    """Return an input as `float_input` does, or None if it is absent."""
    return None if call.optional(index) is None else float_input(call, index, target)


def as_input_type(call: Call, index: int, value: AnyArray) -> AnyArray:
    """Convert a result to the type of an input."""
    return convert(value, element_type(call, index))


def number_like(number: float, value: AnyArray) -> AnyArray:
    """Return a number in the type of an array."""
    return np.asarray(number, value.dtype)


def along_axis(values: AnyArray, axis: int, rank: int) -> AnyArray:
    """Reshape a vector to a rank, with its elements along an axis, so that it broadcasts."""
    return values.reshape([-1 if each == axis else 1 for each in range(rank)])


def in_f32(function: Callable[..., AnyArray]) -> Callable[..., AnyArray]:
    """Return a function that computes f16 and bf16 in f32, and rounds the result."""

    def compute(*values: AnyArray) -> AnyArray:
        dtype = np.dtype(values[0].dtype)
        if dtype.itemsize > 2:
            return function(*values)
        result = function(*(convert(value, F32) for value in values))
        return convert(result, ElementType.of_dtype(dtype))

    return compute


def refuse_inputs(call: Call, *inputs: tuple[int, str]) -> None:
    """Raise UnsupportedError for inputs that are present, with their names in the specification."""
    for index, name in inputs:
        if call.optional(index) is not None:
            raise call.unsupported(f"has {call.input(index)} as {name}")
