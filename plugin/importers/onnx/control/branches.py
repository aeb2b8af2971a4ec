"""If, whose graphs read values of the graph around them.

A constant condition chooses a graph when the program is written.

Source: ONNX, If 1 to 25.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....numerics.array_functions import choose, is_known
from ....numerics.element_types import AnyArray
from ..call import Call, Operand, importer
from ..dynamic_sizes.bounded_tensor import BoundedTensor
from ..reading.model import Subgraph


@importer("If")
def if_(call: Call) -> list[Any]:
    """If-25: ``cond``: one of two graphs."""
    condition = call.scalar(0)
    branches = [call.subgraph(name) for name in ("then_branch", "else_branch")]
    if is_known(condition):
        return call.graph.inner(branches[0 if condition else 1], [])
    types: list[list[str]] = []

    def compute(graph: Subgraph) -> list[AnyArray]:
        results = call.graph.inner(graph, [])
        if any(isinstance(each.value, BoundedTensor) for each in results):
            raise _BoundedResultError
        results = [call.plain(each) for each in results]
        types.append([each.type for each in results])
        return [each.value for each in results]

    try:
        values = choose(condition, *(functools.partial(compute, graph) for graph in branches))
    except _BoundedResultError:
        return _with_bounded_results(call, condition, branches)
    if types[0] != types[1]:
        raise call.error(f"has branches of the types {types[0]} and {types[1]}")
    return [Operand(type_, value) for type_, value in zip(types[0], values, strict=True)]


class _BoundedResultError(Exception):
    """A result of a branch is a bounded tensor."""


def _with_bounded_results(
    call: Call, condition: AnyArray, branches: Sequence[Subgraph]
) -> list[Operand]:
    """Choose between branches that have bounded tensors as results."""
    pairs = list(zip(*(call.graph.inner(graph, []) for graph in branches), strict=True))
    axes = [_bounded_axis(call, *pair) for pair in pairs]
    bounds = [
        0 if axis is None else max(each.shape[axis] for each in pair)
        for axis, pair in zip(axes, pairs, strict=True)
    ]

    def compute(graph: Subgraph) -> list[AnyArray]:
        values = []
        for each, axis, bound in zip(call.graph.inner(graph, []), axes, bounds, strict=True):
            if axis is None:
                values.append(call.plain(each).value)
            else:
                values += _padded(call, each, axis, bound)
        return values

    chosen = choose(condition, *(functools.partial(compute, graph) for graph in branches))
    values = iter(chosen)
    return [
        Operand(
            pair[0].type,
            next(values) if axis is None else BoundedTensor(next(values), axis, next(values)),
        )
        for pair, axis in zip(pairs, axes, strict=True)
    ]


def _bounded_axis(call: Call, yes: Operand, no: Operand) -> int | None:
    """Return the axis of a data-dependent size of a result of two branches, None for none."""
    axes = {each.value.axis for each in (yes, no) if isinstance(each.value, BoundedTensor)}
    static_sizes = [
        tuple(n for axis, n in enumerate(each.shape) if axis not in axes) for each in (yes, no)
    ]
    has_one_rank = len(yes.shape) == len(no.shape)
    is_one_type = yes.type == no.type and has_one_rank and len(axes) <= 1
    if not is_one_type or static_sizes[0] != static_sizes[1]:
        raise call.unsupported(
            f"has branches of {yes.type} of shape {list(yes.shape)} and {no.type} of shape "
            f"{list(no.shape)}, where the number of rows is computed"
        )
    return next(iter(axes), None)


def _padded(call: Call, operand: Operand, axis: int, bound: int) -> list[AnyArray]:
    """Pad an array to a bound; return it and the number of valid rows."""
    value, count = operand.value, np.asarray(operand.shape[axis], np.int32)
    if isinstance(value, BoundedTensor):
        value, count = value.value, value.count
    array = call.floats(value)
    widths = [(0, 0)] * len(array.shape)
    widths[axis] = (0, bound - array.shape[axis])
    return [np.pad(array, widths), count]
