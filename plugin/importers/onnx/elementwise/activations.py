"""Activation functions, and normalizations along one axis (Softmax), of floats.

f16 and bf16 are computed in f32 and rounded once. Functions that quantized operands pass through as
integers (Relu, LeakyRelu, Clip) are in `elementwise`, which leaves other operands to the formulas
here.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert, erf, tanh
from ....numerics.element_types import F32, AnyArray, ElementType
from ..call import Call, Typed, importer
from .arithmetic import broadcast_shapes

__all__ = ["clipped", "leaky", "rectified", "sigmoid", "softplus"]


def _number(number: float, like: AnyArray) -> AnyArray:
    return np.asarray(number, like.dtype)


def _wide(call: Call, index: int = 0) -> AnyArray:
    """Return a float input; f16 and bf16 as f32."""
    value = call.array(index)
    dtype = np.dtype(value.dtype)
    if dtype.kind in "iub":
        raise call.error(f"of {call.input(index).type} is not lowered, expected floats")
    return value if dtype.itemsize > 2 else convert(value, F32)


def _like_input(call: Call, value: AnyArray) -> Typed:
    """Return a result of the type of the first input."""
    operand = call.input(0)
    dtype = np.dtype(call.array(0).dtype)
    return Typed(operand.type, convert(value, ElementType.of_dtype(dtype)))


# -- functions ------------------------------------------------------------------------------------


def sigmoid(x: AnyArray) -> AnyArray:
    """``1 / (1 + exp(-x))``."""
    one = _number(1, x)
    return one / (one + np.exp(-x))


def softplus(x: AnyArray) -> AnyArray:
    """``log(1 + exp(x))``, without overflow."""
    return np.maximum(x, _number(0, x)) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: AnyArray, alpha: float) -> AnyArray:
    zero = _number(0, x)
    return np.where(x < zero, _number(alpha, x) * np.expm1(np.minimum(x, zero)), x)


def _hard_sigmoid(x: AnyArray, alpha: float, beta: float) -> AnyArray:
    line = _number(alpha, x) * x + _number(beta, x)
    return np.minimum(np.maximum(line, _number(0, x)), _number(1, x))


def _mish(call: Call, x: AnyArray) -> AnyArray:
    return x * tanh(softplus(x))


def _selu(call: Call, x: AnyArray) -> AnyArray:
    alpha = call.attribute("alpha", 1.6732631921768188)
    gamma = call.attribute("gamma", 1.0507010221481323)
    return _number(gamma, x) * _elu(x, alpha)


def _celu(call: Call, x: AnyArray) -> AnyArray:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    alpha = _number(call.attribute("alpha", 1.0), x)
    zero = _number(0, x)
    below = alpha * np.expm1(np.minimum(x, zero) / alpha)
    return np.maximum(x, zero) + np.minimum(below, zero)


def _thresholded(call: Call, x: AnyArray) -> AnyArray:
    return np.where(x > _number(call.attribute("alpha", 1.0), x), x, _number(0, x))


def _gelu(call: Call, x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its approximation by ``tanh``."""
    half, one = _number(0.5, x), _number(1, x)
    mode = call.attribute("approximate", "none")
    if mode == "none":
        return half * x * (one + erf(x * _number(math.sqrt(0.5), x)))
    if mode != "tanh":
        raise call.error(f"has the approximation {mode!r}, expected none or tanh")
    cube = x * x * x
    inner = _number(math.sqrt(2 / math.pi), x) * (x + _number(0.044715, x) * cube)
    return half * x * (one + tanh(inner))


def _shrink(call: Call, x: AnyArray) -> AnyArray:
    limit, bias = (_number(call.attribute(name, value), x) for name, value in (
        ("lambd", 0.5), ("bias", 0.0)))  # fmt: skip
    inside = np.where(x > limit, x - bias, _number(0, x))
    return np.where(x < -limit, x + bias, inside)


_ACTIVATIONS: dict[str, Callable[[Call, AnyArray], AnyArray]] = {
    "Celu": _celu,
    "Elu": lambda call, x: _elu(x, call.attribute("alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": lambda call, x: _hard_sigmoid(
        x, call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    ),
    "HardSwish": lambda call, x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Mish": _mish,
    "Selu": _selu,
    "Sigmoid": lambda call, x: sigmoid(x),
    "Softplus": lambda call, x: softplus(x),
    "Softsign": lambda call, x: x / (_number(1, x) + np.abs(x)),
    "Swish": lambda call, x: x * sigmoid(_number(call.attribute("alpha", 1.0), x) * x),
    "ThresholdedRelu": _thresholded,
}


@importer(*_ACTIVATIONS)
def activation(call: Call) -> Typed:
    """An activation function of each element."""
    return _like_input(call, _ACTIVATIONS[call.node.operator](call, _wide(call)))


@importer("Shrink")
def shrink(call: Call) -> Typed:
    """Elements within ``lambd`` become 0, others come nearer by ``bias``; of integers, too."""
    value = call.array(0)
    if np.dtype(value.dtype).kind not in "iu":
        return _like_input(call, _shrink(call, _wide(call)))
    return Typed(call.input(0).type, convert(_shrink(call, convert(value, F32)),
                                             ElementType.of_dtype(value.dtype)))  # fmt: skip


def rectified(call: Call) -> Typed:
    """``max(X, 0)``."""
    value = call.array(0)
    return Typed(call.input(0).type, np.maximum(value, np.zeros((), value.dtype)))


def leaky(call: Call) -> Typed:
    """Elements below 0 times ``alpha``."""
    x = _wide(call)
    scaled = x * _number(call.attribute("alpha", 0.01), x)
    return _like_input(call, np.where(x < _number(0, x), scaled, x))


@importer("PRelu")
def parametric(call: Call) -> Typed:
    """Elements below 0 times ``slope``, which broadcasts to the operand."""
    value, slope = call.array(0), call.array(1)
    shape = tuple(value.shape)
    if broadcast_shapes(call, [shape, tuple(slope.shape)]) != shape:
        raise call.error(f"has a slope of shape {list(slope.shape)} for {list(shape)}")
    zero = np.zeros((), value.dtype)
    return Typed(call.input(0).type, np.where(value < zero, value * slope, value))


def clipped(call: Call) -> Typed:
    """Elements between two bounds, each of which may be absent; the upper one is applied last."""
    operand, value = call.input(0), call.array(0)
    for index, function in ((1, np.maximum), (2, np.minimum)):
        if call.optional(index) is not None:
            bound = call.array(index)
            if bound.size != 1 or call.input(index).type != operand.type:
                raise call.error(f"has {call.input(index)} of {call.input(index).type} and shape "
                                 f"{list(bound.shape)} as a bound")  # fmt: skip
            value = function(value, bound.reshape(()))
    return Typed(operand.type, value)


# -- along an axis --------------------------------------------------------------------------------


def _is_empty(call: Call) -> bool:
    """Return True if the operand has no elements; its axis is checked."""
    shape = call.input(0).shape
    if shape:
        call.axis("axis", len(shape), -1)
    return 0 in shape


def _shifted(call: Call) -> tuple[AnyArray, int]:
    """Return the operand less its greatest element along the axis, and the axis."""
    x = _wide(call)
    axis = call.axis("axis", x.ndim, -1)  # a tensor without dimensions has none
    return x - x.max(axis=axis, keepdims=True), axis


@importer("Softmax")
def softmax(call: Call) -> Typed:
    """``exp(x) / sum(exp(x))`` along an axis."""
    if _is_empty(call):
        return Typed(call.input(0).type, call.array(0))
    x, axis = _shifted(call)
    exps = np.exp(x)
    return _like_input(call, exps / exps.sum(axis=axis, dtype=exps.dtype, keepdims=True))


@importer("LogSoftmax")
def log_softmax(call: Call) -> Typed:
    """``x - log(sum(exp(x)))`` along an axis."""
    if _is_empty(call):
        return Typed(call.input(0).type, call.array(0))
    x, axis = _shifted(call)
    total = np.exp(x).sum(axis=axis, dtype=x.dtype, keepdims=True)
    return _like_input(call, x - np.log(total))


@importer("Hardmax")
def hardmax(call: Call) -> Typed:
    """1 at the first of the greatest elements along an axis, 0 elsewhere."""
    if _is_empty(call):
        return Typed(call.input(0).type, call.array(0))
    x = _wide(call)
    axis = call.axis("axis", x.ndim, -1)
    count = x.shape[axis]
    positions = np.arange(count, dtype=np.int32).reshape([count if a == axis else 1
                                                       for a in range(x.ndim)])  # fmt: skip
    positions = np.broadcast_to(positions, x.shape)
    is_greatest = x == np.broadcast_to(x.max(axis=axis, keepdims=True), x.shape)
    last = np.full((), count, np.int32)
    first = np.where(is_greatest, positions, last).min(axis=axis, keepdims=True)
    is_first = positions == np.broadcast_to(first, x.shape)
    return _like_input(call, np.where(is_first, _number(1, x), _number(0, x)))
