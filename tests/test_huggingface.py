"""Checkpoints of Hugging Face: configurations, shards, and weights packed by GPTQ and AWQ."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.huggingface import read_huggingface
from subquant.formats.packed_int4 import PackedInt4Tensor
from subquant.layouts import (
    BlockAffineLayout,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    tensor_from_record,
)
from subquant.numerics.casts import dequantize
from subquant.numerics.element_types import Array

_CONFIG = {"_name_or_path": "x", "_commit": 1, "hidden_size": 64, "rope": {"theta": 1e6}}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def _checkpoint(
    folder: Path, arrays: dict[str, Array], config: Any = None, name: str = "model.safetensors"
) -> Path:
    save_file(arrays, folder / name)
    (folder / "config.json").write_text(json.dumps(_CONFIG if config is None else config))
    return folder


def _read(path: Path) -> dict[str, InferenceTensor]:
    return read_huggingface(path)[1]


def _refuse(folder: Path, file: str, error: type[SubquantError], message: str) -> None:
    """A checkpoint is refused by an error that names a file."""
    with pytest.raises(error, match=message) as caught:
        read_huggingface(folder)
    assert str(caught.value).startswith(str(folder / file))


# -- files ----------------------------------------------------------------------------------------


def test_a_folder_gives_properties_and_arrays(tmp_path: Path) -> None:
    arrays = {
        "model.embed.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.norm.weight": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    properties, tensors = read_huggingface(_checkpoint(tmp_path, arrays))
    assert properties == {
        "meta": {"_name_or_path": "x", "_commit": 1},
        "hparams": {"hidden_size": 64, "rope": {"theta": 1e6}},
    }
    assert tensors.keys() == arrays.keys()
    for name, tensor in tensors.items():
        assert isinstance(tensor, PrimitiveTensor)
        assert tensor.name == name
        assert tensor.array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(tensor.array, arrays[name])


def test_a_file_has_the_configuration_beside_it(tmp_path: Path) -> None:
    arrays = {"w": np.zeros(3, np.int8)}
    _checkpoint(tmp_path, arrays, name="diffusion.safetensors")
    properties, tensors = read_huggingface(tmp_path / "diffusion.safetensors")
    assert properties["hparams"]["hidden_size"] == 64
    assert list(tensors) == ["w"]
    assert list(_read(tmp_path)) == ["w"]  # the only file of the folder
    (tmp_path / "config.json").unlink()
    properties, _ = read_huggingface(tmp_path / "diffusion.safetensors")
    assert properties == {"meta": {}, "hparams": {}}
    with pytest.raises(InputError, match=r"cannot read '.*config.json': No such file"):
        read_huggingface(tmp_path)


def test_metadata_that_says_more_than_the_framework_is_a_property(tmp_path: Path) -> None:
    save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    assert read_huggingface(tmp_path)[0] == {"meta": {}, "hparams": {}}
    metadata = {"format": "pt", "w_type": "Int4"}
    save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors", metadata)
    result = read_huggingface(tmp_path)[0]
    assert result["metadata"] == {"model.safetensors": {"w_type": "Int4"}}


def _shards(folder: Path) -> dict[str, Any]:
    """Three tensors in two files; returns the index, which is written."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({"b": np.ones(2, np.float16), "a": np.zeros(1, np.float32)}, folder / first)
    save_file({"c": np.full(3, 7, np.int32)}, folder / second)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    index: dict[str, Any] = {
        "metadata": {"total_size": 20},
        "weight_map": {"a": first, "b": first, "c": second},
    }
    _write_index(folder, index)
    return index


def _write_index(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_in_the_order_of_the_index(tmp_path: Path) -> None:
    _shards(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        tensors = _read(path)
        assert list(tensors) == ["a", "b", "c"]
        assert isinstance(tensors["c"], PrimitiveTensor)
        np.testing.assert_array_equal(tensors["c"].array, [7, 7, 7])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"d": "model-00002-of-00002.safetensors"}, "tensor 'd' is not in 'model-00002-of"),
        ({"c": "model-00001-of-00002.safetensors"}, "tensor 'c' is not in 'model-00001-of"),
        ({"b": None}, "'model-00001-of-00002.safetensors' holds the tensor 'b', and .* nothing of"),
        ({"c": "model-3.safetensors"}, r"cannot read '.*model-3.safetensors': No such file"),
        ({"c": "../model.safetensors"}, "tensor 'c' is said to be in '../model.safetensors', exp"),
        ({"c": "/model.safetensors"}, "expected the name of a .safetensors file in the folder"),
        ({"c": "model.bin"}, "expected the name of a .safetensors file"),
        ({"c": "\0.safetensors"}, "expected the name of a .safetensors file"),
        ({"c": 3}, "tensor 'c' is said to be in 3"),
    ],
)
def test_an_index_that_does_not_fit_is_an_error(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    index = _shards(tmp_path)
    index["weight_map"] |= change
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v is not None}
    _write_index(tmp_path, index)
    with pytest.raises(InputError, match=expected):
        read_huggingface(tmp_path)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    first, _, second = _shards(tmp_path)["weight_map"].values()
    save_file({"c": np.full(3, 7, np.int32), "a": np.zeros(1, np.float32)}, tmp_path / second)
    message = f"'{second}' holds the tensor 'a', and the index says to be in '{first}'"
    with pytest.raises(InputError, match=message):
        read_huggingface(tmp_path)


def test_a_configuration_may_have_a_mark_and_any_characters(tmp_path: Path) -> None:
    _checkpoint(tmp_path, {"w": np.zeros(1)})
    text = '{"\\ud83d\\ude00": "\N{SNOWMAN}", "big": 18446744073709551615, "x": -1.5e-3}'
    (tmp_path / "config.json").write_bytes(text.encode("utf-8-sig"))
    expected = {"\N{GRINNING FACE}": "\N{SNOWMAN}", "big": 2**64 - 1, "x": -0.0015}
    assert read_huggingface(tmp_path)[0]["hparams"] == expected


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("config.json", "", "the model's configuration is not JSON: expecting value"),
        ("config.json", '{"a": 1,\n "a": 2}', "the key 'a' is there twice"),
        ("config.json", '{"a": [1e308, -1e309]}', "'-1e309' is beyond the greatest number of 64 b"),
        ("config.json", '{"a": NaN}', "NaN is no number of JSON"),
        ("config.json", '{"a": ' + "1" * 5000 + "}", "an integer has 5000 digits"),
        ("config.json", "[" * 10**6, "is nested too deeply"),
        ("config.json", "[]", "holds a list, expected an object"),
        ("config.json", '{\n"a" 1}', r"config.json:2:5: error: .* not JSON: expecting ':'"),
        ("config.json", "[" + "[]," * 4_000_001, "values, expected at most 8000000"),
        ("config.json", '{"a": ["\\udc00"]}', r"'.udc00' is half of a surrogate pair"),
        ("config.json", b'{"a": "\xff"}', "is not UTF-8: byte 0xff at 7"),
        ("model.safetensors.index.json", "{}", "the index has no 'weight_map'"),
        ("model.safetensors.index.json", '{"weight_map": []}', "the index has no 'weight_map'"),
        ("model.safetensors.index.json", '{"weight_map": {}}', "the index has no 'weight_map'"),
    ],
)
def test_wrong_json_is_a_located_error(
    tmp_path: Path, file: str, text: str | bytes, expected: str
) -> None:
    _shards(tmp_path)
    (tmp_path / file).write_bytes(text.encode() if isinstance(text, str) else text)
    _refuse(tmp_path, file, InputError, expected)


def test_folders_without_one_model_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no weights, expected model.safetensors or model"):
        read_huggingface(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": np.zeros(1)}, tmp_path / name)
    with pytest.raises(InputError, match=r"holds 2 files \*.safetensors, the first 'a.safeten"):
        read_huggingface(tmp_path)
    with pytest.raises(InputError, match=r"cannot read '.*missing': No such file"):
        read_huggingface(tmp_path / "missing")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"cannot read '.*config.json': not a regular file"):
        read_huggingface(tmp_path / "a.safetensors")


@given(at=st.integers(0, 10**6), inserted=st.binary(max_size=4), removed=st.integers(0, 9))
def test_a_damaged_index_or_configuration_is_an_error_or_read(
    tmp_path_factory: pytest.TempPathFactory, at: int, inserted: bytes, removed: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    _shards(folder)
    for name in ("config.json", "model.safetensors.index.json"):
        data = (folder / name).read_bytes()
        position = at % len(data)
        (folder / name).write_bytes(data[:position] + inserted + data[position + removed :])
        try:
            tensors = _read(folder)
        except SubquantError:
            tensors = {}
        assert tensors.keys() <= {"a", "b", "c"}
        (folder / name).write_bytes(data)


# -- packed weights -------------------------------------------------------------------------------
# The packers here take one value at a time, in Python's integers.


def _int32(word: int) -> int:
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


def _word(values: list[int], minus: int = 0) -> int:
    """8 values, the first in the low bits, less a word."""
    return _int32(sum(value << 4 * i for i, value in enumerate(values)) - minus)


_ORDERS = {"gptq": [*range(8)], "awq": [0, 2, 4, 6, 1, 3, 5, 7]}
_CONFIGS = {"gptq": _GPTQ, "awq": _AWQ}


def _packed(method: str, q: Array, z: Array, minus: int) -> tuple[Array, Array]:
    """Qweight and qzeros of values [K, N] and zero points [G, N]."""
    order = _ORDERS[method]

    def columns(values: Array, minus: int = 0) -> Array:
        words = [
            [_word([int(row[c + i]) for i in order], minus) for c in range(0, len(row), 8)]
            for row in values
        ]
        return np.array(words, np.int32)

    packed = columns(q) if method == "awq" else np.ascontiguousarray(columns(q.T).T)
    return packed, columns(z, minus)


def _layer(
    method: str, seed: int | list[int], inputs: int, outputs: int, size: int, minus: int = 0,
    groups: Array | None = None, dtype: Any = np.float16,
) -> tuple[dict[str, Array], Array, Array, Array]:  # fmt: skip
    """Arrays of a layer, its values [K, N], zero points [G, N] and reals [N, K] in float64."""
    rng, count = np.random.default_rng(seed), -(-inputs // size)
    q = rng.integers(0, 16, (inputs, outputs))
    q[: min(16, inputs), 0] = np.arange(16)[: min(16, inputs)]
    z = rng.integers(0, 16, (count, outputs))
    z[0, :8] = rng.permutation(8) * 2 + rng.integers(0, 2)
    scales = rng.uniform(-2, 2, (count, outputs)).astype(dtype)
    qweight, qzeros = _packed(method, q, z, minus)
    arrays = {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": scales}
    group_of = np.arange(inputs) // size if groups is None else groups
    return arrays, q, z, ((q - z[group_of]) * scales[group_of].astype(np.float64)).T


def _packed_tensor(folder: Path, arrays: dict[str, Array], config: Any) -> PackedInt4Tensor:
    """The weight of a checkpoint with a ``quantization_config``."""
    tensor = _read(_checkpoint(folder, arrays, {"quantization_config": config}))["l.weight"]
    assert isinstance(tensor, PackedInt4Tensor)
    return tensor


def _check(tensor: InferenceTensor, q: Array, z: Array, reals: Array, block: list[int]) -> None:
    assert isinstance(tensor, PackedInt4Tensor)
    planar = tensor.to_planar()
    assert isinstance(planar, PlanarQuantizedTensor)
    assert isinstance(planar.layout, BlockAffineLayout)
    assert planar.layout.metadata == {"block_shape": block, "storage": "u4", "packed": True}
    assert planar.layout.planes["qs"].nbytes == reals.size // 2
    assert planar.shape == tensor.shape == reals.shape
    planes = planar.layout.planes
    np.testing.assert_array_equal(planar.layout.stored(), q.T)
    np.testing.assert_array_equal(planes["z"], z.T)
    # 4 bits and a scale of at most 24 make an exact product in float32.
    np.testing.assert_array_equal(planar.layout.dequant().astype(np.float64), reals)
    np.testing.assert_array_equal(planar.layout.dequant(np.float64), reals)
    # As MLIR's type: computed in the type of the scales.
    parameters = planar.layout.parameters()
    expressed = parameters.expressed.dtype
    np.testing.assert_array_equal(
        dequantize(planar.layout.stored(), parameters), reals.astype(np.float32).astype(expressed)
    )
    repeated = tensor_from_record(tensor.name, tensor.record, tensor.arrays)
    np.testing.assert_array_equal(repeated.to_planar().layout.dequant(), planar.layout.dequant())  # type: ignore[attr-defined]


_FORMS = {
    "gptq": ("gptq", {**_GPTQ}, 0x11111111),
    "gptq_v1": ("gptq", {**_GPTQ, "checkpoint_format": "gptq"}, 0x11111111),
    "gptq_v2": ("gptq", {**_GPTQ, "checkpoint_format": "gptq_v2"}, 0),
    "awq": ("awq", {**_AWQ}, 0),
}


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize(
    ("inputs", "outputs", "group_size"),
    [(64, 8, 32), (64, 24, 16), (128, 16, -1), (8, 8, 8), (96, 8, 64), (16, 8, 128), (40, 16, 8)],
)
def test_packed_weights_are_the_reals(
    tmp_path: Path, form: str, inputs: int, outputs: int, group_size: int
) -> None:
    method, config, minus = _FORMS[form]
    size = inputs if group_size == -1 else min(group_size, inputs)
    arrays, q, z, reals = _layer(method, [inputs, outputs], inputs, outputs, size, minus)
    bias = np.ones(outputs, np.float16)
    config = {**_CONFIG, "quantization_config": {**config, "group_size": group_size}}
    properties, tensors = read_huggingface(
        _checkpoint(tmp_path, {**arrays, "l.bias": bias, "x.scales": bias}, config)
    )
    assert set(tensors) == {"l.weight", "l.bias", "x.scales"}
    assert properties["hparams"]["quantization_config"] == config["quantization_config"]
    assert tensors["l.weight"].name == "l.weight"
    _check(tensors["l.weight"], q, z, reals, [1, size])
    assert tensors["l.weight"].size_in_bytes == sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("form", _FORMS)
def test_scales_of_any_type(tmp_path: Path, form: str, dtype: Any) -> None:
    method, config, minus = _FORMS[form]
    arrays, q, z, _ = _layer(method, 5, 32, 8, 32, minus, dtype=dtype)
    layout = _packed_tensor(tmp_path, arrays, config).unpack()
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
    signed = np.array([_int32(word) for word in words], np.int32)
    for zeros_vary in (False, True):
        # 1024 words in qweight, or as qzeros of 128 groups of 8 inputs.
        shape = {"gptq": (128, 8), "awq": (1024, 1)}[method]
        qweight = signed.reshape(shape) if not zeros_vary else np.zeros(shape, np.int32)
        qzeros = np.zeros((128, 1), np.int32)
        if zeros_vary:
            qzeros = signed[:128].reshape(128, 1)
        arrays = {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": np.ones((128, 8), "f4")}
        config = {"gptq": {**_GPTQ, "checkpoint_format": "gptq_v2"}, "awq": _AWQ}[method]
        layout = _packed_tensor(tmp_path, arrays, {**config, "group_size": 8}).unpack()
        planes, stored = layout.planes, layout.stored()
        order = _ORDERS[method]
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
    rng = np.random.default_rng(2)
    z = rng.integers(0, 16, (512, 8))
    z[:16] = np.arange(16)[:, None]
    _, qzeros = _packed("gptq", np.zeros((8, 8), int), z, 0x11111111)
    arrays = {
        "l.qweight": np.zeros((512, 8), np.int32),
        "l.qzeros": qzeros,
        "l.scales": np.ones((512, 8), np.float16),
    }
    config = {**_GPTQ, "group_size": 8}
    tensor = _packed_tensor(tmp_path, arrays, config)
    np.testing.assert_array_equal(tensor.unpack().planes["z"], z.T)
    # Symmetric files, of 8 everywhere, have the word 0x77777777.
    arrays["l.qzeros"] = np.full((512, 1), 0x77777777, np.int32)
    tensor = _packed_tensor(tmp_path, arrays, config)
    assert (tensor.unpack().planes["z"] == 8).all()


@pytest.mark.parametrize(
    "order",
    [[0, 1, 2], [0, 0, 0], [2, 0, 1], [1, 1, 0], [1, 1, 1]],
    ids=["ascending", "none", "permuted", "shared", "one"],
)
def test_groups_of_consecutive_inputs_in_any_order(tmp_path: Path, order: list[int]) -> None:
    indices = np.repeat(order, 8).astype(np.int32)
    message = np.repeat([0, 1, 2], 8) if not any(order) else indices
    arrays, q, z, reals = _layer("gptq", 7, 24, 8, 8, 0x11111111, message)
    config = {"quantization_config": {**_GPTQ, "group_size": 8}}
    tensors = _read(_checkpoint(tmp_path, {**arrays, "l.g_idx": indices}, config))
    assert set(tensors) == {"l.weight"}
    _check(tensors["l.weight"], q, z[message[::8]], reals, [1, 8])


def test_groups_that_are_not_consecutive_are_unsupported(tmp_path: Path) -> None:
    arrays, *_ = _layer("gptq", 7, 16, 8, 8)
    indices = np.random.default_rng(3).permutation(np.repeat([0, 1], 8)).astype(np.int32)
    config = {"quantization_config": {**_GPTQ, "group_size": 8, "desc_act": True}}
    _checkpoint(tmp_path, {**arrays, "l.g_idx": indices}, config)
    message = "model.safetensors: error: layer 'l' has groups of inputs that are"
    with pytest.raises(UnsupportedError, match=message):
        read_huggingface(tmp_path)


def test_configurations_in_files_of_their_own(tmp_path: Path) -> None:
    of_awq = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    for method, minus, name, config in (
        ("gptq", 0x11111111, "quantize_config", {"bits": 4, "group_size": 32, "sym": False}),
        ("awq", 0, "quant_config", of_awq),
    ):
        arrays, q, z, reals = _layer(method, 8, 64, 8, 32, minus)
        _checkpoint(tmp_path, arrays)
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(config))
        _check(_read(tmp_path)["l.weight"], q, z, reals, [1, 32])
        file.unlink()


@pytest.mark.parametrize(
    ("config", "error", "expected"),
    [
        (3, InputError, "'quantization_config' must be an object, got 3"),
        ({"quant_method": "fp8"}, UnsupportedError, "method is 'fp8', expected 'gptq' or 'awq'"),
        ({"quant_method": 4}, InputError, "'quant_method' must be a string, got 4"),
        ({**_GPTQ, "bits": 8}, UnsupportedError, "the weights have 8 bits, expected 4"),
        ({**_GPTQ, "bits": "4"}, InputError, "'bits' of the quantization must be an integer, got"),
        ({**_GPTQ, "bits": True}, InputError, "'bits' of the quantization must be an integer"),
        ({**_GPTQ, "group_size": None}, InputError, "'group_size' of the quantization must be an"),
        ({**_GPTQ, "group_size": 0}, InputError, "'group_size' must be positive or -1, got 0"),
        ({**_GPTQ, "checkpoint_format": "marlin"}, UnsupportedError, "are packed as 'marlin', exp"),
        ({**_GPTQ, "is_marlin_format": True}, UnsupportedError, "are packed as 'marlin', expected"),
        ({**_AWQ, "version": "gemv"}, UnsupportedError, "are packed as 'gemv', expected 'gemm'"),
    ],
)
def test_other_quantizations_are_errors(
    tmp_path: Path, config: Any, error: type[SubquantError], expected: str
) -> None:
    _checkpoint(tmp_path, {"w": np.zeros(1)}, {"quantization_config": config})
    _refuse(tmp_path, "config.json: error: ", error, expected)


_I4 = np.zeros((4, 8), np.int32)


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        ({"l.scales": None}, InputError, "layer 'l' has a qweight and no scales"),
        ({"l.qzeros": None}, InputError, "layer 'l' has a qweight and no qzeros"),
        ({"l.qweight": None}, InputError, "'l' has no qweight"),
        ({"l.weight": np.zeros(1)}, InputError, "'l' has both a weight and a qweight"),
        ({"l.qweight": _I4.astype(np.int64)}, UnsupportedError, r"qweight int64\[4, 8\], expected"),
        ({"l.qweight": _I4[0]}, UnsupportedError, r"qweight int32\[8\], expected a matrix of int"),
        ({"l.qweight": _I4[:, :7]}, InputError, r"qweight int32\[4, 7\], expected \[4, 8\] for"),
        ({"l.qweight": _I4[:0]}, InputError, "has 0 inputs and 8 outputs, expected a multiple"),
        ({"l.qweight": np.zeros((5, 8), "i4")}, InputError, "scales of 1 groups, expected 2 for"),
        ({"l.qzeros": _I4[:1, :2]}, InputError, r"qzeros int32\[1, 2\], expected \[1, 1\] for"),
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
    arrays, *_ = _layer("gptq", 9, 32, 8, 32)
    arrays = {k: np.ascontiguousarray(v) for k, v in (arrays | change).items() if v is not None}
    _checkpoint(tmp_path, arrays, {"quantization_config": _GPTQ})
    _refuse(tmp_path, "model.safetensors: error: ", error, expected)


_SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 7, 8, 16, 32]), max_size=3)
_TYPES = st.sampled_from([np.int32, np.int32, np.float16, np.float32, np.int64, np.bool_])


@given(
    method=st.sampled_from(["gptq", "awq"]),
    group_size=st.sampled_from([-1, 1, 8, 32, 10**9]),
    change=st.dictionaries(
        st.sampled_from(["l.qweight", "l.qzeros", "l.scales", "l.g_idx", "l.weight", "l"]),
        st.none() | st.tuples(_SHAPES, _TYPES, st.integers(-2, 3)),
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
        tensors = _read(_checkpoint(folder, arrays, {"quantization_config": config}))
    except SubquantError:
        tensors = {}
    for tensor in tensors.values():
        if isinstance(tensor, PackedInt4Tensor):
            assert tensor.unpack().dequant().shape == tensor.shape


# -- nothing in silence ---------------------------------------------------------------------------


def test_a_shard_without_the_others_is_refused(tmp_path: Path) -> None:
    _shards(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    message = r"00002\.safetensors: error: is shard 2 of 2, which is not a whole model; give"
    with pytest.raises(InputError, match=message):
        read_huggingface(second)
    (tmp_path / "model.safetensors.index.json").unlink()
    first.unlink()
    with pytest.raises(InputError, match=message):  # the only file of the folder
        read_huggingface(tmp_path)
    second.rename(tmp_path / "model-00001-of-00001.safetensors")
    assert list(_read(tmp_path)) == ["c"]


def test_a_file_beside_an_index_of_others_is_ambiguous(tmp_path: Path) -> None:
    index = _shards(tmp_path)
    save_file({"a": np.ones(2, np.float16)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"holds model\.safetensors, and .* that names other file"):
        read_huggingface(tmp_path)
    assert list(_read(tmp_path / "model.safetensors")) == ["a"]
    index["weight_map"] = {"a": "model.safetensors"}
    _write_index(tmp_path, index)
    assert list(_read(tmp_path)) == ["a"]


def test_a_key_of_an_index_that_is_not_known_is_named(tmp_path: Path) -> None:
    _write_index(tmp_path, {**_shards(tmp_path), "tied": {"a": "b"}})
    with pytest.raises(UnsupportedError, match="error: the index has the key 'tied', which subq"):
        read_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zzz": 1}, "the quantization has the key 'zzz' = 1, which subquant does not use"),
        ({"dynamic": {"-:.*down.*": {}}}, "the quantization has the key 'dynamic'"),
        ({"dynamic": {r"+:.*": {"bits": 8}}}, "the quantization has the key 'dynamic'"),
        ({"rotation": "hadamard"}, "the quantization has the key 'rotation' = 'hadamard'"),
        ({"adapter": {"name": "eora"}}, "the quantization has the key 'adapter'"),
        ({"data_type": "fp"}, "the quantization has the key 'data_type' = 'fp', which subquant"),
        ({"act_bits": 8}, "the quantization has the key 'act_bits' = 8, which subquant does not"),
        ({"extra_config": {"l": {"bits": 8}}}, "the quantization has the key 'extra_config'"),
        ({"pack_dtype": "int16"}, "the quantization has the key 'pack_dtype' = 'int16'"),
        ({"format": "gptq_v2", "checkpoint_format": "gptq"}, "contradict each other; leave the wr"),
        ({"w_bit": 3}, "'bits' is 4 and 'w_bit' is 3, which contradict each other"),
        ({"sym": "yes"}, "'sym' must be true or false, got 'yes'"),
        ({"desc_act": 1}, "'desc_act' must be true or false, got 1"),
    ],
)
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_key_of_the_quantization_that_is_not_known_is_named(
    tmp_path: Path, method: str, change: dict[str, Any], message: str
) -> None:
    arrays, *_ = _layer(method, 9, 64, 8, 32)
    config = {**_CONFIGS[method], **change}
    if method == "awq" and not {"format", "sym", "desc_act"}.isdisjoint(change):
        pytest.skip("a key of GPTQ")
    _checkpoint(tmp_path, arrays, {"quantization_config": config})
    _refuse(tmp_path, "config.json: error: ", SubquantError, re.escape(message))


def test_keys_that_tools_write_are_accepted(tmp_path: Path) -> None:
    """The keys are those of GPTQModel, AutoGPTQ, AutoRound and transformers, or of AutoAWQ."""
    arrays, q, z, reals = _layer("gptq", 9, 64, 8, 32, 0x11111111)
    config = {
        **_GPTQ, "format": "gptq", "checkpoint_format": "gptq", "method": "gptq", "lm_head": False,
        "pack_dtype": "int32", "dynamic": None, "adapter": None, "damp_percent": 0.01,
        "damp_auto_increment": 0.0025, "static_groups": False, "true_sequential": True,
        "is_marlin_format": False, "model_file_base_name": None, "model_name_or_path": None,
        "meta": {"quantizer": ["gptqmodel:1.4.0"]}, "use_exllama": True, "dataset": "c4",
        "exllama_config": {"version": 1}, "tokenizer": None, "batch_size": 1,
        "autoround_version": "0.5", "iters": 200, "data_type": "int", "act_bits": 16,
    }  # fmt: skip
    _check(_packed_tensor(tmp_path, arrays, config), q, z, reals, [1, 32])
    arrays, q, z, reals = _layer("awq", 9, 64, 8, 32)
    config = {**_AWQ, "modules_to_not_convert": None, "do_fuse": False, "backend": "autoawq",
              "exllama_config": None, "fuse_max_seq_len": None,
              "modules_to_fuse": None}  # fmt: skip
    _check(_packed_tensor(tmp_path, arrays, config), q, z, reals, [1, 32])


def test_configurations_in_several_places(tmp_path: Path) -> None:
    """In the configuration of a part, and in a file of its own: they have to say the same."""
    arrays, q, z, reals = _layer("gptq", 8, 64, 8, 32, 0x11111111)
    part = {"text_config": {"quantization_config": _GPTQ}}
    for config in ({"thinker_config": part}, part):
        _check(_read(_checkpoint(tmp_path, arrays, config))["l.weight"], q, z, reals, [1, 32])
    (tmp_path / "quantize_config.json").write_text(json.dumps(_GPTQ))
    _check(_read(tmp_path)["l.weight"], q, z, reals, [1, 32])
    (tmp_path / "quantize_config.json").write_text(json.dumps({**_GPTQ, "group_size": 64}))
    message = "'text_config.quantization_config' and 'quantize_config.json' contradict each other a"
    with pytest.raises(InputError, match=f"{message}bout group_size; leave the wrong one out"):
        _read(tmp_path)


@pytest.mark.parametrize("key", ["compression_config", "quantization"])
def test_other_keys_of_quantizations_are_refused(tmp_path: Path, key: str) -> None:
    _checkpoint(tmp_path, {"w": np.zeros(1)}, {key: {"bits": 4, "group_size": 64}})
    with pytest.raises(UnsupportedError, match=f"the key '{key}' says that weights are quantized"):
        _read(tmp_path)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_packed_weights_that_are_not_there(tmp_path: Path, method: str) -> None:
    config = {"quantization_config": _CONFIGS[method]}
    _checkpoint(tmp_path, {"l.weight": np.zeros((8, 4), np.uint32)}, config)
    message = f"that {method.upper()} packed the weights, and no tensor has the name of a qweight"
    with pytest.raises(InputError, match=message):
        _read(tmp_path)


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
    arrays, *_ = _layer(method, 9, 64, 8, 32)
    config = {"quantization_config": _CONFIGS[method]}
    further = {"l.bias": np.ones(8, np.float16), "ll.zzz": np.ones(3), "norm.weight": np.ones(3)}
    _checkpoint(tmp_path, arrays | further, config)
    assert set(_read(tmp_path)) == {"l.weight", *further}
    _checkpoint(tmp_path, arrays | {name: np.ones(64, np.int32)}, config)
    with pytest.raises(UnsupportedError, match=f"error: has the tensor '{name}', which subquant"):
        _read(tmp_path)


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
    qweight, qzeros = _packed("gptq", q, np.full((2, 16), stored), 0)
    arrays = {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": scales}
    config = {**_GPTQ, "sym": True, "checkpoint_format": form}
    if message is not None:
        with pytest.raises(InputError, match=f"error: layer 'l' has a {message}"):
            _packed_tensor(tmp_path, arrays, config)
        return
    tensor = _packed_tensor(tmp_path, arrays, config)
    expected = (q - 8).T * np.repeat(scales.T.astype(np.float64), 32, axis=1)
    np.testing.assert_array_equal(tensor.unpack().dequant(), expected.astype(np.float32))


def test_awq_without_zero_points_has_eights(tmp_path: Path) -> None:
    q = np.random.default_rng(9).integers(0, 16, (64, 16))
    config = {"quantization_config": {**_AWQ, "zero_point": False}}
    refusal = pytest.raises(InputError, match="a zero point of 7, and the configuration says symm")
    for zero, expected in ((8, nullcontext()), (7, refusal)):
        qweight, qzeros = _packed("awq", q, np.full((2, 16), zero), 0)
        scales = np.ones((2, 16), np.float16)
        arrays = {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": scales}
        _checkpoint(tmp_path, arrays, config)
        with expected:
            _read(tmp_path)


def test_an_order_of_inputs_needs_their_groups(tmp_path: Path) -> None:
    arrays, *_ = _layer("gptq", 9, 64, 8, 32)
    config = {"quantization_config": {**_GPTQ, "desc_act": True}}
    for further in ({}, {"l.g_idx": np.zeros(64, np.int32)}):
        _checkpoint(tmp_path, arrays | further, config)
        with pytest.raises(InputError, match="layer 'l' has no g_idx that says which group each"):
            _read(tmp_path)
    ascending = {"l.g_idx": np.repeat([0, 1], 32).astype(np.int32)}
    assert list(_read(_checkpoint(tmp_path, arrays | ascending, config))) == ["l.weight"]
