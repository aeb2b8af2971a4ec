"""Malformed IREE parameter archives: each is refused, in bounded memory, or read as by IREE."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from irpa_archives import (
    HEADER,
    PYTORCH,
    archive,
    data_entry,
    described,
    read,
    splat_entry,
)
from processes import run_python
from programs import LONG
from subquant.commands.tables import render_weights
from subquant.core.strict_json import parse_json
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.irpa import Archive, check_mountable
from subquant.weights import Dataset, Theta
from subquant.weights.inspection import property_lines, to_json
from test_sharktank_archives import PROPERTIES, our_tensors

HUGE = 2**64 - 8


def refuse(data: bytes, folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(data, folder)


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


UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    **{
        f"version {major}.{minor}": (
            archive(data_entry(), version=(major, minor)),
            f"the archive is of version {major}.{minor}; only 0.0 can be",
        )
        for major, minor in ((1, 0), (0, 1))
    },
    "data in another file": (
        archive(data_entry()[:8] + b"\3" + data_entry()[9:]), "entry 'a' is in another file"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*WRONG, *UNSUPPORTED])
def test_malformed_archives(case: str, tmp_path: Path) -> None:
    if case in WRONG:
        data, message = WRONG[case]
        refuse(data, tmp_path, rf"x\.irpa: error: the archive .*{message}")
    else:
        data, message = UNSUPPORTED[case]
        with pytest.raises(UnsupportedError, match=message):
            read(data, tmp_path)


def test_links_cannot_go_in_circles(tmp_path: Path) -> None:
    """Headers are linked forwards only, and all tables together are no larger than the file."""

    def link(count: int, table: tuple[int, int]) -> bytes:
        header = struct.pack(HEADER, b"IRPA", 0, 0, 88, 128, 0, count, *table, 0, 0, 0, 0)
        return header.ljust(128, b"\0")

    assert list(read(link(0, (0, 0)) * 1000 + archive(data_entry()), tmp_path)) == ["a"]
    skipped = struct.pack("<QIQQQQQQ", 60, 0, 0, 0, 0, 0, 0, 0).ljust(64, b"\0")
    many = link(900, (128 * 1000, 900 * 64)) * 1000 + skipped * 3000
    refuse(many, tmp_path, r"has 900 entries, more than its \d+ bytes hold")


def test_names_and_metadata_that_overlap_are_bounded(tmp_path: Path) -> None:
    """A thousand names of all but the whole segment would be read as many megabytes."""
    text = b"n" * 30_000
    entries = [data_entry(0, 0, n, (0, 0), 20_000) for n in range(1000)]
    message = "has two entries named|has names and metadata that over"
    refuse(archive(*entries, metadata=text), tmp_path, message)
    letters = bytes(97 + n % 26 for n in range(30_000))
    data = archive(*entries[:26], metadata=letters)
    refuse(data, tmp_path, "has names and metadata that overlap")


@pytest.mark.parametrize("beyond", [0, 1])
def test_names_may_have_as_many_bytes_as_the_file(beyond: int, tmp_path: Path) -> None:
    letters = bytes(97 + n % 26 for n in range(4_000))

    def overlapping(first: int, second: int) -> bytes:
        entries = [data_entry(0, 0, n, (0, 0), size) for n, size in enumerate((first, second))]
        return archive(*entries, metadata=letters)

    size = len(overlapping(1, 1))
    data = overlapping(size // 2, size - size // 2 + beyond)
    if beyond:
        refuse(data, tmp_path, "has names and metadata that overlap")
    else:
        assert len(read(data, tmp_path)) == 2


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


WRONG_ELEMENTS = (
    {
        metadata: (described(data_entry, metadata=metadata), message)
        for metadata, message in WRONG_METADATA.items()
    }
    | {
        "a splat that is no element": (
            archive(splat_entry(12, b"\1\2\3\4", metadata=(8, len(PYTORCH)))),
            "repeats 4 bytes, which is no element of int16",
        )
    }
    | {
        f"no elements of {shape}": (
            described(
                data_entry,
                0,
                0,
                metadata=f'{{"type": "Tensor", "dtype": "int16", "shape": {shape}}}',
            ),
            "has 0 bytes, expected those of",
        )
        for shape in ([0, 2**62, 2**62], [2**62, 0, 2**62])
    }
)


@pytest.mark.parametrize("case", WRONG_ELEMENTS)
def test_wrong_metadata(case: str, tmp_path: Path) -> None:
    data, message = WRONG_ELEMENTS[case]
    with pytest.raises(InputError, match=message):
        read(data, tmp_path)["a"].array()


def test_the_most_values_of_json() -> None:
    """They are counted before any is decoded."""
    with pytest.raises(InputError, match="the properties is not JSON: expecting value"):
        parse_json(b"," * 8_000_000, "the properties", "here")
    with pytest.raises(InputError, match="has 8000001 values, expected at most 8000000"):
        parse_json(b"," * 8_000_001, "the properties", "here")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.irpa", Path("/dev/null"), "a\0b"):
        with pytest.raises(InputError, match="cannot read"):
            Archive(path)


def mutations(path: Path, seed: int, count: int) -> Iterator[bytes]:
    """A small dataset: truncations, changed bytes, integers of all sizes in header and tables."""
    Dataset(PROPERTIES, Theta(our_tensors())).save(path)
    data = path.read_bytes()
    chance = random.Random(seed)
    fields = struct.unpack_from(HEADER, data)
    table, metadata = fields[7:9], fields[9:11]
    numbers = [0, 1, 3, 7, 60, 76, 88, 2**16, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1, len(data)]
    for _ in range(count):
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
        yield bytes(changed[: chance.randrange(len(data))] if chance.random() < 0.1 else changed)


@pytest.mark.skipif(not LONG, reason="5 s of random archives")
def test_mutated_archives_open_or_are_refused(tmp_path: Path) -> None:
    """Nothing but errors of ours, in bounded memory; what opens is described."""
    path = tmp_path / "x.irpa"
    messages, opened, peak = [], 0, 0
    tracemalloc.start()
    for number, data in enumerate(mutations(path, 1, 1000)):
        if number == 150:  # it takes much time
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        path.write_bytes(data)
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
    expected, paths = [], []
    for number, mutated in enumerate(mutations(tmp_path / "x.irpa", 2, 600)):
        path = tmp_path / f"{number}.irpa"
        path.write_bytes(mutated)
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
    assert run_python(READ_BY_IREE, *paths).splitlines() == expected
