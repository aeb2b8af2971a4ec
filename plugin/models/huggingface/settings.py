"""The keys of a model's ``config.json``, each checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...core.strict_json import Json, shown
from ...errors import InputError


class Settings:
    """Checked lookups in an object of ``config.json``.

    Args:
        values: the object, in which lookups are recorded.
        path: the key of the object in ``config.json``, with a dot at the end; empty for the whole.
    """

    def __init__(self, values: Mapping[str, Json], path: str = "") -> None:
        self._values, self._path = values, path

    def get(self, key: str) -> Json:
        """Return a value of any type; None where the key is missing or null."""
        return self._values.get(key)

    def _or_default(self, key: str, default: Json) -> Json:
        value = self.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Return True if there is a key, with null or with a value."""
        return key in self._values

    def error(self, key: str, expected: str) -> InputError:
        """Return the error of a value that is not as expected."""
        name, value = f"'{self._path}{key}'", self.get(key)
        if value is None:
            return InputError(f"the configuration has no {name}, expected {expected}")
        return InputError(f"{name} is {shown(value)}, expected {expected}")

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer of at least 1."""
        value = self._or_default(key, default)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self.error(key, "an integer of at least 1")
        return value

    def index(self, key: str, default: int) -> int:
        """Return an integer of at least 0."""
        value = self._or_default(key, default)
        if type(value) is not int or value < 0:
            raise self.error(key, "an integer of at least 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        value = self._or_default(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._or_default(key, default)
        if type(value) is not bool:
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def part(self, key: str) -> Settings | None:
        """Return an object below a key; None where it is missing or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Settings(value, f"{self._path}{key}.")

    def values(self) -> dict[str, Json]:
        """Return the values that are not null, by key."""
        return {key: value for key, value in self._values.items() if value is not None}

    def only(self, *known: str) -> None:
        """Raise InputError for a key that is not known."""
        for key, value in self.values().items():
            if key not in known:
                raise InputError(
                    f"'{self._path}{key}' is {shown(value)}, and nothing reads it; "
                    f"expected {', '.join(known)}"
                )


def optional_list(settings: Settings, key: str, count: int, kind: type) -> list[Any] | None:
    """Return a list with an element of a type for each block; None where it is missing or null."""
    value = settings.get(key)
    if value is None:
        return None
    is_list = isinstance(value, list) and len(value) == count
    if not is_list or any(type(each) is not kind for each in value):
        raise settings.error(
            key, f"a list of {count} values of {kind.__name__}, one for each block"
        )
    return list(value)
