"""Weights that GPTQ and AWQ packed: values, groups, configurations, and errors of all three."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packed_checkpoints import (
    AWQ,
    CONFIG,
    CONFIGS,
    GPTQ,
    ORDERS,
    check_weight,
    checkpoint,
    int32,
    packed_arrays,
    packed_layer,
    packed_tensor,
    quantized,
    read,
    refuse,
)
from subquant.errors import InputError, SubquantError, UnsupportedError, UsageError
from subquant.formats.checkpoints.layers import PackedTensor
from subquant.formats.huggingface import read_huggingface
from subquant.layouts import BlockAffineLayout, tensor_from_record
from subquant.numerics.element_types import Array
from subquant.ops.linear import linear

FORMS = {
    "gptq": ("gptq", {**GPTQ}, 0x11111111),
    "gptq_v1": ("gptq", {**GPTQ, "checkpoint_format": "gptq"}, 0x11111111),
    "gptq_v2": ("gptq", {**GPTQ, "checkpoint_format": "gptq_v2"}, 0),
    "awq": ("awq", {**AWQ}, 0),
}


WHOLE_GROUPS = [(64, 8, 32), (64, 24, 16), (128, 16, -1), (8, 8, 8), (40, 16, 8)]
"""Inputs, outputs and group size; AWQ has no group of fewer inputs."""
PART_OF_A_GROUP = [(96, 8, 64), (16, 8, 128)]


@pytest.mark.parametrize(
    ("form", "inputs", "outputs", "group_size"),
    [
        (form, *sizes)
        for form in FORMS
        for sizes in [*WHOLE_GROUPS, *([] if form == "awq" else PART_OF_A_GROUP)]
    ],
)
def test_packed_weights_are_the_reals(
    tmp_path: Path, form: str, inputs: int, outputs: int, group_size: int
) -> None:
    method, config, minus = FORMS[form]
    size = inputs if group_size == -1 else min(group_size, inputs)
    arrays, q, z, reals = packed_layer(method, [inputs, outputs], inputs, outputs, size, minus)
    bias = np.ones(outputs, np.float16)
    config = {**CONFIG, "quantization_config": {**config, "group_size": group_size}}
    properties, tensors = read_huggingface(
        checkpoint(tmp_path, {**arrays, "l.bias": bias, "x.scales": bias}, config)
    )
    assert set(tensors) == {"l.weight", "l.bias", "x.scales"}
    assert properties["hparams"]["quantization_config"] == config["quantization_config"]
    assert tensors["l.weight"].name == "l.weight"
    check_weight(tensors["l.weight"], q, z, reals, [1, size])
    assert tensors["l.weight"].size_in_bytes == sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("form", FORMS)
def test_scales_of_any_type(tmp_path: Path, form: str, dtype: Any) -> None:
    method, config, minus = FORMS[form]
    arrays, q, z, _ = packed_layer(method, 5, 32, 8, 32, minus, dtype=dtype)
    layout = packed_tensor(tmp_path, arrays, config).unpack()
    assert layout.planes["d"].dtype == dtype
    scale = arrays["l.scales"].astype(np.float32)
    expected = (q - z).astype(np.float32) * scale  # one rounding, to float32
    np.testing.assert_array_equal(layout.dequant(), expected.T)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_every_pattern_of_bits(tmp_path: Path, method: str) -> None:
    """Each value at each place of a word, beside words of any bits."""
    words = [v << 4 * i for v in range(16) for i in range(8)]
    words += [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x01234567, 0xFEDCBA98]
    words += np.random.default_rng(1).integers(0, 1 << 32, 1024 - len(words)).tolist()
    signed = np.array([int32(word) for word in words], np.int32)
    for zeros_vary in (False, True):
        # 1024 words in qweight, or as qzeros of 128 groups of 8 inputs.
        shape = {"gptq": (128, 8), "awq": (1024, 1)}[method]
        qweight = signed.reshape(shape) if not zeros_vary else np.zeros(shape, np.int32)
        qzeros = np.zeros((128, 1), np.int32)
        if zeros_vary:
            qzeros = signed[:128].reshape(128, 1)
        arrays = {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": np.ones((128, 8), "f4")}
        config = {"gptq": {**GPTQ, "checkpoint_format": "gptq_v2"}, "awq": AWQ}[method]
        layout = packed_tensor(tmp_path, arrays, {**config, "group_size": 8}).unpack()
        planes, stored = layout.planes, layout.stored()
        order = ORDERS[method]
        for number, word in enumerate(words[:128] if zeros_vary else words):
            for i in range(8):
                value = word >> 4 * i & 15
                if zeros_vary:
                    assert planes["z"][order[i], number] == value
                elif method == "gptq":
                    assert stored[number % 8, number // 8 * 8 + i] == value
                else:
                    assert stored[order[i], number] == value


def test_zero_points_less_one_are_read_with_their_carries(tmp_path: Path) -> None:
    """Every zero point, 0 too, comes back from the subtraction of 0x11111111 of whole words."""
    z = np.random.default_rng(2).integers(0, 16, (512, 8))
    z[:16] = np.arange(16)[:, None]
    scales = np.ones((512, 8), np.float16)
    arrays = packed_arrays("gptq", np.zeros((4096, 8), int), z, scales, 0x11111111)
    config = {**GPTQ, "group_size": 8}
    tensor = packed_tensor(tmp_path, arrays, config)
    np.testing.assert_array_equal(tensor.unpack().planes["z"], z.T)
    # Symmetric files, of 8 everywhere, have the word 0x77777777.
    arrays["l.qzeros"] = np.full((512, 1), 0x77777777, np.int32)
    tensor = packed_tensor(tmp_path, arrays, config)
    assert "z" not in tensor.unpack().planes
    assert tensor.unpack().metadata["storage"] == "i4"


@pytest.mark.parametrize(
    "order",
    [[0, 1, 2], [0, 0, 0], [2, 0, 1], [1, 1, 0], [1, 1, 1]],
    ids=["ascending", "none", "permuted", "shared", "one"],
)
def test_groups_of_consecutive_inputs_in_any_order(tmp_path: Path, order: list[int]) -> None:
    indices = np.repeat(order, 8).astype(np.int32)
    message = np.repeat([0, 1, 2], 8) if not any(order) else indices
    arrays, q, z, reals = packed_layer("gptq", 7, 24, 8, 8, 0x11111111, message)
    tensors = read(quantized(tmp_path, {**arrays, "l.g_idx": indices}, {**GPTQ, "group_size": 8}))
    assert set(tensors) == {"l.weight"}
    check_weight(tensors["l.weight"], q, z[message[::8]], reals, [1, 8])


@pytest.mark.parametrize(("inputs", "size"), [(16, 8), (64, 8), (40, 16)])
def test_groups_of_inputs_in_any_order(tmp_path: Path, inputs: int, size: int) -> None:
    """The weight has the inputs in the order of the layer, and its planes in that of the groups."""
    rng = np.random.default_rng(3)
    indices = rng.permutation(np.arange(inputs) // size).astype(np.int32)
    arrays, q, _, reals = packed_layer("gptq", 7, inputs, 8, size, 0x11111111, indices)
    config = {**GPTQ, "group_size": size, "desc_act": True}
    tensor = packed_tensor(tmp_path, {**arrays, "l.g_idx": indices}, config)
    layout = tensor.unpack()
    assert isinstance(layout, BlockAffineLayout)
    order = layout.planes["order"]
    np.testing.assert_array_equal(order, np.argsort(indices, kind="stable"))
    np.testing.assert_array_equal(layout.stored(), q.T[:, order])
    np.testing.assert_array_equal(layout.dequant(np.float64), reals)
    x = rng.normal(size=(3, inputs)).astype(np.float32)
    assert linear.choose(x, tensor) == "ordered"
    np.testing.assert_allclose(linear(x, tensor), x @ reals.T, rtol=1e-5, atol=1e-4)
    for use in (layout.block_form, layout.parameters):
        with pytest.raises(UsageError, match="with an order of columns has no blocks"):
            use()
    loaded = tensor_from_record(tensor.name, tensor.record, tensor.arrays)
    np.testing.assert_array_equal(loaded.unpack().dequant(np.float64), reals)  # type: ignore[attr-defined]


def test_groups_of_other_sizes_are_unsupported(tmp_path: Path) -> None:
    arrays, *_ = packed_layer("gptq", 7, 16, 8, 8)
    indices = np.array([0, 1] * 7 + [0, 0], np.int32)
    quantized(tmp_path, {**arrays, "l.g_idx": indices}, {**GPTQ, "group_size": 8})
    message = "layer 'l' has 9 inputs of the group 0 in its g_idx, expected groups of 8"
    refuse(tmp_path, UnsupportedError, message, "model.safetensors: error: ")


def test_configurations_in_files_of_their_own(tmp_path: Path) -> None:
    of_awq = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    for method, minus, name, config in (
        ("gptq", 0x11111111, "quantize_config", {"bits": 4, "group_size": 32, "sym": False}),
        ("awq", 0, "quant_config", of_awq),
    ):
        arrays, q, z, reals = packed_layer(method, 8, 64, 8, 32, minus)
        checkpoint(tmp_path, arrays)
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config))
        check_weight(read(tmp_path)["l.weight"], q, z, reals, [1, 32])
        file.unlink()


@pytest.mark.parametrize(
    ("config", "error", "expected"),
    [
        (3, InputError, "'quantization_config' must be an object, got 3"),
        (
            {"quant_method": "aqlm"},
            UnsupportedError,
            "'quant_method' is 'aqlm', which is not supported; expected one of: gptq",
        ),
        ({"quant_method": 4}, InputError, "'quant_method' must be a string, got 4"),
        ({**GPTQ, "bits": 5}, UnsupportedError, "the weights have 5 bits, expected 2, 3, 4 or 8"),
        ({**GPTQ, "bits": "4"}, InputError, "'bits' is '4', expected an integer"),
        ({**GPTQ, "bits": True}, InputError, "'bits' is True, expected an integer"),
        ({**GPTQ, "group_size": None}, InputError, "has no 'group_size', expected an integer"),
        ({**GPTQ, "group_size": 0}, InputError, "'group_size' must be positive or -1, got 0"),
        ({**GPTQ, "checkpoint_format": "marlin"}, UnsupportedError, "are packed as 'marlin', exp"),
        ({**GPTQ, "is_marlin_format": True}, UnsupportedError, "are packed as 'marlin', expected"),
        ({**AWQ, "version": "gemv"}, UnsupportedError, "are packed as 'gemv', expected 'gemm'"),
    ],
)
def test_other_quantizations_are_errors(
    tmp_path: Path, config: Any, error: type[SubquantError], expected: str
) -> None:
    quantized(tmp_path, {"w": np.zeros(1)}, config)
    refuse(tmp_path, error, expected, "config.json: error: ")


I4 = np.zeros((4, 8), np.int32)


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        ({"l.scales": None}, InputError, "layer 'l' has a qweight and no scales"),
        ({"l.qzeros": None}, InputError, "layer 'l' has a qweight and no qzeros"),
        ({"l.qweight": None}, InputError, "'l' has no qweight"),
        ({"l.weight": np.zeros(1)}, InputError, "'l' has both a weight and a qweight"),
        ({"l.qweight": I4.astype(np.int64)}, UnsupportedError, r"qweight int64\[4, 8\], expected"),
        ({"l.qweight": I4[0]}, UnsupportedError, r"qweight int32\[8\], expected a matrix of int"),
        ({"l.qweight": I4[:, :7]}, InputError, r"qweight int32\[4, 7\], expected \[4, 8\] for"),
        ({"l.qweight": I4[:0]}, InputError, "has 0 inputs and 8 outputs, expected a multiple"),
        ({"l.qweight": np.zeros((5, 8), "i4")}, InputError, "scales of 1 groups, expected 2 for"),
        ({"l.qzeros": I4[:1, :2]}, InputError, r"qzeros int32\[1, 2\], expected \[1, 1\] for"),
        ({"l.scales": np.ones((1, 8), "i4")}, InputError, r"scales int32\[1, 8\], expected a mat"),
        ({"l.scales": np.ones(8, "f4")}, InputError, r"scales float32\[8\], expected a matrix"),
        ({"l.scales": np.ones((1, 12), "f4")}, InputError, "32 inputs and 12 outputs, expected a"),
        ({"l.g_idx": np.zeros(31, "i4")}, InputError, r"g_idx int32\[31\], expected 32 integers"),
        ({"l.g_idx": np.zeros(32, "f4")}, InputError, r"g_idx float32\[32\], expected 32 integers"),
        ({"l.g_idx": np.full(32, 1, "i4")}, InputError, "the group 1 in its g_idx, of 1 groups"),
        ({"l.g_idx": np.full(32, -1, "i4")}, InputError, "the group -1 in its g_idx, of 1 groups"),
    ],
)
def test_packed_weights_that_do_not_fit_are_errors(
    tmp_path: Path, change: dict[str, Any], error: type[SubquantError], expected: str
) -> None:
    arrays, *_ = packed_layer("gptq", 9, 32, 8, 32)
    arrays = {k: np.ascontiguousarray(v) for k, v in (arrays | change).items() if v is not None}
    quantized(tmp_path, arrays, GPTQ)
    refuse(tmp_path, error, expected, "model.safetensors: error: ")


SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 7, 8, 16, 32]), max_size=3)
TYPES = st.sampled_from([np.int32, np.int32, np.float16, np.float32, np.int64, np.bool_])


@given(
    method=st.sampled_from(["gptq", "awq"]),
    group_size=st.sampled_from([-1, 1, 8, 32, 10**9]),
    change=st.dictionaries(
        st.sampled_from(["l.qweight", "l.qzeros", "l.scales", "l.g_idx", "l.weight", "l"]),
        st.none() | st.tuples(SHAPES, TYPES, st.integers(-2, 3)),
        max_size=3,
    ),
)
def test_any_packed_arrays_are_an_error_or_unpacked(
    tmp_path_factory: pytest.TempPathFactory, method: str, group_size: int, change: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    arrays: dict[str, Array] = {
        "l.qweight": np.ones((4, 8) if method == "gptq" else (32, 1), np.int32),
        "l.qzeros": np.ones((1, 1), np.int32),
        "l.scales": np.ones((1, 8), np.float16),
    }
    for name, value in change.items():
        arrays.pop(name, None)
        if value is not None:
            shape, dtype, fill = value
            arrays[name] = np.full(shape, fill, dtype)
    config = {"quant_method": method, "bits": 4, "group_size": group_size}
    try:
        tensors = read(quantized(folder, arrays, config))
    except SubquantError:
        tensors = {}
    for tensor in tensors.values():
        if isinstance(tensor, PackedTensor):
            assert tensor.unpack().dequant().shape == tensor.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zzz": 1}, "the configuration has the key 'zzz' = 1, which subquant does not use"),
        ({"dynamic": {r"+:.*": {"bits": 8}}}, "'dynamic' is {'+:.*': {'bits': 8}}, expected keys"),
        ({"dynamic": [1]}, "'dynamic' is [1], expected keys that begin with '-:'"),
        ({"rotation": "hadamard"}, "the configuration has the key 'rotation' = 'hadamard'"),
        ({"adapter": {"name": "eora"}}, "the configuration has the key 'adapter'"),
        ({"data_type": "fp"}, "the configuration has the key 'data_type' = 'fp', which subquant"),
        ({"act_bits": 8}, "the configuration has the key 'act_bits' = 8, which subquant does not"),
        ({"extra_config": {"l": {"bits": 8}}}, "the configuration has the key 'extra_config'"),
        ({"pack_dtype": "int16"}, "the configuration has the key 'pack_dtype' = 'int16'"),
        ({"format": "gptq_v2", "checkpoint_format": "gptq"}, "contradict each other; leave the wr"),
        ({"w_bit": 3}, "'bits' is 4 and 'w_bit' is 3, which contradict each other"),
        ({"sym": "yes"}, "'sym' is 'yes', expected true or false"),
        ({"desc_act": 1}, "'desc_act' is 1, expected true or false"),
    ],
)
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_key_of_the_quantization_that_is_not_known_is_named(
    tmp_path: Path, method: str, change: dict[str, Any], message: str
) -> None:
    arrays, *_ = packed_layer(method, 9, 64, 8, 32)
    config = {**CONFIGS[method], **change}
    if method == "awq" and not {"format", "sym", "desc_act"}.isdisjoint(change):
        pytest.skip("a key of GPTQ")
    quantized(tmp_path, arrays, config)
    refuse(tmp_path, SubquantError, re.escape(message), "config.json: error: ")


def test_keys_that_tools_write_are_accepted(tmp_path: Path) -> None:
    """The keys are those of GPTQModel, AutoGPTQ, AutoRound and transformers, or of AutoAWQ."""
    arrays, q, z, reals = packed_layer("gptq", 9, 64, 8, 32, 0x11111111)
    config = {
        **GPTQ, "format": "gptq", "checkpoint_format": "gptq", "method": "gptq", "lm_head": False,
        "pack_dtype": "int32", "dynamic": {"-:.*gate": {}}, "adapter": None, "damp_percent": 0.01,
        "damp_auto_increment": 0.0025, "static_groups": False, "true_sequential": True,
        "is_marlin_format": False, "model_file_base_name": None, "model_name_or_path": None,
        "meta": {"quantizer": ["gptqmodel:1.4.0"]}, "use_exllama": True, "dataset": "c4",
        "exllama_config": {"version": 1}, "tokenizer": None, "batch_size": 1,
        "autoround_version": "0.5", "iters": 200, "data_type": "int", "act_bits": 16,
    }  # fmt: skip
    check_weight(packed_tensor(tmp_path, arrays, config), q, z, reals, [1, 32])
    arrays, q, z, reals = packed_layer("awq", 9, 64, 8, 32)
    config = {**AWQ, "modules_to_not_convert": None, "do_fuse": False, "backend": "autoawq",
              "exllama_config": None, "fuse_max_seq_len": None,
              "modules_to_fuse": None}  # fmt: skip
    check_weight(packed_tensor(tmp_path, arrays, config), q, z, reals, [1, 32])


def test_configurations_in_several_places(tmp_path: Path) -> None:
    """In the configuration of a part, and in a file of its own: they have to say the same."""
    arrays, q, z, reals = packed_layer("gptq", 8, 64, 8, 32, 0x11111111)
    part = {"text_config": {"quantization_config": GPTQ}}
    for config in ({"thinker_config": part}, part):
        check_weight(read(checkpoint(tmp_path, arrays, config))["l.weight"], q, z, reals, [1, 32])
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ))
    check_weight(read(tmp_path)["l.weight"], q, z, reals, [1, 32])
    (tmp_path / "quantize_config.json").write_text(json.dumps({**GPTQ, "group_size": 64}))
    message = "'text_config.quantization_config' and 'quantize_config.json' contradict each other a"
    refuse(tmp_path, InputError, f"{message}bout group_size; leave the wrong one out")


def test_the_key_of_mlx_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, {"w": np.zeros(1)}, {"quantization": {"bits": 4, "group_size": 64}})
    refuse(tmp_path, UnsupportedError, "the key 'quantization' says that weights are quantized")


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_packed_weights_that_are_not_there(tmp_path: Path, method: str) -> None:
    quantized(tmp_path, {"l.weight": np.zeros((8, 4), np.uint32)}, CONFIGS[method])
    message = f"that {method.upper()} packed the weights, and no tensor has the name of a packed"
    refuse(tmp_path, InputError, message)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("gptq", "l.zzz"),
        ("gptq", "l.lora_A.weight"),
        ("gptq", "l.scales_and_zeros"),
        ("awq", "l.g_idx"),
        ("awq", "l.smooth_scale"),
    ],
)
def test_a_tensor_of_a_packed_layer_that_is_not_known_is_named(
    tmp_path: Path, method: str, name: str
) -> None:
    arrays, *_ = packed_layer(method, 9, 64, 8, 32)
    further = {"l.bias": np.ones(8, np.float16), "ll.zzz": np.ones(3), "norm.weight": np.ones(3)}
    quantized(tmp_path, arrays | further, CONFIGS[method])
    assert set(read(tmp_path)) == {"l.weight", *further}
    quantized(tmp_path, arrays | {name: np.ones(64, np.int32)}, CONFIGS[method])
    refuse(tmp_path, UnsupportedError, f"error: has the tensor '{name}', which subquant")


@pytest.mark.parametrize(
    ("stored", "form", "message"),
    [
        (8, "gptq", "zero point of 9, and 'sym' is true, .*; set 'checkpoint_format' to 'gptq_v2'"),
        (7, "gptq_v2", "zero point of 7, and 'sym' is true, .* 'checkpoint_format' to 'gptq', "),
        (3, "gptq", "zero point of 4, .* set it to the contrary if the zero points are right"),
        (7, "gptq", None),
        (8, "gptq_v2", None),
    ],
)
def test_zero_points_that_contradict_a_symmetric_quantization(
    tmp_path: Path, stored: int, form: str, message: str | None
) -> None:
    """The reals are ``(q - 8) * scale``, or the message names a way out."""
    rng = np.random.default_rng(9)
    q, scales = rng.integers(0, 16, (64, 16)), rng.uniform(0.5, 1, (2, 16)).astype(np.float16)
    arrays = packed_arrays("gptq", q, np.full((2, 16), stored), scales)
    config = {**GPTQ, "sym": True, "checkpoint_format": form}
    if message is not None:
        refuse(quantized(tmp_path, arrays, config), InputError, f"error: layer 'l' has a {message}")
        return
    tensor = packed_tensor(tmp_path, arrays, config)
    expected = (q - 8).T * np.repeat(scales.T.astype(np.float64), 32, axis=1)
    np.testing.assert_array_equal(tensor.unpack().dequant(), expected.astype(np.float32))


def test_awq_without_zero_points_has_eights(tmp_path: Path) -> None:
    q, scales = np.random.default_rng(9).integers(0, 16, (64, 16)), np.ones((2, 16), np.float16)
    config = {**AWQ, "zero_point": False}
    eights, sevens = (packed_arrays("awq", q, np.full((2, 16), zero), scales) for zero in (8, 7))
    read(quantized(tmp_path, eights, config))
    folder = quantized(tmp_path, sevens, config)
    refuse(folder, InputError, "a zero point of 7, and the configuration says symm")


def test_an_order_of_inputs_needs_their_groups(tmp_path: Path) -> None:
    arrays, *_ = packed_layer("gptq", 9, 64, 8, 32)
    config = {**GPTQ, "desc_act": True}
    for further in ({}, {"l.g_idx": np.zeros(64, np.int32)}):
        folder = quantized(tmp_path, arrays | further, config)
        refuse(folder, InputError, "layer 'l' has no g_idx that says which group each")
    ascending = {"l.g_idx": np.repeat([0, 1], 32).astype(np.int32)}
    assert list(read(quantized(tmp_path, arrays | ascending, config))) == ["l.weight"]
