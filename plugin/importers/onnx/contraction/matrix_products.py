"""Matrix products: MatMul, Gemm and their quantized forms.

Products of storage less zero points are accumulated in 32 bits, or in 64 where 32 could overflow.
The product of the scales becomes the scale of the accumulator. MatMulInteger wraps in 32 bits,
which the specification forbids models to reach.

Sources: ONNX, MatMulInteger 10, QLinearMatMul 10 and 21; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.convolutions import contract
from ....numerics.element_types import AnyArray, DType, ElementType
from ..call import Call, Operand, importer
from ..elementwise.arithmetic import broadcast_shapes
from ..quantization.expressed import (
    ExpressedValue,
    Quantized,
    ScaledSum,
    scale_factor,
    scale_product,
)
from ..quantization.quantize_linear import dynamically_quantized, grid, quantized, stored
from .accumulators import accumulator, add_bias, centered_input, product_factor, reason_for_floats


def matmul(call: Call, left: AnyArray, right: AnyArray, dtype: DType) -> AnyArray:
    """Multiply as ``np.matmul``, accumulating in a dtype; a right matrix is not repeated."""
    shapes = (tuple(left.shape), tuple(right.shape))
    mismatch = call.error(f"multiplies tensors of shapes {[list(s) for s in shapes]}")
    if min(left.ndim, right.ndim) < 1:
        raise mismatch
    is_row, is_column = left.ndim == 1, right.ndim == 1
    left = left.reshape((1, *shapes[0])) if is_row else left
    right = right.reshape((*shapes[1], 1)) if is_column else right
    if left.shape[-1] != right.shape[-2]:
        raise mismatch
    if right.ndim == 2:
        product = contract(left, right, ((left.ndim - 1,), (0,)), dtype=dtype)
    else:
        try:
            batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except ValueError:
            raise mismatch from None
        rank = len(batch)
        sides = [
            np.broadcast_to(
                side.reshape((1,) * (rank + 2 - side.ndim) + tuple(side.shape)),
                (*batch, *side.shape[-2:]),
            )
            for side in (left, right)
        ]
        axes = tuple(range(rank))
        product = contract(sides[0], sides[1], ((rank + 1,), (rank,)), (axes, axes), dtype=dtype)
    if is_row:
        product = product.reshape((*product.shape[:-2], product.shape[-1]))
    return product.reshape(product.shape[:-1]) if is_column else product


def integer_matmul(call: Call, left: Quantized, right: Quantized) -> ScaledSum | None:
    """Multiply quantized matrices; None for blocks, vectors, scales along K, unlike scale types."""
    reason = ""
    if not (left.broadcasts and right.broadcasts):
        reason = "an operand has scales for blocks"
    elif min(len(left.shape), len(right.shape)) < 2:
        reason = "an operand is a vector"
    elif left.scales.shape[-1] != 1 or right.scales.shape[-2] != 1:
        reason = "scales differ along the dimension that is summed"
    elif left.dtype != right.dtype or left.dtype not in (np.float32, np.float16):
        reason = f"scales are {left.dtype.name} and {right.dtype.name}"
    if reason:
        call.with_floats(reason)
        return None
    (x, x_bound), (w, w_bound) = left.centered(), right.centered()
    bound, dtype = accumulator(w, w_bound, x_bound, (w.ndim - 2,))
    total = matmul(call, x, w, dtype)
    return ScaledSum.of(total, bound, product_factor(left.scales, right.scales, total.ndim))


def required_integer_matmul(call: Call, left: Quantized, right: Quantized) -> ScaledSum:
    """Multiply two quantized matrices; refuse where `integer_matmul` gives None.

    Raises:
        UnsupportedError: the scales differ along K.
    """
    total = integer_matmul(call, left, right)
    if total is None:
        raise call.unsupported("has scales along the dimension that is summed")
    return total


def per_row(call: Call, index: int, scale: int, zero_point: int, *, rows: bool) -> Quantized:
    """An operand of a product, with one scale, or one for each row or column."""
    operand = call.input(index)
    scales, sizes = _matrix_grid(call, call.input(scale), operand.shape, rows=rows)
    zero_operand, zero_points = call.optional(zero_point), None
    if zero_operand is not None:
        zero_points, zero_point_sizes = _matrix_grid(call, zero_operand, operand.shape, rows=rows)
        if zero_point_sizes != sizes and math.prod(zero_points.shape) != 1:
            scales = np.broadcast_to(scales, zero_points.shape)
            sizes = zero_point_sizes
        elif zero_point_sizes != sizes:
            zero_points = np.broadcast_to(zero_points, scales.shape)
    return Quantized(operand.value, operand.type, scales, zero_points, sizes)


def _matrix_grid(
    call: Call, operand: Operand, shape: Sequence[int], *, rows: bool
) -> tuple[AnyArray, tuple[int, ...]]:
    """Read scales or zero points as `grid`, or of the shape ``[..., 1, N]`` or ``[..., M, 1]``."""
    axis = max(len(shape) - (2 if rows else 1), 0)
    if len(operand.shape) != len(shape) or len(shape) < 2:
        return grid(call, operand, shape, axis)
    expected = tuple(n if a != len(shape) - 1 - (axis == len(shape) - 1) else 1
                     for a, n in enumerate(shape))  # fmt: skip
    if any(n not in (1, size) for n, size in zip(operand.shape, expected, strict=True)):
        raise call.error(f"has {operand} of shape {list(operand.shape)} for {list(shape)}")
    sizes = tuple(size if n == 1 else 1 for n, size in zip(operand.shape, shape, strict=True))
    return operand.value, sizes


@importer("QLinearMatMul")
def qlinear_matmul(call: Call) -> Operand:
    """QLinearMatMul-21: ``a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero``."""
    left = per_row(call, 0, 1, 2, rows=True)
    right = per_row(call, 3, 4, 5, rows=False)
    return stored(call, required_integer_matmul(call, left, right), 6, 7)


@importer("MatMulInteger")
def matmul_integer(call: Call) -> AnyArray:
    """MatMulInteger-10: ``A, B, a_zero_point, b_zero_point`` to int32."""
    left, right = (
        centered_input(call, n, functools.partial(_matrix_grid, call, rows=n == 0)) for n in (0, 1)
    )
    call.with_integers()
    return matmul(call, left, right, np.dtype(np.int32))


@importer("MatMul")
def float_matmul(call: Call) -> ScaledSum | AnyArray:
    """MatMul-13: ``A @ B``; a scaled integer product where both operands are quantized."""
    left, right = call.input(0).value, call.input(1).value
    if isinstance(left, Quantized) and isinstance(right, Quantized):
        total = integer_matmul(call, left, right)
        if total is not None:
            return total
    call.with_floats(reason_for_floats(left, right))
    x, w = call.floats(left), call.floats(right)
    return _product(call, x, w)


def _product(call: Call, x: AnyArray, w: AnyArray) -> AnyArray:
    """Multiply in the operands' type; f16 and bf16 accumulate in f32, integers wrap."""
    element = ElementType.of_dtype(np.dtype(x.dtype))
    is_narrow = element.is_float and element.bits < 32
    dtype = np.dtype(np.float32) if is_narrow else element.dtype
    return convert(matmul(call, x, w, dtype), element)


@importer("Gemm")
def gemm(call: Call) -> ScaledSum | AnyArray:
    """Gemm-13: ``alpha * A @ B + beta * C``; a scaled integer product of quantized A and B."""
    sides: list[ExpressedValue] = [call.input(index).value for index in (0, 1)]
    if any(len(side.shape) != 2 for side in sides):
        raise call.error(f"multiplies tensors of shapes {[list(side.shape) for side in sides]}")
    for index, name in enumerate(("transA", "transB")):
        if call.attribute(name, 0):
            side = sides[index]
            is_quantized = isinstance(side, Quantized)
            sides[index] = side.transposed((1, 0)) if is_quantized else call.floats(side).T
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    left, right = sides
    bias, shape = call.optional(2), (left.shape[0], right.shape[1])
    if bias is not None and broadcast_shapes(call, [shape, bias.shape]) != shape:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(shape)}")
    if isinstance(left, Quantized) and isinstance(right, Quantized) and alpha == beta == 1.0:
        total = integer_matmul(call, left, right)
        if total is not None:
            return total if bias is None else add_bias(call, total, bias.value, axis=1)
    is_scaled = alpha != 1 or beta != 1
    call.with_floats("alpha or beta is not 1" if is_scaled else reason_for_floats(left, right))
    product = _product(call, call.floats(left), call.floats(right))
    if alpha != 1.0:
        product = product * np.asarray(alpha, product.dtype)
    if bias is None:
        return product
    addend = call.floats(bias.value)
    return product + (addend if beta == 1.0 else addend * np.asarray(beta, product.dtype))


@importer("com.microsoft.QGemm")
def qgemm(call: Call) -> Operand | AnyArray:
    """QGemm-1: ``A, a_scale, a_zero, B, b_scale, b_zero, C, y_scale, y_zero``.

    C has the scale of ``A @ B``.
    """
    column_axis = 1 - bool(call.attribute("transB", 0))
    left, right = quantized(call, 0, 1, 2), quantized(call, 3, 4, 5, axis=column_axis)
    if len(left.shape) != 2 or len(right.shape) != 2:
        raise call.error(f"multiplies tensors of shapes {[list(left.shape), list(right.shape)]}")
    if call.attribute("transA", 0):
        left = left.transposed((1, 0))
    if call.attribute("transB", 0):
        right = right.transposed((1, 0))
    (term,) = required_integer_matmul(call, left, right).terms
    alpha = scale_factor(np.float32(call.attribute("alpha", 1.0)).reshape(1, 1))
    factor, value, bound = scale_product(alpha, term.factor), term.value, term.bound
    bias = call.optional(6)
    if bias is not None:
        bound += 1 << 31
        shape = (1,) * (2 - len(bias.shape)) + bias.shape
        if len(shape) != 2 or any(n not in (1, m) for n, m in zip(shape, value.shape, strict=True)):
            raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(value.shape)}")
        value = value.astype(np.int64) + bias.value.reshape(shape).astype(np.int64)
    total = ScaledSum.of(value, bound, factor)
    if call.optional(7) is None:
        call.with_integers()
        return total
    return stored(call, total, 7, 8)


@importer("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(call: Call) -> AnyArray:
    """DynamicQuantizeMatMul-1: ``A, B, b_scale, b_zero_point, bias``.

    A is quantized as DynamicQuantizeLinear does.
    """
    real = call.array(0)
    storage, scale, zero_point = (each.value for each in dynamically_quantized(real))
    ones = (1,) * len(real.shape)
    left = Quantized(
        storage, "UINT8", scale.reshape(ones), zero_point.reshape(ones), tuple(real.shape)
    )
    return _dequantized_product(call, left, per_row(call, 1, 2, 3, rows=False), 4)


@importer("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(call: Call) -> AnyArray:
    """MatMulIntegerToFloat-1: ``A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias``."""
    left, right = per_row(call, 0, 2, 4, rows=True), per_row(call, 1, 3, 5, rows=False)
    return _dequantized_product(call, left, right, 6)


def _dequantized_product(call: Call, left: Quantized, right: Quantized, bias: int) -> AnyArray:
    total = required_integer_matmul(call, left, right)
    call.with_integers()
    real = total.dequantize(call.graph.lift)
    return real if call.optional(bias) is None else real + call.array(bias)
