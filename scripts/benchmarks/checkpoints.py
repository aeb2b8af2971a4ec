"""Checkpoints of Gemma 3, and GGUF files of the same weights, made of a GGUF file.

Linear layers are symmetric integers in groups of 32 inputs, and the embedding table, which is the
output layer too, is bf16 or integers like them:

=====  =============================================  ==========================
bits   tensor of the checkpoint (compressed-tensors)  tensor of the GGUF file
=====  =============================================  ==========================
4      ``pack-quantized``, 8 integers in a word       Q4_0
8      ``int-quantized``, a byte for each             Q8_0
16     bf16                                           BF16
=====  =============================================  ==========================

Scales are bf16 and normal in f16, so both files have the same weights, to the last bit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from subquant.layouts import InferenceTensor, QuantizedTensor
from subquant.models.source import ModelSource, open_model

from .language import copy_properties

Array = np.ndarray[Any, Any]

GROUP = 32
_MIN_SCALE = 2.0**-14
"""The least normal number of f16."""
_LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


@dataclass(frozen=True)
class Groups:
    """A weight of integers with a scale for each group: ``weight = integers * scales``.

    Attributes:
        integers: int8 ``[N, K]``.
        scales: bf16 ``[N, K / 32]``.
    """

    bits: int
    integers: Array
    scales: Array

    @classmethod
    def of(cls, weight: Array, bits: int) -> Groups:
        """Round the weight of a layer, float32 ``[N, K]``."""
        half = 1 << (bits - 1)
        groups = weight.reshape(len(weight), -1, GROUP)
        scales = (np.abs(groups).max(2) / (half - 0.5)).astype(ml_dtypes.bfloat16)
        scales = np.maximum(scales, ml_dtypes.bfloat16(_MIN_SCALE))
        integers = np.rint(groups / scales.astype(np.float32)[..., None])
        clipped = np.clip(integers, -half, half - 1).astype(np.int8)
        return cls(bits, clipped.reshape(weight.shape), scales)

    def checkpoint_arrays(self, layer: str) -> dict[str, Array]:
        """Return the arrays of a layer as compressed-tensors stores them."""
        scales = {f"{layer}.weight_scale": self.scales}
        if self.bits == 8:
            return {f"{layer}.weight": self.integers, **scales}
        nibbles = (self.integers + 8).astype(np.uint8)
        words = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).view(np.int32)
        shape = np.array(self.integers.shape, np.int64)
        return {f"{layer}.weight_packed": words, f"{layer}.weight_shape": shape, **scales}

    def blocks(self) -> Array:
        """Return the blocks of Q4_0 or Q8_0, bytes ``[N, K / 32 * bytes of a block]``."""
        stored = self.integers.reshape(*self.scales.shape, GROUP)
        if self.bits == 4:
            nibbles = (stored + 8).astype(np.uint8)
            stored = nibbles[..., : GROUP // 2] | nibbles[..., GROUP // 2 :] << 4
        halves = self.scales.astype(np.float16)[..., None].view(np.uint8)
        return np.concatenate([halves, stored.view(np.uint8)], -1).reshape(len(stored), -1)


def write_checkpoint(source: Path, folder: Path, target: Path, bits: int, table_bits: int) -> None:
    """Write a checkpoint without a tokenizer, and the GGUF file of the same weights.

    Args:
        source: a GGUF file of the architecture ``gemma3``.
        folder: the folder of the checkpoint.
        target: the GGUF file; it has the properties of `source`.
        bits: of linear layers, 4 or 8.
        table_bits: of the embedding table, 8 or 16.
    """
    model = open_model(source)
    writer = gguf.GGUFWriter(target, "gemma3")
    copy_properties(gguf.GGUFReader(source), writer)
    arrays: dict[str, Array] = {}
    for name, tensor in model.tensors.items():
        weight, layer = _floats(tensor), _layer_name(name)
        if weight.ndim == 1:  # of a norm, which a checkpoint has without the added 1
            stored = (weight - 1).astype(ml_dtypes.bfloat16)
            arrays[f"{layer}.weight"] = stored
            writer.add_tensor(name, stored.astype(np.float32) + 1)
            continue
        count = table_bits if name == "token_embd.weight" else bits
        if count == 16:
            stored = weight.astype(ml_dtypes.bfloat16)
            arrays[f"{layer}.weight"] = stored
            raw, kind = stored.view(np.uint8), gguf.GGMLQuantizationType.BF16
        else:
            groups = Groups.of(weight, count)
            arrays |= groups.checkpoint_arrays(layer)
            raw = groups.blocks()
            kind = gguf.GGMLQuantizationType.Q4_0 if count == 4 else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(model) | {"quantization_config": _quantization(bits, table_bits)}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _floats(tensor: InferenceTensor) -> Array:
    if isinstance(tensor, QuantizedTensor):
        return np.asarray(tensor.unpack().dequant(np.float32))
    return np.asarray(tensor.array, np.float32)


def _layer_name(name: str) -> str:
    """Return the checkpoint's name of a layer from the name of its weight in a GGUF file."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block is not None:
        return f"model.layers.{block[1]}.{_LAYERS[block[2]]}"
    return _MODEL[name.removesuffix(".weight")]


def _config(model: ModelSource) -> dict[str, Any]:
    """Return the ``config.json`` of a model, without a quantization."""
    c = model.configuration
    windows = [c.has_window(number) for number in range(c.blocks)]
    rotations = {"full_attention": c.rotation, "sliding_attention": c.window_rotation}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": c.width,
        "intermediate_size": c.hidden,
        "num_hidden_layers": c.blocks,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_size,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.epsilon,
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": c.vocabulary,
        "query_pre_attn_scalar": round(c.attention_scale**-2),
        "sliding_window": c.window,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windows],
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": each.base}
            for name, each in rotations.items()
        },
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def _quantization(bits: int, table_bits: int) -> dict[str, Any]:
    """Return the ``quantization_config`` of compressed-tensors."""
    targets = {"Linear": bits, "model.embed_tokens": table_bits}
    groups = {
        f"group_{number}": {
            "targets": [target],
            "format": "pack-quantized" if count == 4 else "int-quantized",
            "weights": {
                "num_bits": count, "type": "int", "symmetric": True, "strategy": "group",
                "group_size": GROUP,
            },
        }
        for number, (target, count) in enumerate(targets.items())
        if count < 16
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ["lm_head"],
    }
