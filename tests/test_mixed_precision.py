"""Bits for each layer: the choice beside all choices, the measured effects, whole tiny models."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.calibration.block_runner import BlockRunner
from subquant.calibration.language_model import quantize_language_model
from subquant.calibration.layer import Calibration, quantize_layer
from subquant.calibration.layer_effects import measured_choices
from subquant.calibration.mixed_precision import Choice, allocate
from subquant.calibration.moments import InputMoments
from subquant.calibration.worker_threads import WorkerThreads
from subquant.errors import UsageError
from subquant.layouts import PrimitiveTensor
from subquant.models.interface import empty_caches
from subquant.models.source import ModelSource, open_model
from subquant.models.transformer import embed, logits, normalize, run_blocks
from subquant.weights.quantizing import LayerError, WeightQuantization
from subquant.weights.theta import Dataset, Theta


def choice(bits: int, change: float) -> Choice:
    return Choice(WeightQuantization(bits), bits + 0.5, change)


def total(choices: dict[str, list[Choice]], bits: dict[str, int]) -> float:
    return sum(
        each.change for name in bits for each in choices[name] if each.how.bits == bits[name]
    )


def average(sizes: dict[str, int], bits: dict[str, int]) -> float:
    return sum(sizes[name] * (bits[name] + 0.5) for name in bits) / sum(sizes.values())


@pytest.mark.parametrize("seed", range(20))
def test_choices_keep_the_average_and_are_near_the_best_of_all(seed: int) -> None:
    """No choice of all is better than this one with as many bits as the greatest step less."""
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(1, 9)) * 64 for name in "abcde"}
    choices = {}
    for name in sizes:
        changes = np.exp(rng.normal(0, 1)) * 4.0 ** -np.array([3, 4, 5, 8]) * rng.uniform(0.3, 3, 4)
        choices[name] = [choice(b, float(x)) for b, x in zip((3, 4, 5, 8), changes, strict=True)]
    limit = float(rng.uniform(3.6, 7))
    result = {name: how.bits for name, how in allocate(choices, sizes, limit).items()}
    assert average(sizes, result) <= limit + 1e-6
    greatest_step = 5 * max(sizes.values()) / sum(sizes.values())
    combinations = [
        dict(zip(sizes, each, strict=True)) for each in itertools.product((3, 4, 5, 8), repeat=5)
    ]
    least = min(
        total(choices, each)
        for each in combinations
        if average(sizes, each) <= max(limit - greatest_step, 3.5)
    )
    assert total(choices, result) <= least + 1e-12


def test_more_bits_go_where_they_save_most() -> None:
    """The layer with the great effect gets 5 bits, the other 3: less than 4.5 bits each cost."""
    sizes = {"first": 100, "second": 100}
    choices = {
        "first": [choice(bits, 100 * 4.0**-bits) for bits in (3, 4, 5)],
        "second": [choice(bits, 4.0**-bits) for bits in (3, 4, 5)],
    }
    result = {name: how.bits for name, how in allocate(choices, sizes, 4.5).items()}
    assert result == {"first": 5, "second": 3}


def test_an_average_that_no_choice_has() -> None:
    with pytest.raises(UsageError, match=r"--bits-average must be 3.50 or more .* got 3.4"):
        allocate({"layer": [choice(3, 1.0)]}, {"layer": 64}, 3.4)


# -- models ----------------------------------------------------------------------------------------


def uneven_model(folder: Path) -> ModelSource:
    """A model whose second block adds little to the hidden states."""
    source = open_model(TinyModel(**SMALL).write(folder / "model.gguf"))
    tensors = dict(source.tensors)
    for name in ("blk.1.attn_output.weight", "blk.1.ffn_down.weight"):
        tensor = tensors[name]
        assert isinstance(tensor, PrimitiveTensor)
        tensors[name] = PrimitiveTensor(tensor.array * np.float32(0.03), name)
    source.dataset = Dataset(source.properties, Theta(tensors))
    source.tensors = tensors
    return source


def chunks_of(source: ModelSource, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, source.configuration.vocabulary, 64).astype(np.int32) for _ in range(count)
    ]


def hidden_and_logits(
    source: ModelSource, theta: Theta, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    configuration = source.configuration
    caches = empty_caches(configuration, len(tokens), "f32")
    x = embed(configuration, theta, tokens)
    x, _ = run_blocks(configuration, theta, x, np.int32(0), caches)
    normed = normalize(configuration, theta("output_norm"), x)
    return np.asarray(normed, np.float64), np.asarray(logits(configuration, theta, x))


def divergence(before: np.ndarray, after: np.ndarray) -> float:
    """Mean KL divergence of softmax(before) and softmax(after), in nats."""
    first, second = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (before, after))
    return float((np.exp(first) * (first - second)).sum(-1).mean())


def average_of(errors: list[LayerError]) -> float:
    elements = [int(np.prod(error.shape)) for error in errors]
    bits = [error.bits_per_element for error in errors]
    return float(np.average(bits, weights=elements))


def test_effects_are_those_of_the_whole_model(tmp_path: Path) -> None:
    """With one layer of 4 bits by GPTQ, next tokens of the third chunk change as the choice says.

    GPTQ has the moments of the other chunks, and the divergence is among the 16 likeliest tokens of
    each position.
    """
    source = uneven_model(tmp_path)
    chunks = chunks_of(source, 4)
    names = ["blk.0.attn_v.weight", "blk.0.ffn_down.weight", "blk.1.ffn_up.weight"]
    options = {name: [WeightQuantization(bits) for bits in (3, 4)] for name in names}
    with WorkerThreads(2) as threads:
        runner = BlockRunner(source, chunks, threads)
        choices = measured_choices(source, options, runner, "archive", threads)
        states, moments = runner.embeddings(), {}
        for number in range(2):
            block = runner.weights(number)
            of_block = runner.moments(number, block, [states[0], states[1], states[3]])
            for name in names:
                if name.startswith(f"blk.{number}."):
                    moments[name] = of_block.of(name.split(".")[2])
            states = runner.run(number, block, states)
    before = hidden_and_logits(source, source.dataset.theta, chunks[2])[1].astype(np.float64)
    tokens = np.unique(np.argsort(-before, axis=1)[:, :16])
    assert 16 < len(tokens) < before.shape[1]
    flat = source.dataset.theta.flatten()
    for name in names:
        tensor = flat[name]
        assert isinstance(tensor, PrimitiveTensor)
        inputs = InputMoments(moments[name], 3 * 64)
        integers, grid = quantize_layer(tensor.array, inputs, WeightQuantization(4))
        values = grid.dequantize(integers)
        theta = Theta(flat | {name: PrimitiveTensor(values, name)})
        after = hidden_and_logits(source, theta, chunks[2])[1].astype(np.float64)
        change = divergence(before[:, tokens], after[:, tokens])
        three, four = choices[name]
        assert (three.bits, four.bits) == (3.5, 4.5)
        assert four.change == pytest.approx(change, rel=1e-2)
        # One more bit has a fourth of the square error, or nearly so.
        assert 0.15 * three.change < four.change < 0.45 * three.change
    assert choices[names[2]][0].change < 0.1 * choices[names[1]][0].change


@pytest.mark.long
@pytest.mark.parametrize("limit", [3.6, 4.5])
def test_mixed_bits_are_better_than_as_many_equal_ones(limit: float, tmp_path: Path) -> None:
    """Layers of the first block get more bits, and logits of held-out tokens are nearer."""
    source = uneven_model(tmp_path)
    chunks, [held_out] = chunks_of(source, 8), chunks_of(source, 1, seed=1)
    _, expected = hidden_and_logits(source, source.dataset.theta, held_out)
    distances = {}
    for method in ("gptq", "auto"):
        is_mixed = method == "auto"
        dataset, errors = quantize_language_model(
            source,
            chunks,
            WeightQuantization(int(limit)),
            Calibration(method, bits_average=limit if is_mixed else None),  # type: ignore[arg-type]
        )
        assert average_of(errors) <= limit
        _, quantized_logits = hidden_and_logits(source, dataset.theta, held_out)
        distances[method] = np.linalg.norm(quantized_logits - expected)
        if is_mixed:
            bits = [[e.bits_per_element for e in errors if f"blk.{n}." in e.name] for n in (0, 1)]
            assert np.mean(bits[0]) > np.mean(bits[1]) + 1
    assert distances["auto"] < 0.8 * distances["gptq"]


@pytest.mark.long
def test_a_gguf_file_with_a_type_for_each_layer(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text, output = tmp_path / "text.txt", tmp_path / "q.gguf"
    text.write_text("the sea is blue and the sky is blue " * 40)
    options = ["--calibrate", text, "--calibration-tokens", "256", "--held-out-tokens", "0"]
    printed = succeed("quantize", path, "--method", "auto", "--bits-average", "5", *options,
                      "-o", output, "--json")  # fmt: skip
    result = json.loads(printed.stdout)
    assert 4.5 < result["bits_per_element"] <= 5
    types = {each.name: each.tensor_type.name for each in gguf.GGUFReader(output).tensors}
    assert len({types[each["name"]] for each in result["tensors"]}) > 1
    tokens = np.arange(5, dtype=np.int32)
    original, quantized = open_model(path), open_model(output)
    _, expected = hidden_and_logits(original, original.dataset.theta, tokens)
    _, quantized_logits = hidden_and_logits(quantized, quantized.dataset.theta, tokens)
    assert 0 < np.linalg.norm(quantized_logits - expected) < 0.3 * np.linalg.norm(expected)


@pytest.mark.long
def test_errors_of_the_command(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text = tmp_path / "text.txt"
    text.write_text("the sea is blue and the sky is blue " * 40)
    few = ["--calibrate", text, "--calibration-tokens", "256", "-o", tmp_path / "q.irpa"]
    assert "go together" in fail(2, "quantize", path, "--method", "auto", *few)
    assert "go together" in fail(2, "quantize", path, "--bits-average", "4.5", *few)
    auto = ["--method", "auto", "--bits-average", "4.5"]
    assert "leave out --bits" in fail(2, "quantize", path, *auto, "--bits", "4", *few)
    assert "give a text by --calibrate" in fail(2, "quantize", path, *auto)
    assert "must be 2.25 or more" in fail(
        2, "quantize", path, "--method", "auto", "--bits-average", "2.2", *few
    )
