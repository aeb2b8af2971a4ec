"""Read the options of custom operators: maps of numbers by name, as flexbuffers have them.

A value is as wide as its surroundings say: 1, 2, 4 or 8 bytes. The last byte of a buffer is the
width of its root, the one before says what the root is, and the root is before that. A map is at a
distance before the place that holds it, and is a vector of values with a byte for each that says
what it is; before it lie the number of values, and where its vector of names is.

Each distance is checked against the buffer, as `subquant.importers.flatbuffer` does.

Source: "FlexBuffers", of FlatBuffers' documentation; ``flexbuffers.h``.
"""

from __future__ import annotations

import struct
from typing import Any

from ....errors import InputError
from ...flatbuffer import UNKNOWN

__all__ = ["read_map"]

_INT, _UINT, _FLOAT, _MAP, _BOOL = 1, 2, 3, 9, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_FORMATS = {
    _INT: {1: "b", 2: "h", 4: "i", 8: "q"},
    _UINT: {1: "B", 2: "H", 4: "I", 8: "Q"},
    _FLOAT: {4: "f", 8: "d"},
    _BOOL: {1: "B", 2: "H", 4: "I", 8: "Q"},
}
_MOST = 1 << 12


def read_map(data: bytes) -> dict[str, Any]:
    """Return the values of a map by name: numbers and booleans, and `UNKNOWN` for all others.

    Raises:
        InputError: the buffer is damaged, or is no map.
    """
    try:
        return _map(data)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise InputError("the options are no map of a flexbuffer") from error


def _map(data: bytes) -> dict[str, Any]:
    width, kind = data[-1], data[-2]
    if kind >> 2 != _MAP:
        raise KeyError(kind)
    start = _target(data, len(data) - 2 - width, width)
    width = 1 << (kind & 3)
    count, key_width = (_number(data, start - n * width, _UINT, width) for n in (1, 2))
    if not 0 <= count <= _MOST:
        raise KeyError(count)
    keys = _target(data, start - 3 * width, width)
    values: dict[str, Any] = {}
    for index in range(int(count)):
        place = _target(data, keys + index * int(key_width), int(key_width))
        name = data[place : data.index(b"\0", place)] if b"\0" in data[place:] else b""
        kind = data[start + int(count) * width + index]
        where, size, type_ = start + index * width, width, kind >> 2
        if type_ in _INDIRECT:
            where, size, type_ = _target(data, where, width), 1 << (kind & 3), _INDIRECT[type_]
        is_number = type_ in _FORMATS
        values[name.decode()] = _number(data, where, type_, size) if is_number else UNKNOWN
    return values


def _number(data: bytes, place: int, kind: int, width: int) -> float:
    if place < 0:
        raise IndexError(place)
    value: float = struct.unpack_from(f"<{_FORMATS[kind][width]}", data, place)[0]
    return value


def _target(data: bytes, place: int, width: int) -> int:
    """What a distance at a place points back to."""
    found = place - int(_number(data, place, _UINT, width))
    if not 0 <= found < len(data):
        raise IndexError(found)
    return found
