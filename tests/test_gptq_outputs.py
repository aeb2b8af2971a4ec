"""Folders that `subquant quantize --format gptq` writes, beside the formulas of GPTQ's loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoint_folders import FOLDERS
from command_line import fail, succeed
from subquant.errors import UsageError
from subquant.formats.checkpoints.compressed_writer import packed_layer
from subquant.formats.checkpoints.gptq_writer import write_gptq
from subquant.layouts import QuantizedTensor
from subquant.weights.sources import open_weights

TEXT = "the sea is blue and the sky is blue " * 80


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Integers along axis 1, from the low bits of each word on."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    return values.reshape((len(words), -1)).astype(np.int64)


def dequantized(arrays: dict[str, np.ndarray], name: str, config: dict[str, Any]) -> np.ndarray:
    """The weight ``[N, K]``, as AutoGPTQ's ``QuantLinear`` computes it in PyTorch."""
    bits, layer = (
        config["bits"],
        {part: arrays[f"{name}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")},
    )
    integers = unpacked(layer["qweight"].T.copy(), bits).T
    zeros = unpacked(layer["qzeros"], bits) + (config["checkpoint_format"] == "gptq")
    groups = layer["g_idx"]
    return ((integers - zeros[groups]) * layer["scales"].astype(np.float32)[groups]).T


@pytest.mark.long
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.share(4)
def test_a_folder(symmetric: bool, bits: int, tmp_path: Path) -> None:
    """The weights are those of compressed-tensors, for our reader and for GPTQ's formula."""
    text, source = tmp_path / "text.txt", FOLDERS / "llama"
    text.write_text(TEXT)
    arguments = ["quantize", source, "--bits", bits, "--calibrate", text,
                 "--calibration-tokens", "128"]  # fmt: skip
    arguments += [] if symmetric else ["--asymmetric"]
    folders = tmp_path / "gptq", tmp_path / "compressed"
    succeed(*arguments, "-o", f"{folders[0]}/", "--format", "gptq")
    succeed(*arguments, "-o", f"{folders[1]}/")
    config = json.loads((folders[0] / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"], config["sym"]) == (bits, 32, symmetric)
    assert not config["desc_act"]
    arrays = load_file(folders[0] / "model.safetensors")
    gptq, compressed = (open_weights(each).theta.flatten() for each in folders)
    assert sorted(gptq) == sorted(compressed)
    layers = [each for each in gptq.values() if isinstance(each, QuantizedTensor)]
    assert len(layers) == 14
    for layer in layers:
        values = np.asarray(layer.unpack().dequant())
        other = compressed[layer.name]
        assert isinstance(other, QuantizedTensor)
        np.testing.assert_array_equal(values, np.asarray(other.unpack().dequant()))
        name = layer.name.removesuffix(".weight")
        np.testing.assert_array_equal(values, dequantized(arrays, name, config))


def test_zero_points_of_zero(tmp_path: Path) -> None:
    """The second format has zero points as they are."""
    rng = np.random.default_rng(0)
    integers = rng.integers(0, 16, (16, 64)).astype(np.uint8)
    zeros = rng.integers(0, 16, (16, 2)).astype(np.uint8)
    zeros[3, 1] = 0
    scales = rng.uniform(0.01, 0.02, (16, 2)).astype(np.float16)
    name = "model.layers.0.mlp.up_proj.weight"
    layer = packed_layer(name, integers, scales, zeros, 4)
    output = tmp_path / "gptq"
    write_gptq(FOLDERS / "llama", output, [layer], 4, 32, is_symmetric=False)
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    assert config["checkpoint_format"] == "gptq_v2"
    arrays = load_file(output / "model.safetensors")
    values = dequantized(arrays, name.removesuffix(".weight"), config)
    np.testing.assert_array_equal(values, np.asarray(layer.unpack().dequant()))
    read = open_weights(output).theta.flatten()[name]
    assert isinstance(read, QuantizedTensor)
    np.testing.assert_array_equal(values, np.asarray(read.unpack().dequant()))


def test_layers_that_stay_floats(tmp_path: Path) -> None:
    """The configuration names them, so that loaders make no packed layers of them."""
    text, output = tmp_path / "text.txt", tmp_path / "gptq"
    text.write_text(TEXT)
    succeed("quantize", FOLDERS / "llama", "--bits", "4", "--calibrate", text, "--select", "q_proj",
            "--calibration-tokens", "128", "-o", f"{output}/", "--format", "gptq")  # fmt: skip
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    assert len(config["dynamic"]) == 12
    assert r"-:^model\.layers\.0\.mlp\.down_proj$" in config["dynamic"]
    tensors = open_weights(output).theta.flatten()
    packed = {name for name, each in tensors.items() if isinstance(each, QuantizedTensor)}
    assert packed == {f"model.layers.{n}.self_attn.q_proj.weight" for n in (0, 1)}


def test_errors(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    calibrated = ["quantize", FOLDERS / "llama", "--calibrate", text, "--format", "gptq"]
    assert "packing of folders; give a name -o that ends in /" in fail(
        2, *calibrated, "-o", tmp_path / "q.irpa"
    )
    assert "leave out --format" in fail(
        2, *calibrated, "--method", "smoothquant", "-o", f"{tmp_path / 'q'}/"
    )
    layer = packed_layer(
        "a_proj.weight", np.zeros((12, 64), np.int8), np.ones((12, 2), np.float16), None, 4
    )
    with pytest.raises(UsageError, match="64 inputs and 12 outputs, expected multiples of 8"):
        write_gptq(FOLDERS / "llama", tmp_path / "q", [layer], 4, 32, is_symmetric=True)
