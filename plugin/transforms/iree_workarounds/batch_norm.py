"""``batch_norm_grad`` and ``batch_norm_training``, expanded to their definitions.

Symptom: IREE refuses ``batch_norm_grad``, and ``batch_norm_training`` of a dynamic shape (all
targets); results of ``batch_norm_training`` are wrong on Vulkan.
Cause: IREE 3.13 has no lowering for the refused forms. It expands the other after the passes that
keep its sums in dispatches of their own (`cross_thread_reads`).
Test: none; `test_batch_norm_training` in tests/test_cross_thread_reads.py covers it.

Source: StableHLO specification, ``batch_norm_grad``, ``batch_norm_training``.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from ... import emit
from ...core._mlir import Operation
from ...dialects.quant import element_type, is_quantized
from ...emit import ArrayLike, stablehlo
from ...emit.operation import is_dynamic
from ..base import NoMatch, Replacement


def expand_batch_norm_grad(op: Operation) -> Replacement:
    """Compute the gradients of operand, scale and offset, with the specification's names."""
    if is_quantized(op.operands[0].type):
        return NoMatch("is quantized: legalize-quant-to-math lowers it")
    operand, scale, mean, variance, grad_output = (emit.tensor(value) for value in op.operands)
    batch = _Batch(op)
    stddev = np.sqrt(variance + batch.epsilon)
    centered_operand = operand - batch.broadcast(mean)
    normalized_operand = centered_operand / batch.broadcast(stddev)
    elements_per_feature = batch.elements_per_feature
    i1 = grad_output * batch.broadcast(elements_per_feature)
    i2 = batch.broadcast(batch.sum(grad_output))
    i3 = batch.broadcast(batch.sum(grad_output * centered_operand))
    i4 = i3 * centered_operand
    i5 = i4 / batch.broadcast(variance + batch.epsilon)
    i6 = i1 - i2 - i5
    grad_operand = batch.broadcast(scale / stddev / elements_per_feature) * i6
    grad_scale = batch.sum(grad_output * normalized_operand)
    grad_offset = batch.sum(grad_output)
    return [grad.value for grad in (grad_operand, grad_scale, grad_offset)]


def expand_batch_norm_training(op: Operation) -> Replacement:
    """Compute the normalized operand, and the mean and variance of each feature."""
    if is_quantized(op.operands[0].type):
        return NoMatch("is quantized: legalize-quant-to-math lowers it")
    operand, scale, offset = (emit.tensor(value) for value in op.operands)
    batch = _Batch(op)
    mean = batch.sum(operand) / batch.elements_per_feature
    centered_operand = operand - batch.broadcast(mean)
    variance = batch.sum(centered_operand * centered_operand) / batch.elements_per_feature
    stddev = np.sqrt(variance + batch.epsilon)
    normalized_operand = centered_operand / batch.broadcast(stddev)
    output = batch.broadcast(scale) * normalized_operand + batch.broadcast(offset)
    return [result.value for result in (output, mean, variance)]


class _Batch:
    """A tensor with a feature axis; sums over, and broadcasts of, its features."""

    def __init__(self, op: Operation) -> None:
        self._operand, self._features = op.operands[0], op.operands[1]
        self._axis = int(op.attributes["feature_index"].value)
        self._summed = [axis for axis in range(self._operand.type.rank) if axis != self._axis]
        self._form = emit.Tensors(self._operand)
        self.epsilon = float(op.attributes["epsilon"].value)

    def broadcast(self, features: ArrayLike) -> ArrayLike:
        """A value of each feature, broadcast to each element."""
        if not isinstance(features, emit.TracedValue):
            return features
        return emit.tensor(self._form.broadcast(features.value, [self._axis]))

    def sum(self, elements: ArrayLike) -> ArrayLike:
        """The sum of each feature's elements."""
        result = self._features.type
        return emit.tensor(stablehlo.reduce(elements.value, self._summed, result=result))

    @cached_property
    def elements_per_feature(self) -> ArrayLike:
        """The number of elements of a feature: static, or a tensor that repeats it."""
        shape = {axis: int(self._operand.type.shape[axis]) for axis in self._summed}
        static = float(math.prod(size for size in shape.values() if not is_dynamic(size)))
        sizes = [
            stablehlo.dimension_size(self._operand, axis)
            for axis, size in shape.items()
            if is_dynamic(size)
        ]
        if not sizes:
            return static
        element = element_type(self._operand.type)
        count = math.prod(emit.tensor(stablehlo.convert(size, element)) for size in sizes) * static
        return emit.tensor(emit.Tensors(self._features).broadcast(count.value))
