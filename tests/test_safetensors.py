"""The safetensors reader, on files written byte by byte: right ones, and wrong ones.

The reader uses PyPI's ``safetensors``; expected contents are computed here without it, from
the header as JSON, by the format's description.
"""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.safetensors import DTYPES, read_safetensors
from subquant.numerics.element_types import Array


def _file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(dtype: str, shape: list[Any], start: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _tensor(dtype: str, shape: list[Any], start: Any, end: Any, data: bytes = b"") -> bytes:
    """A file of one tensor."""
    return _file({"a": _entry(dtype, shape, start, end)}, data)


def _bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


_BYTES = {"BOOL": 1, "U8": 1, "F16": 2, "BF16": 2, "I16": 2, "F32": 4, "C64": 8} | {
    f"{kind}{bits}": bits // 8 for kind in "IUF" for bits in (8, 16, 32, 64)
}


def _save(arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = _entry(names[array.dtype], list(array.shape), len(data), end)
        data += _bits(array)
    return _file(header, data)


def _by_hand(data: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    """Return dtype, shape and bytes of each tensor of a valid file."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == end
        size = _BYTES.get(entry["dtype"], 1)  # the others are 8-bit floats
        assert last - first == math.prod(entry["shape"]) * size
        tensors[name] = (entry["dtype"], entry["shape"], data[start + first : start + last])
        end = last
    assert start + end == len(data)
    return tensors


def _ours(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    names = {dtype: name for name, dtype in DTYPES.items()}
    return {
        name: (names[array.dtype], list(array.shape), _bits(array))
        for name, array in read_safetensors(path).tensors.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors")


def _write(folder: Path, data: bytes) -> Path:
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5), (1, 2, 3, 1)])
def test_every_dtype_has_the_same_bits(folder: Path, name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    raw = rng.integers(0, 256, int(np.prod(shape)) * DTYPES[name].itemsize, np.uint8)
    if name == "BOOL":
        raw &= 1
    array = raw.view(DTYPES[name]).reshape(shape)
    read = read_safetensors(_write(folder, _save({"w": array}, {"made": "here"})))
    assert read.metadata == {"made": "here"}
    assert read.tensors["w"].dtype == array.dtype
    assert read.tensors["w"].shape == shape
    assert _bits(read.tensors["w"]) == raw.tobytes()
    assert not read.tensors["w"].flags.writeable


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=4)),
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_files_of_the_library_read_alike(
    folder: Path,
    tensors: dict[str, tuple[str, list[int]]],
    metadata: dict[str, str],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.integers(0, 2, int(np.prod(shape)) * DTYPES[dtype].itemsize, np.uint8)
        .view(DTYPES[dtype])
        .reshape(shape)
        for name, (dtype, shape) in tensors.items()
    }
    # The library writes metadata of a file without tensors so that it cannot read it itself.
    data = safetensors.numpy.save(arrays, metadata if arrays else None)
    path = _write(folder, data)
    assert _ours(path) == _by_hand(data)
    assert read_safetensors(path).metadata == (metadata if arrays else {})


def test_offsets_without_alignment_are_read(folder: Path) -> None:
    """The header ends at any of 8 alignments, and a byte precedes the other tensors."""
    values = {
        "b": np.array([1.5, -2], np.float32),
        "c": np.array([3, 4.5], ml_dtypes.bfloat16),
        "d": np.array([-5, 6], np.int64),
        "e": np.array([7, 8.25], np.float16),
    }
    header, data = {"a": _entry("U8", [1], 0, 1)}, b"\1"
    for (name, array), dtype in zip(values.items(), ("F32", "BF16", "I64", "F16"), strict=True):
        header[name] = _entry(dtype, [2], len(data), len(data) + array.nbytes)
        data += array.tobytes()
    for padding in range(8):
        path = _write(folder, _file(json.dumps(header).encode() + b" " * padding, data))
        read = read_safetensors(path).tensors
        for name, array in values.items():
            np.testing.assert_array_equal(read[name], array)
            np.testing.assert_array_equal(read[name].astype(np.float64) + 1, array + 1.0)
            assert not read[name].flags.writeable


def test_tensors_are_mapped_and_not_read(folder: Path) -> None:
    """A file of 1 GB, all hole, takes its size neither on disk nor in memory, aligned or not."""
    count = 1 << 28
    head = _file({"w": _entry("F32", [count], 0, 4 * count)})
    path = folder / "sparse.safetensors"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_safetensors(path).tensors["w"][-1] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in kB
    path.unlink()


def test_what_the_library_takes_beside_tensors(folder: Path) -> None:
    """Metadata that is null, spaces behind the header."""
    header = {"__metadata__": None, "a": _entry("U8", [2], 0, 2)}
    read = read_safetensors(_write(folder, _file(json.dumps(header).encode() + b"   ", b"12")))
    assert read.metadata == {}
    assert read.tensors["a"].tolist() == [49, 50]


def test_a_key_of_a_later_version_is_refused(folder: Path) -> None:
    """The library passes over it."""
    header = {"a": {**_entry("U8", [2], 0, 2), "later": {"x": [1.5]}}}
    path = _write(folder, _file(json.dumps(header).encode(), b"12"))
    with pytest.raises(UnsupportedError, match=r"error: tensor 'a' has the key 'later', which"):
        read_safetensors(path)


_GOOD = _entry("U8", [2], 0, 2)
_WRONG_HEADERS: dict[str, tuple[object, str]] = {
    "no text": (b'{"\xff": 1}', "invalid UTF-8 in header: .* from index 2"),
    "no header": (b"", "invalid JSON in header: EOF while parsing a value"),
    "space before the header": (b" {}", "the header begins with b' ', expected '{'"),
    "a list": ([], "invalid type: sequence"),
    "end of the header": (
        b'{"a":', "invalid JSON in header: EOF while parsing a value at line 1 column 5"),
    "comma at the end": (b'{"__metadata__":{},}', "trailing comma at line 1 column 20"),
    "text after the header": (b"{} {}", "trailing characters at line 1 column 4"),
    "no tensor": ({"a": 1}, "invalid type: integer `1`, expected struct"),
    "key twice": (b'{"a":{"dtype":"U8","dtype":"U8"}}', "duplicate field `dtype`"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', "duplicate field `__metadata__`"),
    "metadata of numbers": (
        {"__metadata__": {"a": 1}}, "invalid type: integer `1`, expected a string"),
    "nothing": ({"a": {}}, "missing field `dtype`"),
    "leading zero": (b'{"a":{"shape":[01]}}', "invalid number at line 1 column 17"),
    "one offset": (
        {"a": {**_GOOD, "data_offsets": [0]}}, "invalid length 1, expected a tuple of size 2"),
    "three offsets": ({"a": {**_GOOD, "data_offsets": [0, 1, 2]}}, "invalid length 3, expected 2"),
    "half a surrogate pair": (b'{"\\ud800":{}}', "unexpected end of hex escape"),
    "short escape": (b'{"\\u12":{}}', "invalid escape"),
    "unknown escape": (b'{"\\x":{}}', "invalid escape"),
    "line break in a name": (b'{"a\nb":{}}', "control character .* found while parsing a string"),
    "deep": (b'{"a":{"shape":' + b"[" * 10**6, "recursion limit exceeded"),
    "metadata that is a number": ({"__metadata__": 1}, "invalid type: integer `1`, expected a map"),
    "negative zero": (b'{"a":{"shape":[-0]}}', "floating point `-0.0`, expected usize"),
    "no number": (
        b'{"a":{"shape":[NaN]}}', "invalid JSON in header: expected value at line 1 column 16"),
}  # fmt: skip
"""Headers of files without data, as bytes or as JSON."""
_WRONG_TENSORS: dict[str, tuple[Any, ...]] = {
    "65 dimensions": ("U8", [1] * 65, 0, 1, b"1", "which no array has"),
    "unknown dtype": ("F31", [1], 0, 4, b"1234", "unknown variant `F31`, expected one of"),
    "fraction": ("U8", [1.0], 0, 1, b"1", "floating point `1.0`, expected usize"),
    "exponent": ("U8", [1], 0, 1e300, b"", "floating point `1e.300`, expected usize"),
    "negative extent": ("U8", [-1], 0, 1, b"1", "integer `-1`, expected usize"),
    "extent of 2**63": ("U8", [1 << 63], 0, 1, b"", "overflow computing buffer size"),
    "extent of 5000 digits": ("U8", [10**4000], 0, 1, b"", "number out of range"),
    "true as an extent": ("U8", [True], 0, 1, b"", "boolean `true`, expected usize"),
    "wrong size": ("F32", [2], 0, 2, b"12", "invalid shape, data type, or offset for tensor"),
    "end before begin": ("U8", [0], 2, 0, b"12", "invalid offset for tensor `a`"),
    "product that overflows": ("U8", [1 << 32] * 2, 0, 0, b"", "overflow computing buffer size"),
    "shape that no array has": ("U8", [0, *[(1 << 63) - 1] * 2], 0, 0, b"", "which no array has"),
    "boolean of 7": ("BOOL", [2], 0, 2, b"\0\7", "has the byte 7"),
}
"""Type, shape, range and data of files with one tensor."""
_WRONG_RANGES: dict[str, tuple[dict[str, tuple[int, int]], bytes, str]] = {
    "a name with control characters": (
        {"a\x1b[31m\nb": (1, 2)}, b"12", r"invalid offset for tensor `a\\x1b\[31m\\nb`$"),
    "a long name": ({"a" * 10**6: (1, 2)}, b"12", r"invalid offset for tensor `a{100,300}\.\.\.$"),
    "overlap": ({"a": (0, 2), "b": (1, 3)}, b"123", "invalid offset for tensor `b`"),
    "the same range": ({"a": (0, 2), "b": (0, 2)}, b"12", "invalid offset for tensor `[ab]`"),
    "empty tensor inside another": (
        {"a": (0, 2), "b": (1, 1)}, b"12", "invalid offset for tensor `b`"),
    "hole": ({"a": (0, 2), "b": (3, 4)}, b"1234", "invalid offset for tensor `b`"),
    "hole at the start": ({"a": (1, 2)}, b"12", "invalid offset for tensor `a`"),
    "truncated data": ({"a": (0, 2)}, b"1", "incomplete metadata, file not fully covered"),
    "data at the end": ({"a": (0, 2)}, b"123", "incomplete metadata, file not fully covered"),
    "out of range": ({"a": (0, 1 << 40)}, b"12", "incomplete metadata, file not fully covered"),
}  # fmt: skip
"""Ranges and data of files with vectors of U8."""


def _twice(*entries: dict[str, Any]) -> bytes:
    """A file with two tensors of one name; the counts of readers differ there."""
    written = b",".join(b'"a":' + json.dumps(entry).encode() for entry in entries)
    return _file(b"{" + written + b"}", b"12")


_WRONG: dict[str, tuple[bytes, str]] = {
    **{name: (_file(header), message) for name, (header, message) in _WRONG_HEADERS.items()},
    **{name: (_tensor(*tensor), message) for name, (*tensor, message) in _WRONG_TENSORS.items()},
    **{
        name: (
            _file({key: _entry("U8", [end - start], start, end)
                   for key, (start, end) in ranges.items()}, data),
            message,
        )
        for name, (ranges, data, message) in _WRONG_RANGES.items()
    },
    "empty": (b"", "header too small"),
    "seven bytes": (b"1234567", "header too small"),
    "another format": (b"GGUF\x03\0\0\0" + bytes(100), "header too large"),
    "header longer than the file": (_file({"a": _GOOD}, b"12", 70), "invalid header length"),
    "largest length": (_file({}, b"", (1 << 64) - 1), "header too large"),
    "name twice": (_twice(_GOOD, _GOOD), "the key 'a' is there twice"),
    "name twice, of two types": (
        _twice(_entry("F16", [1], 0, 2), _entry("BF16", [1], 0, 2)), "the key 'a' is there twice"),
    "no dtype": (
        _file({"a": {"shape": [], "data_offsets": [0, 1]}}, b"1"), "missing field `dtype`"),
}  # fmt: skip


@pytest.mark.parametrize("case", _WRONG)
def test_wrong_files_are_located_errors(folder: Path, case: str) -> None:
    data, expected = _WRONG[case]
    path = _write(folder, data)
    with pytest.raises(InputError, match=expected) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: error: ")
    assert "\n" not in str(caught.value)


def test_elements_narrower_than_a_byte_are_unsupported(folder: Path) -> None:
    path = _write(folder, _file({"a": _entry("F4", [2], 0, 1)}, b"1"))
    with pytest.raises(
        UnsupportedError, match=r"'a' has elements of F4, expected one of: BOOL, .* as U8"
    ):
        read_safetensors(path)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (
        ("missing", "No such file"),
        ("", "not a regular file"),
        ("pipe", "not a regular file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(InputError, match=f"cannot read .*: .*{expected}"):
            read_safetensors(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("start", "repeated", "end", "expected"),
    [
        (b'{"a":{"shape":[', b"[],", b"", "EOF while parsing a value"),
        (b'{"a', b"\\n", b"", "EOF while parsing a string"),
        (b'{"', b'a":"b","', b"", "EOF while parsing a string"),
        (b"{" + b" " * 99, b"\n", b"", "EOF while parsing an object"),
        # A key of a later version, which the library skips, with 11 million values.
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":[[]', b",[]", b"]}}",
         r"header has \d+ values, expected at most 8000000"),
    ],
    ids=["lists", "escapes", "keys", "spaces", "skipped"],
)  # fmt: skip
@pytest.mark.share(5)
def test_a_long_wrong_header_takes_bounded_memory(
    folder: Path, start: bytes, repeated: bytes, end: bytes, expected: str
) -> None:
    """A header of 32 MB; as Python's lists it would take 1 GB."""
    path = _write(folder, _file(start + repeated * ((32 << 20) // len(repeated)) + end))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=expected):
        read_safetensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 640 << 10  # in kB


def _seed_file() -> bytes:
    return _save(
        {
            "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.array([True, False]),
            "empty": np.zeros((0, 2), np.int16),
            "\N{SNOWMAN}": np.array([1, 2], ml_dtypes.bfloat16),
        },
        {"format": "np"},
    )


def _same_or_error(folder: Path, data: bytes) -> bool:
    """Read a file; an accepted file must be valid, with the same bytes."""
    path = _write(folder, data)
    message = ""
    try:
        ours = _ours(path)
    except SubquantError as error:
        message = str(error)
    if message:
        assert message.startswith(f"{path}: error: ")
        return False
    assert ours == _by_hand(data)
    return True


def test_every_truncation_is_an_error(folder: Path) -> None:
    data = _seed_file()
    assert _same_or_error(folder, data)
    for size in range(len(data)):
        assert not _same_or_error(folder, data[:size]), size


def test_every_flipped_bit_is_an_error_or_read_alike(folder: Path) -> None:
    data = _seed_file()
    accepted = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        accepted += _same_or_error(folder, bytes(flipped))
    assert accepted  # bits of the data


@given(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=12))
def test_every_splice_is_an_error_or_read_alike(
    folder: Path, at: int, removed: int, inserted: bytes
) -> None:
    data = _seed_file()
    at %= len(data)
    _same_or_error(folder, data[:at] + inserted + data[at + removed :])


_NUMBERS = st.one_of(
    st.integers(-2, 9), st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, 1.0, None])
)
_ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["U8", "F16", "BF16", "F32", "BOOL", "F4", "f32", 1]),
            "shape": st.lists(_NUMBERS, max_size=3),
            "data_offsets": st.lists(_NUMBERS, min_size=1, max_size=3),
        }
    ),
    st.tuples(
        st.sampled_from(["U8", "F16", "F32"]), st.lists(st.integers(0, 3), max_size=2), _NUMBERS
    ),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ),
)


@given(st.dictionaries(st.text(max_size=3), _ENTRIES, max_size=3), st.binary(max_size=24))
def test_any_header_is_an_error_or_read_alike(
    folder: Path, entries: dict[str, Any], data: bytes
) -> None:
    end = 0
    for name, entry in entries.items():
        if isinstance(entry, tuple):  # mostly right: only where it begins may be wrong
            dtype, shape, first = entry
            size = int(np.prod(shape)) * DTYPES[dtype].itemsize
            start = first if isinstance(first, int) and first > 6 else end
            entries[name] = _entry(dtype, shape, start, start + size)
            end = start + size
    _same_or_error(folder, _file(entries, data))
    if end < 100:  # with as much data as the header says
        _same_or_error(folder, _file(entries, (data + bytes(end))[:end]))
