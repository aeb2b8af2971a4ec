"""Quantization of experts by the inputs that the router sends to each of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from checkpoint_folders import FOLDERS, Checkpoint, write_safetensors
from command_line import call, fail, succeed
from gguf_models import MoeModel
from subquant.calibration.block_runner import BlockRunner
from subquant.calibration.finished_blocks import FinishedBlocks
from subquant.calibration.layer import Calibration, quantize_layer
from subquant.calibration.moments import InputMoments
from subquant.calibration.texts import cut_texts
from subquant.calibration.worker_threads import WorkerThreads
from subquant.formats.imatrix import read_imatrix
from subquant.layouts import PrimitiveTensor, QuantizedTensor
from subquant.models.source import ModelSource, open_model
from subquant.weights.quantizing import WeightQuantization

TEXT = "the sea is blue and the sky is blue " * 80
CALIBRATED = ("--calibration-tokens", "128", "--held-out-tokens", "64")
MODEL = MoeModel("F32", width=64, hidden=64, experts=8, chosen=2)
LAYERS = ("gate", "up", "down")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def folder_with_tokenizer(name: str, folder: Path) -> Path:
    """Copy a folder with the tokenizer of another, for which the table has more rows."""
    path, changed = shutil.copytree(FOLDERS / name, folder / "model"), Checkpoint(name)
    shutil.copyfile(FOLDERS / "llama" / "tokenizer.json", path / "tokenizer.json")
    table = changed.arrays["model.embed_tokens.weight"]
    changed.arrays["model.embed_tokens.weight"] = np.tile(table, (5, 1))
    write_safetensors(path / "model.safetensors", changed.arrays, changed.metadata)
    (path / "config.json").write_text(json.dumps({**changed.config, "vocab_size": 320}))
    return path


def floats(source: ModelSource, name: str) -> np.ndarray:
    tensor = source.tensors[name]
    if isinstance(tensor, QuantizedTensor):
        return np.asarray(tensor.unpack().dequant())
    assert isinstance(tensor, PrimitiveTensor)
    return np.asarray(tensor.array).astype(np.float32)


def calibration_inputs(source: ModelSource, text: str, tokens: int = 128) -> np.ndarray:
    """The inputs of the routers of block 0 for the tokens of a text, in floats."""
    chunks = cut_texts(source, text, Calibration(calibration_tokens=tokens)).calibration
    seen: list[np.ndarray] = []
    with WorkerThreads(1) as workers:
        runner = BlockRunner(source, chunks, workers)
        moments = runner.moments(0, runner.weights(0), runner.embeddings())
        seen += [each.rows for each in moments.routed["ffn_gate_exps"]]
    return np.concatenate(seen)


def inputs_of(source: ModelSource, x: np.ndarray, chosen: int) -> list[list[np.ndarray]]:
    """The inputs of gate, up and down of each expert in block 0, in float64."""
    gate, up, _ = (floats(source, f"blk.0.ffn_{each}_exps.weight") for each in LAYERS)
    scores = x.astype(np.float64) @ floats(source, "blk.0.ffn_gate_inp.weight").T.astype(np.float64)
    choices = np.argsort(-scores, axis=1, kind="stable")[:, :chosen]
    result = []
    for expert in range(len(gate)):
        rows = x[(choices == expert).any(axis=1)].astype(np.float64)
        gated = rows @ gate[expert].T
        result.append([rows, rows, gated / (1 + np.exp(-gated)) * (rows @ up[expert].T)])
    return result


@pytest.mark.parametrize("kind", ["gguf", "irpa"])
def test_gptq_of_each_expert(kind: str, text: Path) -> None:
    """The integers are those of each expert's weight by its own inputs."""
    path, output = text.with_name("model.gguf"), text.with_name(f"q.{kind}")
    MODEL.write(path)
    printed = succeed(
        "quantize", path, "--bits", "4", "--requantize", "--calibrate", text, *CALIBRATED,
        "--select", "exps", "-o", output, "--json",
    )  # fmt: skip
    listed = {each["name"]: each for each in json.loads(printed.stdout)["tensors"]}
    assert len(listed) == 3
    source, quantized = open_model(path), open_model(output)
    inputs = inputs_of(source, calibration_inputs(source, TEXT), MODEL.chosen)
    for number, layer in enumerate(LAYERS):
        name = f"blk.0.ffn_{layer}_exps.weight"
        weight, values = floats(source, name), floats(quantized, name)
        noise = power = 0.0
        for expert, of_layers in enumerate(inputs):
            rows = of_layers[number].astype(np.float32)
            moments = InputMoments(rows.T @ rows, len(rows)) if len(rows) else None
            integers, grid = quantize_layer(weight[expert], moments, WeightQuantization(4))
            expected = grid.dequantize(integers)
            # Sums in another order may move a scale of float16, or round a tie to the other side.
            assert (np.abs(values[expert] - expected) < 1e-3).mean() > 0.98
            difference = values[expert].astype(np.float64) - weight[expert]
            noise += np.square(of_layers[number] @ difference.T).sum()
            power += np.square(of_layers[number] @ weight[expert].T.astype(np.float64)).sum()
        assert listed[name]["shape"] == list(weight.shape)
        assert listed[name]["output_error"] == pytest.approx(np.sqrt(noise / power), rel=1e-3)
        relative = np.linalg.norm(values - weight) / np.linalg.norm(weight)
        assert listed[name]["relative_error"] == pytest.approx(relative, rel=1e-4)
        if kind == "gguf":
            [tensor] = [each for each in gguf.GGUFReader(output).tensors if each.name == name]
            assert tensor.tensor_type == gguf.GGMLQuantizationType.Q4_0
            decoded = gguf.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(decoded.reshape(weight.shape), values)


def test_experts_without_tokens(text: Path) -> None:
    """They are rounded to nearest, and a remark counts them."""
    path, output = text.with_name("model.gguf"), text.with_name("q.irpa")
    model = replace(MODEL, experts=16, chosen=1)
    model.write(path)
    printed = succeed(
        "quantize", path, "--bits", "4", "--calibrate", text, "--calibration-tokens", "64",
        "--held-out-tokens", "0", "--select", "exps", "-o", output, "--json",
    )  # fmt: skip
    result = json.loads(printed.stdout)
    source, quantized = open_model(path), open_model(output)
    inputs = inputs_of(source, calibration_inputs(source, TEXT, 64), model.chosen)
    unused = [number for number, (rows, *_) in enumerate(inputs) if not len(rows)]
    assert 0 < len(unused) < 16
    name = "blk.0.ffn_up_exps.weight"
    assert (
        f"tensor '{name}': {len(unused)} of 16 experts had no token of the text, and are rounded "
        "without it"
    ) in result["remarks"]
    for expert in unused:
        integers, grid = quantize_layer(floats(source, name)[expert], None, WeightQuantization(4))
        np.testing.assert_array_equal(floats(quantized, name)[expert], grid.dequantize(integers))


@pytest.mark.long
@pytest.mark.parametrize("packing", ["compressed-tensors", "gptq"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_folder(name: str, packing: str, text: Path) -> None:
    """Each expert is a packed layer of its own; routers stay floats."""
    output, path = text.with_name("q"), folder_with_tokenizer(name, text.parent)
    succeed(
        "quantize", path, "--bits", "8", "--calibrate", text, *CALIBRATED, "--format",
        packing, "-o", f"{output}/",
    )  # fmt: skip
    source, quantized = open_model(path), open_model(output)
    block = source.configuration.blocks - 1
    for layer in LAYERS:
        role = f"blk.{block}.ffn_{layer}_exps.weight"
        assert isinstance(quantized.tensors[role], QuantizedTensor)
        before, after = floats(source, role), floats(quantized, role)
        assert 0 < np.linalg.norm(after - before) < 0.01 * np.linalg.norm(before)
    router = f"blk.{block}.ffn_gate_inp.weight"
    np.testing.assert_array_equal(floats(quantized, router), floats(source, router))
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    gate = source.tensors[router].name.removesuffix(".weight")
    floats_of = config["ignore"] if "ignore" in config else config["dynamic"]
    assert any(gate in each.replace("\\", "") for each in floats_of)


def test_an_importance_matrix(text: Path) -> None:
    """An entry has the mean squares of each expert's inputs; Q4_0 is rounded with them."""
    path, matrix = text.with_name("model.gguf"), text.with_name("matrix.gguf")
    model = replace(MODEL, experts=16, chosen=1)
    model.write(path)
    succeed("imatrix", path, "--text", text, "--tokens", "64", "-o", matrix)
    source = open_model(path)
    inputs = inputs_of(source, calibration_inputs(source, TEXT, 64), model.chosen)
    tensors = {each.name: each.data for each in gguf.GGUFReader(matrix).tensors}
    means = read_imatrix(matrix)
    for number, layer in enumerate(LAYERS):
        name = f"blk.0.ffn_{layer}_exps.weight"
        counts = np.array([len(each[number]) for each in inputs])
        np.testing.assert_array_equal(tensors[f"{name}.counts"].reshape(-1), counts)
        squares = np.stack([np.square(each[number]).sum(0) for each in inputs])
        np.testing.assert_allclose(tensors[f"{name}.in_sum2"], squares, rtol=1e-4, atol=1e-9)
        expected = np.where(counts[:, None] > 0, squares / np.maximum(counts, 1)[:, None], 1)
        np.testing.assert_allclose(means.of(name, 16, 64), expected, rtol=1e-4, atol=1e-9)
    output = text.with_name("q.gguf")
    arguments = ["--gguf-type", "Q4_0", "--select", "exps", "--imatrix", matrix, "-o", output]
    succeed("quantize", path, *arguments)
    assert open_model(output).tensors["blk.0.ffn_up_exps.weight"].size_in_bytes == 16 * 64 * 36


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "auto", "--bits-average", "5"],
        ["--method", "smoothquant", "--bits", "8", "--granularity", "axis"],
    ],
)
def test_methods_that_leave_experts(options: list[str], text: Path) -> None:
    output, path = text.with_name("q.irpa"), folder_with_tokenizer("mixtral", text.parent)
    succeed("quantize", path, "--calibrate", text, *CALIBRATED, *options, "-o", output)
    source, quantized = open_model(path), open_model(output)
    assert isinstance(quantized.tensors["blk.0.attn_q.weight"], QuantizedTensor)
    name = "blk.0.ffn_up_exps.weight"
    np.testing.assert_array_equal(floats(quantized, name), floats(source, name))


@pytest.mark.parametrize("kind", ["gguf", "irpa"])
def test_a_run_that_goes_on(kind: str, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished blocks have the tensors of experts, and the number of experts without tokens."""
    path, output = text.with_name("model.gguf"), text.with_name(f"q.{kind}")
    replace(MODEL, experts=16, chosen=1).write(path)
    run = ["quantize", path, "--bits", "4", "--calibrate", text, "--calibration-tokens", "64",
           "--held-out-tokens", "0", "--select", "exps", "-o", output, "--json"]  # fmt: skip
    first = json.loads(succeed(*run).stdout)
    written = output.read_bytes()
    output.unlink()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FinishedBlocks, "remove", interrupt)
        assert call(*run).exit_code == 1
    output.unlink()
    second = succeed(*run)
    assert "goes on after 1 block" in second.stderr
    assert output.read_bytes() == written
    assert json.loads(second.stdout)["remarks"] == first["remarks"]


def test_a_tokenizer_of_another_model(text: Path) -> None:
    path = folder_with_tokenizer("mixtral", text.parent)
    shutil.copyfile(FOLDERS / "mixtral" / "model.safetensors", path / "model.safetensors")
    shutil.copyfile(FOLDERS / "mixtral" / "config.json", path / "config.json")
    assert "and the model 64 rows of embeddings; give the model its tokenizer" in fail(
        1, "quantize", path, "--calibrate", text, *CALIBRATED, "-o", text.with_name("q.irpa")
    )
