"""Checkpoints of compressed-tensors, bitsandbytes and torchao that do not fit: located errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from checkpoint_folders import FOLDERS, Checkpoint
from packed_checkpoints import refuse
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.huggingface import read_huggingface
from subquant.models import emit
from subquant.weights.sources import open_weights

DOWN = "model.layers.0.mlp.down_proj"
WEIGHTS, INPUTS = (f"config_groups.group_0.{part}" for part in ("weights", "input_activations"))


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("compressed_int4", "zzz", 1, "the configuration has the key 'zzz' = 1, which subquant"),
        ("compressed_int4", "config_groups", {}, "'config_groups' is {}, expected groups that say"),
        ("compressed_int4", "config_groups", 3, "'config_groups' is 3, expected an object"),
        (
            "compressed_int4",
            "config_groups.group_0",
            None,
            "has no 'config_groups.group_0', expected an object",
        ),
        ("compressed_int4", "config_groups.group_0.zzz", 1, "group_0' has the key 'zzz' = 1, whi"),
        ("compressed_int4", f"{WEIGHTS}.zzz", 1, "group_0.weights' has the key 'zzz' = 1, which"),
        ("compressed_nvfp4", f"{INPUTS}.zzz", 1, "input_activations' has the key 'zzz' = 1, whic"),
        ("compressed_int4", WEIGHTS, None, "group_0.weights', expected an object"),
        ("compressed_int4", "config_groups.group_0.output_activations", {}, "output_activations' "),
        (
            "compressed_int4",
            "config_groups.group_0.targets",
            "Linear",
            "targets' is 'Linear', expected a list of ele",
        ),
        (
            "compressed_int4",
            "config_groups.group_0.targets",
            [3],
            r"targets' is \[3\], expected a list of ele",
        ),
        ("compressed_int4", "config_groups.group_0.targets", ["re:.*attn"], "is packed, and no t"),
        ("compressed_int4", "config_groups.group_0.targets", ["re:("], "'re:.*not valid|not val"),
        ("compressed_int4", "config_groups.group_0.targets", ["re:(a*)*"], "none of them after a"),
        ("compressed_int4", "ignore", [DOWN], "is packed, and 'ignore' names it; leave the wron"),
        ("compressed_int4", "ignore", ["re:.*down_proj"], "is packed, and 'ignore' names it; leav"),
        ("compressed_int4", "kv_cache_scheme", {"num_bits": 8}, "has the key 'kv_cache_scheme', w"),
        ("compressed_int4", "transform_config", {"config_groups": {"u": {}}}, "transform_config'"),
        ("compressed_int4", "sparsity_config", {"format": "sparse-24-bitmask"}, "'sparse-24-bitm"),
        ("compressed_int4", "sparsity_config", {"zzz": 1}, "'sparsity_config' has the key 'zzz'"),
        ("compressed_int4", "quantization_status", "initialized", "has the key 'quantization_sta"),
        (
            "compressed_int4",
            "config_groups.group_0.format",
            "marlin-24",
            "is 'marlin-24', expected",
        ),
        ("compressed_int4", f"{WEIGHTS}.num_bits", 3, "num_bits' is 3, expected 2 or 4 or 8 for w"),
        ("compressed_int4", f"{WEIGHTS}.num_bits", "4", "num_bits' is '4', expected an integer"),
        ("compressed_int4", f"{WEIGHTS}.type", "float", "type' is 'float', expected int for weigh"),
        ("compressed_int4", f"{WEIGHTS}.group_size", 0, "group_size' is 0, expected a positive in"),
        ("compressed_int4_channel", f"{WEIGHTS}.group_size", 5, "is 5, expected null or -1 for "),
        ("compressed_int4", f"{WEIGHTS}.strategy", "attn_head", "strategy' is 'attn_head', expect"),
        ("compressed_int4", f"{WEIGHTS}.dynamic", True, "dynamic' is True, expected false"),
        (
            "compressed_int4",
            f"{WEIGHTS}.actorder",
            "x",
            "actorder' is 'x', expected null, 'weight'",
        ),
        (
            "compressed_fp8_block",
            f"{WEIGHTS}.block_structure",
            [1],
            r"structure' is \[1\], expected",
        ),
        ("compressed_fp8_block", f"{WEIGHTS}.block_structure", f"{'9' * 5000}x1", "is '9999999999"),
        ("compressed_fp8_block", f"{WEIGHTS}.symmetric", False, "symmetric' is False, expected tr"),
        (
            "compressed_fp8_static",
            f"{INPUTS}.strategy",
            "token",
            "strategy' is 'token', expected t",
        ),
        ("compressed_fp8_static", f"{INPUTS}.num_bits", 5, "num_bits' is 5, expected 4 or 8 for a"),
        (
            "compressed_fp8_dynamic",
            f"{INPUTS}.symmetric",
            False,
            "symmetric' is False, expected tr",
        ),
        (
            "compressed_nvfp4",
            f"{INPUTS}.symmetric",
            False,
            "symmetric' is False, expected true for",
        ),
        (
            "compressed_nvfp4",
            f"{INPUTS}.scale_dtype",
            "torch.uint8",
            "expected null, or 'group' of",
        ),
        ("compressed_mxfp4", f"{INPUTS}.group_size", 64, "uint8', expected null, or 'group' of 32"),
        (
            "compressed_w8a8_dynamic",
            f"{INPUTS}.scale_dtype",
            "torch.float8_e4m3fn",
            "expected null for integers with a scale for each token",
        ),
        (
            "compressed_int4",
            f"{WEIGHTS}.group_size",
            33,
            "expected a multiple of the group size 33",
        ),
        ("awq_int4", "group_size", 33, "expected a multiple of the group size 33"),
        ("compressed_nvfp4", f"{INPUTS}.dynamic", True, "dynamic' is True, expected 'local' for t"),
        ("compressed_nvfp4", f"{INPUTS}.scale_dtype", "torch.int8", "scale_dtype' is 'torch.int8'"),
        ("compressed_nvfp4", f"{INPUTS}.scale_dtype", ["x"], r"scale_dtype' is \['x'\], expected"),
        (
            "compressed_int4",
            f"{WEIGHTS}.dynamic",
            0,
            "dynamic' is 0, expected true, false or a str",
        ),
        (
            "compressed_int4",
            f"{WEIGHTS}.actorder",
            1,
            "actorder' is 1, expected true, false or a s",
        ),
        ("compressed_mxfp4", "format", {"x": 1}, "'format' is {'x': 1}, expected a string"),
        ("compressed_mxfp4", "format", "x", "'format' is 'x', expected 'pack-quantized'"),
        ("bitsandbytes_nf4", "load_in_4bit", False, "'load_in_4bit' is False, expected true, as"),
        ("bitsandbytes_nf4", "load_in_8bit", True, "'load_in_4bit' is True, expected false, as"),
        ("bitsandbytes_nf4", "bnb_4bit_quant_type", "fp4", "has levels of the type nf4, and 'bnb"),
        ("bitsandbytes_nf4", "bnb_4bit_quant_type", "x", "'bnb_4bit_quant_type' is 'x', expected"),
        (
            "bitsandbytes_int8",
            "llm_int8_threshold",
            -1,
            "'llm_int8_threshold' is -1, expected at",
        ),
        ("bitsandbytes_int8", "llm_int8_has_fp16_weight", True, "has the key 'llm_int8_has_fp16_w"),
        ("torchao_int8", "zzz", 1, "the configuration has the key 'zzz' = 1, which subquant does"),
        ("torchao_int8", "quant_method", "hqq", "'quant_method' is 'hqq', which is not supported"),
    ],
)
def test_settings_that_do_not_fit_are_errors(
    tmp_path: Path, name: str, key: str, value: object, message: str
) -> None:
    checkpoint = Checkpoint(name)
    checkpoint.set(key, value)
    checkpoint.write(tmp_path)
    refuse(tmp_path, SubquantError, message)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize(
    ("name", "part", "array", "error", "message"),
    [
        ("compressed_int4", "weight_scale", None, InputError, "has no weight_scale"),
        ("compressed_int4", "weight_shape", None, InputError, "has no weight_shape"),
        ("compressed_int4", "weight_packed", None, InputError, "has no weight_packed"),
        (
            "compressed_int4", "weight_shape", np.array([64, 97]), InputError,
            r"weight_shape \[64, 97\] and as its weight_packed int32\[64, 12\], expected \[64, 13",
        ),
        (
            "compressed_int4", "weight_shape", np.array([1 << 62, -1]), InputError,
            "expected .* for 4 bits",
        ),
        (
            "compressed_int4", "weight_scale", zeros(64, 2, dtype=BF16), InputError,
            r"weight_scale bfloat16\[64, 2\], expected floats of \[64, 3\]",
        ),
        ("compressed_int4", "weight_scale", zeros(64, 3, dtype=np.int8), InputError, "int8"),
        ("compressed_int4", "weight_packed", zeros(64, 12), InputError, "expected int32"),
        (
            "compressed_int4", "weight_zero_point", np.ones((8, 3), np.int32), InputError,
            "has a weight_zero_point other than 0, and the configuration says symmetric",
        ),
        (
            "compressed_int4", "weight_g_idx", np.full(96, 3, np.int32), InputError,
            "has the group 3 in its weight_g_idx, of 3 groups",
        ),
        (
            "compressed_int4", "weight_g_idx", zeros(96, dtype=np.int32), UnsupportedError,
            "has 96 inputs of the group 0 in its weight_g_idx, expected groups of 32",
        ),
        ("compressed_int4", "weight_zzz", zeros(1), UnsupportedError, "has the tensor 'model"),
        ("compressed_int4_asymmetric", "weight_zero_point", None, InputError, "no weight_zero_po"),
        (
            "compressed_int4_asymmetric", "weight_zero_point", zeros(8, 2, dtype=np.int32),
            InputError, r"weight_zero_point int32\[8, 2\], expected int32 of \[8, 3\]",
        ),
        ("compressed_w8a8_static", "input_scale", None, InputError, "has no input_scale"),
        (
            "compressed_w8a8_static", "input_scale", np.full(1, np.nan, np.float32), InputError,
            "has nan as its input_scale, expected a number above 0",
        ),
        ("compressed_w8a8_static", "weight", zeros(64, 96), InputError, "expected int8"),
        ("compressed_w8a8_static", "weight_scale", None, InputError, "int8 and no scale"),
        ("compressed_w8a8_static_asymmetric", "input_zero_point", None, InputError, "no input_ze"),
        ("compressed_fp8_block_partial", "weight_scale", zeros(1, 2), InputError, r"of \[2, 2\]"),
        ("compressed_nvfp4", "weight_global_scale", None, InputError, "no weight_global_scale"),
        ("compressed_nvfp4", "weight_global_scale", zeros(1), InputError, "has 0.0 as its weight_"),
        ("compressed_nvfp4", "input_global_scale", None, InputError, "no input_global_scale"),
        ("compressed_nvfp4", "weight_scale", zeros(64, 6), InputError, "expected float8_e4m3fn"),
        ("compressed_mxfp4", "weight_scale", zeros(64, 3, dtype=F8), InputError, "expected uint8"),
        ("compressed_mxfp4", "weight_packed", zeros(64, 47, dtype=np.uint8), InputError, "94 inp"),
        ("bitsandbytes_nf4", "weight.absmax", None, InputError, "has no weight.absmax"),
        ("bitsandbytes_nf4", "weight.absmax", zeros(3), InputError, r"expected float32 of \[128\]"),
        ("bitsandbytes_nf4", "weight.quant_map", zeros(15), InputError, r"float32 of \[16\]"),
        (
            "bitsandbytes_nf4", "weight.quant_map", np.full(16, np.inf, np.float32), InputError,
            "has levels that are not finite",
        ),
        ("bitsandbytes_nf4", "weight", zeros(4095, 1, dtype=np.uint8), InputError, "4096 bytes"),
        ("bitsandbytes_nf4_double", "weight.nested_absmax", None, InputError, "no weight.nested_a"),
        ("bitsandbytes_nf4_double", "weight.absmax", zeros(320), InputError, "expected uint8 of"),
        ("bitsandbytes_int8", "SCB", None, InputError, "int8 and no scale of the format bitsandby"),
        ("bitsandbytes_int8", "SCB", zeros(63), InputError, r"expected float32 of \[64\]"),
        (
            "bitsandbytes_int8", "weight_format", np.ones((), np.uint8), UnsupportedError,
            "has a weight_format other than 0",
        ),
        ("torchao_int8", "_weight_scale", None, InputError, "has no _weight_scale"),
        ("torchao_int8", "_weight_scale", zeros(64, 2), InputError, r"of \[64, 1\] or \[64\]"),
        ("torchao_int8", "_weight_act_pre_scale", zeros(96), UnsupportedError, "has the tensor"),
        (
            "torchao_intx4", "_weight_qdata", np.full((64, 96), 8, np.int8), InputError,
            "has 4 bits by its description, and integers beyond them",
        ),
        (
            "torchao_intx4", "_weight_zero_point", np.full((64, 3), 0.5, np.float32),
            UnsupportedError, "has zero points that are no integers",
        ),
        ("torchao_int4", "_weight_zero_point", None, InputError, "has no _weight_zero_point"),
        ("torchao_int4", "_weight_qdata", zeros(64, 47, dtype=np.int8), InputError, "the shape"),
        ("torchao_float8", "_weight_qdata", zeros(64, 96, dtype=np.int8), InputError, "float8_e4"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_errors(
    tmp_path: Path, name: str, part: str, array: Any, error: type[SubquantError], message: str
) -> None:
    checkpoint = Checkpoint(name)
    checkpoint.replace({f"{DOWN}.{part}": array})
    checkpoint.write(tmp_path)
    refuse(tmp_path, error, message, "model.safetensors: error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"quant_type": "nf4"}', "has no '.*nf4.blocksize', expected an integer"),
        ('{"quant_type": "nf4", "blocksize": 65, "shape": [64, 128]}', "has the block size 65, ex"),
        ('{"quant_type": "nf4", "blocksize": 64, "shape": [64, 127]}', r"\[64, 127\], expected a "),
        ('{"quant_type": "nf4", "blocksize": 64, "shape": [64, 130]}', "expected 4160 bytes for t"),
        ('{"quant_type": "nf4", "blocksize": 64, "shape": [64, 128], "z": 1}', "has the key 'z' ="),
    ],
)
def test_states_of_bitsandbytes_that_do_not_fit_are_errors(
    tmp_path: Path, text: str, message: str
) -> None:
    checkpoint = Checkpoint("bitsandbytes_nf4")
    name = f"{DOWN}.weight.quant_state.bitsandbytes__nf4"
    checkpoint.replace({name: np.frombuffer(text.encode(), np.uint8)})
    checkpoint.write(tmp_path)
    refuse(tmp_path, SubquantError, message, "model.safetensors: error: ")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, None, "has packed arrays and no description in the '__metadata__' of the file"),
        ("_type", "NVFP4Tensor", "_type' is 'NVFP4Tensor', expected 'Int8Tensor' or 'IntxUnpacked"),
        ("_data", None, "weight._data', expected an object"),
        ("_data", {"block_size": [1, 96], "zzz": 1}, "_data' has the key 'zzz' = 1, which subquan"),
        ("_data", {"block_size": [1, 95]}, r"has the shape \[64, 96\], expected a multiple of its"),
        ("_data", {"block_size": [96]}, r"block_size' is \[96\], expected 2 positive integers"),
        ("_data", {"block_size": [1, 96], "act_quant_kwargs": {"_type": "x"}}, "_type' is 'x', ex"),
        ("_data", {"block_size": [1, 96], "activation_quantization": "x"}, "activation_quantizati"),
        ("_data", {"target_dtype": None}, "_data.target_dtype', expected an object"),
        ("_data", {"target_dtype": {"_type": "torch.dtype", "_data": "int9"}}, "is 'int9', expec"),
        (
            "_tensor_data_names",
            ["qdata", "scale", {}],
            "_tensor_data_names' is .*, expected a list",
        ),
        ("_tensor_data_names", ["qdata"], "has _weight_scale, and '_tensor_data_names' does not n"),
        (
            "_tensor_data_names",
            ["qdata", "scale", "zero_point", "x"],
            "has no _weight_x, and '_tensor_data_names' names it",
        ),
        ("zzz", 1, f"'{DOWN}.weight' has the key 'zzz' = 1, which subquant does not use"),
    ],
)
def test_descriptions_of_torchao_that_do_not_fit_are_errors(
    tmp_path: Path, key: str | None, value: object, message: str
) -> None:
    checkpoint = Checkpoint("torchao_int8")
    name = f"{DOWN}.weight"
    if key is None:
        del checkpoint.metadata[name]
    else:
        description = json.loads(checkpoint.metadata[name]) | {key: value}
        checkpoint.metadata[name] = json.dumps(description)
    checkpoint.write(tmp_path)
    refuse(tmp_path, SubquantError, message, "model.safetensors: error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_type": "Int8Tensor"}', "model.norm.weight._type' is 'Int8Tensor', expected 'Tensor'"),
        ('{"_type": "Tensor", "zzz": 1}', "'model.norm.weight' has the key 'zzz' = 1, which subq"),
    ],
)
def test_floats_that_torchao_describes_as_others_are_errors(
    tmp_path: Path, text: str, message: str
) -> None:
    checkpoint = Checkpoint("torchao_int8")
    checkpoint.metadata["model.norm.weight"] = text
    checkpoint.write(tmp_path)
    refuse(tmp_path, SubquantError, message, "model.safetensors: error: ")


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"dim": 0}, "granularity._data.dim' is 0, expected -1, the last axis"),
        (31, "granularity._data' is 31, expected an object"),
    ],
)
def test_axes_of_activations_that_are_not_the_last_are_errors(
    tmp_path: Path, axes: object, message: str
) -> None:
    checkpoint = Checkpoint("torchao_int8_dynamic")
    description = json.loads(checkpoint.metadata[f"{DOWN}.weight"])
    description["_data"]["act_quant_kwargs"]["_data"]["granularity"]["_data"] = axes
    checkpoint.metadata[f"{DOWN}.weight"] = json.dumps(description)
    checkpoint.write(tmp_path)
    refuse(tmp_path, SubquantError, message, "model.safetensors: error: ")


def test_names_below_names_of_tensors_are_errors(tmp_path: Path) -> None:
    checkpoint = Checkpoint("torchao_int8")
    checkpoint.replace({"model.norm.weight.scale": zeros(1)})
    checkpoint.write(tmp_path)
    message = f"{tmp_path}: error: 'model.norm.weight.scale' is below the name of another tensor"
    with pytest.raises(InputError) as error:
        open_weights(tmp_path)
    assert str(error.value) == message


def test_inputs_that_groups_do_not_divide_are_errors(tmp_path: Path) -> None:
    folder = FOLDERS / "compressed_fp8_block_partial"
    with pytest.raises(UnsupportedError, match="144 inputs, which are rounded in groups of 128"):
        emit(folder, tmp_path / "x.mlir", tmp_path / "x.irpa")


def test_a_float_that_a_target_names_is_an_error(tmp_path: Path) -> None:
    checkpoint = Checkpoint("compressed_mixed")
    checkpoint.set("ignore", ["lm_head"])
    checkpoint.write(tmp_path)
    message = "'model.layers.1.mlp.down_proj' has no weight_scale, and the group 'group_1' of the"
    refuse(tmp_path, InputError, message, "model.safetensors: error: ")


def test_the_old_key_of_compressed_tensors(tmp_path: Path) -> None:
    checkpoint = Checkpoint("compressed_int4")
    checkpoint.config["compression_config"] = checkpoint.config.pop("quantization_config")
    assert f"{DOWN}.weight" in read_huggingface(checkpoint.write(tmp_path))[1]
