"""ONNX Runtime's activation functions: Gelu of a sum and its approximations; gated linear units.

f16 and bf16 are computed in f32, and the result is rounded once.

Sources: ONNX, SwiGLU 28; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ....numerics.array_functions import erf, tanh
from ....numerics.element_types import AnyArray
from ..call import Call, importer
from .activations import hard_sigmoid, sigmoid
from .float_operands import as_input_type, float_input, optional_float


def _gelu(x: AnyArray) -> AnyArray:
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
    gelu = _tanh_gelu if call.node.operator.endswith("FastGelu") else _gelu
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
    return as_input_type(call, 0, x[..., :half] * _gelu(x[..., half:]))


@importer("com.microsoft.BiasAdd")
def bias_add(call: Call) -> AnyArray:
    """BiasAdd-1: ``X + bias + skip``."""
    return as_input_type(
        call, 0, float_input(call, 0) + float_input(call, 1) + float_input(call, 2)
    )


_ACTIVATIONS: dict[str, tuple[int, Callable[..., AnyArray]]] = {
    "": (0, lambda x: x),
    "Relu": (0, lambda x: np.maximum(x, x.dtype.type(0))),
    "Tanh": (0, tanh),
    "Sigmoid": (0, sigmoid),
    "LeakyRelu": (1, lambda x, alpha: np.where(x < x.dtype.type(0), x * alpha, x)),
    "Clip": (2, lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "HardSigmoid": (2, hard_sigmoid),
}
"""The number of parameters, and the function."""


def activated(call: Call, value: AnyArray, parameters: Sequence[float]) -> AnyArray:
    """Return a value after the function that the attribute ``activation`` names."""
    name = call.attribute("activation", "")
    if name not in _ACTIVATIONS:
        raise call.unsupported(f"has the activation {name!r}")
    count, function = _ACTIVATIONS[name]
    if len(parameters) != count:
        raise call.error(
            f"has the activation {name!r} with {len(parameters)} parameters, expected {count}"
        )
    return function(value, *(value.dtype.type(each) for each in parameters))
