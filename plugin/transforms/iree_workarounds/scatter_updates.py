"""Updates of ``scatter`` that are computed, in a dispatch of their own.

Symptom: IREE refuses a ``scatter`` whose updates are computed and take more than 32 KiB
(llvm-cpu): "exceeded stack allocation limit".
Cause: IREE 3.13 computes the updates in the dispatch of the ``scatter``, all of them on the stack;
so it does with indices of 64 bits, which it narrows to 32.
Test: `test_computed_updates_are_still_refused` in tests/test_iree_limits.py.

Before::

    %u = stablehlo.maximum %x, %zero : tensor<2000x64xf32>
    %y = "stablehlo.scatter"(%input, %indices, %u) ...

After::

    %u = stablehlo.maximum %x, %zero : tensor<2000x64xf32>
    %v = iree_tensor_ext.compute_barrier.start %u
    %y = "stablehlo.scatter"(%input, %indices, %v) ...
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...emit import linalg, stablehlo
from ...emit.operation import byte_size, mlir_type
from ...numerics.element_types import I32, I64
from ..base import NoMatch

_MAX_FUSED_BYTES = 4 << 10
"""The bytes of indices or updates that a ``scatter`` may compute, at most."""


def separate_updates(op: Operation) -> NoMatch | None:
    """Compute large indices and updates of a ``scatter`` before it."""
    inputs = len(op.results)
    large = [
        number
        for number in range(inputs, len(op.operands))
        if not op.operands[number].type.has_static_shape
        or byte_size(op.operands[number].type) > _MAX_FUSED_BYTES
    ]
    is_changed = False
    indices, i32 = op.operands[inputs], mlir_type(I32)
    if inputs in large and indices.type.element_type == mlir_type(I64):
        with ir.InsertionPoint(op), op.location:  # in bounds: `index_bounds.pad_scatter`
            op.operands[inputs] = stablehlo.convert(indices, i32)
        is_changed = True
    is_changed |= linalg.separate_operands(op, large)
    return None if is_changed else NoMatch("reads updates that are computed before")
