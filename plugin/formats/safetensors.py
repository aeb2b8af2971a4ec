"""Read safetensors files: memory-mapped, and strict.

A file is the length of its header (8 bytes, little-endian), the header (JSON), and the data. The
header maps names to ``{"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}``, with offsets
from the start of the data; ``__metadata__`` maps strings to strings.

The reader is our own, and not PyPI's ``safetensors``, because that one returns bf16 and 8-bit
floats only through PyTorch, copies what it returns as NumPy arrays, and reads a header with the
same name twice as the last of the two. Here a header is read from left to right, each thing
checked before the next one is looked at, so that what a wrong header costs is bounded by what it
says until it is wrong. Whatever is accepted here is accepted there, with the same bytes.

Source: the format's description in the repository huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InputError, Place, UnsupportedError
from ..quantization import Array
from .strict_json import regular_file_size, shown

__all__ = ["DTYPES", "SafetensorsFile", "read_safetensors"]

MAX_HEADER = 100_000_000
"""Bytes of a header; the limit of the format's own library."""

MAX_RANK = 32
"""Dimensions of a tensor; NumPy before 2.0 has no more."""

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "U16": np.uint16,
        "U32": np.uint32,
        "U64": np.uint64,
        "I8": np.int8,
        "I16": np.int16,
        "I32": np.int32,
        "I64": np.int64,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F32": np.float32,
        "F64": np.float64,
        "C64": np.complex64,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}
"""NumPy's dtypes by the names of the format."""

_PACKED = ("F4", "F6_E2M3", "F6_E3M2")  # of the format, but narrower than a byte
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\["\\/bfnrtu][^"\\\x00-\x1f]*)*"')
_SPACE = re.compile(r"[ \t\n\r]*")
_INTEGER = re.compile(r"(?:0|[1-9][0-9]{0,18})(?![0-9.eE])")


@dataclass(frozen=True)
class SafetensorsFile:
    """The contents of a file.

    Attributes:
        path: of the file.
        metadata: of the file.
        tensors: read-only arrays by name, in the order of the header. They are views of the mapped
            file, which must keep its length while they are used; some may be unaligned.
    """

    path: str
    metadata: dict[str, str]
    tensors: dict[str, Array]


@dataclass
class _Entry:
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    begin: int = 0
    end: int = 0


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Map a file and check all of its header.

    Raises:
        InputError: the file cannot be read, or is not what the format says.
        UnsupportedError: a tensor has elements narrower than a byte.
    """
    place = Place(str(path))
    size = regular_file_size(path)
    if size < 8:
        raise InputError(f"a safetensors file has at least 8 bytes, got {size}", place)
    try:
        with Path(path).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: the file is empty by now
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read '{path}': {reason}") from None
    length = int.from_bytes(mapped[:8], "little")
    if length > min(MAX_HEADER, len(mapped) - 8):
        raise InputError(
            f"not a safetensors file, or truncated: the first 8 bytes say that the header has "
            f"{length} bytes, expected at most {min(MAX_HEADER, len(mapped) - 8)}",
            place,
        )
    try:
        text = mapped[8 : 8 + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the header is not UTF-8 at byte {error.start}", place) from None
    metadata, entries = _Header(text, place).read()
    _check_ranges(entries, len(mapped) - 8 - length, place)
    data = np.frombuffer(mapped, np.uint8)[8 + length :]
    return SafetensorsFile(
        str(path), metadata, {entry.name: _array(entry, data, place) for entry in entries}
    )


def _check_ranges(entries: list[_Entry], size: int, place: Place) -> None:
    """Check that the tensors cover the data, one after the other."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end:
            wrong = "overlaps the one before it" if entry.begin < end else "leaves a hole before it"
            raise InputError(
                f"tensor {shown(entry.name)} at bytes {entry.begin} to {entry.end} of the data "
                f"{wrong}, expected it to begin at {end}",
                place,
            )
        end = entry.end
    if end != size:
        raise InputError(
            f"the header describes {end} bytes of data, got {size}; "
            f"{'the file is truncated' if end > size else 'nothing may follow'}",
            place,
        )


def _array(entry: _Entry, data: Array, place: Place) -> Array:
    part = data[entry.begin : entry.end]
    dtype = DTYPES[entry.dtype]
    if dtype == np.bool_ and part.size and part.max() > 1:
        raise InputError(
            f"tensor {shown(entry.name)} of BOOL has the byte {part.max()}, expected 0 or 1", place
        )
    try:
        array = part.view(dtype).reshape(entry.shape)
    except ValueError:  # no elements, and extents whose product does not fit NumPy
        raise InputError(
            f"tensor {shown(entry.name)} has the shape {list(entry.shape)}, which no array has",
            place,
        ) from None
    return array


class _Header:
    """A reader of the header's text, which knows what has to come next."""

    def __init__(self, text: str, place: Place) -> None:
        self.text = text
        self.place = place
        self.at = 0

    def read(self) -> tuple[dict[str, str], list[_Entry]]:
        """The metadata and the tensors, each tensor consistent in itself."""
        metadata: dict[str, str] = {}
        entries: list[_Entry] = []

        def member(name: str) -> None:
            if name != "__metadata__":
                entries.append(self.entry(name))
                return
            self.members(lambda key: metadata.update({key: self.string(f"metadata {shown(key)}")}))

        if not self.text.startswith("{"):
            raise self.error("expected '{' at the start of the header")
        self.members(member)
        self.skip()
        if self.at != len(self.text):
            raise self.error("expected nothing but spaces after the header's object")
        return metadata, entries

    def entry(self, name: str) -> _Entry:
        """A tensor's dtype, shape and range."""
        entry = _Entry(name)
        label = f"tensor {shown(name)}"
        seen: set[str] = set()

        def member(key: str) -> None:
            seen.add(key)
            if key == "dtype":
                entry.dtype = self.string(f"the dtype of {label}")
            elif key == "shape":
                entry.shape = self.integers(f"the shape of {label}", MAX_RANK)
            elif key == "data_offsets":
                offsets = self.integers(f"the offsets of {label}", 2)
                if len(offsets) != 2:
                    raise self.error(f"{label} has {len(offsets)} offsets, expected 2")
                entry.begin, entry.end = offsets
            else:
                raise self.error(
                    f"{label} has the key {shown(key)}, expected dtype, shape and data_offsets"
                )

        self.members(member)
        missing = [key for key in ("dtype", "shape", "data_offsets") if key not in seen]
        if missing:
            raise self.error(f"{label} has no {' and no '.join(missing)}")
        if entry.dtype in _PACKED:
            raise UnsupportedError(
                f"{label} has elements of {entry.dtype}, which are narrower than a byte; "
                "store them as U8",
                self.place,
            )
        if entry.dtype not in DTYPES:
            raise self.error(
                f"{label} has elements of {shown(entry.dtype)}, expected one of: "
                f"{', '.join(DTYPES)}"
            )
        size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if entry.end - entry.begin != size:
            raise self.error(
                f"{label} of shape {list(entry.shape)} and {entry.dtype} takes {size} bytes, got "
                f"the range {entry.begin} to {entry.end}"
            )
        return entry

    # -- JSON -------------------------------------------------------------------------------------

    def members(self, member: Callable[[str], None]) -> None:
        """An object; `member` is called with each key, to read its value."""
        self.token("{")
        seen: set[str] = set()
        if self.found("}"):
            return
        while True:
            key = self.string("a name")
            if key in seen:
                raise self.error(f"{shown(key)} is there twice")
            seen.add(key)
            self.token(":")
            member(key)
            if self.found("}"):
                return
            self.token(",")

    def integers(self, what: str, most: int) -> tuple[int, ...]:
        """A list of integers, which are not negative and less than 2**63."""
        self.token("[")
        values: list[int] = []
        if self.found("]"):
            return ()
        while True:
            self.skip()
            match = _INTEGER.match(self.text, self.at)
            if match is None or int(match.group()) >= 1 << 63:
                raise self.error(f"expected integers from 0 to 2**63 - 1 as {what}")
            if len(values) == most:
                raise self.error(f"expected at most {most} integers as {what}")
            values.append(int(match.group()))
            self.at = match.end()
            if self.found("]"):
                return tuple(values)
            self.token(",")

    def string(self, what: str) -> str:
        """A string."""
        self.skip()
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected a string as {what}")
        try:
            value = str(json.loads(match.group()))
            value.encode("utf-8")
        except ValueError:  # an escape that is incomplete, or half of a surrogate pair
            raise self.error(f"expected valid escapes in the string as {what}") from None
        self.at = match.end()
        return value

    def skip(self) -> None:
        """Go on to what is not a space."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def found(self, mark: str) -> bool:
        """Whether a mark is next, which is then taken."""
        self.skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def token(self, mark: str) -> None:
        """Take a mark that must be next."""
        if not self.found(mark):
            raise self.error(f"expected '{mark}'")

    def error(self, message: str) -> InputError:
        """An error at the place that is being read."""
        rest = self.text[self.at : self.at + 20]
        found = shown(rest) if rest else "the end"
        return InputError(
            f"wrong header: {message}, got {found} at character {self.at} of the header", self.place
        )
