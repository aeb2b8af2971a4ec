"""Importers that gather, scatter and combine elements by their indices.

Constant indices out of range are refused. Elements at computed ones are dropped by scatters, and
gathers return others; LiteRT refuses them at run time.

Sources: LiteRT, ``gather.cc``, ``gather_nd.cc``, ``embedding_lookup.cc``, ``one_hot.cc``,
``scatter_nd.cc``, ``segment_sum.cc``, ``unsorted_segment.cc``, ``sparse_to_dense.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, scatter, take
from ....numerics.element_types import F32, I32, AnyArray, ElementType
from ..call import Call, importer
from ..operand import Operand


def _check_constant(call: Call, indices: Operand, sizes: Sequence[int]) -> None:
    """Refuse constant indices out of range; their last axis has one for each of several sizes."""
    if not indices.is_constant:
        return
    values = np.asarray(indices.value)
    is_outside = (values < 0) | (values >= np.array(sizes, np.int64))
    if is_outside.any():
        raise call.error(
            f"has the index {values[is_outside][0]} in {indices}, out of range for {list(sizes)}"
        )


@importer("GATHER")
def gather(call: Call) -> AnyArray:
    """Import GATHER along an axis; the first `batch_dims` axes of both inputs correspond."""
    operand, indices = call.input(0), call.input(1)
    rank = len(operand.shape)
    axis = call.checked_axis(getattr(call.options, "axis", 0), rank)
    batch = getattr(call.options, "batch_dims", 0)
    batch += len(indices.shape) if batch < 0 else 0
    _check_constant(call, indices, operand.shape[axis : axis + 1])
    index = convert(indices.value, I32)
    if not batch:
        return take(operand.value, index, axis)
    shape, batch_shape = operand.shape, operand.shape[:batch]
    if (
        not 0 < batch <= min(rank, len(indices.shape))
        or axis < batch
        or indices.shape[:batch] != batch_shape
    ):
        raise call.error(f"has {batch} axes of a batch in {list(shape)} and {indices.shape}")
    # The batch and the axis become one axis, and indices count from the start of their batch.
    count, size = math.prod(batch_shape), shape[axis]
    between, after = shape[batch:axis], shape[axis + 1 :]
    order = (*range(batch), axis, *range(batch, axis), *range(axis + 1, rank))
    flat = operand.value.transpose(*order).reshape((count * size, *between, *after))
    index_shape = indices.shape[batch:]
    starts = np.arange(count, dtype=np.int32).reshape((-1, *(1,) * len(index_shape))) * size
    result = take(flat, index.reshape((count, *index_shape)) + starts, 0)
    result = result.reshape((*batch_shape, *index_shape, *between, *after))
    middle = batch + len(index_shape)
    return result.transpose(
        *range(batch),
        *range(middle, middle + len(between)),
        *range(batch, middle),
        *range(middle + len(between), len(result.shape)),
    )


@importer("GATHER_ND")
def gather_nd(call: Call) -> AnyArray:
    """Import GATHER_ND: the last axis of input 1 has an index for each of the first axes."""
    operand, indices = call.input(0), call.input(1)
    depth, shape = indices.shape[-1], operand.shape
    if depth > len(shape):
        raise call.error(f"has indices of {depth} numbers in {len(shape)} dimensions")
    _check_constant(call, indices, shape[:depth])
    strides = [math.prod(shape[n + 1 : depth]) for n in range(depth)]
    products = convert(indices.value, I32) * np.array(strides, np.int32)
    linear = products.sum(axis=-1, dtype=np.int32)
    rows = operand.value.reshape((math.prod(shape[:depth]), *shape[depth:]))
    return take(rows, linear, 0)


@importer("EMBEDDING_LOOKUP")
def embedding_lookup(call: Call) -> AnyArray:
    """Import EMBEDDING_LOOKUP: rows of input 1, dequantized if the result is float."""
    indices, table = convert(call.input(0).value, I32), call.input(1)
    _check_constant(call, call.input(0), table.shape[:1])
    rows = take(table.value, indices, 0)
    if not call.output.is_float:
        return rows
    element = ElementType.parse(call.output.element)
    if table.is_float:
        return convert(rows, element)
    parameters = call.parameters(table.tensor)
    if parameters.axis not in (None, 0) or parameters.zero_points.any():
        raise call.error(f"needs scales of the rows of {table.tensor}", UnsupportedError)
    floats = convert(rows, F32)
    if parameters.axis is None and not parameters.block_size:
        return convert(floats * parameters.scale, element)
    scales = take(parameters.scales, indices, 0)
    if not parameters.block_size:
        return convert(floats * scales.reshape((-1, *(1,) * (floats.ndim - 1))), element)
    blocks = floats.reshape((*scales.shape, parameters.block_size)) * scales[..., None]
    return convert(blocks.reshape(floats.shape), element)


@importer("ONE_HOT")
def one_hot(call: Call) -> AnyArray:
    """Import ONE_HOT: input 2 at the indices, input 3 elsewhere, along an axis of size input 1."""
    indices, depth = call.input(0), int(call.constant_scalar(1))
    rank = len(indices.shape)
    if not -1 <= call.options.axis <= rank:
        raise call.error(f"has the axis {call.options.axis} for {list(indices.shape)}")
    axis = call.options.axis % (rank + 1)
    index = convert(indices.value, I32)
    index = index.reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
    candidates = np.arange(depth, dtype=np.int32).reshape((-1, *(1,) * (rank - axis)))
    on, off = (call.input(number).value.reshape(()) for number in (2, 3))
    return np.where(index == candidates, on, off)


_IDENTITIES = {"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


def _combine_rows(
    call: Call, updates: AnyArray, rows: AnyArray, count: int, function: str = "add"
) -> AnyArray:
    """Combine updates by their rows; those out of range go to an extra row, which is dropped."""
    kind = updates.dtype
    wide = updates if kind.kind == "f" or kind.itemsize >= 4 else convert(updates, I32)
    if kind == np.uint32:
        raise call.error("does not support operands of type UINT32", UnsupportedError)
    info: Any = np.finfo(wide.dtype) if kind.kind == "f" else np.iinfo(wide.dtype)
    identity = max(info.min, min(info.max, _IDENTITIES[function]))
    initial = np.full((count + 1, *updates.shape[1:]), identity, wide.dtype)
    bounded = convert(np.where((rows >= 0) & (rows < count), rows, rows.dtype.type(count)), I32)
    result = scatter(initial, bounded, wide, function)[:count]
    return convert(result, ElementType.of_dtype(kind))


def _linear_indices(indices: AnyArray, shape: Sequence[int]) -> AnyArray:
    """Return linear indices of multidimensional ones ``[..., rank]``; -1 out of range."""
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    limits = np.array(shape, indices.dtype)
    in_range = ((indices >= 0) & (indices < limits)).astype(np.int32).min(axis=-1) != 0
    linear = (convert(indices, I32) * np.array(strides, np.int32)).sum(axis=-1, dtype=np.int32)
    return np.where(in_range, linear, np.int32(-1))


@importer("SCATTER_ND")
def scatter_nd(call: Call) -> AnyArray:
    """Import SCATTER_ND: input 1 added at the indices in input 0 to zeros of the shape input 2."""
    indices, updates, shape = call.input(0), call.input(1), call.constant_list(2)
    depth = indices.shape[-1] if indices.shape else 0
    if not 0 < depth <= len(shape):
        raise call.error(f"has indices of {depth} numbers in {len(shape)} dimensions")
    expected = (*indices.shape[:-1], *shape[depth:])
    if updates.shape != expected:
        raise call.error(f"has updates of {list(updates.shape)}, expected {list(expected)}")
    _check_constant(call, indices, shape[:depth])
    rows = _linear_indices(indices.value.reshape((-1, depth)), shape[:depth])
    values = updates.value.reshape((-1, *shape[depth:]))
    return _combine_rows(call, values, rows, math.prod(shape[:depth])).reshape(tuple(shape))


_SEGMENT_FUNCTIONS = {
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "multiply",
    "UNSORTED_SEGMENT_MAX": "maximum",
    "UNSORTED_SEGMENT_MIN": "minimum",
}


@importer("SEGMENT_SUM", *_SEGMENT_FUNCTIONS)
def segment_reductions(call: Call) -> AnyArray:
    """Import SEGMENT_SUM and UNSORTED_SEGMENT_*: input 1 has the segments of the rows of input 0.

    Negative segments are dropped.
    """
    operand, segments = call.input(0), call.input(1)
    name, rank = call.operator.name, len(segments.shape)
    if operand.shape[:rank] != segments.shape:
        raise call.error(f"has segments of {list(segments.shape)} for {list(operand.shape)}")
    if name == "SEGMENT_SUM":
        count = int(call.constant(1).max(initial=-1)) + 1
    else:
        count = int(call.constant_scalar(2))
    if count < 0:
        raise call.error(f"has {count} segments")
    rows = operand.value.reshape((-1, *operand.shape[rank:]))
    function = _SEGMENT_FUNCTIONS.get(name, "add")
    return _combine_rows(call, rows, segments.value.reshape(-1), count, function)


@importer("SPARSE_TO_DENSE")
def sparse_to_dense(call: Call) -> AnyArray:
    """Import SPARSE_TO_DENSE: input 2 at the indices in input 0, input 3 elsewhere.

    The shape is input 1.
    """
    indices, values, default = call.input(0), call.input(2), call.input(3)
    shape = call.constant_list(1)
    depth = indices.shape[-1] if len(indices.shape) == 2 else 1
    if len(indices.shape) < 2 and len(shape) > 1:
        raise call.error(f"has one index in {len(shape)} dimensions")
    rows = _linear_indices(indices.value.reshape((-1, depth)), shape)
    count = rows.shape[0]
    if not count:
        return np.broadcast_to(default.value.reshape(()), tuple(shape))
    if values.shape not in ((), (count,)):
        raise call.error(f"has {list(values.shape)} values for {count} indices")
    updates = np.broadcast_to(values.value.reshape(-1), (count,))
    # Of several updates at one index the last wins: the one with the greatest number.
    numbers = np.arange(1, count + 1, dtype=np.int32)
    last = np.maximum(_combine_rows(call, numbers, rows, math.prod(shape), "maximum"), 0)
    result = take(updates, np.maximum(last - 1, 0), 0)
    return np.where(last > 0, result, default.value.reshape(())).reshape(tuple(shape))
