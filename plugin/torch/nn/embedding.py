"""``Embedding`` with a table of any layout."""

from __future__ import annotations

import torch

from ...ops import layers
from ..torch_arrays import TorchArray
from .module import ThetaModule, reals_of


class Embedding(ThetaModule):
    """Look up rows of a table as `subquant.ops.Embedding` does, in PyTorch.

    Where the planes of the table have its rows as first axis, only the chosen rows are dequantized.

    Args:
        weights: ``weight [N, K]``.

    Raises:
        UsageError: the table is missing, another tensor is there, or the table is no matrix (when
            it is called).
    """

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return f32 ``[..., K]`` for integers ``[...]``, from 0 to ``N - 1``."""
        return reals_of(layers.Embedding(self._theta())(TorchArray(ids)))
