"""Quantization of one layer to a type of GGML.

Without GPTQ the blocks are those of llama.cpp for the same importance. GPTQ keeps the scales and
minimums of K-quants, and rounds the integers for a small error of the outputs.
"""

from __future__ import annotations

import numpy as np

from ..layouts import GgmlTensor
from ..layouts.ggml_encoding import set_integers
from ..layouts.ggml_quantization import quantize_blocks, type_for
from ..layouts.super_blocks import SuperBlockLayout
from ..numerics.element_types import Array
from ..numerics.parameters import ExpressedType, StorageType
from ..weights.grids import Grid
from .gptq import gptq
from .moments import InputMoments

_STORAGE = {
    "Q3_K": StorageType(3), "Q4_K": StorageType(4, False), "Q5_K": StorageType(5, False),
    "Q6_K": StorageType(6),
}  # fmt: skip
"""The integers of types with two levels of scales that GPTQ rounds."""

_GREAT_SCALE = np.float32(1e30)
"""A scale in place of 0: all integers are 0, and the values are the offset."""


def ggml_layer(
    weight: Array,
    ggml_type: str,
    importance: Array | None = None,
    inputs: InputMoments | None = None,
    name: str = "",
) -> GgmlTensor:
    """Quantize a weight ``[N, K]`` to a type of GGML, or to its fallback.

    Args:
        importance: mean squares of the inputs ``[K]``, or None.
        inputs: the second moments of the inputs, for GPTQ; None to round to nearest.

    Raises:
        InputError: 32 does not divide ``K``.
    """
    ggml_type = type_for(ggml_type, weight.shape[-1])
    tensor = quantize_blocks(weight, ggml_type, importance, name)
    if inputs is None or ggml_type not in _STORAGE:
        return tensor
    integers = gptq(weight, inputs.damped, grid_of(tensor), inputs.factor)
    return with_integers(tensor, integers)


def grid_of(tensor: GgmlTensor) -> Grid:
    """Return the grid of a K-quant: a scale for each sub-block, and a minimum as offset."""
    layout, storage = tensor.unpack(), _STORAGE[tensor.ggml_type]
    assert isinstance(layout, SuperBlockLayout)
    form = layout.block_form()
    scales = np.asarray(form.real_scales(ExpressedType.F32))
    offsets = np.zeros_like(scales) if storage.signed else form.real_offsets(ExpressedType.F32)
    return Grid(
        storage,
        "symmetric" if storage.signed else "offsets",
        np.where(scales == 0, _GREAT_SCALE, scales),
        np.asarray(offsets),
    )


def with_integers(tensor: GgmlTensor, integers: Array) -> GgmlTensor:
    """Return a K-quant with the scales of another, and integers ``[N, K]`` of its grid."""
    blocks = tensor.raw.copy().view(tensor.kind.block)
    stored = integers.reshape((len(blocks), -1)) - _STORAGE[tensor.ggml_type].minimum
    set_integers(blocks, tensor.ggml_type, stored.astype(np.uint8))
    return GgmlTensor(
        blocks.view(np.uint8).reshape(-1), tensor.ggml_type, tensor.shape, tensor.name
    )
