"""Reductions along axes, of every type: sums, products, extremes, norms.

Integers wrap, as they do in ONNX Runtime. f16 and bf16 are summed in f32. An empty axis gives the
neutral element: 0, 1, or the least or greatest value of the type.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert, divide_truncated
from ....numerics.element_types import F32, AnyArray, Array, ElementType
from ..call import Call, Operand, importer


def reduction_axes(call: Call, rank: int) -> list[int] | None:
    """Return the axes that a node reduces, from 0; None where it reduces nothing."""
    is_identity = bool(call.attribute("noop_with_empty_axes", 0))
    listed = [] if call.optional(1) is None else call.constant_list(1)
    if not listed and is_identity:
        return None
    return sorted({call.checked_axis(axis, rank) for axis in listed or range(rank)})


def _as_signed(value: AnyArray) -> tuple[AnyArray, Callable[[AnyArray], AnyArray]]:
    """Return integers in the same order as signed ones, and the function that converts back."""
    dtype = np.dtype(value.dtype)
    if dtype == np.bool_:
        return value.astype(np.int8), lambda signed: signed != 0
    if dtype.kind != "u":
        return value, lambda signed: signed
    signed = np.dtype(f"int{dtype.itemsize * 8}")
    flip = np.asarray(np.iinfo(signed).min, signed)
    return value.astype(signed) ^ flip, lambda reduced: (reduced ^ flip).astype(dtype)


def _extreme(name: str, value: AnyArray, axes: tuple[int, ...], keep: bool) -> AnyArray:
    if any(value.shape[axis] == 0 for axis in axes):
        return _neutral(name, value, axes, keep)
    signed, back = _as_signed(value)
    return back(getattr(signed, name)(axis=axes, keepdims=keep))


def _neutral(name: str, value: AnyArray, axes: tuple[int, ...], keep: bool) -> Array:
    """Return the result of a reduction of no elements."""
    dtype = np.dtype(value.dtype)
    if dtype == np.bool_:
        number: float | int = name == "min"
    elif dtype.kind in "iu":
        number = np.iinfo(dtype).min if name == "max" else np.iinfo(dtype).max
    else:
        number = -math.inf if name == "max" else math.inf
    shape = np.empty(value.shape, np.bool_).sum(axis=axes, keepdims=keep).shape
    return np.full(shape, number, dtype)


def greatest(value: AnyArray, axes: tuple[int, ...], keep: bool) -> AnyArray:
    """Return the greatest elements along axes; booleans and unsigned integers, too."""
    return _extreme("max", value, axes, keep)


_Reduction = Callable[[AnyArray, tuple[int, ...], bool], AnyArray]


def _sum(value: AnyArray, axes: tuple[int, ...], keep: bool) -> AnyArray:
    return value.sum(axis=axes, dtype=value.dtype, keepdims=keep)


def _mean(value: AnyArray, axes: tuple[int, ...], keep: bool) -> AnyArray:
    count = math.prod(value.shape[axis] for axis in axes)
    total = _sum(value, axes, keep)
    if np.dtype(value.dtype).kind in "iu":
        return divide_truncated(total, np.asarray(max(count, 1), value.dtype))
    return total / np.asarray(count, value.dtype)


def _log_sum_exp(value: AnyArray, axes: tuple[int, ...], keep: bool) -> AnyArray:
    """``log(sum(exp(x - m))) + m`` with the greatest finite ``m``: no overflow."""
    if not math.prod(value.shape[axis] for axis in axes):
        return np.log(_sum(np.exp(value), axes, keep))
    most = value.max(axis=axes, keepdims=True)
    zero = np.zeros((), value.dtype)
    is_finite = np.abs(most) < np.asarray(np.inf, value.dtype)
    offset = np.where(is_finite, most, zero)
    total = _sum(np.exp(value - offset), axes, True)
    logarithm = np.log(total) + offset
    return logarithm if keep else logarithm.reshape(
        [n for axis, n in enumerate(value.shape) if axis not in axes]
    )  # fmt: skip


_REDUCTIONS: dict[str, _Reduction] = {
    "ReduceL1": lambda x, axes, keep: _sum(np.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: np.sqrt(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: np.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": greatest,
    "ReduceMean": _mean,
    "ReduceMin": functools.partial(_extreme, "min"),
    "ReduceProd": lambda x, axes, keep: x.prod(axis=axes, dtype=x.dtype, keepdims=keep),
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}
_OF_FLOATS = frozenset(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"))
"""Reductions that compute floats of integers, and cut the result."""


@importer(*(name for name in _REDUCTIONS if name != "ReduceMean"))
def reduced(call: Call) -> Operand:
    """Sums, products, extremes and norms along axes.

    Operators: ReduceL1-18, ReduceL2-18, ReduceLogSum-28, ReduceLogSumExp-28, ReduceMax-20,
    ReduceMin-20, ReduceProd-18, ReduceSum-13, ReduceSumSquare-18.
    """
    operand, value = call.input(0), call.array(0)
    name, keep = call.node.operator, bool(call.attribute("keepdims", 1))
    axes = reduction_axes(call, value.ndim)
    if axes is None:
        axes = []
        if name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
            return Operand(operand.type, value)
    element = ElementType.of_dtype(np.dtype(value.dtype))
    wide = value
    if element.is_float and element.bits < 32 and name not in ("ReduceMax", "ReduceMin"):
        wide = convert(value, F32)
    elif element.is_integer and name in _OF_FLOATS:
        wide = convert(value, F32 if element.bits < 32 else ElementType.parse("f64"))
    if not axes:  # each element is reduced alone
        wide, axes = wide.reshape((*wide.shape, 1)), [wide.ndim]
        keep = False
    return Operand(operand.type, convert(_REDUCTIONS[name](wide, tuple(axes), keep), element))
