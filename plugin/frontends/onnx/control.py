"""Branches and loops, whose graphs read what is around them.

A condition that is known chooses when the program is written. The first iteration of a loop with
results of its iterations is written before it, which says what they are.

Sources: ONNX, If 1 to 25, Loop 1 to 25, Scan 9 to 25.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...formats.onnx import Subgraph
from ...numerics.array_functions import choose, convert, is_known, put_slice, repeat_while, take
from ...numerics.element_types import I32, I64, AnyArray
from .call import Call, Operand, Typed, kernel, type_of_dtype

__all__: list[str] = []

_MOST = (1 << 31) - 1
"""Iterations: they are counted in 32 bits."""


@kernel("If")
def if_(call: Call) -> list[Any]:
    """One of two graphs."""
    condition = call.array(0)
    branches = [call.subgraph(name) for name in ("then_branch", "else_branch")]
    if condition.size != 1:
        raise call.error(f"has {condition.size} conditions")
    if is_known(condition):
        chosen = branches[0 if condition.reshape(-1)[0] else 1]
        return [Typed(each.type, each.value) for each in call.graph.inner(chosen, [])]
    types: list[list[str]] = []

    def branch(graph: Subgraph) -> Callable[[], list[AnyArray]]:
        def compute() -> list[AnyArray]:
            found = [_plain(call, each) for each in call.graph.inner(graph, [])]
            types.append([each.type for each in found])
            return [each.value for each in found]

        return compute

    values = choose(condition.reshape(()), *map(branch, branches))
    if types[0] != types[1]:
        raise call.error(f"has branches of the types {types[0]} and {types[1]}")
    return [Typed(type_, value) for type_, value in zip(types[0], values, strict=True)]


def _plain(call: Call, operand: Operand) -> Operand:
    """A value as an array."""
    value = call.floats(operand.value)
    if value is operand.value:
        return operand
    return Operand(operand.name, type_of_dtype(value.dtype), value)


@kernel("Loop")
def loop(call: Call) -> list[Any]:
    """A graph a number of times, or while it says so; both if both are there."""
    body = call.subgraph("body")
    start = [_plain(call, call.input(index)) for index in range(2, len(call.inputs))]
    scanned = len(body.outputs) - 1 - len(start)
    if len(body.inputs) != len(start) + 2 or scanned < 0:
        raise call.error(
            f"has a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs for "
            f"{len(start)} values"
        )
    trips = _scalar(call, 0)
    if trips is None:
        trips = np.asarray(_MOST)
    trips = np.minimum(np.maximum(trips, 0), _MOST)
    count = int(trips) if is_known(trips) else None
    first = np.asarray(True) if call.optional(1) is None else _scalar(call, 1)

    def step(index: AnyArray, condition: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        number = Operand("", "INT64", convert(index, I64).reshape(()))
        given = [number, Operand("", "BOOL", condition)]
        found = call.graph.inner(body, [*given, *_as(start, values)])
        return [_plain(call, each) for each in found]

    if not scanned:
        return _repeated(call, step, convert(trips, I32), first, start)
    is_counted = count is not None and count < _MOST and _keeps_condition(body)
    if count is not None and is_known(first) and not is_counted:
        return _unrolled(call, step, count, first, start)

    def certain(index: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        goes_on, *found = step(index, np.asarray(True), values)
        if not goes_on.is_known or not np.all(goes_on.value):
            raise call.error(
                "gives a result of each iteration, and computes whether there is another",
                UnsupportedError,
            )
        return found

    if count is None or not is_known(first) or (not first and count) or count == _MOST:
        raise call.error(
            "gives a result of each iteration, and the number of them is not known when it is "
            "compiled",
            UnsupportedError,
        )
    return _gathered(call, certain, count, start)


_MAX_UNROLLED = 1024
"""The number of iterations up to which a loop is written without a loop."""


def _keeps_condition(body: Subgraph) -> bool:
    """Return True if the condition for another iteration is the one before, or a constant."""
    made = {name: node for node in body.nodes for name in node.outputs}
    name = body.outputs[0]
    while name in made and made[name].operator == "Identity":
        name = made[name].inputs[0]
    is_constant = name in made and made[name].operator == "Constant"
    return name == body.inputs[1] or name in body.constants or is_constant


def _unrolled(
    call: Call,
    step: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]],
    count: int,
    condition: AnyArray,
    start: Sequence[Operand],
) -> list[Typed]:
    """Values after iterations that are written one after the other, and the results of each.

    The condition of each must follow from constants, such as a counter that is carried.
    """
    carried: list[Operand] = list(start)
    rows: list[list[Operand]] = []
    number = len(start)
    while bool(np.all(condition)):
        if len(rows) >= count:
            break
        if len(rows) >= _MAX_UNROLLED:
            raise call.error(
                f"gives a result of each iteration, and takes more than {_MAX_UNROLLED} of them by "
                "a computed condition; make the number of iterations a constant",
                UnsupportedError,
            )
        index = np.asarray(len(rows), np.int32)
        again, *results = step(index, condition, [each.value for each in carried])
        if not again.is_known:
            raise call.error(
                "gives a result of each iteration, and computes whether there is another; make the "
                "number of iterations a constant, or carry the results as a tensor of fixed shape",
                UnsupportedError,
            )
        condition = np.asarray(again.value)
        _checked(call, start, results[:number])
        carried = results[:number]
        rows.append(results[number:])
    if not rows:
        raise call.error("has results of no iteration, whose shapes are not known",
                         UnsupportedError)  # fmt: skip
    stacks = []
    for parts in zip(*rows, strict=True):
        _checked(call, [parts[0]] * len(parts), parts)
        stacks.append(Typed(parts[0].type, np.stack([each.value for each in parts])))
    return [*(Typed(each.type, each.value) for each in carried), *stacks]


def _scalar(call: Call, index: int) -> AnyArray:
    """An operand of one element, None if it is absent."""
    if call.optional(index) is None:
        return None
    value = call.array(index)
    if value.size != 1:
        raise call.error(f"has {value.size} elements in {call.input(index)}, expected one")
    return value.reshape(())


def _as(like: Sequence[Operand], values: Sequence[AnyArray]) -> list[Operand]:
    return [Operand("", each.type, value) for each, value in zip(like, values, strict=True)]


def _typed(like: Sequence[Operand], values: Sequence[AnyArray]) -> list[Typed]:
    return [Typed(each.type, value) for each, value in zip(like, values, strict=True)]


def _checked(call: Call, start: Sequence[Operand], found: Sequence[Operand]) -> list[AnyArray]:
    """The values after an iteration, which keep their types and shapes."""
    for before, after in zip(start, found, strict=True):
        if (before.type, before.shape) != (after.type, after.shape):
            raise call.error(
                f"makes {after.type} of shape {list(after.shape)} of {before}, which is "
                f"{before.type} of shape {list(before.shape)}",
                UnsupportedError,
            )
    return [each.value for each in found]


def _repeated(
    call: Call,
    step: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]],
    trips: AnyArray,
    first: AnyArray,
    start: Sequence[Operand],
) -> list[Typed]:
    """Values after a number of iterations that the program finds."""

    def goes_on(index: AnyArray, condition: AnyArray, *values: AnyArray) -> AnyArray:
        return (index < trips) & condition

    def body(index: AnyArray, condition: AnyArray, *values: AnyArray) -> list[AnyArray]:
        again, *found = step(index, condition, values)
        if again.type != "BOOL":
            raise call.error(f"has a condition of type {again.type}")
        return [index + 1, again.value.reshape(()), *_checked(call, start, found)]

    values = [np.asarray(0, np.int32), first, *(each.value for each in start)]
    _, _, *found = repeat_while(goes_on, body, [call.lifted(value) for value in values])
    return _typed(start, found)


def _gathered(
    call: Call,
    step: Callable[[AnyArray, Sequence[AnyArray]], list[Operand]],
    count: int,
    start: Sequence[Operand],
) -> list[Typed]:
    """Values after a known number of iterations, and the results of each, stacked."""
    if not count:
        raise call.error("has results of no iteration, whose shapes are not known",
                         UnsupportedError)  # fmt: skip
    number = len(start)
    found = step(np.asarray(0, np.int32), [each.value for each in start])
    results = found[number:]
    values = _checked(call, start, found[:number])
    rows = [call.lifted(each.value) for each in results]
    if count == 1:
        return [*_typed(start, values), *_typed(results, [row[None] for row in rows])]
    stacks = []
    for row in rows:
        empty = call.lifted(np.zeros((count, *row.shape), row.dtype))
        stacks.append(_put(empty, row, np.asarray(0, np.int32)))

    def goes_on(index: AnyArray, *values: AnyArray) -> AnyArray:
        return index < count

    def body(index: AnyArray, *carried: AnyArray) -> list[AnyArray]:
        found = step(index, carried[:number])
        after = _checked(call, start, found[:number])
        latest = _checked(call, results, found[number:])
        filled = [
            _put(stack, row, index) for stack, row in zip(carried[number:], latest, strict=True)
        ]
        return [index + 1, *after, *filled]

    begun = [np.asarray(1, np.int32), *values, *stacks]
    _, *ended = repeat_while(goes_on, body, [call.lifted(value) for value in begun])
    return [*_typed(start, ended[:number]), *_typed(results, ended[number:])]


def _put(stack: AnyArray, row: AnyArray, index: AnyArray) -> AnyArray:
    """A copy of a stack with another row."""
    zero = np.zeros(1, np.int32)
    starts = [index.reshape(1), *[zero] * (stack.ndim - 1)]
    return put_slice(stack, row[None], np.concatenate(starts))


@kernel("Scan")
def scan(call: Call) -> list[Any]:
    """A graph for each slice of some inputs, with values that it carries on."""
    body, sliced = call.subgraph("body"), call.integer("num_scan_inputs")
    states = len(call.inputs) - sliced
    results = len(body.outputs) - states
    if not 0 < sliced <= len(call.inputs) or len(body.inputs) != len(call.inputs) or results < 0:
        raise call.error(
            f"has {len(call.inputs)} inputs of which {sliced} are sliced, and a body of "
            f"{len(body.inputs)} inputs and {len(body.outputs)} outputs"
        )
    start = [_plain(call, call.input(index)) for index in range(states)]
    sequences = []
    for number in range(sliced):
        operand = _plain(call, call.input(states + number))
        rank = len(operand.shape)
        axis = call.checked_axis(_listed(call, "scan_input_axes", number, sliced), rank)
        order = [axis, *(a for a in range(rank) if a != axis)]
        value = operand.value.transpose(order)
        if _listed(call, "scan_input_directions", number, sliced):
            value = np.flip(value, 0)
        sequences.append(Operand(operand.name, operand.type, value))
    lengths = {each.shape[0] for each in sequences}
    if len(lengths) != 1:
        raise call.error(f"has inputs of {sorted(lengths)} slices")
    (count,) = lengths

    def step(index: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        parts = [
            Operand("", each.type, take(each.value, index.reshape(1), 0).reshape(each.shape[1:]))
            for each in sequences
        ]
        found = call.graph.inner(body, [*_as(start, values), *parts])
        return [_plain(call, each) for each in found]

    found = _gathered(call, step, count, start)
    stacked = []
    for number, each in enumerate(found[states:]):
        value, rank = each.value, each.value.ndim
        if _listed(call, "scan_output_directions", number, results):
            value = np.flip(value, 0)
        axis = call.checked_axis(_listed(call, "scan_output_axes", number, results), rank)
        order = list(range(1, rank))
        order.insert(axis, 0)
        stacked.append(Typed(each.type, value.transpose(order)))
    return [*found[:states], *stacked]


def _listed(call: Call, name: str, number: int, count: int) -> int:
    """A number of an attribute that has one for each of some inputs or outputs; 0 by default."""
    given = call.attribute(name, [0] * count)
    if len(given) != count:
        raise call.error(f"has {len(given)} numbers in {name!r}, expected {count}")
    return int(given[number])
