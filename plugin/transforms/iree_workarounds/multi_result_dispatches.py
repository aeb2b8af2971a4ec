"""What IREE refuses where a dispatch has several results, on Vulkan.

IREE 3.13 computes what is made of a tensor in one dispatch with it. Where that has several results,
it refuses

* what is made of a sum, or of a greatest element, as the scale of each row and the row as integers
  in that scale: it tiles by one result and may compute others for all rows at once, in vectors that
  it has no form for ("failed to legalize operation 'arith.constant'", "'vector.from_elements'")::

      %m = stablehlo.reduce(%x ...) applies stablehlo.maximum across dimensions = [1]
      %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
      %q = stablehlo.divide %x, %b : tensor<8x64xf32>
      return %q, %m

* a result that is written into another tensor, as a ``pad`` does ("restricted to workgroup
  distributed contexts").

Whether it does depends on extents and on what it joins. The sum, or what is written, stands alone.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from .cross_thread_reads import is_fused_by_elements

__all__ = ["has_several_results", "inserts_one_of_several"]

_INSERTED = {
    "stablehlo.dynamic_update_slice": 1,
    "stablehlo.pad": 0,
    "tensor.insert_slice": 0,
    "tensor.pad": 0,
}
"""The number of the operand that an operation writes into another tensor."""

_HAND_ON = ("scf.condition", "scf.yield", "stablehlo.return")


def has_several_results(value: Value) -> bool:
    """True if more than one tensor that is made of a value, itself included, is read elsewhere.

    Not of what a loop, or a branch, hands on: IREE loses the buffer of what is behind a barrier
    then ("buffer was not returned by Vulkan queue_alloca").
    """
    seen: set[Value] = set()
    pending, leaving = [value], 0
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        users = [use.owner.operation for use in value.uses]
        if any(user.name in _HAND_ON for user in users):
            return False
        leaving += any(not is_fused_by_elements(user) for user in users)
        pending += [v for user in users if is_fused_by_elements(user) for v in user.results]
    return leaving > 1


def inserts_one_of_several(op: Operation) -> int | None:
    """The number of the operand that is inserted, if what it is made of has several results."""
    number = _INSERTED.get(op.name)
    if number is None:
        return None
    seen: set[Value] = set()
    pending = [op.operands[number]]
    while pending:
        value = pending.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        producer = value.owner.operation
        if not is_fused_by_elements(producer):
            continue
        if has_several_results(value):
            return number
        pending += [v for v in producer.operands if isinstance(v.type, ir.RankedTensorType)]
    return None
