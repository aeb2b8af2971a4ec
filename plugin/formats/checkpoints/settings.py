"""The keys of a checkpoint's ``quantization_config``, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ...core.read_record import Irrelevant, ReadRecord
from ...core.strict_json import Json, shown
from ...errors import InputError, Place, UnsupportedError

_T = TypeVar("_T")
_REQUIRED: dict[type, str] = {
    str: "must be a string",
    int: "of the quantization must be an integer",
    float: "must be a number",
    bool: "must be true or false",
    list: "must be a list",
    dict: "must be an object",
}


class Settings:
    """An object of a quantization's configuration.

    Args:
        values: the object.
        location: its file.
        path: the key of the object in the configuration, with a dot at the end.
        irrelevant: keys that change no tensor.
    """

    def __init__(
        self,
        values: Mapping[str, Json],
        location: Place,
        path: str = "",
        irrelevant: Sequence[Irrelevant] = (),
    ) -> None:
        self.location, self.path = location, path
        subject = f"'{path[:-1]}'" if path else "the quantization"
        self._record = ReadRecord(location, subject)
        self._values = self._record.track("key", values, irrelevant)

    def get(self, key: str) -> Json:
        """Return a value of any type; None where the key is missing or null."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Return True if there is a key, with null or with a value."""
        return key in self._values

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
        value = next(iter(values.values()), default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise InputError(
                f"'{self.path}{keys[0]}' {_REQUIRED[kind]}, got {shown(value)}", self.location
            )
        return value

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
            raise self.error(
                f"'{self.path}{key}' must be true, false or a string, got {shown(value)}"
            )
        return value

    def block(self, key: str, value: Json) -> tuple[int, int]:
        """Return a value of a key as two positive integers; InputError if it is none."""
        is_list = isinstance(value, list) and len(value) == 2
        if not is_list or not all(type(n) is int and n >= 1 for n in value):
            raise self.error(
                f"'{self.path}{key}' is {shown(value)}, expected two positive integers"
            )
        return value[0], value[1]

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; none where the key is missing or null."""
        values = self.value(list, key, default=[])
        if not all(isinstance(value, str) for value in values):
            raise InputError(
                f"'{self.path}{key}' must be a list of strings, got {shown(values)}", self.location
            )
        return tuple(values)

    def part(self, key: str, irrelevant: Sequence[Irrelevant] = ()) -> Settings | None:
        """Return an object below a key; None where it is missing or null."""
        if self.get(key) is None:
            return None
        values = self.value(dict, key)
        return Settings(values, self.location, f"{self.path}{key}.", irrelevant)

    def unsupported(self, key: str, expected: str) -> UnsupportedError:
        """Return the error of a value that is not supported."""
        return UnsupportedError(
            f"'{self.path}{key}' is {shown(self.get(key))}, expected {expected}", self.location
        )

    def error(self, problem: str) -> InputError:
        """Return an error at the file of the settings."""
        return InputError(problem, self.location)

    def finish(self) -> None:
        """Check that every key was read, or changes no tensor.

        Raises:
            UnsupportedError: there is another key.
        """
        self._record.finish("quantize the model without it")


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
