"""Small models of the package ``transformers``, with random weights, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Case: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


class Adapter(nn.Module):
    """A model with tensors as arguments, and one tensor as its result."""

    def __init__(self, model: nn.Module, apply: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.apply_to = model, apply

    def forward(self, *args: Tensor) -> Tensor:
        return self.apply_to(self.model, *args)


SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
BLOCKS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
PATCHES = BLOCKS | {"image_size": 32, "patch_size": 8}

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": 6},
    "Qwen2": GROUPED,
    "Qwen3": GROUPED | {"head_dim": 16},
    "Gemma3Text": GROUPED | {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "Phi3": GROUPED | {"pad_token_id": 0},
    "SmolLM3": GROUPED | {"pad_token_id": 0},
    "GPT2": {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeoX": SIZES,
    "OPT": {
        **{"vocab_size": 128, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 64},
    },
    "Falcon": {
        **{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4},
    },
    "Mixtral": GROUPED | {"num_local_experts": 4},
    "Qwen3Moe": GROUPED
    | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Mamba": {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Roberta": SIZES,
    "DistilBert": {"vocab_size": 128, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
    "Albert": SIZES | {"embedding_size": 32},
    "Electra": SIZES,
    "ModernBert": SIZES | {"pad_token_id": 0},
    "MPNet": SIZES,
    "DebertaV2": SIZES,
    "T5": {
        **{"vocab_size": 128, "d_model": 64, "d_ff": 128, "num_layers": 2},
        **{"num_heads": 4, "d_kv": 16},
    },
}
IMAGE_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "ViT": (PATCHES, 32),
    "DeiT": (PATCHES, 32),
    "CLIPVision": (PATCHES, 32),
    "Dinov2": (
        {
            **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"image_size": 28, "patch_size": 7},
        },
        28,
    ),
    "Swin": (
        {
            **{"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2]},
            **{"num_heads": [2, 4], "window_size": 4},
        },
        32,
    ),
    "ConvNext": ({"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, 32),
    "ResNet": (
        {
            **{"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
            "layer_type": "basic",
        },
        32,
    ),
    "MobileNetV1": ({"depth_multiplier": 0.25, "initializer_range": 0.2}, 32),
    "MobileNetV2": ({"depth_multiplier": 0.25, "min_depth": 4}, 32),
    "EfficientNet": (
        {
            **{"width_coefficient": 0.25, "depth_coefficient": 0.2, "image_size": 32},
            **{"hidden_dim": 320, "initializer_range": 0.2},
        },
        32,
    ),
    "MobileViT": (
        {
            **{"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": 2},
            "initializer_range": 0.2,
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
        },
        64,
    ),
    "Segformer": (
        {
            **{"hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4]},
            "depths": [1, 1, 1, 1],
        },
        32,
    ),
}
WHISPER = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
    **{"num_mel_bins": 16, "max_source_positions": 20, "vocab_size": 128, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
WAV2VEC2 = BLOCKS | {
    **{"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3)},
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}

NAMES = (*LANGUAGE_MODELS, *ENCODERS, *IMAGE_MODELS, "Whisper", "Wav2Vec2")


def _model(name: str, suffix: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}{suffix}")(config).eval()


def _hidden_state(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).last_hidden_state


def case(name: str) -> Case:
    """A model in evaluation mode, and its arguments."""
    import transformers

    torch.manual_seed(0)
    if name in LANGUAGE_MODELS:
        config = getattr(transformers, f"{name}Config")(**LANGUAGE_MODELS[name])
        model = transformers.AutoModelForCausalLM.from_config(config)
        ids = torch.randint(0, 128, (1, 12))
        run = Adapter(model, lambda m, i: m(input_ids=i, use_cache=False).logits)
        return run.eval(), (ids,)
    if name in ENCODERS:
        suffix = "EncoderModel" if name == "T5" else "Model"
        mask = (torch.arange(12) < torch.tensor([[12], [8]])).to(torch.int64)
        run = Adapter(
            _model(name, suffix, ENCODERS[name]),
            lambda m, i, k: m(input_ids=i, attention_mask=k).last_hidden_state,
        )
        return run.eval(), (torch.randint(0, 128, (2, 12)), mask)
    if name in IMAGE_MODELS:
        settings, size = IMAGE_MODELS[name]
        run = Adapter(_model(name, "Model", settings), _hidden_state)
        return run.eval(), (torch.randn(2, 3, size, size),)
    if name == "Whisper":
        encoder = _model(name, "Model", WHISPER).encoder
        return Adapter(encoder, _hidden_state).eval(), (torch.randn(1, 16, 40),)
    return Adapter(_model(name, "Model", WAV2VEC2), _hidden_state).eval(), (torch.randn(1, 400),)
