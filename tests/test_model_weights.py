"""``subquant compare MODEL ORIGINAL``: weights and outputs of a model beside its original's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import FOLDERS
from command_line import call, fail, succeed
from gguf_models import SMALL, TinyModel
from gguf_of_checkpoint import write_gguf
from subquant.comparison.model_weights import compare_weights, in_common_form
from subquant.layouts import PrimitiveTensor, QuantizedTensor
from subquant.models.source import open_model
from subquant.models.transformer import RotaryTables, rotary_tables, rotate
from subquant.weights import Dataset, Theta


def write(folder: Path, name: str, types: str = "F32", **sizes: Any) -> Path:
    return TinyModel(types=(types,), **{**SMALL, **sizes}).write(folder / name)  # type: ignore[arg-type]


def quantize(source: Path, output: Path, *arguments: object) -> Path:
    succeed("quantize", source, *arguments, "-o", output)
    return output


def test_each_tensor_is_compared(tmp_path: Path) -> None:
    """Errors beside float64, the worst first; others are equal."""
    original = write(tmp_path, "f.gguf")
    model = quantize(original, tmp_path / "q.irpa", "--bits", "4", "--select", "attn|ffn")
    model = quantize(model, tmp_path / "q2.irpa", "--bits", "2", "--select", "output.weight")
    result = compare_weights(model, original)
    before, after = (open_model(path).dataset.theta.flatten() for path in (original, model))
    assert {each.name for each in result.weights} == set(before)
    for each in result.weights:
        tensor, expected = after[each.name], before[each.name]
        assert isinstance(expected, PrimitiveTensor)
        if isinstance(tensor, PrimitiveTensor):
            assert (each.relative_error, each.greatest_error, each.kind) == (0, 0, "float32")
            assert each.bits_per_element == 32
            continue
        assert isinstance(tensor, QuantizedTensor)
        values = expected.array.astype(np.float64)
        difference = tensor.unpack().dequant() - values
        relative = np.linalg.norm(difference) / np.linalg.norm(values)
        assert each.relative_error == pytest.approx(relative)
        assert each.greatest_error == pytest.approx(np.abs(difference).max())
        assert each.bits_per_element < 6
        assert each.original_kind == "float32"
    errors = [each.relative_error for each in result.weights]
    assert errors == sorted(errors, reverse=True)
    assert result.weights[0].name == "output.weight"
    assert (result.only_in_model, result.only_in_original, result.other_shapes) == ([], [], [])


def test_outputs_of_layers(tmp_path: Path) -> None:
    """Errors of the first layers, beside float64: their inputs are the norm of embeddings."""
    original = write(tmp_path, "f.gguf")
    model = quantize(original, tmp_path / "q.irpa", "--bits", "3", "--select", "blk")
    text = "the sea is blue and the sky is blue " * 40
    result = compare_weights(model, original, text, 128)
    assert result.cost is not None
    assert result.cost.tokens == 2 * 31
    assert result.cost.kl_divergence > 1e-3
    errors = {each.name: each.output_error for each in result.weights}
    layers = [name for name in errors if name.startswith("blk.") and "norm" not in name]
    assert all((errors[name] is not None) == (name in layers) for name in errors)
    source = open_model(original)
    tokens = open_model(original).tokenizer().encode(text, special=False)[:128]
    ids = np.array(tokens).reshape(2, 64)
    ids[:, 0] = 1
    theta = source.dataset.theta
    x = theta.tensor("token_embd.weight").array[ids.ravel()].astype(np.float64)  # type: ignore[attr-defined]
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    x *= theta.tensor("blk.0.attn_norm.weight").array  # type: ignore[attr-defined]
    for name in ("blk.0.attn_q.weight", "blk.0.attn_v.weight"):
        w = theta.tensor(name).array.astype(np.float64)  # type: ignore[attr-defined]
        after = open_model(model).dataset.theta.tensor(name)
        assert isinstance(after, QuantizedTensor)
        noise = x @ (after.unpack().dequant() - w).T
        expected = np.linalg.norm(noise) / np.linalg.norm(x @ w.T)
        assert errors[name] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rotated", [8, 6])
def test_rows_of_neighboring_pairs(rotated: int) -> None:
    """Attention scores do not change when rows of queries and keys are put in the common order."""
    configuration = open_model(FOLDERS / "llama").configuration
    neighbors = replace(configuration.rotation, size=rotated, pairs="neighbors")
    halves = replace(neighbors, pairs="halves")
    configuration = replace(configuration, heads=3, kv_heads=3, head_size=8, rotation=neighbors)
    rng = np.random.default_rng(0)
    x, queries, keys = (
        rng.normal(size=shape).astype(np.float32) for shape in ((5, 16), (24, 16), (24, 16))
    )

    def scores(q: np.ndarray, k: np.ndarray, rotation: Any) -> np.ndarray:
        tables: RotaryTables = rotary_tables(rotation, np.int32(3), 5)
        first, second = (
            np.asarray(rotate((x @ w.T).reshape((5, 3, 8)), tables, rotation)) for w in (q, k)
        )
        return np.einsum("thd,shd->hts", first, second)

    expected = scores(queries, keys, neighbors)
    common = [
        in_common_form(configuration, f"blk.0.attn_{name}.weight", w)
        for name, w in (("q", queries), ("k", keys))
    ]
    assert not np.array_equal(common[0], queries)
    np.testing.assert_allclose(scores(*common, halves), expected, rtol=1e-4, atol=1e-4)
    same = in_common_form(configuration, "blk.0.attn_v.weight", queries)
    np.testing.assert_array_equal(same, queries)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("llama2", "llama"), ("qwen2", "qwen2"), ("phi3_partial", "phi3"), ("smollm", "llama")],
)
def test_a_gguf_file_and_its_checkpoint(name: str, architecture: str, tmp_path: Path) -> None:
    """Tensors have other names, and some have rows in another order; no value differs."""
    path = write_gguf(name, architecture, tmp_path / "model.gguf")
    result = compare_weights(path, FOLDERS / name)
    assert result.only_in_model == result.only_in_original == result.other_shapes == []
    assert len(result.weights) == len(open_model(path).tensors)
    assert all(each.relative_error == 0 for each in result.weights)
    assert all(each.name != each.original_name for each in result.weights)


def test_norms_of_gemma(tmp_path: Path) -> None:
    """A GGUF file has norms with their offset of 1, a checkpoint without; each is a factor."""
    configuration = open_model(FOLDERS / "gemma3").configuration
    assert configuration.structure.norm_offset == 1
    values = np.float32([0.5, -0.25])
    np.testing.assert_array_equal(
        in_common_form(configuration, "blk.0.attn_norm.weight", values), values + 1
    )


def test_sources_that_are_no_models(tmp_path: Path) -> None:
    """Tensors by their names in the files; those without a counterpart are listed."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 32)).astype(np.float32)
    arrays = [
        {"a": weight, "b": weight, "c": weight},
        {"a": weight + 0.5, "b": weight[:2], "d": weight},
    ]
    paths = []
    for number, each in enumerate(arrays):
        paths.append(tmp_path / f"{number}.irpa")
        tensors = [PrimitiveTensor(array, name) for name, array in each.items()]
        Dataset({}, Theta(tensors)).save(paths[-1])
    result = compare_weights(*paths)
    [only] = result.weights
    assert only.name == "a"
    assert only.greatest_error == pytest.approx(0.5)
    assert (result.only_in_model, result.only_in_original) == (["c"], ["d"])
    assert result.other_shapes == ["b"]
    printed = succeed("compare", *paths).stdout
    assert "1 tensor of another shape: b" in printed
    failed = call("compare", *paths, "--max-error", "100")
    assert failed.exit_code == 1
    assert failed.stdout == printed
    assert "have no counterpart of the same shape, first 'b'" in failed.stderr


def test_sources_without_common_tensors(tmp_path: Path) -> None:
    paths = [tmp_path / "a.irpa", tmp_path / "b.irpa"]
    for path in paths:
        Dataset({}, Theta([PrimitiveTensor(np.ones(4, np.float32), path.stem)])).save(path)
    assert "have no tensor of the same name" in fail(2, "compare", *paths)


def test_the_command(tmp_path: Path) -> None:
    original = write(tmp_path, "f.gguf")
    model = quantize(original, tmp_path / "q.irpa", "--bits", "4", "--select", "attn")
    text, plot = tmp_path / "page.txt", tmp_path / "errors.svg"
    text.write_text("the sea is blue and the sky is blue " * 40)
    shown = succeed("compare", model, original, "--text", text, "--plot", plot).stdout
    assert "attn_q" in shown
    assert "ffn_up" not in shown
    assert "scored tokens: perplexity" in shown
    assert "tensors are equal" in shown
    assert ">blk.1.attn_v.weight (" in plot.read_text()
    result = json.loads(succeed("compare", model, original, "--json").stdout)
    assert set(result) == {
        "weights", "only_in_model", "only_in_original", "other_shapes", "held_out"
    }  # fmt: skip
    greatest = result["weights"][0]["relative_error"]
    succeed("compare", model, original, "--max-error", str(greatest * 1.01))
    failed = call("compare", model, original, "--max-error", str(greatest * 0.99))
    assert failed.exit_code == 1
    assert f"more than --max-error {greatest * 0.99:g}, first 'blk." in failed.stderr


def test_options_of_the_other_comparison(tmp_path: Path) -> None:
    original = write(tmp_path, "f.gguf")
    assert "--calls is an option of comparisons of runtimes" in fail(
        2, "compare", original, original, "--calls", "3"
    )
    assert "--max-error is an option of comparisons of weights" in fail(
        2, "compare", original, "--max-error", "3"
    )
    assert "subquant compare MODEL ORIGINAL" in fail(2, "compare", original)
    other = write(tmp_path, "g.gguf", blocks=1)
    page = tmp_path / "page.txt"
    page.write_text("the sea " * 100)
    assert "no quantizations of one model" in fail(2, "compare", other, original, "--text", page)
