"""Floats as kernels of float operators compute with them: f32, or f64 where an operand is f64.

f16 and bf16 are computed in f32, and the result is rounded once.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import F32, F64, AnyArray, ElementType
from ..call import Call

__all__ = [
    "as_input_type",
    "computing_type",
    "element",
    "float_operand",
    "optional_float_operand",
    "refuse_inputs",
]


def element(call: Call, index: int) -> ElementType:
    """Return the element type of an input."""
    return ElementType.of_dtype(np.dtype(call.array(index).dtype))


def computing_type(call: Call, index: int = 0) -> ElementType:
    """Return the type in which a node computes whose operands have the type of an input."""
    return F64 if element(call, index) == F64 else F32


def float_operand(call: Call, index: int, target: ElementType | None = None) -> AnyArray:
    """Return an input as f32, or as f64 if input 0 is f64."""
    return convert(call.array(index), target or computing_type(call))


def optional_float_operand(call: Call, index: int, target: ElementType | None = None) -> AnyArray:
    """Return an input as `float_operand`, or None if it is absent."""
    return None if call.optional(index) is None else float_operand(call, index, target)


def as_input_type(call: Call, index: int, value: AnyArray) -> AnyArray:
    """Return a result as the type of an input."""
    return convert(value, element(call, index))


def refuse_inputs(call: Call, *inputs: tuple[int, str]) -> None:
    """Raise UnsupportedError for inputs that are present, with their names in the specification."""
    for index, name in inputs:
        if call.optional(index) is not None:
            raise call.error(f"has {call.input(index)} as {name}", UnsupportedError)
