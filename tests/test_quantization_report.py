"""Cost of quantization: next tokens before and after, beside float64 over whole logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import succeed
from gguf_models import SMALL, TinyModel
from subquant.calibration import report
from subquant.calibration.layer import Calibration
from subquant.calibration.report import NextTokens, model_cost
from subquant.calibration.texts import cut_texts
from subquant.comparison.model_weights import compare_weights
from subquant.errors import ExecutionError, InputError, UsageError
from subquant.models.interface import empty_caches
from subquant.models.source import ModelSource, open_model
from subquant.models.transformer import embed, logits, run_blocks


def expected_cost(before: np.ndarray, after: np.ndarray, targets: np.ndarray) -> tuple[float, ...]:
    """Perplexities, KL divergence and equal top tokens of whole logits, in float64."""

    def log_softmax(values: np.ndarray) -> np.ndarray:
        shifted = values.astype(np.float64) - values.max(-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))

    a, b = log_softmax(before), log_softmax(after)
    rows = np.arange(len(targets))
    return (
        float(np.exp(-a[rows, targets].mean())),
        float(np.exp(-b[rows, targets].mean())),
        float((np.exp(a) * (a - b)).sum(-1).mean()),
        float((a.argmax(-1) == b.argmax(-1)).mean()),
    )


def check_cost(cost: report.ModelCost, expected: tuple[float, ...]) -> None:
    actual = (
        cost.perplexity_before, cost.perplexity_after, cost.kl_divergence, cost.same_top_token
    )  # fmt: skip
    assert actual == pytest.approx(expected, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("scale", [0.01, 3, 200])
@pytest.mark.parametrize("step", [1, 7, 100])
def test_statistics_of_slices(step: int, scale: float) -> None:
    """Slices of any size, logits of any magnitude, and likely tokens in any slice."""
    rng = np.random.default_rng(step)
    before = rng.normal(0, scale, (40, 50)).astype(np.float32)
    after = before + rng.normal(0, scale / 10, before.shape).astype(np.float32)
    targets = rng.integers(0, 50, 40)
    statistics = NextTokens(targets)
    for start in range(0, 50, step):
        columns = slice(start, start + step)
        statistics.add(start, before[:, columns], after[:, columns])
    cost = statistics.cost()
    assert cost.tokens == 40
    expected = expected_cost(before, after, targets)
    assert 0.3 < expected[3] < 1
    check_cost(cost, expected)


def test_logits_that_are_no_numbers() -> None:
    statistics = NextTokens(np.array([1]))
    with np.errstate(invalid="ignore"):
        statistics.add(0, np.array([[np.nan, 1]], np.float32), np.zeros((1, 2), np.float32))
    with pytest.raises(ExecutionError, match="are not finite"):
        statistics.cost()


def whole_logits(
    source: ModelSource, tokens: np.ndarray, *, rounds_inputs: bool = False
) -> np.ndarray:
    configuration = replace(source.configuration, quantizes_activations=rounds_inputs)
    theta = source.dataset.theta
    caches = empty_caches(configuration, len(tokens), "f32")
    states = embed(configuration, theta, tokens)
    x, _ = run_blocks(configuration, theta, states, np.int32(0), caches)
    return np.asarray(logits(configuration, theta, x))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2"])
def test_the_cost_of_models(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of floats and of packed weights, with a softcap, with and without a tied table."""
    monkeypatch.setattr(report, "LOGITS_AT_ONCE", 1000)
    path = tmp_path / "model.gguf"
    TinyModel(architecture, tied=architecture == "gemma3", **SMALL).write(path)
    output = tmp_path / "q.irpa"
    succeed("quantize", path, "--bits", "3", "-o", output)
    before, after = open_model(path), open_model(output)
    rng = np.random.default_rng(0)
    chunks = [rng.integers(0, before.configuration.vocabulary, 24).astype(np.int32) for _ in "ab"]
    steps: list[tuple[int, int]] = []
    cost = model_cost(before, after, chunks, lambda *step: steps.append(step))
    assert steps == [(0, 2), (1, 2)]
    scored = [
        np.concatenate([whole_logits(source, chunk)[12:23] for chunk in chunks])
        for source in (before, after)
    ]
    targets = np.concatenate([chunk[13:] for chunk in chunks])
    expected = expected_cost(*scored, targets)
    assert expected[2] > 1e-3
    check_cost(cost, expected)
    same = model_cost(before, open_model(path), chunks)
    assert same.kl_divergence == 0
    assert same.same_top_token == 1


def test_inputs_that_are_rounded(tmp_path: Path) -> None:
    """A model of W8A8 costs what its rounded inputs cost, too."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")  # type: ignore[arg-type]
    text, output = tmp_path / "text.txt", tmp_path / "q.irpa"
    text.write_text(text_of(900))
    succeed(
        "quantize", path, "--bits", "8", "--granularity", "axis", "--method", "smoothquant",
        "--calibrate", text, "--calibration-tokens", "128", "-o", output,
    )  # fmt: skip
    before, after = open_model(path), open_model(output)
    chunks = cut_texts(open_model(path), None, Calibration(), text_of(300)).held_out[:2]
    cost = model_cost(before, after, chunks)

    def scored(source: ModelSource, *, rounds_inputs: bool) -> np.ndarray:
        logits = [whole_logits(source, each, rounds_inputs=rounds_inputs) for each in chunks]
        return np.concatenate([each[len(each) // 2 : -1] for each in logits])

    targets = np.concatenate([chunk[len(chunk) // 2 + 1 :] for chunk in chunks])
    floats = scored(before, rounds_inputs=False)
    check_cost(cost, expected_cost(floats, scored(after, rounds_inputs=True), targets))
    by_weights = expected_cost(floats, scored(after, rounds_inputs=False), targets)
    assert cost.kl_divergence != pytest.approx(by_weights[2], rel=0.05)


def test_models_that_are_not_the_same(tmp_path: Path) -> None:
    sources = [
        open_model(TinyModel(blocks=blocks, **SMALL).write(tmp_path / f"{blocks}.gguf"))  # type: ignore[arg-type]
        for blocks in (1, 2)
    ]
    with pytest.raises(UsageError, match="no quantizations of one model: they have 1 and 2 blocks"):
        model_cost(*sources, [np.arange(8, dtype=np.int32)])


def text_of(words: int) -> str:
    return "the sea is blue and the sky is blue " * (words // 9)


def test_chunks_that_are_held_out(tmp_path: Path) -> None:
    """The last tokens of the text, none that is used to calibrate; or those of another text."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")  # type: ignore[arg-type]

    def cut(words: int, tokens: int, held_out: str | None = None) -> tuple[Any, Any]:
        calibration = Calibration(calibration_tokens=128, held_out_tokens=tokens)
        return cut_texts(open_model(path), text_of(words), calibration, held_out)

    calibration, held_out = cut(900, 128)
    all_chunks = [*cut(900, 0)[0], *cut(900, 10**6)[1]]
    assert len(all_chunks) > 8
    np.testing.assert_array_equal(calibration, all_chunks[:2])
    np.testing.assert_array_equal(held_out, all_chunks[-2:])
    assert [len(cut(900, tokens)[1]) for tokens in (0, 1, 64, 127, 192)] == [0, 1, 1, 1, 3]
    other = cut(900, 128, "we were not the world " * 100)
    assert not np.array_equal(other[1], held_out)
    np.testing.assert_array_equal(other[0], calibration)
    with pytest.raises(InputError, match="or --held-out-tokens 0 for none"):
        cut(900, 128, "short")


def quantized(path: Path, text: Path, *arguments: object) -> Any:
    return succeed(
        "quantize", path, "--bits", "4", "--calibrate", text, "--calibration-tokens", "128",
        *arguments, "-o", path.with_suffix(".irpa"),
    )  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")  # type: ignore[arg-type]
    text, plot = tmp_path / "text.txt", tmp_path / "errors.svg"
    text.write_text(text_of(900))
    result = json.loads(quantized(path, text, "--json", "--plot", plot).stdout)
    assert set(result) == {
        "output", "bytes", "weight_bytes_before", "weight_bytes_after", "bits_per_element",
        "held_out", "remarks", "tensors",
    }  # fmt: skip
    assert set(result["held_out"]) == {
        "tokens", "perplexity_before", "perplexity_after", "kl_divergence", "same_top_token"
    }  # fmt: skip
    assert result["bits_per_element"] == 4.5
    held_out = cut_texts(open_model(path), text_of(900), Calibration(calibration_tokens=128))[1]
    cost = model_cost(open_model(path), open_model(path.with_suffix(".irpa")), held_out)
    assert result["held_out"] == pytest.approx(vars(cost))
    assert 0 < cost.kl_divergence < 0.5
    for tensor in result["tensors"]:
        assert 0 < tensor["output_error"] < 0.3
        assert 0 < tensor["held_out_error"] < 0.3
        assert tensor["seconds"] > 0
    assert ">Errors of layers' outputs, held-out tokens</text>" in plot.read_text()

    shown = quantized(path, text)
    assert "scored tokens: perplexity" in shown.stdout
    assert "4.50 bits on average" in shown.stdout
    other = tmp_path / "other.txt"
    other.write_text("we were not the world " * 30)
    result = json.loads(quantized(path, text, "--json", "--held-out-text", other).stdout)
    assert result["held_out"]["perplexity_before"] != pytest.approx(cost.perplexity_before)
    # The layers of the first block have the inputs that they have in the original.
    compared = compare_weights(path.with_suffix(".irpa"), path, other.read_text())
    errors = {each.name: each.output_error for each in compared.weights}
    for tensor in result["tensors"][:3]:
        assert tensor["held_out_error"] == pytest.approx(errors[tensor["name"]], rel=1e-3)
        assert tensor["held_out_error"] != pytest.approx(tensor["output_error"], rel=1e-3)


def test_no_tokens_are_held_out(tmp_path: Path) -> None:
    """With ``--held-out-tokens 0``; a text that has no more tokens is said to have none."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")  # type: ignore[arg-type]
    text = tmp_path / "text.txt"
    text.write_text(text_of(900))
    switched_off = quantized(path, text, "--json", "--held-out-tokens", "0")
    assert json.loads(switched_off.stdout)["held_out"] is None
    text.write_text(text_of(63))
    short = quantized(path, text)
    assert "give a longer text, or another by --held-out-text" in short.stderr
    assert "perplexity" not in short.stdout


def test_the_cost_without_calibration(tmp_path: Path) -> None:
    """Rounding to nearest has a cost, too; a text is held out as a whole."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")  # type: ignore[arg-type]
    text = tmp_path / "text.txt"
    text.write_text(text_of(900))
    for name in ("q.irpa", "q.gguf"):
        output = tmp_path / name
        printed = succeed("quantize", path, "--bits", "4", "--held-out-text", text, "-o", output,
                          "--json").stdout  # fmt: skip
        result = json.loads(printed)
        chunks = cut_texts(open_model(path), None, Calibration(), text_of(900)).held_out
        cost = model_cost(open_model(path), open_model(output), chunks)
        assert result["held_out"] == pytest.approx(vars(cost))
        assert cost.kl_divergence > 1e-4
        has_errors = [tensor["held_out_error"] is not None for tensor in result["tensors"]]
        assert has_errors == [name == "q.gguf"] * len(has_errors)
