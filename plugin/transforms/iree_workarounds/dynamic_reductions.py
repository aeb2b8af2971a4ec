"""``reduce`` over neighboring axes of dynamic shapes, axis by axis.

Symptom: a second result of the dispatch (a tensor that is computed, reduced and used elsewhere too)
has its elements at wrong indices, or the call fails (all targets).
Cause: IREE 3.13 collapses neighboring reduced axes into one, and gives the second result the size
of another axis.
Test: `test_neighboring_axes_still_get_the_size_of_another` in tests/test_iree_limits_numbers.py.

Axes are reduced one by one where several sizes are dynamic::

    %r = stablehlo.reduce(%x init: %start) ... across dimensions = [1, 2] : tensor<?x2x?xi32>

becomes ::

    %s = stablehlo.reduce(%x init: %zero) ... across dimensions = [2] : tensor<?x2x?xi32>
    %r = stablehlo.reduce(%s init: %start) ... across dimensions = [1] : tensor<?x2xi32>

The initial value of a sum or a product counts once, as in StableHLO's interpreter: the first
reductions start from the neutral element.

Source: StableHLO specification, ``reduce``: the order of evaluation, and the number of uses of the
initial value, are implementation-defined.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...emit import linalg, stablehlo
from ...emit.operation import dynamic_dims, integers, splat, with_shape
from ..base import NoMatch, Replacement
from .loop_nests import with_copied_body


def reduce_axis_by_axis(op: Operation) -> Replacement:
    """Reduce axis by axis where IREE would use the size of another axis."""
    count = len(op.results)
    values, starts = list(op.operands)[:count], list(op.operands)[count:]
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    if not any(axis + 1 in axes for axis in axes):
        return NoMatch("reduces no neighboring axes")
    if dynamic_dims(values[0].type) < 2:
        return NoMatch("has fewer than two dynamic sizes")
    for axis in reversed(axes):
        shape = [int(size) for size in values[0].type.shape]
        del shape[axis]
        types = [with_shape(value.type, shape) for value in values]
        dimensions = {"dimensions": integers([axis])}
        own = starts if axis == axes[0] else _neutral_starts(op, starts)
        values = list(with_copied_body(op, [*values, *own], types, dimensions).results)
    results = zip(values, op.results, strict=True)
    return [linalg.cast(value, result.type) for value, result in results]


def _neutral_starts(op: Operation, starts: list[Value]) -> list[Value]:
    """Return the neutral element of a sum or a product; else the initial values."""
    body = op.regions[0].blocks[0].operations
    name, element = body[0].operation.name, starts[0].type.element_type
    is_float = isinstance(element, ir.FloatType)
    if len(body) != 2 or not (is_float or isinstance(element, ir.IntegerType)):
        return starts
    if name == "stablehlo.add":
        return [stablehlo.constant_of(splat(-0.0 if is_float else 0, starts[0].type))]
    if name == "stablehlo.multiply":
        return [stablehlo.constant_of(splat(1, starts[0].type))]
    return starts
