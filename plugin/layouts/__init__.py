"""Direct quantization: tensors made of planes, over NumPy.

`base` and the layouts say what planes mean, `tensors` gives them names and records, of which
`subquant.weights` makes trees and archives.

Source: "Direct quantization with sharktank".
"""

from __future__ import annotations

from .activations import ActivationQuantization
from .affine import BlockAffineLayout
from .base import LAYOUTS, BlockLayout, QuantizedLayout, layout_class
from .ggml_tensor import GgmlTensor
from .lookup import LookupBlockScaledLayout, SuperBlockLookupScaled_4_6_Layout
from .packed import BlockScaledPackedLayout
from .quantizers import DynamicScaledQuantizer, StaticScaledQuantizer
from .scaled import BlockScaledI4Layout, BlockScaledLayout, TensorScaledLayout
from .small_floats import BlockScaledFloat8Layout
from .stacked import StackedArrays, StackedTensor, find_tensor, stack, stack_name
from .super_blocks import (
    SuperBlockLayout,
    SuperBlockOffsetScaled_2_4_Layout,
    SuperBlockOffsetScaled_4_6_Layout,
    SuperBlockOffsetScaled_5_6_Layout,
    SuperBlockScaled_3_6_Layout,
    SuperBlockScaled_6_8_Layout,
)
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
    "ActivationQuantization",
    "BlockAffineLayout",
    "BlockLayout",
    "BlockScaledFloat8Layout",
    "BlockScaledI4Layout",
    "BlockScaledLayout",
    "BlockScaledPackedLayout",
    "DynamicScaledQuantizer",
    "GgmlTensor",
    "InferenceTensor",
    "LookupBlockScaledLayout",
    "PlanarQuantizedTensor",
    "PrimitiveTensor",
    "QuantizedLayout",
    "QuantizedTensor",
    "QuantizerTensor",
    "StackedArrays",
    "StackedTensor",
    "StaticScaledQuantizer",
    "SuperBlockLayout",
    "SuperBlockLookupScaled_4_6_Layout",
    "SuperBlockOffsetScaled_2_4_Layout",
    "SuperBlockOffsetScaled_4_6_Layout",
    "SuperBlockOffsetScaled_5_6_Layout",
    "SuperBlockScaled_3_6_Layout",
    "SuperBlockScaled_6_8_Layout",
    "TensorScaledLayout",
    "find_tensor",
    "layout_class",
    "stack",
    "stack_name",
    "tensor_from_record",
]
