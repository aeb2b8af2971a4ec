"""Functions of one operand: rounding, exponentials, trigonometric and hyperbolic functions.

f16 and bf16 are computed in f32, and the result is rounded once.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import erf, tanh
from ....numerics.element_types import AnyArray
from ....numerics.exponentials import cosh, sinh
from ....numerics.trigonometry import arccosine, arcsine
from ..call import Call, Operand, importer
from .float_operands import in_f32, number_like


def _sign(value: AnyArray) -> AnyArray:
    """-1, 0 or 1; NaN for NaN."""
    one, zero = np.ones((), value.dtype), np.zeros((), value.dtype)
    positive = np.where(value > zero, one, zero)
    if np.dtype(value.dtype).kind == "u":
        return positive
    signs = np.where(value < zero, -one, positive)
    is_float = np.dtype(value.dtype).kind not in "iu"
    return np.where(value != value, value, signs) if is_float else signs


def _sinh(x: AnyArray) -> AnyArray:
    """The hyperbolic sine; in f64 ``(t + t / (t + 1)) / 2`` with ``t = exp(|x|) - 1``."""
    if x.dtype == np.float32:
        return sinh(x)
    one, half = number_like(1, x), number_like(0.5, x)
    t: AnyArray = np.expm1(np.abs(x))
    small = half * (t + t / (t + one))
    large = half * np.exp(np.abs(x))  # t / (t + 1) is NaN where t overflows
    magnitude = np.where(np.abs(x) < number_like(20, x), small, large)
    return np.where(x < number_like(0, x), -magnitude, magnitude)


def _cosh(x: AnyArray) -> AnyArray:
    if x.dtype == np.float32:
        return cosh(x)
    return number_like(0.5, x) * np.exp(x) + number_like(0.5, x) * np.exp(-x)


def _arcsinh(x: AnyArray) -> AnyArray:
    """``log1p(|x| + x**2 / (1 + sqrt(x**2 + 1)))``, with the sign of ``x``."""
    one = number_like(1, x)
    magnitude: AnyArray = np.abs(x)
    is_large = magnitude > number_like(1e9, x)
    inside: AnyArray = np.where(is_large, one, magnitude)
    square = inside * inside
    small = np.log1p(inside + square / (one + np.sqrt(square + one)))
    large = np.log(np.where(is_large, magnitude, one)) + number_like(math.log(2), x)
    result = np.where(is_large, large, small)
    return np.where(x < number_like(0, x), -result, result)


def _arccosh(x: AnyArray) -> AnyArray:
    """``log1p(t + sqrt(2 * t + t**2))`` of ``t = x - 1``."""
    t = x - number_like(1, x)
    is_large = t > number_like(1e9, x)
    inside = np.where(is_large, number_like(1, x), t)
    small = np.log1p(inside + np.sqrt(number_like(2, x) * inside + inside * inside))
    large = np.log(np.where(is_large, x, number_like(1, x))) + number_like(math.log(2), x)
    return np.where(is_large, large, small)


_FLOAT_FUNCTIONS: dict[str, Callable[[AnyArray], AnyArray]] = {
    "Acos": arccosine,
    "Acosh": _arccosh,
    "Asin": arcsine,
    "Asinh": _arcsinh,
    "Atan": lambda x: np.arctan2(x, np.broadcast_to(number_like(1, x), x.shape)),
    "Atanh": lambda x: number_like(0.5, x) * (np.log1p(x) - np.log1p(-x)),
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": _cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Reciprocal": lambda x: np.ones((), x.dtype) / x,
    "Round": np.rint,
    "Sin": np.sin,
    "Sinh": _sinh,
    "Sqrt": np.sqrt,
    "Tan": lambda x: np.sin(x) / np.cos(x),
    "Tanh": tanh,
}
_FUNCTIONS = {
    "Abs": lambda x: x if np.dtype(x.dtype).kind in "ub" else np.abs(x),
    "Sign": _sign,
    **{name: in_f32(each) for name, each in _FLOAT_FUNCTIONS.items()},
}


@importer(*_FUNCTIONS)
def function_of_one(call: Call) -> Operand:
    """Functions of each element.

    Operators: Abs-13, Acos-22, Acosh-22, Asin-22, Asinh-22, Atan-22, Atanh-22, Ceil-13, Cos-22,
    Cosh-22, Erf-13, Exp-13, Floor-13, Log-13, Reciprocal-13, Round-22, Sign-13, Sin-22,
    Sinh-22, Sqrt-13, Tan-22, Tanh-13.
    """
    value = call.array(0)
    if call.node.operator == "Erf" and np.dtype(value.dtype).kind in "iu":
        raise call.unsupported(f"of {call.input(0).type} is not lowered")
    return call.typed(_FUNCTIONS[call.node.operator](value))
