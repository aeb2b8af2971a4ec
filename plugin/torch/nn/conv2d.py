"""``Conv2d`` with a weight of any layout."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import torch

from ...layouts import InferenceTensor
from ...ops import layers
from ..torch_arrays import TorchArray
from .module import ThetaModule, Weights, reals_of

Pair: TypeAlias = "int | tuple[int, int]"
"""A number for height and width, or one for each."""


class Conv2d(ThetaModule):
    """Convolve images as `subquant.ops.Conv2d` does, in PyTorch.

    Args:
        weights: ``weight [F, C / groups, KH, KW]``, and in a `Theta` the tensors of `Linear`.
        bias: the bias ``[F]``, if `weights` is the weight alone.
        stride, padding, dilation, groups: as those of ``torch.nn.Conv2d``; padding is of zeros, and
            may be a pair of pairs, for both ends of height and width.

    Raises:
        UsageError: a tensor is missing or unknown, or shapes do not fit (when it is called).

    Source: "Direct quantization with sharktank", ``Conv2DLayer``.
    """

    TENSORS: ClassVar = ("weight", "bias", "premul_input", "q_input", "q_output")

    def __init__(
        self,
        weights: Weights,
        bias: InferenceTensor | torch.Tensor | None = None,
        *,
        stride: Pair = 1,
        padding: Pair | tuple[tuple[int, int], tuple[int, int]] = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(weights, bias)
        self.options = {
            "strides": _pair(stride),
            "padding": (padding, padding) if isinstance(padding, int) else tuple(padding),
            "dilations": _pair(dilation),
            "groups": groups,
        }

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[N, F, OH, OW]`` for floats ``[N, C, H, W]``, in the type of `x`.

        The arithmetic is f32. A result that ``q_output`` quantizes is dequantized.
        """
        layer = layers.Conv2d(self._theta(), **self.options)
        return reals_of(layer(TorchArray(x))).to(x.dtype)


def _pair(number: Pair) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else (number[0], number[1])
