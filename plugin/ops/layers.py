"""Layers: operations with the tensors that they need, taken from a `Theta`.

A layer is made of a node of the tree, whose names are those of PyTorch's modules and of sharktank's
quantizers, and computes with whatever tensors it finds there.

Source: "Direct quantization with sharktank", ``ThetaLayer``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UsageError
from ..layouts import (
    GgmlTensor,
    InferenceTensor,
    PlanarQuantizedTensor,
    QuantizedLayout,
    QuantizedTensor,
    QuantizerTensor,
)
from ..numerics.element_types import AnyArray
from ..weights.theta import Theta
from .activations import quantize_activations
from .convolution import conv2d
from .linear import linear
from .others import embedding_lookup, multiply, rms_norm
from .registry import Argument, operand, real


class ThetaLayer:
    """A layer that takes its tensors from a node of a tree."""

    def __init__(self, theta: Theta) -> None:
        self.theta = theta

    def tensor(self, name: str) -> InferenceTensor:
        """A tensor that has to be there."""
        return self.theta.tensor(name)

    def optional(self, name: str) -> InferenceTensor | None:
        """A tensor that may be there."""
        return self.theta.optional_tensor(name)

    def quantizer(self, name: str) -> QuantizerTensor | None:
        """A quantizer that may be there; UsageError for another tensor of its name."""
        quantizer = self.theta.optional_tensor(name)
        if quantizer is not None and not isinstance(quantizer, QuantizerTensor):
            raise UsageError(f"tensor '{quantizer.name}' is {quantizer!r}, expected a quantizer")
        return quantizer

    def _quantized_input(self, x: Argument) -> Argument:
        premultiplier, quantizer = self.optional("premul_input"), self.quantizer("q_input")
        if premultiplier is not None:
            x = multiply(x, premultiplier)
        return x if quantizer is None else quantizer.quantize(x)

    def _quantized_output(self, y: Argument) -> Argument:
        quantizer = self.quantizer("q_output")
        return y if quantizer is None else quantizer.quantize(y)


class Linear(ThetaLayer):
    """``linear`` with ``weight``, and if they are there ``bias``, ``premul_input``, ``q_input`` and
    ``q_output``.

    The input is multiplied by ``premul_input`` and quantized by ``q_input`` before, the result
    quantized by ``q_output`` after. Without ``q_input``, the input is rounded as the checkpoint of
    the weight asks for (`QuantizedTensor.activations`).
    """  # noqa: D205  (a list of names)

    def __call__(self, x: Argument) -> Argument:
        """Apply the layer to ``[..., K]``."""
        weight, x = self.tensor("weight"), self._quantized_input(x)
        if isinstance(weight, QuantizedTensor) and not isinstance(x, QuantizedTensor):
            x, shape = _rounded_rows(x, weight), operand(x).shape
            result = linear(x, weight, self.optional("bias"))
            return self._quantized_output(result.reshape((*shape[:-1], weight.shape[0])))
        return self._quantized_output(linear(x, weight, self.optional("bias")))


def _rounded_rows(x: Argument, weight: QuantizedTensor) -> Argument:
    """Return the input, or rounded rows ``[T, K]`` if the weight has settings for that."""
    if weight.activations is None:
        return x
    values = real(operand(x))
    rounded = quantize_activations(values.reshape((-1, values.shape[-1])), weight.activations)
    return PlanarQuantizedTensor(rounded) if isinstance(rounded, QuantizedLayout) else rounded


class Conv2d(ThetaLayer):
    """``conv2d`` with strides, padding, dilations and groups, and the tensors of `Linear`."""

    def __init__(self, theta: Theta, **options: Any) -> None:
        super().__init__(theta)
        self.options = options

    def __call__(self, x: Argument) -> Argument:
        """Apply the layer to ``[N, C, H, W]``.

        Raises:
            UsageError: the checkpoint of the weight asks for a rounded input without ``q_input``.
        """
        weight, x = self.tensor("weight"), self._quantized_input(x)
        has_settings = isinstance(weight, QuantizedTensor) and weight.activations is not None
        if has_settings and not isinstance(x, QuantizedTensor):
            raise UsageError(
                f"the checkpoint of '{weight.name}' asks for a rounded input, which no convolution "
                "has; give the layer a tensor q_input"
            )
        return self._quantized_output(conv2d(x, weight, self.optional("bias"), **self.options))


class Embedding(ThetaLayer):
    """``embedding_lookup`` in ``weight``."""

    def __call__(self, ids: Argument) -> AnyArray:
        """Look up integers; the other rows of a table in GGML's blocks stay packed."""
        table = self.tensor("weight")
        if not isinstance(table, GgmlTensor) or not isinstance(ids, np.ndarray):
            return embedding_lookup(ids, table)
        rows = table.gather(ids.reshape(-1))
        return embedding_lookup(np.arange(ids.size).reshape(ids.shape), rows)


class RmsNorm(ThetaLayer):
    """``rms_norm`` with ``weight``."""

    def __init__(self, theta: Theta, epsilon: float = 1e-6) -> None:
        super().__init__(theta)
        self.epsilon = epsilon

    def __call__(self, x: Argument) -> AnyArray:
        """Normalize the last axis."""
        return rms_norm(x, self.tensor("weight"), epsilon=self.epsilon)
