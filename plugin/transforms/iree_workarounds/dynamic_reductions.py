"""``reduce`` over neighboring axes of dynamic shapes, axis by axis.

Symptom: a second result of the dispatch (a tensor that is computed, reduced and used elsewhere too)
has its elements at wrong indices, or the call fails (all targets).
Cause: IREE 3.13 collapses neighboring reduced axes into one, and gives the second result the size
of another axis.
Test: `test_neighboring_axes_still_get_the_size_of_another` in tests/test_iree_limits_numbers.py.

Axes are reduced one by one where several sizes are dynamic::

    %r = stablehlo.reduce(%x init: %zero) ... across dimensions = [1, 2] : tensor<?x2x?xi32>

becomes ::

    %s = stablehlo.reduce(%x init: %zero) ... across dimensions = [2] : tensor<?x2x?xi32>
    %r = stablehlo.reduce(%s init: %zero) ... across dimensions = [1] : tensor<?x2xi32>

Source: StableHLO specification, ``reduce``: the order of evaluation, and the number of uses of the
initial value, are implementation-defined.
"""

from __future__ import annotations

from ...core._mlir import Operation
from ...emit import linalg
from ...emit.operation import dynamic_extents, integers, with_shape
from ..base import NoMatch, Replacement
from .loop_nests import with_copied_body


def reduce_axis_by_axis(op: Operation) -> Replacement:
    """Reduce axis by axis where IREE would use the size of another axis."""
    count = len(op.results)
    values, starts = list(op.operands)[:count], list(op.operands)[count:]
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    if not any(axis + 1 in axes for axis in axes):
        return NoMatch("reduces no neighboring axes")
    if dynamic_extents(values[0].type) < 2:
        return NoMatch("has fewer than two dynamic sizes")
    for axis in reversed(axes):
        shape = [int(size) for size in values[0].type.shape]
        del shape[axis]
        types = [with_shape(value.type, shape) for value in values]
        dimensions = {"dimensions": integers([axis])}
        values = list(with_copied_body(op, [*values, *starts], types, dimensions).results)
    results = zip(values, op.results, strict=True)
    return [linalg.cast(value, result.type) for value, result in results]
