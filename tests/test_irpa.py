"""IREE parameter archives: by hand, beside IREE's own reader and writer, and written."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import iree.runtime
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices import ON_DEVICES, compile_for
from irpa_archives import (
    PYTORCH,
    STORAGE,
    archive,
    data_entry,
    described,
    read,
    splat_entry,
)
from subquant.errors import InputError, UnsupportedError
from subquant.formats.irpa import DTYPES, Archive, Splat, check_mountable
from subquant.formats.irpa_writer import ArchiveWriter, create_archive
from subquant.layouts import PrimitiveTensor
from subquant.runtime import Device
from subquant.weights import Dataset, Theta


def test_an_archive_made_by_hand(tmp_path: Path) -> None:
    actual = read(archive(data_entry(), data_entry(20, 3, 1, (0, 0))), tmp_path)
    assert list(actual) == ["a", "b"]
    assert actual.headers == 1
    assert actual["a"].metadata == PYTORCH
    expected = np.frombuffer(STORAGE[:12], "<i2").reshape(2, 3)
    np.testing.assert_array_equal(actual["a"].array(), expected, strict=True)
    assert actual["b"].content() == b"\x14\x15\x16"
    assert actual["b"].array().tolist() == [20, 21, 22]


def test_skipped_entries_and_entries_of_newer_writers(tmp_path: Path) -> None:
    skipped = struct.pack("<QIQQQQQQ", 60, 0, 0, 0, 10**9, 0, 10**9, 0)
    longer = struct.pack("<Q", 92) + data_entry()[8:] + bytes(16)
    assert list(read(archive(skipped, longer, data_entry(name=1)), tmp_path)) == ["a", "b"]


def test_shared_and_nested_data(tmp_path: Path) -> None:
    """Tied weights, and a part of a tensor."""
    entries = [data_entry(0, 12, number) for number in (0, 1)]
    entries += data_entry(4, 4, 2, (0, 0)), data_entry(12, 12, 3)
    actual = read(archive(*entries), tmp_path)
    np.testing.assert_array_equal(actual["a"].array(), actual["b"].array())
    assert actual["c"].content() == STORAGE[4:8]


def test_linked_archives(tmp_path: Path) -> None:
    first, second = archive(data_entry()), archive(data_entry(2, 12, 1))
    first += bytes(-len(first) % 16)
    linked = archive(data_entry(), following=len(first)).ljust(len(first), b"\0") + second
    actual = read(linked, tmp_path)
    assert actual.headers == 2
    assert actual["b"].content() == STORAGE[2:14]
    with pytest.raises(UnsupportedError, match=r"2 archives linked together.*subquant import"):
        check_mountable(actual.path)


@pytest.mark.parametrize(
    ("pattern", "dtype", "value"),
    [
        (b"\x00", "float32", 0),
        (b"\x00\x00\x80\x3f", "float32", 1),
        (b"\x80\x3f", "bfloat16", 1),
        (b"\x07\x07", "int8", 7),
        (bytes(4) + b"\x00\x00\xf0\x3f", "float64", 1),
        (bytes(4) + b"\x00\x00\xf0\x3f" + bytes(8), "complex128", 1),
    ],
)
def test_splats(pattern: bytes, dtype: str, value: float, tmp_path: Path) -> None:
    """Giant ones take no memory, and are written as they were read."""
    for rows in (2, 1 << 40):
        about = json.dumps({"type": "Tensor", "dtype": dtype, "shape": [rows, 3]})
        size = rows * 3 * DTYPES[dtype].itemsize
        array = read(described(splat_entry, size, pattern, metadata=about), tmp_path)["a"].array()
        assert isinstance(array, Splat)
        assert array.shape == (rows, 3)
        assert array[rows - 1, 2] == value
        write(tmp_path / "y.irpa", {"a": array, "b": array[:2] + array[:2]})
        assert (tmp_path / "y.irpa").stat().st_size == 4096
        repeated = Archive(tmp_path / "y.irpa")
        assert repeated["a"].pattern == array[0, 0].tobytes()
        assert repeated["a"].array().shape == (rows, 3)
        assert (repeated["b"].array() == 2 * value).all()


def test_a_splat_without_metadata_has_elements_of_its_pattern(tmp_path: Path) -> None:
    array = read(archive(splat_entry(12, b"\1\2\3\4")), tmp_path)["a"].array()
    assert array.tolist() == [0x04030201] * 3
    for size, dtype in ((1, "u1"), (2, "u2"), (8, "u8"), (16, "c16")):
        actual = read(archive(splat_entry(2 * size, bytes(range(size)))), tmp_path)["a"].array()
        assert (actual.dtype, actual.shape) == (np.dtype(dtype), (2,))
        assert actual.tobytes() == 2 * bytes(range(size))
    with pytest.raises(UnsupportedError, match="entry 'a' is a splat, not data"):
        read(archive(splat_entry(12, b"\1\2\3\4")), tmp_path)["a"].content()


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    created = {name: rng.integers(0, 9, (3, 5)).astype(dtype) for name, dtype in DTYPES.items()}
    created |= {
        "scalar": np.array(1.5, np.float32),
        "empty": np.zeros((4, 0), np.int8),
        "transposed": np.arange(12, dtype=np.int32).reshape(3, 4).T,
        "strided": np.arange(12, dtype=ml_dtypes.bfloat16)[::3],
        "größe/µ": np.ones(3, np.uint8),
        "": np.ones(1, np.uint8),
    }
    return created


def write(path: Path, arrays: Mapping[str, Any], **blobs: bytes) -> None:
    with create_archive(path) as writer:
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        for name, data in blobs.items():
            writer.add_blob(name, data)


def write_all_types(path: Path) -> dict[str, np.ndarray]:
    created = arrays()
    write(path, created, blob=b"plain bytes")
    return created


def test_what_is_written_is_read(tmp_path: Path) -> None:
    created = write_all_types(tmp_path / "x.irpa")
    actual = Archive(tmp_path / "x.irpa")
    assert list(actual) == [*created, "blob"]
    assert actual["blob"].content() == b"plain bytes"
    assert_same(actual, created)


def assert_same(archive: Archive, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        got = archive[name].array()
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == array.tobytes()
        assert not got.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_metadata_says_what_the_elements_are(dtype: str, tmp_path: Path) -> None:
    """The metadata equals sharktank's, which comes from torch's dtype."""
    write(tmp_path / "x.irpa", {"a": np.zeros((2, 3), DTYPES[dtype])})
    metadata = Archive(tmp_path / "x.irpa")["a"].metadata
    is_float = "float" in dtype
    assert json.loads(metadata.removeprefix(b"PYTORCH:")) == {
        "type": "Tensor",
        "dtype": dtype,
        "shape": [2, 3],
        "dtype_desc": {
            "class_name": "dtype",
            "is_complex": dtype.startswith("complex"),
            "is_floating_point": is_float,
            "is_signed": is_float or dtype.startswith(("int", "complex")),
            "itemsize": DTYPES[dtype].itemsize,
        },
    }


def read_by_iree(path: Path) -> dict[str, Any]:
    index = iree.runtime.ParameterIndex()
    index.load(str(path))
    return dict(index.items())


def test_iree_reads_what_we_write(tmp_path: Path) -> None:
    created = write_all_types(tmp_path / "x.irpa")
    entries = read_by_iree(tmp_path / "x.irpa")
    assert set(entries) == {*created, "blob"}
    ours = Archive(tmp_path / "x.irpa")
    for name, array in created.items():
        entry = entries[name]
        assert entry.length == array.nbytes
        assert entry.metadata == ours[name].metadata
        assert np.asarray(entry.file_view).tobytes() == array.tobytes()
        if array.nbytes:
            assert np.asarray(entry.file_view).ctypes.data % 64 == 0


def test_iree_dump_parameters_reads_what_we_write(tmp_path: Path) -> None:
    created = write_all_types(tmp_path / "x.irpa")
    tool = Path(sys.executable).parent / "iree-dump-parameters"
    command = [str(tool), f"--parameters={tmp_path / 'x.irpa'}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    total = sum(array.nbytes for array in created.values()) + len("plain bytes")
    assert f"{len(created) + 1} entries, {total} total bytes" in shown
    assert f"{created['float32'].nbytes} | `float32`" in shown


def test_we_read_what_iree_writes(tmp_path: Path) -> None:
    index = iree.runtime.ParameterIndex()
    index.add_buffer("x", np.arange(6, dtype=np.int16).view(np.uint8), metadata=PYTORCH.decode())
    index.add_buffer("blob", b"123")
    index.add_splat("s", b"\x05\x00", 10)
    index.create_archive_file(str(tmp_path / "x.irpa"))
    actual = Archive(tmp_path / "x.irpa")
    assert set(actual) == {"x", "blob", "s"}
    assert actual["x"].array().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert actual["blob"].content() == b"123"
    assert actual["s"].array().tolist() == [5] * 5


PROGRAM = """
"util.global"() {
  sym_name = "w", sym_visibility = "private", type = tensor<4x3xf32>,
  initial_value = #flow.parameter.named<"model"::"layer.w"> : tensor<4x3xf32>
} : () -> ()
func.func @main(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %w = "util.global.load"() {global = @w} : () -> tensor<4x3xf32>
  %y = arith.addf %x, %w : tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}
"""


@ON_DEVICES
def test_iree_mounts_what_we_write(device: Device, tmp_path: Path) -> None:
    weights, file = np.arange(12, dtype=np.float32).reshape(3, 4).T, tmp_path / "w.irpa"
    write(file, {"other": np.ones(5, np.int8), "layer.w": weights})
    executable = compile_for(PROGRAM, device, parameters={"model": file})
    x = np.full((4, 3), 0.5, np.float32)
    np.testing.assert_array_equal(executable.main(x), x + weights)
    data = file.read_bytes()
    file.unlink()  # which stays mapped
    file.write_bytes(data[:200])
    with pytest.raises(InputError, match=r"w\.irpa: error: the archive .* may be truncated"):
        compile_for(PROGRAM, device, parameters={"model": file})


# -- writing --------------------------------------------------------------------------------------


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.irpa"

    def fail() -> None:
        with create_archive(path) as writer:
            writer.add_tensor("a", np.zeros(1000))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
    write_all_types(path)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


class _Recorded(io.BytesIO):
    """A file that records the position and the size of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        self.writes.append((self.tell(), len(data)))
        return super().write(data)


def test_large_pages_are_written_whole(tmp_path: Path) -> None:
    """Otherwise the pages of the file in memory are small."""
    page = 1 << 21
    sizes = [100, page - 300, page, 3 * page + 1, 7]
    created = {f"a{size}": np.arange(size, dtype=np.uint32).astype(np.uint8) for size in sizes}
    file = _Recorded()
    writer = ArchiveWriter(file)
    for name, array in created.items():
        writer.add_tensor(name, array)
    writer.finish()
    *pages, (last, _), (header, _) = file.writes
    assert all(at % page == size % page == 0 for at, size in pages)
    assert sum(size for _, size in pages) == last == 5 * page
    assert header == 0
    (tmp_path / "x.irpa").write_bytes(file.getvalue())
    assert_same(Archive(tmp_path / "x.irpa"), created)


def test_a_source_can_be_written_over_while_it_is_mapped(tmp_path: Path) -> None:
    created = write_all_types(tmp_path / "x.irpa")
    actual = Archive(tmp_path / "x.irpa")
    write(tmp_path / "x.irpa", {name: actual[name].array() for name in reversed(list(actual))})
    repeated = Archive(tmp_path / "x.irpa")
    assert list(repeated) == list(reversed(list(actual)))
    assert repeated["float64"].array().tobytes() == created["float64"].tobytes()


def test_shared_data_stays_shared(tmp_path: Path) -> None:
    """Tied weights; and a file cannot say that a million tensors have the same megabyte."""
    read(archive(data_entry(0, 12), data_entry(0, 12, 1), data_entry(12, 12, 2)), tmp_path)
    source = Archive(tmp_path / "x.irpa")
    with create_archive(tmp_path / "y.irpa") as writer:
        for entry in source.values():
            writer.add_tensor(entry.name, entry.array())
        for number in range(3):  # of the same address, maybe, but not the same
            writer.add_tensor(f"n{number}", np.full(6, number, np.int16))
    entries = read_by_iree(tmp_path / "y.irpa")
    positions = {name: np.asarray(entry.file_view).ctypes.data for name, entry in entries.items()}
    assert positions["a"] == positions["b"]
    assert len(set(positions.values())) == 5
    written = Archive(tmp_path / "y.irpa")
    for name, entry in source.items():
        np.testing.assert_array_equal(written[name].array(), entry.array(), strict=True)
    assert [written[f"n{n}"].array()[0] for n in range(3)] == [0, 1, 2]


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs Linux's /dev/full")
    (tmp_path / "full.irpa").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot write '.*full\.irpa': No space left on device"):
        Dataset({}, Theta([PrimitiveTensor(np.zeros(10**6), "a")])).save(tmp_path / "full.irpa")


@st.composite
def any_arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(data, np.uint8).view(dtype).reshape(shape)


NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(arrays=st.dictionaries(NAME, any_arrays(), max_size=6))
def test_any_arrays_under_any_names(arrays: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.irpa"
        write(path, arrays)
        check_mountable(path)
        actual = Archive(path)
        assert list(actual) == list(arrays)
        assert_same(actual, arrays)
        assert {name: entry.length for name, entry in read_by_iree(path).items()} == {
            name: array.nbytes for name, array in arrays.items()
        }


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("taken", np.zeros(2), "two entries of the archive would be named 'taken'"),
        ("\ud800", np.zeros(2), "cannot be written as UTF-8"),
        ("n" * 65537, np.zeros(2), "has more than 65536 bytes"),
        ("i4", np.zeros(2, ml_dtypes.int4), "'i4' has elements of int4, which archives do not"),
        ("big", np.zeros(2, ">f4"), "'big' has elements of >f4"),
        ("text", np.array(["x"]), "'text' has elements of <U1"),
    ],
)
def test_what_cannot_be_written(name: str, array: np.ndarray, message: str, tmp_path: Path) -> None:
    def save() -> None:
        with create_archive(tmp_path / "x.irpa") as writer:
            writer.add_blob("taken", b"")
            writer.add_tensor(name, array)

    with pytest.raises(InputError, match=message):
        save()
    assert list(tmp_path.iterdir()) == []
