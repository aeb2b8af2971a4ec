"""Settings: checked lookups in an object of a JSON configuration.

A key that is null is a key that is not set. Each error names the file, the key with its path, the
value, and the expected one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..errors import InputError, Place, SubquantError, UnsupportedError
from .read_record import Irrelevant, ReadRecord
from .strict_json import Json, shown

_SUBJECT = "the configuration"
_T = TypeVar("_T")
_NOUNS: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class Settings:
    """Checked lookups in an object, which are recorded.

    Args:
        values: the object.
        location: its file.
        path: the key of the object in the file, with a dot at the end; empty for the whole.
        irrelevant: keys that change no result.
    """

    def __init__(
        self,
        values: Mapping[str, Json],
        location: Place | None = None,
        path: str = "",
        irrelevant: Sequence[Irrelevant] = (),
    ) -> None:
        self.location, self.path, self._keys = location, path, set(values)
        self._record = ReadRecord(location, f"'{path[:-1]}'" if path else _SUBJECT)
        self._values = self._record.track(
            "key", {key: value for key, value in values.items() if value is not None}, irrelevant
        )

    def get(self, key: str) -> Json:
        """Return a value of any type; None where the key is missing or null."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Return True if there is a key, with null or with a value."""
        return key in self._keys

    def values(self) -> dict[str, Json]:
        """Return the values that are not null, by key, which do not count as read."""
        return dict(self._values.untracked)

    def error(
        self, key: str, expected: str, kind: type[SubquantError] = InputError
    ) -> SubquantError:
        """Return the error of a value that is not as expected."""
        value = self.get(key)
        if value is None:
            problem = f"{_SUBJECT} has no '{self.path}{key}'"
        else:
            problem = f"'{self.path}{key}' is {shown(value)}"
        return kind(f"{problem}, expected {expected}", self.location)

    def unsupported(self, key: str, expected: str) -> SubquantError:
        """Return the error of a value that is not supported."""
        return self.error(key, expected, UnsupportedError)

    def value(self, kind: type[_T], *keys: str, default: _T | None = None) -> _T:
        """Return the value of keys that are names of one setting, of the type `kind`.

        Raises:
            InputError: the value is missing or of another type, or two keys contradict.
        """
        values = {key: self.get(key) for key in keys if self.get(key) is not None}
        for key, value in values.items():
            first, expected = next(iter(values.items()))
            if _lower(value) != _lower(expected):
                raise InputError(
                    f"'{self.path}{first}' is {shown(expected)} and '{self.path}{key}' is "
                    f"{shown(value)}, which contradict each other; leave the wrong one out",
                    self.location,
                )
        key, value = next(iter(values.items()), (keys[0], default))
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(key, _NOUNS[kind])
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least `least`."""
        value = self._values.get(key, default)
        if type(value) is not int or not least <= value < 1 << 31:
            raise self.error(key, f"an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self._values.get(key, default)
        if not is_positive(value):
            raise self.error(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        return self.value(bool, key, default=default)

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """Return a text that is one of some.

        Raises:
            InputError: it is missing, or no string.
            UnsupportedError: it is another one.
        """
        text = self.value(str, key, default=default)
        if text not in known:
            raise self.unsupported(key, " or ".join(map(repr, known)))
        return text

    def flag_or_text(self, key: str) -> bool | str | None:
        """Return true, false or a string; None where the key is missing or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, (bool, str)):
            raise self.error(key, "true, false or a string")
        return value

    def block(self, key: str, value: Json) -> tuple[int, int]:
        """Return a value of a key as two positive integers; InputError if it is none."""
        is_list = isinstance(value, list) and len(value) == 2
        if not is_list or not all(type(n) is int and n >= 1 for n in value):
            raise self.error(key, "two positive integers")
        return value[0], value[1]

    def elements(self, key: str, kind: type[_T], count: int | None = None) -> list[_T] | None:
        """Return a list of elements of a type; None where the key is missing or null."""
        values = self.get(key)
        if values is None:
            return None
        is_list = isinstance(values, list) and count in (None, len(values))
        if not is_list or any(type(each) is not kind for each in values):
            number = "" if count is None else f" {count}"
            raise self.error(key, f"a list of{number} elements, each {_NOUNS[kind]}")
        return list(values)

    def part(self, key: str, irrelevant: Sequence[Irrelevant] = ()) -> Settings | None:
        """Return an object below a key; None where it is missing or null."""
        return None if self.get(key) is None else self.required_part(key, irrelevant)

    def required_part(self, key: str, irrelevant: Sequence[Irrelevant] = ()) -> Settings:
        """Return an object below a key; InputError where it is missing or null."""
        return Settings(self.value(dict, key), self.location, f"{self.path}{key}.", irrelevant)

    def finish(self) -> None:
        """Check that every key was read, or changes no result.

        Raises:
            UnsupportedError: there is another key.
        """
        self._record.finish("use a model without, or a tool that knows it")


def is_positive(value: Any) -> bool:
    """Return True for a finite number above 0."""
    return type(value) in (int, float) and 0 < value < math.inf


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
