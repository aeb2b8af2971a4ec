"""Sums, products and functions of reals that are integers and scales.

Sources: ONNX, Add, Sub, Mul, Neg, Relu, LeakyRelu, Clip, ReduceMax, ReduceMin; ONNX Runtime,
``ContribOperators.md``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import I32, AnyArray
from ..call import Call, Typed, importer
from ..elementwise.activations import clipped, leaky, rectified
from ..elementwise.arithmetic import added, multiplied, negated, subtracted
from ..reading.model import element_of
from .expressed import ExpressedValue, Quantized, ScaledSum
from .quantize_linear import quantized, stored


def _as_sum(real: ExpressedValue) -> ScaledSum | None:
    return (
        real.sum() if isinstance(real, Quantized) else real if isinstance(real, ScaledSum) else None
    )


@importer("Add")
def add(call: Call) -> ScaledSum | Typed:
    """An exact sum of integers with constant scales; of floats and plain integers otherwise."""
    sides = _aligned(call)
    if sides is None:
        return added(call)
    total = sides[0].plus(sides[1])
    if total is None:
        call.with_floats("it adds too many terms")
        return added(call)
    return total


def _aligned(call: Call) -> list[ScaledSum] | None:
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


@importer("Mul")
def multiply(call: Call) -> ScaledSum | Typed:
    """An exact product of integers with constant scales; of floats and integers otherwise."""
    sides = _aligned(call)
    if sides is None:
        return multiplied(call)
    product = sides[0].times(sides[1])
    if product is None:
        call.with_floats("products take more than 31 bits")
        return multiplied(call)
    return product


@importer("Relu")
def relu(call: Call) -> ScaledSum | Typed:
    """Elements below 0 become 0; quantized operands stay integers."""
    total = _as_sum(call.input(0).value)
    clamped = None if total is None else total.clamped_below()
    return rectified(call) if clamped is None else clamped


@importer("Sub")
def subtract(call: Call) -> ScaledSum | Typed:
    """An exact difference of integers with constant scales; of floats and integers otherwise."""
    sides = _aligned(call)
    if sides is None:
        return subtracted(call)
    total = sides[0].plus(sides[1].negated())
    if total is None:
        call.with_floats("it subtracts too many terms")
        return subtracted(call)
    return total


@importer("Neg")
def negate(call: Call) -> ScaledSum | Typed:
    """Negated elements; quantized operands stay integers."""
    total = _as_sum(call.input(0).value)
    return negated(call) if total is None else total.negated()


@importer("LeakyRelu")
def leaky_relu(call: Call) -> ScaledSum | Typed:
    """Two terms for a quantized operand: integers from 0 on, and those below, scaled otherwise."""
    total = _as_sum(call.input(0).value)
    found = None if total is None else total.leaky(call.attribute("alpha", 0.01))
    if found is None and total is not None:
        call.with_floats("it is of a sum of several terms, or of scales that are arguments")
    return leaky(call) if found is None else found


@importer("Clip")
def clip(call: Call) -> ScaledSum | Typed:
    """Elements between two bounds, which a later rounding of quantized operands keeps."""
    total = _as_sum(call.input(0).value)
    if total is None:
        return clipped(call)
    bounds = [call.optional(index) for index in (1, 2)]
    if any(bound is not None and not bound.is_constant for bound in bounds):
        call.with_floats("a bound is an argument")
        return clipped(call)
    numbers = [None if each is None else float(each.value.reshape(-1)[0]) for each in bounds]
    bounded = total.bounded(*numbers)
    return clipped(call) if bounded is None else bounded


# -- ONNX Runtime's -------------------------------------------------------------------------------


@importer("com.microsoft.QLinearAdd")
def qlinear_add(call: Call) -> Typed:
    """``A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero``."""
    left, right = _two(call)
    total = left.plus(right)
    if total is None:
        raise call.error("adds too many terms", UnsupportedError)
    return stored(call, total, 6, 7)


@importer("com.microsoft.QLinearMul")
def qlinear_mul(call: Call) -> Typed:
    """``A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero``."""
    left, right = _two(call)
    total = left.times(right)
    if total is None:
        raise call.error("multiplies more than 31 bits", UnsupportedError)
    return stored(call, total, 6, 7)


def _two(call: Call) -> tuple[ScaledSum, ScaledSum]:
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


@importer("com.microsoft.QLinearConcat")
def qlinear_concat(call: Call) -> Typed:
    """``Y_scale, Y_zero, X, X_scale, X_zero, ...``: each in the parameters of the result."""
    axis, parts, type_ = call.integer("axis"), [], call.input(1).type
    if len(call.inputs) < 5 or (len(call.inputs) - 2) % 3:
        raise call.error(f"has {len(call.inputs)} inputs, expected 2 and 3 for each operand")
    for index in range(2, len(call.inputs), 3):
        part = stored(call, quantized(call, index, index + 1, index + 2), 0, 1)
        parts.append(part.value)
    return Typed(type_, np.concatenate(parts, call.checked_axis(axis, parts[0].ndim)))


_Unary = Callable[[AnyArray], AnyArray]


def _by_reals(call: Call, function: _Unary) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: the function of the reals, rounded."""
    real = quantized(call, 0, 1, 2).dequantize(call.graph.lift)
    return stored(call, function(real), 3, 4)


@importer("com.microsoft.QLinearSigmoid")
def qlinear_sigmoid(call: Call) -> Typed:
    """``1 / (1 + exp(-x))`` of the reals."""
    one = np.float32(1)
    return _by_reals(call, lambda x: one / (one + np.exp(-x)))


@importer("com.microsoft.QLinearLeakyRelu")
def qlinear_leaky_relu(call: Call) -> Typed:
    """Reals below 0 times ``alpha``: exact where the scales are known."""
    alpha = call.attribute("alpha", 0.01)
    total = quantized(call, 0, 1, 2).sum()
    found = None if total is None else total.leaky(alpha)
    if found is not None:
        return stored(call, found, 3, 4)
    return _by_reals(call, lambda x: np.where(x < 0, x * np.float32(alpha), x))


@importer("com.microsoft.QLinearWhere")
def qlinear_where(call: Call) -> Typed:
    """``condition, X, x_scale, x_zero, Y, y_scale, y_zero, z_scale, z_zero``."""
    condition = call.array(0)
    parts = [stored(call, quantized(call, n, n + 1, n + 2), 7, 8) for n in (1, 4)]
    sides = [convert(part.value, I32) for part in parts]
    element = element_of(parts[0].type)
    return Typed(parts[0].type, np.where(condition, *sides).astype(element.dtype))


@importer("com.microsoft.QLinearSoftmax")
def qlinear_softmax(call: Call) -> Typed:
    """Along an axis, of the reals."""
    if call.attribute("opset", 13) < 13:
        raise call.error(f"of opset {call.attribute('opset')} is not lowered", UnsupportedError)
    axis = call.axis("axis", len(call.input(0).shape), -1)

    def softmax(x: AnyArray) -> AnyArray:
        exps = np.exp(x - x.max(axis=axis, keepdims=True))
        return exps / exps.sum(axis=axis, dtype=np.float32, keepdims=True)

    return _by_reals(call, softmax)
