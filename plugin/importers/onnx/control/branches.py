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
    counts = [len(graph.outputs) for graph in branches]
    if counts[0] != counts[1]:
        raise call.error(f"has branches of {counts[0]} and {counts[1]} results")
    if is_known(condition):
        return call.graph.inner(branches[0 if condition else 1], [])
    types: list[list[str]] = []
    shapes: list[list[tuple[int, ...]]] = []

    def compute(graph: Subgraph) -> list[AnyArray]:
        results = call.graph.inner(graph, [])
        if any(isinstance(each.value, BoundedTensor) for each in results):
            raise _BoundedResultError
        results = [call.plain(each) for each in results]
        types.append([each.type for each in results])
        shapes.append([each.shape for each in results])
        if types[0] != types[-1]:
            raise call.error(f"has branches of the types {types[0]} and {types[-1]}")
        if shapes[0] != shapes[-1]:
            raise _BoundedResultError
        return [each.value for each in results]

    try:
        values = choose(condition, *(functools.partial(compute, graph) for graph in branches))
    except _BoundedResultError:
        return _with_bounded_results(call, condition, branches)
    return [Operand(type_, value) for type_, value in zip(types[0], values, strict=True)]


class _BoundedResultError(Exception):
    """The number of rows of a result is computed, or depends on the branch."""


def _with_bounded_results(
    call: Call, condition: AnyArray, branches: Sequence[Subgraph]
) -> list[Operand]:
    """Choose between branches whose results have bounded tensors, or different sizes."""
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
    sizes = list(zip(yes.shape, no.shape, strict=False))
    different = {axis for axis, (left, right) in enumerate(sizes) if left != right}
    axes = axes or different
    if (
        yes.type != no.type
        or len(yes.shape) != len(no.shape)
        or len(axes) > 1
        or not different <= axes
    ):
        raise call.unsupported(
            f"has branches of {yes.type} of shape {list(yes.shape)} and {no.type} of shape "
            f"{list(no.shape)}, expected one type, and sizes that differ in one dimension; if an "
            "input decides between them, make it a constant with --input-value"
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
