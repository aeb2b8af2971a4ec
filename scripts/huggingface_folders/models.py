"""Tiny models with random weights, and the values that tests compare with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

LIBRARIES = ("transformers", "torch", "compressed-tensors", "bitsandbytes", "torchao")
_SEED = 20261127
_TOKENS = 24
_ROUTED_TOKENS = 200
_LONG_TOKENS = 40

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}
"""The sizes and other settings that the models have in common."""


def auto_class(config: PretrainedConfig) -> type:
    """Return transformers' class that makes a model of a configuration."""
    has_images = hasattr(config, "vision_config")
    return AutoModelForImageTextToText if has_images else AutoModelForCausalLM


def random_model(config: PretrainedConfig, deviation: float = 0.125) -> PreTrainedModel:
    """Return a bf16 model of random weights, norms and biases.

    Matrices have the standard deviation `deviation`, biases and norms 0.2; norms are around 1, or
    around 0 where the model adds 1 to them (Gemma).
    """
    config.initializer_range = deviation
    model = auto_class(config).from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * deviation)
            else:
                is_around_one = name.endswith("norm.weight") and "gemma" not in config.model_type
                parameter.copy_(noise * 0.2 + (1.0 if is_around_one else 0.0))
    return model.to(torch.bfloat16)


def tokens_of(config: PretrainedConfig, count: int = _TOKENS) -> torch.Tensor:
    """Return random tokens of the model's vocabulary."""
    generator = np.random.default_rng(_SEED)
    return torch.from_numpy(
        generator.integers(0, config.get_text_config().vocab_size, count).astype(np.int32)
    )


def forward(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of each token as float32."""
    with torch.no_grad():
        return model(input_ids=tokens.long()[None], use_cache=False).logits[0].float()


def read_arrays(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all shards of a folder."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                tensors[name] = file.get_tensor(name)
    return tensors


def digest(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's values as little-endian float32."""
    values = tensor.detach().float().contiguous().numpy().astype("<f4", copy=False)
    return hashlib.sha256(values.tobytes()).hexdigest()


def float32_model(config: PretrainedConfig, state: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """Return the model in float32 of a state that has a float tensor for each name.

    Raises:
        RuntimeError: a tensor is missing (tied ones may be), or there is one without a use.
    """
    config = type(config).from_dict(config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    result = model.load_state_dict(
        {name: value.float() for name, value in state.items()}, strict=False
    )
    missing = set(result.missing_keys) - set(model._tied_weights_keys or ())
    if missing or result.unexpected_keys:
        raise RuntimeError(f"missing {sorted(missing)}, unexpected {result.unexpected_keys}")
    model.tie_weights()
    return model


def check_loads(folder: Path, reference: PreTrainedModel, **settings: object) -> None:
    """Check that transformers reads a folder, and computes about the same in bf16.

    Raises:
        RuntimeError: a logit differs by more than 5 % of the largest one.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", **settings
    ).eval()
    tokens = tokens_of(reference.config)
    logits = forward(reference, tokens)
    error = float((forward(model, tokens) - logits).abs().max() / logits.abs().max())
    if not error < 0.05:
        raise RuntimeError(f"{folder}: logits of transformers in bf16 differ by {error:.3f}")


def write_expected(
    folder: Path,
    model: PreTrainedModel,
    state: Mapping[str, torch.Tensor],
    rounded: Mapping[str, torch.Tensor] | None = None,
    quantized_logits: torch.Tensor | None = None,
    **notes: object,
) -> None:
    """Write ``expected.npz`` and ``expected.json``.

    Args:
        model: the model in float32, of dequantized weights.
        state: the dequantized tensors, under the names of the folder.
        rounded: the tensors of the library's own dequantization, where they differ.
        quantized_logits: logits of the library's quantized forward.
        notes: other entries of ``expected.json``.
    """
    tokens = tokens_of(model.config)
    arrays = {"tokens": tokens.numpy(), "logits": forward(model, tokens).numpy()}
    if quantized_logits is not None:
        arrays["logits_quantized"] = quantized_logits.float().numpy()
    if getattr(model.config, "num_experts_per_tok", None):
        routed = tokens_of(model.config, _ROUTED_TOKENS)
        arrays["routed_tokens"], arrays["experts"] = routed.numpy(), chosen_experts(model, routed)
    np.savez_compressed(folder / "expected.npz", **arrays)
    tensors = {}
    for name, tensor in sorted(state.items()):
        tensors[name] = {"shape": list(tensor.shape), "sha256": digest(tensor)}
        if rounded is not None and name in rounded and digest(rounded[name]) != digest(tensor):
            dtype = str(rounded[name].dtype).removeprefix("torch.")
            tensors[name]["rounded"] = {"dtype": dtype, "sha256": digest(rounded[name])}
    versions = {name: version(name) for name in LIBRARIES}
    entries = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in tensors.items()]
    header = json.dumps(versions | notes)[:-1]
    text = header + ', "tensors": {\n' + ",\n".join(entries) + "\n}}\n"
    (folder / "expected.json").write_text(text, encoding="utf-8")


def add_long_logits(folder: Path, model: PreTrainedModel) -> None:
    """Add ``long_tokens`` and ``logits_long`` of 40 tokens to ``expected.npz``."""
    arrays = dict(np.load(folder / "expected.npz"))
    tokens = tokens_of(model.config, _LONG_TOKENS)
    arrays["long_tokens"], arrays["logits_long"] = tokens.numpy(), forward(model, tokens).numpy()
    np.savez_compressed(folder / "expected.npz", **arrays)


def chosen_experts(model: PreTrainedModel, tokens: torch.Tensor) -> np.ndarray:
    """Return the experts of each block with experts and each token, by descending weight."""
    with torch.no_grad():
        output = model(input_ids=tokens.long()[None], use_cache=False, output_router_logits=True)
    count = model.config.num_experts_per_tok
    chosen = [logits.topk(count, dim=-1).indices for logits in output.router_logits]
    return torch.stack(chosen).numpy().astype(np.int32)


def write_json(path: Path, content: object) -> None:
    """Write indented JSON with a final newline."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
