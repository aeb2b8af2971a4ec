"""Read safetensors files: memory-mapped, and strict.

A file is the length of its header (8 bytes, little-endian), the header (JSON), and the data. The
header maps names to ``{"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}``, with offsets
from the start of the data; ``__metadata__`` maps strings to strings.

The reader is our own, and not PyPI's ``safetensors``, because that one returns bf16 and 8-bit
floats only through PyTorch, copies what it returns as NumPy arrays, and reads a header that has a
name twice as the last of the two. Whatever is accepted here is accepted there, with the same bytes.
The memory that a header takes is bounded before it is parsed (`subquant.formats.strict_json`).

Source: the format's description in the repository huggingface/safetensors.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InputError, Place, UnsupportedError
from ..numerics.element_types import Array
from .strict_json import parse_object, regular_file_size, shown

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
_KEYS = {"dtype", "shape", "data_offsets"}


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


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


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
    header = mapped[8 : 8 + length]
    if not header.startswith(b"{"):
        raise InputError(f"the header begins with {shown(header[:1])}, expected '{{'", place)
    loaded = parse_object(header, "the header", str(path), integer=_integer, is_part=True)
    metadata, entries = _entries(loaded, place)
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
    if entry.dtype == np.bool_ and part.size and part.max() > 1:
        raise InputError(
            f"tensor {shown(entry.name)} of BOOL has the byte {part.max()}, expected 0 or 1", place
        )
    try:
        array = part.view(entry.dtype).reshape(entry.shape)
    except ValueError:  # no elements, and extents whose product does not fit NumPy
        raise InputError(
            f"tensor {shown(entry.name)} has the shape {list(entry.shape)}, which no array has",
            place,
        ) from None
    return array


def _entries(header: Mapping[str, Any], place: Place) -> tuple[dict[str, str], list[_Entry]]:
    """The metadata and the tensors, each consistent in itself."""
    metadata: dict[str, str] = {}
    entries: list[_Entry] = []
    for name, value in header.items():
        if not isinstance(value, dict):
            raise InputError(f"{shown(name)} must be an object, got {shown(value)}", place)
        if name != "__metadata__":
            entries.append(_entry(name, value, place))
            continue
        for key, text in value.items():
            if not isinstance(text, str):
                raise InputError(f"metadata {shown(key)} is {shown(text)}, expected text", place)
            metadata[key] = text
    return metadata, entries


def _entry(name: str, value: Mapping[str, Any], place: Place) -> _Entry:
    def error(message: str) -> InputError:
        return InputError(f"tensor {shown(name)} {message}", place)

    if value.keys() != _KEYS:
        found = ", ".join(map(shown, value)) or "none"
        raise error(f"has the keys {found}; expected dtype, shape and data_offsets")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if kind in _PACKED:
        raise UnsupportedError(
            f"tensor {shown(name)} has elements of {kind}, which are narrower than a byte; store "
            "them as U8",
            place,
        )
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise error(f"has elements of {shown(kind)}, expected one of: {', '.join(DTYPES)}")
    for key, integers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(integers, list) or not all(type(n) is int for n in integers):
            raise error(f"has as its {key} {shown(integers)}, expected a list of integers")
    if len(shape) > MAX_RANK:
        raise error(f"has {len(shape)} dimensions, expected at most {MAX_RANK}")
    if len(offsets) != 2:
        raise error(f"has {len(offsets)} offsets, expected 2")
    begin, end = offsets
    size = math.prod(shape) * dtype.itemsize
    if end - begin != size:
        raise error(
            f"of shape {shape} and {kind} takes {size} bytes, got the range {begin} to {end}"
        )
    return _Entry(name, dtype, tuple(shape), begin, end)


def _integer(text: str) -> int:
    """An offset or an extent; the format has no other numbers."""
    if text.startswith("-") or len(text) > 19 or int(text) >= 1 << 63:
        raise ValueError(f"expected integers from 0 to 2**63 - 1, got {shown(text)}")
    return int(text)
