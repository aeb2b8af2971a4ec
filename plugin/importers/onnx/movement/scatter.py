"""Gathers and scatters of elements at computed indices.

A multi-dimensional index becomes a position in the flattened tensor: one gather of rows and one
scatter of rows serve all operators. Negative indices count from the end of their axis.

Sources: ONNX, GatherElements 13, GatherND 13, ScatterElements 18, ScatterND 18, OneHot 28,
ReverseSequence 28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import bits_of, convert, is_known, scatter, take
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ..call import Call, Operand, importer
from .shapes import moved


def _wrapped(call: Call, indices: AnyArray, length: int) -> AnyArray:
    """Return indices from 0, i32."""
    if is_known(indices) and indices.size:
        low, high = int(np.min(indices)), int(np.max(indices))
        if low < -length or high >= length:
            raise call.error(f"has the index {low if low < -length else high} of {length} elements")
    narrow = convert(indices, I32)
    return np.where(narrow < 0, narrow + np.int32(length), narrow)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _along(call: Call, indices: AnyArray, shape: Sequence[int], axis: int) -> AnyArray:
    """Return positions in a flattened tensor, of indices along one axis."""
    rank = len(shape)
    if indices.ndim != rank or any(
        n > length for a, (n, length) in enumerate(zip(indices.shape, shape, strict=True))
        if a != axis
    ):  # fmt: skip
        raise call.error(f"has indices of shape {list(indices.shape)} for {list(shape)}")
    strides = _strides(shape)
    flat = _wrapped(call, indices, shape[axis]) * np.int32(strides[axis])
    for other, count in enumerate(indices.shape):
        if other != axis and count > 1:
            coordinates = np.arange(count, dtype=np.int32) * np.int32(strides[other])
            flat = flat + coordinates.reshape([-1 if a == other else 1 for a in range(rank)])
    return flat


def _rows(call: Call, indices: AnyArray, shape: Sequence[int]) -> AnyArray:
    """Return positions of rows, whose indices along each axis of `shape` are the last axis."""
    flat: AnyArray = None
    for axis, stride in enumerate(_strides(shape)):
        part = _wrapped(call, indices[..., axis], shape[axis]) * np.int32(stride)
        flat = part if flat is None else flat + part
    return flat if flat is not None else np.zeros(tuple(indices.shape[:-1]), np.int32)


@importer("GatherElements")
def gather_elements(call: Call) -> Operand:
    """GatherElements-13: an element for each index, from the same position along other axes."""
    shape, indices = call.input(0).shape, call.array(1)
    axis = call.axis("axis", len(shape), 0)
    flat = _along(call, indices, shape, axis)
    return moved(
        call,
        lambda value: take(value.reshape(-1), flat.reshape(-1), 0).reshape(tuple(indices.shape)),
    )


@importer("GatherND")
def gather_nd(call: Call) -> Operand:
    """GatherND-13: a slice for each index of several axes; the first axes can be a batch."""
    shape, indices = call.input(0).shape, call.array(1)
    batch, depth = call.attribute("batch_dims", 0), indices.shape[-1] if indices.ndim else 0
    inner = shape[batch : batch + depth]
    if not 0 < depth <= len(shape) - batch or tuple(indices.shape[:batch]) != tuple(shape[:batch]):
        raise call.error(f"has indices of shape {list(indices.shape)} for {list(shape)}")
    flat = _rows(call, indices, inner)
    count = math.prod(shape[:batch])
    if batch:
        starts = np.arange(count, dtype=np.int32) * np.int32(math.prod(inner))
        ones = (1,) * (flat.ndim - batch)
        flat = flat + starts.reshape((*shape[:batch], *ones))
    rest = tuple(shape[batch + depth :])
    rows = (count * math.prod(inner), *rest)
    result = (*flat.shape, *rest)
    return moved(call, lambda value: take(value.reshape(rows), flat.reshape(-1), 0).reshape(result))


_FUNCTIONS = {"none": "set", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _scattered(
    rows: AnyArray, positions: AnyArray, updates_of_rows: AnyArray, function: str
) -> AnyArray:
    """Combine updates into rows, in a signed type of the same order."""
    element = ElementType.of_dtype(np.dtype(rows.dtype))
    is_ordered = function in ("maximum", "minimum")
    if element.is_float or (element.kind == "int" and element.bits >= 32):
        return scatter(rows, positions, updates_of_rows, function)
    if element.bits == 64 and is_ordered:
        half = np.uint64(1 << 63)
        signed = [bits_of(each ^ half, I64) for each in (rows, updates_of_rows)]
        result = scatter(signed[0], positions, signed[1], function)
        return bits_of(result, element) ^ half
    wide = I64 if element.bits == 64 or (element.bits == 32 and is_ordered) else I32
    result = scatter(convert(rows, wide), positions, convert(updates_of_rows, wide), function)
    return result != 0 if element.kind == "bool" else convert(result, element)


@importer("ScatterElements")
def scatter_elements(call: Call) -> Operand:
    """ScatterElements-18: ``data`` with an update at each index along an axis."""
    data, indices, updates = (call.array(index) for index in range(3))
    axis = call.axis("axis", data.ndim, 0)
    function = _FUNCTIONS[call.attribute("reduction", "none")]
    if tuple(indices.shape) != tuple(updates.shape):
        raise call.error(f"has {list(indices.shape)} indices and {list(updates.shape)} updates")
    if not math.prod(indices.shape):
        return call.typed(data)
    flat = _along(call, indices, data.shape, axis)
    result = _scattered(data.reshape(-1), flat.reshape(-1), updates.reshape(-1), function)
    return call.typed(result.reshape(tuple(data.shape)))


@importer("ScatterND")
def scatter_nd(call: Call) -> Operand:
    """ScatterND-18: ``data`` with one slice of the updates for each index of several axes."""
    data, indices, updates = (call.array(index) for index in range(3))
    depth = indices.shape[-1] if indices.ndim else 0
    function = _FUNCTIONS[call.attribute("reduction", "none")]
    if not 0 < depth <= data.ndim:
        raise call.error(f"has indices of {depth} axes for {list(data.shape)}")
    rest = tuple(data.shape[depth:])
    if tuple(updates.shape) != (*indices.shape[:-1], *rest):
        raise call.error(
            f"has updates of shape {list(updates.shape)}, expected {[*indices.shape[:-1], *rest]}"
        )
    if not math.prod(updates.shape):
        return call.typed(data)
    flat = _rows(call, indices, data.shape[:depth])
    rows = data.reshape((math.prod(data.shape[:depth]), *rest))
    updates_of_rows = updates.reshape((-1, *rest))
    result = _scattered(rows, flat.reshape(-1), updates_of_rows, function)
    return call.typed(result.reshape(tuple(data.shape)))


@importer("OneHot")
def one_hot(call: Call) -> Operand:
    """OneHot-28: the on-value at each index along a new axis, and the off-value elsewhere."""
    indices, values = call.array(0), call.array(2).reshape(-1)
    depth, rank = int(call.constant_scalar(1)), indices.ndim
    if values.shape[0] != 2 or depth < 1:
        raise call.error(f"has {values.shape[0]} values, expected 2, and the depth {depth}")
    axis = call.axis("axis", rank + 1, -1)
    wide = convert(indices, I64)
    wide = np.where(wide < 0, wide + np.int64(depth), wide)
    spread = wide.reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
    coordinates = np.arange(depth, dtype=np.int64).reshape((-1, *(1,) * (rank - axis)))
    return Operand(call.input(2).type, np.where(spread == coordinates, values[1], values[0]))


@importer("ReverseSequence")
def reverse_sequence(call: Call) -> Operand:
    """ReverseSequence-28: each sequence reversed along the time axis, within its length."""
    shape, lengths = call.input(0).shape, convert(call.array(1), I32)
    rank = len(shape)
    batch, time = (call.axis(f"{name}_axis", rank, n) for name, n in (("batch", 1), ("time", 0)))
    if {batch, time} != {0, 1} or tuple(lengths.shape) != (shape[batch],):
        raise call.error(
            f"has the axes {batch} and {time}, expected 0 and 1, and {list(lengths.shape)} lengths "
            f"for {shape[batch]} sequences"
        )
    steps = np.arange(shape[time], dtype=np.int32)
    ends = lengths[:, None]
    source = np.where(steps < ends, ends - np.int32(1) - steps, steps)
    first = np.arange(shape[batch], dtype=np.int32)[:, None]
    flat = source + first * shape[time] if batch == 0 else source * shape[batch] + first
    if batch == 1:
        flat = flat.transpose(1, 0)
    rows = (shape[0] * shape[1], *shape[2:])
    return moved(
        call, lambda value: take(value.reshape(rows), flat.reshape(-1), 0).reshape(tuple(shape))
    )
