"""Accumulators of integer products: their bounds, scales and biases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import is_known
from ....numerics.element_types import AnyArray, DType
from ..call import Call, Operand
from ..quantization.expressed import (
    ExpressedValue,
    Quantized,
    ScaledSum,
    accumulator_type,
    scale_factor,
    scale_product,
)


def centered_input(
    call: Call,
    index: int,
    read_grid: Callable[[Operand, tuple[int, ...]], tuple[AnyArray, tuple[int, ...]]],
) -> AnyArray:
    """An input of integers less its zero points; see `integer_input`."""
    return integer_input(call, index, read_grid).centered()[0]


def integer_input(
    call: Call,
    index: int,
    read_grid: Callable[[Operand, tuple[int, ...]], tuple[AnyArray, tuple[int, ...]]],
) -> Quantized:
    """An input of integers with its zero points, if it has any: they are two inputs after it.

    `read_grid` returns the zero points for a shape, as `grid` does.
    """
    operand, zero_operand, zero_points = call.input(index), call.optional(index + 2), None
    if zero_operand is not None:
        zero_points, _ = read_grid(zero_operand, operand.shape)
    ones = np.ones((1,) * len(operand.shape), np.float32)
    return Quantized(operand.value, operand.type, ones, zero_points, operand.shape)


def accumulator(
    weights: AnyArray, weight_bound: int, input_bound: int, axes: tuple[int, ...]
) -> tuple[int, DType]:
    """The greatest magnitude of sums of products over axes of weights, and the dtype for it."""
    if is_known(weights):
        magnitudes = np.abs(weights.astype(np.int64)).sum(axis=axes)
        bound = int(magnitudes.max(initial=0)) * input_bound
    else:
        bound = int(math.prod(weights.shape[a] for a in axes)) * weight_bound * input_bound
    return bound, accumulator_type(bound).dtype


def product_factor(left: AnyArray, right: AnyArray, rank: int) -> AnyArray:
    """The product of scales, with axes of one element in front up to a rank."""
    factors = [
        scale_factor(scales).reshape((1,) * (rank - len(scales.shape)) + tuple(scales.shape))
        for scales in (left, right)
    ]
    return scale_product(*factors)


def reason_for_floats(left: ExpressedValue, right: ExpressedValue) -> str:
    """The reason reported for operands that are not `Quantized`; `integer_matmul` has its own."""
    if any(isinstance(side, ScaledSum) for side in (left, right)):
        return "an operand is a sum that nothing rounded to storage"
    return "one operand is float, the other a dequantized weight or activation"


def add_bias(call: Call, total: ScaledSum, bias: AnyArray, axis: int) -> ScaledSum | AnyArray:
    """Add a bias for each index of an axis, or of the shape of the last axes."""
    rank = len(total.shape)
    if len(bias.shape) == 1 and bias.shape[0] == total.shape[axis]:
        shape = tuple(n if a == axis else 1 for a, n in enumerate(total.shape))
    else:
        shape = (1,) * (rank - len(bias.shape)) + tuple(bias.shape)
    if isinstance(bias, Quantized):
        scale_shape = tuple(1 if math.prod(bias.scales.shape) == 1 else n for n in shape)
        if math.prod(scale_shape) == math.prod(bias.scales.shape):
            planes = [bias.scales, bias.zero_points]
            scales, zeros = (None if p is None else p.reshape(scale_shape) for p in planes)
            sizes = tuple(n if s == 1 else 1 for n, s in zip(shape, scale_shape, strict=True))
            storage = bias.storage.reshape(shape)
            term = Quantized(storage, bias.type, scales, zeros, sizes).as_sum()
            with_bias = None if term is None else total.plus(term)
            if with_bias is not None:
                return with_bias
    call.with_floats("the bias is float, or of no shape that is added to each result")
    return total.dequantize(call.graph.lift) + call.floats(bias).reshape(shape)
