"""Direct quantization: tensors made of planes, over NumPy.

`base` and the layouts say what planes mean, `tensors` gives them names and records, `theta` keeps
trees of them and writes them to archives.

Source: "Direct quantization with sharktank".
"""

from __future__ import annotations

from .base import LAYOUTS, QuantizedLayout, layout_class
from .quantizers import DynamicScaledQuantizer, StaticScaledQuantizer
from .scaled import BlockAffineLayout, BlockScaledI4Layout, BlockScaledLayout, TensorScaledLayout
from .tensors import (
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    QuantizerTensor,
    tensor_from_record,
)

__all__ = [
    "LAYOUTS",
    "BlockAffineLayout",
    "BlockScaledI4Layout",
    "BlockScaledLayout",
    "DynamicScaledQuantizer",
    "InferenceTensor",
    "PlanarQuantizedTensor",
    "PrimitiveTensor",
    "QuantizedLayout",
    "QuantizedTensor",
    "QuantizerTensor",
    "StaticScaledQuantizer",
    "TensorScaledLayout",
    "layout_class",
    "tensor_from_record",
]
