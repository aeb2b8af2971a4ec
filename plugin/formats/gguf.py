"""Read GGUF files: properties, and tensors whose bytes stay in the memory-mapped file.

This reader is for any file: each count and length is compared with the rest of the file before
it is used. Beyond the format, a file has to keep to bounds (`_MAX_HEADER_BYTES` and below) that no
model comes near; they keep memory and time in bounds whatever the file says.

PyPI's ``gguf`` (0.19.0) reads good files, with a Python object an element: an array of 1,000,000
bytes takes it 10 s and 689 MB, here 0.01 s and 15 MB. Of damaged files it reads some: tensors that
overlap, are not aligned or wrap to the header, strings that are cut or not UTF-8.

A file is, all little endian: ``GGUF``, version (u32), number of tensors and of properties (u64);
the properties; name, extents, type and offset of each tensor; padding to ``general.alignment``;
the data, where offsets start. A string is its length (u64) and UTF-8. Extents start with the axis
that is contiguous, so the logical shape is them in reverse.

Source: the GGUF specification of ggml.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from ..core.files import regular_file_size, wrong_download
from ..core.strict_json import Json, JsonObject
from ..errors import InputError, Place, SubquantError, UnsupportedError
from ..layouts.ggml import BLOCK_TYPES, PRIMITIVE_TYPES
from ..layouts.ggml_tensor import GgmlTensor
from ..layouts.tensors import InferenceTensor, PrimitiveTensor
from ..numerics.element_types import Array, DType
from .gguf_splits import Contents, read_parts

MAGIC = b"GGUF"
"""The first bytes of a GGUF file."""

_VERSIONS = (2, 3)
"""The versions of GGUF that are read, of llama.cpp; another is refused."""
_MAX_HEADER_BYTES = 2**28
"""Bytes before the data, at most: 256 MiB; more are refused as damaged."""
_MAX_PROPERTIES = _MAX_TENSORS = 2**16
"""Properties, and tensors, of a file, at most; more are refused as damaged."""
_MAX_ELEMENTS = 2**22
"""Elements of all arrays among the properties, at most; more are refused as damaged."""
_MAX_AXES = 4
"""Axes of a tensor, at most: ggml's ``GGML_MAX_DIMS``. More are refused."""
_LONGEST_NAME = 2**16 - 1
"""Bytes of a name, at most; a longer one is refused as damaged."""
_DEFAULT_ALIGNMENT = 32
"""Alignment of tensors in bytes without ``general.alignment``: the format's, not tunable."""
_VOCABULARY = "tokenizer."
"""The beginning of the keys of the vocabulary's properties."""

_SCALARS: dict[int, DType] = {
    number: np.dtype(dtype)
    for number, dtype in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8",
        11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
_BOOL, _STRING, _ARRAY, _U32 = 7, 8, 9, 4
"""Numbers of GGUF's value types for booleans, strings, arrays and u32; not tunable."""

GGML_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""GGML's names of types by number."""


class KnownHeaders(Protocol):
    """Headers of files whose vocabulary is known, so that its lists need not be read."""

    def list_ends(self, data: mmap.mmap) -> Mapping[str, int] | None:
        """Return the end of each list of the vocabulary by its key; None for another header."""

    def add(self, data: mmap.mmap, size: int, list_ends: Mapping[str, int]) -> None:
        """Take note of a header of `size` bytes, whose lists were read."""


Lists = bool | KnownHeaders
"""True to read the lists of the vocabulary, or those of headers that are not known."""


def read_gguf(path: str | os.PathLike[str], *, lists: Lists = True) -> Contents:
    """Read a model of GGUF's version 2 or 3, little endian.

    Args:
        path: of the file, or of any part of a model in several files, which are all read
            (`subquant.formats.gguf_splits`). Files must not change while the tensors are in use:
            they are views of them.
        lists: whether the lists of the vocabulary (``tokenizer.*``) are among the properties:
            262,144 pieces with scores and types take 0.12 s, and 0.03 s to pass over, or no time
            in a known header.

    Returns:
        The properties (numbers, booleans, strings, and lists of them), and the tensors by name:
        `PrimitiveTensor`, or `GgmlTensor` for types with blocks.

    Raises:
        InputError: a file cannot be read, is no valid GGUF file, or does not fit the other parts.
        UnsupportedError: a file is of another version or byte order, or has a tensor of a type that
            there is no layout for.
    """
    return read_parts(path, lambda part: read_gguf_file(part, lists=lists))


def read_gguf_file(path: str | os.PathLike[str], *, lists: Lists = True) -> Contents:
    """Read one file as `read_gguf`: of a model in several files, that part alone."""
    return _reader(path, lists=lists).read()


def _reader(path: str | os.PathLike[str], *, lists: Lists) -> _Reader:
    """Map a file; errors as `read_gguf_file`."""
    file = os.fspath(path)
    try:
        if not regular_file_size(file):
            raise InputError("is empty, expected a GGUF file", Place(file))
        with open(file, "rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: no path at all, or empty by now
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read '{file}': {reason}") from None
    if isinstance(lists, bool):
        return _Reader(data, file, lists)
    ends = lists.list_ends(data)
    return _Reader(data, file, ends is None, lists, ends or {})


def property_bytes(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the properties of a file as bytes: key, type and value, for `gguf_writer`.

    Raises:
        InputError, UnsupportedError: as `read_gguf_file`.
    """
    reader = _reader(path, lists=True)
    reader.properties(reader.counts()[1])
    return {key: reader.data[start:end] for key, (start, end) in reader.ranges.items()}


class _Info(NamedTuple):
    """Header entry of a tensor; offset and end are bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    end: int


@dataclass
class _Reader:
    """A place in the header of a file; `passes_over` while a list of the vocabulary is not read.

    `known_ends` are the ends of lists that are not read, of a header among the `known` ones.
    `ranges` are the bytes of each property that was read: its key, type and value.
    """

    data: mmap.mmap
    file: str
    lists: bool
    known: KnownHeaders | None = None
    known_ends: Mapping[str, int] = field(default_factory=dict)
    passes_over: bool = False
    offset: int = 0
    elements: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def error(self, message: str, kind: type[SubquantError] = InputError) -> SubquantError:
        """An error with the name of the file."""
        return kind(message, Place(self.file))

    def read(self) -> Contents:
        """The whole file."""
        tensors, properties = self.counts()
        values = self.properties(properties)
        infos: dict[str, _Info] = {}
        for number in range(tensors):
            info = self.tensor_info(number)
            if info.name in infos:
                raise self.error(f"two tensors are named {_shown(info.name)}")
            infos[info.name] = info
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        start = -(-self.offset // alignment) * alignment
        self.check_ranges(list(infos.values()), start, alignment)
        if self.known is not None and self.lists:
            vocabulary = [key for key in values if key.startswith(_VOCABULARY)]
            ends = {key: self.ranges[key][1] for key in vocabulary if isinstance(values[key], list)}
            self.known.add(self.data, self.offset, ends)
        return values, {name: self.tensor(info, start) for name, info in infos.items()}

    # -- the header --------------------------------------------------------------------------------

    def take(self, size: int, what: str) -> int:
        """Advance over some bytes, and return where they start."""
        start, end = self.offset, self.offset + size
        if end > len(self.data):
            raise self.error(
                f"ends within {what}: {size} bytes from byte {start}, and the file has "
                f"{len(self.data)}"
            )
        if end > _MAX_HEADER_BYTES:
            raise self.error(
                f"has more than {_MAX_HEADER_BYTES} bytes before the data: "
                f"{what} ends at byte {end}"
            )
        self.offset = end
        return start

    def integer(self, code: str, what: str) -> int:
        """One integer, of a type as in `struct`."""
        start = self.take(struct.calcsize(code), what)
        return int(struct.unpack_from(f"<{code}", self.data, start)[0])

    def string(self, what: str) -> str:
        """One string."""
        size = self.integer("Q", f"the length of {what}")
        start = self.take(size, what)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"{what} is not UTF-8: byte {start + error.start} is "
                f"0x{self.data[start + error.start]:02x}"
            ) from None

    def name(self, what: str) -> str:
        """A string that names something."""
        start, name = self.offset, self.string(what)
        if not 1 <= self.offset - start - 8 <= _LONGEST_NAME:
            raise self.error(
                f"{what} at byte {start} has {self.offset - start - 8} bytes, expected 1 to "
                f"{_LONGEST_NAME}"
            )
        return name

    def count(self, what: str, least: int, most: int) -> int:
        """A number of things of a least size each, which have to fit into the rest of the file."""
        number = self.integer("Q", f"the number of {what}")
        available = (len(self.data) - self.offset) // least
        if number > available:
            raise self.error(
                f"is said to have {number} {what}, and there is room for at most {available} after "
                f"byte {self.offset}"
            )
        if number > most:
            raise self.error(f"has {number} {what}, expected at most {most}")
        return number

    def counts(self) -> tuple[int, int]:
        """Magic, version, and the numbers of tensors and properties."""
        magic = self.data[: len(MAGIC)]
        if magic != MAGIC:
            raise self.error(
                f"is no GGUF file: starts with {magic!r}, expected {MAGIC!r}"
                f"{wrong_download(bytes(self.data[:64]))}"
            )
        self.offset = len(MAGIC)
        version = self.integer("I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            order = " in big-endian order" if swapped in _VERSIONS else ""
            raise self.error(
                f"is of GGUF's version {swapped if order else version}{order}, expected 2 or 3 in "
                f"little-endian order; convert the model again",
                UnsupportedError,
            )
        tensors = self.count("tensors", 8 + 1 + 4 + 4 + 8, _MAX_TENSORS)
        properties = self.count("properties", 8 + 1 + 4 + 1, _MAX_PROPERTIES)
        return tensors, properties

    def properties(self, count: int) -> JsonObject:
        """The properties by key; without lists of the vocabulary, if these are not read."""
        values: JsonObject = {}
        passed: list[str] = []
        for number in range(count):
            start = self.offset
            key = self.name(f"the key of property {number}")
            if key in values:
                raise self.error(f"two properties are named {_shown(key)}")
            what = f"property {_shown(key)}"
            kind = self.integer("I", f"the type of {what}")
            if key == "general.alignment" and kind != _U32:
                raise self.error(f"{what} is of the type {kind}, expected {_U32} (u32)")
            if kind == _ARRAY and key in self.known_ends:
                self.offset = self.known_ends[key]
                continue
            self.passes_over = not self.lists and key.startswith(_VOCABULARY)
            values[key] = self.value(kind, what)
            self.ranges[key] = start, self.offset
            if kind == _ARRAY and self.passes_over:
                passed.append(key)
        for key in passed:
            del values[key]
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        if alignment == 0 or alignment & (alignment - 1):
            raise self.error(
                f"property 'general.alignment' is {alignment}, expected a power of two"
            )
        return values

    def value(self, kind: int, what: str) -> Json:
        """A value of a type."""
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise self.error(f"{what} is of the type {kind}, expected 0 to 12")
        return self.scalars(kind, 1, what)[0]

    def array(self, what: str) -> list[Json]:
        """An array, as a list; it is empty if it is passed over."""
        kind = self.integer("I", f"the type of the elements of {what}")
        if kind == _ARRAY:
            raise self.error(
                f"{what} is an array of arrays; expected numbers, booleans or strings",
                UnsupportedError,
            )
        if kind not in _SCALARS and kind != _STRING:
            raise self.error(f"{what} has elements of the type {kind}, expected 0 to 12")
        least = 8 if kind == _STRING else _SCALARS[kind].itemsize
        count = self.count(f"elements in {what}", least, _MAX_ELEMENTS - self.elements)
        self.elements += count
        if kind == _STRING:
            return self.strings(count, what)
        if self.passes_over:
            self.take(count * _SCALARS[kind].itemsize, what)
            return []
        return self.scalars(kind, count, what)

    def strings(self, count: int, what: str) -> list[Json]:
        """Some strings; a vocabulary has hundreds of thousands."""
        length_at, data, reads = struct.Struct("<Q").unpack_from, self.data, not self.passes_over
        available = min(len(data), _MAX_HEADER_BYTES)
        values_read: list[Json] = []
        offset, left = self.offset, count
        try:
            while left:
                start = offset + 8
                end = start + length_at(data, offset)[0]
                if end > available:
                    break
                if reads:
                    values_read.append(data[start:end].decode())
                offset = end
                left -= 1
        except (struct.error, UnicodeDecodeError):
            pass
        self.offset = offset
        # `string` raises the error of the next one.
        values_read.extend(self.string(what) for _ in range(left))
        return values_read

    def scalars(self, kind: int, count: int, what: str) -> list[Json]:
        """Some numbers or booleans."""
        dtype = _SCALARS[kind]
        start = self.take(count * dtype.itemsize, what)
        values = np.frombuffer(self.data, dtype, count, start)
        if kind == _BOOL:
            if (values > 1).any():
                raise self.error(f"{what} has a boolean of {values.max()}, expected 0 or 1")
            values = values.astype(np.bool_)
        numbers: list[Json] = values.tolist()
        return numbers

    def tensor_info(self, number: int) -> _Info:
        """Read the header entry of a tensor."""
        name = self.name(f"the name of tensor {number}")
        what = f"tensor {_shown(name)}"
        axes = self.integer("I", f"the number of axes of {what}")
        if axes > _MAX_AXES:
            raise self.error(f"{what} has {axes} axes, expected at most {_MAX_AXES}")
        shape = tuple(self.integer("Q", f"the extents of {what}") for _ in range(axes))[::-1]
        code = self.integer("I", f"the type of {what}")
        offset = self.integer("Q", f"the offset of {what}")
        kind = GGML_TYPES.get(code, str(code))
        if kind not in PRIMITIVE_TYPES and kind not in BLOCK_TYPES:
            raise self.error(
                f"{what} is of the GGML type {kind}, which has no layout; expected one of: "
                f"{', '.join((*PRIMITIVE_TYPES, *BLOCK_TYPES))}",
                UnsupportedError,
            )
        if 0 in shape:
            raise self.error(f"{what} has the shape {list(shape)}, expected no extent of 0")
        block = BLOCK_TYPES.get(kind)
        if block is None:
            size = math.prod(shape) * PRIMITIVE_TYPES[kind].itemsize
        elif not shape or shape[-1] % block.size:
            raise self.error(
                f"{what} of the GGML type {kind} has the shape {list(shape)}, expected a last axis "
                f"that is a multiple of {block.size}"
            )
        else:
            size = math.prod(shape) // block.size * block.block.itemsize
        return _Info(name, shape, kind, offset, offset + size)

    # -- the data ----------------------------------------------------------------------------------

    def check_ranges(self, infos: list[_Info], start: int, alignment: int) -> None:
        """Check that tensors lie in the file, aligned, and apart from each other."""
        available = max(0, len(self.data) - start)
        for info in infos:
            if info.offset % alignment:
                raise self.error(
                    f"tensor {_shown(info.name)} is at the offset {info.offset}, expected a "
                    f"multiple of the alignment {alignment}"
                )
            if info.end > available:
                raise self.error(
                    f"tensor {_shown(info.name)} of {list(info.shape)} {info.kind} ends "
                    f"{info.end} bytes into the data, which has {available}; the file is "
                    "incomplete or damaged"
                )
        ordered = sorted(infos, key=lambda info: info.offset)
        for first, second in pairwise(ordered):
            if first.end > second.offset:
                raise self.error(
                    f"tensors {_shown(first.name)} and {_shown(second.name)} overlap: bytes "
                    f"{first.offset} to {first.end} and {second.offset} to {second.end} of the data"
                )

    def tensor(self, info: _Info, start: int) -> InferenceTensor:
        """The tensor of a checked range."""
        size = info.end - info.offset
        raw: Array = np.frombuffer(self.data, np.uint8, size, start + info.offset)
        if info.kind in PRIMITIVE_TYPES:
            array = raw.view(PRIMITIVE_TYPES[info.kind]).reshape(info.shape)
            return PrimitiveTensor(array, info.name)
        return GgmlTensor(raw, info.kind, info.shape, info.name)


def _shown(name: str) -> str:
    """A name in quotes, of a length that fits into a message."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."
