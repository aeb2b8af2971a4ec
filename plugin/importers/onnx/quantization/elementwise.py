"""Elementwise operators on quantized operands, computed on integers where that is exact.

Sources: ONNX, Add 14, Sub 14, Mul 14, Neg 13, Relu 14, LeakyRelu 16, Clip 13; ONNX Runtime,
``ContribOperators.md``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import I32, AnyArray
from ..call import Call, Operand, importer
from ..elementwise.activations import sigmoid, softmax_along
from ..elementwise.arithmetic import broadcast_shapes, operands
from ..elementwise.float_operands import as_input_type, float_input, number_like
from ..reading.model import element_of
from .expressed import ExpressedValue, Quantized, ScaledSum
from .quantize_linear import quantized, stored


def _as_sum(value: ExpressedValue) -> ScaledSum | None:
    if isinstance(value, Quantized):
        return value.as_sum()
    return value if isinstance(value, ScaledSum) else None


_COMBINATIONS: dict[
    str,
    tuple[
        Callable[[AnyArray, AnyArray], AnyArray],
        Callable[[ScaledSum, ScaledSum], ScaledSum | None],
        str,
    ],
] = {
    "Add": (operator.add, ScaledSum.plus, "it adds too many terms"),
    "Mul": (operator.mul, ScaledSum.times, "products take more than 31 bits"),
    "Sub": (operator.sub, lambda a, b: a.plus(b.negated()), "it subtracts too many terms"),
}
"""The function of arrays, that of exact sums, and the reason why the latter is not possible."""


@importer(*_COMBINATIONS)
def combine(call: Call) -> ScaledSum | Operand:
    """Add-14, Mul-14, Sub-14: of integers with constant scales if that is exact, else of floats."""
    on_arrays, on_sums, problem = _COMBINATIONS[call.node.operator]
    left, right = (_as_sum(call.input(index).value) for index in (0, 1))
    if left is None or right is None:
        problem = "an operand is float, or has scales for blocks"
    elif not left.is_exact or not right.is_exact:
        problem = "a scale is an argument, or 0"
    else:
        shape = broadcast_shapes(call, [left.shape, right.shape])
        result = on_sums(left.broadcast_to(shape), right.broadcast_to(shape))
        if result is not None:
            return result
    call.with_floats(problem)
    return call.typed(on_arrays(*operands(call, 2)))


@importer("Neg")
def negate(call: Call) -> ScaledSum | Operand:
    """Neg-13: ``-X``; quantized operands stay integers."""
    total = _as_sum(call.input(0).value)
    return call.typed(-call.array(0)) if total is None else total.negated()


@importer("Relu")
def relu(call: Call) -> ScaledSum | Operand:
    """Relu-14: ``max(X, 0)``; quantized operands stay integers."""
    total = _as_sum(call.input(0).value)
    clamped = None if total is None else total.rectified()
    if clamped is not None:
        return clamped
    value = call.array(0)
    return call.typed(np.maximum(value, np.zeros((), value.dtype)))


@importer("LeakyRelu")
def leaky_relu(call: Call) -> ScaledSum | AnyArray:
    """LeakyRelu-16: negative elements times ``alpha``, a second term of a quantized operand."""
    total, alpha = _as_sum(call.input(0).value), call.attribute("alpha", 0.01)
    if total is not None:
        result = total.leaky(alpha)
        if result is not None:
            return result
        call.with_floats("it is of a sum of several terms, or of scales that are arguments")
    x = float_input(call)
    scaled = x * number_like(alpha, x)
    return as_input_type(call, 0, np.where(x < number_like(0, x), scaled, x))


@importer("Clip")
def clip(call: Call) -> ScaledSum | Operand:
    """Clip-13: ``input`` clamped to bounds, which a later quantization applies to integers."""
    total = _as_sum(call.input(0).value)
    bounds = [call.optional(index) for index in (1, 2)]
    if total is not None and any(each is not None and not each.is_constant for each in bounds):
        call.with_floats("a bound is an argument")
    elif total is not None:
        numbers = [None if each is None else float(each.value.reshape(-1)[0]) for each in bounds]
        bounded = total.bounded(*numbers)
        if bounded is not None:
            return bounded
    value = call.array(0)
    for index, function in ((1, np.maximum), (2, np.minimum)):  # the upper bound is applied last
        if bounds[index - 1] is not None:
            value = function(value, call.scalar(index))
    return call.typed(value)


@importer("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def qlinear_sum_or_product(call: Call) -> Operand:
    """QLinearAdd-1, QLinearMul-1: ``A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero``."""
    sides = [quantized(call, 0, 1, 2), quantized(call, 3, 4, 5)]
    shape = broadcast_shapes(call, [side.shape for side in sides])
    totals = []
    for side in sides:
        padded = (1,) * (len(shape) - len(side.shape)) + side.shape
        spread = side.moved(lambda x, p=padded: np.broadcast_to(x.reshape(p), shape))  # type: ignore[misc]
        total = None if spread is None else spread.as_sum()
        if total is None:
            raise call.unsupported("has operands with several scales")
        totals.append(total)
    is_sum = call.node.operator.endswith("Add")
    result = ScaledSum.plus(*totals) if is_sum else ScaledSum.times(*totals)
    if result is None:
        problem = "adds too many terms" if is_sum else "multiplies more than 31 bits"
        raise call.unsupported(problem)
    return stored(call, result, 6, 7)


@importer("com.microsoft.QLinearConcat")
def qlinear_concat(call: Call) -> Operand:
    """QLinearConcat-1: ``Y_scale, Y_zero, X, X_scale, X_zero, ...``."""
    axis, operands, type_ = call.integer("axis"), [], call.input(1).type
    if len(call.inputs) < 5 or (len(call.inputs) - 2) % 3:
        raise call.error(f"has {len(call.inputs)} inputs, expected 2 and 3 for each operand")
    for index in range(2, len(call.inputs), 3):
        operand = stored(call, quantized(call, index, index + 1, index + 2), 0, 1)
        operands.append(operand.value)
    return Operand(type_, np.concatenate(operands, call.checked_axis(axis, operands[0].ndim)))


def _on_floats(call: Call, function: Callable[[AnyArray], AnyArray]) -> Operand:
    """Dequantize ``X, x_scale, x_zero``, apply a function, quantize by ``y_scale, y_zero``."""
    real = quantized(call, 0, 1, 2).dequantize(call.graph.lift)
    return stored(call, function(real), 3, 4)


@importer("com.microsoft.QLinearSigmoid")
def qlinear_sigmoid(call: Call) -> Operand:
    """QLinearSigmoid-1: ``1 / (1 + exp(-X))``, computed in f32."""
    return _on_floats(call, sigmoid)


@importer("com.microsoft.QLinearLeakyRelu")
def qlinear_leaky_relu(call: Call) -> Operand:
    """QLinearLeakyRelu-1: negative elements times ``alpha``; exact for constant scales."""
    alpha = call.attribute("alpha", 0.01)
    total = quantized(call, 0, 1, 2).as_sum()
    result = None if total is None else total.leaky(alpha)
    if result is not None:
        return stored(call, result, 3, 4)
    return _on_floats(call, lambda x: np.where(x < 0, x * np.float32(alpha), x))


@importer("com.microsoft.QLinearWhere")
def qlinear_where(call: Call) -> Operand:
    """QLinearWhere-1: ``condition, X, x_scale, x_zero, Y, y_scale, y_zero, z_scale, z_zero``."""
    condition = call.array(0)
    operands = [stored(call, quantized(call, n, n + 1, n + 2), 7, 8) for n in (1, 4)]
    sides = [convert(operand.value, I32) for operand in operands]
    type_ = operands[0].type
    return Operand(type_, np.where(condition, *sides).astype(element_of(type_).dtype))


@importer("com.microsoft.QLinearSoftmax")
def qlinear_softmax(call: Call) -> Operand:
    """QLinearSoftmax-1: ``exp(X) / sum(exp(X))`` along an axis, computed in f32.

    ONNX Runtime multiplies by ``floor(1 / Y_scale)`` instead of dividing by ``Y_scale``: its
    results differ by a step where the reciprocal is no integer.
    """
    if call.attribute("opset", 13) < 13:
        raise call.unsupported(f"of opset {call.attribute('opset')} is not lowered")
    axis = call.axis("axis", len(call.input(0).shape), -1)
    return _on_floats(call, lambda x: softmax_along(x, axis))
