"""Functions of two operands' elements, choices, and reductions, as LiteRT computes them.

Sources: LiteRT, ``maximum_minimum.cc``, ``comparisons.cc``, ``squared_difference.cc``, ``pow.cc``,
``floor_div.cc``, ``floor_mod.cc``, ``logical.cc``, ``select.cc``, ``add_n.cc``, ``reduce.cc``,
``arg_min_max.cc``, ``cumsum.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated, over_time
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ....numerics.ordering import cumulative
from ..arithmetic import requantization
from ..call import Call, Operand, kernel

__all__: list[str] = []


def _plain(call: Call) -> tuple[AnyArray, AnyArray]:
    """Two operands that are not quantized."""
    left, right = call.input(0), call.input(1)
    if left.tensor.quantization is not None and not left.is_float:
        raise call.error(f"of {left.tensor} with a scale is not lowered", UnsupportedError)
    return left.value, right.value


@kernel("MAXIMUM", "MINIMUM")
def extremum(call: Call) -> AnyArray:
    """Of storage values as they are: LiteRT takes scales for equal."""
    function = np.maximum if call.operator.name == "MAXIMUM" else np.minimum
    return function(call.input(0).value, call.input(1).value)


_COMPARISONS: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}


@kernel(*_COMPARISONS)
def compare(call: Call) -> AnyArray:
    """Quantized operands in units of ``2**-8``, each rounded.

    For the order of 16-bit operands LiteRT takes scales for equal. It scales by less than 1 alone.
    """
    left, right = call.input(0), call.input(1)
    function = _COMPARISONS[call.operator.name]
    if left.tensor.type == "INT16" and call.operator.name not in ("EQUAL", "NOT_EQUAL"):
        return function(left.value, right.value)
    if left.tensor.type == "BOOL":
        return function(convert(left.value, I32), convert(right.value, I32))
    if left.is_float or left.tensor.quantization is None:
        return function(left.value, right.value)
    scales = [np.float64(call.per_tensor(operand.tensor).scale) for operand in (left, right)]
    if max(scales) >= 1:
        raise call.error(
            f"has operands of the scales {scales[0]:g} and {scales[1]:g}, which LiteRT compares if "
            "both are below 1 alone",
            UnsupportedError,
        )
    x, y = (
        requantization.scaled(call.centered(operand) << 8, scale)
        for operand, scale in zip((left, right), scales, strict=True)
    )
    return function(x, y)


@kernel("SQUARED_DIFFERENCE")
def squared_difference(call: Call) -> AnyArray:
    """8-bit operands in units of twice the greater scale with 7 more bits."""
    left, right = call.input(0), call.input(1)
    if left.is_float or left.tensor.quantization is None:
        difference = left.value - right.value
        return difference * difference
    if left.tensor.type != "INT8":
        raise call.error(f"of {left.tensor.type} is not lowered", UnsupportedError)
    scales = [call.per_tensor(operand.tensor).scale for operand in (left, right)]
    twice = np.float64(np.float32(2) * max(scales))
    x, y = (
        requantization.scaled(call.centered(operand) << 7, np.float64(scale) / twice)
        for operand, scale in zip((left, right), scales, strict=True)
    )
    factor = twice * twice / (np.float64(1 << 14) * np.float64(call.per_tensor(call.output).scale))
    return call.stored(requantization.scaled((x - y) * (x - y), factor))


@kernel("POW")
def power(call: Call) -> AnyArray:
    """Of floats, and of integers whose result fits; LiteRT refuses exponents below 0."""
    x, y = _plain(call)
    if call.input(0).is_float:
        return np.power(x, y)
    # From 32 on, only the exponents of -1, 0 and 1 matter: as 30 or 31.
    exponent = np.where(y < 32, np.maximum(y, 0), (y & 1) + 30)
    result: AnyArray = np.where((exponent & 1) != 0, x, x.dtype.type(1))
    for bit in range(1, 5):
        x = x * x
        result = np.where((exponent >> bit & 1) != 0, result * x, result)
    return result


@kernel("ATAN2")
def arctangent(call: Call) -> AnyArray:
    """The angle of a point whose coordinates are inputs 1 and 0, of floats."""
    return np.arctan2(call.input(0).value, call.input(1).value)


@kernel("BITWISE_XOR")
def exclusive_or(call: Call) -> AnyArray:
    """Of the bits of integers, or of truth values."""
    x, y = _plain(call)
    return x ^ y


@kernel("RIGHT_SHIFT")
def shift_right(call: Call) -> AnyArray:
    """Of integers, by 0 to as many bits as leave one."""
    x, y = _plain(call)
    most = x.dtype.itemsize * 8 - 1
    return x >> np.minimum(np.maximum(y, 0), most)


@kernel("FLOOR_DIV")
def floor_divide(call: Call) -> AnyArray:
    """The quotient, rounded down."""
    x, y = _plain(call)
    if call.input(0).is_float:
        return np.floor(x / y)
    quotient = divide_truncated(np.where(y < 0, -x, x), np.abs(y))
    rest = x - quotient * y
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


@kernel("FLOOR_MOD")
def floor_modulo(call: Call) -> AnyArray:
    """What FLOOR_DIV leaves, of the sign of the divisor."""
    x, y = _plain(call)
    if call.input(0).is_float:
        rest = np.fmod(x, y)
    else:
        rest = x - divide_truncated(np.where(y < 0, -x, x), np.abs(y)) * y
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@kernel("LOGICAL_AND", "LOGICAL_OR")
def logical(call: Call) -> AnyArray:
    """Of truth values."""
    x, y = call.input(0).value, call.input(1).value
    return x & y if call.operator.name == "LOGICAL_AND" else x | y


@kernel("SELECT", "SELECT_V2")
def select(call: Call) -> AnyArray:
    """Choose elements; a condition of one axis of SELECT chooses along the first."""
    condition, yes, no = (call.input(index).value for index in range(3))
    if call.operator.name == "SELECT" and condition.ndim == 1 and yes.ndim > 1:
        condition = condition.reshape((-1, *(1,) * (yes.ndim - 1)))
    return np.where(condition, yes, no)


@kernel("ADD_N")
def add_n(call: Call) -> AnyArray:
    """A sum of many."""
    total = _plain(call)[0]
    for index in range(1, len(call.inputs)):
        total = total + call.input(index).value
    return total


# -- reductions -----------------------------------------------------------------------------------


def _axes(call: Call, operand: Operand) -> tuple[int, ...]:
    rank = len(operand.shape)
    return call.constant_axes(1, rank) if rank else ()


@kernel("SUM")
def sum_(call: Call) -> AnyArray:
    """Over the axes that input 1 names; integers with a scale are scaled once."""
    operand = call.input(0)
    axes, keep = _axes(call, operand), bool(call.options.keep_dims)
    kind = operand.value.dtype
    if operand.is_float or operand.tensor.quantization is None:
        return operand.value.sum(axis=axes, dtype=kind, keepdims=keep)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = convert(operand.value, I32).sum(axis=axes, dtype=np.int32, keepdims=keep)
    total = total - x.zero_point * math.prod(operand.shape[axis] for axis in axes)
    return call.stored(requantization.scaled(total, np.float64(x.scale) / np.float64(y.scale)))


@kernel("REDUCE_MAX", "REDUCE_MIN")
def reduce_extremum(call: Call) -> AnyArray:
    """Over the axes that input 1 names, of storage values as they are."""
    operand = call.input(0)
    value = operand.value
    if value.dtype.kind in "ub":
        value = convert(value, I32)
    options = {"axis": _axes(call, operand), "keepdims": bool(call.options.keep_dims)}
    greatest = value.max(**options) if call.operator.name == "REDUCE_MAX" else value.min(**options)
    return convert(greatest, ElementType.of_dtype(operand.value.dtype))


@kernel("REDUCE_PROD")
def reduce_product(call: Call) -> AnyArray:
    """Over the axes that input 1 names; storage is scaled after each factor.

    Of `n` factors, by ``scale / root`` with the `n`-th root of the scale of the result.
    """
    operand, keep = call.input(0), bool(call.options.keep_dims)
    axes = _axes(call, operand)
    if operand.tensor.quantization is None or operand.is_float:
        return operand.value.prod(axis=axes, dtype=operand.value.dtype, keepdims=keep)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if operand.tensor.type == "UINT8":
        raise call.error("of UINT8 is not lowered", UnsupportedError)
    kept = [axis for axis in range(len(operand.shape)) if axis not in axes]
    count = math.prod(operand.shape[axis] for axis in axes)
    if not count:
        raise call.error("multiplies no elements")
    shape = [operand.shape[axis] for axis in kept]
    columns = call.centered(operand).transpose(*axes, *kept).reshape((count, *shape))
    factor = np.float64(x.scale) / np.power(np.float64(y.scale), 1 / count)

    def scaled(product: AnyArray) -> AnyArray:
        return convert(requantization.scaled_wide(product, factor), I32)

    def step(product: AnyArray, column: AnyArray) -> list[AnyArray]:
        return [scaled(convert(product, I64) * convert(column, I64))]

    product = columns[0]
    if count > 1:
        (product,), _ = over_time(step, [product], [columns[1:]])
    if keep:
        shape = [1 if axis in axes else n for axis, n in enumerate(operand.shape)]
    return call.stored(scaled(convert(product, I64))).reshape(tuple(shape))


@kernel("REDUCE_ANY", "REDUCE_ALL")
def reduce_truth(call: Call) -> AnyArray:
    """Over the axes that input 1 names."""
    operand = call.input(0)
    options = {"axis": _axes(call, operand), "keepdims": bool(call.options.keep_dims)}
    values = convert(operand.value, I32)
    found = values.max(**options) if call.operator.name == "REDUCE_ANY" else values.min(**options)
    return found != 0


@kernel("ARG_MAX", "ARG_MIN")
def arg_extremum(call: Call) -> AnyArray:
    """The first position of the extremum along the axis that is input 1."""
    operand = call.input(0)
    call.check_type("output_type")
    axis = call.constant_axis(1, len(operand.shape))
    value = convert(operand.value, I32) if operand.value.dtype.kind in "ub" else operand.value
    is_max = call.operator.name == "ARG_MAX"
    best = value.max(axis=axis, keepdims=True) if is_max else value.min(axis=axis, keepdims=True)
    extent = operand.shape[axis]
    positions = np.arange(extent, dtype=np.int32).reshape(
        [-1 if a == axis else 1 for a in range(len(operand.shape))]
    )
    positions = np.broadcast_to(positions, operand.shape)
    first = np.where(value == best, positions, np.int32(extent - 1)).min(axis=axis)
    return convert(first, ElementType.parse(call.output.element))


@kernel("CUMSUM")
def cumulative_sum(call: Call) -> AnyArray:
    """Along the axis that is input 1: sums over 1, 2, 4 and so on elements."""
    options, value = call.options, call.input(0).value
    return cumulative(
        value,
        call.constant_axis(1, value.ndim),
        "add",
        is_exclusive=bool(options.exclusive),
        is_reversed=bool(options.reverse),
    )
