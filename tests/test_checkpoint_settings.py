"""Wrong configurations and tokenizers of checkpoints: errors that name the key and the file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import Checkpoint
from checkpoints import FOLDERS, changed_copy
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.models.configuration import expected_tensors
from subquant.models.huggingface.architectures import TABLE
from subquant.models.huggingface.tensor_names import name_in_checkpoint
from subquant.models.source import ModelSource, open_model

WRONG_KEYS: dict[str, tuple[dict[str, Any], type[SubquantError], str]] = {
    "another architecture": (
        {"model_type": "bert"},
        UnsupportedError,
        "the model is of the 'model_type' 'bert', expected one of: llama",
    ),
    "a key that nothing reads": (
        {"logit_multiplier": 2},
        UnsupportedError,
        "has the key 'logit_multiplier' = 2, which subquant does not use",
    ),
    "no heads": (
        {"num_attention_heads": 0},
        InputError,
        "'num_attention_heads' is 0, expected an integer of at least 1",
    ),
    "heads of keys that do not divide": (
        {"num_key_value_heads": 3},
        InputError,
        "'num_key_value_heads' is 3, expected a divisor of the 4 heads",
    ),
    "no size": (
        {"hidden_size": None},
        InputError,
        "the configuration has no 'hidden_size', expected an integer of at least 1",
    ),
    "another activation": (
        {"hidden_act": "relu"},
        UnsupportedError,
        "'hidden_act' is 'relu', which is not supported",
    ),
    "another vocabulary": (
        {"vocab_size": 100},
        InputError,
        "'vocab_size' is 100, expected 320, the rows of embed_tokens",
    ),
    "another scaling": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        UnsupportedError,
        "rotary embeddings are scaled by 'dynamic', which is not supported",
    ),
    "bounds of YaRN in another order": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 64}},
        InputError,
        "'rope_parameters.beta_slow' is 64, expected less than 'beta_fast', 32",
    ),
    "two bases": (
        {"rope_theta": 5.0},
        InputError,
        "which contradict each other; leave the wrong one out",
    ),
    "an unknown key of the rotary embeddings": (
        {"rope_parameters": {"rope_type": "default", "strength": 3}},
        UnsupportedError,
        "'rope_parameters' has the key 'strength' = 3, which subquant does not use",
    ),
    "a text for a number": (
        {"rms_norm_eps": "1e-5"},
        InputError,
        "'rms_norm_eps' is '1e-5', expected a number above 0",
    ),
    "more blocks than tensors": (
        {"num_hidden_layers": 10**6},
        InputError,
        "'num_hidden_layers' is 1000000, expected fewer than the",
    ),
    "another width": (
        {"intermediate_size": 32},
        InputError,
        "has the shape [96, 64], expected [32, 64]",
    ),
    "an architecture of another type": (
        {"model_type": ["llama"]},
        UnsupportedError,
        "the model is of the 'model_type' ['llama'], expected one of: llama",
    ),
    "two scalings": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        InputError,
        "'rope_scaling.type' is 'linear', and 'rope_parameters.rope_type' is 'llama3', which c",
    ),
    "two factors of a scaling": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
        InputError,
        "'rope_scaling.factor' is 2.0, and 'rope_parameters.factor' is 8.0, which contradict",
    ),
    "more elements than a head has": (
        {"partial_rotary_factor": 1e308},
        InputError,
        "'partial_rotary_factor' is 1e+308, expected at most 1",
    ),
    "scalings of types of layers": (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        UnsupportedError,
        "'rope_parameters' has the key 'full_attention', which subquant does not use",
    ),
    "a window of an architecture without": (
        {"sliding_window": 12},
        InputError,
        "'sliding_window' is 12, expected null, as the architecture has no windows",
    ),
    "blocks with a window of an architecture without": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        InputError,
        "'layer_types' says sliding_attention of block 1, and the other keys of windows full_att",
    ),
    "a part of each head, which the architecture does not have": (
        {"partial_rotary_factor": 0.5},
        InputError,
        "'partial_rotary_factor' is 0.5, expected 1, as the architecture rotates all elements",
    ),
    "two original contexts": (
        {"original_max_position_embeddings": 16},
        InputError,
        "'rope_parameters.original_max_position_embeddings' is 32, expected 16",
    ),
    "interleaved rotary embeddings": (
        {"rope_interleaved": True},
        UnsupportedError,
        "has the key 'rope_interleaved' = True, which subquant does not use",
    ),
    "a bias that no tensor has": (
        {"attention_bias": True},
        InputError,
        "the file has no tensor 'model.layers.0.self_attn.q_proj.bias'",
    ),
    "a share of another type": (
        {"partial_rotary_factor": "x"},
        InputError,
        "'partial_rotary_factor' is 'x', expected a number above 0",
    ),
    "a packing that nothing reads": (
        {"quantization_config": {"quant_method": "magic"}},
        UnsupportedError,
        "'magic'",
    ),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_wrong_configurations(case: str, tmp_path: Path) -> None:
    change, kind, message = WRONG_KEYS[case]
    folder = changed_copy("llama", tmp_path, lambda values: values.update(change))
    with pytest.raises(kind) as error:
        open_model(folder)
    assert message in str(error.value)
    file = folder if "tensor" in message or "shape" in message else folder / "config.json"
    assert f"{file}: error: " in str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen2_window", {"use_sliding_window": False}, "says sliding_attention of block 1"),
        ("gemma3", {"sliding_window": None}, "says sliding_attention of block 0"),
        ("mistral", {"layer_types": ["full_attention"]}, "says full_attention of block 0"),
    ],
)
def test_windows_that_contradict_each_other(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = changed_copy(name, tmp_path, lambda values: values.update(change))
    with pytest.raises(InputError, match=f"'layer_types' {message}, and the other keys of"):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("phi3", {"attention_bias": True}, "'attention_bias' is True, expected false"),
        ("qwen2", {"attention_bias": False}, "'attention_bias' is False, expected true"),
        (
            "gemma3",
            {"rope_parameters": {"rope_theta": 5e4}},
            "'rope_parameters' has the key 'rope_theta' = 50000.0, which",
        ),
    ],
)
def test_settings_that_an_architecture_does_not_have(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = changed_copy(name, tmp_path, lambda values: values.update(change))
    with pytest.raises(SubquantError, match=message):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (
            "llama",
            {
                "id2label": {"0": "LABEL_0"},
                "is_llama_config": True,
                "max_length": 20,
                "rope_interleaved": False,
                "temperature": 0.6,
                "tokenizer_class": "LlamaTokenizer",
                "torchscript": None,
                "unknown_setting": None,
                "transformers.js_config": {"dtype": "q4"},
            },
        ),
        ("phi3", {"attention_bias": False}),
        ("qwen2", {"attention_bias": True, "use_mrope": False}),
    ],
)
def test_keys_that_change_no_logits(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Files of SmolLM 2, Phi 3 and Qwen 2 have such keys."""
    folder = changed_copy(name, tmp_path, lambda values: values.update(change))
    assert open_model(folder).configuration == open_model(FOLDERS / name).configuration


@pytest.mark.parametrize("name", ["gemma3", "llama2", "mixtral", "phi3", "qwen3", "qwen3_moe"])
def test_errors_have_the_names_of_the_checkpoint(name: str) -> None:
    source = open_model(FOLDERS / name)
    kind = TABLE[source.configuration.architecture]
    for role in expected_tensors(source.configuration):
        own = re.sub(r"\.\[0-\d\]\.", ".0.", source.tensors[role].name)
        assert name_in_checkpoint(kind, role) == own


def test_other_spellings_of_long_rope(tmp_path: Path) -> None:
    """Other files have `su` in place of `longrope`, and the first context beside the scaling."""

    def change(values: dict[str, Any]) -> None:
        rope = values.pop("rope_parameters")
        values["rope_theta"] = rope.pop("rope_theta")
        values["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        del rope["rope_type"], rope["original_max_position_embeddings"]
        values["rope_scaling"] = rope | {"type": "su"}

    configuration = open_model(FOLDERS / "phi3_longrope").configuration
    assert configuration.context == 256
    assert (
        open_model(changed_copy("phi3_longrope", tmp_path, change)).configuration == configuration
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("short_factor", [1.0] * 5, "is .*, expected 6 numbers above 0"),
        ("long_factor", None, "has no 'rope_parameters.long_factor', expected 6 numbers"),
        ("long_factor", [1.0] * 5 + [0], "is .*, expected 6 numbers above 0"),
        ("original_max_position_embeddings", 1, "is 1, expected 32"),
        ("factor", "8", "is '8', expected a number above 0"),
        ("short_mscale", 1.1, "has the key 'short_mscale' = 1.1, which subquant does not use"),
    ],
)
def test_wrong_long_rope(key: str, value: Any, message: str, tmp_path: Path) -> None:
    folder = changed_copy(
        "phi3_longrope", tmp_path, lambda values: values["rope_parameters"].update({key: value})
    )
    with pytest.raises(SubquantError, match=message):
        open_model(folder)


def test_windows_of_blocks_without_rotation(tmp_path: Path) -> None:
    """SmolLM 3 has windows in the blocks without rotary embeddings."""
    change = {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 12}
    change |= {"no_rope_layers": [1, 0], "rope_parameters": None}
    folder = changed_copy("llama", tmp_path, lambda values: values.update(change))
    assert open_model(folder).configuration.windowed_blocks == (False, True)


def test_weights_of_integers_without_scales(tmp_path: Path) -> None:
    """The integers of a layer whose scales are lost are no weights."""
    name = "model.layers.0.self_attn.q_proj.weight"
    checkpoint = Checkpoint("llama")
    checkpoint.replace({name: checkpoint.arrays[name].astype(np.int8)})
    with pytest.raises(InputError, match=f"'{name}' is of int8 and has no scales, expected fl"):
        open_model(checkpoint.write(tmp_path))


def test_tied_models_with_another_output(tmp_path: Path) -> None:
    folder = changed_copy("llama", tmp_path, lambda v: v.update(tie_word_embeddings=True))
    with pytest.raises(InputError, match=r"'lm_head\.weight' is not the embedding table"):
        open_model(folder)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "{", "the tokenizer is not valid"),
        ("tokenizer.json", "{}", "the tokenizer is not valid"),
        ("tokenizer_config.json", '{"bos_token": 3}', "'bos_token' of tokenizer_config.json is 3"),
        ("tokenizer_config.json", '{"bos_token": "<x>"}', "is '<x>', which is no token"),
        ("tokenizer_config.json", '{"add_bos_token": 3}', "'add_bos_token' is 3, expected true or"),
        ("generation_config.json", '{"eos_token_id": ["a"]}', "'eos_token_id' is"),
        ("generation_config.json", '{"eos_token_id": [1, 320]}', "expected tokens below 320"),
        ("added_tokens.json", '{"<extra>": 320}', "adds the token '<extra>' as 320, and tokenizer"),
        ("added_tokens.json", '{"<|end|>": 7}', "'<|end|>' as 7, and tokenizer.json has it as 1"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"320": {"content": "<extra>"}}}',
            "adds the token '<extra>' as 320, and tokenizer.json has no such token; write the",
        ),
        (
            "tokenizer_config.json",
            '{"extra_special_tokens": {"image_token": "<extra>"}}',
            "adds the token '<extra>', and tokenizer.json has no such token",
        ),
    ],
)
def test_wrong_tokenizers(file: str, text: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    shutil.copytree(FOLDERS / "llama", folder)
    (folder / file).write_text(text)
    with pytest.raises(InputError) as error:
        open_model(folder).tokenizer()
    assert message in str(error.value)
    assert str(folder / file) in str(error.value)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size must be non-zero"),
        ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"}, "Missing [UNK] tok"),
    ],
)
def test_tokenizers_that_fail(part: str, value: Any, message: str, tmp_path: Path) -> None:
    """The library raises exceptions, and panics in Rust."""
    folder = tmp_path / "llama"
    shutil.copytree(FOLDERS / "llama", folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(settings | {part: value}))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(InputError) as error:
        read_and_write(open_model(folder))
    assert "tokenizer.json: error: the tokenizer fails: " in str(error.value)
    assert message in str(error.value)


def read_and_write(source: ModelSource) -> None:
    """Turn a text into tokens, and these into a text."""
    tokenizer = source.tokenizer()
    stream = tokenizer.stream()
    for token in tokenizer.encode("Hello, world"):
        stream.put(token)


def test_checkpoints_without_a_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    shutil.copytree(FOLDERS / "llama", folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedError, match=r"has no tokenizer\.json; write one"):
        open_model(folder).tokenizer()
