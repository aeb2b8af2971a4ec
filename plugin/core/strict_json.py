"""JSON files of models, read strictly and within bounds.

Python's reader accepts duplicate keys (the last one counts), NaN and Infinity, numbers beyond a
float, lone surrogates, and integers of any length. Readers differ in which duplicate counts, so two
tools would see two models in one file. Here all of them are errors. The size of the file, and
before the parse the number of values, are bounded, because an empty list takes 2 bytes of text and
64 of memory.

PyPI's ``orjson`` (3.13) refuses NaN, infinities and lone surrogates too, but it accepts duplicate
keys, converts integers beyond 64 bits to floats, and takes 718 MB for 24 MB of empty lists.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ..errors import InputError, Place
from .files import regular_file_size

Json: TypeAlias = Any
"""A value of JSON: None, a boolean, a number, a text, a list or an object."""

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON."""

MAX_BYTES = 100_000_000
"""Bytes of a JSON file, at most; longer files are refused before they are parsed."""
MAX_VALUES = 8_000_000
"""Values of a JSON file, at most, of 64 bytes of memory and more each; more are refused."""
_MAX_DIGITS = 20
"""The greatest number of digits of an integer: enough for 64 bits."""
_MAX_LONG_DIGITS = 4300
"""The same where integers may be long: Python's default limit."""
_MAX_LEVELS = 100
"""Levels of objects and lists, at most; recursive functions would fail on more."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_json(path: str | os.PathLike[str], subject: str) -> JsonObject:
    """Read a JSON file that holds an object.

    Args:
        subject: the name of the file in errors: "the model's configuration".

    Raises:
        InputError: it cannot be read, is too large, is not UTF-8, is not JSON, has a duplicate key,
            an invalid number or character, nests more than 100 levels, or holds no object.
    """
    size = regular_file_size(path)
    if size > MAX_BYTES:
        raise InputError(
            f"{subject} has {size} bytes, expected at most {MAX_BYTES}", Place(str(path))
        )
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None
    text = data.removeprefix(codecs.BOM_UTF8)
    return parse_object(text, subject, str(path))


def parse_object(
    data: bytes, subject: str, file: str, *, is_part: bool = False, has_any_number: bool = False
) -> JsonObject:
    """Parse JSON that must be an object; arguments and errors are those of `parse_json`."""
    loaded = parse_json(data, subject, file, is_part=is_part, has_any_number=has_any_number)
    if not isinstance(loaded, dict):
        raise InputError(
            f"{subject} holds a {type(loaded).__name__}, expected an object", Place(file)
        )
    return loaded


def parse_json(
    data: bytes, subject: str, file: str, *, is_part: bool = False, has_any_number: bool = False
) -> Json:
    """Parse JSON.

    Args:
        data: the text, as UTF-8.
        subject: the name of the text in errors.
        file: the file of the text.
        is_part: the text is a part of the file, so that lines and columns are unknown.
        has_any_number: accept all numbers that Python writes: NaN, infinities, and integers of up
            to 4300 digits.

    Raises:
        InputError: as for `load_json`, except for the object.
    """
    location = Place(file)
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if values > MAX_VALUES:
        raise InputError(f"{subject} has {values} values, expected at most {MAX_VALUES}", location)
    try:
        loaded = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=float if has_any_number else _refuse_constant,
            parse_int=_long_integer if has_any_number else _integer,
            parse_float=float if has_any_number else _float,
        )
        if _SURROGATE.search(data):
            _check_unicode(loaded)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{subject} is not UTF-8: byte {data[error.start]:#04x} at {error.start}", location
        ) from None
    except json.JSONDecodeError as error:
        message = f"{subject} is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        if is_part:
            raise InputError(f"{message} at character {error.pos} of it", location) from None
        raise InputError(message, Place(file, error.lineno, error.colno)) from None
    except RecursionError:
        raise InputError(f"{subject} is nested too deeply", location) from None
    except ValueError as error:
        raise InputError(f"{subject} is not valid: {error}", location) from None
    if is_deep(loaded):
        raise InputError(f"{subject} is nested too deeply", location)
    return loaded


def is_deep(value: Json) -> bool:
    """True for JSON that nests more than 100 levels, on which recursive functions would fail."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_LEVELS):
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        # A list has few types: a set of them is faster than a test of each element.
        nested = (v for v in inner if any(issubclass(t, dict | list) for t in set(map(type, v))))
        level = [v for values in nested for v in values if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Json]]) -> JsonObject:
    loaded: JsonObject = {}
    for key, value in pairs:
        if key in loaded:
            raise ValueError(f"the key {shown(key)} is there twice")
        loaded[key] = value
    return loaded


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _integer(text: str, max_digits: int = _MAX_DIGITS) -> int:
    if len(text) > max_digits:
        raise ValueError(f"an integer has {len(text)} digits, expected at most {max_digits}")
    return int(text)


def _long_integer(text: str) -> int:
    return _integer(text, _MAX_LONG_DIGITS)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is beyond the greatest number of 64 bits")
    return value


def _check_unicode(loaded: object) -> None:
    """Raise a ValueError for half of a surrogate pair, which no file can hold as UTF-8."""
    try:
        json.dumps(loaded, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        wrong = error.object[error.start]
        raise ValueError(f"{shown(wrong)} is half of a surrogate pair") from None


def shown(value: object, limit: int = 80) -> str:
    """Return a value of a file for an error message: printable, on one line, and bounded."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"
