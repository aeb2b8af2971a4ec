"""Meaning of StableHLO's operations, in one place for every analysis and kernel that needs it.

The tables serve these interpretations:

* **NumPy arrays and traced values**: `ELEMENTWISE`, `COMPARISONS` and `EVALUATED` hold functions
  that compute arrays from arrays, and write code for traced values (`subquant.emit.TracedValue`).
* **Data movement** of NumPy arrays: `MOVEMENT`.
* **Abstract domains**: `ABSTRACT` maps an operation to operators (``+ - * << >>``) and to methods
  ``maximum`` and ``minimum`` of a domain. Intervals (`subquant.kernels.epilogue.requant_analysis`)
  and affine functions of bytes (``narrow-byte-sums``) are domains.

Each user lists the operations that it supports; the tables say what these compute. The conformance
oracle (`subquant.conformance.semantics`) has its own definitions, so that the two can be compared.

Source: StableHLO specification (docs/spec.md at 3c9301c), "Semantics" of each operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.quant import is_quantized, parameters_of
from ..numerics.array_functions import convert, is_known, is_zero
from ..numerics.element_types import Array, ElementType
from .operation import element_of
from .real_functions import floor
from .values import ArrayLike

# -- elementwise operations ------------------------------------------------------------------------

ELEMENTWISE: dict[str, Callable[..., ArrayLike]] = {
    "stablehlo.abs": np.abs,
    "stablehlo.add": np.add,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.divide": np.divide,
    "stablehlo.exponential": np.exp,
    "stablehlo.floor": lambda x: floor(x, np.floor),
    "stablehlo.logistic": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.not": np.invert,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.round_nearest_even": np.rint,
    "stablehlo.select": np.where,
    "stablehlo.shift_left": np.left_shift,
    "stablehlo.shift_right_arithmetic": np.right_shift,
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
    "stablehlo.tanh": np.tanh,
    "stablehlo.xor": np.bitwise_xor,
}
"""Functions of the operands alone. Integers wrap; shift counts are less than the element's bits."""

COMPARISONS: dict[str, Callable[..., ArrayLike]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}
"""Functions of ``stablehlo.compare``, by comparison direction."""


def comparison_direction(op: Operation) -> str:
    """The direction of a ``stablehlo.compare``, a key of `COMPARISONS`."""
    return str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")


def storage_element(type_: ir.Type) -> ElementType | None:
    """The element type that stores a tensor; None for sub-channel quantization."""
    if not is_quantized(type_.element_type):
        return element_of(type_)
    parameters = parameters_of(type_)
    assert parameters is not None  # it is quantized
    return None if parameters.granularity == "sub-channel" else parameters.storage.element


# -- operations with attributes --------------------------------------------------------------------


def _select(op: Operation, condition: ArrayLike, yes: ArrayLike, no: ArrayLike) -> ArrayLike:
    if not is_known(condition) and is_known(yes) and is_known(no):
        # two numbers would take the element type of the operands that were compared
        yes = condition.form.known(yes, storage_element(op.results[0].type))
    return np.where(condition, yes, no)


def _shift_left(op: Operation, x: ArrayLike, count: ArrayLike) -> ArrayLike:
    is_overlong = _is_overlong(op, count)
    if is_zero(is_overlong):
        return np.left_shift(x, count)
    return np.where(is_overlong, 0, np.left_shift(x, np.where(is_overlong, 0, count)))


def _shift_right(op: Operation, x: ArrayLike, count: ArrayLike) -> ArrayLike:
    is_overlong, longest = _is_overlong(op, count), element_of(op.results[0].type).bits - 1
    signed = ElementType.parse(f"i{longest + 1}")
    x, count = (convert(each, signed) for each in (x, count))
    return np.right_shift(
        x, count if is_zero(is_overlong) else np.where(is_overlong, longest, count)
    )


def _is_overlong(op: Operation, count: ArrayLike) -> ArrayLike:
    """True for a shift by all bits or more, which StableHLO defines and a CPU does not."""
    return (count < 0) | (count >= element_of(op.results[0].type).bits)


def _saturate(op: Operation, x: ArrayLike) -> ArrayLike:
    low, high = (int(bound) for bound in op.attributes["range"])
    return convert(np.clip(x, low, high), element_of(op.results[0].type))


def _without_op(function: Callable[..., ArrayLike]) -> Callable[..., ArrayLike]:
    return lambda op, *operands: function(*operands)


EVALUATED: dict[str, Callable[..., ArrayLike]] = {
    **{name: _without_op(function) for name, function in ELEMENTWISE.items()},
    "stablehlo.compare": lambda op, *sides: COMPARISONS[comparison_direction(op)](*sides),
    "stablehlo.convert": lambda op, x: convert(x, element_of(op.results[0].type)),
    "stablehlo.select": _select,
    "stablehlo.shift_left": _shift_left,
    "stablehlo.shift_right_arithmetic": _shift_right,
    "quant.scast": lambda op, x: x,
    "subquant.saturate": _saturate,
    "subquant.scast": lambda op, x: x,
}
"""Functions of an operation and its operands, for every operation, type and shift count."""


# -- data movement ---------------------------------------------------------------------------------


def _slice(op: Operation, array: Array) -> Array:
    bounds = (op.attributes[name] for name in ("start_indices", "limit_indices", "strides"))
    return array[tuple(slice(*map(int, axis)) for axis in zip(*bounds, strict=True))]


MOVEMENT: dict[str, Callable[[Operation, Array], Array]] = {
    "stablehlo.optimization_barrier": lambda op, array: array,
    "stablehlo.reshape": lambda op, array: array.reshape(
        [int(size) for size in op.results[0].type.shape]
    ),
    "stablehlo.reverse": lambda op, array: np.flip(
        array, tuple(int(axis) for axis in op.attributes["dimensions"])
    ),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda op, array: array.transpose(
        [int(axis) for axis in op.attributes["permutation"]]
    ),
    "util.optimization_barrier": lambda op, array: array,
}
"""Functions of an operation and a NumPy array that move elements, or leave them."""


def broadcast_in_dim(op: Operation, array: Array) -> Array:
    """Return the result of ``broadcast_in_dim``: a view, which takes no memory."""
    shape = [int(size) for size in op.results[0].type.shape]
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    sizes = dict(zip(axes, array.shape, strict=True))
    spread = array.transpose(order).reshape([sizes.get(n, 1) for n in range(len(shape))])
    return np.broadcast_to(spread, shape)


def reshape_source(value: Value, *, through_whole_slices: bool = False) -> Value:
    """Return the value with the same elements in the same order, before all reshapes."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        is_whole_slice = (
            through_whole_slices
            and op.name == "stablehlo.slice"
            and op.operands[0].type == value.type
        )
        if op.name != "stablehlo.reshape" and not is_whole_slice:
            break
        value = op.operands[0]
    return value


# -- abstract domains ------------------------------------------------------------------------------

ABSTRACT: dict[str, Callable[..., Any]] = {
    "stablehlo.add": operator.add,
    "stablehlo.clamp": lambda low, x, high: x.maximum(low).minimum(high),
    "stablehlo.convert": lambda x: x,
    "stablehlo.maximum": lambda left, right: left.maximum(right),
    "stablehlo.minimum": lambda left, right: left.minimum(right),
    "stablehlo.multiply": operator.mul,
    "stablehlo.negate": operator.neg,
    "stablehlo.shift_left": operator.lshift,
    "stablehlo.shift_right_arithmetic": operator.rshift,
    "stablehlo.subtract": lambda left, right: left + -right,
}
"""Functions of elements of an abstract domain, for integers that do not wrap."""
