"""Checkpoints that libraries packed: weights are bit-equal to the libraries' own dequantization."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_folders import FOLDERS, Checkpoint, digest, write_safetensors
from command_line import succeed
from packed_checkpoints import refuse
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.checkpoints.layers import PackedTensor
from subquant.formats.huggingface import read_huggingface
from subquant.layouts import (
    ActivationQuantization,
    BlockAffineLayout,
    BlockScaledFloat8Layout,
    QuantizedTensor,
)
from subquant.layouts.activations import summary
from subquant.models.source import open_model
from subquant.numerics.element_types import Array
from subquant.weights import Dataset

NAMES = sorted(path.name for path in FOLDERS.iterdir() if (path / "expected.json").exists())
LIBRARIES = ("gptq", "awq", "compressed", "bitsandbytes", "torchao", "fp8")
PACKED = [name for name in NAMES if name.startswith(LIBRARIES)]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_those_of_the_library(name: str) -> None:
    expected = json.loads((FOLDERS / name / "expected.json").read_text())["tensors"]
    tensors = read_huggingface(FOLDERS / name)[1]
    assert tensors.keys() == expected.keys()
    for key, entry in expected.items():
        assert tensors[key].name == key
        assert list(tensors[key].shape) == entry["shape"], key
        assert digest(tensors[key]) == entry["sha256"], key
    assert any(isinstance(each, PackedTensor) for each in tensors.values()) == (name in PACKED)


def test_descriptions_of_packed_tensors_are_no_properties() -> None:
    """Checkpoints of torchao describe each tensor in the ``__metadata__``."""
    properties, _ = read_huggingface(FOLDERS / "torchao_int8")
    assert "metadata" not in properties


@pytest.mark.parametrize("name", PACKED)
def test_archives_have_the_same_tensors(name: str, tmp_path: Path) -> None:
    folder, archive = FOLDERS / name, tmp_path / "weights.irpa"
    listed = json.loads(succeed("inspect", str(folder), "--json").stdout)
    tensors = read_huggingface(folder)[1]
    assert {each["name"] for each in listed["tensors"]} == tensors.keys()
    succeed("import", str(folder), "-o", str(archive))
    loaded = Dataset.load(archive).theta.flatten()
    for key, tensor in tensors.items():
        assert digest(loaded[key]) == digest(tensor), key
        if isinstance(tensor, QuantizedTensor):
            copy = loaded[key]
            assert isinstance(copy, QuantizedTensor)
            assert copy.unpack().activations == tensor.unpack().activations


DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compressed_int4", None),
        ("compressed_w8a8_dynamic", "8-bit integers per token, scales of the input"),
        ("compressed_w8a8_static", "8-bit integers per tensor, scales of the checkpoint"),
        (
            "compressed_w8a8_static_asymmetric",
            "8-bit integers per tensor, scales of the checkpoint, with zero points",
        ),
        ("compressed_fp8_dynamic", "8-bit floats (E4M3) per token, scales of the input"),
        ("compressed_fp8_static", "8-bit floats (E4M3) per tensor, scales of the checkpoint"),
        ("compressed_fp8_block", "8-bit floats (E4M3) per group of 128, scales of the input"),
        ("compressed_nvfp4", "4-bit floats (E2M1) per group of 16, scales of the input"),
        ("compressed_mxfp4", "4-bit floats (E2M1) per group of 32, scales of the input"),
        ("compressed_mxfp8", "8-bit floats (E4M3) per group of 32, scales of the input"),
        ("bitsandbytes_int8", "8-bit integers per token, scales of the input"),
        ("torchao_int8_dynamic", "8-bit integers per token, scales of the input"),
        (
            "torchao_intx4_dynamic",
            "8-bit integers per token, scales of the input, with zero points",
        ),
    ],
)
def test_activations_are_recorded(name: str, text: str | None) -> None:
    tensors = read_huggingface(FOLDERS / name)[1].values()
    weights = [each for each in tensors if isinstance(each, QuantizedTensor)]
    assert summary(each.activations for each in weights) == ({text: 7} if text else {})
    assert open_model(FOLDERS / name).activations() == ({text: 7} if text else {})


def test_static_activations_have_the_numbers_of_the_layer() -> None:
    arrays = Checkpoint("compressed_w8a8_static_asymmetric").arrays
    tensors = read_huggingface(FOLDERS / "compressed_w8a8_static_asymmetric")[1]
    activations = tensors[f"{DOWN}.weight"].unpack().activations  # type: ignore[attr-defined]
    assert activations == ActivationQuantization(
        "i8",
        "tensor",
        is_dynamic=False,
        is_symmetric=False,
        scale=float(arrays[f"{DOWN}.input_scale"][0]),
        zero_point=int(arrays[f"{DOWN}.input_zero_point"][0]),
    )
    arrays = Checkpoint("compressed_nvfp4").arrays
    tensors = read_huggingface(FOLDERS / "compressed_nvfp4")[1]
    activations = tensors[f"{DOWN}.weight"].unpack().activations  # type: ignore[attr-defined]
    assert activations.global_scale == float(arrays[f"{DOWN}.input_global_scale"][0])
    assert activations.scale_type == "f8E4M3FN"


@pytest.mark.parametrize(
    ("target", "counts"),
    [("re:.*q_proj$", True), ("re:.*self_b?attn.q_proj", False), ("re:.*self_attn.*", True)],
)
def test_the_expression_that_is_first_by_its_text_counts(
    tmp_path: Path, target: str, counts: bool
) -> None:
    """compressed-tensors 0.20 sorts expressions of all groups; the last of equal ones counts."""
    checkpoint = Checkpoint("compressed_mixed")
    groups = checkpoint.quantization["config_groups"]
    settings = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    groups["group_2"] = groups["group_0"] | {"targets": [target], "input_activations": settings}
    tensors = read_huggingface(checkpoint.write(tmp_path))[1]
    weight = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(weight, PackedTensor)
    assert (weight.activations is not None) == counts


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_compressed_integers_in_an_order_of_inputs(tmp_path: Path, bits: int) -> None:
    """``weight_g_idx`` of older files says which group each input is of."""
    rng = np.random.default_rng(bits)
    q = rng.integers(0, 1 << bits, (8, 64))
    scales = rng.uniform(0.5, 1, (8, 4)).astype(ml_dtypes.bfloat16)
    groups = rng.permutation(np.repeat(np.arange(4), 16)).astype(np.int32)
    count = 32 // bits
    words = (q.reshape(8, -1, count) << (bits * np.arange(count))).sum(-1).astype(np.uint32)
    checkpoint = Checkpoint("compressed_int4")
    for key, value in (("num_bits", bits), ("group_size", 16), ("actorder", "group")):
        checkpoint.set(f"config_groups.group_0.weights.{key}", value)
    checkpoint.arrays = {
        "l.weight_packed": words.view(np.int32),
        "l.weight_scale": scales,
        "l.weight_shape": np.array([8, 64]),
        "l.weight_g_idx": groups,
    }
    layout = read_huggingface(checkpoint.write(tmp_path))[1]["l.weight"].unpack()  # type: ignore[attr-defined]
    expected = (q - (1 << (bits - 1))) * scales.astype(np.float32)[:, groups]
    np.testing.assert_array_equal(layout.dequant(), expected)
    assert isinstance(layout, BlockAffineLayout)
    assert "order" in layout.planes
    checkpoint.arrays["l.weight_g_idx"] = np.where(groups == 3, 4, groups).astype(np.int32)
    checkpoint.write(tmp_path)
    refuse(tmp_path, InputError, "layer 'l' has the group 4 in its weight_g_idx, of 4 groups")
    del checkpoint.arrays["l.weight_g_idx"]
    checkpoint.write(tmp_path)
    refuse(tmp_path, InputError, "layer 'l' has no weight_g_idx, and 'actorder' says that inputs")


def fp8_folder(folder: Path, arrays: dict[str, Array], **settings: object) -> Path:
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", **settings}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    write_safetensors(folder / "model.safetensors", arrays)
    return folder


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("scale", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu])
@pytest.mark.parametrize("block", [None, [4, 8], [16, 64], [5, 7]])
def test_blocks_of_8_bit_floats(
    tmp_path: Path, dtype: Any, scale: Any, block: list[int] | None
) -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 120, (16, 64)).astype(np.uint8).view(dtype)
    size = block or [16, 64]
    grid = (-(-16 // size[0]), -(-64 // size[1]))
    scales = rng.uniform(0.5, 4, grid if block else ()).astype(scale)
    arrays = {"l.weight": weight, "l.weight_scale_inv": scales, "n.weight": np.ones(4, "f4")}
    tensors = read_huggingface(fp8_folder(tmp_path, arrays, weight_block_size=block))[1]
    layout = tensors["l.weight"].unpack()  # type: ignore[attr-defined]
    assert isinstance(layout, BlockScaledFloat8Layout)
    spread = np.kron(scales.astype(np.float32).reshape(grid), np.ones(size, np.float32))[:16, :64]
    np.testing.assert_array_equal(layout.dequant(), weight.astype(np.float32) * spread)
    expected = {"type": "f8E4M3FN"}
    if block:
        expected |= {"granularity": "group", "group_size": block[1]}  # type: ignore[dict-item]
    assert layout.metadata["activations"] == expected


ONE, F8 = np.ones((1, 1), np.float32), np.zeros((4, 8), ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize(
    ("arrays", "settings", "error", "message"),
    [
        ({"l.weight_scale_inv": ONE[0]}, {}, InputError, r"inv float32\[1\], expected .* of \[1, "),
        ({"l.weight_scale_inv": None}, {}, InputError, "no tensor has the name of a packed weight"),
        ({"l.weight": np.zeros((4, 8), np.int8)}, {}, InputError, r"weight int8\[4, 8\], expected"),
        ({"l.weight": F8[0]}, {}, InputError, r"weight float8_e4m3fn\[8\], expected a matrix"),
        ({"m.weight": F8}, {}, InputError, "'m.weight' has elements of float8_e4m3fn and no scale"),
        ({"l.zzz": ONE}, {}, UnsupportedError, "has the tensor 'l.zzz', which subquant does not"),
        ({}, {"activation_scheme": "static"}, InputError, "layer 'l' has no activation_scale"),
        (
            {"l.activation_scale": -ONE},
            {"activation_scheme": "static"},
            InputError,
            "layer 'l' has -1.0 as its activation_scale, expected a number above 0",
        ),
        ({}, {"activation_scheme": "x"}, UnsupportedError, "'activation_scheme' is 'x', expected"),
        ({}, {"weight_block_size": [0, 1]}, InputError, r"'weight_block_size' is \[0, 1\], expec"),
        ({}, {"zzz": 1}, UnsupportedError, "the configuration has the key 'zzz' = 1, which subq"),
        ({}, {"expert_dtype": "fp4"}, UnsupportedError, "has the key 'expert_dtype' = 'fp4', whi"),
    ],
)
def test_8_bit_floats_that_do_not_fit_are_errors(
    tmp_path: Path,
    arrays: dict[str, Array | None],
    settings: dict[str, Any],
    error: type[SubquantError],
    message: str,
) -> None:
    merged = {"l.weight": F8, "l.weight_scale_inv": ONE, **arrays}
    written = {name: array for name, array in merged.items() if array is not None}
    fp8_folder(tmp_path, written, **{"weight_block_size": [4, 8], **settings})
    refuse(tmp_path, error, message)


@given(data=st.data())
def test_any_change_of_a_checkpoint_is_an_error_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    checkpoint = Checkpoint(data.draw(st.sampled_from(PACKED)))
    _change_settings(checkpoint.quantization, data)
    for name in list(checkpoint.metadata):
        if name.endswith("down_proj.weight"):  # torchao's
            description = json.loads(checkpoint.metadata[name])
            _change_settings(description, data)
            checkpoint.metadata[name] = json.dumps(description)
    names = sorted(name for name in checkpoint.arrays if name.startswith(DOWN))
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
        checkpoint.replace({name: data.draw(ARRAYS)})
    folder = checkpoint.write(tmp_path_factory.mktemp("any"))
    try:
        tensors = read_huggingface(folder)[1]
    except SubquantError:
        return
    tensor = tensors.get(f"{DOWN}.weight")
    if isinstance(tensor, QuantizedTensor):
        assert tensor.unpack().dequant().shape == tensor.shape


VALUES = st.sampled_from(
    [None, True, False, 0, -1, 1, 3, 4, 8, 16, 2**40, 0.5, "", "int", "float", "group", "re:(a*)*",
     "re:[", "tensor", "channel", "block", "local", [], [0], [1, 32], [64, 96], {}, {"_type": "x"}]
)  # fmt: skip
TYPES = [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float16, ml_dtypes.bfloat16,
         ml_dtypes.float8_e4m3fn]  # fmt: skip
ARRAYS = st.none() | st.builds(
    lambda shape, dtype, fill: np.full(shape, fill).astype(dtype),
    st.lists(st.sampled_from([0, 1, 2, 3, 12, 48, 64, 96]), max_size=3),
    st.sampled_from(TYPES),
    st.sampled_from([0, 1, 7, 100]),
)


def _change_settings(settings: dict[str, Any], data: st.DataObject) -> None:
    """Replace up to two values at any depth."""
    for _ in range(data.draw(st.integers(0, 2))):
        level = settings
        while True:
            key = data.draw(st.sampled_from(sorted(level) or ["zzz"]))
            if not isinstance(level.get(key), dict) or data.draw(st.booleans()):
                break
            level = level[key]
        level[key] = copy.deepcopy(data.draw(VALUES))
