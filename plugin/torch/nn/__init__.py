"""Modules of PyTorch with weights of any layout, eager and compiled by the same formulas.

>>> from subquant.torch import nn                                    # doctest: +SKIP
>>> theta = subquant.open_weights("model.gguf").theta                # doctest: +SKIP
>>> layer = nn.Linear(theta.tensor("blk.0.ffn_up.weight"))           # doctest: +SKIP

Source: "Direct quantization with sharktank".
"""

from __future__ import annotations

from .conv2d import Conv2d
from .embedding import Embedding
from .linear import Linear
from .module import ThetaModule

__all__ = ["Conv2d", "Embedding", "Linear", "ThetaModule"]
