"""Special tokens and generation settings of checkpoints, as transformers 5.24 reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from checkpoint_folders import FOLDERS
from subquant.models.huggingface.generation_settings import unused_keys
from subquant.models.huggingface.tokenizer import CheckpointTokenizer
from subquant.models.source import open_model

USER, SYSTEM = 3, 2
Change = Callable[[dict[str, Any]], object]


def copy_of(folder: Path, **changes: Change) -> Path:
    """Copy the checkpoint ``llama``, with changes of its JSON files by their stems."""
    target = folder / "model"
    shutil.copytree(FOLDERS / "llama", target)
    for stem, change in changes.items():
        path = target / f"{stem}.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
    return target


def tokenizer_of(folder: Path) -> CheckpointTokenizer:
    """Open the tokenizer of a checkpoint."""
    tokenizer = open_model(folder).tokenizer()
    assert isinstance(tokenizer, CheckpointTokenizer)
    return tokenizer


def _only_in_vocabulary(values: dict[str, Any]) -> None:
    token = values["added_tokens"].pop(USER)
    values["model"]["vocab"][token["content"]] = token["id"]


def _not_special(values: dict[str, Any]) -> None:
    values["added_tokens"][USER]["special"] = False


@pytest.mark.parametrize("key", ["pad_token", "cls_token", "image_token", "extra_special_tokens"])
@pytest.mark.parametrize("change", [_only_in_vocabulary, _not_special])
def test_named_tokens_are_special(tmp_path: Path, key: str, change: Change) -> None:
    value: Any = {"user": "<|user|>"} if key == "extra_special_tokens" else "<|user|>"
    if change is _only_in_vocabulary and key == "extra_special_tokens":
        return  # refused, as tokens that transformers would add
    folder = copy_of(
        tmp_path, tokenizer=change, tokenizer_config=lambda values: values.update({key: value})
    )
    tokenizer = tokenizer_of(folder)
    tokens = tokenizer.encode("a<|user|>b", start=False)
    assert USER in tokens
    assert tokenizer.decode(tokens) == "ab"
    assert USER not in tokenizer.encode("a<|user|>b", start=False, special=False)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_flags_of_added_tokens_are_those_of_the_configuration(tmp_path: Path, flag: str) -> None:
    """``added_tokens_decoder`` replaces the flags of ``tokenizer.json``."""
    token = {"content": "<|user|>", "special": True, "normalized": False, flag: True}
    folder = copy_of(
        tmp_path,
        tokenizer_config=lambda v: v.update(added_tokens_decoder={str(USER): token}),
    )
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "the <|user|> sea<|user|>x"
    before = library.encode(text, add_special_tokens=False).ids
    library.add_tokens([tokenizers.AddedToken(**token)])
    expected = library.encode(text, add_special_tokens=False).ids
    assert expected != before
    assert tokenizer_of(folder).encode(text, start=False) == expected


def test_a_start_token_in_the_text_stays(tmp_path: Path) -> None:
    """Only a start token that the tokenizer itself wrote is left out."""
    folder = copy_of(tmp_path, tokenizer=lambda values: values.update(post_processor=None))
    tokenizer = tokenizer_of(folder)
    assert not tokenizer.adds_start
    assert tokenizer.encode("<|begin_of_text|>") == [0]
    assert tokenizer.encode("a") == tokenizer.encode("a", start=False)


VARIABLES = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ cls_token }}|{{ image_token }}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "<|begin_of_text|>|<|end|>|||"),
        ({"bos_token": None}, "|<|end|>|||"),
        ({"bos_token": ...}, "|<|end|>|||"),
        ({"bos_token": ..., "tokenizer_class": "LlamaTokenizer"}, "<|begin_of_text|>|<|end|>|||"),
        (
            {"cls_token": {"content": "<|system|>"}, "image_token": "<|user|>"},
            "<|begin_of_text|>|<|end|>||<|system|>|<|user|>",
        ),
        (
            {"extra_special_tokens": {"image_token": "<|user|>"}},
            "<|begin_of_text|>|<|end|>|||<|user|>",
        ),
    ],
)
def test_variables_of_templates(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    """``config.json`` has a ``bos_token_id``, and templates get the tokens of the tokenizer."""

    def change(values: dict[str, Any]) -> None:
        values.update({key: value for key, value in changes.items() if value is not ...})
        for key in [key for key, value in changes.items() if value is ...]:
            del values[key]

    folder = copy_of(tmp_path, tokenizer_config=change)
    (folder / "chat_template.jinja").write_text(VARIABLES)
    source = open_model(folder)
    assert source.chat(source.tokenizer()).render([{"role": "user", "content": ""}]) == expected


def test_a_start_token_that_is_not_special_is_in_the_template(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, tokenizer=lambda v: v["added_tokens"][0].update(special=False))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}a")
    source = open_model(folder)
    assert source.chat(source.tokenizer()).encode([])[0] == 0


def test_generation_settings_that_are_not_used_are_named(tmp_path: Path) -> None:
    changes = {"suppress_tokens": [5], "stop_strings": None, "temperature": 0.5, "min_length": 3}
    folder = copy_of(tmp_path, generation_config=lambda values: values.update(changes))
    (remark,) = open_model(folder).remarks
    assert remark == "keys of generation_config.json that are not used: min_length, suppress_tokens"
    assert open_model(FOLDERS / "llama").remarks == []


def test_neutral_generation_settings_are_not_named() -> None:
    settings = {"repetition_penalty": 1.0, "num_beams": 1, "min_length": 0, "suppress_tokens": []}
    assert unused_keys(settings) == []
    assert unused_keys({"repetition_penalty": 1.05}) == ["repetition_penalty"]
