"""Reader of untrusted flatbuffers, table by table.

A table starts with a signed 32-bit distance back to its vtable. The vtable has its own size, the
size of the table (16 bits each), and the offset of each field in the table, or 0 for an absent one.
A scalar is in the table itself. For strings, vectors and further tables, the field has the distance
to them. Numbers are little-endian.

A class of a schema is a frozen dataclass. Its fields, in the order of the schema, are made with the
functions below. PyPI's ``flatbuffers`` has no verifier in Python: its accessors read at any offset
that a file states, before the buffer too. `Reader` checks each offset against the file. A table
with several references is read once: time and memory are at most proportional to the file.

Source: "FlatBuffer Internals", of FlatBuffers' documentation.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from ..core.read_record import Irrelevant, ReadRecord, TrackedItems
from ..errors import InputError, Place
from ..numerics.element_types import Array

_T = TypeVar("_T")
_Read = Callable[["Reader", int, str, Mapping[str, Any]], Any]
"""Reads the value of a field from a reader, its position, its path, and the fields before it."""

_MAX_STRING_BYTES = 1 << 16
"""Bytes of a string in a model, at most; a model with longer ones is refused as damaged."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table. Subclasses have the fields of the schema, in its order."""

    unknown_slots: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
    """Slots of the vtable with fields that the class does not have."""

    def stated(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, and the unknown ones, by name."""
        stated: dict[str, Any] = {}
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            is_array = isinstance(value, np.ndarray)
            if value.size if is_array else value != field.default:
                stated[field.name] = value
        return stated | {f"slot {slot}": UNKNOWN for slot in self.unknown_slots}


class _Unknown:
    """The value of a field that the schema of this package lacks."""


UNKNOWN = _Unknown()
_TTable = TypeVar("_TTable", bound=Table)


def _fields(of: type[Table]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a table class in the order of their slots."""
    return tuple(field for field in dataclasses.fields(of) if "read" in field.metadata)


def tracked(table: _TTable, record: ReadRecord, irrelevant: Sequence[Irrelevant] = ()) -> _TTable:
    """Return a view of a table that records in `record` which fields are read.

    `record` gets the unknown fields, and those that differ from their defaults.
    """
    return cast("_TTable", _Tracked(table, record.track("field", table.stated(), irrelevant)))


class _Tracked:
    """The fields of a table as attributes."""

    def __init__(self, table: Table, items: TrackedItems[Any]) -> None:
        self._table, self._items = table, items

    def __getattr__(self, name: str) -> Any:
        self._items.get(name)
        return getattr(self._table, name)


class Reader:
    """Reads a flatbuffer; the file name is for errors."""

    def __init__(self, data: bytes, file: str = "-") -> None:
        self.data = data
        self.file = file
        self._tables_read: dict[tuple[type, int], Any] = {}

    def root(self, of: type[_T]) -> _T:
        """Return the root table.

        Raises:
            InputError: the file is cut, or points outside itself; names the field.
        """
        return self.table(of, self.target(0, "the root"), "")

    def number(self, position: int, kind: str, path: str) -> Any:
        """Return a number of a type of Python's ``struct``."""
        try:
            return struct.unpack_from(f"<{kind}", self.data, position)[0]
        except struct.error:
            raise self.error(
                path, f"ends at byte {position + struct.calcsize(kind):,}, and the file has "
                f"{len(self.data):,}"
            ) from None  # fmt: skip

    def target(self, position: int, path: str) -> int:
        """Return the position that a field points to."""
        distance = self.number(position, "I", path)
        if not distance or position + distance >= len(self.data):
            raise self.error(path, f"points to byte {position + distance:,} of {len(self.data):,}")
        return int(position + distance)

    def table(self, of: type[_T], position: int, path: str) -> _T:
        """Return the table at a position."""
        table = self._tables_read.get((of, position))
        if table is None:
            table = self._tables_read[of, position] = self._table(of, position, path)
        return cast("_T", table)

    def _table(self, of: type[Any], position: int, path: str) -> Any:
        vtable = position - self.number(position, "i", path)
        if vtable < 0:
            raise self.error(path, f"has its vtable at byte {vtable:,}")
        size, table_size = self.number(vtable, "H", path), self.number(vtable + 2, "H", path)
        fields = _fields(of)
        values: dict[str, Any] = {}
        unknown: list[int] = []
        for slot in range(max(size // 2 - 2, 0)):
            offset = self.number(vtable + 4 + 2 * slot, "H", path)
            if not offset:
                continue
            if slot >= len(fields):
                unknown.append(slot)
                continue
            field = fields[slot]
            name = f"{path}.{field.name}" if path else field.name
            if offset >= table_size:
                raise self.error(name, f"is at byte {offset} of a table of {table_size}")
            values[field.name] = field.metadata["read"](self, position + offset, name, values)
        if unknown:
            values["unknown_slots"] = tuple(unknown)
        return of(**values)

    def items(self, position: int, size: int, path: str) -> tuple[int, int]:
        """Return the position and the number of a vector's items, checked against the file."""
        start = self.target(position, path)
        count = int(self.number(start, "I", path))
        if start + 4 + count * size > len(self.data):
            raise self.error(
                path, f"has {count:,} entries of {size} bytes from byte {start:,}, and the file "
                f"has {len(self.data):,} bytes"
            )  # fmt: skip
        return start + 4, count

    def error(self, path: str, what: str) -> InputError:
        """Return an error at a field."""
        return InputError(
            f"{path or 'the root table'} {what}; the file is damaged", Place(self.file)
        )


def _field(default: Any, read: _Read) -> Any:
    return dataclasses.field(default=default, metadata={"read": read})


def scalar(kind: str, default: float = 0) -> Any:
    """Field with a number of a type of Python's ``struct``; ``?`` is a boolean."""

    def read(reader: Reader, position: int, path: str, _: Mapping[str, Any]) -> Any:
        return reader.number(position, kind, path)

    return _field(bool(default) if kind == "?" else default, read)


def string() -> Any:
    """Field with a text; invalid UTF-8 is replaced."""

    def read(reader: Reader, position: int, path: str, _: Mapping[str, Any]) -> str:
        start, count = reader.items(position, 1, path)
        if count > _MAX_STRING_BYTES:
            raise reader.error(path, f"has {count:,} bytes, more than {_MAX_STRING_BYTES:,}")
        return reader.data[start : start + count].decode(errors="replace")

    return _field("", read)


def vector(kind: str) -> Any:
    """Field with numbers of a NumPy type, as a read-only array; empty if absent."""
    dtype = np.dtype(kind).newbyteorder("<")

    def read(reader: Reader, position: int, path: str, _: Mapping[str, Any]) -> Array:
        start, count = reader.items(position, dtype.itemsize, path)
        return np.frombuffer(reader.data, dtype, count, start)

    empty = np.zeros(0, dtype)
    empty.flags.writeable = False
    return dataclasses.field(default_factory=lambda: empty, metadata={"read": read})


def table(of: Callable[[], type]) -> Any:
    """Field with a table of a class, or None."""

    def read(reader: Reader, position: int, path: str, _: Mapping[str, Any]) -> Any:
        return reader.table(of(), reader.target(position, path), path)

    return _field(None, read)


def tables(of: Callable[[], type]) -> Any:
    """Field with tables of a class, as a tuple; empty if absent."""

    def read(reader: Reader, position: int, path: str, _: Mapping[str, Any]) -> tuple[Any, ...]:
        start, count = reader.items(position, 4, path)
        names = [f"{path}[{entry}]" for entry in range(count)]
        return tuple(
            reader.table(of(), reader.target(start + 4 * entry, name), name)
            for entry, name in enumerate(names)
        )

    return _field((), read)


def unread() -> Any:
    """Field that no importer understands: `UNKNOWN` if it is present."""
    return _field(None, lambda reader, position, path, values: UNKNOWN)


def union(kind: str, kinds: Callable[[], Mapping[int, type[Table]]]) -> Any:
    """Field with a table whose class depends on the preceding field `kind`; or None.

    A table of a kind that `kinds` lacks is a `Table` without fields.
    """

    def read(reader: Reader, position: int, path: str, values: Mapping[str, Any]) -> Any:
        of = kinds().get(values.get(kind, 0), Table)
        return reader.table(of, reader.target(position, path), path)

    return _field(None, read)
