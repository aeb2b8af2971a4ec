"""Scales folded into the layer before: the float model stays; AWQ's search beside float64."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoint_folders import FOLDERS
from checkpoints import numpy_logits
from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.calibration.folding import (
    Fold,
    LayerInputs,
    awq_scales,
    fold_block,
    smoothquant_scales,
)
from subquant.calibration.language_model import quantize_language_model
from subquant.calibration.layer import Calibration
from subquant.calibration.outputs import int8_tensor
from subquant.calibration.worker_threads import WorkerThreads
from subquant.layouts import InferenceTensor, PlanarQuantizedTensor, PrimitiveTensor
from subquant.models.configuration import Configuration, expected_tensors
from subquant.models.interface import empty_caches
from subquant.models.source import ModelSource, open_model
from subquant.models.transformer import embed, logits, run_blocks
from subquant.numerics.parameters import StorageType
from subquant.weights.grids import CLIPPINGS, as_scales, fit_grid
from subquant.weights.quantizing import WeightQuantization
from subquant.weights.theta import Dataset, Theta

MODELS = ["gguf llama", "gguf gemma3", "gguf qwen2", "gguf qwen3",
          "llama", "gemma3", "qwen2", "qwen3", "phi3", "mixtral"]  # fmt: skip
"""Tiny models: float32 files of GGUF, and folders of Hugging Face whose tensors are bfloat16."""


def open_tiny(model: str, folder: Path) -> ModelSource:
    if not model.startswith("gguf"):
        return open_model(FOLDERS / model)
    name = model.removeprefix("gguf ")
    tiny = TinyModel(name, tied=name == "gemma3", **SMALL)
    return open_model(tiny.write(folder / "model.gguf"))


def floats(tensor: InferenceTensor) -> np.ndarray:
    assert isinstance(tensor, PrimitiveTensor)
    return tensor.array.astype(np.float32)


def all_logits(
    configuration: Configuration, arrays: dict[str, np.ndarray], tokens: np.ndarray
) -> np.ndarray:
    theta = Theta({name: PrimitiveTensor(array, name) for name, array in arrays.items()})
    x = embed(configuration, theta, tokens)
    caches = empty_caches(configuration, len(tokens), "f32")
    x, _ = run_blocks(configuration, theta, x, np.int32(0), caches)
    return np.asarray(logits(configuration, theta, x), np.float64)


@pytest.mark.parametrize("model", MODELS)
def test_folding_leaves_the_float_model_as_it_is(model: str, tmp_path: Path) -> None:
    """Random scales of all folds: logits stay within 1e-6, and vectors fit their stored types."""
    source = open_tiny(model, tmp_path)
    configuration = source.configuration
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, configuration.vocabulary, 40).astype(np.int32)
    before = {name: floats(source.tensors[name]) for name in expected_tensors(configuration)}
    after = dict(before)

    def scales_of(fold: Fold, weights: list[np.ndarray], inputs: LayerInputs) -> np.ndarray:
        scales = np.exp(rng.normal(0, 0.7, fold.channels.max() + 1)).astype(np.float32)
        return scales[fold.channels]

    for number in range(configuration.blocks):
        prefix = f"blk.{number}."
        block = {
            name.removeprefix(prefix): array
            for name, array in before.items()
            if name.startswith(prefix)
        }
        types = {name: source.tensors[prefix + name].stored_arrays[0].dtype for name in block}
        layers = [name.removesuffix(".weight") for name in block if block[name].ndim == 2]
        with WorkerThreads(1) as threads:
            folded = fold_block(
                configuration, block, types, Inputs(np.eye(1)), layers, scales_of, threads
            )
        few = {"phi3": 2 + 4, "mixtral": 1 + 4}  # norms and layers; the router is a layer, too
        assert len(folded.arrays) == few.get(model, 9 + model.endswith("qwen2"))
        for name, array in folded.arrays.items():
            if array.ndim == 1:
                assert array.dtype == types[name]
            assert np.linalg.norm(array - block[name]) > 0.1 * np.linalg.norm(block[name])
            after[prefix + name] = array.astype(np.float32)
    expected = all_logits(configuration, before, tokens)
    distance = np.linalg.norm(all_logits(configuration, after, tokens) - expected)
    assert distance < 1e-6 * np.linalg.norm(expected)


def test_a_fold_that_changes_a_layer_of_floats_is_left_out(tmp_path: Path) -> None:
    source = open_tiny("gguf llama", tmp_path)
    names = [name for name in expected_tensors(source.configuration) if name.startswith("blk.0.")]
    block = {name.removeprefix("blk.0."): floats(source.tensors[name]) for name in names}
    types = dict.fromkeys(block, np.dtype(np.float32))
    quantized = ("attn_q", "attn_v", "attn_output", "ffn_up")

    def scales_of(fold: Fold, weights: list[np.ndarray], inputs: LayerInputs) -> np.ndarray:
        return np.full(len(fold.channels), 2, np.float32)

    with WorkerThreads(2) as threads:
        folded = fold_block(
            source.configuration, block, types, Inputs(np.eye(1)), quantized, scales_of, threads
        )
    assert sorted(folded.arrays) == ["attn_output.weight", "attn_v.weight"]


class Inputs:
    """The inputs ``[T, K]`` of one layer."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def of(self, name: str) -> np.ndarray:
        """The moments."""
        return (self.x.T @ self.x).astype(np.float32)

    def maxima(self, name: str) -> np.ndarray:
        """The greatest magnitudes."""
        return np.abs(self.x).max(0)


def nearest_values(
    row: np.ndarray, importance: np.ndarray, clippings: tuple[float, ...]
) -> np.ndarray:
    """Symmetric 4-bit values of a row in blocks of 32, with the best clipping of each, float64."""
    result = np.empty(len(row))
    for start in range(0, len(row), 32):
        block, weights = row[start : start + 32], importance[start : start + 32]
        tried = []
        for clipping in clippings:
            scale = float(as_scales(np.float32(max(block, key=abs) / -8 * clipping)))
            values = np.clip(np.rint(block / scale), -8, 7) * scale
            tried.append((float((weights * (values - block) ** 2).sum()), values))
        result[start : start + 32] = min(tried, key=lambda each: each[0])[1]
    return result


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_awq_scales_are_those_of_the_least_output_error(heads: tuple[int, int]) -> None:
    """The exponent, and the scales, of a search in float64 with the outputs themselves.

    Two of the inputs are great, and each channel is read by one or two inputs.
    """
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (200, 64)).astype(np.float32)
    x[:, [5, 40]] *= 30
    weight = rng.normal(0, 0.1, (12, 64)).astype(np.float32)
    repeats = heads[0] // heads[1]
    channels = (np.arange(4) // repeats * 16)[:, None] + np.arange(16)
    fold = Fold("attn_v", slice(0, 16 * heads[1]), ("attn_output",), channels.reshape(-1))
    squares = (x.astype(np.float64) ** 2).sum(0)
    shared = np.array([squares[fold.channels == channel].mean() for channel in fold.channels])
    best, least, errors = None, np.inf, []
    for step in range(10):
        scales = np.sqrt(shared) ** (step / 10)
        scales /= np.sqrt(scales.max() * scales.min())
        rounded = [
            nearest_values(row * scales, squares / scales**2, CLIPPINGS[::4]) for row in weight
        ]
        error = np.linalg.norm(x @ (np.array(rounded) / scales - weight).T)
        errors.append(error)
        if error < least:
            best, least = scales, error
    assert least < 0.9 * errors[0]
    search = awq_scales(WeightQuantization(4))
    np.testing.assert_allclose(search(fold, [weight], Inputs(x)), best, rtol=1e-4)


def test_awq_of_a_model_is_better_than_weighted_rounding(tmp_path: Path) -> None:
    """Great elements of norms make great inputs; the model has other norms afterwards."""
    source = open_tiny("gguf llama", tmp_path)
    tensors = dict(source.tensors)
    rng = np.random.default_rng(0)
    for name in expected_tensors(source.configuration):
        if name.endswith("_norm.weight") and name.startswith("blk"):
            weight = floats(tensors[name]) * np.where(rng.random(64) < 0.05, 20, 1)
            tensors[name] = PrimitiveTensor(weight.astype(np.float32), name)
    source.tensors = tensors
    vocabulary = source.configuration.vocabulary
    chunks = [rng.integers(0, vocabulary, 64).astype(np.int32) for _ in range(8)]
    errors = {}
    for method in ("round", "imatrix", "awq"):
        dataset, listed = quantize_language_model(
            source,
            chunks,
            WeightQuantization(3),
            Calibration(method),  # type: ignore[arg-type]
        )
        errors[method] = np.mean([error.output_error or 0 for error in listed])
        norm = dataset.theta.flatten()["blk.0.attn_norm.weight"]
        before = floats(source.dataset.theta.flatten()["blk.0.attn_norm.weight"])
        assert np.array_equal(floats(norm), before) == (method != "awq")
    assert errors["awq"] < 0.96 * errors["imatrix"]
    assert errors["imatrix"] < 0.8 * errors["round"]


# -- SmoothQuant -----------------------------------------------------------------------------------


def test_smoothquant_scales_are_those_of_the_paper() -> None:
    """``max |x|**0.5 / max |w|**0.5``, up to a factor of all; great inputs are divided by more."""
    rng = np.random.default_rng(5)
    x = rng.normal(0, 1, (100, 48)) * np.exp(rng.normal(0, 2, 48))
    weights = [rng.normal(0, 0.1, (rows, 48)).astype(np.float32) for rows in (8, 12)]
    fold = Fold("ffn_norm", None, ("ffn_gate", "ffn_up"), np.arange(48))
    scales = smoothquant_scales(fold, weights, Inputs(x.astype(np.float32)))
    expected = np.sqrt(np.abs(x).max(0) / np.abs(np.concatenate(weights)).max(0))
    ratio = scales / expected
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def spread_norms(source: ModelSource) -> None:
    """Make some inputs of layers 30 times as great, by the weights of norms."""
    rng, tensors = np.random.default_rng(0), dict(source.tensors)
    for name in expected_tensors(source.configuration):
        if name.endswith("_norm.weight") and name.startswith("blk"):
            weight = floats(tensors[name]) * np.where(rng.random(64) < 0.05, 30, 1)
            tensors[name] = PrimitiveTensor(weight.astype(np.float32), name)
    source.tensors, source.dataset = tensors, Dataset(source.properties, Theta(tensors))


def rounded_logits(source: ModelSource, dataset: Dataset, tokens: np.ndarray) -> np.ndarray:
    """Logits with the rounding of inputs that the layers ask for."""
    configuration = replace(source.configuration, quantizes_activations=True)
    x = embed(configuration, dataset.theta, tokens)
    caches = empty_caches(configuration, len(tokens), "f32")
    x, _ = run_blocks(configuration, dataset.theta, x, np.int32(0), caches)
    return np.asarray(logits(configuration, dataset.theta, x), np.float64)


def test_smoothquant_keeps_models_with_great_inputs(tmp_path: Path) -> None:
    """Weights and inputs of int8: the error is less than half of that without folding."""
    source = open_tiny("gguf llama", tmp_path)
    spread_norms(source)
    rng = np.random.default_rng(1)
    vocabulary = source.configuration.vocabulary
    chunks = [rng.integers(0, vocabulary, 64).astype(np.int32) for _ in range(8)]
    held_out = rng.integers(0, vocabulary, 48).astype(np.int32)
    expected = rounded_logits(source, source.dataset, held_out)
    how = WeightQuantization(8, "axis")
    dataset, errors = quantize_language_model(source, chunks, how, Calibration("smoothquant"))
    names = [error.name for error in errors]
    tensors = dataset.theta.flatten()
    plain = dict(source.dataset.theta.flatten())
    for name in names:
        tensor = tensors[name]
        assert isinstance(tensor, PlanarQuantizedTensor)
        assert str(tensor.activations) == "8-bit integers per token, scales of the input"
        weight = floats(plain[name])
        grid = fit_grid(weight, weight.shape[1], StorageType(8))
        plain[name] = int8_tensor(name, grid.round(weight), grid, "archive")
    plain_dataset = Dataset(source.properties, Theta(plain))
    distances = [
        np.linalg.norm(rounded_logits(source, each, held_out) - expected)
        for each in (dataset, plain_dataset)
    ]
    assert 0 < distances[0] < 0.5 * distances[1]


def test_a_folder_of_int8_layers_and_inputs(tmp_path: Path) -> None:
    """The folder has the format of compressed-tensors' W8A8, and the archive the same values."""
    text = tmp_path / "text.txt"
    text.write_text("the sea is blue and the sky is blue " * 80)
    options = ["--method", "smoothquant", "--granularity", "axis", "--calibrate", text,
               "--calibration-tokens", "128", "--held-out-tokens", "0"]  # fmt: skip
    outputs = [f"{tmp_path}/quantized/", f"{tmp_path}/quantized.irpa"]
    for output in outputs:
        succeed("quantize", FOLDERS / "llama", *options, "-o", output)
    config = json.loads((tmp_path / "quantized" / "config.json").read_text())
    expected = json.loads((FOLDERS / "compressed_w8a8_dynamic" / "config.json").read_text())
    written, reference = (each["quantization_config"] for each in (config, expected))
    assert written["format"] == reference["format"] == "int-quantized"
    for part in ("weights", "input_activations"):
        settings = reference["config_groups"]["group_0"][part]
        assert settings == {key: written["config_groups"]["group_0"][part][key] for key in settings}
    folder, archive = (open_model(output) for output in outputs)
    assert folder.activations() == archive.activations()
    assert sum(folder.activations().values()) == 14
    tokens = range(5)
    before, after, of_archive = (
        numpy_logits(each, list(tokens), rounds_activations=True)
        for each in (FOLDERS / "llama", *outputs)
    )
    np.testing.assert_array_equal(after, of_archive)
    distance = np.linalg.norm(after - before)
    assert 0 < distance < 0.05 * np.linalg.norm(before)


def test_outputs_without_rounded_inputs(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text = tmp_path / "text.txt"
    text.write_text("the sea is blue and the sky is blue " * 40)
    options = ["--method", "smoothquant", "--calibrate", text, "--calibration-tokens", "256"]
    refused = fail(2, "quantize", path, *options, "-o", tmp_path / "q.gguf")
    assert "does not say that inputs of layers are rounded" in refused
    assert "use --granularity axis" in fail(
        2, "quantize", path, *options, "-o", tmp_path / "q.irpa"
    )
    refused = fail(2, "quantize", path, *options, "--bits", "4", "-o", tmp_path / "q.irpa")
    assert "symmetric weights of 8 bits" in refused
