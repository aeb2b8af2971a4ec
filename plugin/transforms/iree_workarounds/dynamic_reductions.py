"""Reductions of dynamic shapes over neighboring axes, one axis after another.

IREE 3.13 collapses neighboring reduced axes into one. If the dispatch has a second result (a
tensor that is computed, reduced, and used elsewhere too), the second result gets the extent of
another axis: its elements are at wrong indices, or the call fails. So axes are reduced one by one
where several extents are dynamic::

    %r = stablehlo.reduce(%x init: %zero) ... across dimensions = [1, 2] : tensor<?x2x?xi32>

becomes ::

    %s = stablehlo.reduce(%x init: %zero) ... across dimensions = [2] : tensor<?x2x?xi32>
    %r = stablehlo.reduce(%s init: %zero) ... across dimensions = [1] : tensor<?x2xi32>

Source: StableHLO specification, ``reduce``, which leaves the order open, and how often the initial
value is taken.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter
from ...emit import linalg
from ...emit.operation import dynamic_extents, integers, with_shape
from ..base import NoMatch

__all__ = ["reduce_axis_by_axis"]


def reduce_axis_by_axis(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Reduce axis by axis, where IREE would mistake the extent of some for that of another."""
    count = len(op.results)
    values, starts = list(op.operands)[:count], list(op.operands)[count:]
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    if not any(axis + 1 in axes for axis in axes):
        return NoMatch("reduces no neighboring axes")
    if dynamic_extents(values[0].type) < 2:
        return NoMatch("has one dynamic extent, or none")
    for axis in reversed(axes):
        shape = [int(extent) for extent in values[0].type.shape]
        del shape[axis]
        copied = op.clone()
        reduced = emit.like(
            copied,
            [*values, *starts],
            [with_shape(value.type, shape) for value in values],
            {"dimensions": integers([axis])},
            take_bodies=True,
        )
        copied.erase()
        values = list(reduced.results)
    results = zip(values, op.results, strict=True)
    rewriter.replace_op(op, [linalg.cast(value, result.type) for value, result in results])
    return None
