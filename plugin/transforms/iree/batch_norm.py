"""``batch_norm_grad``, for which IREE has no lowering, as its definition in the specification.

Source: StableHLO specification, ``batch_norm_grad``.
"""

from __future__ import annotations

import numpy as np

from ... import emit
from ..._mlir import Operation, Rewriter
from ...emit import Formula, stablehlo
from ..base import NoMatch

__all__ = ["expand_batch_norm_grad"]


def expand_batch_norm_grad(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """The gradients of operand, scale and offset, with the specification's names."""
    operand, scale, mean, variance, grad_output = (emit.tensor(value) for value in op.operands)
    vector, whole = op.operands[1].type, op.operands[0].type
    if not whole.has_static_shape:
        return NoMatch("has a dynamic shape")
    feature_index = int(op.attributes["feature_index"].value)
    epsilon = float(op.attributes["epsilon"].value)
    others = [axis for axis in range(whole.rank) if axis != feature_index]
    elements_per_feature = float(np.prod([int(whole.shape[axis]) for axis in others]))

    def broadcast(features: Formula) -> Formula:
        return emit.tensor(stablehlo.broadcast(features.value, whole, [feature_index]))

    def compute_sum(elements: Formula) -> Formula:
        return emit.tensor(stablehlo.reduce(elements.value, others, result=vector))

    stddev = np.sqrt(variance + epsilon)
    centered_operand = operand - broadcast(mean)
    normalized_operand = centered_operand / broadcast(stddev)
    i1 = grad_output * elements_per_feature
    i2 = broadcast(compute_sum(grad_output))
    i3 = broadcast(compute_sum(grad_output * centered_operand))
    i4 = i3 * centered_operand
    i5 = i4 / broadcast(variance + epsilon)
    i6 = i1 - i2 - i5
    grad_operand = broadcast(scale / stddev / elements_per_feature) * i6
    grad_scale = compute_sum(grad_output * normalized_operand)
    grad_offset = compute_sum(grad_output)
    rewriter.replace_op(op, [grad.value for grad in (grad_operand, grad_scale, grad_offset)])
    return None
