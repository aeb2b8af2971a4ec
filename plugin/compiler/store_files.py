"""Files of a store: records, blobs that processes pin, and their copies and removal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import open_atomically, open_input
from ..errors import SubquantError
from .digests import Digest, digest_of

_CHUNK_BYTES = 1 << 20
"""The bytes that are copied at a time, 1 MiB."""


@dataclass(frozen=True)
class Record:
    """The record of a key: JSON values, and the digests of its blobs by name."""

    fields: Mapping[str, Any]
    blobs: Mapping[str, Digest] = field(default_factory=dict)


class StoredFile(NamedTuple):
    """A file of the store: the time of its last use, its bytes on a disk, and its path."""

    used: float
    size: int
    path: Path


class PinnedBlob:
    """An open blob, which is not evicted until it is closed, at the latest with this object."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self._handle = path, handle
        self.close = weakref.finalize(self, os.close, handle)

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the blob (the file system may share its blocks); OSError if that fails."""
        with open_atomically(path) as file:
            copy_file(self._handle, file.fileno())


def create_with_folder(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, and create its folder only if that is missing (network folders are slow)."""
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def lock_file(handle: int, *, exclusive: bool) -> None:
    """Lock a file (``flock``, if possible) until it is closed; BlockingIOError if it is locked."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def remove_unless_locked(path: Path) -> bool:
    """Remove a file; False if a process has locked it or it cannot be removed."""
    try:
        # Some file systems lock for writing only files that are open for writing.
        handle = os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    except PermissionError:
        handle = -1
    except OSError:
        return False
    try:
        if handle >= 0:
            lock_file(handle, exclusive=True)
        path.unlink()
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def touch(path: Path) -> None:
    """Set the time of a file to the present, if that is possible."""
    with contextlib.suppress(OSError):
        os.utime(path)  # without a time: that of the file system's clock


def parse_record(data: bytes) -> Record:
    """Return a record; ValueError if it is damaged."""
    head, _, rest = data.partition(b"\n")
    text = rest.rstrip(b"\n\0")  # earlier versions appended a byte for each use
    if digest_of(text).encode() != head:
        raise ValueError
    values = json.loads(text)
    return Record(values["fields"], values["blobs"])


def read_file(path: Path) -> bytes | None:
    """Return the contents of a file; None if it cannot be read."""
    try:
        with open_input(path) as file:
            return file.read()
    except (SubquantError, OSError):
        return None


def rename(path: Path, target: Path) -> None:
    """Rename a file, and create the folder of the target only if that is missing."""
    try:
        os.replace(path, target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)


def copy_file(source: int, target: int) -> None:
    """Copy a whole file, in the kernel if both are on one file system."""
    os.lseek(source, 0, os.SEEK_SET)
    with contextlib.suppress(OSError, AttributeError):
        while os.copy_file_range(source, target, 1 << 30):
            pass
    with os.fdopen(os.dup(source), "rb") as rest, os.fdopen(os.dup(target), "wb") as copy:
        while data := rest.read(_CHUNK_BYTES):
            copy.write(data)
