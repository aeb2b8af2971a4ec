"""Importers that select elements by their indices.

Sources: LiteRT, ``gather.cc``, ``gather_nd.cc``, ``embedding_lookup.cc``, ``one_hot.cc``.
"""

from __future__ import annotations

import math

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, take
from ....numerics.element_types import F32, I32, AnyArray, ElementType
from ..call import Call, importer

__all__: list[str] = []


@importer("GATHER")
def gather(call: Call) -> AnyArray:
    """Import GATHER along an axis; the first `batch_dims` axes of both inputs correspond."""
    operand, indices = call.input(0), call.input(1)
    rank = len(operand.shape)
    axis = call.checked_axis(getattr(call.options, "axis", 0), rank)
    batch = getattr(call.options, "batch_dims", 0)
    batch += len(indices.shape) if batch < 0 else 0
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
    flat = operand.value.transpose(
        *range(batch), axis, *range(batch, axis), *range(axis + 1, rank)
    ).reshape((count * size, *between, *after))
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
    strides = [math.prod(shape[n + 1 : depth]) for n in range(depth)]
    linear = (convert(indices.value, I32) * np.array(strides, np.int32)).sum(
        axis=-1, dtype=np.int32
    )
    rows = operand.value.reshape((math.prod(shape[:depth]), *shape[depth:]))
    return take(rows, linear, 0)


@importer("EMBEDDING_LOOKUP")
def embedding_lookup(call: Call) -> AnyArray:
    """Import EMBEDDING_LOOKUP: rows of input 1, dequantized if the result is float."""
    indices, table = convert(call.input(0).value, I32), call.input(1)
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
