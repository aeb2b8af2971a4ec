"""Importance matrices of llama.cpp: both forms, as its programs write them, and damaged files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.errors import InputError
from subquant.formats.imatrix import read_imatrix, write_imatrix
from subquant.models.source import open_model

SUMS = {
    "blk.0.attn_q.weight": np.arange(8, dtype=np.float32) / 3,
    "blk.0.ffn_down.weight": np.arange(4, dtype=np.float32) + 7,
}


def write_gguf_form(path: Path, tensors: Mapping[str, np.ndarray], kind: str = "imatrix") -> Path:
    """Write the tensors as llama-imatrix does, by PyPI's ``gguf``."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_string("general.type", kind)
    writer.add_array("imatrix.datasets", ["book.txt"])
    writer.add_uint32("imatrix.chunk_count", 2)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(count: float = 1024) -> dict[str, np.ndarray]:
    tensors = {}
    for name, squares in SUMS.items():
        tensors[f"{name}.in_sum2"] = squares[None]
        tensors[f"{name}.counts"] = np.full((1, 1), count, np.float32)
    return tensors


def legacy_bytes(calls: int = 3, *, has_end: bool = True) -> bytes:
    data = struct.pack("<i", len(SUMS))
    for name, squares in SUMS.items():
        data += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), calls, squares.size)
        data += squares.tobytes()
    return data + (struct.pack("<ii8s", 12, 8, b"book.txt") if has_end else b"")


def test_the_gguf_form(tmp_path: Path) -> None:
    """Entries are the sums divided by their counts; sums of inputs are not used."""
    path = tmp_path / "imatrix.gguf"
    extra = {"blk.0.attn_q.weight.in_sum": np.ones((1, 8), np.float32)}
    matrix = read_imatrix(write_gguf_form(path, tensors_of() | extra))
    assert set(matrix.means) == set(SUMS)
    for name, squares in SUMS.items():
        np.testing.assert_array_equal(matrix.of(name, squares.size), squares / np.float32(1024))


def test_a_matrix_for_each_expert(tmp_path: Path) -> None:
    squares = np.arange(12, dtype=np.float32).reshape((3, 4))
    counts = np.array([[1], [2], [4]], np.float32)
    tensors = {"w.in_sum2": squares, "w.counts": counts}
    matrix = read_imatrix(write_gguf_form(tmp_path / "imatrix.gguf", tensors))
    np.testing.assert_array_equal(matrix.means["w"].reshape((3, 4)), squares / counts)
    with pytest.raises(InputError, match="has 12 values for 'w', expected 4, one for each input"):
        matrix.of("w", 4)


@pytest.mark.parametrize("has_end", [True, False])
def test_the_legacy_form(has_end: bool, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(legacy_bytes(has_end=has_end))
    matrix = read_imatrix(path)
    for name, squares in SUMS.items():
        np.testing.assert_array_equal(matrix.of(name, squares.size), squares / np.float32(3))


def test_a_written_matrix(tmp_path: Path) -> None:
    """PyPI's ``gguf`` reads the tensors and properties of llama-imatrix."""
    path = tmp_path / "imatrix.gguf"
    write_imatrix(path, SUMS, 1000, "book.txt", 512)
    reader = gguf.GGUFReader(path)
    properties = {key: field.contents() for key, field in reader.fields.items()}
    assert properties["general.type"] == "imatrix"
    assert properties["imatrix.datasets"] == ["book.txt"]
    assert (properties["imatrix.chunk_count"], properties["imatrix.chunk_size"]) == (2, 512)
    shapes = {tensor.name: list(tensor.shape) for tensor in reader.tensors}
    assert shapes == {
        "blk.0.attn_q.weight.in_sum2": [8, 1],
        "blk.0.attn_q.weight.counts": [1, 1],
        "blk.0.ffn_down.weight.in_sum2": [4, 1],
        "blk.0.ffn_down.weight.counts": [1, 1],
    }
    for name, means in SUMS.items():
        np.testing.assert_allclose(read_imatrix(path).of(name, means.size), means, rtol=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_matrix_of_a_model(architecture: str, tmp_path: Path) -> None:
    """An entry for each layer; queries, keys and values of block 0 read normalized embeddings."""
    model = TinyModel(architecture, tied=architecture == "gemma3", **SMALL).write(
        tmp_path / "model.gguf"
    )
    page, output = tmp_path / "page.txt", tmp_path / "matrix.gguf"
    page.write_text("the sea is blue and the sky is blue " * 20)
    printed = succeed("imatrix", model, "--text", page, "--tokens", "128", "-o", output)
    assert "wrote" in printed.stderr
    assert "(14 layers, 128 tokens)" in printed.stderr
    arrays = {
        tensor.name: np.asarray(tensor.data).reshape(tensor.shape[::-1])
        for tensor in gguf.GGUFReader(model).tensors
    }
    tokenizer = open_model(model).tokenizer()
    chunks = np.array(tokenizer.encode(page.read_text(), special=False)[:128]).reshape((2, 64))
    chunks[:, 0] = tokenizer.start_token
    states = arrays["token_embd.weight"][chunks.reshape(-1)].astype(np.float64)
    scale = np.sqrt(states.shape[1]) if architecture == "gemma3" else 1.0
    states *= scale
    states /= np.sqrt((states**2).mean(1, keepdims=True) + 1e-6)
    expected = ((states * arrays["blk.0.attn_norm.weight"]) ** 2).mean(0)
    matrix = read_imatrix(output)
    layers = {name for name, array in arrays.items() if name[:4] == "blk." and array.ndim == 2}
    assert set(matrix.means) == layers
    for name in ("attn_q", "attn_k", "attn_v"):
        np.testing.assert_allclose(matrix.of(f"blk.0.{name}.weight", 64), expected, rtol=1e-4)
    assert "must end in .gguf" in fail(2, "imatrix", model, "--text", page, "-o", "x.dat")
    assert "expected 4,096 at least" in fail(
        1, "imatrix", model, "--text", page, "--tokens", "4096", "-o", output
    )


def test_an_entry_that_is_missing_or_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(legacy_bytes())
    matrix = read_imatrix(path)
    with pytest.raises(InputError, match=r"has no entry for 'blk.1.attn_q.weight'.*blk.0.attn_q"):
        matrix.of("blk.1.attn_q.weight", 8)
    with pytest.raises(InputError, match=r"has 8 values for 'blk.0.attn_q.weight', expected 16"):
        matrix.of("blk.0.attn_q.weight", 16)


def test_damaged_gguf_forms(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"

    def error(tensors: Mapping[str, np.ndarray], kind: str = "imatrix") -> str:
        path.unlink(missing_ok=True)
        with pytest.raises(InputError) as caught:
            read_imatrix(write_gguf_form(path, tensors, kind))
        return str(caught.value)

    name = "blk.0.attn_q.weight"
    assert "has the general.type 'model', expected 'imatrix'" in error(tensors_of(), "model")
    assert "counts 0 inputs, expected 1 or more" in error(tensors_of(0))
    assert "has no entries" in error({"other": np.ones(3, np.float32)})
    for suffix in ("in_sum2", "counts"):
        tensors = tensors_of()
        del tensors[f"{name}.{suffix}"]
        assert f"entry '{name}' has no tensor '{name}.{suffix}'" in error(tensors)
    wrong = {f"{name}.in_sum2": np.ones((1, 8), np.float16)}
    assert "float16[1, 8]" in error(tensors_of() | wrong)
    negative = {f"{name}.in_sum2": np.full((1, 8), -1, np.float32)}
    assert "a mean square below 0, infinite or NaN" in error(tensors_of() | negative)
    nan = {f"{name}.in_sum2": np.full((1, 8), np.nan, np.float32)}
    assert "a mean square below 0, infinite or NaN" in error(tensors_of() | nan)


def test_damaged_legacy_forms(tmp_path: Path) -> None:
    """Each file that is cut gives an error, or is whole without its end."""
    path = tmp_path / "imatrix.dat"
    whole, end = legacy_bytes(), len(legacy_bytes(has_end=False))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size in (end, end + 4):
            assert set(read_imatrix(path).means) == set(SUMS)
            continue
        with pytest.raises(InputError, match=r"ends within|has no entries"):
            read_imatrix(path)
    for data, message in {
        legacy_bytes(0): "has 0 for the calls of entry 'blk.0.attn_q.weight', expected 1 or more",
        struct.pack("<i", 0): "has 0 for the number of entries",
        struct.pack("<ii", 1, -5): "has -5 for the length of the name of entry 0",
        struct.pack("<ii2s", 1, 2, b"\xff\xff"): "has the name of entry 0 that is not UTF-8",
        whole + b"more": "has 4 bytes after its end",
        b"a text, which is no importance matrix": "ends within",
    }.items():
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_imatrix(path)
    with pytest.raises(InputError, match="cannot read"):
        read_imatrix(tmp_path / "missing.dat")
