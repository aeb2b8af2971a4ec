"""``Linear`` with a weight of any layout."""

from __future__ import annotations

from typing import ClassVar

import torch

from ...ops import layers
from ..torch_arrays import TorchArray
from .module import ThetaModule, reals_of


class Linear(ThetaModule):
    """Compute ``x @ weight.T + bias`` as `subquant.ops.Linear` does, in PyTorch.

    A quantized ``q_input`` and an affine weight are multiplied as integers, with an i32 sum. The
    other implementations dequantize the weight to f32.

    Args:
        weights: ``weight [N, K]``, and in a `Theta` also ``bias [N]``, ``premul_input``,
            ``q_input`` and ``q_output``.
        bias: the bias ``[N]``, if `weights` is the weight alone.

    Raises:
        UsageError: a tensor is missing or unknown, or shapes do not fit (when it is called).

    Source: "Direct quantization with sharktank", ``LinearLayer``.
    """

    TENSORS: ClassVar = ("weight", "bias", "premul_input", "q_input", "q_output")

    @property
    def in_features(self) -> int:
        """The number of elements of the last axis of the input."""
        return self.weight_shape[1]

    @property
    def out_features(self) -> int:
        """The number of elements of the last axis of the result."""
        return self.weight_shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., N]`` for floats ``[..., K]``, in the type of `x`.

        The arithmetic is f32. A result that ``q_output`` quantizes is dequantized.
        """
        layer = layers.Linear(self._theta())
        return reals_of(layer(TorchArray(x))).to(x.dtype)
