"""GGUF models in several files: written by PyPI's ``gguf``, read from any part, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from command_line import fail, succeed
from gguf_models import write_file
from subquant.errors import InputError
from subquant.formats.gguf import read_gguf, read_gguf_file
from subquant.formats.irpa import Archive
from subquant.weights.sources import default_output, open_weights

ARRAYS = {f"t{number}": np.full((2, 3), number, np.float32) for number in range(5)}
KEYS = ("split.no", "split.count", "split.tensors.count")


def write_parts(folder: Path, tensors_per_part: int = 2) -> list[Path]:
    """Write the arrays as a model in parts."""
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_per_part)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, array in ARRAYS.items():
        writer.add_tensor(name, array)
    write_file(writer)
    return sorted(folder.glob("*.gguf"))


def write_part(path: Path, properties: dict[str, int | str], arrays: dict[str, np.ndarray]) -> None:
    """Write one file with properties and tensors of one's own choice."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in properties.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    write_file(writer)


def test_a_model_is_whole_from_any_of_its_parts(tmp_path: Path) -> None:
    files = write_parts(tmp_path)
    assert [part.name for part in files] == [
        f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)
    ]
    for part in files:
        properties, tensors = read_gguf(part)
        assert properties == {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
        assert list(tensors) == list(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(tensors[name].arrays[name], array)
    assert list(read_gguf_file(files[1])[1]) == ["t2", "t3"]
    assert len(open_weights(files[2], lists=False).theta) == 5


def test_commands_read_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_parts(tmp_path)
    monkeypatch.chdir(tmp_path)
    succeed("import", files[0])
    succeed("quantize", files[0], "--block-size", "3")
    assert sorted(set(Archive("model.irpa")) & set(ARRAYS)) == list(ARRAYS)
    assert default_output(files[0], "-q8.irpa") == "model-q8.irpa"
    assert {f"{name}:qs" for name in ARRAYS} <= set(Archive("model-q8.irpa"))
    result = succeed("inspect", files[1])
    assert all(name in result.output for name in ARRAYS)
    files[1].unlink()
    for command in ("import", "quantize", "inspect"):
        error = fail(1, command, files[0])
        assert "error: is part 1 of 3 of a model, and part 2 is not there: '" in error
    for command in (["generate", "--prompt", "x"], ["perplexity", "--text", "-"]):
        error = fail(1, *command, "--model", files[0], stdin="some text")
        assert "and part 2 is not there" in error


def test_parts_are_found_by_their_names(tmp_path: Path) -> None:
    first, *_ = write_parts(tmp_path)
    renamed = first.rename(tmp_path / "first.gguf")
    with pytest.raises(InputError, match=r"names that end in -00001-of-00003\.gguf; name the"):
        read_gguf(renamed)
    renamed = renamed.rename(tmp_path / "model-00002-of-00004.gguf")
    with pytest.raises(InputError, match=r"is part 1 of 3 of a model, and the other parts"):
        read_gguf(renamed)


@pytest.mark.parametrize(
    ("properties", "arrays", "message"),
    [
        ({"split.no": 0}, {}, "property 'split.no' is 0, expected 1 as the other parts say"),
        ({"split.count": 3}, {}, "property 'split.count' is 3, expected 2 as the other parts say"),
        ({"split.tensors.count": 3}, {}, "property 'split.tensors.count' is 3, expected 2"),
        ({"split.no": 2}, {}, "property 'split.no' is 2, expected less than the split.count of 2"),
        ({"split.no": "1"}, {}, "property 'split.no' is '1', expected an integer of at least 0"),
        ({"llama.block_count": 1}, {}, "property 'llama.block_count' is 1, and the first part '"),
        ({"general.name": "b"}, {}, "property 'general.name' is 'b', and the first part '"),
        ({}, {"a": np.ones(3, np.float32)}, "tensor 'a' is in another part, too"),
        ({}, {"c": np.ones(3, np.float32)}, "the model has 3 tensors in 2 parts, expected 2 by"),
    ],
)
def test_parts_that_do_not_fit_each_other(
    properties: dict[str, int | str], arrays: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    numbers = dict(zip(KEYS, (0, 2, 2), strict=True))
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    write_part(first, {**numbers, "general.name": "a"}, {"a": np.ones(3, np.float32)})
    write_part(
        second,
        {**numbers, "split.no": 1, "general.name": "a", **properties},
        {"b": np.ones(3, np.float32), **arrays},
    )
    with pytest.raises(InputError, match=re.escape(message)):
        read_gguf(first)


@pytest.mark.parametrize("missing", KEYS)
def test_a_part_says_all_three_numbers(missing: str, tmp_path: Path) -> None:
    numbers = dict(zip(KEYS, (0, 1, 1), strict=True))
    write_part(tmp_path / "m.gguf", numbers, {"a": np.ones(3, np.float32)})
    assert list(read_gguf(tmp_path / "m.gguf")[1]) == ["a"]  # the only part is the model
    del numbers[missing]
    write_part(tmp_path / "m.gguf", numbers, {"a": np.ones(3, np.float32)})
    with pytest.raises(InputError, match=f"property '{re.escape(missing)}' is missing, expected"):
        read_gguf(tmp_path / "m.gguf")
