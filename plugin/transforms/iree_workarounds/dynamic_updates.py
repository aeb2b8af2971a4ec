"""``dynamic_update_slice`` of dynamic shapes, as ``tensor.insert_slice``.

IREE 3.13 refuses it for a dynamic operand or update. The start indices are clamped, so that the
update is inside the operand::

    %r = stablehlo.dynamic_update_slice %x, %u, %i, %j
        : (tensor<?x4xi8>, tensor<?x2xi8>, tensor<i32>, tensor<i32>) -> tensor<?x4xi8>

becomes ::

    %r = tensor.insert_slice %u into %x[%a, %b] [%n, 2] [1, 1]

with ``a = max(min(i, rows(x) - rows(u)), 0)``.

Source: StableHLO specification, ``dynamic_update_slice``.
"""

from __future__ import annotations

import numpy as np

from ... import emit
from ...core._mlir import Operation, Rewriter, Value
from ...emit import Formula, linalg
from ...emit.operation import INDEX
from ..base import NoMatch
from .index_bounds import as_signed
from .unsigned_integers import bits_as, signless

__all__ = ["expand_dynamic_update"]


def expand_dynamic_update(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``dynamic_update_slice`` of a dynamic shape as an insertion."""
    operand, update, *starts = op.operands
    if operand.type.has_static_shape and update.type.has_static_shape:
        return NoMatch("has a static shape")
    operand, update = (bits_as(value, signless(value.type)) for value in (operand, update))
    clamped = [_clamped(operand, update, axis, start) for axis, start in enumerate(starts)]
    inserted = linalg.put_part(update, operand, clamped)
    result = op.results[0].type
    rewriter.replace_op(op, [bits_as(linalg.cast(inserted, signless(result)), result)])
    return None


def _clamped(operand: Value, update: Value, axis: int, start: Value) -> Value:
    """A start index with which the update is inside the operand."""
    index: Formula = emit.scalar(linalg.extract(as_signed(start), [])).convert(INDEX)
    extent, size = (emit.scalar(linalg.dim(each, axis), INDEX) for each in (operand, update))
    inside: Formula = np.maximum(np.minimum(index, extent - size), 0)
    return inside.value
