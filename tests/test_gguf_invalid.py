"""Invalid and damaged GGUF files.

They must end in an error of ours that names the file, with little memory; a mutation that leaves a
valid file must give tensors that can be used.
"""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_files import (
    ARRAY,
    aligned,
    array_property,
    header,
    info,
    one_property,
    one_tensor,
    padded,
    pair,
    read,
    text,
    two_tensors,
    use,
    without_vocabulary,
    write_sample,
)
from processes import run_python
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.gguf import read_gguf
from subquant.layouts import InferenceTensor
from subquant.layouts.ggml import BLOCK_TYPES, PRIMITIVE_TYPES

Attempt: TypeAlias = Callable[[bytes], bool]


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
        one_property(7, b"\2"), "property 'k' has a boolean of 2, expected 0 or 1"
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
        "property 'k' is an array of arrays; expected numbers, booleans or strings",
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
    count, kilobytes = map(int, run_python(_MEMORY, path).split())
    assert count == 2**22
    assert kilobytes < 120_000


def test_a_header_larger_than_any(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(one_property(8, struct.pack("<Q", 2**28)))
    os.truncate(path, 2**29)
    with pytest.raises(InputError, match="has more than 268435456 bytes before the data: property"):
        read_gguf(path)


def test_long_names_are_cut_in_messages(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, header(0, 2) + 2 * pair("k" * 60000, 0, b"\0"))
    assert str(raised.value).endswith("two properties are named '" + 80 * "k" + "'...")


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
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
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


def test_files_cut_off_at_every_byte(small: bytes, attempt: Attempt) -> None:
    assert attempt(small)
    for cut in range(len(small)):
        assert not attempt(small[:cut])


def test_large_files_cut_off(sample: bytes, attempt: Attempt) -> None:
    """Only the padding after the last tensor may be missing."""
    padding = -(6 * list(BLOCK_TYPES.values())[-1].block.itemsize) % 32
    for missing in (*range(padding), *range(padding, len(sample), 61)):
        assert attempt(sample[: len(sample) - missing]) is (missing <= padding)


def test_every_bit_of_the_header_flipped(small: bytes, attempt: Attempt) -> None:
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
def test_bytes_replaced(data: st.DataObject, sample: bytes, attempt: Attempt) -> None:
    """Up to four places get giant, small or random bytes."""
    changed = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header_size(sample)))
        word = data.draw(st.binary(min_size=1, max_size=9) | WORDS)
        changed[position : position + len(word)] = word
    attempt(bytes(changed))


@settings(max_examples=200)
@given(data=st.data())
def test_bytes_left_out_or_doubled(data: st.DataObject, sample: bytes, attempt: Attempt) -> None:
    start = data.draw(st.integers(0, header_size(sample)))
    size = data.draw(st.integers(1, 40))
    part = b"" if data.draw(st.booleans()) else 2 * sample[start : start + size]
    attempt(sample[:start] + part + sample[start + size :])


@settings(max_examples=200)
@given(rest=st.binary(max_size=200), tensors=st.integers(0, 9), properties=st.integers(0, 9))
def test_noise_after_the_counts(
    rest: bytes, tensors: int, properties: int, attempt: Attempt
) -> None:
    attempt(header(tensors, properties) + rest)
