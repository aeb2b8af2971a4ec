"""Writer of GPTQ checkpoints: int4 and int8 weights in groups of consecutive inputs.

`gptq` has the packing. Zero points of symmetric weights are stored less 1, as all loaders read them
(``checkpoint_format: gptq``). Other zero points are stored as they are (``gptq_v2``): 1 cannot be
subtracted of a zero point of 0, and GPTQModel refuses those less 1 that another program wrote.

Source: GPTQModel, ``QuantizeConfig`` and ``BaseQuantLinear.pack``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ...layouts import BlockAffineLayout, InferenceTensor, PrimitiveTensor
from ...numerics.element_types import Array
from .folder_writer import pack_words, source_config, write_folder
from .layers import OUTPUT_LAYER, PackedTensor


def write_gptq(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    tensors: Sequence[InferenceTensor],
    bits: int,
    group_size: int,
    *,
    is_symmetric: bool,
) -> None:
    """Write a checkpoint folder, whole or not at all.

    Args:
        source: the folder of the float checkpoint.
        output: the folder, which must not exist.
        tensors: of the source, with `compressed_writer.packed_layer` in place of the quantized
            ones.

    Raises:
        UsageError: the output exists, or words do not hold the integers of a layer whole.
        InputError: a file cannot be read or written.
    """
    config = source_config(source)
    layers = {each.name: each for each in tensors if isinstance(each, PackedTensor)}
    packed = {name: _integers_of(layer, bits) for name, layer in layers.items()}
    arrays: dict[str, Array] = {}
    floats: list[str] = []
    for tensor in tensors:
        if tensor.name in packed:
            name = tensor.name.removesuffix(".weight")
            arrays |= {
                f"{name}.{part}": array
                for part, array in _arrays(*packed[tensor.name], bits, int(is_symmetric)).items()
            }
            continue
        assert isinstance(tensor, PrimitiveTensor)  # the source is a float checkpoint
        arrays[tensor.name] = tensor.array
        if tensor.name.endswith(("_proj.weight", ".gate.weight")):
            floats.append(tensor.name.removesuffix(".weight"))
    quantization: dict[str, Any] = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq" if is_symmetric else "gptq_v2",
        "bits": bits,
        "group_size": group_size,
        "sym": is_symmetric,
        "desc_act": False,
        "lm_head": any(name.endswith(f"{OUTPUT_LAYER}.weight") for name in packed),
        "pack_dtype": "int32",
    }
    if floats:
        quantization["dynamic"] = {f"-:^{name.replace('.', chr(92) + '.')}$": {} for name in floats}
    config["quantization_config"] = quantization
    write_folder(source, output, config, arrays)


def _integers_of(tensor: PackedTensor, bits: int) -> tuple[Array, Array, Array]:
    """Return unsigned integers ``[K, N]``, scales ``[G, N]``, and zero points ``[G, N]``."""
    layout = tensor.unpack()
    assert isinstance(layout, BlockAffineLayout)  # `packed_layer`
    rows, k = tensor.shape
    if rows * bits % 32 or k * bits % 32:
        raise UsageError(
            f"tensor '{tensor.name}' has {k} inputs and {rows} outputs, expected multiples of "
            f"{32 // bits}, which a word of GPTQ's format holds; write another format"
        )
    zeros = layout.planes.get("z")
    half = 0 if zeros is not None else 1 << (bits - 1)
    unsigned = (np.asarray(layout.stored()).astype(np.int16) + half).astype(np.uint8)
    scales = np.asarray(layout.planes["d"])
    zero_points = np.full(scales.shape, half, np.uint8) if zeros is None else np.asarray(zeros)
    return unsigned.T, scales.T, zero_points.astype(np.uint8).T


def _arrays(
    integers: Array, scales: Array, zero_points: Array, bits: int, less: int
) -> dict[str, Array]:
    k, groups = len(integers), len(scales)
    stored = zero_points - np.uint8(less)
    return {
        "qweight": np.ascontiguousarray(pack_words(np.ascontiguousarray(integers.T), bits).T),
        "qzeros": pack_words(np.ascontiguousarray(stored), bits),
        "scales": np.ascontiguousarray(scales),
        "g_idx": (np.arange(k) // (k // groups)).astype(np.int32),
    }
