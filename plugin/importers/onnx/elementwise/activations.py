"""Activation functions, and normalizations along one axis (Softmax), of floats.

f16 and bf16 are computed in f32 and rounded once. `quantization.elementwise` has Relu, LeakyRelu
and Clip, which pass quantized operands through as integers.

Sources: ONNX, "Operator Schemas", operator set 28; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ....numerics.array_functions import convert, erf, tanh
from ....numerics.element_types import F32, AnyArray, ElementType
from ..call import Call, Operand, importer
from .arithmetic import broadcast_shapes
from .float_operands import along_axis, as_input_type, float_input, number_like, optional_float


def sigmoid(x: AnyArray) -> AnyArray:
    """``1 / (1 + exp(-x))``."""
    one = number_like(1, x)
    return one / (one + np.exp(-x))


def softplus(x: AnyArray) -> AnyArray:
    """``log(1 + exp(x))``, without overflow."""
    return np.maximum(x, number_like(0, x)) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: AnyArray, alpha: float) -> AnyArray:
    zero = number_like(0, x)
    return np.where(x < zero, number_like(alpha, x) * np.expm1(np.minimum(x, zero)), x)


def hard_sigmoid(x: AnyArray, alpha: float, beta: float) -> AnyArray:
    """``alpha * x + beta`` clamped to 0 and 1."""
    linear = number_like(alpha, x) * x + number_like(beta, x)
    return np.minimum(np.maximum(linear, number_like(0, x)), number_like(1, x))


def _selu(call: Call, x: AnyArray) -> AnyArray:
    alpha = call.attribute("alpha", 1.6732631921768188)
    gamma = call.attribute("gamma", 1.0507010221481323)
    return number_like(gamma, x) * _elu(x, alpha)


def _celu(call: Call, x: AnyArray) -> AnyArray:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    alpha = number_like(call.attribute("alpha", 1.0), x)
    zero = number_like(0, x)
    below = alpha * np.expm1(np.minimum(x, zero) / alpha)
    return np.maximum(x, zero) + np.minimum(below, zero)


def _gelu(call: Call, x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its approximation by ``tanh``."""
    half, one = number_like(0.5, x), number_like(1, x)
    mode = call.attribute("approximate", "none")
    if mode == "none":
        return half * x * (one + erf(x * number_like(math.sqrt(0.5), x)))
    cube = x * x * x
    inner = number_like(math.sqrt(2 / math.pi), x) * (x + number_like(0.044715, x) * cube)
    return half * x * (one + tanh(inner))


def _shrink(call: Call, x: AnyArray) -> AnyArray:
    limit, bias = (number_like(call.attribute(name, value), x) for name, value in (
        ("lambd", 0.5), ("bias", 0.0)))  # fmt: skip
    inside = np.where(x > limit, x - bias, number_like(0, x))
    return np.where(x < -limit, x + bias, inside)


_ACTIVATIONS: dict[str, Callable[[Call, AnyArray], AnyArray]] = {
    "Celu": _celu,
    "Elu": lambda call, x: _elu(x, call.attribute("alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": lambda call, x: hard_sigmoid(
        x, call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    ),
    "HardSwish": lambda call, x: x * hard_sigmoid(x, 1 / 6, 0.5),
    "Mish": lambda call, x: x * tanh(softplus(x)),
    "Selu": _selu,
    "Sigmoid": lambda call, x: sigmoid(x),
    "Softplus": lambda call, x: softplus(x),
    "Softsign": lambda call, x: x / (number_like(1, x) + np.abs(x)),
    "Swish": lambda call, x: x * sigmoid(number_like(call.attribute("alpha", 1.0), x) * x),
    "ThresholdedRelu": lambda call, x: np.where(
        x > number_like(call.attribute("alpha", 1.0), x), x, number_like(0, x)
    ),
}


@importer(*_ACTIVATIONS)
def activation(call: Call) -> AnyArray:
    """Activation functions of each element.

    Operators: Celu-28, Elu-22, Gelu-20, HardSigmoid-22, HardSwish-22, Mish-22, Selu-22,
    Sigmoid-13, Softplus-22, Softsign-22, Swish-24, ThresholdedRelu-22.
    """
    return as_input_type(call, 0, _ACTIVATIONS[call.node.operator](call, float_input(call)))


@importer("Shrink")
def shrink(call: Call) -> Operand | AnyArray:
    """Shrink-9: elements of a magnitude up to ``lambd`` become 0, others move by ``bias``."""
    value = call.array(0)
    if np.dtype(value.dtype).kind not in "iu":
        return as_input_type(call, 0, _shrink(call, float_input(call)))
    return call.typed(convert(_shrink(call, convert(value, F32)),
                                             ElementType.of_dtype(value.dtype)))  # fmt: skip


@importer("PRelu")
def parametric(call: Call) -> Operand:
    """PRelu-16: elements below 0 times ``slope``, which broadcasts to the operand."""
    value, slope = call.array(0), call.array(1)
    shape = tuple(value.shape)
    if broadcast_shapes(call, [shape, tuple(slope.shape)]) != shape:
        raise call.error(f"has a slope of shape {list(slope.shape)} for {list(shape)}")
    zero = np.zeros((), value.dtype)
    return call.typed(np.where(value < zero, value * slope, value))


def softmax_along(x: AnyArray, axis: int) -> AnyArray:
    """``exp(x) / sum(exp(x))`` along an axis, without overflow."""
    exps = np.exp(x - x.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, dtype=exps.dtype, keepdims=True)


def _log_softmax(x: AnyArray, axis: int) -> AnyArray:
    x = x - x.max(axis=axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=axis, dtype=x.dtype, keepdims=True))


def _hardmax(x: AnyArray, axis: int) -> AnyArray:
    count = x.shape[axis]
    positions = along_axis(np.arange(count, dtype=np.int32), axis, x.ndim)
    positions = np.broadcast_to(positions, x.shape)
    is_greatest = x == np.broadcast_to(x.max(axis=axis, keepdims=True), x.shape)
    last = np.full((), count, np.int32)
    first = np.where(is_greatest, positions, last).min(axis=axis, keepdims=True)
    is_first = positions == np.broadcast_to(first, x.shape)
    return np.where(is_first, number_like(1, x), number_like(0, x))


_ALONG_AXIS: dict[str, Callable[[AnyArray, int], AnyArray]] = {
    "Hardmax": _hardmax, "LogSoftmax": _log_softmax, "Softmax": softmax_along,
}  # fmt: skip


@importer(*_ALONG_AXIS)
def along_one_axis(call: Call) -> Operand | AnyArray:
    """Hardmax-13, LogSoftmax-13, Softmax-13: of the floats along an axis.

    Hardmax is 1 at the first of the greatest elements, 0 elsewhere; LogSoftmax ``x -
    log(sum(exp(x)))``. A tensor without elements is its own result.
    """
    shape = call.input(0).shape
    axis = call.axis("axis", len(shape), -1)
    if 0 in shape:
        return call.typed(call.array(0))
    return as_input_type(call, 0, _ALONG_AXIS[call.node.operator](float_input(call), axis))


def _contributed_gelu(x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    kind = x.dtype.type
    return x * kind(0.5) * (kind(1) + erf(x * kind(math.sqrt(0.5))))


def _tanh_gelu(x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    kind = x.dtype.type
    inner = kind(math.sqrt(2 / math.pi)) * (x + kind(0.044715) * x * x * x)
    return x * kind(0.5) * (kind(1) + tanh(inner))


@importer("com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def bias_gelu(call: Call) -> AnyArray:
    """BiasGelu-1, FastGelu-1, Gelu-1: of ``X``, or of the sum with a bias; FastGelu by tanh."""
    x, bias = float_input(call, 0), optional_float(call, 1)
    gelu = _tanh_gelu if call.node.operator.endswith("FastGelu") else _contributed_gelu
    return as_input_type(call, 0, gelu(x if bias is None else x + bias))


@importer("com.microsoft.QuickGelu")
def quick_gelu(call: Call) -> AnyArray:
    """QuickGelu-1: ``x * sigmoid(alpha * x)``."""
    x = float_input(call, 0)
    return as_input_type(call, 0, x * sigmoid(x.dtype.type(call.attribute("alpha", 1.702)) * x))


@importer("SwiGLU")
def swiglu(call: Call) -> AnyArray:
    """SwiGLU-28: ``A * sigmoid(alpha * A) * B``, of operands of one shape."""
    x, gated = float_input(call, 0), float_input(call, 1)
    if tuple(x.shape) != tuple(gated.shape):
        raise call.error(f"has A of shape {list(x.shape)} and B of shape {list(gated.shape)}")
    alpha = x.dtype.type(call.attribute("alpha", 1.0))
    return as_input_type(call, 0, x * sigmoid(alpha * x) * gated)


@importer("com.microsoft.BiasSplitGelu")
def bias_split_gelu(call: Call) -> AnyArray:
    """BiasSplitGelu-1: the left half of ``X + bias`` times the Gelu of the right half."""
    x = float_input(call, 0) + float_input(call, 1)
    half = x.shape[-1] // 2
    if not half or x.shape[-1] % 2:
        raise call.error(f"splits {x.shape[-1]} elements in two halves")
    return as_input_type(call, 0, x[..., :half] * _contributed_gelu(x[..., half:]))


@importer("com.microsoft.BiasAdd")
def bias_add(call: Call) -> AnyArray:
    """BiasAdd-1: ``X + bias + skip``."""
    return as_input_type(
        call, 0, float_input(call, 0) + float_input(call, 1) + float_input(call, 2)
    )


_FUSED_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""The attributes, or inputs of Clip, in the order of parameters, by ``activation``."""


def activated(call: Call, value: AnyArray, parameters: Sequence[float]) -> AnyArray:
    """Return a value after the operator that the attribute ``activation`` names."""
    name = call.attribute("activation", "")
    if not name:
        return value
    if name not in _FUSED_ACTIVATIONS:
        known = ", ".join(sorted(_FUSED_ACTIVATIONS))
        raise call.unsupported(f"has the activation {name!r}, expected one of {known}")
    names = _FUSED_ACTIVATIONS[name]
    if len(parameters) != len(names):
        raise call.error(
            f"has the activation {name!r} with {len(parameters)} parameters, expected {len(names)}"
        )
    inputs, attributes = [call.typed(value)], dict(zip(names, parameters, strict=True))
    if name == "Clip":
        limits = [np.asarray(each, value.dtype) for each in parameters]
        inputs, attributes = [*inputs, *map(call.typed, limits)], {}
    (result,) = call.apply(name, inputs, **attributes)
    return call.floats(result.value)
