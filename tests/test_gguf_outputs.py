"""GGUF files that `subquant quantize` writes: types of GGML, importance matrices, fallbacks."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.formats.imatrix import write_imatrix
from subquant.layouts.ggml_quantization import quantize_blocks, type_for

TEXT = "the sea is blue and the sky is blue " * 40


def tensors_of(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def is_layer(tensor: gguf.ReaderTensor) -> bool:
    return tensor.name.startswith("blk.") and len(tensor.shape) == 2


def floats_of(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.asarray(tensor.data).reshape(tensor.shape[::-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose inputs 256 divides."""
    return TinyModel(blocks=1, size=64).write(tmp_path_factory.mktemp("model") / "model.gguf")


@pytest.fixture(scope="module")
def importance(model: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: np.square(rng.normal(0, 1, int(tensor.shape[0]))).astype(np.float32)
        for name, tensor in tensors_of(model).items()
        if is_layer(tensor)
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "file_type"),
    [("Q4_K", "Q4_K_S"), ("Q5_K", "Q5_K_S"), ("Q6_K", "Q6_K"), ("Q3_K", "Q3_K_S"),
     ("IQ4_NL", "IQ4_NL"), ("IQ4_XS", "IQ4_XS"), ("Q8_0", "Q8_0")],
)  # fmt: skip
def test_a_type_without_a_text(name: str, file_type: str, model: Path, tmp_path: Path) -> None:
    """The layers have llama.cpp's blocks, the other tensors their bytes."""
    output = tmp_path / "q.gguf"
    succeed("quantize", model, "--gguf-type", name.lower(), "-o", output)
    before, after = tensors_of(model), tensors_of(output)
    for key, tensor in after.items():
        expected = np.asarray(before[key].data)
        if is_layer(tensor):
            assert tensor.tensor_type == gguf.GGMLQuantizationType[name]
            expected = quantize_blocks(floats_of(before[key]), name).raw
        assert np.asarray(tensor.data).tobytes() == expected.tobytes()
    fields = gguf.GGUFReader(output).fields
    assert fields["general.file_type"].contents() == gguf.LlamaFileType[f"MOSTLY_{file_type}"]


def test_a_type_with_an_importance_matrix(
    model: Path, importance: dict[str, np.ndarray], tmp_path: Path
) -> None:
    matrix, output = tmp_path / "imatrix.gguf", tmp_path / "q.gguf"
    write_imatrix(matrix, importance, 1, "text", 512)
    succeed("quantize", model, "--gguf-type", "Q4_K", "--imatrix", matrix, "-o", output)
    before, after = tensors_of(model), tensors_of(output)
    for key, means in importance.items():
        expected = quantize_blocks(floats_of(before[key]), "Q4_K", means).raw
        assert np.asarray(after[key].data).tobytes() == expected.tobytes()


def test_layers_that_256_does_not_divide(tmp_path: Path) -> None:
    """They have llama.cpp's other type, and the command says so."""
    path = TinyModel(**{**SMALL, "hidden": 256}).write(tmp_path / "model.gguf")
    output = tmp_path / "q.gguf"
    printed = succeed("quantize", path, "--gguf-type", "Q4_K", "-o", output)
    assert (
        "12 layers with inputs that are no multiple of 256: Q5_0 in place of Q4_K" in printed.stderr
    )
    for tensor in filter(is_layer, tensors_of(output).values()):
        expected = type_for("Q4_K", int(tensor.shape[0]))
        assert tensor.tensor_type == gguf.GGMLQuantizationType[expected]
        assert expected == ("Q4_K" if "ffn_down" in tensor.name else "Q5_0")


@pytest.mark.parametrize("method", ["gptq", "imatrix"])
def test_a_type_by_a_text(method: str, model: Path, tmp_path: Path) -> None:
    """GPTQ's outputs are nearer than those of weighted rounding."""
    text, output = tmp_path / "text.txt", tmp_path / "q.gguf"
    text.write_text(TEXT)
    errors = {}
    for each in {"imatrix", method}:
        printed = succeed(
            "quantize", model, "--gguf-type", "Q4_K", "--calibrate", text, "--method", each,
            "--calibration-tokens", "256", "-o", output, "--json",
        )  # fmt: skip
        layers = json.loads(printed.stdout)["tensors"]
        assert all(layer["bits_per_element"] == 4.5 for layer in layers)
        errors[each] = np.mean([layer["output_error"] for layer in layers])
    assert 0 < errors[method] <= errors["imatrix"]
    assert (errors[method] < 0.9 * errors["imatrix"]) == (method == "gptq")


def test_errors(model: Path, importance: dict[str, np.ndarray], tmp_path: Path) -> None:
    output, archive, matrix = tmp_path / "q.gguf", tmp_path / "q.irpa", tmp_path / "imatrix.gguf"
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    k_quant = ["quantize", model, "--gguf-type", "Q4_K"]
    assert "leave out --bits" in fail(2, *k_quant, "--bits", "4", "-o", output)
    assert "leave out --block-size" in fail(2, *k_quant, "--block-size", "32", "-o", output)
    for extra in ([], ["--calibrate", text]):
        message = fail(2, *k_quant, *extra, "--calibration-tokens", "256", "-o", archive)
        assert "--gguf-type Q4_K is a type of .gguf files" in message
    assert "give a text by --calibrate" in fail(2, *k_quant, "--method", "gptq", "-o", output)
    for method in ("awq", "imatrix", "smoothquant"):
        message = fail(2, "quantize", model, "--method", method, "-o", archive)
        assert f"--method {method} needs the inputs of layers" in message
    assert "--scales mse is of roundings without a text" in fail(
        2, "quantize", model, "--scales", "mse", "--calibrate", text, "-o", archive
    )
    few = dict(list(importance.items())[1:])
    write_imatrix(matrix, few, 1, "text", 512)
    missing = fail(1, *k_quant, "--imatrix", matrix, "-o", output)
    assert f"has no entry for '{next(iter(importance))}'" in missing
    write_imatrix(matrix, {name: means[1:] for name, means in importance.items()}, 1, "text", 512)
    assert "has 255 values for" in fail(1, *k_quant, "--imatrix", matrix, "-o", output)
    assert "expected 'imatrix'" in fail(1, *k_quant, "--imatrix", model, "-o", output)
    assert not output.exists()
    assert not archive.exists()


def test_an_archive_by_an_importance_matrix(
    model: Path, importance: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Without a text the layers are rounded to nearest, by scales for the weighted error."""
    matrix, output = tmp_path / "imatrix.gguf", tmp_path / "q.irpa"
    write_imatrix(matrix, importance, 1, "text", 512)
    printed = succeed("quantize", model, "--bits", "4", "--imatrix", matrix, "-o", output, "--json")
    layers = json.loads(printed.stdout)["tensors"]
    assert sorted(layer["name"] for layer in layers) == sorted(importance)
    assert all(layer["output_error"] is None for layer in layers)
    assert all(0.05 < layer["relative_error"] < 0.15 for layer in layers)
