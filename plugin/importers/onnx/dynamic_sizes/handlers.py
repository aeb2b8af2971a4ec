"""Operators on tensors with a counted axis (`bounded`).

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

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated, is_known, take
from ....numerics.element_types import I32, I64, AnyArray, DType
from ..call import Call, Operand, Typed
from .axis_rules import RULES, BoundedNode, Compute, elementwise
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor, ShapeValue, is_row
from .selections import compressed, coordinates_of, is_non_zero

__all__ = ["SIZE_PRODUCERS", "compute_bounded", "has_bounded_inputs", "value_objects"]

SIZE_PRODUCERS = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
"""Operators that make a count: those of the same inputs have the same one.

Exporters write ``boxes[mask]`` and ``scores[mask]`` with a NonZero each.
"""


def has_bounded_inputs(call: Call) -> bool:
    """Return True if an input of a node has a counted axis."""
    return any(each is not None and isinstance(each.value, BoundedTensor) for each in call.inputs)


def value_objects(inputs: Sequence[Operand | None]) -> list[Any]:
    """Return the objects that say whether inputs of nodes are the same."""
    parts: list[Any] = []
    for each in inputs:
        value = None if each is None else each.value
        parts += [value.value, value.count] if isinstance(value, BoundedTensor) else [value]
    return parts


def compute_bounded(call: Call, compute: Compute) -> list[Operand]:
    """Compute a node that takes tensors with a counted axis.

    Args:
        call: the node, in the form of the newest operator set.
        compute: the importer.

    Raises:
        UnsupportedError: the operator combines rows, or rows of different numbers.
    """
    node = BoundedNode(call, compute)
    handler = _HANDLERS.get(call.node.operator)
    if handler is not None:
        results = handler(node)
        if results is not None:
            return results
    rule = RULES.get(call.node.operator)
    axis = None if rule is None else rule(node)
    if axis is None:
        raise node.refusal()
    counts = list(node.bounded.values())
    if any(each.count is not counts[0].count for each in counts):
        raise call.error(
            "takes tensors with counted axes whose numbers of rows need not be equal: "
            f"{DYNAMIC_SIZE_ADVICE}",
            UnsupportedError,
        )
    results = compute(node.plain())
    if any(each.shape[axis] != counts[0].shape[counts[0].axis] for each in results):
        raise node.refusal()
    return [node.operand(each, axis, counts[0].count) for each in results]


# -- handlers -------------------------------------------------------------------------------------

Handler: TypeAlias = Callable[[BoundedNode], "list[Operand] | None"]
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
def _non_zero(node: BoundedNode) -> list[Operand]:
    own = node.bounded[0]
    return _result(coordinates_of(is_non_zero(node.call.floats(own.value)) & own.is_row()))


@_handles("Compress")
def _compressed(node: BoundedNode) -> list[Operand] | None:
    """A condition is false in the padding of both inputs; other slices keep the counted axis."""
    own, condition = node.bounded.get(0), node.bounded.get(1)
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
def _shape(node: BoundedNode) -> list[Operand]:
    """The extents; that of the counted axis is the count."""
    own = node.bounded[0]
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
    known = [None if axis == own.axis else own.shape[axis] for axis in axes]
    return [Operand("", "INT64", ShapeValue.of_shape(value, known, own))]


@_handles("Size")
def _size(node: BoundedNode) -> list[Operand]:
    """The number of elements of the rows that count."""
    own = node.bounded[0]
    rest = math.prod(n for axis, n in enumerate(own.shape) if axis != own.axis)
    return [Operand("", "INT64", convert(own.count, I64) * np.int64(rest))]


@_handles("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(node: BoundedNode) -> list[Operand] | None:
    """The counted axis stays, behind as many elements as before."""
    own = node.bounded.get(0)
    if own is None:
        return None
    before = own.shape
    place = _reshaped_axis(node, own)
    if place is None:
        raise node.call.error(
            f"gives {_named(own)} another shape, in which the counted axis must stay; have -1 for "
            f"it in a constant shape, and list the axes of Squeeze: {DYNAMIC_SIZE_ADVICE}",
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


def _named(own: BoundedTensor) -> str:
    """Return the shape of a tensor with a counted axis for an error."""
    return str([n if axis != own.axis else "?" for axis, n in enumerate(own.shape)]).replace(
        "'", ""
    )


def _reshaped_axis(node: BoundedNode, own: BoundedTensor) -> int | None:
    """Return where the counted axis of input 0 is in the result."""
    operator, rank, given = node.call.node.operator, len(own.shape), node.constant(1)
    if operator == "Flatten":
        axis = node.attribute("axis", 1)
        axis = axis + rank if axis < 0 else axis
        outer = (own.shape[:axis], own.shape[axis:])
        if own.axis < axis:
            return 0 if math.prod(outer[0]) == own.shape[own.axis] else None
        return 1 if math.prod(outer[1]) == own.shape[own.axis] else None
    if operator == "Squeeze":
        if given is None:  # without axes, a counted axis of one row goes, too
            return None
        gone = {axis % rank for axis in given}
        return None if own.axis in gone else own.axis - sum(axis < own.axis for axis in gone)
    if given is None:
        return None
    if operator == "Unsqueeze":
        added = {axis % (rank + len(given)) for axis in given}
        free = [axis for axis in range(rank + len(given)) if axis not in added]
        return free[own.axis]
    is_copied = not node.attribute("allowzero", 0)
    if is_copied and own.axis < len(given) and not given[own.axis]:
        return own.axis
    return given.index(-1) if -1 in given else None


@_handles("Slice")
def _sliced(node: BoundedNode) -> list[Operand] | None:
    """Along the counted axis from any row, in any direction; the number of rows is a formula."""
    own = node.bounded.get(0)
    starts, ends, axes, steps = (node.constant(index) for index in (1, 2, 3, 4))
    is_known_whole = (axes is not None or not node.has(3)) and (
        steps is not None or not node.has(4)
    )
    if own is None or len(node.bounded) > 1 or starts is None or ends is None:
        return None
    if not is_known_whole:
        return None
    rank = len(own.shape)
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if own.axis not in axes:
        return [node.operand(each, own.axis, own.count) for each in node.compute(node.plain())]
    place = axes.index(own.axis)
    rows, count = _rows_of_slice(node, own, starts[place], ends[place], steps[place])
    others = [
        np.array([each for n, each in enumerate(listed) if n != place], np.int64)
        for listed in (starts, ends, axes, steps)
    ]
    inputs = [Operand("", node.call.input(0).type, rows)]
    inputs += [Operand("", "INT64", each) for each in others]
    node.read_all()
    found = node.call.apply("Slice", inputs) if len(axes) > 1 else inputs[:1]
    return [node.operand(each, own.axis, count) for each in found]


_WITHOUT_END = ((1 << 31) - 1, (1 << 63) - 1)
"""Ends where runtimes differ for slices backward."""


def _rows_of_slice(
    node: BoundedNode, own: BoundedTensor, start: int, end: int, step: int
) -> tuple[AnyArray, AnyArray]:
    """Return the rows of a slice along the counted axis, and their number.

    They are those that Python's slice takes of as many rows as count.
    """
    bound, zero, one = own.shape[own.axis], np.zeros((), np.int32), np.ones((), np.int32)
    if not step or (step < 0 and end in _WITHOUT_END):
        raise node.refusal()
    step = max(min(step, bound), -bound) or 1
    limit, first = (own.count, zero) if step > 0 else (own.count - one, -one)

    def clamped(number: int, least: AnyArray) -> AnyArray:
        near = np.asarray(max(min(number, bound), -bound - 1), np.int32)
        near = near if number >= 0 else own.count + near
        return np.minimum(np.maximum(near, least), limit)

    begin, stop = clamped(start, zero), clamped(end, first)
    distance = stop - begin if step > 0 else begin - stop
    size = np.full((), abs(step), np.int32)
    count = divide_truncated(np.maximum(distance, zero) + size - one, size)
    most = bound
    if step > 0 and start >= 0:
        most = max(min(end, bound) if end >= 0 else bound, start) - start
    elif step > 0:
        most = min(-start, bound)
    most = max(-(-most // abs(step)), 0)
    count = node.call.graph.shared(("slice", start, end, step), [own.count], lambda: count)
    places = begin + np.arange(most, dtype=np.int32) * np.int32(step)
    places = np.minimum(np.maximum(places, zero), np.int32(max(bound - 1, 0)))
    return take(node.call.floats(own.value), places, own.axis), count


@_handles("Concat")
def _joined(node: BoundedNode) -> list[Operand] | None:
    """Along the counted axis the rows that count, one tensor after the other."""
    call = node.plain()
    operands = [call.input(index) for index in range(len(call.inputs))]
    rank = len(operands[0].shape)
    axis = call.axis("axis", rank, 0)
    own = set(node.axes.values())
    if own != {axis}:
        is_other = len(own) == 1 and axis not in own and len(node.bounded) == len(operands)
        if not is_other:
            raise node.refusal()
        counts = list(node.bounded.values())
        if any(each.count is not counts[0].count for each in counts):
            raise node.refusal()
        return [node.operand(each, own.pop(), counts[0].count) for each in node.compute(call)]
    (whole,) = node.compute(call)
    bound = whole.shape[axis]
    order = np.arange(bound, dtype=np.int32)
    source: AnyArray = np.zeros(bound, np.int32)
    start, base = np.zeros((), np.int32), 0
    extents = [operand.shape[axis] for operand in operands]
    for index, extent in enumerate(extents):
        source = np.where(order >= start, order - start + np.int32(base), source)
        rows = node.bounded.get(index)
        start = start + (np.int32(extent) if rows is None else rows.count)
        base += extent
    rows_of = take(call.floats(whole.value), np.minimum(source, np.int32(bound - 1)), axis)
    static = tuple(n for index, n in enumerate(extents) if index not in node.bounded)
    places = tuple(node.bounded)
    counts = [each.count for each in node.bounded.values()]
    count = call.graph.shared(("concatenation", *places, *static), counts, lambda: start)
    return [node.operand(Operand("", whole.type, rows_of), axis, count)]


_NEUTRAL = {"ReduceL1": 0, "ReduceL2": 0, "ReduceProd": 1, "ReduceSum": 0, "ReduceSumSquare": 0}
"""The number that padding becomes where a reduction takes the counted axis."""


@_handles("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
          "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def _reduced(node: BoundedNode) -> list[Operand] | None:
    """Along other axes, or of the rows that count, with a neutral element for the padding."""
    own, axes = node.bounded.get(0), node.constant(1)
    if own is None or len(node.bounded) > 1 or (axes is None and node.has(1)):
        return None
    rank = len(own.shape)
    is_identity = not axes and bool(node.attribute("noop_with_empty_axes", 0))
    reduced = {axis % rank for axis in axes or (() if is_identity else range(rank))}
    if own.axis not in reduced:
        gone = 0 if node.attribute("keepdims", 1) else sum(axis < own.axis for axis in reduced)
        results = node.compute(node.plain())
        return [node.operand(each, own.axis - gone, own.count) for each in results]
    if node.call.node.operator == "ReduceMean" and own.dtype in (np.float32, np.float64):
        total = _filled(node, own, np.zeros((), own.dtype))
        (sums,) = total.apply("ReduceSum", total.inputs, **node.call.node.attributes)
        node.read_all()
        others = math.prod(own.shape[axis] for axis in reduced if axis != own.axis)
        number = np.maximum(own.count, np.int32(1)) * np.int32(others)  # of no rows the mean is 0
        return [Operand("", sums.type, sums.value / number.astype(own.dtype))]
    neutral = _neutral(node.call.node.operator, own.dtype)
    return None if neutral is None else node.compute(_filled(node, own, neutral))


def _filled(node: BoundedNode, own: BoundedTensor, number: AnyArray) -> Call:
    """The node with a number in the padding of its first input."""
    return node.plain({0: np.where(own.is_row(), node.call.floats(own.value), number)})


def _neutral(operator: str, dtype: Any) -> AnyArray:
    """Return the neutral element of a reduction, None for one that has none."""
    dtype = np.dtype(dtype)
    if operator in _NEUTRAL:
        return np.asarray(_NEUTRAL[operator], dtype)
    if operator not in ("ReduceMax", "ReduceMin") or dtype.kind not in "iuf":
        return None
    return _last(dtype, is_greatest_first=operator == "ReduceMax")


def _last(dtype: DType, *, is_greatest_first: bool) -> AnyArray:
    """Return the least element of a type, or the greatest one where the least is first."""
    if dtype.kind == "f":
        return np.asarray(-math.inf if is_greatest_first else math.inf, dtype)
    info = np.iinfo(dtype)
    return np.asarray(info.min if is_greatest_first else info.max, dtype)


@_handles("Softmax", "LogSoftmax")
def _softmax(node: BoundedNode) -> list[Operand] | None:
    """Along the counted axis, the padding counts as minus infinity."""
    own = node.bounded[0]
    if node.axis(-1) != own.axis:
        return None
    call = _filled(node, own, _last(own.dtype, is_greatest_first=True))
    return [node.operand(each, own.axis, own.count) for each in node.compute(call)]


@_handles("CumSum")
def _sums_from_the_end(node: BoundedNode) -> list[Operand] | None:
    """From the last row on, the padding counts as 0."""
    own, axes = node.bounded.get(0), node.constant(1)
    if own is None or not axes or axes[0] % len(own.shape) != own.axis:
        return None
    call = _filled(node, own, np.zeros((), own.dtype))
    return [node.operand(each, own.axis, own.count) for each in node.compute(call)]


@_handles("TopK", "ArgMax", "ArgMin")
def _greatest_rows(node: BoundedNode) -> list[Operand] | None:
    """Along the counted axis the padding is last: rows that count come first among equals.

    A call fails that has fewer rows than are taken.
    """
    own, operator = node.bounded.get(0), node.call.node.operator
    if own is None or len(node.bounded) > 1 or own.dtype.kind not in "iuf":
        return None
    number = node.constant(1) if operator == "TopK" else [1]
    is_last = bool(node.attribute("select_last_index", 0))
    if node.axis(-1 if operator == "TopK" else 0) != own.axis or not number or is_last:
        return None
    is_greatest_first = operator == "ArgMax" or (
        operator == "TopK" and bool(node.attribute("largest", 1))
    )
    if node.call.is_inner:
        return None
    node.call.graph.check(
        own.count >= np.int32(number[0]), f"{node.call.node} takes {number[0]} of fewer rows"
    )
    last = _last(own.dtype, is_greatest_first=is_greatest_first)
    return node.compute(_filled(node, own, last))


@_handles("Gather")
def _rows_at(node: BoundedNode) -> list[Operand] | None:
    """Along the counted axis at indices of rows that count; a call fails at others."""
    own, index = node.bounded.get(0), node.bounded.get(1)
    if own is None or node.axis(0) != own.axis or node.call.is_inner or not own.shape[own.axis]:
        return None
    places = convert(node.plain().array(1), I32)
    is_inside = (places >= -own.count) & (places < own.count)
    if index is not None:
        is_inside = is_inside | ~index.is_row()
    if math.prod(places.shape):
        node.call.graph.check(
            convert(is_inside, I32).min() > np.int32(0), f"{node.call.node} takes other rows"
        )
    places = np.where(places < np.int32(0), places + own.count, places)
    places = np.minimum(np.maximum(places, np.int32(0)), np.int32(own.shape[own.axis] - 1))
    results = node.compute(node.plain({1: convert(places, I64)}))
    if index is None:
        return results
    return [node.operand(each, own.axis + index.axis, index.count) for each in results]


@_handles("ScatterND")
def _scattered(node: BoundedNode) -> list[Operand] | None:
    """Updates of counted rows of indices; those of the padding go to a row that is cut off."""
    indices, updates = node.bounded.get(1), node.bounded.get(2)
    if set(node.bounded) != {1, 2} or indices is None or updates is None:
        return None
    is_same = indices.count is updates.count and indices.axis == updates.axis
    if not is_same or indices.axis == len(indices.shape) - 1 or not node.shape(0):
        return None
    call = node.plain()
    data, places = call.array(0), convert(call.array(1), I64)
    extent = int(data.shape[0])
    places = np.where(
        places < np.int64(0), places + np.array(data.shape)[: places.shape[-1]], places
    )
    outside = np.where(np.arange(places.shape[-1]) == 0, np.int64(extent), np.int64(0))
    places = np.where(indices.is_row(), places, outside)
    further = np.zeros((1, *data.shape[1:]), data.dtype)
    whole = np.concatenate([data, further], axis=0)
    (result,) = node.compute(node.plain({0: whole, 1: places}))
    value = node.call.floats(result.value)[:extent]
    return [Operand("", result.type, value)]


@_handles("Div", "Mod")
def _divided(node: BoundedNode) -> list[Operand] | None:
    """Integers are divided by 1 in the padding: a division by 0 ends a program."""
    own = node.bounded.get(1)
    if own is None or own.dtype.kind not in "iu":
        return None
    axis = elementwise(node)
    if axis is None or any(each.count is not own.count for each in node.bounded.values()):
        return None
    divisor = np.where(own.is_row(), own.value, np.ones((), own.dtype))
    results = node.compute(node.plain({1: divisor}))
    return [node.operand(each, axis, own.count) for each in results]
