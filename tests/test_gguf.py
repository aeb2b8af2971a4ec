"""GGUF files: what PyPI's ``gguf`` writes and reads, files made by hand, and a real model."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import (
    PROPERTIES,
    aligned,
    array_property,
    header,
    info,
    one_tensor,
    pair,
    read,
    two_tensors,
    use,
    without_vocabulary,
    write_sample,
)
from subquant.errors import UnsupportedError
from subquant.formats.gguf import read_gguf
from subquant.layouts import GgmlTensor, PrimitiveTensor, QuantizedTensor
from subquant.layouts.ggml import BLOCK_TYPES, PRIMITIVE_TYPES
from subquant.weights import Dataset, Theta

ROOT = Path(__file__).parent.parent


def test_every_type(tmp_path: Path) -> None:
    path = tmp_path / "sample.gguf"
    arrays = write_sample(path)
    properties, tensors = read_gguf(path)
    assert properties == PROPERTIES
    assert [type(properties[key]) for key in PROPERTIES] == [type(v) for v in PROPERTIES.values()]
    assert read_gguf(path, lists=False)[0] == without_vocabulary(PROPERTIES)
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        tensor = tensors[name]
        assert tensor.name == name
        if isinstance(tensor, PrimitiveTensor):
            assert tensor.array.dtype == array.dtype
            np.testing.assert_array_equal(tensor.array, array)
            assert tensor.shape == array.shape
            continue
        assert isinstance(tensor, GgmlTensor)
        assert (tensor.ggml_type, tensor.shape) == (name, (3, 2 * BLOCK_TYPES[name].size))
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(array, gguf.GGMLQuantizationType[name])
            np.testing.assert_array_equal(tensor.unpack().dequant(), expected)


def test_the_reference_reader_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sample.gguf"
    write_sample(path)
    tensors = read_gguf(path)[1]
    for other in gguf.GGUFReader(path).tensors:
        assert tensors[other.name].shape == tuple(int(n) for n in other.shape[::-1])
        if other.name in BLOCK_TYPES:
            np.testing.assert_array_equal(tensors[other.name].raw, other.data.reshape(-1))
        elif other.name != "bf16":
            np.testing.assert_array_equal(tensors[other.name].array, other.data)


def test_tensors_stay_in_the_file(tmp_path: Path) -> None:
    """A tensor of 64 MB costs nothing until it is used, and cannot be written to."""
    path = tmp_path / "large.gguf"
    path.write_bytes(one_tensor((2**20, 16), 0, 2**26))
    tracemalloc.start()
    tensor = read_gguf(path)[1]["w"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tensor.size_in_bytes == 2**26
    assert peak < 2**17
    with pytest.raises(ValueError, match="read-only"):
        tensor.array[0, 0] = 1


def test_a_data_set_of_planes(tmp_path: Path) -> None:
    """The tensors of a file go into an archive and come back with the same values."""
    write_sample(tmp_path / "sample.gguf")
    properties, tensors = read_gguf(tmp_path / "sample.gguf")
    Dataset(properties, Theta(tensors)).save(tmp_path / "sample.irpa")
    loaded = Dataset.load(tmp_path / "sample.irpa")
    assert loaded.properties == properties
    with np.errstate(all="ignore"):
        for name, tensor in tensors.items():
            repeated = loaded.theta.tensor(name)
            if isinstance(tensor, QuantizedTensor):
                assert isinstance(repeated, QuantizedTensor)
                got, expected = repeated.unpack().dequant(), tensor.unpack().dequant()
            else:
                got, expected = repeated.array, tensor.array
            np.testing.assert_array_equal(got, expected)


VALID: dict[str, tuple[bytes, int, int]] = {
    "nothing": (header(), 0, 0),
    "the longest name": (header(0, 1) + pair("k" * 65535, 0, b"1"), 1, 0),
    "the least properties": (header(0, 2) + pair("a", 0, b"1") + pair("b", 0, b"2"), 2, 0),
    "version 2": (header(version=2), 0, 0),
    "one number": (one_tensor((), 0, 4), 0, 1),
    "tensors in another order": (two_tensors(32, 0, 96), 0, 2),
    "a gap": (two_tensors(0, 128, 160), 0, 2),
    "an empty array": (array_property(8, 0), 1, 0),
    "bytes after the end": (one_tensor((2,), 0, 99), 0, 1),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_files(name: str, tmp_path: Path) -> None:
    data, properties, tensors = VALID[name]
    got = read(tmp_path, data)
    assert (len(got[0]), len(got[1])) == (properties, tensors)
    use(got[1])


def test_alignment_is_of_the_data_too(tmp_path: Path) -> None:
    assert read(tmp_path, aligned(struct.pack("<I", 256)))[1]["w"].array.tolist() == [1, 2]


def test_an_alignment_of_one(tmp_path: Path) -> None:
    """Arrays may then lie at odd addresses."""
    data = header(1, 1) + pair("general.alignment", 4, struct.pack("<I", 1)) + info("w", (2,), 0)
    assert len(data) % 4
    array = read(tmp_path, data + struct.pack("<2f", 1, 2))[1]["w"].array
    assert (array + array).tolist() == [2, 4]


@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_types_have_the_names_that_ggml_gives_them(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    data = one_tensor((256,), kind.value, 8 * 256)
    if kind.name not in PRIMITIVE_TYPES and kind.name not in BLOCK_TYPES:
        with pytest.raises(UnsupportedError, match=f"of the GGML type {kind.name}, which has no"):
            read(tmp_path, data)
        return
    tensor = read(tmp_path, data)[1]["w"]
    if isinstance(tensor, GgmlTensor):
        assert tensor.ggml_type == kind.name
    else:
        assert isinstance(tensor, PrimitiveTensor)
        assert tensor.array.dtype == PRIMITIVE_TYPES[kind.name]


def benchmark(path: Path) -> dict[str, Any]:
    """Return the benchmark's report of a file."""
    command = [sys.executable, str(ROOT / "scripts/benchmark_gguf.py"), str(path), "--json"]
    result = subprocess.run(command, capture_output=True, check=True)
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_benchmark_reports_numbers(tmp_path: Path) -> None:
    write_sample(tmp_path / "sample.gguf")
    report = benchmark(tmp_path / "sample.gguf")
    assert report["tensors"] == len(PRIMITIVE_TYPES) + len(BLOCK_TYPES)
    assert report["read_seconds"] > 0
    assert report["peak_megabytes"] > 1


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_gemma_is_imported_in_a_gigabyte(gemma: Path) -> None:
    """Planes of all tensors into an archive; the benchmark says in how much time."""
    report = benchmark(gemma)
    assert report["tensors"] == 236
    assert report["peak_megabytes"] < 1000


def test_gemma_equals_gguf_in_every_element(gemma: Path) -> None:
    tensors = read_gguf(gemma)[1]
    rest = {tensor.name: tensor for tensor in gguf.GGUFReader(gemma).tensors}
    assert tensors.keys() == rest.keys()
    for name, tensor in tensors.items():
        other = rest[name]
        if isinstance(tensor, PrimitiveTensor):
            np.testing.assert_array_equal(tensor.array, other.data)
            continue
        assert isinstance(tensor, GgmlTensor)
        for start in range(0, tensor.shape[0], 8192):
            got = tensor.rows(start, start + 8192).unpack().dequant()
            expected = gguf.dequantize(other.data[start : start + 8192], other.tensor_type)
            assert (got.view(np.uint32) == expected.view(np.uint32)).all(), name
