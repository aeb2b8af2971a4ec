"""Manifest of a folder of outputs: one line of JSON for each compiled model.

``--resume`` compiles models again that are not up to date. A model is up to date if its line has
the key of the compilation (`subquant.compiler.keys`: its bytes, the options, the versions), and if
the outputs have the bytes that were written. Modification times are not used. A line is appended
after the outputs; an incomplete line (a killed run) is ignored; the last line of an output counts.

A line::

    {"version": 1, "output": "a/x.vmfb", "key": "9f...", "files": {"a/x.vmfb": [4123, "c0..."]},
     "passes_seconds": 0.2, "iree_seconds": 0.9}

``files`` has the size and the digest of each output, the parameter archive included.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..compiler.digests import digest_of_file
from ..core.files import write_atomically
from ..errors import InputError, SubquantError

NAME = ".subquant-manifest.jsonl"
_VERSION = 1
"""The version of the records; files of other versions are not read."""
_MAX_STALE_LINES = 16
"""Replaced lines that may stay in the file."""


@dataclass(frozen=True)
class Record:
    """Outputs of a model.

    Args:
        output: the path in the folder.
        key: the key of the compilation.
        files: size and digest of each file by its path in the folder.
        passes_seconds, iree_seconds: the times of the compilation.
    """

    output: str
    key: str
    files: Mapping[str, tuple[int, str]]
    passes_seconds: float = 0.0
    iree_seconds: float = 0.0

    @classmethod
    def of(cls, values: Any) -> Record | None:
        """Return the record of a line; None for a line of another version or form."""
        if not isinstance(values, dict) or values.pop("version", None) != _VERSION:
            return None
        try:
            files = {str(path): (int(n), str(digest)) for path, (n, digest) in
                     values.pop("files").items()}  # fmt: skip
            seconds = [float(values.pop(f"{who}_seconds")) for who in ("passes", "iree")]
            return cls(str(values["output"]), str(values["key"]), files, *seconds)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return None


class Manifest:
    """Records of a folder; InputError if the file cannot be read."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._path = self._folder / NAME
        self._records: dict[str, Record] = {}
        self._is_cut = False
        try:
            self._read()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(f"cannot read '{self._path}': {error.strerror}") from None

    def _read(self) -> None:
        data = self._path.read_bytes()
        json_lines = data.splitlines()
        for line in json_lines:
            try:
                record = Record.of(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if record is not None:
                self._records[record.output] = record
        self._is_cut = not data.endswith(b"\n")
        if len(json_lines) > 2 * len(self._records) + _MAX_STALE_LINES:
            with contextlib.suppress(OSError):  # a full disk, say: the file stays long
                write_atomically(self._path, b"".join(map(_line, self._records.values())))
                self._is_cut = False

    def has(self, output: str) -> bool:
        """Return true if there is a record of an output."""
        return output in self._records

    def up_to_date(self, output: str, key: str) -> Record | None:
        """Return the record of an output that has this key and the bytes that were written."""
        record = self._records.get(output)
        if record is None or record.key != key or output not in record.files:
            return None
        return record if all(self._is_whole(name) for name in record.files.items()) else None

    def _is_whole(self, file: tuple[str, tuple[int, str]]) -> bool:
        name, (size, digest) = file
        path = self._folder / name
        try:
            return path.stat().st_size == size and digest_of_file(path) == digest
        except (OSError, SubquantError, ValueError):  # ValueError: an invalid path
            return False

    def add(self, record: Record) -> None:
        """Append a line; OSError if it cannot be written."""
        data = b"\n" * self._is_cut + _line(record)
        self._is_cut = True
        try:
            with self._path.open("ab", buffering=0) as file:
                self._is_cut = file.write(data) != len(data)
        except OSError as error:
            error.filename = os.fspath(self._path)  # missing in errors of write()
            raise
        self._records[record.output] = record


def _line(record: Record) -> bytes:
    return json.dumps({"version": _VERSION, **asdict(record)}).encode() + b"\n"
