"""Storage of key-value caches, and sessions with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.errors import UsageError
from subquant.models import Model, emit, load

FOLDERS = Path(__file__).parent / "data" / "huggingface"
FLOAT_FOLDERS = ["gemma3"]
if LONG:
    FLOAT_FOLDERS += ["llama", "llama_yarn", "mistral", "phi3_partial", "qwen2_window", "qwen3"]


def load_folder(name: str, cache: Path, **options: Any) -> tuple[Model, np.ndarray, np.ndarray]:
    """Load a checkpoint; return it, and tokens with transformers' logits after each."""
    model = load(FOLDERS / name, activations="float", cache=cache, context=64, **options)
    expected = np.load(FOLDERS / name / "expected.npz")
    return model, expected["tokens"], expected["logits"]


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The greatest difference of logits, as a fraction of the greatest logit of their token."""
    greatest = np.abs(expected).max(-1)
    return float((np.abs(actual - expected).max(-1) / greatest).max())


@pytest.mark.parametrize("name", FLOAT_FOLDERS)
def test_a_cache_of_f32_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """Tokens in batches, a prompt, and single tokens after it; windows slide."""
    model, tokens, expected = load_folder(name, tmp_path, kv_cache="f32")
    assert error_of(model.logits(tokens.tolist()), expected) < 5e-6
    session = model.session()
    assert error_of(session.prompt(tokens[:10].tolist()), expected[9]) < 5e-6
    after = np.array([session.next(int(token)) for token in tokens[10:]])
    assert error_of(after, expected[10:]) < 5e-6


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two key-value heads of 32 elements, and a block."""
    path = tmp_path_factory.mktemp("cache") / "tiny.gguf"
    return TinyModel("llama", ["Q8_0"], blocks=1, **SMALL).write(path)


@pytest.mark.parametrize(("name", "cache"), [("f32", "32x2x32xf32"), ("f16", "32x2x32xf16")])
def test_emitted_programs_have_the_caches(
    name: Any, cache: str, model_file: Path, tmp_path: Path
) -> None:
    module = tmp_path / "model.mlir"
    emit(model_file, module, tmp_path / "model.irpa", context=16, kv_cache=name)
    assert f"tensor<{cache}>" in module.read_text()


def test_unknown_caches_are_refused(model_file: Path) -> None:
    wrong: Any = "f8"
    with pytest.raises(UsageError, match="the key-value cache is 'f8', expected one of: f32, f16"):
        load(model_file, kv_cache=wrong)
