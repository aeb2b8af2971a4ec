"""Detection of dispatches with several results that IREE refuses (Vulkan).

Symptom: "failed to legalize operation 'arith.constant'" or "'vector.from_elements'"; "restricted to
workgroup distributed contexts".
Cause: IREE 3.13 fuses consumers into the dispatch of a tensor, tiles by one result, and may compute
the others for all rows at once, in vectors that it cannot lower.
Test: `test_rows_with_two_results_are_still_refused_without_barriers` in
tests/test_cross_thread_reads.py.

It refuses

* consumers of a reduction, for example the scale of each row and the row as integers in that
  scale::

      %m = stablehlo.reduce(%x ...) applies stablehlo.maximum across dimensions = [1]
      %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
      %q = stablehlo.divide %x, %b : tensor<8x64xf32>
      return %q, %m

* a result that is written into another tensor, as by a ``pad``.

This depends on sizes and on the fused operations. The reduction, or the written tensor, gets a
dispatch of its own.

Symptom: "VK_ERROR_UNKNOWN", "NVVM compilation failed" where an executable is loaded.
Cause: IREE 3.13 fuses a reduction of rows with the loop that computes its operand. If others read
this operand too, as a norm and a softmax do, each invocation has all rows of a workgroup in memory
of its own: 20 KiB for 8 x 640, for which NVIDIA's driver 580 refuses the shader.
Test: `test_rows_that_are_read_twice_take_no_private_memory` in tests/test_cross_thread_reads.py.

The operand gets a dispatch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core._mlir import Operation, Value, ir
from ...emit.operation import all_producers
from ..base import producer_of
from .cross_thread_reads import is_fusible

_INSERTED_OPERANDS = {
    "stablehlo.dynamic_update_slice": 1,
    "stablehlo.pad": 0,
    "tensor.insert_slice": 0,
    "tensor.pad": 0,
}
"""Number of the operand that an operation writes into another tensor."""

_CALL = "func.call"
"""A call of a function that IREE inlines later: it fuses the loops of both."""
_MAX_PRIVATE_ROW = 64
"""Elements of a row that stay in the memory of an invocation, 2 KiB with eight rows of f32.

NVIDIA's driver 580 refuses 640. The softmax of a short row takes one dispatch less.
"""
_CARRYING_TERMINATORS = ("scf.condition", "scf.yield", "stablehlo.return")


def has_several_results(value: Value) -> bool:
    """True if more than one tensor among a value and its fused consumers is read elsewhere.

    False for a tensor that a loop or branch carries: IREE loses a carried buffer behind a barrier
    ("buffer was not returned by Vulkan queue_alloca").
    """
    seen: set[Value] = set()
    pending, leaving = [value], 0
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        users = [use.owner.operation for use in value.uses]
        if any(user.name in _CARRYING_TERMINATORS for user in users):
            return False
        leaving += any(not is_fusible(user) for user in users)
        pending += [v for user in users if is_fusible(user) for v in user.results]
    return leaving > 1


def values_read_elsewhere(op: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Return values that are fused into a reduction, from its inputs on, and that others read.

    None where rows are short. Not those that a loop or branch carries, as for
    `has_several_results`, and none of dynamic size, for which a call would wait behind the barrier.
    """
    if _row_size(op) <= _MAX_PRIVATE_ROW:
        return []
    fused, pending = {op}, list(inputs)
    while pending:
        producer = producer_of(pending.pop())
        if producer is None or producer in fused:
            continue
        if is_fusible(producer):
            pending += producer.operands
        elif producer.name != _CALL:
            continue
        fused.add(producer)
    shared: dict[Value, None] = {}
    pending = list(inputs)
    while pending:
        value = pending.pop()
        producer = producer_of(value)
        if producer not in fused or value in shared:
            continue
        users = {use.owner.operation for use in value.uses}
        if users <= fused:
            pending += producer.operands if producer.name != _CALL else []
        elif value.type.has_static_shape and not any(
            user.name in _CARRYING_TERMINATORS for user in users
        ):
            shared[value] = None
    return list(shared)


def _row_size(op: Operation) -> int:
    """The elements that a reduction of rows combines to one; 0 where that is dynamic."""
    types = op.operands[0].type, op.results[0].type
    if not all(type_.has_static_shape for type_ in types):
        return 0
    size, count = (math.prod(map(int, type_.shape)) for type_ in types)
    return size // max(1, count)


def inserts_one_of_several(op: Operation) -> int | None:
    """The number of the inserted operand, if one of its sources has several results."""
    number = _INSERTED_OPERANDS.get(op.name)
    if number is None:
        return None

    def has_one_result(value: Value) -> bool | None:
        producer = producer_of(value)
        is_tensor = isinstance(value.type, ir.RankedTensorType)
        if producer is None or not is_tensor or not is_fusible(producer):
            return True
        return False if has_several_results(value) else None

    return None if all_producers(op.operands[number], has_one_result) else number
