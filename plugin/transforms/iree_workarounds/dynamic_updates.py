"""``dynamic_update_slice`` of dynamic shapes as ``tensor.insert_slice``.

Symptom: IREE refuses a dynamic operand or update (all targets).
Cause: IREE 3.13 converts the operation for static shapes only.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

The start indices are clamped, so that the update is inside the operand::

    %r = stablehlo.dynamic_update_slice %x, %u, %i, %j
        : (tensor<?x4xi8>, tensor<?x2xi8>, tensor<i32>, tensor<i32>) -> tensor<?x4xi8>

becomes ::

    %r = tensor.insert_slice %u into %x[%a, %b] [%n, 2] [1, 1]

with ``a = max(min(i, dim(x, 0) - dim(u, 0)), 0)``.

Source: StableHLO specification, ``dynamic_update_slice``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value
from ...emit import linalg
from ...emit.operation import INDEX
from ..base import NoMatch, Replacement
from .index_bounds import as_signed
from .loop_nests import clamped_start, index_scalar, is_static
from .unsigned_integers import bits_as, signless


def expand_dynamic_update(op: Operation) -> Replacement:
    """Rewrite a ``dynamic_update_slice`` of a dynamic shape as an insertion."""
    operand, update, *starts = op.operands
    if is_static(operand, update):
        return NoMatch("has a static shape")
    operand, update = (bits_as(value, signless(value.type)) for value in (operand, update))
    clamped = [_clamped(operand, update, axis, start) for axis, start in enumerate(starts)]
    inserted = linalg.put_slice(update, operand, *clamped)
    result = op.results[0].type
    return bits_as(linalg.cast(inserted, signless(result)), result)


def _clamped(operand: Value, update: Value, axis: int, start: Value) -> Value:
    """The start index along an axis, clamped so that the update is inside the operand."""
    index = emit.scalar(linalg.extract(as_signed(start), [])).convert(INDEX)
    size, update_size = (index_scalar(linalg.dim(each, axis)) for each in (operand, update))
    return clamped_start(index, size - update_size).value
