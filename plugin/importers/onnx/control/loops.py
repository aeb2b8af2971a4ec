"""Loops, whose graphs read what is around them.

The first iteration of a loop with results of its iterations is written before it, which says what
they are. Where the program finds the number of iterations, the results have a counted axis
(`bounded`), whose bound is the greatest number of iterations.

Sources: ONNX, Loop 1 to 25, Scan 9 to 25.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import choose, convert, is_known, put_slice, repeat_while, take
from ....numerics.element_types import I32, I64, AnyArray
from ..call import Call, Operand, Typed, importer
from ..dynamic_sizes.bounded_tensor import bounded
from ..dynamic_sizes.upper_bounds import most_of
from ..reading.model import Subgraph, is_too_large

_MOST = (1 << 31) - 1
"""Iterations: they are counted in 32 bits."""


@importer("Loop")
def loop(call: Call) -> list[Any]:
    """A graph a number of times, or while it says so; both if both are there."""
    body = call.subgraph("body")
    start = [call.plain(call.input(index)) for index in range(2, len(call.inputs))]
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
        return [call.plain(each) for each in found]

    if not scanned:
        return _repeated(call, step, convert(trips, I32), first, start)
    has_count = count is not None and count < _MOST
    if has_count and is_known(first) and first.all() and _keeps_condition(body):

        def certain(index: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
            return step(index, np.asarray(True), values)[1:]

        try:
            return _gathered(call, certain, int(trips), start)
        except UnsupportedError:  # it may be the number of the iteration that must be constant
            if int(trips) > _MAX_TRIED:
                raise
    if count is not None and is_known(first):
        unrolled = _unrolled(call, step, count, first, start)
        if unrolled is not None:
            return unrolled
    bound = count if has_count else most_of(call, 0)
    if bound is None:
        operand = call.optional(0)
        needs = "needs a constant number of iterations"
        if operand is not None and not operand.is_constant:
            needs = f"needs {operand} to be constant, or the Min of a number and a constant"
        raise call.error(
            f"{needs}: it gives a result of each iteration, and their number is known only when "
            "the program runs; or carry the results as a tensor of fixed shape",
            UnsupportedError,
        )
    return _counted(call, step, convert(trips, I32), bound, first, start)


_MAX_TRIED = 64
"""The number of iterations up to which a loop that is refused is written without a loop."""
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
) -> list[Typed] | None:
    """Values after iterations that are written one after the other, and the results of each.

    Returns:
        None where the condition of an iteration does not follow from constants, as it does from a
        counter that is carried, or there are too many iterations.
    """
    carried: list[Operand] = list(start)
    rows: list[list[Operand]] = []
    number = len(start)
    while bool(np.all(condition)):
        if len(rows) >= count:
            break
        if len(rows) >= _MAX_UNROLLED:
            return None
        index = np.asarray(len(rows), np.int32)
        again, *results = step(index, condition, [each.value for each in carried])
        if not again.is_constant:
            return None
        condition = np.asarray(again.value)
        _checked(call, start, results[:number])
        carried = results[:number]
        rows.append(results[number:])
    if not rows:
        return [*_typed(start, [each.value for each in start]), *_no_rows(call, step, start)]
    stacks = []
    for parts in zip(*rows, strict=True):
        _checked(call, [parts[0]] * len(parts), parts)
        stacks.append(Typed(parts[0].type, np.stack([each.value for each in parts])))
    return [*(Typed(each.type, each.value) for each in carried), *stacks]


def _no_rows(
    call: Call,
    step: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]],
    start: Sequence[Operand],
) -> list[Typed]:
    """The results of no iteration; the shape of a row is that of the first one."""
    rows = _first_rows(call, step, start)
    return [Typed(row.type, np.zeros((0, *row.shape), row.value.dtype)) for row in rows]


def _first_rows(
    call: Call,
    step: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]],
    start: Sequence[Operand],
) -> list[Operand]:
    """The results of an iteration that only tells types and shapes."""
    values = [each.value for each in start]
    return step(np.asarray(0, np.int32), np.asarray(True), values)[1 + len(start) :]


def _scalar(call: Call, index: int) -> AnyArray:
    """An operand of one element, None if it is absent."""
    return None if call.optional(index) is None else call.scalar(index)


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
    stacks: Sequence[AnyArray] = (),
) -> list[Typed]:
    """Values after a number of iterations that the program finds.

    Args:
        call: the node.
        step: an iteration.
        trips: the greatest number of iterations, i32.
        first: the condition of the first iteration.
        start: the values before it.
        stacks: arrays that get a row for each iteration.

    Returns:
        The values, the stacks, and the number of iterations.
    """
    number = len(start)

    def goes_on(index: AnyArray, condition: AnyArray, *values: AnyArray) -> AnyArray:
        return (index < trips) & condition

    def body(index: AnyArray, condition: AnyArray, *values: AnyArray) -> list[AnyArray]:
        again, *found = step(index, condition, values[:number])
        if again.type != "BOOL":
            raise call.error(f"has a condition of type {again.type}")
        filled = [
            _put(stack, row.value, index)
            for stack, row in zip(values[number:], found[number:], strict=True)
        ]
        after = _checked(call, start, found[:number])
        return [index + 1, again.value.reshape(()), *after, *filled]

    values = [np.asarray(0, np.int32), first, *(each.value for each in start), *stacks]
    values = [call.lifted(value) for value in values]
    if is_known(trips) and trips == 1:  # IREE's compiler crashes on one iteration (IREE 3.13)
        ended = choose(goes_on(*values), lambda: body(*values), lambda: values)
    else:
        ended = repeat_while(goes_on, body, values)
    index, _, *found = ended
    results = _typed(start, found[:number])
    if stacks:
        results += [Typed("", each) for each in (*found[number:], index)]
    return results


def _counted(
    call: Call,
    step: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]],
    trips: AnyArray,
    bound: int,
    first: AnyArray,
    start: Sequence[Operand],
) -> list[Typed]:
    """Values after at most as many iterations as a bound, and a row of results for each of them."""
    rows = _first_rows(call, step, start)
    if not bound:
        return [*_typed(start, [each.value for each in start]), *_no_rows(call, step, start)]
    if any(is_too_large((bound, *row.shape)) for row in rows):
        raise call.error(
            f"gives a result of each of up to {bound} iterations, which take too much memory; have "
            "a smaller number of iterations",
            UnsupportedError,
        )
    trips = np.minimum(trips, np.int32(bound))
    stacks = [np.zeros((bound, *row.shape), row.value.dtype) for row in rows]
    *results, count = _repeated(call, step, trips, first, start, stacks)
    number = len(start)
    return [
        *results[:number],
        *(
            Typed(row.type, bounded(each.value, 0, count.value.reshape(())))
            for row, each in zip(rows, results[number:], strict=True)
        ),
    ]


def _gathered(
    call: Call,
    step: Callable[[AnyArray, Sequence[AnyArray]], list[Operand]],
    count: int,
    start: Sequence[Operand],
) -> list[Typed]:
    """Values after a known number of iterations, and the results of each, stacked."""
    number = len(start)
    found = step(np.asarray(0, np.int32), [each.value for each in start])
    results = found[number:]
    values = _checked(call, start, found[:number])
    if not count:  # that iteration only tells types and shapes
        empty = [np.zeros((0, *row.shape), row.value.dtype) for row in results]
        return [*_typed(start, [each.value for each in start]), *_typed(results, empty)]
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


@importer("Scan")
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
    start = [call.plain(call.input(index)) for index in range(states)]
    sequences = []
    for number in range(sliced):
        operand = call.plain(call.input(states + number))
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
        return [call.plain(each) for each in found]

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
