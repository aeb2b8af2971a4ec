"""Loop and Scan, whose graphs read values of the graph around them.

The first iteration of a loop that stacks results is written before the loop: it gives the types and
shapes of the results. Where the program computes the number of iterations, the stacked results have
a data-dependent dimension size (`bounded_tensor`), whose bound is the greatest number of
iterations.

Sources: ONNX, Loop 1 to 25, Scan 9 to 25.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import choose, convert, is_known, put_slice, repeat_while, take
from ....numerics.element_types import I32, I64, AnyArray
from ..call import Call, Operand, importer
from ..dynamic_sizes.bounded_tensor import bounded
from ..reading.model import Subgraph, Tensor, is_too_large

_MAX_ITERATIONS = (1 << 31) - 1
"""The greatest number of iterations: they are counted in 32 bits."""
_MAX_TRIED = 64
"""Iterations up to which a loop with a refused body is unrolled; more take longer to refuse."""
_MAX_UNROLLED = 1024
"""Iterations that are unrolled, at most; more accept more loops, with larger programs."""
_MAX_NODES = 64
"""Nodes of a chain that is followed to a bound, at most; with fewer, more Loops are refused."""
_ELEMENTS_OF_FIRST_INPUT = (
    "Cast", "Gather", "Identity", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Squeeze",
    "Unsqueeze",
)  # fmt: skip
"""Operators whose results have only elements of their first input."""


@dataclass(frozen=True, eq=False)
class _Iteration:
    """An iteration of a loop, and the values before the first one.

    Args:
        body: computes an iteration: takes its number, the condition and the carried values;
            returns the condition for another iteration, the carried values and the results.
        start: the carried values before the first iteration.
    """

    call: Call
    body: Callable[[AnyArray, AnyArray, Sequence[AnyArray]], list[Operand]]
    start: Sequence[Operand]

    def first_results(self) -> list[Operand]:
        """The results of an iteration that only gives types and shapes."""
        values = [each.value for each in self.start]
        results = self.body(np.asarray(0, np.int32), np.asarray(True), values)
        return results[1 + len(self.start) :]

    def carried(self, after: Sequence[Operand]) -> list[AnyArray]:
        """The carried values after an iteration, checked."""
        return _values_like(self.call, self.start, after)

    def without_iterations(self, rows: Sequence[Operand]) -> list[Operand]:
        """The results of a loop without iterations: the start, and stacks without rows."""
        empty = [Operand(row.type, np.zeros((0, *row.shape), row.value.dtype)) for row in rows]
        return [*self.start, *empty]


def _values_like(call: Call, before: Sequence[Operand], after: Sequence[Operand]) -> list[AnyArray]:
    """Return the values after an iteration, which must keep their types and shapes."""
    for old, new in zip(before, after, strict=True):
        if (old.type, old.shape) != (new.type, new.shape):
            raise call.unsupported(
                f"makes {new.type} of shape {list(new.shape)} of {old}, which is "
                f"{old.type} of shape {list(old.shape)}"
            )
    return [each.value for each in after]


def _with_types(like: Sequence[Operand], values: Sequence[AnyArray]) -> list[Operand]:
    return [Operand(each.type, value) for each, value in zip(like, values, strict=True)]


@importer("Loop")
def loop(call: Call) -> list[Any]:
    """Loop-25: ``M, cond, v_initial``: a graph repeated M times, or while ``cond`` holds."""
    body = call.subgraph("body")
    start = [call.plain(call.input(index)) for index in range(2, len(call.inputs))]
    result_count = len(body.outputs) - 1 - len(start)
    if len(body.inputs) != len(start) + 2 or result_count < 0:
        raise call.error(
            f"has a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs for "
            f"{len(start)} values"
        )
    trips = np.asarray(_MAX_ITERATIONS) if call.optional(0) is None else call.scalar(0)
    trips = np.minimum(np.maximum(trips, 0), _MAX_ITERATIONS)
    count = int(trips) if is_known(trips) else None
    condition = np.asarray(True) if call.optional(1) is None else call.scalar(1)

    def compute(index: AnyArray, condition: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        number = Operand("INT64", convert(index, I64).reshape(()))
        arguments = [number, Operand("BOOL", condition), *_with_types(start, values)]
        return [call.plain(each) for each in call.graph.inner(body, arguments)]

    iteration = _Iteration(call, compute, start)
    if count == 0:
        return iteration.without_iterations(iteration.first_results())
    if not result_count:
        return _repeated(iteration, convert(trips, I32), condition)
    has_count = count is not None and count < _MAX_ITERATIONS
    if has_count and is_known(condition) and condition.all() and _keeps_condition(body):
        try:
            return _stacked(iteration, int(trips))
        except UnsupportedError:  # the number of the iteration may have to be constant
            if int(trips) > _MAX_TRIED:
                raise
    if count is not None and is_known(condition):
        unrolled = _unrolled(iteration, count, condition)
        if unrolled is not None:
            return unrolled
    bound = count if has_count else _upper_bound(call, call.node.inputs[0], _MAX_NODES)
    if bound is None:
        operand = call.optional(0)
        needs = "needs a constant number of iterations"
        if operand is not None and not operand.is_constant:
            needs = f"needs {operand} to be constant, or the Min of a number and a constant"
        raise call.unsupported(
            f"{needs}: it gives a result of each iteration, and their number is known only when "
            "the program runs; or carry the results as a tensor of fixed shape"
        )
    return _stacked_to_bound(iteration, convert(trips, I32), bound, condition)


def _keeps_condition(body: Subgraph) -> bool:
    """Return True if the condition for another iteration is the one before, or constant true."""
    producers = {name: node for node in body.nodes for name in node.outputs}
    name = body.outputs[0]
    while name in producers and producers[name].operator == "Identity":
        name = producers[name].inputs[0]
    constant = body.constants.get(name)
    if name in producers and producers[name].operator == "Constant":
        constant = producers[name].attributes.get("value")
    is_true = isinstance(constant, Tensor) and bool(np.all(constant.data))
    return name == body.inputs[1] or is_true


def _upper_bound(call: Call, name: str, depth: int) -> int | None:
    """Return an upper bound of the elements of a tensor; None if none is known.

    It follows from up to `depth` nodes that compute the tensor: the Min of a number and a constant,
    the dimension sizes of a bounded tensor, operators that move elements. Other nodes have none.
    """
    operand, node = call.graph.operand(name), call.graph.producer(name)
    if operand is not None and operand.is_constant:
        array = np.asarray(operand.value)
        return int(array.max()) if array.size and array.dtype.kind in "iu" else None
    if node is None or not depth or not node.inputs:
        return None
    first = call.graph.operand(node.inputs[0])
    if node.operator in ("Shape", "Size"):
        if first is None:
            return None
        return math.prod(first.shape) if node.operator == "Size" else max(first.shape, default=0)
    if node.operator in _ELEMENTS_OF_FIRST_INPUT:
        return _upper_bound(call, node.inputs[0], depth - 1)
    if node.operator == "Clip" and len(node.inputs) > 2:
        return _upper_bound(call, node.inputs[2], depth - 1)
    if node.operator not in ("Min", "Max"):
        return None
    bounds = [_upper_bound(call, each, depth - 1) for each in node.inputs]
    known = [each for each in bounds if each is not None]
    if not known or (node.operator == "Max" and len(known) < len(bounds)):
        return None
    return min(known) if node.operator == "Min" else max(known)


def _unrolled(iteration: _Iteration, count: int, condition: AnyArray) -> list[Operand] | None:
    """Write the iterations one after the other; None for over 1,024, or computed conditions.

    A condition is computed if it does not follow from constants, as it does from a counter that is
    carried.
    """
    call, start = iteration.call, iteration.start
    carried: list[Operand] = list(start)
    rows: list[list[Operand]] = []
    while bool(np.all(condition)) and len(rows) < count:
        if len(rows) >= _MAX_UNROLLED:
            return None
        index = np.asarray(len(rows), np.int32)
        following, *results = iteration.body(index, condition, [each.value for each in carried])
        if not following.is_constant:
            return None
        condition = np.asarray(following.value)
        carried = results[: len(start)]
        iteration.carried(carried)
        rows.append(results[len(start) :])
    if not rows:
        return iteration.without_iterations(iteration.first_results())
    stacks = []
    for column in zip(*rows, strict=True):
        values = _values_like(call, [column[0]] * len(column), column)
        stacks.append(Operand(column[0].type, np.stack(values)))
    return [*carried, *stacks]


def _repeated(
    iteration: _Iteration, trips: AnyArray, condition: AnyArray, stacks: Sequence[AnyArray] = ()
) -> list[Operand]:
    """Write a loop of at most `trips` (i32) iterations, whose number the program computes.

    Stacks get a row for each iteration. The result has the carried values, the stacks, and the
    number of iterations.
    """
    call, count = iteration.call, len(iteration.start)

    def continues(index: AnyArray, condition: AnyArray, *values: AnyArray) -> AnyArray:
        return (index < trips) & condition

    def body(index: AnyArray, condition: AnyArray, *values: AnyArray) -> list[AnyArray]:
        following, *results = iteration.body(index, condition, values[:count])
        if following.type != "BOOL":
            raise call.error(f"has a condition of type {following.type}")
        filled = [
            _with_row(stack, row.value, index)
            for stack, row in zip(values[count:], results[count:], strict=True)
        ]
        after = iteration.carried(results[:count])
        return [index + 1, following.value.reshape(()), *after, *filled]

    initial = [each.value for each in iteration.start]
    values = [np.asarray(0, np.int32), condition, *initial, *stacks]
    values = [call.lifted(value) for value in values]
    if is_known(trips) and trips == 1:  # IREE's compiler crashes on one iteration (IREE 3.13)
        final = choose(continues(*values), lambda: body(*values), lambda: values)
    else:
        final = repeat_while(continues, body, values)
    index, _, *final = final
    results = _with_types(iteration.start, final[:count])
    if stacks:
        results += [Operand("", each) for each in (*final[count:], index)]
    return results


def _stacked_to_bound(
    iteration: _Iteration, trips: AnyArray, bound: int, condition: AnyArray
) -> list[Operand]:
    """Stack the results of up to `bound` iterations."""
    rows = iteration.first_results()
    if not bound:
        return iteration.without_iterations(rows)
    if any(is_too_large((bound, *row.shape)) for row in rows):
        raise iteration.call.unsupported(
            f"gives a result of each of up to {bound} iterations, which take too much memory; have "
            "a smaller number of iterations"
        )
    trips = np.minimum(trips, np.int32(bound))
    stacks = [np.zeros((bound, *row.shape), row.value.dtype) for row in rows]
    *results, count = _repeated(iteration, trips, condition, stacks)
    carried, filled = results[: len(iteration.start)], results[len(iteration.start) :]
    return [
        *carried,
        *(
            Operand(row.type, bounded(each.value, 0, count.value.reshape(())))
            for row, each in zip(rows, filled, strict=True)
        ),
    ]


def _stacked(iteration: _Iteration, count: int) -> list[Operand]:
    """Stack the results of a constant number of iterations, whose condition is true."""
    call, start, number = iteration.call, iteration.start, len(iteration.start)
    is_true = np.asarray(True)

    def compute(index: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        return iteration.body(index, is_true, values)[1:]

    first = compute(np.asarray(0, np.int32), [each.value for each in start])
    results = first[number:]
    values = iteration.carried(first[:number])
    if not count:  # that iteration only gives types and shapes
        return iteration.without_iterations(results)
    rows = [call.lifted(each.value) for each in results]
    if count == 1:
        stacked = _with_types(results, [row[None] for row in rows])
        return [*_with_types(start, values), *stacked]
    stacks = []
    for row in rows:
        empty = call.lifted(np.zeros((count, *row.shape), row.dtype))
        stacks.append(_with_row(empty, row, np.asarray(0, np.int32)))

    def continues(index: AnyArray, *values: AnyArray) -> AnyArray:
        return index < count

    def body(index: AnyArray, *values: AnyArray) -> list[AnyArray]:
        after = compute(index, values[:number])
        carried = iteration.carried(after[:number])
        latest = _values_like(call, results, after[number:])
        filled = [
            _with_row(stack, row, index) for stack, row in zip(values[number:], latest, strict=True)
        ]
        return [index + 1, *carried, *filled]

    initial = [np.asarray(1, np.int32), *values, *stacks]
    _, *final = repeat_while(continues, body, [call.lifted(value) for value in initial])
    return [*_with_types(start, final[:number]), *_with_types(results, final[number:])]


def _with_row(stack: AnyArray, row: AnyArray, index: AnyArray) -> AnyArray:
    """Return a stack with another row."""
    zero = np.zeros(1, np.int32)
    starts = [index.reshape(1), *[zero] * (stack.ndim - 1)]
    return put_slice(stack, row[None], np.concatenate(starts))


@importer("Scan")
def scan(call: Call) -> list[Any]:
    """Scan-25: ``initial_state_and_scan_inputs``: a graph for each slice of inputs."""
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
        value = operand.value.transpose([axis, *(a for a in range(rank) if a != axis)])
        if _listed(call, "scan_input_directions", number, sliced):
            value = np.flip(value, 0)
        sequences.append(Operand(operand.type, value, operand.name))
    lengths = {each.shape[0] for each in sequences}
    if len(lengths) != 1:
        raise call.error(f"has inputs of {sorted(lengths)} slices")
    (count,) = lengths

    def compute(index: AnyArray, condition: AnyArray, values: Sequence[AnyArray]) -> list[Operand]:
        slices = [Operand(each.type, _slice_of(each.value, index)) for each in sequences]
        outputs = call.graph.inner(body, [*_with_types(start, values), *slices])
        return [Operand("BOOL", condition), *(call.plain(each) for each in outputs)]

    outputs = _stacked(_Iteration(call, compute, start), count)
    stacked = []
    for number, each in enumerate(outputs[states:]):
        value, rank = each.value, each.value.ndim
        if _listed(call, "scan_output_directions", number, results):
            value = np.flip(value, 0)
        axis = call.checked_axis(_listed(call, "scan_output_axes", number, results), rank)
        order = list(range(1, rank))
        order.insert(axis, 0)
        stacked.append(Operand(each.type, value.transpose(order)))
    return [*outputs[:states], *stacked]


def _slice_of(sequence: AnyArray, index: AnyArray) -> AnyArray:
    """Return a slice along the first axis; zeros, which only have a shape, if there is none."""
    if not sequence.shape[0]:
        return np.zeros(sequence.shape[1:], sequence.dtype)
    return take(sequence, index.reshape(1), 0).reshape(sequence.shape[1:])


def _listed(call: Call, name: str, number: int, count: int) -> int:
    """Return an element of an attribute with one number for each input or output; 0 by default."""
    numbers = call.attribute(name, [0] * count)
    if len(numbers) != count:
        raise call.error(f"has {len(numbers)} numbers in {name!r}, expected {count}")
    return int(numbers[number])
