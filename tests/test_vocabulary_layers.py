"""Types of the table of embeddings and of the output layer in each format of the output."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoint_folders import FOLDERS
from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.calibration import vocabulary_layers
from subquant.layouts import QuantizedTensor
from subquant.models.source import open_model
from subquant.weights.quantizing import WeightQuantization, quantize_array

TEXT = "the sea is blue and the sky is blue " * 80
CALIBRATED = ("--calibration-tokens", "128", "--held-out-tokens", "64")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def values(path: Path, name: str) -> np.ndarray:
    """A tensor of a model in floats, by its name in the forward pass."""
    tensor = open_model(path).tensors[name]
    if isinstance(tensor, QuantizedTensor):
        return np.asarray(tensor.unpack().dequant())
    return np.asarray(tensor.stored_arrays[0], np.float32)


@pytest.mark.parametrize("calibrates", [True, False])
def test_gguf(calibrates: bool, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are those of PyPI's ``gguf``, bit for bit, whatever the slices of rows are."""
    monkeypatch.setattr(vocabulary_layers, "_ELEMENTS_AT_ONCE", 2000)
    path, output = text.with_name("model.gguf"), text.with_name("q.gguf")
    TinyModel(**SMALL).write(path)  # type: ignore[arg-type]
    how = ["--calibrate", text, *CALIBRATED] if calibrates else ["--gguf-type", "Q4_0"]
    how += ["--bits", "4"] if calibrates else []
    types = ["--token-embedding-type", "q8_0", "--output-tensor-type", "5"]
    printed = succeed("quantize", path, *how, *types, "-o", output, "--json")
    listed = {each["name"]: each for each in json.loads(printed.stdout)["tensors"]}
    tensors = {each.name: each for each in gguf.GGUFReader(output).tensors}
    for name, kind in (("token_embd.weight", "Q8_0"), ("output.weight", "Q5_0")):
        floats, number = values(path, name), gguf.GGMLQuantizationType[kind]
        assert tensors[name].tensor_type == number
        np.testing.assert_array_equal(tensors[name].data, gguf.quants.quantize(floats, number))
        noise = gguf.dequantize(tensors[name].data, number).astype(np.float64) - floats
        error = np.linalg.norm(noise) / np.linalg.norm(floats.astype(np.float64))
        assert listed[name]["relative_error"] == pytest.approx(error)
        assert listed[name]["greatest_error"] == pytest.approx(np.abs(noise).max())
    assert tensors["blk.0.ffn_up.weight"].tensor_type == gguf.GGMLQuantizationType.Q4_0


@pytest.mark.parametrize("calibrates", [True, False])
@pytest.mark.parametrize(("bits", "types"), [(8, "8"), (3, "3")])
def test_an_archive(
    bits: int, types: str, calibrates: bool, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The integers are those of the whole table, with or without a text."""
    monkeypatch.setattr(vocabulary_layers, "_ELEMENTS_AT_ONCE", 5000)
    path, output = text.with_name("model.gguf"), text.with_name("q.irpa")
    TinyModel(**SMALL, types=("F16",)).write(path)  # type: ignore[arg-type]
    how = ["--calibrate", text, *CALIBRATED] if calibrates else []
    chosen = ["--token-embedding-type", types, "--output-tensor-type", types]
    succeed("quantize", path, "--bits", "4", *how, *chosen, "-o", output)
    for name in ("token_embd.weight", "output.weight"):
        expected = quantize_array(values(path, name), WeightQuantization(bits)).dequant()
        np.testing.assert_array_equal(values(output, name), expected)
    one = open_model(output).tensors["blk.0.ffn_up.weight"]
    assert 4 <= 8 * one.size_in_bytes / np.prod(one.shape) < 5


@pytest.mark.parametrize(
    ("packing", "bits"), [("compressed-tensors", 8), ("compressed-tensors", 4), ("gptq", 4)]
)
def test_the_output_layer_of_a_folder(packing: str, bits: int, text: Path) -> None:
    """Its integers are nearest by its scales, computed from the file's words in float64."""
    output = text.with_name("q")
    succeed(
        "quantize", FOLDERS / "llama", "--bits", "4", "--calibrate", text, *CALIBRATED,
        "--output-tensor-type", bits, "--format", packing, "-o", f"{output}/",
    )  # fmt: skip
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    arrays = load_file(output / "model.safetensors")
    floats = values(FOLDERS / "llama", "output.weight").astype(np.float64)
    half = 1 << (bits - 1)
    if packing == "gptq":
        assert config["lm_head"] is True
        scales, words = arrays["lm_head.scales"].T, arrays["lm_head.qweight"].T
    else:
        assert "lm_head" not in config["ignore"]
        own = config["config_groups"].get("group_1")
        assert (own is None) == (bits == 4)
        assert own is None or (own["targets"], own["weights"]["num_bits"]) == (["lm_head"], 8)
        scales, words = arrays["lm_head.weight_scale"], arrays["lm_head.weight_packed"]
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    fields = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    integers = (fields & (2 * half - 1)).reshape(len(words), -1).astype(np.int64) - half
    by_element = np.repeat(scales.astype(np.float64), 32, axis=1)
    nearest = np.clip(np.rint(floats / by_element), -half, half - 1)
    assert (integers == nearest).mean() > 0.999
    np.testing.assert_allclose(values(output, "output.weight"), integers * by_element, rtol=1e-6)


def test_refused_types(text: Path) -> None:
    path = TinyModel(tied=True, **SMALL).write(text.with_name("model.gguf"))  # type: ignore[arg-type]
    run = ["quantize", path, "--calibrate", text, "--bits", "4", *CALIBRATED]
    gguf_output, archive = text.with_name("q.gguf"), text.with_name("q.irpa")
    assert "give --token-embedding-type in place of --output-tensor-type" in fail(
        2, *run, "--output-tensor-type", "8", "-o", archive
    )
    assert "--token-embedding-type has the type 'Q8_0', expected a number of bits from 2" in fail(
        2, *run, "--token-embedding-type", "Q8_0", "-o", archive
    )
    assert "has the type '3', expected 4, 5 or 8 bits, or one of Q4_0" in fail(
        2, *run, "--token-embedding-type", "3", "-o", gguf_output
    )
    types = ("Q8_0", *["F32"] * 15)
    packed = TinyModel(types=types, **SMALL).write(text.with_name("p.gguf"))  # type: ignore[arg-type]
    run_packed = ["quantize", packed, "--gguf-type", "Q4_0", "--token-embedding-type", "4"]
    message = "'token_embd.weight' is quantized already; leave out --token-embedding-type"
    assert message in fail(2, *run_packed, "-o", gguf_output)
    succeed(*run_packed, "--requantize", "-o", gguf_output)
    folder = ["quantize", FOLDERS / "llama", "--calibrate", text, *CALIBRATED, "--bits", "4"]
    output = f"{text.with_name('q')}/"
    assert "has its table of embeddings in floats, as transformers reads it" in fail(
        2, *folder, "--token-embedding-type", "8", "-o", output
    )
    assert (
        "all layers of --format gptq have the same bits; expected --output-tensor-type 4"
        in fail(2, *folder, "--output-tensor-type", "8", "--format", "gptq", "-o", output)
    )
    assert "has the type '6', expected 4 or 8 bits" in fail(
        2, *folder, "--output-tensor-type", "6", "-o", output
    )


def test_a_width_that_blocks_do_not_divide(text: Path) -> None:
    """The type of a table is llama.cpp's fallback, and a remark says so."""
    path, output = text.with_name("model.gguf"), text.with_name("q.gguf")
    TinyModel(**SMALL).write(path)  # type: ignore[arg-type]
    types = ["--token-embedding-type", "q6_k", "--output-tensor-type", "8"]
    printed = succeed("quantize", path, "--gguf-type", "Q4_0", *types, "-o", output, "--json")
    assert json.loads(printed.stdout)["remarks"] == [
        "tensor 'token_embd.weight' has a width that is no multiple of 256: Q8_0 in place of Q6_K"
    ]
    tensors = {each.name: each.tensor_type for each in gguf.GGUFReader(output).tensors}
    for name in ("token_embd.weight", "output.weight"):
        assert tensors[name] == gguf.GGMLQuantizationType.Q8_0
