"""Operations on tensors of any layout, eager in NumPy and compiled by the same code.

>>> from subquant.ops import linear, recorded
>>> linear.implementations
('affine', 'blocks', 'dequantized')

Source: "Direct quantization with sharktank", functional op library.
"""

from __future__ import annotations

from .compiling import Compiled, compile_function, trace_function
from .convolution import conv2d
from .layers import Conv2d, Embedding, Linear, RmsNorm, ThetaLayer
from .linear import linear, matmul
from .others import add, embedding_lookup, multiply, rms_norm, silu, subtract
from .registry import Op, Ran, recorded

__all__ = [
    "Compiled",
    "Conv2d",
    "Embedding",
    "Linear",
    "Op",
    "Ran",
    "RmsNorm",
    "ThetaLayer",
    "add",
    "compile_function",
    "conv2d",
    "embedding_lookup",
    "linear",
    "matmul",
    "multiply",
    "recorded",
    "rms_norm",
    "silu",
    "subtract",
    "trace_function",
]
