"""Sequences and optionals, which exist while a program is written.

A program has tensors only. A sequence of constant length, as SplitToSequence returns it, is a list
of tensors here; operators on it choose tensors and write nothing. An optional is its tensor, or
nothing.

Sources: ONNX, SplitToSequence 24, SequenceConstruct 11, SequenceAt 11, SequenceInsert 11,
SequenceErase 11, SequenceLength 11, SequenceEmpty 11, SequenceMap 17, ConcatFromSequence 11,
Optional 15, OptionalHasElement 18, OptionalGetElement 18.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ....errors import UnsupportedError
from ..call import Call, Operand, importer
from .shapes import moved

_MAX_PARTS = 4096
"""Tensors that SplitToSequence makes, at most; each is a slice in the program."""


class _Sequence:
    """A sequence of tensors; `items` is None for an optional without a value."""

    shape = ()

    def __init__(self, items: list[Operand] | None) -> None:
        self.items = items

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name != "__array__":
            raise AttributeError(name)
        raise UnsupportedError(
            "uses a sequence or an optional as a tensor; take its elements with SequenceAt or "
            "ConcatFromSequence"
        )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError("uses a sequence or an optional as a tensor")


def _typed(items: list[Operand] | None) -> Operand:
    return Operand("SEQUENCE" if items is not None else "OPTIONAL", _Sequence(items))


def _items(call: Call, index: int = 0) -> list[Operand]:
    """Return the tensors of an input that is a sequence."""
    operand = call.input(index)
    if not isinstance(operand.value, _Sequence) or operand.value.items is None:
        raise call.error(f"needs a sequence as input {index}, and {operand} is none")
    return operand.value.items


def _position(call: Call, index: int, count: int, default: int) -> int:
    """Return a constant position in a sequence, from 0."""
    if call.optional(index) is None:
        return default
    position = int(call.constant_scalar(index))
    if not -count <= position < count:
        raise call.error(f"has the position {position} in a sequence of {count}")
    return position % count


@importer("SequenceEmpty")
def sequence_empty(call: Call) -> Operand:
    """SequenceEmpty-11: an empty sequence."""
    call.attribute("dtype", 1)  # the type of elements that are not there
    return _typed([])


@importer("SequenceConstruct")
def sequence_construct(call: Call) -> Operand:
    """SequenceConstruct-11: A sequence of the inputs."""
    return _typed([call.input(index) for index in range(len(call.inputs))])


@importer("SequenceInsert")
def sequence_insert(call: Call) -> Operand:
    """SequenceInsert-11: a sequence with a tensor before a position, by default at the end."""
    items, tensor = list(_items(call)), call.input(1)
    items.insert(_position(call, 2, len(items) + 1, len(items)), tensor)
    return _typed(items)


@importer("SequenceErase")
def sequence_erase(call: Call) -> Operand:
    """SequenceErase-11: a sequence without the element at a position, by default the last."""
    items = list(_items(call))
    if not items:
        raise call.error("erases an element of an empty sequence")
    del items[_position(call, 1, len(items), len(items) - 1)]
    return _typed(items)


@importer("SequenceAt")
def sequence_at(call: Call) -> Operand:
    """SequenceAt-11: the element of ``input_sequence`` at a position."""
    items = _items(call)
    return items[_position(call, 1, len(items), 0)]


@importer("SequenceLength")
def sequence_length(call: Call) -> Any:
    """SequenceLength-11: the number of elements of ``input_sequence``."""
    return np.array(len(_items(call)), np.int64)


@importer("SplitToSequence")
def split_to_sequence(call: Call) -> Operand:
    """SplitToSequence-24: slices along an axis: of stated sizes, of one size, or of one element."""
    shape = call.input(0).shape
    axis, keeps = call.axis("axis", len(shape), 0), call.attribute("keepdims", 1)
    length, is_single = shape[axis], call.optional(1) is None
    if is_single:
        sizes = [1] * length
    else:
        split = call.constant(1)
        sizes = [int(n) for n in split.reshape(-1)]
        if split.ndim == 0:
            size = max(sizes[0], 1)
            sizes = [min(size, length - start) for start in range(0, length, size)]
    if sum(sizes) != length or min(sizes, default=0) < 0 or len(sizes) > _MAX_PARTS:
        raise call.error(f"splits {length} elements in {len(sizes)} parts of other sizes")
    items: list[Operand] = []
    start = 0
    for size in sizes:
        index = (*(slice(None),) * axis, slice(start, start + size))
        own = (*shape[:axis], *([] if is_single and not keeps else [size]), *shape[axis + 1 :])
        part = moved(call, lambda v, i=index, s=own: v[i].reshape(s))  # type: ignore[misc]
        items.append(Operand(part.type, part.value, f"part {len(items)}"))
        start += size
    return _typed(items)


@importer("ConcatFromSequence")
def concat_from_sequence(call: Call) -> Operand:
    """ConcatFromSequence-11: the elements concatenated along an axis, which can be a new one."""
    items, is_new = _items(call), call.attribute("new_axis", 0)
    if not items:
        raise call.error("joins an empty sequence")
    axis = call.checked_axis(call.integer("axis"), len(items[0].shape) + is_new)
    if is_new:
        axes = Operand("INT64", np.array([axis], np.int64), "axes")
        items = [call.apply("Unsqueeze", [each, axes])[0] for each in items]
    return call.apply("Concat", items, axis=axis)[0]


@importer("SequenceMap")
def sequence_map(call: Call) -> list[Operand]:
    """SequenceMap-17: a graph for each element of a sequence."""
    body, items = call.subgraph("body"), _items(call)
    extra_operands = [call.input(index) for index in range(1, len(call.inputs))]
    rows = []
    for number, item in enumerate(items):
        arguments = [item]
        for other in extra_operands:
            if isinstance(other.value, _Sequence):
                other_items = other.value.items or []
                if len(other_items) != len(items):
                    raise call.error(
                        f"has sequences of {len(items)} and {len(other_items)} elements"
                    )
                arguments.append(other_items[number])
            else:
                arguments.append(other)
        rows.append(call.graph.inner(body, arguments))
    return [_typed([row[number] for row in rows]) for number in range(len(call.node.outputs))]


@importer("Optional")
def optional(call: Call) -> Operand:
    """Optional-28: an optional of the input, or without a value."""
    operand = call.optional(0)
    call.attribute("type")  # of a value that is not there
    return _typed(None) if operand is None else operand


@importer("OptionalHasElement")
def optional_has_element(call: Call) -> Any:
    """OptionalHasElement-28: true if the optional has a value."""
    operand = call.optional(0)
    is_empty = operand is None or (
        isinstance(operand.value, _Sequence) and operand.value.items is None
    )
    return np.array(not is_empty)


@importer("OptionalGetElement")
def optional_get_element(call: Call) -> Operand:
    """OptionalGetElement-28: the value of the optional."""
    operand = call.input(0)
    if isinstance(operand.value, _Sequence) and operand.value.items is None:
        raise call.error("takes the value of an optional that has none")
    return operand
