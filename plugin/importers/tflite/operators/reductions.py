"""Importers of reductions, cumulative sums and order statistics.

Sources: LiteRT, ``reduce.cc``, ``reference/reduce.h``, ``arg_min_max.cc``, ``cumsum.cc``,
``topk_v2.cc``, ``bucketize.cc``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....numerics.array_functions import convert, divide_truncated, over_time
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ....numerics.ordering import cumulative, greatest_first, take_in_rows
from ..arithmetic.requantization import multiplier_and_exponent, rescale, rescale_by, rescale_int64
from ..call import Call, importer


def _axes_and_keepdims(call: Call) -> dict[str, Any]:
    rank = len(call.input(0).shape)
    axes = call.constant_axes(1, rank) if rank else ()
    return {"axis": axes, "keepdims": bool(call.options.keep_dims)}


@importer("SUM")
def sum_(call: Call) -> AnyArray:
    """Import SUM; quantized sums are rescaled once."""
    (operand,) = call.alike(0)
    reduction = _axes_and_keepdims(call)
    if not operand.is_quantized:
        return operand.value.sum(dtype=operand.value.dtype, **reduction)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = convert(operand.value, I32).sum(dtype=np.int32, **reduction)
    total = total - x.zero_point * math.prod(operand.shape[axis] for axis in reduction["axis"])
    return call.to_storage(rescale(total, np.float64(x.scale) / np.float64(y.scale)))


@importer("MEAN")
def mean(call: Call) -> AnyArray:
    """Import MEAN."""
    (operand,) = call.alike(0)
    reduction = _axes_and_keepdims(call)
    count = math.prod(operand.shape[axis] for axis in reduction["axis"])
    if operand.is_float:
        total = operand.value.astype(np.float32).sum(dtype=np.float32, **reduction)
        return total / np.float32(count)
    if operand.tensor.quantization is None:  # integers, divided toward zero
        element = ElementType.of_dtype(operand.value.dtype)
        total = convert(operand.value, I64).sum(dtype=np.int64, **reduction)
        return convert(divide_truncated(total, np.int64(max(count, 1))), element)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = convert(operand.value, I32).sum(dtype=np.int32, **reduction)
    if x.zero_point:
        total = total - x.zero_point * count
    multiplier, exponent = multiplier_and_exponent(np.float64(x.scale) / np.float64(y.scale))
    shift = min(count.bit_length() - 1, 32, 31 + int(exponent))
    reduced = (int(multiplier) << shift) // count
    return call.to_storage(rescale_by(total, reduced, int(exponent) - shift))


def _extremum(call: Call, **reduction: Any) -> AnyArray:
    """Return the extremum that an operator is named after; unsigned operands are widened."""
    value = call.input(0).value
    value = convert(value, I32) if value.dtype.kind in "ub" else value
    is_greatest = call.operator.name.endswith(("MAX", "ANY"))
    return (value.max if is_greatest else value.min)(**reduction)


@importer("REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL")
def reduce_extremum(call: Call) -> AnyArray:
    """Import REDUCE_MAX and REDUCE_MIN of storage, and REDUCE_ANY and REDUCE_ALL."""
    result = _extremum(call, **_axes_and_keepdims(call))
    return convert(result, ElementType.of_dtype(call.input(0).value.dtype))


@importer("REDUCE_PROD")
def reduce_product(call: Call) -> AnyArray:
    """Import REDUCE_PROD; storage is rescaled after each factor.

    With `n` factors, it is rescaled by ``scale / root``, the `n`-th root of the result's scale.
    """
    (operand,) = call.alike(0)
    reduction = _axes_and_keepdims(call)
    axes = reduction["axis"]
    if not operand.is_quantized:
        return operand.value.prod(dtype=operand.value.dtype, **reduction)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if operand.tensor.type == "UINT8":
        raise call.unsupported_type(operand)
    other_axes = [axis for axis in range(len(operand.shape)) if axis not in axes]
    count = math.prod(operand.shape[axis] for axis in axes)
    if not count:
        raise call.error("multiplies no elements")
    shape = [operand.shape[axis] for axis in other_axes]
    factors = call.centered(operand).transpose(*axes, *other_axes).reshape((count, *shape))
    ratio = np.float64(x.scale) / np.power(np.float64(y.scale), 1 / count)

    def rescaled(product: AnyArray) -> AnyArray:
        return convert(rescale_int64(product, ratio), I32)

    def step(product: AnyArray, factor: AnyArray) -> list[AnyArray]:
        return [rescaled(convert(product, I64) * convert(factor, I64))]

    product = factors[0]
    if count > 1:
        (product,), _ = over_time(step, [product], [factors[1:]])
    if reduction["keepdims"]:
        shape = [1 if axis in axes else n for axis, n in enumerate(operand.shape)]
    return call.to_storage(rescaled(convert(product, I64))).reshape(tuple(shape))


@importer("ARG_MAX", "ARG_MIN")
def arg_max_min(call: Call) -> AnyArray:
    """Import ARG_MAX and ARG_MIN: the first index of the extremum, along the axis in input 1."""
    operand = call.input(0)
    call.check_type("output_type")
    axis = call.constant_axis(1, len(operand.shape))
    value = convert(operand.value, I32) if operand.value.dtype.kind in "ub" else operand.value
    reduce = value.max if call.operator.name == "ARG_MAX" else value.min
    extremum = reduce(axis=axis, keepdims=True)
    size = operand.shape[axis]
    indices = np.arange(size, dtype=np.int32).reshape(
        [-1 if a == axis else 1 for a in range(len(operand.shape))]
    )
    indices = np.broadcast_to(indices, operand.shape)
    first = np.where(value == extremum, indices, np.int32(size - 1)).min(axis=axis)
    return convert(first, ElementType.parse(call.output.element))


@importer("CUMSUM")
def cumsum(call: Call) -> AnyArray:
    """Import CUMSUM along the axis in input 1: a prefix sum in log2(n) steps."""
    options, value = call.options, call.input(0).value
    axis, is_exclusive = call.constant_axis(1, value.ndim), bool(options.exclusive)
    return cumulative(
        value, axis, "add", is_exclusive=is_exclusive, is_reversed=bool(options.reverse)
    )


@importer("TOPK_V2")
def top_k(call: Call) -> list[AnyArray]:
    """Import TOPK_V2 along the last axis: values and indices; NaN is less than any number."""
    operand, count = call.input(0), int(call.constant_scalar(1))
    value, shape = operand.value, operand.shape
    index_type = call.dtype(call.operator.outputs[1])
    if not shape or not 0 <= count <= shape[-1]:
        raise call.error(f"takes the greatest {count} along the last axis of {list(shape)}")
    result_shape = (*shape[:-1], count)
    if not count or not math.prod(shape):
        return [np.zeros(result_shape, value.dtype), np.zeros(result_shape, index_type)]
    rows = value.reshape((-1, shape[-1]))
    keys = rows
    if operand.is_float:
        keys = np.where(rows == rows, rows, rows.dtype.type(-np.inf))
    elif rows.dtype.itemsize < 8:
        keys = convert(rows, I32 if rows.dtype != np.uint32 else I64)
    indices = greatest_first(keys, count)
    greatest = take_in_rows(rows, indices)
    indices = convert(indices, ElementType.of_dtype(index_type))
    return [greatest.reshape(result_shape), indices.reshape(result_shape)]


@importer("BUCKETIZE")
def bucketize(call: Call) -> AnyArray:
    """Import BUCKETIZE: the number of boundaries that are not greater than each element."""
    operand = call.input(0)
    boundaries = call.options.boundaries.astype(np.float32)
    if (np.diff(boundaries) < 0).any():
        raise call.error("has boundaries that are not sorted")
    value = operand.value if operand.is_float else operand.value.astype(np.float32)
    return convert(value[..., None] >= boundaries, I32).sum(axis=-1, dtype=np.int32)
