"""Reader of the options of custom operators: FlexBuffer maps from names to numbers.

A value is 1, 2, 4 or 8 bytes wide, as its container states. The last byte of a buffer is the width
of its root, the byte before it the type of the root, and the root lies before these. A map is
stored as a backward offset to a vector of values, followed by a type byte for each value. Before
the vector lie the number of values, and the offset of the vector of keys.

Each offset is checked against the buffer, as in `subquant.importers.flatbuffer`.

Sources: "FlexBuffers", of FlatBuffers' documentation; ``flexbuffers.h``.
"""

from __future__ import annotations

import struct
from typing import Any

from ....errors import InputError
from ...flatbuffer import UNKNOWN

_INT, _UINT, _FLOAT, _MAP, _BOOL = 1, 2, 3, 9, 26
"""Numbers of FlexBuffers' types, ``FBT_INT`` to ``FBT_BOOL``; not tunable."""
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_FORMATS = {
    _INT: {1: "b", 2: "h", 4: "i", 8: "q"},
    _UINT: {1: "B", 2: "H", 4: "I", 8: "Q"},
    _FLOAT: {4: "f", 8: "d"},
    _BOOL: {1: "B", 2: "H", 4: "I", 8: "Q"},
}
_MAX_ENTRIES = 1 << 12
"""Entries of a map or vector of a custom operator, at most; more are refused as damaged."""


def read_map(data: bytes) -> dict[str, Any]:
    """Return the values of a map by name: numbers and booleans, `UNKNOWN` for all others.

    Raises:
        InputError: the buffer is damaged, or is no map.
    """
    try:
        width, kind = data[-1], data[-2]
        if kind >> 2 != _MAP:
            raise KeyError(kind)
        start = _target(data, len(data) - 2 - width, width)
        width = 1 << (kind & 3)
        count, key_width = (_number(data, start - n * width, _UINT, width) for n in (1, 2))
        if not 0 <= count <= _MAX_ENTRIES:
            raise KeyError(count)
        keys = _target(data, start - 3 * width, width)
        values: dict[str, Any] = {}
        for index in range(int(count)):
            key = _target(data, keys + index * int(key_width), int(key_width))
            name = data[key : data.index(b"\0", key)] if b"\0" in data[key:] else b""
            kind = data[start + int(count) * width + index]
            position, size, type_ = start + index * width, width, kind >> 2
            if type_ in _INDIRECT:
                position, size = _target(data, position, width), 1 << (kind & 3)
                type_ = _INDIRECT[type_]
            is_number = type_ in _FORMATS
            values[name.decode()] = _number(data, position, type_, size) if is_number else UNKNOWN
        return values
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise InputError("the options are no map of a flexbuffer") from error


def _number(data: bytes, position: int, kind: int, width: int) -> float:
    if position < 0:
        raise IndexError(position)
    value: float = struct.unpack_from(f"<{_FORMATS[kind][width]}", data, position)[0]
    return value


def _target(data: bytes, position: int, width: int) -> int:
    """Return the position that a backward offset points to."""
    target = position - int(_number(data, position, _UINT, width))
    if not 0 <= target < len(data):
        raise IndexError(target)
    return target
