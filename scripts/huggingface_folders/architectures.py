"""Folders of float weights, one for each architecture and variant of its configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import torch
import transformers
from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from .models import (
    SIZES,
    add_long_logits,
    auto_class,
    forward,
    random_model,
    read_arrays,
    tokens_of,
    write_expected,
    write_json,
)
from .tokenizer_files import VOCABULARY, write_byte_fallback, write_byte_level

_WINDOW = 12
"""The sliding window: half of the tokens that the tests run."""
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_GEMMA_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}


def _llama(**settings: object) -> PretrainedConfig:
    return transformers.LlamaConfig(**SIZES | settings)


def llama3_config(**settings: object) -> PretrainedConfig:
    """Return the configuration of Llama 3's kind, which the quantized folders have too."""
    return _llama(**{"rope_parameters": dict(_LLAMA3_ROPE), "rms_norm_eps": 1e-5} | settings)


def one_block_config(**settings: object) -> PretrainedConfig:
    """Return the configuration of one block of Llama, which is enough to read a format."""
    return llama3_config(**{"num_hidden_layers": 1} | settings)


def mistral_config(**settings: object) -> PretrainedConfig:
    """Return the configuration of one block with a sliding window."""
    sizes = SIZES | {"num_hidden_layers": 1, "head_dim": 16} | settings
    return transformers.MistralConfig(**sizes, sliding_window=_WINDOW)


def qwen3_config(**settings: object) -> PretrainedConfig:
    """Return a configuration with norms of queries and keys."""
    return transformers.Qwen3Config(**SIZES | {"head_dim": 32} | settings)


def gemma3_config() -> PretrainedConfig:
    """Return the configuration of a text model with alternating windows."""
    sizes = SIZES | {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 3,
        "bos_token_id": 2,
        "eos_token_id": [1, 5],
        "pad_token_id": 0,
    }
    return transformers.Gemma3TextConfig(
        **sizes,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=_WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={kind: dict(rope) for kind, rope in _GEMMA_ROPE.items()},
    )


def _gemma3_images() -> PretrainedConfig:
    """Return the configuration of Gemma 3 with images: a text model and a vision tower."""
    text = gemma3_config().to_dict() | {"hidden_size": 32, "intermediate_size": 48}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
    return transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=1, eos_token_id=[1, 5],
        bos_token_id=2, image_token_index=319, boi_token_index=317, eoi_token_index=318,
    )  # fmt: skip


def _mistral3_images() -> PretrainedConfig:
    """Return the configuration of Mistral 3 with images; its output layer is a tensor."""
    text = mistral_config(hidden_size=32, intermediate_size=48).to_dict()
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "image_size": 16,
              "patch_size": 8}  # fmt: skip
    return transformers.Mistral3Config(
        text_config=text | {"tie_word_embeddings": False}, vision_config=vision,
        tie_word_embeddings=False, image_token_index=10,
    )  # fmt: skip


def _qwen2(**settings: object) -> PretrainedConfig:
    return transformers.Qwen2Config(**SIZES | settings)


def _phi3(**settings: object) -> PretrainedConfig:
    return transformers.Phi3Config(
        **SIZES | {"sliding_window": None, "original_max_position_embeddings": 256} | settings
    )


def _mixtral() -> PretrainedConfig:
    return transformers.MixtralConfig(
        **SIZES | {"intermediate_size": 32, "num_hidden_layers": 1},
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
    )


def _qwen3_moe() -> PretrainedConfig:
    return transformers.Qwen3MoeConfig(
        **SIZES,
        head_dim=16,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[0],
    )


_CONFIGURATIONS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: llama3_config(
        vocab_size=VOCABULARY, tie_word_embeddings=False, eos_token_id=[1, 4]
    ),
    "llama2": lambda: _llama(
        tie_word_embeddings=False, attention_bias=True, mlp_bias=True, num_hidden_layers=1
    ),
    "llama_yarn": lambda: _llama(
        num_hidden_layers=1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama_linear": lambda: _llama(
        num_hidden_layers=1,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    ),
    "smollm": lambda: _llama(
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    ),
    "mistral": mistral_config,
    "qwen2": lambda: _qwen2(num_hidden_layers=1),
    "qwen2_window": lambda: _qwen2(
        use_sliding_window=True, sliding_window=_WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: qwen3_config(num_hidden_layers=1),
    "gemma3": gemma3_config,
    "gemma3_images": _gemma3_images,
    "mistral3_images": _mistral3_images,
    "phi3": lambda: _phi3(num_hidden_layers=1),
    "phi3_partial": lambda: _phi3(
        num_hidden_layers=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    ),
    "phi3_longrope": lambda: _phi3(
        num_hidden_layers=1,
        original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.05, 1.1, 1.25, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
        },
    ),
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}
_TOKENIZERS = {"llama": write_byte_level, "gemma3": write_byte_fallback}
_SHARDED = {"qwen3": "60KB"}
"""The largest shard of folders that have several."""


def _write(name: str, folder: Path) -> None:
    model = random_model(_CONFIGURATIONS[name]())
    model.config.architectures = [type(model).__name__]
    eos = getattr(model.config, "eos_token_id", None)
    if isinstance(eos, list):
        model.generation_config = GenerationConfig(
            bos_token_id=model.config.bos_token_id, eos_token_id=eos, do_sample=False
        )
    model.save_pretrained(folder, max_shard_size=_SHARDED.get(name, "5GB"))
    if name in _TOKENIZERS:
        _TOKENIZERS[name](folder)
    reference = load_float32(folder)
    write_expected(folder, reference, read_arrays(folder))
    if name == "phi3_longrope":
        add_long_logits(folder, reference)
    if name in _OLD_SPELLINGS:
        path = folder / "config_4x.json"
        write_json(path, _OLD_SPELLINGS[name](json.loads((folder / "config.json").read_text())))
        _check_same_logits(folder, path, forward(reference, tokens_of(reference.config)))


def load_float32(folder: Path) -> transformers.PreTrainedModel:
    """Return transformers' model of a folder in float32, with eager attention."""
    config = AutoConfig.from_pretrained(folder)
    return (
        auto_class(config)
        .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )


def _llama_of_4x(config: dict) -> dict:
    """Return the configuration as transformers 4 writes it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.3"
    return dict(sorted(config.items()))


def _gemma3_of_4x(config: dict) -> dict:
    """Return the configuration as transformers 4 writes it: two bases, and a window's pattern."""
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_scaling"] = ropes["full_attention"]
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    del config["layer_types"]
    config.pop("_sliding_window_pattern", None)
    config["sliding_window_pattern"] = 3
    config["cache_implementation"] = "hybrid"
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.3"
    return dict(sorted(config.items()))


_OLD_SPELLINGS = {"llama": _llama_of_4x, "gemma3": _gemma3_of_4x}


def _check_same_logits(folder: Path, configuration: Path, logits: torch.Tensor) -> None:
    """Check that transformers computes the same with another configuration."""
    with TemporaryDirectory() as temporary:
        for path in folder.glob("*.safetensors"):
            copyfile(path, Path(temporary) / path.name)
        copyfile(configuration, Path(temporary) / "config.json")
        model = load_float32(Path(temporary))
        if not torch.equal(forward(model, tokens_of(model.config)), logits):
            raise RuntimeError(f"{configuration} gives other logits")


def _writer(name: str) -> Callable[[Path], None]:
    return lambda folder: _write(name, folder)


FOLDERS = {name: _writer(name) for name in _CONFIGURATIONS}
"""The function that writes each folder."""
