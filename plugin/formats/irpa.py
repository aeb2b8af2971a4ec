"""IREE parameter archives (``.irpa``), version 0: the format, and a reader that does not copy.

An archive is a list of named byte ranges. Integers are little-endian, nothing is padded inside:

    header   magic "IRPA", u16 major, u16 minor, u64 size of the header (88), u64 offset of a
             further header or 0, u64 flags, u64 number of entries, then offset and length (u64) of
             three segments, from the start of the header: entries, metadata, storage
    entry    u64 size, u32 type, u64 flags, offset and length of the name in the metadata, offset
             and length of the entry's own metadata, u64 alignment; entries are aligned to 16
      splat  (1)  u64 length, 16 bytes of pattern, u8 length of the pattern (1, 2, 4, 8 or 16)
      data   (2)  offset and length in the storage
      others (0)  skipped; (3) is data in another file, which IREE's own reader refuses too

The format says nothing of types. The metadata of an entry that holds a tensor is ``PYTORCH:`` and
JSON, as iree.turbine writes it: ``{"type": "Tensor", "dtype": "float16", "shape": [2, 3],
"dtype_desc": {"class_name": "dtype", "is_complex": false, "is_floating_point": true, "is_signed":
true, "itemsize": 2}}``, with the names of PyTorch's types. Bytes without it are plain.

The reader is our own, because ``iree.runtime.ParameterIndex`` adds offsets without a look at
overflow: of 1,488 archives with one number of the header or the entries replaced, IREE 3.13 read
beyond the file on 8 (SIGSEGV), did not end on 2, and opened 61 that are errors here.

Source: IREE's ``schemas/parameter_archive.h``; ``iree.turbine.aot.params`` 3.9.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ..core.files import regular_file_size
from ..core.strict_json import parse_json, shown
from ..errors import InputError, Place, UnsupportedError
from ..numerics.element_types import Array, DType

MAGIC = b"IRPA"
DATA_ALIGNMENT = 64
"""Alignment of an entry's storage in bytes, as IREE writes archives."""
FILE_ALIGNMENT = 4096
"""Bytes to a multiple of which a file is padded, as IREE writes archives: a page."""

HEADER = struct.Struct("<4sHHQQQQ6Q")
ENTRY = struct.Struct("<QIQ5Q")
DATA = struct.Struct("<QQ")
SPLAT = struct.Struct("<Q16sB")
_SKIPPED_TYPE, SPLAT_TYPE, DATA_TYPE, _EXTERNAL_TYPE = range(4)
TENSOR_PREFIX = b"PYTORCH:"
MAX_NAME_BYTES = 1 << 16
"""Bytes of a name in an archive that is read or written, at most; longer ones are refused."""

_NAMES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "complex64", "complex128"),
)
DTYPES: dict[str, DType] = {n: np.dtype(getattr(ml_dtypes, n, n)) for n in _NAMES}
"""The element types of tensors in archives, by PyTorch's names."""


class Splat(np.ndarray[Any, Any]):
    """One element, repeated: all strides are 0, and it is written as it was read."""


@dataclass(frozen=True)
class Entry:
    """A named byte range of an archive.

    Args:
        metadata: undecoded.
        data: its bytes, as a view of the file; None for a splat.
        pattern: the bytes that a splat repeats.
    """

    name: str
    length: int
    metadata: bytes = b""
    data: Array | None = None
    pattern: bytes = b""
    file: str = "-"

    def content(self) -> bytes:
        """A copy of the bytes of an entry that holds no tensor.

        Raises:
            UnsupportedError: the entry is a splat.
        """
        if self.data is None:
            raise UnsupportedError(f"{self} is a splat, not data", Place(self.file))
        return self.data.tobytes()

    def array(self) -> Array:
        """The tensor, as a view of the file; elements of u8 if the archive does not say.

        Raises:
            InputError: the metadata is not a tensor's, or does not fit the length.
        """
        dtype, shape = self._type()
        expected_type = f"{'x'.join(map(str, shape)) or 'one'} {dtype.name}"
        wrong = f"{self} has {self.length} bytes, expected those of {expected_type}"
        if math.prod(shape) * dtype.itemsize != self.length:
            raise self._error(wrong)
        try:
            if self.data is not None:
                return self.data.view(dtype).reshape(shape)
            element = self.pattern * max(dtype.itemsize // len(self.pattern), 1)
            if element != element[: dtype.itemsize] * (len(element) // dtype.itemsize):
                size = len(self.pattern)
                raise self._error(
                    f"{self} repeats {size} bytes, which is no element of {dtype.name}"
                )
            value = np.frombuffer(element[: dtype.itemsize], dtype).reshape(())
            return np.broadcast_to(value, shape).view(Splat)
        except (ValueError, OverflowError):  # more than NumPy's arrays can be
            raise self._error(wrong) from None

    def _error(self, message: str) -> InputError:
        return InputError(message, Place(self.file))

    def __str__(self) -> str:
        return f"entry {shown(self.name)}"

    def _type(self) -> tuple[DType, tuple[int, ...]]:
        if not self.metadata.startswith(TENSOR_PREFIX):
            size = len(self.pattern) or 1
            dtype = np.dtype("complex128" if size == 16 else f"u{size}")
            return dtype, (self.length // dtype.itemsize,)
        where = f"the metadata of {self}"
        description = parse_json(
            self.metadata[len(TENSOR_PREFIX) :], where, self.file, is_part=True
        )
        description = description if isinstance(description, dict) else {}
        dtype_name, shape = description.get("dtype"), description.get("shape")
        is_tensor = description.get("type") == "Tensor" and isinstance(dtype_name, str)
        if not (
            is_tensor
            and isinstance(shape, list)
            and all(type(extent) is int and 0 <= extent < 1 << 63 for extent in shape)
        ):
            raise self._error(f"{where} is not a tensor's: {shown(description)}")
        if dtype_name not in DTYPES:
            raise self._error(
                f"{where} has the unknown dtype {shown(dtype_name)}; expected one of: "
                f"{', '.join(DTYPES)}"
            )
        return DTYPES[dtype_name], tuple(shape)


class Archive(Mapping[str, Entry]):
    """The entries of an archive by name, in the order of the file, which stays mapped.

    Raises:
        InputError: it cannot be read, or is not a valid archive.
        UnsupportedError: it is of another version, or has data in another file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.size = regular_file_size(path)
        """Bytes of the file."""
        mapped: bytes | mmap.mmap = b""
        try:
            with open(path, "rb") as file:
                if self.size:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read '{self.path}': {reason}") from None
        parser = _Parser(self.path, memoryview(mapped))
        self._entries = parser.entries()
        self.headers = parser.headers
        """The number of headers; all but the first are linked by the one before."""

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass
class _Parser:
    """Checks every range before it is read, and that work and memory are bounded by the file."""

    path: str
    data: memoryview
    spans: list[tuple[int, int]] = field(default_factory=list)
    headers: int = 0

    def entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        base, budget, texts = 0, len(self.data) // ENTRY.size, len(self.data)
        while True:
            following, count, segments = self.header(base)
            self.headers += 1
            budget -= count
            if budget < 0:
                raise self.wrong(f"has {count} entries, more than its {len(self.data)} bytes hold")
            for entry in self.table(count, segments):
                texts -= len(entry.name) + len(entry.metadata)
                if entry.name in entries:
                    raise self.wrong(f"has two entries named {shown(entry.name)}")
                if texts < 0:
                    raise self.wrong("has names and metadata that overlap")
                entries[entry.name] = entry
            if not following:
                break
            base += following
        self.check_overlap()
        return entries

    def header(self, base: int) -> tuple[int, int, list[tuple[int, int]]]:
        if base + HEADER.size > len(self.data):
            raise self.wrong(
                f"has a header at {base}, and only {len(self.data)} bytes; it may be truncated"
            )
        magic, major, minor, size, following, _, count, *ranges = HEADER.unpack_from(
            self.data, base
        )
        if magic != MAGIC:
            raise self.wrong(f"has a header that starts with {magic!r}, expected {MAGIC!r}")
        if (major, minor) != (0, 0):
            raise UnsupportedError(
                f"the archive is of version {major}.{minor}; only 0.0 can be read", Place(self.path)
            )
        if size != HEADER.size:
            raise self.wrong(f"has a header of {size} bytes, expected {HEADER.size}")
        segments = [(ranges[i], ranges[i + 1]) for i in (0, 2, 4)]
        titles = ("entries", "metadata", "storage")
        for title, (offset, length) in zip(titles, segments, strict=True):
            if length and base + offset + length > len(self.data):
                raise self.wrong(
                    f"has its {title} at {base + offset} to {base + offset + length}, and only "
                    f"{len(self.data)} bytes; it may be truncated"
                )
        self.spans.append((base, base + size))
        if segments[0][1]:
            self.spans.append((base + segments[0][0], base + sum(segments[0])))
        return following, count, [(base + offset, length) for offset, length in segments]

    def table(self, count: int, segments: list[tuple[int, int]]) -> Iterator[Entry]:
        (at, length), metadata, storage = segments
        end = at + length
        for number in range(count):
            if at + ENTRY.size > end:
                raise self.wrong(f"says that it has {count} entries, and has room for {number}")
            size, kind, _, *fields = ENTRY.unpack_from(self.data, at)
            rest = size - ENTRY.size
            if rest < 0 or at + size > end:
                raise self.wrong(f"has an entry {number} of {size} bytes at {at}")
            name_range, metadata_range = (fields[0], fields[1]), (fields[2], fields[3])
            if kind != _SKIPPED_TYPE:
                name = self.name(self.range(metadata, name_range, f"the name of entry {number}"))
                about = self.range(metadata, metadata_range, f"the metadata of {shown(name)}")
                yield self.entry(kind, name, about, at + ENTRY.size, rest, storage)
            at += -(-size // 16) * 16

    def entry(
        self, kind: int, name: str, about: memoryview, at: int, rest: int, storage: tuple[int, int]
    ) -> Entry:
        if kind == _EXTERNAL_TYPE:
            raise UnsupportedError(f"entry {shown(name)} is in another file", Place(self.path))
        if kind not in (SPLAT_TYPE, DATA_TYPE):
            raise self.wrong(f"has an entry {shown(name)} of the unknown type {kind}")
        fields = SPLAT if kind == SPLAT_TYPE else DATA
        if rest < fields.size:
            raise self.wrong(f"has an entry {shown(name)} that is too small for its type")
        if kind == SPLAT_TYPE:
            length, pattern, size = SPLAT.unpack_from(self.data, at)
            if size not in (1, 2, 4, 8, 16) or length % size:
                raise self.wrong(
                    f"has a splat {shown(name)} of {size} bytes, {length} bytes in all; "
                    "expected a pattern of 1, 2, 4, 8 or 16 bytes that divides them"
                )
            return Entry(name, length, about.tobytes(), None, pattern[:size], self.path)
        offset, length = DATA.unpack_from(self.data, at)
        data = self.range(storage, (offset, length), f"the data of {shown(name)}")
        if length:
            self.spans.append((storage[0] + offset, storage[0] + offset + length))
        return Entry(name, length, about.tobytes(), np.frombuffer(data, np.uint8), b"", self.path)

    def range(self, segment: tuple[int, int], part: tuple[int, int], what: str) -> memoryview:
        (start, length), (offset, size) = segment, part
        if not size:
            return self.data[:0]
        if offset + size > length:
            raise self.wrong(
                f"has {what} at {offset} to {offset + size} of a segment of {length} bytes"
            )
        return self.data[start + offset : start + offset + size]

    def name(self, data: memoryview) -> str:
        if len(data) > MAX_NAME_BYTES:
            raise self.wrong(f"has a name of {len(data)} bytes, expected at most {MAX_NAME_BYTES}")
        try:
            return data.tobytes().decode()
        except UnicodeDecodeError:
            raise self.wrong(f"has a name that is not UTF-8: {shown(data.tobytes())}") from None

    def check_overlap(self) -> None:
        """Entries may share data, or be a part of others'; anything else is a wrong offset."""
        enclosing: list[tuple[int, int]] = []
        for start, end in sorted(self.spans, key=lambda span: (span[0], -span[1])):
            while enclosing and enclosing[-1][1] <= start:
                enclosing.pop()
            if enclosing and end > enclosing[-1][1]:
                raise self.wrong(
                    f"has the range {start} to {end}, which overlaps {enclosing[-1][0]} to "
                    f"{enclosing[-1][1]}"
                )
            enclosing.append((start, end))

    def wrong(self, message: str) -> InputError:
        return InputError(f"the archive {message}", Place(self.path))


def check_mountable(path: str | os.PathLike[str]) -> None:
    """Check an archive before IREE's runtime opens it.

    IREE 3.13 reads the tables of the first header again for each header that is linked.

    Raises:
        InputError: the file is not a valid archive.
        UnsupportedError: IREE's runtime does not open it.
    """
    archive = Archive(path)
    if archive.headers > 1:
        raise UnsupportedError(
            f"the archive is {archive.headers} archives linked together, which IREE's runtime does "
            "not open; write one with: subquant import",
            Place(archive.path),
        )
