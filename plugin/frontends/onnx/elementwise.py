"""Sums, products and pools of reals that are integers and scales.

Sources: ONNX, Add, Mul, Relu, MaxPool, GlobalAveragePool; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...errors import UnsupportedError
from ...numerics.array_functions import convert, pool
from ...numerics.element_types import I32, AnyArray
from .call import Call, Typed, kernel
from .contractions import padding
from .quantization import quantized, stored
from .reals import Quantized, Real, Scaled, Sum, factor_of, joined, product_of

__all__: list[str] = []


def _as_sum(real: Real) -> Sum | None:
    return real.sum() if isinstance(real, Quantized) else real if isinstance(real, Sum) else None


@kernel("Add")
def add(call: Call) -> Sum | None:
    """An exact sum of what is integers and known scales; else torch-mlir's."""
    sides = _aligned(call)
    if sides is None:
        return None
    total = sides[0].plus(sides[1])
    if total is None:
        call.with_floats("it adds too many terms")
    return total


def _aligned(call: Call) -> list[Sum] | None:
    """Both operands as exact sums of one shape."""
    sums = [_as_sum(call.input(index).value) for index in (0, 1)]
    found = [total for total in sums if total is not None]
    if len(found) < 2:
        call.with_floats("an operand is float, or has scales for blocks")
        return None
    if not all(total.is_exact for total in found):
        call.with_floats("a scale is an argument, or 0")
        return None
    try:
        shape = np.broadcast_shapes(*(total.shape for total in found))
    except ValueError:
        raise call.error(f"has operands of shapes {[list(t.shape) for t in found]}") from None
    return [total.broadcast_to(shape) for total in found]


@kernel("Mul")
def multiply(call: Call) -> Sum | None:
    """An exact product of what is integers and known scales; else torch-mlir's."""
    sides = _aligned(call)
    if sides is None:
        return None
    product = sides[0].times(sides[1])
    if product is None:
        call.with_floats("products take more than 31 bits")
    return product


@kernel("Relu")
def relu(call: Call) -> Sum | None:
    """Integers below 0 become 0."""
    total = _as_sum(call.input(0).value)
    found = None if total is None else total.clamped_below()
    if found is None and total is not None:
        call.with_floats("it is of a sum of several terms, or of scales that are arguments")
        return None
    return found


@kernel("ReduceMax", "ReduceMin")
def reduce_max(call: Call) -> AnyArray:
    """Of all axes, or those that an attribute or an input names; torch-mlir knows few of them."""
    value = call.array(0)
    if value.dtype.kind not in "fi" or not math.prod(value.shape):
        return None
    axes = call.attribute("axes")
    if call.version >= 18 and call.optional(1) is not None:
        axes = call.known(1).reshape(-1).tolist()
    rank, keep = len(value.shape), bool(call.attribute("keepdims", 1))
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return value
    chosen = tuple(sorted({call.checked_axis(a, rank) for a in axes or range(rank)}))
    if call.node.operator == "ReduceMax":
        return value.max(axis=chosen, keepdims=keep)
    flip = np.negative if value.dtype.kind == "f" else np.invert  # no overflow
    return flip(flip(value).max(axis=chosen, keepdims=keep))


# -- ONNX Runtime's -------------------------------------------------------------------------------


@kernel("com.microsoft.QLinearAdd")
def qlinear_add(call: Call) -> Typed:
    """``A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero``."""
    left, right = _two(call)
    total = left.plus(right)
    if total is None:
        raise call.error("adds too many terms", UnsupportedError)
    return stored(call, total, 6, 7)


@kernel("com.microsoft.QLinearMul")
def qlinear_mul(call: Call) -> Typed:
    """``A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero``."""
    left, right = _two(call)
    total = left.times(right)
    if total is None:
        raise call.error("multiplies more than 31 bits", UnsupportedError)
    return stored(call, total, 6, 7)


def _two(call: Call) -> tuple[Sum, Sum]:
    """Both operands, broadcast to one shape."""
    operands = [quantized(call, 0, 1, 2), quantized(call, 3, 4, 5)]
    try:
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    except ValueError:
        raise call.error(
            f"has operands of shapes {[list(operand.shape) for operand in operands]}"
        ) from None
    sums = []
    for operand in operands:
        padded = (1,) * (len(shape) - len(operand.shape)) + operand.shape
        moved = operand.moved(lambda x, p=padded: np.broadcast_to(x.reshape(p), shape))  # type: ignore[misc]
        total = None if moved is None else moved.sum()
        if total is None:
            raise call.error("has operands with several scales", UnsupportedError)
        sums.append(total)
    return sums[0], sums[1]


@kernel("com.microsoft.QLinearConcat")
def qlinear_concat(call: Call) -> Typed:
    """``Y_scale, Y_zero, X, X_scale, X_zero, ...``: each in the parameters of the result."""
    axis, parts, type_ = call.integer("axis"), [], call.input(1).type
    if len(call.inputs) < 5 or (len(call.inputs) - 2) % 3:
        raise call.error(f"has {len(call.inputs)} inputs, expected 2 and 3 for each operand")
    for index in range(2, len(call.inputs), 3):
        part = stored(call, quantized(call, index, index + 1, index + 2), 0, 1)
        parts.append(part.value)
    return Typed(type_, joined(parts, call.checked_axis(axis, parts[0].ndim)))


@kernel("com.microsoft.QLinearGlobalAveragePool")
def qlinear_global_average_pool(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: the mean of each channel, rounded once."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    first = 1 if call.attribute("channels_last", 0) else 2
    return stored(call, _mean(operand, tuple(range(first, first + rank - 2))), 3, 4)


def _mean(operand: Quantized, axes: tuple[int, ...]) -> Sum:
    """The mean over axes, which stay with one element."""
    count = math.prod(operand.shape[axis] for axis in axes)
    value, bound = operand.centered()
    total = convert(value, I32).sum(axis=axes, dtype=np.int32, keepdims=True)
    rank = len(operand.shape)
    inverse = factor_of(np.ones((1,) * rank, np.float32))
    if inverse.dtype == object:
        inverse = np.asarray(inverse / max(count, 1), object)
    scale = factor_of(operand.scales.reshape((1,) * rank))
    return Sum((Scaled(total, bound * count, product_of(scale, inverse)),))


@kernel("GlobalAveragePool")
def global_average_pool(call: Call) -> Sum | None:
    """A mean of integers with one scale; else torch-mlir's."""
    real = call.input(0).value
    if not isinstance(real, Quantized) or not real.is_per_tensor or real.dtype != np.float32:
        return None
    return _mean(real, tuple(range(2, len(real.shape))))


@kernel("MaxPool")
def max_pool(call: Call) -> Real:
    """Of integers, or of reals with one scale; else torch-mlir's."""
    operand = call.input(0)
    if isinstance(operand.value, Quantized):
        return operand.value.moved(lambda storage: _max_pool(call, storage))
    if operand.type not in ("INT8", "UINT8"):
        return None
    return Typed(operand.type, _max_pool(call, operand.value))


def _max_pool(call: Call, images: AnyArray) -> AnyArray:
    rank, sizes = len(images.shape) - 2, call.attribute("kernel_shape", [])
    strides = call.attribute("strides", [1] * rank)
    if rank != 2 or len(sizes) != 2 or len(strides) != 2 or min(*sizes, *strides) < 1:
        raise call.error(f"has windows of {sizes} in images of {list(images.shape)}")
    if any(n != 1 for n in call.attribute("dilations", [1, 1])) or call.attribute("ceil_mode", 0):
        raise call.error("of integers has dilations or rounds up", UnsupportedError)
    if len(call.node.outputs) > 1:
        raise call.error("of integers gives indices", UnsupportedError)
    pads = padding(call, images.shape[2:], sizes, strides)
    wide = images.astype(np.int32)  # comparisons of signed integers
    if any(map(any, pads)):
        least = int(np.iinfo(images.dtype).min)
        wide = np.pad(wide, ((0, 0), (0, 0), *pads), constant_values=least)
    spans = zip(wide.shape[2:], sizes, strict=True)
    if any(extent < size for extent, size in spans):
        raise call.error(f"has windows of {sizes} in images of {list(images.shape)}")
    found = pool(wide.transpose(0, 2, 3, 1), tuple(sizes), tuple(strides), "maximum")
    return found.transpose(0, 3, 1, 2).astype(images.dtype)


_Unary = Callable[[AnyArray], AnyArray]


def _by_reals(call: Call, function: _Unary) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: the function of the reals, rounded."""
    real = quantized(call, 0, 1, 2).reals(call.graph.lift)
    return stored(call, function(real), 3, 4)


@kernel("com.microsoft.QLinearSigmoid")
def qlinear_sigmoid(call: Call) -> Typed:
    """``1 / (1 + exp(-x))`` of the reals."""
    one = np.float32(1)
    return _by_reals(call, lambda x: one / (one + np.exp(-x)))


@kernel("com.microsoft.QLinearLeakyRelu")
def qlinear_leaky_relu(call: Call) -> Typed:
    """Reals below 0 times ``alpha``."""
    alpha = np.float32(call.attribute("alpha", 0.01))
    return _by_reals(call, lambda x: np.where(x < 0, x * alpha, x))


@kernel("com.microsoft.QLinearSoftmax")
def qlinear_softmax(call: Call) -> Typed:
    """Along an axis, of the reals."""
    if call.attribute("opset", 13) < 13:
        raise call.error(f"of opset {call.attribute('opset')} is not lowered", UnsupportedError)
    axis = call.axis("axis", len(call.input(0).shape), -1)

    def softmax(x: AnyArray) -> AnyArray:
        exps = np.exp(x - x.max(axis=axis, keepdims=True))
        return exps / exps.sum(axis=axis, dtype=np.float32, keepdims=True)

    return _by_reals(call, softmax)
