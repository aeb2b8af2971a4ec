"""Operators on tensors with a counted axis (`counted`).

A *handler* computes a node itself: it reads the rows that count only (NonZero, Concat), or changes
the count (Slice). Other operators carry the count on where a rule of `counted_rules` says so, and
are refused by name elsewhere. No handler or rule lets padding into a row that counts.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...errors import UnsupportedError
from ...numerics.array_functions import convert, divide_truncated, is_known, take
from ...numerics.element_types import I64, AnyArray
from .call import Call, Operand, Typed
from .counted import COUNTED_ADVICE, Counted, is_row
from .counted_rules import RULES, Compute, CountedNode, elementwise
from .selections import compressed, coordinates_of, is_non_zero

__all__ = ["compute_counted", "is_counted"]


def is_counted(call: Call) -> bool:
    """Return True if an input of a node has a counted axis."""
    return any(each is not None and isinstance(each.value, Counted) for each in call.inputs)


def compute_counted(call: Call, compute: Compute) -> list[Operand]:
    """Compute a node that takes tensors with a counted axis.

    Args:
        call: the node, in the form of the newest operator set.
        compute: the importer.

    Raises:
        UnsupportedError: the operator combines rows, or rows of different numbers.
    """
    node = CountedNode(call, compute)
    handler = _HANDLERS.get(call.node.operator)
    if handler is not None:
        results = handler(node)
        if results is not None:
            return results
    rule = RULES.get(call.node.operator)
    axis = None if rule is None else rule(node)
    if axis is None:
        raise node.refusal()
    counts = list(node.counted.values())
    if any(each.count is not counts[0].count for each in counts):
        raise call.error(
            "takes tensors with counted axes whose numbers of rows need not be equal: "
            f"{COUNTED_ADVICE}",
            UnsupportedError,
        )
    return [node.operand(each, axis, counts[0].count) for each in compute(node.plain())]


# -- handlers -------------------------------------------------------------------------------------

Handler: TypeAlias = Callable[[CountedNode], "list[Operand] | None"]
"""Returns the results, or None where a rule decides."""

_HANDLERS: dict[str, Handler] = {}


def _handles(*operators: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


def _result(result: Typed) -> list[Operand]:
    return [Operand("", result.type, result.value)]


@_handles("NonZero")
def _non_zero(node: CountedNode) -> list[Operand]:
    own = node.counted[0]
    return _result(coordinates_of(is_non_zero(node.call.floats(own.value)) & own.is_row()))


@_handles("Compress")
def _compressed(node: CountedNode) -> list[Operand] | None:
    """A condition is false in the padding of both inputs; other slices keep the counted axis."""
    own, condition = node.counted.get(0), node.counted.get(1)
    call = node.plain()
    mask = call.array(1).reshape(-1)
    if own is not None and "axis" not in node.call.node.attributes:
        return None
    if own is not None and node.axis(0) != own.axis:
        if not is_known(mask) or condition is not None:
            return None
        return [node.operand(each, own.axis, own.count) for each in node.compute(call)]
    for each in (own, condition):
        if each is not None:
            mask = mask & is_row(mask.shape, 0, each.count)
    return _result(compressed(call, mask))


@_handles("Shape")
def _shape(node: CountedNode) -> list[Operand]:
    """The extents; that of the counted axis is the count."""
    own = node.counted[0]
    axes = list(range(len(own.shape)))
    end = node.call.attribute("end")
    axes = axes[node.call.attribute("start", 0) : end]
    node.call.optional(0)
    extents = [
        convert(own.count, I64).reshape((1,)) if axis == own.axis
        else np.array([own.shape[axis]], np.int64)
        for axis in axes
    ]  # fmt: skip
    value = np.concatenate(extents) if extents else np.zeros(0, np.int64)
    return [Operand("", "INT64", value)]


@_handles("Size")
def _size(node: CountedNode) -> list[Operand]:
    """The number of elements of the rows that count."""
    own = node.counted[0]
    rest = math.prod(n for axis, n in enumerate(own.shape) if axis != own.axis)
    return [Operand("", "INT64", convert(own.count, I64) * np.int64(rest))]


@_handles("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(node: CountedNode) -> list[Operand] | None:
    """The counted axis stays, behind as many elements as before."""
    own = node.counted.get(0)
    if own is None:
        return None
    before = own.shape
    place = _reshaped_axis(node, own)
    if place is None:
        raise node.call.error(
            f"gives {_named(own)} another shape, and the counted axis does not stay one of its "
            f"own; have -1 for it in the shape: {COUNTED_ADVICE}",
            UnsupportedError,
        )
    results = node.compute(node.plain())
    (result,) = results
    shape = result.shape
    is_same = shape[place] == before[own.axis] and math.prod(shape[:place]) == math.prod(
        before[: own.axis]
    )
    if not is_same:
        raise node.refusal()
    return [node.operand(result, place, own.count)]


def _named(own: Counted) -> str:
    """Return the shape of a tensor with a counted axis for an error."""
    return str([n if axis != own.axis else "?" for axis, n in enumerate(own.shape)]).replace(
        "'", ""
    )


def _reshaped_axis(node: CountedNode, own: Counted) -> int | None:
    """Return where the counted axis of input 0 is in the result."""
    operator, rank, given = node.call.node.operator, len(own.shape), node.known(1)
    if operator == "Flatten":
        axis = node.attribute("axis", 1)
        axis = axis + rank if axis < 0 else axis
        outer = (own.shape[:axis], own.shape[axis:])
        if own.axis < axis:
            return 0 if math.prod(outer[0]) == own.shape[own.axis] else None
        return 1 if math.prod(outer[1]) == own.shape[own.axis] else None
    if operator == "Squeeze":
        if given is None and node.has(1):
            return None
        if given is None:  # a counted axis of one row would go
            if own.shape[own.axis] == 1:
                return None
            gone = {axis for axis, n in enumerate(own.shape) if n == 1}
        else:
            gone = {axis % rank for axis in given}
        return None if own.axis in gone else own.axis - sum(axis < own.axis for axis in gone)
    if given is None:
        return None
    if operator == "Unsqueeze":
        added = {axis % (rank + len(given)) for axis in given}
        free = [axis for axis in range(rank + len(given)) if axis not in added]
        return free[own.axis]
    is_copied = not node.attribute("allowzero", 0)
    if -1 in given:
        return given.index(-1)
    return own.axis if is_copied and own.axis < len(given) and not given[own.axis] else None


@_handles("Slice")
def _sliced(node: CountedNode) -> list[Operand] | None:
    """Along the counted axis from a row on, forward."""
    own = node.counted.get(0)
    if own is None or len(node.counted) > 1:
        return None
    starts, ends, axes, steps = (node.known(index) for index in (1, 2, 3, 4))
    if starts is None or ends is None or (node.has(3) and axes is None) or (
        node.has(4) and steps is None
    ):  # fmt: skip
        return None
    rank = len(own.shape)
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    count = own.count
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if axis != own.axis:
            continue
        if start < 0 or step < 1:
            raise node.call.error(
                f"takes rows of {_named(own)} from the last one on or backward: {COUNTED_ADVICE}",
                UnsupportedError,
            )
        bound = own.shape[axis]
        start = min(start, bound)
        last = np.minimum(count, np.int32(min(end, bound))) if end >= 0 else (
            count - np.int32(min(-end, bound))
        )  # fmt: skip
        found = np.maximum(last - np.int32(start), np.int32(0))
        if step > 1:
            step = min(step, max(bound, 1))
            found = divide_truncated(found + np.int32(step - 1), np.full((), step, np.int32))
        count = found
    if any(axis == own.axis for axis in axes) and not _changes(own, starts, ends, axes, steps):
        count = own.count
    return [node.operand(each, own.axis, count) for each in node.compute(node.plain())]


def _changes(
    own: Counted, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int],
    steps: Sequence[int],
) -> bool:  # fmt: skip
    """Return True if a slice may leave out a row that counts."""
    return any(
        start > 0 or end < own.shape[own.axis] or step > 1
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
        if axis == own.axis
    )


@_handles("Concat")
def _joined(node: CountedNode) -> list[Operand] | None:
    """Along the counted axis the rows that count, one tensor after the other."""
    call = node.plain()
    operands = [call.input(index) for index in range(len(call.inputs))]
    rank = len(operands[0].shape)
    axis = call.axis("axis", rank, 0)
    own = set(node.axes.values())
    if own != {axis}:
        is_other = len(own) == 1 and axis not in own and len(node.counted) == len(operands)
        if not is_other:
            raise node.refusal()
        counts = list(node.counted.values())
        if any(each.count is not counts[0].count for each in counts):
            raise node.refusal()
        return [node.operand(each, own.pop(), counts[0].count) for each in node.compute(call)]
    (whole,) = node.compute(call)
    bound = whole.shape[axis]
    order = np.arange(bound, dtype=np.int32)
    source: AnyArray = np.zeros(bound, np.int32)
    start, base = np.zeros((), np.int32), 0
    for index, operand in enumerate(operands):
        extent = operand.shape[axis]
        source = np.where(order >= start, order - start + np.int32(base), source)
        rows = node.counted.get(index)
        start = start + (np.int32(extent) if rows is None else rows.count)
        base += extent
    rows_of = take(call.floats(whole.value), np.minimum(source, np.int32(bound - 1)), axis)
    return [node.operand(Operand("", whole.type, rows_of), axis, start)]


_NEUTRAL = {"ReduceL1": 0, "ReduceL2": 0, "ReduceProd": 1, "ReduceSum": 0, "ReduceSumSquare": 0}
"""The number that padding becomes where a reduction takes the counted axis."""


@_handles("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
          "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def _reduced(node: CountedNode) -> list[Operand] | None:
    """Along other axes, or of the rows that count, with a neutral element for the padding."""
    own, axes = node.counted.get(0), node.known(1)
    if own is None or len(node.counted) > 1 or (axes is None and node.has(1)):
        return None
    rank = len(own.shape)
    is_identity = not axes and bool(node.attribute("noop_with_empty_axes", 0))
    reduced = {axis % rank for axis in axes or (() if is_identity else range(rank))}
    if own.axis not in reduced:
        gone = 0 if node.attribute("keepdims", 1) else sum(axis < own.axis for axis in reduced)
        results = node.compute(node.plain())
        return [node.operand(each, own.axis - gone, own.count) for each in results]
    neutral = _neutral(node.call.node.operator, own.dtype)
    if neutral is None:
        return None
    value = np.where(own.is_row(), node.call.floats(own.value), neutral)
    return node.compute(node.plain({0: value}))


def _neutral(operator: str, dtype: Any) -> AnyArray:
    """Return the neutral element of a reduction, None for one that has none."""
    dtype = np.dtype(dtype)
    if operator in _NEUTRAL:
        return np.asarray(_NEUTRAL[operator], dtype)
    if operator not in ("ReduceMax", "ReduceMin") or dtype.kind not in "iuf":
        return None
    is_max = operator == "ReduceMax"
    if dtype.kind == "f":
        return np.asarray(-math.inf if is_max else math.inf, dtype)
    info = np.iinfo(dtype)
    return np.asarray(info.min if is_max else info.max, dtype)


@_handles("Div", "Mod")
def _divided(node: CountedNode) -> list[Operand] | None:
    """Integers are divided by 1 in the padding: a division by 0 ends a program."""
    own = node.counted.get(1)
    if own is None or own.dtype.kind not in "iu":
        return None
    axis = elementwise(node)
    if axis is None or any(each.count is not own.count for each in node.counted.values()):
        return None
    divisor = np.where(own.is_row(), own.value, np.ones((), own.dtype))
    results = node.compute(node.plain({1: divisor}))
    return [node.operand(each, axis, own.count) for each in results]
