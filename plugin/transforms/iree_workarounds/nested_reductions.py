"""Reductions over the results of other reductions, in dispatches of their own (llvm-cpu).

Symptom: wrong sums and extrema, of both reductions, without an error. For ``s = sum(x, axis=-1)``
and ``m = max(x - s)`` over all axes, a program that returns `s` and `m` gets both wrong.
Cause: IREE 3.13 computes both in one dispatch if the first result has other readers too, and cuts
the loop over the rows into tiles, of which each starts the reductions again.
Test: `test_nested_reductions_are_still_wrong` in tests/test_iree_limits_reductions.py.

A reduction with fewer results than another one that it depends on also reduces an axis of the
results of that one. The first reduction is computed separately then. Those of a softmax or a
normalization, which reduce the same axis, stay in one dispatch.

Before::

    %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : ...
    %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<32xf32>) -> tensor<32x40xf32>
    %d = stablehlo.subtract %x, %b : tensor<32x40xf32>
    %m = stablehlo.reduce(%d init: %least) applies stablehlo.maximum across dimensions = [0, 1]

After::

    %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : ...
    %separate = iree_tensor_ext.compute_barrier.start %s
    %b = stablehlo.broadcast_in_dim %separate, dims = [0] : (tensor<32xf32>) -> tensor<32x40xf32>
"""

from __future__ import annotations

import math

from ...core._mlir import Operation, Value, ir
from ...dialects.stablehlo import CONTRACTIONS
from ...emit import linalg
from ...emit.operation import is_dynamic, values_read
from ..base import walk
from .cross_thread_reads import is_reduction

_SEPARATE = (
    *CONTRACTIONS,
    *(linalg.APART, linalg.BARRIER, linalg.TIE_SHAPE, "flow.dispatch"),
    *("stablehlo.optimization_barrier", "stablehlo.while", "stablehlo.if", "stablehlo.case"),
)
"""Operations whose results another dispatch computes."""


def separate_nested_reductions(module: Operation) -> bool:
    """Compute reductions apart from those over their results; False if there are none."""
    # The reductions that may be computed in the dispatch of a value.
    fused: dict[Value, frozenset[Operation]] = {}
    nested: dict[Operation, None] = {}  # in order
    for op in walk(module, in_kernels=False):
        if op.name in _SEPARATE or not op.results:
            continue
        earlier = frozenset[Operation]().union(*(fused.get(value, ()) for value in values_read(op)))
        if _is_plain_reduction(op):
            nested |= dict.fromkeys(each for each in earlier if _reduces_results(op, each))
            earlier = frozenset([op])
        if earlier:
            fused |= dict.fromkeys(op.results, earlier)
    for op in nested:
        for result in op.results:
            uses = [(use.owner, use.operand_number) for use in result.uses]
            with ir.InsertionPoint.after(op), op.location:
                separate = linalg.in_separate_dispatch(result)
            for user, number in uses:
                if user.operation.name != "func.return":
                    user.operands[number] = separate
    return bool(nested)


def _is_plain_reduction(op: Operation) -> bool:
    """True for a reduction that is no contraction: a loop nest of one input."""
    inputs = op.attributes["operandSegmentSizes"][0] if op.name == "linalg.generic" else 1
    return is_reduction(op) and int(inputs) == 1


def _reduces_results(op: Operation, earlier: Operation) -> bool:
    """True if a reduction has fewer results than an earlier one; by rank if sizes are dynamic."""
    shapes = [[int(size) for size in each.results[0].type.shape] for each in (op, earlier)]
    if any(is_dynamic(size) for shape in shapes for size in shape):
        return len(shapes[0]) < len(shapes[1])
    return math.prod(shapes[0]) < math.prod(shapes[1])
