"""Checkpoints of Hugging Face as GGUF files, as llama.cpp's converter writes their tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from checkpoints import FOLDERS
from gguf_models import add_properties, write_file
from subquant.formats.safetensors import read_safetensors

_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
_INTERLEAVED = ("llama", "smollm3")
"""Architectures whose rotary embeddings rotate neighbors, so that rows are interleaved."""


def write_gguf(name: str, architecture: str, path: Path, **properties: Any) -> Path:
    """Write a checkpoint as a GGUF file of f32, without a vocabulary.

    Args:
        properties: further properties of the architecture.
    """
    folder = FOLDERS / name
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    if "long_factor" in rope:
        first = rope["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / first
        properties = {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": first,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(factor) / math.log(first)),
            **properties,
        }
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1)),
        **properties,
    }
    add_properties(writer, {f"{architecture}.{key}": value for key, value in values.items()})
    for length in ("short", "long"):
        if f"{length}_factor" in rope:
            factors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    for key, array in read_safetensors(folder / "model.safetensors").tensors.items():
        layer, _, part = key.rpartition(".")
        block, prefix = layer.split(".", 3), ""
        if layer.startswith("model.layers."):
            prefix, layer = f"blk.{block[2]}.", block[3]
        weight = np.asarray(array, np.float32)
        if architecture in _INTERLEAVED and _NAMES[layer] in ("attn_q", "attn_k"):
            halves = weight.reshape((-1, 2, size // 2, *weight.shape[1:]))
            weight = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
        writer.add_tensor(f"{prefix}{_NAMES[layer]}.{part}", weight)
    write_file(writer)
    return path
