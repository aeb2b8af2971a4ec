"""Checkpoints of Hugging Face: configurations, shards and indices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from packed_checkpoints import (
    CONFIG,
    checkpoint,
    read,
    refuse,
)
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.huggingface import read_huggingface
from subquant.layouts import (
    PrimitiveTensor,
)


def test_a_folder_gives_properties_and_arrays(tmp_path: Path) -> None:
    arrays = {
        "model.embed.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.norm.weight": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    properties, tensors = read_huggingface(checkpoint(tmp_path, arrays))
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
    checkpoint(tmp_path, arrays, name="diffusion.safetensors")
    properties, tensors = read_huggingface(tmp_path / "diffusion.safetensors")
    assert properties["hparams"]["hidden_size"] == 64
    assert list(tensors) == ["w"]
    assert list(read(tmp_path)) == ["w"]  # the only file of the folder
    (tmp_path / "config.json").unlink()
    properties, _ = read_huggingface(tmp_path / "diffusion.safetensors")
    assert properties == {"meta": {}, "hparams": {}}
    refuse(tmp_path, InputError, r"cannot read '.*config.json': No such file")


def test_metadata_that_says_more_than_the_framework_is_a_property(tmp_path: Path) -> None:
    save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    assert read_huggingface(tmp_path)[0] == {"meta": {}, "hparams": {}}
    metadata = {"format": "pt", "w_type": "Int4"}
    save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors", metadata)
    result = read_huggingface(tmp_path)[0]
    assert result["metadata"] == {"model.safetensors": {"w_type": "Int4"}}


def shards(folder: Path) -> dict[str, Any]:
    """Three tensors in two files; returns the index, which is written."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({"b": np.ones(2, np.float16), "a": np.zeros(1, np.float32)}, folder / first)
    save_file({"c": np.full(3, 7, np.int32)}, folder / second)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    index: dict[str, Any] = {
        "metadata": {"total_size": 20},
        "weight_map": {"a": first, "b": first, "c": second},
    }
    write_index(folder, index)
    return index


def write_index(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_in_the_order_of_the_index(tmp_path: Path) -> None:
    shards(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        tensors = read(path)
        assert list(tensors) == ["a", "b", "c"]
        assert isinstance(tensors["c"], PrimitiveTensor)
        np.testing.assert_array_equal(tensors["c"].array, [7, 7, 7])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"d": "model-00002-of-00002.safetensors"}, "tensor 'd' is not in 'model-00002-of"),
        ({"c": "model-00001-of-00002.safetensors"}, "tensor 'c' is not in 'model-00001-of"),
        ({"c": None}, "the index has no tensor of 'model-00002-of-00002.safetensors', a shard"),
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
    index = shards(tmp_path)
    index["weight_map"] |= change
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v is not None}
    write_index(tmp_path, index)
    refuse(tmp_path, InputError, expected)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    first, _, second = shards(tmp_path)["weight_map"].values()
    save_file({"c": np.full(3, 7, np.int32), "a": np.zeros(1, np.float32)}, tmp_path / second)
    message = f"'{second}' holds the tensor 'a', and the index says to be in '{first}'"
    refuse(tmp_path, InputError, message)


def test_a_configuration_may_have_a_mark_and_any_characters(tmp_path: Path) -> None:
    checkpoint(tmp_path, {"w": np.zeros(1)})
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
    shards(tmp_path)
    (tmp_path / file).write_bytes(text.encode() if isinstance(text, str) else text)
    refuse(tmp_path, InputError, expected, file)


def test_folders_without_one_model_are_errors(tmp_path: Path) -> None:
    refuse(tmp_path, InputError, r"holds no weights, expected model.safetensors or model")
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": np.zeros(1)}, tmp_path / name)
    refuse(tmp_path, InputError, r"holds 2 files \*.safetensors, the first 'a.safeten")
    refuse(tmp_path / "missing", InputError, r"cannot read '.*missing': No such file")
    os.mkfifo(tmp_path / "config.json")
    refuse(
        tmp_path / "a.safetensors", InputError, r"cannot read '.*config.json': not a regular file"
    )


def test_files_that_need_another_step_are_errors_that_name_it(tmp_path: Path) -> None:
    for name, advice in (("model.gguf", "give the file"), ("pytorch_model.bin", "write safet")):
        (tmp_path / name).touch()
        refuse(tmp_path, InputError, f"holds '{name}', expected model.safetensors or .*; {advice}")
        (tmp_path / name).unlink()
    checkpoint(tmp_path, {"w": np.zeros(1)})
    for name, problem in (("adapter_config", "an adapter"), ("hf_quant_config", "ModelOpt quant")):
        (tmp_path / f"{name}.json").write_text("{}")
        refuse(tmp_path, UnsupportedError, problem, f"{name}.json")
        (tmp_path / f"{name}.json").unlink()


@given(at=st.integers(0, 10**6), inserted=st.binary(max_size=4), removed=st.integers(0, 9))
def test_a_damaged_index_or_configuration_is_an_error_or_read(
    tmp_path_factory: pytest.TempPathFactory, at: int, inserted: bytes, removed: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    shards(folder)
    for name in ("config.json", "model.safetensors.index.json"):
        data = (folder / name).read_bytes()
        position = at % len(data)
        (folder / name).write_bytes(data[:position] + inserted + data[position + removed :])
        try:
            tensors = read(folder)
        except SubquantError:
            tensors = {}
        assert tensors.keys() <= {"a", "b", "c"}
        (folder / name).write_bytes(data)


def test_a_shard_without_the_others_is_refused(tmp_path: Path) -> None:
    shards(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    message = r"00002\.safetensors: error: is shard 2 of 2, which is not a whole model; give"
    refuse(second, InputError, message)
    (tmp_path / "model.safetensors.index.json").unlink()
    first.unlink()
    refuse(tmp_path, InputError, message)  # the only file of the folder
    second.rename(tmp_path / "model-00001-of-00001.safetensors")
    assert list(read(tmp_path)) == ["c"]


def test_a_file_beside_an_index_of_others_is_ambiguous(tmp_path: Path) -> None:
    index = shards(tmp_path)
    save_file({"a": np.ones(2, np.float16)}, tmp_path / "model.safetensors")
    refuse(tmp_path, InputError, r"holds model\.safetensors, and .* that names other file")
    assert list(read(tmp_path / "model.safetensors")) == ["a"]
    index["weight_map"] = {"a": "model.safetensors"}
    write_index(tmp_path, index)
    assert list(read(tmp_path)) == ["a"]


def test_a_key_of_an_index_that_is_not_known_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {**shards(tmp_path), "tied": {"a": "b"}})
    refuse(tmp_path, UnsupportedError, "error: the index has the key 'tied', which subq")
