"""Digests of bytes and files by BLAKE3, and a memo of the digests of large files.

100 MB in the page cache take 32 ms of CPU time on all cores; SHA-256 of hashlib takes 88 ms on one
core with instructions for it, and three times that without. Large files are hashed once: the memo
returns their digest while inode, size and times are unchanged. A change of contents changes the
inode's time, which programs cannot set, but only at the resolution of the file system's clock,
which may be another machine's. Files that changed in the last minute are therefore not remembered.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from blake3 import blake3

from ..core.files import open_input
from ..errors import SubquantError

if TYPE_CHECKING:
    from .store import Store

_CHUNK_BYTES = 1 << 22
"""The bytes of a file that are read and hashed at a time, 4 MiB."""
_MIN_BYTES_FOR_THREADS = 1 << 20
"""The size of a file, 1 MiB, from which on several threads hash it."""
MIN_BYTES_FOR_MEMO = 1 << 24
"""The size from which on the digest of a file is remembered; 16 MiB are hashed in 5 ms."""
_SETTLED_SECONDS = 60.0
"""The time since the last change of a file after which its identity tells its content."""

Digest: TypeAlias = str
"""BLAKE3 of 256 bits, in hexadecimal digits."""

FileIdentity: TypeAlias = "tuple[int, ...] | None"
"""Device, inode, size, and times of modification and change; None for a missing file."""

_SIZE, _TIMES = 2, 3
"""The index of the size in an identity, and of the first time."""


def digest_of(data: bytes | memoryview) -> Digest:
    """Return the digest of bytes."""
    return blake3(data, max_threads=_threads(len(data))).hexdigest()


def digest_of_fields(fields: Mapping[str, Any]) -> Digest:
    """Return the digest of JSON values."""
    return digest_of(json.dumps(fields, sort_keys=True).encode("utf-8", "surrogateescape"))


def digest_of_file(path: str | os.PathLike[str]) -> Digest:
    """Return the digest of a file; it is read, since a mapped file that shrinks raises a signal.

    Raises:
        InputError: it cannot be read, or is no regular file.
        OSError: a read failed.
    """
    with open_input(path) as file:
        return digest_of_open(file)


def digest_of_open(file: IO[bytes]) -> Digest:
    """Return the digest of an open file from its position on."""
    size = os.fstat(file.fileno()).st_size
    hasher = blake3(max_threads=_threads(size))
    buffer = memoryview(bytearray(min(size + 1, _CHUNK_BYTES)))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        hasher.update(buffer[:count])
    return hasher.hexdigest()


_threads_of: list[int] = []
"""The process that has started BLAKE3's threads; a forked process would wait for them."""


def _threads(size: int) -> int:
    if size < _MIN_BYTES_FOR_THREADS or _threads_of not in ([], [os.getpid()]):
        return 1
    _threads_of[:] = [os.getpid()]
    return blake3.AUTO


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return the identity of a file from its status."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def identity_of_path(path: str) -> FileIdentity:
    """Return the identity of a file; None if there is none."""
    try:
        return identity_of(os.stat(path))
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def are_settled(identities: Sequence[tuple[int, ...]]) -> bool:
    """True if no file changed in the last minute."""
    newest = max(max(identity[_TIMES:]) for identity in identities)
    return newest / 1e9 < time.time() - _SETTLED_SECONDS


class FileDigests:
    """Digests of files, and the identities that the files had; `form` is the key version."""

    def __init__(self, memo: Store | None, form: int) -> None:
        self._memo, self._form = memo, form
        self.identities: dict[str, FileIdentity] = {}

    def digest(self, path: str) -> Digest:
        """Return the digest of a file; "" if it cannot be read, which its reader reports."""
        path = os.path.abspath(path)
        self.identities[path] = None
        try:
            # A network file system checks a file again when it is opened, not before.
            with open_input(path) as file:
                identity = identity_of(os.fstat(file.fileno()))
                digest = self._digest(path, file, identity)
                if identity_of(os.fstat(file.fileno())) != identity:
                    return ""  # no identity: the key is not valid later
        except (SubquantError, OSError):
            self.identities[path] = identity_of_path(path)  # such as a folder, which stays one
            return ""
        self.identities[path] = identity
        return digest

    def _digest(self, path: str, file: IO[bytes], identity: tuple[int, ...]) -> Digest:
        if self._memo is None or identity[_SIZE] < MIN_BYTES_FOR_MEMO:
            return digest_of_open(file)
        name = digest_of_fields({"form": self._form, "file": path, "identity": identity})
        digest = self._memo.recall(name)
        if digest is None:
            digest = digest_of_open(file)
            if are_settled([identity]):
                self._memo.remember(name, digest)
        return digest
