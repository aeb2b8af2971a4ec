"""Tiny checkpoints of Hugging Face, which `scripts/make_huggingface_folders.py` wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from checkpoint_folders import FOLDERS
from subquant.layouts import PrimitiveTensor, QuantizedTensor
from subquant.models.configuration import Configuration
from subquant.models.interface import Cache
from subquant.models.source import open_model
from subquant.models.transformer import embed, logits, run_blocks
from subquant.weights.theta import Theta

Array = np.ndarray[Any, Any]


class Expected(NamedTuple):
    """Tokens, and transformers' logits after each of them."""

    tokens: list[int]
    logits: Array


def expected(name: str) -> Expected:
    """Return the logits of transformers for a checkpoint."""
    arrays = np.load(FOLDERS / name / "expected.npz")
    return Expected(arrays["tokens"].tolist(), arrays["logits"])


def relative_error(actual: Array, reference: Array) -> float:
    """The greatest difference of logits, relative to the greatest logit of each token."""
    differences = np.abs(np.asarray(actual) - reference).max(-1) / np.abs(reference).max(-1)
    return float(differences.max())


def numpy_logits(folder: Path, tokens: list[int], *, rounds_activations: bool = False) -> Array:
    """Return the logits after each token by the forward pass in NumPy, with an f32 cache.

    Args:
        rounds_activations: round the inputs of layers as the checkpoint asks for.
    """
    source = open_model(folder)
    c: Configuration = replace(source.configuration, quantizes_activations=rounds_activations)
    c = replace(c, rotation=replace(c.rotation, context=len(tokens)))
    prepare = _as_it_is if rounds_activations else _float
    weights = Theta({name: prepare(name, tensor) for name, tensor in source.tensors.items()})
    zeros = np.zeros((len(tokens), c.kv_heads, c.head_size), np.float32)
    x = embed(c, weights, np.array(tokens, np.int32))
    x, _ = run_blocks(c, weights, x, np.int32(0), [Cache(zeros, zeros)] * c.blocks)
    return np.asarray(logits(c, weights, x))


def _as_it_is(name: str, tensor: Any) -> Any:
    return tensor if isinstance(tensor, QuantizedTensor) else _float(name, tensor)


def _float(name: str, tensor: Any) -> PrimitiveTensor:
    is_quantized = isinstance(tensor, QuantizedTensor)
    array = tensor.unpack().dequant(np.float32) if is_quantized else tensor.array
    return PrimitiveTensor(np.asarray(array, np.float32), name)


def changed_copy(
    name: str,
    folder: Path,
    change: Callable[[dict[str, Any]], object],
    file: str = "config.json",
) -> Path:
    """Copy a checkpoint to a folder, and change one of its JSON files."""
    copy = folder / name
    shutil.copytree(FOLDERS / name, copy)
    values = json.loads((copy / file).read_text())
    change(values)
    (copy / file).write_text(json.dumps(values))
    return copy
