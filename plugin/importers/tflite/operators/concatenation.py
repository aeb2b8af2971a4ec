"""Importers that concatenate, repeat and split tensors.

Sources: LiteRT, ``concatenation.cc``, ``pack.cc``, ``tile.cc``, ``split.cc``, ``split_v.cc``,
``unpack.cc``.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, lookup
from ....numerics.element_types import I32, AnyArray
from ..arithmetic.requantization import round_half_away
from ..call import Call, Operand, importer

__all__: list[str] = []


def _requantized(call: Call, operand: Operand) -> AnyArray:
    """Return an operand of a CONCATENATION in the parameters of the result.

    LiteRT requires equal parameters, except of uint8, which it rescales in f32. A lookup table
    rounds its product and sum separately here.
    """
    if operand.tensor.quantization is None or call.output.quantization is None:
        return operand.value
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if x.scale == y.scale and x.zero_point == y.zero_point:
        return operand.value
    if operand.tensor.type != "UINT8":
        raise call.error(
            f"joins {operand.tensor} of another scale than the result", UnsupportedError
        )
    scale = x.scale * (np.float32(1) / y.scale)
    bias = np.float32(-x.zero_point) * scale
    table = round_half_away(np.arange(256, dtype=np.float32) * scale + bias).astype(np.int64)
    table = np.clip(table + y.zero_point, 0, 255).astype(np.uint8)
    return lookup(table, convert(operand.value, I32))


@importer("CONCATENATION")
def concatenation(call: Call) -> AnyArray:
    """Import CONCATENATION."""
    operands = call.all_inputs()
    values = [_requantized(call, operand) for operand in operands]
    axis = call.checked_axis(call.options.axis, len(operands[0].shape))
    joined = np.concatenate(values, axis=axis)
    return call.activated(joined) if operands[0].is_float else joined


@importer("PACK")
def pack(call: Call) -> AnyArray:
    """Import PACK: stacks operands along a new axis."""
    values = [operand.value for operand in call.all_inputs()]
    call.check_count("values_count", len(values))
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape) + 1)
    return np.stack(values, axis=axis)


@importer("TILE")
def tile(call: Call) -> AnyArray:
    """Import TILE: repeats each axis by the count in input 1."""
    value = call.input(0).value
    for axis, count in enumerate(call.constant_integers(1, value.ndim).tolist()):
        if count < 1:
            raise call.error(f"repeats {count} times", UnsupportedError)
        value = np.concatenate([value] * count, axis=axis) if count > 1 else value
    return value


@importer("SPLIT")
def split(call: Call) -> list[AnyArray]:
    """Import SPLIT: equal pieces along the axis in input 0."""
    operand = call.input(1)
    axis, count = call.constant_axis(0, len(operand.shape)), len(call.operator.outputs)
    call.check_count("num_splits", count)
    if not count or operand.shape[axis] % count:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {count} parts")
    size = operand.shape[axis] // count
    return [_slice_axis(operand.value, axis, n * size, size) for n in range(count)]


@importer("SPLIT_V")
def split_v(call: Call) -> list[AnyArray]:
    """Import SPLIT_V: pieces of the sizes in input 1, of which one may be -1."""
    operand, sizes = call.input(0), call.constant_list(1)
    axis = call.constant_axis(2, len(operand.shape))
    call.check_count("num_splits", len(call.operator.outputs))
    rest = operand.shape[axis] - sum(n for n in sizes if n >= 0)
    sizes = [rest if n < 0 else n for n in sizes]
    if sum(sizes) != operand.shape[axis] or min(sizes, default=0) < 0:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {sizes}")
    starts = np.cumsum([0, *sizes[:-1]])
    return [_slice_axis(operand.value, axis, int(s), n) for s, n in zip(starts, sizes, strict=True)]


@importer("UNPACK")
def unpack(call: Call) -> list[AnyArray]:
    """Import UNPACK: a result for each index of an axis, which is removed."""
    operand = call.input(0)
    axis = call.checked_axis(call.options.axis, len(operand.shape))
    count = operand.shape[axis]
    call.check_count("num", count)
    shape = operand.shape[:axis] + operand.shape[axis + 1 :]
    return [_slice_axis(operand.value, axis, n, 1).reshape(shape) for n in range(count)]


def _slice_axis(value: AnyArray, axis: int, start: int, size: int) -> AnyArray:
    return value[(slice(None),) * axis + (slice(start, start + size),)]
