"""Writer of compressed-tensors checkpoints: int4 and int8 weights, and int8 inputs.

The folder has the tensors of the source, the packed layers (``weight_packed``, ``weight_scale``,
``weight_shape``, ``weight_zero_point``), the source's ``config.json`` with a
``quantization_config``, and the source's files for text. `compressed_tensors` has the packing.

Source: compressed-tensors 0.20, ``pack-quantized`` and ``int-quantized``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...layouts import (
    ActivationQuantization,
    BlockAffineLayout,
    InferenceTensor,
    PrimitiveTensor,
    TensorScaledLayout,
)
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from .folder_writer import pack_words, source_config, write_folder
from .layers import OUTPUT_LAYER, PackedTensor, bits_of

WRITTEN_BITS = (4, 8)
"""Bits of integers that a word of 32 bits holds whole, which other readers take too."""


def packed_layer(
    name: str, integers: Array, scales: Array, zero_points: Array | None, bits: int
) -> PackedTensor:
    """Return a weight ``[N, K]`` in compressed-tensors' packing.

    Args:
        name: ``LAYER.weight``.
        integers: ``[N, K]``: with zero points 0 to ``2**bits - 1``, else half the range less.
        scales: ``[N, G]``, a floating-point type.
        zero_points: integers like `scales`, or None.
    """
    rows, k = integers.shape
    half = 0 if zero_points is not None else 1 << (bits - 1)
    unsigned = (integers.astype(np.int16) + half).astype(np.uint8)
    packed = {
        "weight_packed": pack_words(unsigned, bits),
        "weight_scale": scales,
        "weight_shape": np.array([rows, k], np.int64),
    }
    if zero_points is not None:
        columns = np.ascontiguousarray(zero_points.astype(np.uint8).T)
        packed["weight_zero_point"] = np.ascontiguousarray(pack_words(columns, bits).T)
    storage = StorageType(bits, zero_points is None)
    stored = integers.astype(storage.dtype)
    block = [1, k // scales.shape[1]]

    def make_layout() -> BlockAffineLayout:
        return BlockAffineLayout.of(stored, scales, zero_points, block, storage)

    return PackedTensor(name, (rows, k), f"compressed int{bits}", packed, make_layout)


def int8_layer(
    name: str, integers: Array, scales: Array, activations: ActivationQuantization
) -> PackedTensor:
    """Return a weight ``[N, K]`` of int8 with scales ``[N, 1]``, as compressed-tensors has it.

    Args:
        name: ``LAYER.weight``.
        activations: the rounding of the layer's inputs.
    """
    packed = {"weight": integers, "weight_scale": scales}

    def make_layout() -> TensorScaledLayout:
        return TensorScaledLayout(integers.shape, {"d": scales, "qs": integers})

    shape = (integers.shape[0], integers.shape[1])
    return PackedTensor(name, shape, "compressed int8", packed, make_layout, activations)


def write_compressed(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    tensors: Sequence[InferenceTensor],
    bits: int,
    group_size: int | None,
    *,
    is_symmetric: bool,
) -> None:
    """Write a checkpoint folder, whole or not at all.

    Args:
        source: the folder of the float checkpoint.
        output: the folder, which must not exist.
        tensors: of the source, with `packed_layer` or `int8_layer` in place of the quantized ones.
            An output layer (``lm_head``) may have other bits.
        group_size: inputs with one scale; None for layers of `int8_layer`.

    Raises:
        UsageError: the output exists.
        InputError: a file cannot be read or written.
    """
    config = source_config(source)
    arrays: dict[str, Array] = {}
    ignored: list[str] = []
    head_bits: dict[str, int] = {}
    for tensor in tensors:
        if isinstance(tensor, PackedTensor):
            layer = tensor.name.removesuffix(".weight")
            arrays |= {f"{layer}.{part}": array for part, array in tensor.packed.items()}
            if layer.endswith(OUTPUT_LAYER):
                head_bits[layer] = bits_of(tensor)
            continue
        assert isinstance(tensor, PrimitiveTensor)  # the source is a float checkpoint
        arrays[tensor.name] = tensor.array
        if len(tensor.shape) == 2:
            ignored.append(tensor.name.removesuffix(".weight"))
    if not head_bits:
        ignored.append(OUTPUT_LAYER)
    quantization = _configuration(bits, group_size, is_symmetric, sorted({*ignored}))
    for name, own_bits in head_bits.items():
        if own_bits != bits:
            own = _configuration(own_bits, group_size, is_symmetric, [])["config_groups"]["group_0"]
            quantization["config_groups"]["group_1"] = own | {"targets": [name]}
    config["quantization_config"] = quantization
    write_folder(source, output, config, arrays)


def _configuration(
    bits: int, group_size: int | None, is_symmetric: bool, ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the ``quantization_config`` of one group of all linear layers but the ignored ones.

    Without groups of inputs, inputs are rounded to int8 with a scale for each token.
    """
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": is_symmetric,
        "strategy": "group" if group_size else "channel",
        "group_size": group_size,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    inputs = {**weights, "strategy": "token", "dynamic": True, "observer": None}
    packing = "pack-quantized" if group_size else "int-quantized"
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None if group_size else inputs,
        "output_activations": None,
        "format": packing,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
