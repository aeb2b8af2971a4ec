"""Operators that put elements at positions, or order them by their values.

What is put at positions that are computed and outside is left out; LiteRT refuses it when it runs.

Sources: LiteRT, ``topk_v2.cc``, ``scatter_nd.cc``, ``segment_sum.cc``, ``unsorted_segment.cc``,
``sparse_to_dense.cc``, ``reverse_sequence.cc``, ``matrix_diag.cc``, ``matrix_set_diag.cc``,
``bucketize.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, scatter, take
from ....numerics.element_types import I32, I64, AnyArray, DType, ElementType
from ....numerics.ordering import greatest_first
from ..call import Call, kernel

__all__: list[str] = []


# -- order ----------------------------------------------------------------------------------------


@kernel("TOPK_V2")
def top_k(call: Call) -> list[AnyArray]:
    """The greatest along the last axis, and their positions; NaN is less than any number."""
    operand, count = call.input(0), int(call.constant_scalar(1))
    value, shape = operand.value, operand.shape
    kind = call.dtype(call.operator.outputs[1])
    if not shape or not 0 <= count <= shape[-1]:
        raise call.error(f"takes the greatest {count} along the last axis of {list(shape)}")
    if not count or not math.prod(shape):
        empty = (*shape[:-1], count)
        return [np.zeros(empty, value.dtype), np.zeros(empty, kind)]
    rows = value.reshape((-1, shape[-1]))
    keys = rows
    if operand.is_float:
        keys = np.where(rows == rows, rows, rows.dtype.type(-np.inf))
    elif rows.dtype.itemsize < 8:
        keys = convert(rows, I32 if rows.dtype != np.uint32 else I64)
    found = greatest_first(keys, count)
    starts = np.arange(rows.shape[0], dtype=np.int32)[:, None] * shape[-1]
    best = take(rows.reshape(-1), found + starts, 0)
    wanted = (*shape[:-1], count)
    element = ElementType.of_dtype(kind)
    return [best.reshape(wanted), convert(found, element).reshape(wanted)]


@kernel("BUCKETIZE")
def bucketize(call: Call) -> AnyArray:
    """How many of the boundaries are not greater."""
    operand = call.input(0)
    limits = call.options.boundaries.astype(np.float32)
    if (np.diff(limits) < 0).any():
        raise call.error("has boundaries that are not sorted")
    value = operand.value if operand.is_float else operand.value.astype(np.float32)
    return convert(value[..., None] >= limits, I32).sum(axis=-1, dtype=np.int32)


# -- rows -----------------------------------------------------------------------------------------

_STARTS = {"add": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}


def _start(function: str, kind: DType) -> float | int:
    """What combines with anything to that; of integers the least and greatest that there are."""
    found = _STARTS[function]
    if kind.kind == "f":
        finite = np.finfo(kind)
        return float(np.clip(found, finite.min, finite.max))
    info = np.iinfo(kind)
    return int(max(info.min, min(info.max, found)))


def _combined(
    call: Call, parts: AnyArray, rows: AnyArray, count: int, function: str = "add"
) -> AnyArray:
    """Combine parts by their rows, of which those outside go to one more, that is cut."""
    kind = parts.dtype
    wide = parts if kind.kind == "f" or kind.itemsize >= 4 else convert(parts, I32)
    if kind == np.uint32:
        raise call.error("of UINT32 is not lowered", UnsupportedError)
    start = np.full((count + 1, *parts.shape[1:]), _start(function, wide.dtype), wide.dtype)
    inside = convert(np.where((rows >= 0) & (rows < count), rows, rows.dtype.type(count)), I32)
    result = scatter(start, inside, wide, function)[:count]
    return convert(result, ElementType.of_dtype(kind))


@kernel("SCATTER_ND")
def scatter_nd(call: Call) -> AnyArray:
    """Zeros of the shape that is input 2, with input 1 added at the positions of input 0."""
    positions, parts = call.input(0), call.input(1)
    shape = [int(n) for n in call.constant(2).reshape(-1)]
    depth = positions.shape[-1] if positions.shape else 0
    if not 0 < depth <= len(shape):
        raise call.error(f"has positions of {depth} numbers in {len(shape)} dimensions")
    rows = _linear(positions.value.reshape((-1, depth)), shape[:depth])
    whole = (math.prod(shape[:depth]), *shape[depth:])
    given = parts.value.reshape((-1, *shape[depth:]))
    return _combined(call, given, rows, whole[0]).reshape(tuple(shape))


def _linear(positions: AnyArray, shape: Sequence[int]) -> AnyArray:
    """Positions of several axes as ones of all of them; -1 for those outside of one."""
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    limits = np.array(shape, positions.dtype)
    is_inside = ((positions >= 0) & (positions < limits)).astype(np.int32).min(axis=-1) != 0
    linear = (convert(positions, I32) * np.array(strides, np.int32)).sum(axis=-1, dtype=np.int32)
    return np.where(is_inside, linear, np.int32(-1))


_SEGMENTS = {
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "multiply",
    "UNSORTED_SEGMENT_MAX": "maximum",
    "UNSORTED_SEGMENT_MIN": "minimum",
}


@kernel("SEGMENT_SUM", *_SEGMENTS)
def segments(call: Call) -> AnyArray:
    """Rows of input 0 combined by the numbers that are input 1; negative ones are left out."""
    operand, numbers = call.input(0), call.input(1)
    name, rank = call.operator.name, len(numbers.shape)
    if operand.shape[:rank] != numbers.shape:
        raise call.error(f"has segments of {list(numbers.shape)} for {list(operand.shape)}")
    if name == "SEGMENT_SUM":
        count = int(call.constant(1).max(initial=-1)) + 1
    else:
        count = int(call.constant_scalar(2))
    if count < 0:
        raise call.error(f"has {count} segments")
    parts = operand.value.reshape((-1, *operand.shape[rank:]))
    return _combined(call, parts, numbers.value.reshape(-1), count, _SEGMENTS.get(name, "add"))


@kernel("SPARSE_TO_DENSE")
def sparse_to_dense(call: Call) -> AnyArray:
    """Input 3 everywhere, but input 2 at the positions of input 0; the shape is input 1."""
    positions, parts, other = call.input(0), call.input(2), call.input(3)
    shape = [int(n) for n in call.constant(1).reshape(-1)]
    depth = positions.shape[-1] if len(positions.shape) == 2 else 1
    if len(positions.shape) < 2 and len(shape) > 1:
        raise call.error(f"has one position in {len(shape)} dimensions")
    rows = _linear(positions.value.reshape((-1, depth)), shape)
    count = rows.shape[0]
    if not count:
        return np.broadcast_to(other.value.reshape(()), tuple(shape))
    given = np.broadcast_to(parts.value.reshape(-1), (count,))
    # Of several at one position the last stays: the one of the greatest number.
    numbers = np.arange(1, count + 1, dtype=np.int32)
    last = np.maximum(_combined(call, numbers, rows, math.prod(shape), "maximum"), 0)
    found = take(given, np.maximum(last - 1, 0), 0)
    return np.where(last > 0, found, other.value.reshape(())).reshape(tuple(shape))


# -- axes -----------------------------------------------------------------------------------------


@kernel("REVERSE_SEQUENCE")
def reverse_sequence(call: Call) -> AnyArray:
    """The first elements of each row, as many as input 1 says, in the other order."""
    operand, lengths, options = call.input(0), call.input(1), call.options
    rank = len(operand.shape)
    batch, time = options.batch_dim, options.seq_dim
    if not (0 <= batch < rank and 0 <= time < rank):
        raise call.error(f"has the dimensions {batch} and {time} for {list(operand.shape)}")
    if batch == time or lengths.shape != (operand.shape[batch],):
        raise call.error(f"has lengths of shape {list(lengths.shape)} for {list(operand.shape)}")
    rest = [axis for axis in range(rank) if axis not in (batch, time)]
    order = [batch, time, *rest]
    moved = operand.value.transpose(*order)
    rows, extent = moved.shape[:2]
    places = np.arange(extent, dtype=np.int32)
    bound = convert(lengths.value, I32)[:, None]
    index = np.where(places < bound, bound - 1 - places, places)
    index = index + np.arange(rows, dtype=np.int32)[:, None] * extent
    flat = moved.reshape((rows * extent, *moved.shape[2:]))
    found = take(flat, index.reshape(-1), 0).reshape(moved.shape)
    return found.transpose(*(order.index(axis) for axis in range(rank)))


@kernel("MATRIX_DIAG")
def matrix_diag(call: Call) -> AnyArray:
    """The last axis on the diagonals of matrices of zeros."""
    value = call.input(0).value
    extent = value.shape[-1]
    return np.where(np.eye(extent, dtype=bool), value[..., None, :], value.dtype.type(0))


@kernel("MATRIX_SET_DIAG")
def matrix_set_diag(call: Call) -> AnyArray:
    """Input 1 on the diagonals of the matrices of input 0."""
    matrices, diagonal = call.input(0).value, call.input(1).value
    rows, columns = matrices.shape[-2:]
    if diagonal.shape != (*matrices.shape[:-2], min(rows, columns)):
        raise call.error(f"has diagonals of {list(diagonal.shape)} in {list(matrices.shape)}")
    widths = [(0, 0)] * diagonal.ndim
    widths[-1] = (0, columns - diagonal.shape[-1])
    spread = np.pad(diagonal, widths)[..., None, :] if any(widths[-1]) else diagonal[..., None, :]
    return np.where(np.eye(rows, columns, dtype=bool), spread, matrices)
