"""Operators that move elements or compute shapes: exact for every type.

Sources: ONNX, Reshape 5 to 25, Transpose 25, Slice 10 to 13, Split 2 to 18, Concat 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....numerics.element_types import AnyArray
from ..call import Call, Operand, importer, type_of_dtype
from ..quantization.expressed import Quantized
from ..reading.model import Tensor


def moved(call: Call, move: Callable[[AnyArray], AnyArray]) -> Operand:
    """Move the elements of the first input; a quantized one stays integers if it has one scale."""
    value = call.input(0).value
    result = value.moved(move) if isinstance(value, Quantized) else None
    return call.typed(move(call.array(0)) if result is None else result)


@importer("Identity")
def identity(call: Call) -> Operand:
    """Identity-25: ``input`` unchanged."""
    return call.input(0)


@importer("Dropout")
def dropout(call: Call) -> list[Operand]:
    """Dropout-22: ``data`` unchanged, and a mask that is true everywhere, as in inference."""
    if call.optional(2) is not None and call.constant(2).any():
        raise call.unsupported(
            "has training_mode = true, and drops elements at random; export it for inference"
        )
    operand = call.input(0)
    mask = Operand("BOOL", np.ones(operand.shape, np.bool_))
    return [operand, mask]


@importer("Constant")
def constant(call: Call) -> Operand:
    """Constant-25: the tensor or the numbers of an attribute."""
    for name in ("value", "sparse_value"):
        tensor = call.attribute(name)
        if isinstance(tensor, Tensor):
            return Operand(tensor.type, tensor.data)
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                        ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if call.attribute(name) is not None:
            array = np.asarray(call.attribute(name), dtype)
            return Operand(type_of_dtype(array.dtype), array)
    raise call.error("is neither a tensor nor numbers")


@importer("Shape")
def shape(call: Call) -> AnyArray:
    """Shape-25: the dimension sizes from ``start`` to ``end``."""
    lengths = list(call.input(0).shape)
    end = call.attribute("end")
    return np.array(lengths[call.attribute("start", 0) : end], np.int64)


@importer("Size")
def size(call: Call) -> AnyArray:
    """Size-25: the number of elements."""
    return np.array(math.prod(call.input(0).shape), np.int64)


@importer("Reshape")
def reshape(call: Call) -> Operand:
    """Reshape-25: ``data`` in another shape; 0 copies a size, -1 is the remaining size."""
    stated, before = call.constant_list(1), call.input(0).shape
    shape = list(stated)
    if not call.attribute("allowzero", 0):
        if any(n == 0 for n in stated[len(before) :]):
            raise call.error(f"gives {list(before)} the shape {stated}")
        shape = [n or before[axis] for axis, n in enumerate(stated)]
    return _reshaped(call, shape)


def _reshaped(call: Call, stated: Sequence[int]) -> Operand:
    count = math.prod(call.input(0).shape)
    rest = math.prod(n for n in stated if n != -1)
    shape = list(stated)
    if shape.count(-1) == 1 and rest > 0 and not count % rest:
        shape[shape.index(-1)] = count // rest
    if min(shape, default=0) < 0 or math.prod(shape) != count:
        raise call.error(f"gives {list(call.input(0).shape)} the shape {list(stated)}")
    return moved(call, lambda value: value.reshape(tuple(shape)))


@importer("Flatten")
def flatten(call: Call) -> Operand:
    """Flatten-25: A matrix: the axes before ``axis`` are M, the others N."""
    before = call.input(0).shape
    axis = call.attribute("axis", 1)
    if not -len(before) <= axis <= len(before):
        raise call.error(f"has the axis {axis} of a tensor of {len(before)} dimensions")
    axis = axis + len(before) if axis < 0 else axis
    return _reshaped(call, [math.prod(before[:axis]), math.prod(before[axis:])])


@importer("Squeeze")
def squeeze(call: Call) -> Operand:
    """Squeeze-25: ``data`` without axes of one element."""
    before = call.input(0).shape
    axes = [axis for axis, size in enumerate(before) if size == 1]
    if call.optional(1) is not None:
        axes = [call.checked_axis(axis, len(before)) for axis in call.constant_list(1)]
    if not axes and 1 in before:
        raise call.unsupported(
            f"has an empty list of axes for {list(before)}: runtimes differ in whether all axes of "
            "one element go; list the axes, or leave the input out"
        )
    return _reshaped(call, [n for axis, n in enumerate(before) if axis not in axes])


@importer("Unsqueeze")
def unsqueeze(call: Call) -> Operand:
    """Unsqueeze-25: ``data`` with further axes of one element."""
    lengths = list(call.input(0).shape)
    new_axes = call.constant_list(1)
    rank = len(lengths) + len(new_axes)
    checked = sorted(call.checked_axis(axis, rank) for axis in new_axes)
    if len(set(checked)) < len(checked):
        raise call.error(f"has the axes {new_axes}, of which some are the same")
    for axis in checked:
        lengths.insert(axis, 1)
    return _reshaped(call, lengths)


@importer("Transpose")
def transpose(call: Call) -> Operand:
    """Transpose-25: ``data`` with its axes in the order ``perm``, by default reversed."""
    value = call.input(0).value
    rank = len(value.shape)
    order = tuple(call.attribute("perm", list(reversed(range(rank)))))
    if sorted(order) != list(range(rank)):
        raise call.error(f"has the order {list(order)} of {rank} dimensions")
    is_quantized = isinstance(value, Quantized)
    return call.typed(value.transposed(order) if is_quantized else call.array(0).transpose(order))


@importer("Concat")
def concat(call: Call) -> Operand:
    """Concat-13: inputs along an axis; quantized ones with the same parameters stay integers."""
    operands = [call.input(index) for index in range(len(call.inputs))]
    rank = len(operands[0].shape)
    axis = call.axis("axis", rank, 0)
    other_sizes = {(*o.shape[:axis], *o.shape[axis + 1 :]) for o in operands}
    if len(other_sizes) > 1 or any(len(operand.shape) != rank for operand in operands):
        shapes = ", ".join(str(list(operand.shape)) for operand in operands)
        raise call.error(f"joins tensors of the shapes {shapes} along axis {axis}")
    values = [operand.value for operand in operands]
    first = values[0]
    if isinstance(first, Quantized) and all(_is_like(first, value) for value in values):
        storage = np.concatenate([value.storage for value in values], axis)
        return Operand(operands[0].type, first.moved(lambda _: storage))
    return Operand(operands[0].type, np.concatenate([call.floats(value) for value in values], axis))


def _is_like(first: Quantized, other: Any) -> bool:
    """Return True if both have one scale and zero point, the same."""
    if not isinstance(other, Quantized) or not first.is_per_tensor or not other.is_per_tensor:
        return False
    return first.type == other.type and all(
        left is right
        or (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
            and left.reshape(-1)[0] == right.reshape(-1)[0])
        for left, right in ((first.scales, other.scales), (first.zero_points, other.zero_points))
    )  # fmt: skip


WITHOUT_END = ((1 << 31) - 1, (1 << 63) - 1)
"""These ends stand for the end of an axis of any size."""


@importer("Slice")
def slice_(call: Call) -> Operand:
    """Slice-13: ``data[starts:ends:steps]`` along axes."""
    lengths = call.input(0).shape
    starts, ends = (call.constant_list(index) for index in (1, 2))
    axes = list(range(len(starts))) if call.optional(3) is None else call.constant_list(3)
    steps = [1] * len(starts) if call.optional(4) is None else call.constant_list(4)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise call.error(f"has {len(starts)} starts, {len(ends)} ends and {len(axes)} axes")
    if 0 in steps:
        raise call.error("has a step of 0")
    index, backward = [slice(None)] * len(lengths), []
    for start, end, stated_axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = call.checked_axis(stated_axis, len(lengths))
        if step < 0 and end in WITHOUT_END and lengths[axis]:
            raise call.unsupported(
                f"goes backward and ends at {end}, where runtimes differ: at the first element, or "
                "before the last; end at the least integer to go to the first"
            )
        if step < 0:  # clamped to the first element, where Python's slices have none
            start = max(start, -lengths[axis])
        positions = range(lengths[axis])[slice(int(start), int(end), int(step))]
        if step < 0 and positions:  # ascending here, and reversed below
            backward.append(axis)
            positions = positions[::-1]
        index[axis] = (
            slice(positions.start, positions.stop, positions.step) if positions else slice(0, 0)
        )

    def move(value: AnyArray) -> AnyArray:
        part = value[tuple(index)]
        return np.flip(part, tuple(backward)) if backward else part

    return moved(call, move)


@importer("Split")
def split(call: Call) -> list[Operand]:
    """Split-18: slices of stated sizes along an axis, or of equal sizes."""
    lengths, count = call.input(0).shape, len(call.node.outputs)
    axis = call.axis("axis", len(lengths), 0)
    if call.attribute("num_outputs", count) != count:
        raise call.error(f"has {count} outputs, and num_outputs = {call.integer('num_outputs')}")
    sizes = None
    if call.optional(1) is not None:
        if "num_outputs" in call.node.attributes:
            raise call.error("has both sizes (input 1) and num_outputs, expected one of them")
        sizes = call.constant_list(1)
    if sizes is None:
        part = -(-lengths[axis] // max(count, 1))
        sizes = [min(part, lengths[axis] - n * part) for n in range(count)]
    if len(sizes) != count or sum(sizes) != lengths[axis] or min(sizes, default=0) < 0:
        raise call.error(f"splits {lengths[axis]} elements in parts of {list(sizes)}")
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return [
        moved(call, lambda v, s=start, n=n: v[(slice(None),) * axis + (slice(s, s + n),)])  # type: ignore[misc]
        for start, n in zip(starts, sizes, strict=True)
    ]
