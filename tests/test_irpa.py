"""IREE parameter archives: beside IREE's own reader and writer, and malformed in every way."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import iree.runtime
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices import ON_DEVICES, compile_for
from subquant.commands.tables import render_weights
from subquant.core.strict_json import parse_json
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.irpa import DTYPES, Archive, Splat, check_mountable
from subquant.formats.irpa_writer import create_archive
from subquant.layouts import PrimitiveTensor
from subquant.runtime import Device
from subquant.weights import Dataset, Theta
from subquant.weights.inspection import property_lines, to_json

# -- archives made by hand -------------------------------------------------------------------------

HEADER = "<4sHHQQQQQQQQQQ"
NAMES = b"abcdefgh"
PYTORCH = b'PYTORCH:{"type": "Tensor", "dtype": "int16", "shape": [2, 3]}'
METADATA = NAMES + PYTORCH
STORAGE = bytes(range(64))


def data_entry(
    offset: int = 0, length: int = 12, name: int = 0, metadata: tuple[int, int] = (8, len(PYTORCH)),
    name_length: int = 1,
) -> bytes:  # fmt: skip
    sizes = name, name_length, *metadata, 64, offset, length
    return struct.pack("<QIQQQQQQQQ", 76, 2, 0, *sizes)


def splat_entry(
    length: int, pattern: bytes, size: int | None = None, metadata: tuple[int, int] = (0, 0)
) -> bytes:
    size = len(pattern) if size is None else size
    return struct.pack("<QIQQQQQQQ16sB", 85, 1, 0, 0, 1, *metadata, 0, length, pattern, size)


def archive(
    *entries: bytes, count: int | None = None, magic: bytes = b"IRPA",
    version: tuple[int, int] = (0, 0), size: int = 88, following: int = 0,
    metadata: bytes = METADATA, segments: dict[str, tuple[int, int]] | None = None,
) -> bytes:  # fmt: skip
    """Return an archive with its tables first, as IREE writes it, or with a chosen error."""
    table = b"".join(entry + bytes(-len(entry) % 16) for entry in entries)
    at = 96 + len(table)
    storage = -(-(at + len(metadata)) // 64) * 64
    ranges = {
        "entries": (96, len(table)),
        "metadata": (at, len(metadata)),
        "storage": (storage, len(STORAGE)),
    } | (segments or {})
    header = struct.pack(
        HEADER, magic, *version, size, following, 0, len(entries) if count is None else count,
        *ranges["entries"], *ranges["metadata"], *ranges["storage"],
    )  # fmt: skip
    content = header + bytes(8) + table + metadata
    return content + bytes(storage - len(content)) + STORAGE


def read(data: bytes, folder: Path) -> Archive:
    path = folder / "x.irpa"
    path.write_bytes(data)
    return Archive(path)


def described(entry: Callable[..., bytes], *arguments: Any, metadata: str) -> bytes:
    """An archive of an entry with metadata of PyTorch."""
    blob = b"PYTORCH:" + metadata.encode()
    return archive(entry(*arguments, metadata=(8, len(blob))), metadata=NAMES + blob)


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
        with create_archive(tmp_path / "y.irpa") as writer:
            writer.add_tensor("a", array)
            writer.add_tensor("b", array[:2] + array[:2])
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


# -- beside IREE ----------------------------------------------------------------------------------


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


def write(path: Path) -> dict[str, np.ndarray]:
    created = arrays()
    with create_archive(path) as writer:
        for name, array in created.items():
            writer.add_tensor(name, array)
        writer.add_blob("blob", b"plain bytes")
    return created


def test_what_is_written_is_read(tmp_path: Path) -> None:
    created = write(tmp_path / "x.irpa")
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
    with create_archive(tmp_path / "x.irpa") as writer:
        writer.add_tensor("a", np.zeros((2, 3), DTYPES[dtype]))
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


def test_iree_reads_what_we_write(tmp_path: Path) -> None:
    created = write(tmp_path / "x.irpa")
    index = iree.runtime.ParameterIndex()
    index.load(str(tmp_path / "x.irpa"))
    entries = dict(index.items())
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
    created = write(tmp_path / "x.irpa")
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
    with create_archive(file) as writer:
        writer.add_tensor("other", np.ones(5, np.int8))
        writer.add_tensor("layer.w", weights)
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
    write(path)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_source_can_be_written_over_while_it_is_mapped(tmp_path: Path) -> None:
    created = write(tmp_path / "x.irpa")
    actual = Archive(tmp_path / "x.irpa")
    with create_archive(tmp_path / "x.irpa") as writer:
        for name in reversed(list(actual)):
            writer.add_tensor(name, actual[name].array())
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
    index = iree.runtime.ParameterIndex()
    index.load(str(tmp_path / "y.irpa"))
    positions = {
        name: np.asarray(entry.file_view).ctypes.data for name, entry in dict(index.items()).items()
    }
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
        with create_archive(path) as writer:
            for name, array in arrays.items():
                writer.add_tensor(name, array)
        check_mountable(path)
        actual = Archive(path)
        assert list(actual) == list(arrays)
        assert_same(actual, arrays)
        index = iree.runtime.ParameterIndex()
        index.load(str(path))
        assert {name: entry.length for name, entry in index.items()} == {
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


# -- malformed files ------------------------------------------------------------------------------

HUGE = 2**64 - 8
WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has a header at 0, and only 0 bytes"),
    "short": (archive(data_entry())[:87], "has a header at 0, and only 87 bytes"),
    "magic": (archive(magic=b"GGUF"), "a header that starts with b'GGUF', expected b'IRPA'"),
    "header size": (archive(size=96), "a header of 96 bytes, expected 88"),
    "truncated": (archive(data_entry())[:-1], "has its storage at .* it may be truncated"),
    "entries beyond": (archive(segments={"entries": (96, 10**6)}), "has its entries at 96 to"),
    "entries wrap": (archive(segments={"entries": (HUGE, 32)}), "has its entries at 18446744"),
    "metadata wrap": (archive(segments={"metadata": (32, HUGE)}), "has its metadata at 32 to"),
    "storage wrap": (archive(segments={"storage": (HUGE, HUGE)}), "has its storage at"),
    "count": (archive(data_entry(), count=2), "says that it has 2 entries, and has room for 1"),
    "giant count": (archive(data_entry(), count=HUGE), "has 18446744073709551608 entries, more"),
    "entry size 0": (archive(bytes(80)), "has an entry 0 of 0 bytes at 96"),
    "entry size": (archive(struct.pack("<Q", HUGE) + data_entry()[8:]), "an entry 0 of 184467"),
    "small entry": (archive(struct.pack("<Q", 60) + data_entry()[8:]), "too small for its type"),
    "type": (archive(data_entry()[:8] + b"\7" + data_entry()[9:]), "'a' of the unknown type 7"),
    "data offset": (archive(data_entry(60)), "has the data of 'a' at 60 to 72 of a segment of 64"),
    "data wrap": (archive(data_entry(HUGE)), "has the data of 'a' at 18446744073709551608 to"),
    "data size": (archive(data_entry(0, HUGE)), "has the data of 'a' at 0 to 1844674407370955160"),
    "name offset": (archive(data_entry(name=900)), "has the name of entry 0 at 900 to 901 of"),
    "metadata offset": (archive(data_entry(metadata=(8, 99))), "has the metadata of 'a' at 8 to"),
    "not UTF-8": (archive(data_entry(), metadata=b"\xff" * 99), "has a name that is not UTF-8"),
    "two names": (archive(data_entry(), data_entry(12)), "has two entries named 'a'"),
    "overlap": (archive(data_entry(0), data_entry(6, name=1)), "which overlaps"),
    "data in header": (
        archive(data_entry(), segments={"storage": (80, 64)}),
        "has the range 80 to 92, which overlaps 0 to 88",
    ),
    "pattern of 3": (archive(splat_entry(12, b"123")), "a splat 'a' of 3 bytes, 12 bytes in all"),
    "pattern of 0": (archive(splat_entry(12, b"1", 0)), "a splat 'a' of 0 bytes"),
    "uneven splat": (archive(splat_entry(13, b"12")), "a splat 'a' of 2 bytes, 13 bytes in all"),
    "link to nothing": (archive(following=10**6), "has a header at 1000000, and only"),
    "link wraps": (archive(following=HUGE), "has a header at 18446744073709551608"),
}


@pytest.mark.parametrize("case", WRONG)
def test_malformed_archives(case: str, tmp_path: Path) -> None:
    data, message = WRONG[case]
    with pytest.raises(InputError, match=rf"x\.irpa: error: the archive .*{message}"):
        read(data, tmp_path)


def test_links_cannot_go_in_circles(tmp_path: Path) -> None:
    """Headers are linked forwards only, and all tables together are no larger than the file."""

    def link(count: int, table: tuple[int, int]) -> bytes:
        header = struct.pack(HEADER, b"IRPA", 0, 0, 88, 128, 0, count, *table, 0, 0, 0, 0)
        return header.ljust(128, b"\0")

    assert list(read(link(0, (0, 0)) * 1000 + archive(data_entry()), tmp_path)) == ["a"]
    skipped = struct.pack("<QIQQQQQQ", 60, 0, 0, 0, 0, 0, 0, 0).ljust(64, b"\0")
    many = link(900, (128 * 1000, 900 * 64)) * 1000 + skipped * 3000
    with pytest.raises(InputError, match=r"has 900 entries, more than its \d+ bytes hold"):
        read(many, tmp_path)


def test_names_and_metadata_that_overlap_are_bounded(tmp_path: Path) -> None:
    """A thousand names of all but the whole segment would be read as many megabytes."""
    text = b"n" * 30_000
    entries = [data_entry(0, 0, n, (0, 0), 20_000) for n in range(1000)]
    with pytest.raises(InputError, match=r"has two entries named|has names and metadata that over"):
        read(archive(*entries, metadata=text), tmp_path)
    letters = bytes(97 + n % 26 for n in range(30_000))
    with pytest.raises(InputError, match="has names and metadata that overlap"):
        read(archive(*entries[:26], metadata=letters), tmp_path)


@pytest.mark.parametrize("beyond", [0, 1])
def test_names_may_have_as_many_bytes_as_the_file(beyond: int, tmp_path: Path) -> None:
    letters = bytes(97 + n % 26 for n in range(4_000))

    def overlapping(first: int, second: int) -> bytes:
        entries = [data_entry(0, 0, n, (0, 0), size) for n, size in enumerate((first, second))]
        return archive(*entries, metadata=letters)

    size = len(overlapping(1, 1))
    data = overlapping(size // 2, size - size // 2 + beyond)
    refusal = pytest.raises(InputError, match="has names and metadata that overlap")
    with refusal if beyond else contextlib.nullcontext():
        assert len(read(data, tmp_path)) == 2


@pytest.mark.parametrize("version", [(1, 0), (0, 1)])
def test_other_versions(version: tuple[int, int], tmp_path: Path) -> None:
    message = "the archive is of version {}.{}; only 0.0 can be".format(*version)
    with pytest.raises(UnsupportedError, match=message):
        read(archive(data_entry(), version=version), tmp_path)


def test_data_in_another_file(tmp_path: Path) -> None:
    entry = data_entry()
    with pytest.raises(UnsupportedError, match="entry 'a' is in another file"):
        read(archive(entry[:8] + b"\3" + entry[9:]), tmp_path)


WRONG_METADATA = {
    "{": "the metadata of entry 'a' is not JSON: expecting",
    "[1]": "is not a tensor's: ",
    '{"type": "Module"}': "is not a tensor's: {'type': 'Module'}",
    '{"type": "Tensor", "dtype": "int16", "shape": 6}': "is not a tensor's",
    '{"type": "Tensor", "dtype": "int16", "shape": [2.0, 3]}': "is not a tensor's",
    '{"type": "Tensor", "dtype": "int16", "shape": [-2, -3]}': "is not a tensor's",
    '{"type": "Tensor", "dtype": "int16", "shape": [true, 6]}': "is not a tensor's",
    '{"type": "Tensor", "dtype": "uint4", "shape": [6]}': "the unknown dtype 'uint4'; expected one",
    '{"type": "Tensor", "dtype": "int16", "shape": [2, 4]}': "12 bytes, expected those of 2x4 int1",
    '{"type": "Tensor", "dtype": "int16", "shape": []}': "12 bytes, expected those of one int16",
    '{"type": "Tensor", "dtype": "int16", "shape": [4611686018427387904, 4, 0]}': "12 bytes, expec",
    '{"type": "Tensor", "dtype": "int16", "shape": [1' + ", 1" * 80 + ", 6]}": "12 bytes, expected",
}


@pytest.mark.parametrize("metadata", WRONG_METADATA)
def test_wrong_metadata(metadata: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=WRONG_METADATA[metadata]):
        read(described(data_entry, metadata=metadata), tmp_path)["a"].array()


def test_the_most_values_of_json() -> None:
    """They are counted before any is decoded."""
    with pytest.raises(InputError, match="the properties is not JSON: expecting value"):
        parse_json(b"," * 8_000_000, "the properties", "here")
    with pytest.raises(InputError, match="has 8000001 values, expected at most 8000000"):
        parse_json(b"," * 8_000_001, "the properties", "here")


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [2**62, 0, 2**62]])
def test_no_elements_of_a_giant_shape(shape: list[int], tmp_path: Path) -> None:
    about = json.dumps({"type": "Tensor", "dtype": "int16", "shape": shape})
    with pytest.raises(InputError, match="has 0 bytes, expected those of"):
        read(described(data_entry, 0, 0, metadata=about), tmp_path)["a"].array()


def test_a_splat_that_is_no_element(tmp_path: Path) -> None:
    entry = splat_entry(12, b"\1\2\3\4", metadata=(8, len(PYTORCH)))
    with pytest.raises(InputError, match="repeats 4 bytes, which is no element of int16"):
        read(archive(entry), tmp_path)["a"].array()


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.irpa", Path("/dev/null"), "a\0b"):
        with pytest.raises(InputError, match="cannot read"):
            Archive(path)


def mutations(data: bytes, seed: int) -> Callable[[], bytes]:
    """Truncations, changed bytes, and integers of all sizes in header and tables."""
    chance = random.Random(seed)
    fields = struct.unpack_from(HEADER, data)
    table, metadata = fields[7:9], fields[9:11]
    numbers = [0, 1, 3, 7, 60, 76, 88, 2**16, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1, len(data)]

    def mutate() -> bytes:
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 1, 2, 5])):
            kind = chance.randrange(6)
            if kind == 0:
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            elif kind == 1:
                changed[chance.randrange(88)] = chance.randrange(256)
            elif kind == 2:
                at = table[0] + chance.randrange(table[1] - 8)
                struct.pack_into("<Q", changed, at, chance.choice(numbers))
            elif kind == 3:
                at = 32 + 8 * chance.randrange(7)
                struct.pack_into("<Q", changed, at, chance.choice(numbers))
            elif kind == 4:
                changed[metadata[0] + chance.randrange(metadata[1])] = chance.randrange(256)
            else:  # in the JSON of the records, which ends the storage
                at = fields[11] + fields[12] - 1 - chance.randrange(fields[12] // 2)
                changed[at] = chance.choice(b'0123456789"{}[],:ne-.')
        return bytes(changed[: chance.randrange(len(data))] if chance.random() < 0.1 else changed)

    return mutate


def small_dataset(path: Path) -> None:
    from test_sharktank_archives import PROPERTIES, our_tensors

    Dataset(PROPERTIES, Theta(our_tensors())).save(path)


def test_mutated_archives_open_or_are_refused(tmp_path: Path) -> None:
    """Nothing but errors of ours, in bounded memory; what opens is described."""
    path = tmp_path / "x.irpa"
    small_dataset(path)
    mutate = mutations(path.read_bytes(), 1)
    messages, opened, peak = [], 0, 0
    tracemalloc.start()
    for number in range(1000):
        if number == 150:  # it takes much time
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        path.write_bytes(mutate())
        try:
            dataset = Dataset.load(path)
        except SubquantError as error:
            messages.append(str(error))
            continue
        opened += 1
        with contextlib.suppress(SubquantError):
            dataset.save(tmp_path / "out.irpa")
            assert len(Dataset.load(tmp_path / "out.irpa").theta) == len(dataset.theta)
        assert {p.name for p in tmp_path.iterdir()} <= {"x.irpa", "out.irpa"}
        to_json(dataset)
        render_weights(dataset)
        property_lines(dataset.properties)
    assert opened > 50
    assert len(messages) > 700
    assert all(message.isprintable() for message in messages)
    assert peak < 20_000_000


READ_BY_IREE = """
import sys, zlib, iree.runtime, numpy as np
for path in sys.argv[1:]:
    index = iree.runtime.ParameterIndex()
    index.load(path)
    for name, entry in index.items():
        data = np.asarray(entry.file_view) if entry.is_file else b""
        print(path, ascii(name), entry.length, zlib.crc32(data), zlib.crc32(entry.metadata))
"""


def test_what_we_open_iree_reads_alike(tmp_path: Path) -> None:
    """So no archive that passes `check_mountable` makes IREE read elsewhere."""
    import zlib

    path = tmp_path / "x.irpa"
    small_dataset(path)
    mutate = mutations(path.read_bytes(), 2)
    expected, paths = [], []
    for number in range(600):
        path = tmp_path / f"{number}.irpa"
        path.write_bytes(mutate())
        try:
            check_mountable(path)
        except SubquantError:
            continue
        paths.append(str(path))
        for name, entry in Archive(path).items():
            data = b"" if entry.data is None else entry.content()
            accumulators = zlib.crc32(data), zlib.crc32(entry.metadata)
            expected.append(f"{path} {name!a} {entry.length} {accumulators[0]} {accumulators[1]}")
    assert len(paths) > 100
    command = [sys.executable, "-c", READ_BY_IREE, *paths]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == expected
