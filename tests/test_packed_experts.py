"""Mixtures of experts whose weights are packed, in one format or several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import FOLDERS, expected, numpy_logits, relative_error
from packed_checkpoints import GPTQ, checkpoint, packed_layer
from subquant.errors import InputError, UnsupportedError
from subquant.models import load
from subquant.models.source import open_model
from subquant.numerics.element_types import Array
from subquant.weights.sources import open_weights


def packed_mixtral(folder: Path) -> tuple[Path, Path]:
    """Write Mixtral with experts of 4 bits by GPTQ, and the same with their float values."""
    config = json.loads((FOLDERS / "mixtral" / "config.json").read_text())
    packed: dict[str, Array] = {}
    floats: dict[str, Array] = {}
    tensors = open_model(FOLDERS / "mixtral").dataset.theta.flatten()
    for number, (name, tensor) in enumerate(tensors.items()):
        if ".experts." not in name:
            [array] = tensor.arrays.values()
            packed[name] = floats[name] = np.asarray(array).astype(np.float32)
            continue
        outputs, inputs = tensor.shape
        arrays, *_, reals = packed_layer("gptq", number, inputs, outputs, 32, minus=0x11111111)
        arrays["l.scales"] = arrays["l.scales"] / np.float16(64)
        layer = name.removesuffix("weight")
        packed |= {key.replace("l.", layer, 1): array for key, array in arrays.items()}
        floats[name] = np.ascontiguousarray(reals / 64, np.float32)
    folders = folder / "packed", folder / "floats"
    for each in folders:
        each.mkdir()
    return (
        checkpoint(folders[0], packed, {**config, "quantization_config": GPTQ}),
        checkpoint(folders[1], floats, config),
    )


@pytest.mark.long
def test_packed_experts(tmp_path: Path) -> None:
    """The cache of f16 is off by 2**-11 of its elements."""
    packed, floats = packed_mixtral(tmp_path)
    tokens = expected("mixtral").tokens
    reference = numpy_logits(floats, tokens)
    assert relative_error(numpy_logits(packed, tokens), reference) < 2e-6
    session = load(packed, activations="float", context=32, cache=tmp_path / "cache").session()
    actual = [session.prompt(tokens[:20]), *(session.next(token) for token in tokens[20:])]
    assert relative_error(np.stack(actual), reference[19:]) < 2e-3


def test_experts_of_several_formats(tmp_path: Path) -> None:
    packed, floats = packed_mixtral(tmp_path)
    name = "model.layers.0.block_sparse_moe.experts.2.w1"
    arrays = {
        key: np.asarray(array)
        for tensor in open_weights(floats).theta.flatten().values()
        for key, array in tensor.arrays.items()
        if key == f"{name}.weight"
    }
    packed_arrays = load_file(packed / "model.safetensors")
    without_expert = {
        key: array for key, array in packed_arrays.items() if not key.startswith(f"{name}.")
    }
    save_file({**without_expert, **arrays}, packed / "model.safetensors")
    with pytest.raises(UnsupportedError, match="has another format than") as error:
        open_model(packed)
    assert name in str(error.value)


def test_an_expert_that_is_missing(tmp_path: Path) -> None:
    _, floats = packed_mixtral(tmp_path)
    arrays = load_file(floats / "model.safetensors")
    del arrays["model.layers.0.block_sparse_moe.experts.1.w3.weight"]
    save_file(arrays, floats / "model.safetensors")
    with pytest.raises(InputError, match=r"experts\.N\.w3\.weight', and none with the number 1"):
        open_model(floats)
