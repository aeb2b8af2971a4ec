"""GGUF files: what PyPI's ``gguf`` writes and reads, damaged files, and a real model.

Damaged files must end in an error of ours that names the file, with little memory; a mutation that
leaves a valid file must give tensors that can be used.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_models import write_file
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.gguf import read_gguf
from subquant.layouts import GgmlTensor, InferenceTensor, PrimitiveTensor, QuantizedTensor
from subquant.layouts.ggml import BLOCK_TYPES, PRIMITIVE_TYPES
from subquant.weights import Dataset, Theta

Read: TypeAlias = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

ROOT = Path(__file__).parent.parent
PROPERTIES: dict[str, Any] = {
    "general.architecture": "test",
    "a.u8": 200, "a.u16": 60000, "a.u32": 4_000_000_000, "a.u64": 2**64 - 1,
    "a.i8": -100, "a.i16": -30000, "a.i32": -2_000_000_000, "a.i64": -(2**63),
    "a.f32": 0.5, "a.f64": 0.1, "a.yes": True, "a.no": False, "a.text": "größer → 大",
    "a.empty": "", "a.words": ["one", "", "zwei", "三"], "a.numbers": [3, -1, 2**31 - 1],
    "a.reals": [0.25, -1.5], "a.truths": [True, False, True],
}  # fmt: skip


def random_raw(name: str, count: int, seed: int) -> np.ndarray:
    size = BLOCK_TYPES[name].block.itemsize
    return np.random.default_rng(seed).integers(0, 256, count * size, np.uint8)


def write_sample(path: Path) -> dict[str, np.ndarray]:
    """Write each type of property and of tensor, with ``gguf``; return the raw arrays."""
    writer = gguf.GGUFWriter(path, "test")
    kinds = gguf.GGUFValueType
    for code in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"):
        kind = {"u": "UINT", "i": "INT", "f": "FLOAT"}[code[0]] + code[1:]
        writer.add_key_value(f"a.{code}", PROPERTIES[f"a.{code}"], kinds[kind])
    for key in ("a.yes", "a.no"):
        writer.add_bool(key, PROPERTIES[key])
    for key in ("a.text", "a.empty"):
        writer.add_key_value(key, PROPERTIES[key], kinds.STRING)
    for key in ("a.words", "a.numbers", "a.reals", "a.truths"):
        writer.add_array(key, PROPERTIES[key])
    rng = np.random.default_rng(9)
    arrays: dict[str, np.ndarray] = {
        "f32": rng.normal(size=(2, 3)).astype(np.float32),
        "f16": rng.normal(size=(5,)).astype(np.float16),
        "f64": rng.normal(size=(2, 2, 1, 2)),
        "i8": np.array([-3, 4], np.int8),
        "i16": np.array([[-300], [400]], np.int16),
        "i32": np.array([-(2**31)], np.int32),
        "i64": np.array([2**63 - 1], np.int64),
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    half = rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
    bytes_ = half.view(np.uint8)
    writer.add_tensor("bf16", bytes_, raw_dtype=gguf.GGMLQuantizationType.BF16)
    arrays["bf16"] = half
    for seed, name in enumerate(BLOCK_TYPES):
        raw = random_raw(name, 6, seed).reshape((3, -1))
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[name])
        arrays[name] = raw
    write_file(writer)
    return arrays


def use(tensors: dict[str, InferenceTensor]) -> None:
    """Compute with each tensor."""
    with np.errstate(all="ignore"):
        for tensor in tensors.values():
            if isinstance(tensor, QuantizedTensor):
                assert tensor.unpack().dequant().shape == tensor.shape
            else:
                assert isinstance(tensor, PrimitiveTensor)
                assert tensor.array.copy().shape == tensor.shape


def without_vocabulary(properties: dict[str, Any]) -> dict[str, Any]:
    """The properties without the lists of a vocabulary."""
    return {
        key: value
        for key, value in properties.items()
        if not (isinstance(value, list) and key.startswith("tokenizer."))
    }


# -- files that gguf writes -----------------------------------------------------------------------


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


# -- files by hand --------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read some bytes as a file, ``m.gguf``."""
    path = tmp_path / "m.gguf"

    def read_bytes(data: bytes, size: int = 0) -> Any:
        """`size` is that of the file, of which the rest is a hole."""
        path.write_bytes(data)
        if size:
            os.truncate(path, size)
        return read_gguf(path)

    return read_bytes


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(tensors: int = 0, properties: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, properties)


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def one_property(kind: int, value: bytes) -> bytes:
    return header(0, 1) + pair("k", kind, value)


def info(name: str | bytes, extents: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def padded(data: bytes, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment)


def one_tensor(extents: tuple[int, ...], kind: int, size: int, offset: int = 0) -> bytes:
    return padded(header(1) + info("w", extents, kind, offset)) + bytes(size)


def two_tensors(first: int, second: int, size: int) -> bytes:
    infos = info("a", (16,), 0, first) + info("b", (8,), 0, second)
    return padded(header(2) + infos) + bytes(size)


def aligned(alignment: bytes, kind: int = 4) -> bytes:
    data = header(1, 1) + pair("general.alignment", kind, alignment) + info("w", (2,), 0)
    return padded(data, 256) + struct.pack("<2f", 1, 2)


ARRAY = 9


def array_property(kind: int, count: int) -> bytes:
    return one_property(ARRAY, struct.pack("<IQ", kind, count))


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
def test_valid_files(name: str, read: Read) -> None:
    data, properties, tensors = VALID[name]
    got = read(data)
    assert (len(got[0]), len(got[1])) == (properties, tensors)
    use(got[1])


def test_alignment_is_of_the_data_too(read: Read) -> None:
    assert read(aligned(struct.pack("<I", 256)))[1]["w"].array.tolist() == [1, 2]


def test_an_alignment_of_one(read: Read) -> None:
    """Arrays may then lie at odd addresses."""
    data = header(1, 1) + pair("general.alignment", 4, struct.pack("<I", 1)) + info("w", (2,), 0)
    assert len(data) % 4
    array = read(data + struct.pack("<2f", 1, 2))[1]["w"].array
    assert (array + array).tolist() == [2, 4]


@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_types_have_the_names_that_ggml_gives_them(
    kind: gguf.GGMLQuantizationType, read: Read
) -> None:
    data = one_tensor((256,), kind.value, 8 * 256)
    if kind.name not in PRIMITIVE_TYPES and kind.name not in BLOCK_TYPES:
        with pytest.raises(UnsupportedError, match=f"of the GGML type {kind.name}, which has no"):
            read(data)
        return
    tensor = read(data)[1]["w"]
    if isinstance(tensor, GgmlTensor):
        assert tensor.ggml_type == kind.name
    else:
        assert isinstance(tensor, PrimitiveTensor)
        assert tensor.array.dtype == PRIMITIVE_TYPES[kind.name]


HUGE = 2**64 - 1
KNOWN = ", ".join((*PRIMITIVE_TYPES, *BLOCK_TYPES))


def _ends(tensor: str, end: int, size: int) -> str:
    return (
        f"tensor 'w' of {tensor} ends {end} bytes into the data, which has {size}; the file is "
        "incomplete or damaged"
    )


def _no_room(count: int, what: str, most: int, byte: int) -> str:
    return f"is said to have {count} {what}, and there is room for at most {most} after byte {byte}"


def _no_gguf(magic: bytes) -> str:
    return f"is no GGUF file: starts with {magic!r}, expected b'GGUF'"


def _too_many(what: str, most: int) -> str:
    return f"has {most + 1} {what}, expected at most {most}"


def _is_cut(what: str, size: int, byte: int, end: int) -> str:
    return f"ends within {what}: {size} bytes from byte {byte}, and the file has {end}"


def _wrong_key(size: int) -> str:
    return f"the key of property 0 at byte 24 has {size} bytes, expected 1 to 65535"


def _no_text(what: str, byte: int, value: int) -> str:
    return f"{what} is not UTF-8: byte {byte} is {value:#x}"


def _ragged(shape: list[int]) -> str:
    return (
        f"tensor 'w' of the GGML type Q8_0 has the shape {shape}, expected a last axis that is a "
        "multiple of 32"
    )


def _overlap(first: str, first_end: int, second: str, second_range: tuple[int, int]) -> str:
    bytes_ = "bytes 0 to {} and {} to {} of the data".format(first_end, *second_range)
    return f"tensors '{first}' and '{second}' overlap: {bytes_}"


INVALID: dict[str, tuple[bytes, str]] = {
    # wrong magic and version
    "empty": (b"", "is empty, expected a GGUF file"),
    "another file": (b"PK\3\4" + bytes(60), _no_gguf(b"PK\3\4")),
    "the other order": (header()[3::-1] + header()[4:], _no_gguf(b"FUGG")),
    "only the magic": (b"GGUF", _is_cut("the version", 4, 4, 4)),
    # wrong counts
    "many tensors": (header(HUGE), _no_room(HUGE, "tensors", 0, 16)),
    "many properties": (header(0, HUGE), _no_room(HUGE, "properties", 0, 24)),
    # The least property has 14 bytes.
    "more properties": (header(0, 3) + bytes(41), _no_room(3, "properties", 2, 24)),
    "more tensors": (padded(header(2)) + bytes(24), _no_room(2, "tensors", 1, 16)),
    "too many tensors": (header(2**16 + 1) + bytes(2**21), _too_many("tensors", 2**16)),
    "too many properties": (header(0, 2**16 + 1) + bytes(2**21), _too_many("properties", 2**16)),
    "fewer tensors": (header(1) + info("w", (4,), 0), _ends("[4] F32", 16, 0)),
    "a long array": (array_property(0, HUGE), _no_room(HUGE, "elements in property 'k'", 0, 49)),
    "a long array of words": (
        array_property(8, 2**61) + bytes(100),
        _no_room(2**61, "elements in property 'k'", 12, 49),
    ),
    "too long an array": (
        array_property(0, 2**22 + 1) + bytes(2**22 + 1),
        _too_many("elements in property 'k'", 2**22),
    ),
    "a long word": (
        one_property(8, struct.pack("<Q", HUGE)), _is_cut("property 'k'", HUGE, 45, 45)
    ),
    "a long key": (
        header(0, 1) + struct.pack("<Q", 2**40) + bytes(9),
        _is_cut("the key of property 0", 2**40, 32, 41),
    ),
    "a key of many bytes": (header(0, 1) + pair("k" * 2**16, 0, b"\0"), _wrong_key(2**16)),
    "no key": (header(0, 1) + pair("", 0, b"\0\0"), _wrong_key(0)),
    "many axes": (one_tensor((1,) * 5, 0, 64), "tensor 'w' has 5 axes, expected at most 4"),
    "very many axes": (
        header(1) + text("w") + struct.pack("<I", 2**32 - 1) + bytes(64),
        "tensor 'w' has 4294967295 axes, expected at most 4",
    ),
    # wrong types and values
    "a type of property": (
        one_property(13, b"\0"), "property 'k' is of the type 13, expected 0 to 12"
    ),
    "a type of element": (
        array_property(13, 0), "property 'k' has elements of the type 13, expected 0 to 12"
    ),
    "a truth value": (
        one_property(7, b"\2"), "property 'k' has a truth value of 2, expected 0 or 1"
    ),
    "two properties": (header(0, 2) + 2 * pair("k", 0, b"\0"), "two properties are named 'k'"),
    "two tensors": (
        padded(header(2) + 2 * info("w", (), 0)) + bytes(64), "two tensors are named 'w'"
    ),
    **{
        f"an alignment of {alignment}": (
            aligned(struct.pack("<I", alignment)),
            f"property 'general.alignment' is {alignment}, expected a power of two",
        )
        for alignment in (0, 48)
    },
    "a large alignment": (aligned(struct.pack("<I", 2**31)), _ends("[2] F32", 8, 0)),
    "a signed alignment": (
        aligned(struct.pack("<i", 32), 5),
        "property 'general.alignment' is of the type 5, expected 4 (u32)",
    ),
    # wrong UTF-8
    "UTF-8 in a key": (
        header(0, 1) + pair(b"a\xff", 0, b"\0"), _no_text("the key of property 0", 33, 0xFF)
    ),
    "UTF-8 in a value": (
        one_property(8, text(b"\xed\xa0\x80")), _no_text("property 'k'", 45, 0xED)
    ),
    "UTF-8 in an array": (
        one_property(ARRAY, struct.pack("<IQ", 8, 1) + text(b"ab\xc3")),
        _no_text("property 'k'", 59, 0xC3),
    ),
    "UTF-8 in a name": (
        header(1) + info(b"\x80", (), 0), _no_text("the name of tensor 0", 32, 0x80)
    ),
    # wrong tensors
    "half a block": (one_tensor((16, 2), 8, 34), _ragged([2, 16])),
    "a block without axis": (one_tensor((), 8, 34), _ragged([])),
    "an extent of 0": (
        one_tensor((0, 3), 0, 0),
        "tensor 'w' has the shape [3, 0], expected no extent of 0",
    ),
    # wrong offsets and sizes
    "a giant tensor": (one_tensor((2**62, 2**62), 0, 64), _ends(f"{[2**62] * 2} F32", 2**126, 64)),
    "giant blocks": (
        one_tensor((2**63,) * 4, 12, 144), _ends(f"{[2**63] * 4} Q4_K", 144 * 2**244, 144)
    ),
    "an overflowing size": (
        one_tensor((2**32, 2**30), 0, 64), _ends(f"{[2**30, 2**32]} F32", 2**64, 64)
    ),
    "a tensor of one more": (one_tensor((17,), 0, 64), _ends("[17] F32", 68, 64)),
    "a far offset": (one_tensor((1,), 0, 64, 64), _ends("[1] F32", 68, 64)),
    "a giant offset": (one_tensor((1,), 0, 64, 2**64 - 32), _ends("[1] F32", 2**64 - 28, 64)),
    "an odd offset": (
        one_tensor((1,), 0, 64, 4),
        "tensor 'w' is at the offset 4, expected a multiple of the alignment 32",
    ),
    "overlapping tensors": (two_tensors(0, 32, 128), _overlap("a", 64, "b", (32, 64))),
    "the same bytes twice": (two_tensors(0, 0, 128), _overlap("a", 64, "b", (0, 32))),
    "overlapping from below": (
        padded(header(2) + info("a", (1,), 0, 32) + info("b", (16,), 0)) + bytes(128),
        _overlap("b", 64, "a", (32, 36)),
    ),
    "no data": (one_tensor((1,), 0, 0), _ends("[1] F32", 4, 0)),
}  # fmt: skip
"""Files that break the specification: their contents, and the InputError."""


def _no_layout(kind: str) -> str:
    return f"tensor 'w' is of the GGML type {kind}, which has no layout; expected one of: {KNOWN}"


UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    **{
        name: (
            header(version=version),
            f"is of GGUF's version {described}, expected 2 or 3 in little-endian order; convert "
            "the model again",
        )
        for name, version, described in (
            ("version 1", 1, "1"),
            ("version 4", 4, "4"),
            ("big-endian", 3 << 24, "3 in big-endian order"),
        )
    },
    "nested arrays": (
        one_property(ARRAY, struct.pack("<IQIQ", 9, 1, 0, 0)),
        "property 'k' is an array of arrays; expected numbers, truth values or strings",
    ),
    "an unknown type": (one_tensor((32,), 99, 64), _no_layout("99")),
    "a type that is gone": (one_tensor((32,), 4, 64), _no_layout("4")),
    "a type without layout": (one_tensor((128,), 41, 18), _no_layout("Q1_0")),
}
"""Files that subquant does not read: their contents, and the UnsupportedError."""


@pytest.mark.parametrize("name", [*INVALID, *UNSUPPORTED])
def test_invalid_files(name: str, tmp_path: Path) -> None:
    """Each has its error, with the name of the file, and costs next to no memory."""
    data, message = (INVALID | UNSUPPORTED)[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    del data
    tracemalloc.start()
    with pytest.raises(SubquantError) as raised:
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(raised.value) is (InputError if name in INVALID else UnsupportedError)
    assert str(raised.value) == f"{path}: error: {message}"
    assert peak < 2**18


def test_files_that_are_none(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in (
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path / "none.gguf", "No such file or directory"),
        ("a\0b", "embedded null"),
    ):
        with pytest.raises(InputError, match=f"cannot read '.*': {reason}"):
            read_gguf(path)


_MEMORY = """
import pathlib, re, sys
from subquant.formats.gguf import read_gguf
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = peak()
count = len(read_gguf(sys.argv[1])[0]["k"])
print(count, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_a_file_of_the_most_words(tmp_path: Path) -> None:
    """Four million strings, the most there may be: 32 MB of file, and a list of them."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(array_property(8, 2**22))
        file.truncate(file.tell() + 8 * 2**22)
    command = [sys.executable, "-c", _MEMORY, str(path)]
    result = subprocess.run(command, capture_output=True, check=True)
    count, kilobytes = map(int, result.stdout.split())
    assert count == 2**22
    assert kilobytes < 120_000


def test_a_header_larger_than_any(read: Read) -> None:
    with pytest.raises(InputError, match="has more than 268435456 bytes before the data: property"):
        read(one_property(8, struct.pack("<Q", 2**28)), 2**29)


def test_long_names_are_cut_in_messages(read: Read) -> None:
    with pytest.raises(InputError) as raised:
        read(header(0, 2) + 2 * pair("k" * 60000, 0, b"\0"))
    assert str(raised.value).endswith("two properties are named '" + 80 * "k" + "'...")


# -- damaged files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    write_sample(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def small() -> bytes:
    """A file with each kind of thing in it, of some hundred bytes."""
    alignment = pair("general.alignment", 4, struct.pack("<I", 16))
    words = pair("tokenizer.w", ARRAY, struct.pack("<IQ", 8, 2) + text("ab") + text("ü"))
    numbers = pair("tokenizer.n", ARRAY, struct.pack("<IQ3h", 3, 3, 1, -2, 3))
    truth = pair("t", 7, b"\1")
    infos = info("a", (3, 1), 0) + info("b", (32, 2), 2, 16) + info("c", (256,), 12, 64)
    head = header(3, 4) + alignment + words + numbers + truth + infos
    return padded(head, 16) + np.arange(64 + 144, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bool]:
    """Read some bytes as a file, with lists and without; False for an error of ours."""
    path = tmp_path_factory.mktemp("gguf") / "damaged.gguf"

    def read(data: bytes) -> bool:
        path.write_bytes(data)
        whole, without_lists = tried(), tried(lists=False)
        if whole is None:
            if without_lists is not None:  # the error is in a list
                use(without_lists[1])
            return False
        properties, tensors = whole
        assert without_lists is not None
        assert without_lists[0] == without_vocabulary(properties)
        assert list(without_lists[1]) == list(tensors)
        use(tensors)
        return True

    def tried(**options: bool) -> tuple[dict[str, Any], dict[str, InferenceTensor]] | None:
        try:
            return read_gguf(path, **options)
        except SubquantError as error:
            if not str(error).startswith(f"{path}: error: "):
                raise
            return None

    return read


def header_size(data: bytes) -> int:
    """Return the end of the header, from the last tensor's name."""
    last = list(BLOCK_TYPES)[-1].encode()
    name, axes = (last, 2) if last in data else (b"c", 1)
    return data.rindex(text(name)) + 8 + len(name) + 4 + 8 * axes + 4 + 8


def test_files_cut_off_at_every_byte(small: bytes, attempt: Callable[[bytes], bool]) -> None:
    assert attempt(small)
    for cut in range(len(small)):
        assert not attempt(small[:cut])


def test_large_files_cut_off(sample: bytes, attempt: Callable[[bytes], bool]) -> None:
    """Only the padding after the last tensor may be missing."""
    padding = -(6 * list(BLOCK_TYPES.values())[-1].block.itemsize) % 32
    for missing in (*range(padding), *range(padding, len(sample), 61)):
        assert attempt(sample[: len(sample) - missing]) is (missing <= padding)


def test_every_bit_of_the_header_flipped(small: bytes, attempt: Callable[[bytes], bool]) -> None:
    accepted = 0
    for position in range(header_size(small)):
        for bit in range(8):
            data = bytearray(small)
            data[position] ^= 1 << bit
            accepted += attempt(bytes(data))
    assert 0 < accepted < 8 * header_size(small)


WORDS = st.sampled_from([2**63, 2**64 - 1, 2**32, 2**31 - 1, 0, 1, 2**40]).map(
    lambda number: number.to_bytes(8, "little")
)


@settings(max_examples=300)
@given(data=st.data())
def test_bytes_replaced(
    data: st.DataObject, sample: bytes, attempt: Callable[[bytes], bool]
) -> None:
    """Up to four places get giant, small or random bytes."""
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header_size(sample)))
        word = data.draw(st.binary(min_size=1, max_size=9) | WORDS)
        changed[position : position + len(word)] = word
    attempt(bytes(changed))


@settings(max_examples=200)
@given(data=st.data())
def test_bytes_left_out_or_doubled(
    data: st.DataObject, sample: bytes, attempt: Callable[[bytes], bool]
) -> None:
    start = data.draw(st.integers(0, header_size(sample)))
    size = data.draw(st.integers(1, 40))
    part = b"" if data.draw(st.booleans()) else 2 * sample[start : start + size]
    attempt(sample[:start] + part + sample[start + size :])


@settings(max_examples=200)
@given(rest=st.binary(max_size=200), tensors=st.integers(0, 9), properties=st.integers(0, 9))
def test_noise_after_the_counts(
    rest: bytes, tensors: int, properties: int, attempt: Callable[[bytes], bool]
) -> None:
    attempt(header(tensors, properties) + rest)


# -- a real model ---------------------------------------------------------------------------------


def benchmark(path: Path) -> dict[str, Any]:
    """Return the benchmark's report of a file."""
    command = [sys.executable, str(ROOT / "scripts/benchmark_gguf.py"), str(path), "--json"]
    result = subprocess.run(command, capture_output=True, check=True)
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_benchmark_reports_numbers(sample: bytes, tmp_path: Path) -> None:
    (tmp_path / "sample.gguf").write_bytes(sample)
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
