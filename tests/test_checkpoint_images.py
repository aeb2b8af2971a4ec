"""Text models of checkpoints of images and text: names of tensors, keys, remarks, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import Checkpoint
from checkpoints import FOLDERS, expected, numpy_logits, relative_error
from gguf_models import TinyModel
from subquant.errors import SubquantError
from subquant.layouts import PrimitiveTensor
from subquant.models import loading
from subquant.models.huggingface.configuration import read_configuration
from subquant.models.huggingface.text_part import text_config, text_part
from subquant.models.source import open_model

NAMES = ["gemma3_images", "mistral3_images"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_later_versions_have_in_memory(name: str, tmp_path: Path) -> None:
    """``model.language_model`` in place of ``language_model.model``: the same logits."""
    checkpoint = Checkpoint(name)
    renamed = {}
    for old, array in checkpoint.arrays.items():
        new = old.removeprefix("language_model.") if ".lm_head" in old else f"model.{old}"
        renamed[new.replace("model.language_model.model.", "model.language_model.")] = array
    checkpoint.arrays = renamed
    tokens, reference = expected(name)
    assert relative_error(numpy_logits(checkpoint.write(tmp_path), tokens), reference) < 3e-6


def test_defaults_that_files_of_gemma_3_leave_out() -> None:
    """The keys of Google's file for 4B; the others are defaults of transformers."""
    config = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    table = np.broadcast_to(np.float32(0), (262_208, 2560))
    tensors = {f"tensor_{n}": PrimitiveTensor(table, f"tensor_{n}") for n in range(34)}
    tensors["token_embd.weight"] = PrimitiveTensor(table, "token_embd.weight")
    model = read_configuration(config, tensors)
    assert (model.heads, model.kv_heads, model.head_size, model.context) == (8, 4, 256, 131_072)
    assert (model.vocabulary, model.attention_scale, model.tied) == (262_208, 1 / 16, True)
    assert (model.rotation.base, model.rotation.scale) == (1_000_000, 1 / 8)
    assert (model.window_rotation.base, model.window_rotation.scale) == (10_000, 1)
    assert [n for n in range(34) if not model.has_window(n)] == [5, 11, 17, 23, 29]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_images_are_named(name: str) -> None:
    checkpoint = Checkpoint(name)
    count = sum("vision" in each or "projector" in each for each in checkpoint.arrays)
    [remark] = open_model(FOLDERS / name).remarks
    names = r"\((vision_tower|multi_modal_projector)\S+, \.\.\.\)"
    assert re.fullmatch(rf"{count} tensors of images {names} are not used: text only", remark)


def test_a_program_has_no_parameters_of_images(tmp_path: Path) -> None:
    steps: list[str] = []
    loading.emit(
        FOLDERS / "mistral3_images",
        tmp_path / "model.mlir",
        tmp_path / "model.irpa",
        progress=steps.append,
    )
    assert any("of images" in step for step in steps)
    assert not any(step.startswith("import") and "vision" in step for step in steps)
    assert b"vision_tower" not in (tmp_path / "model.irpa").read_bytes()


def test_tokens_of_the_whole_model() -> None:
    """``eos_token_id`` of the whole model is that of the text model, too."""
    config = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}
    assert text_config(config) == {"model_type": "gemma3_text", "eos_token_id": [1, 106]}


def _second_table(checkpoint: Checkpoint) -> None:
    table = checkpoint.arrays["language_model.model.embed_tokens.weight"]
    checkpoint.replace({"model.language_model.embed_tokens.weight": table})


WRONG: dict[str, tuple[Callable[[Checkpoint], object], str]] = {
    "no text model": (
        lambda c: c.config.pop("text_config"),
        "'text_config' is None, expected an object",
    ),
    "another text model": (
        lambda c: c.config["text_config"].update(model_type="llama"),
        r"'text_config\.model_type' is 'llama', which is not supported in a model of the "
        "'model_type' 'gemma3'; expected 'gemma3_text'",
    ),
    "an unknown key": (lambda c: c.config.update(gates=3), "has the key 'gates' = 3"),
    "an unknown key of the text model": (
        lambda c: c.config["text_config"].update(gates=3),
        "'text_config' has the key 'gates' = 3",
    ),
    "a wrong value": (
        lambda c: c.config["text_config"].update(num_attention_heads="many"),
        r"'text_config\.num_attention_heads' is 'many', expected an integer",
    ),
    "a missing tensor": (
        lambda c: c.replace({"language_model.model.norm.weight": None}),
        r"no tensor 'language_model\.model\.norm\.weight'",
    ),
    "a table twice": (_second_table, "which are one tensor of the text model"),
    "an unknown tensor": (
        lambda c: c.replace({"language_model.gates.weight": np.zeros(3, np.float32)}),
        r"has the tensor 'language_model\.gates\.weight'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case: str, tmp_path: Path) -> None:
    change, message = WRONG[case]
    checkpoint = Checkpoint("gemma3_images")
    change(checkpoint)
    with pytest.raises(SubquantError, match=message):
        open_model(checkpoint.write(tmp_path))


def test_an_output_without_a_key_that_says_so(tmp_path: Path) -> None:
    """Files of Mistral 3 have ``lm_head`` and no ``tie_word_embeddings``."""
    checkpoint = Checkpoint("mistral3_images")
    configs: list[dict[str, Any]] = [checkpoint.config, checkpoint.config["text_config"]]
    for config in configs:
        del config["tie_word_embeddings"]
    part = text_part(checkpoint.config, {"language_model.lm_head.weight": None})  # type: ignore[dict-item]
    assert part.config["tie_word_embeddings"] is False
    assert not open_model(checkpoint.write(tmp_path)).configuration.tied


def test_gguf_files_with_the_tensors_of_images(tmp_path: Path) -> None:
    """Files of Google and Ollama have the tower beside the text model."""
    towers: dict[str, tuple[int, ...]] = {"v.patch_embedding.bias": (8,), "mm.mm_norm.weight": (8,)}
    properties = {"vision.block_count": 1, "mm.tokens_per_image": 256}
    path = TinyModel("gemma3", properties=properties, extra=towers).write(tmp_path / "model.gguf")
    source = open_model(path)
    [remark] = source.remarks
    assert remark == "2 tensors of images (v.patch_embedding.bias, ...) are not used: text only"
    parameters = source.parameters().theta.flatten()
    assert "token_embd.weight" in parameters
    assert not parameters.keys() & towers.keys()
