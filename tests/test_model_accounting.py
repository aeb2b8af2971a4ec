"""GGUF models: each tensor and property is used, known to be irrelevant, or refused by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from command_line import fail, succeed
from gguf_models import ARCHITECTURES, SMALL, TinyModel, tokens_of
from subquant.errors import InputError, Place, SubquantError, UnsupportedError
from subquant.models import Tokenizer, load
from subquant.models.configuration import Configuration
from subquant.models.gguf_configuration import read_gguf_configuration
from subquant.models.irrelevant_properties import irrelevant_properties, irrelevant_vocabulary
from subquant.weights.sources import open_weights

TINY: dict[str, Any] = {"blocks": 1, **SMALL}


def opened(model: TinyModel, folder: Path) -> tuple[Configuration, Tokenizer]:
    path = model.write(folder / "model.gguf")
    dataset = open_weights(path)
    configuration = read_gguf_configuration(
        dataset.properties, dataset.theta.flatten(), Place(str(path))
    )
    return configuration, Tokenizer.from_properties(dataset.properties)


@pytest.mark.parametrize(
    ("architecture", "tensor", "shape"),
    [
        *((architecture, "blk.0.attn_zzz.weight", [64, 64]) for architecture in ARCHITECTURES),
        ("llama", "output.bias", [len(tokens_of("llama"))]),
        ("qwen2", "blk.0.attn_output.bias", [64]), ("qwen3", "blk.0.attn_output.bias", [64]),
        ("qwen3", "blk.0.ffn_up.bias", [64]), ("gemma3", "blk.0.ffn_down.bias", [64]),
        ("gemma3", "output.bias", [len(tokens_of("llama"))]), ("qwen2", "rope_freqs.weight", [16]),
        ("llama", "blk.0.attn_q.input_scale", [1]), ("llama", "token_embd.scale", [1]),
        ("llama", "blk.0.attn_norm.bias", [64]), ("llama", "blk.0.attn_q_norm.weight", [32]),
        ("llama", "blk.1.attn_q.bias", [128]), ("llama", "rope_factors_long.weight", [16]),
        ("qwen3", "cls.weight", [64]), ("llama", "general.zzz", [1]),
    ],
)  # fmt: skip
def test_a_tensor_that_is_not_used_is_named(
    architecture: str, tensor: str, shape: list[int], tmp_path: Path
) -> None:
    model = TinyModel(architecture, extra={tensor: shape}, **TINY)
    with pytest.raises(UnsupportedError) as caught:
        opened(model, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'model.gguf'}: error: has the tensor '{tensor}', which subquant does not "
        "use: the results could be wrong without it; use a model without, or a tool that knows it"
    )


def test_an_output_that_is_the_table_has_no_scale(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"has the tensor 'output\.scale'"):
        opened(TinyModel(tied=True, extra={"output.scale": [1]}, **TINY), tmp_path)


def test_tensors_of_blocks_that_the_model_does_not_count(tmp_path: Path) -> None:
    model = TinyModel(**{**TINY, "blocks": 2})
    model = TinyModel(extra={k: v for k, v in model.shapes().items() if "blk.1" in k}, **TINY)
    message = r"'blk\.1\.attn_norm\.weight', .* and 4 other items"
    with pytest.raises(UnsupportedError, match=message):
        opened(model, tmp_path)


CHANGES: list[tuple[str, Any]] = [
    ("zzz", 1), ("attention.zzz", 1.0), ("attention.causal", False), ("attention.causal", 1),
    ("attention.max_alibi_bias", 8.0), ("attention.clamp_kqv", 8.0),
    ("attn_logit_softcapping", 50.0), ("router_logit_softcapping", 30.0), ("logit_scale", 0.5),
    ("residual_scale", 0.5), ("embedding_scale", 12.0), ("embedding_scale", 1.0),
    ("use_parallel_residual", True), ("expert_used_count", 2), ("expert_shared_count", 1),
    ("expert_feed_forward_length", 64), ("nextn_predict_layers", 1), ("embedding_length_out", 32),
    ("attention.layer_norm_epsilon", 1e-5), ("attention.value_residual_mix_lora_rank", 2),
    ("attention.q_lora_rank", 2), ("attention.temperature_length", 8192),
    ("attention.key_length_swa", 64), ("attention.shared_kv_layers", 2),
    ("rope.scaling.attn_factor", 1.2), ("rope.scaling.yarn_log_multiplier", 0.1),
    ("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_attn_factor", 1.2),
    ("rope.scaling.yarn_beta_fast", 16.0), ("rope.scaling.alpha", 8.0),
    ("rope.dimension_sections", [1, 2, 3, 4]), ("rope.dimension_count_swa", 16),
    ("tensor_data_layout", "reference"),
]  # fmt: skip


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES} - {"gemma3"}))
def test_properties_of_images_are_those_of_gemma_3(architecture: str, tmp_path: Path) -> None:
    model = TinyModel(architecture, properties={"vision.block_count": 27}, **TINY)
    with pytest.raises(UnsupportedError, match=rf"property '{architecture}\.vision\.block_count'"):
        opened(model, tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_a_property_that_is_not_used_is_named(
    architecture: str, key: str, value: Any, tmp_path: Path
) -> None:
    message = re.escape(f"has the property '{architecture}.{key}'")
    with pytest.raises(UnsupportedError, match=message):
        opened(TinyModel(architecture, properties={key: value}, **TINY), tmp_path)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("llama", "general.zzz", "x"), ("llama", "general.type", "adapter"),
        ("llama", "general.quantization_version", 1), ("llama", "zzz", 1),
        ("llama", "qwen2.attention.causal", True), ("llama", "adapter.lora.alpha", 16.0),
        ("llama", "clip.has_vision_encoder", True), ("llama", "split.zzz", 1),
        ("llama", "tokenizer.zzz", "x"), ("llama", "tokenizer.ggml.zzz", 1),
        ("llama", "tokenizer.ggml.precompiled_charsmap", [1, 2]),
        ("llama", "tokenizer.ggml.remove_extra_whitespaces", True),
        ("llama", "tokenizer.ggml.add_eos_token", True),
        ("gpt2", "tokenizer.ggml.add_sep_token", True),
        ("gpt2", "tokenizer.ggml.add_space_prefix", True),
        ("gpt2", "tokenizer.ggml.normalizer.lowercase", True),
    ],
)  # fmt: skip
def test_a_property_of_the_file_that_is_not_known_is_named(
    kind: str, key: str, value: Any, tmp_path: Path
) -> None:
    model = TinyModel(vocabulary=kind, of_file={key: value}, **TINY)
    with pytest.raises(UnsupportedError, match=re.escape(f"has the property '{key}'")):
        opened(model, tmp_path)


def test_irrelevant_properties_are_accepted(tmp_path: Path) -> None:
    """Properties that real files have, and properties with a neutral value, are irrelevant."""
    count = len(tokens_of("llama"))
    properties = {
        "vocab_size": count, "attention.causal": True, "attention.clamp_kqv": 0.0,
        "attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0, "attention.scale": 0.0,
        "logit_scale": 1.0, "use_parallel_residual": False, "expert_count": 0,
        "expert_used_count": 0, "attention.sliding_window": 4096, "rope.scaling.type": "none",
        "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 8192,
        "rope.scaling.finetuned": True, "tensor_data_layout": "Meta AI original pth",
    }  # fmt: skip
    of_file = {
        "general.type": "model", "general.name": "x", "general.license.link": "x",
        "general.tags": ["x"], "general.languages": ["en"], "general.base_model.count": 1,
        "general.base_model.0.name": "x", "general.base_model.12.repo_url": "x",
        "general.dataset.0.url": "x", "general.sampling.temp": 0.6, "general.file_type": 7,
        "general.quantization_version": 2, "quantize.imatrix.file": "x",
        "tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "x",
        "tokenizer.chat_templates": ["tool_use"], "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.fim_pre_token_id": 5, "tokenizer.ggml.fim_pad_token_id": 7,
    }  # fmt: skip
    configuration, tokenizer = opened(
        TinyModel(properties=properties, of_file=of_file, **TINY), tmp_path
    )
    assert (configuration.rotation.scale, configuration.window) == (1.0, 0)
    assert configuration.attention_scale == pytest.approx(32**-0.5)
    assert tokenizer.end_tokens >= {2, 7}


def test_patterns_of_irrelevant_properties_are_narrow() -> None:
    """A star stands for a name that a publisher chose, or for a number."""
    listed = [*irrelevant_properties("llama")]
    for kind in ("llama", "gpt2"):
        listed += irrelevant_vocabulary(kind)
    patterns = {each.pattern for each in listed if any(mark in each.pattern for mark in "*?[")}
    assert all(
        pattern == "tokenizer.chat_template.*"
        or re.fullmatch(r"general\.(base_model|dataset)\.\[0-9]\*\.\w+", pattern)
        for pattern in patterns
    )
    assert all(each.reason for each in listed)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"attention.sliding_window": 16},
            "property 'llama.attention.sliding_window' is 16, and models of this architecture "
            "attend to all tokens; expected 0, or 64 at least",
        ),
        (
            {"attention.head_count_kv": [2, 4]},
            "property 'llama.attention.head_count_kv' differs from block to block, [2, 4]; "
            "expected one number",
        ),
        ({"vocab_size": 99}, "tensor 'token_embd.weight' has 394 rows, expected 99, the property"),
        ({"rope.scaling.type": "dynamic"}, "rotary embeddings are scaled by 'dynamic'"),
    ],
)
def test_properties_that_contradict_the_architecture(
    properties: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SubquantError, match=re.escape(message)):
        opened(TinyModel(properties=properties, **TINY), tmp_path)


def test_a_pattern_of_windows_has_a_boolean_for_each_block(tmp_path: Path) -> None:
    properties = {"attention.sliding_window_pattern": [True, False]}
    message = r"sliding_window_pattern' is \[True, False\], expected 1 booleans"
    with pytest.raises(InputError, match=message):
        opened(TinyModel("gemma3", properties=properties, **TINY), tmp_path)


@pytest.mark.parametrize(("blocks", "divisor"), [(62, 16), (61, 32)])
def test_the_scale_of_attention_where_the_file_has_none(
    blocks: int, divisor: int, tmp_path: Path
) -> None:
    """llama.cpp's rule: the width divided by the heads for 62 blocks, else the size of a head."""
    model = TinyModel("gemma3", **{**TINY, "blocks": blocks})
    assert opened(model, tmp_path)[0].attention_scale == pytest.approx(divisor**-0.5)
    model = TinyModel("gemma3", properties={"attention.scale": 0.125}, **{**TINY, "blocks": blocks})
    assert opened(model, tmp_path)[0].attention_scale == 0.125


@pytest.mark.parametrize("rows", [-5, 64])
def test_a_table_has_a_row_for_each_token(rows: int, tmp_path: Path) -> None:
    count = len(tokens_of("llama"))
    shapes = {"token_embd.weight": [count + rows, 64], "output.weight": [count + rows, 64]}
    path = TinyModel(extra=shapes, **TINY).write(tmp_path / "model.gguf")
    message = (
        f"{path}: error: tensor 'token_embd.weight' has {count + rows} rows for the {count} tokens "
        "of the vocabulary, expected a row for each token; convert the model again, with a token "
        "for each row\n"
    )
    assert fail(1, "generate", "--model", path, "--prompt", "Hello").endswith(message)
    with pytest.raises(InputError, match=f"has {count + rows} rows for the {count} tokens"):
        load(path)


def test_commands_refuse_what_they_do_not_use(tmp_path: Path) -> None:
    """Before anything is compiled; also from an archive that ``import`` made of the file."""
    model = TinyModel(properties={"zzz": 1}, of_file={"tokenizer.ggml.yyy": 2}, **TINY)
    path, archive = model.write(tmp_path / "model.gguf"), tmp_path / "model.irpa"
    succeed("import", path, "-o", archive)
    for file in (path, archive):
        error = fail(1, "perplexity", "--model", file, "--text", "-", stdin="a")
        assert f"{file}: error: has the property 'llama.zzz' = 1, which subquant" in error
    path = TinyModel(of_file={"tokenizer.ggml.yyy": 2}, **TINY).write(path)
    error = fail(1, "generate", "--model", path, "--prompt", "a")
    assert f"{path}: error: has the property 'tokenizer.ggml.yyy' = 2, which" in error
