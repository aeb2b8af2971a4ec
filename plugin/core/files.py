"""Reading files that may be anything, and writing files whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ..errors import InputError

__all__ = [
    "file_beside",
    "kind_of",
    "open_input",
    "open_whole",
    "read_input",
    "read_stream",
    "regular_file_size",
    "reproducer_name",
    "write_whole",
]

_KINDS = {
    b"ML\xefR": "module",
    b"GGUF": "weights",
    b"IRPA": "weights",
    b"\x93NUM": "array",
}

LARGEST_STREAM = 1 << 32
"""Bytes that are read of a pipe, which does not say how many it has."""

_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_CHUNK = 1 << 20
_OWN_FILES = "/proc/self/fd"
_TEMPORARY = ".subquant-"


def kind_of(data: bytes) -> str | None:
    """Return what a file of ours or a neighbour's is by its first bytes, if they say it.

    Returns:
        ``executable``, ``module`` (bytecode), ``weights``, ``array`` (NumPy's), ``tflite`` or
        ``onnx``: a protobuf that begins with a version of ONNX's format, which no text does.
    """
    if data[4:8] == b"TFL3":
        return "tflite"
    if len(data) > 2 and data[0] == 8 and 1 <= data[1] < 0x80:
        return "onnx"
    if data[4:8] == b"IREE" or (data[:2] == b"PK" and b"module.fb" in data[:64]):
        return "executable"
    return _KINDS.get(data[:4])


def regular_file_size(path: str | os.PathLike[str]) -> int:
    """Check that a path is a file with contents (no folder, pipe or device), and return its size.

    Raises:
        InputError: it is not, or cannot be read.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"cannot read '{path}': not a regular file")
    return status.st_size


def open_input(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading: no device or named pipe, which may never end or never begin.

    Raises:
        InputError: it is no regular file, or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        os.close(handle)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    what = "Is a directory" if is_folder else "not a regular file; for a pipe give -"
    raise InputError(f"cannot read '{os.fspath(path)}': {what}")


def file_beside(path: str, name: str) -> str | None:
    """Return the path of a file that another one names, if it is in that one's folder or below.

    Links may lead elsewhere there, or beside the file that `path` itself is a link to, as those of
    a folder that was downloaded into a cache do.

    Args:
        path: of the file that names it.
        name: with ``/`` between folders; of a hostile file anything.
    """
    is_relative = bool(name) and not name.startswith("/")
    if not is_relative or ".." in name.split("/") or any(mark in name for mark in "\\:\0"):
        return None
    folder = os.path.dirname(path)
    found = os.path.join(folder, name)
    inside, there = os.path.realpath(folder), os.path.realpath(found)
    is_below = there.startswith(os.path.join(inside, ""))
    is_beside = os.path.dirname(there) == os.path.dirname(os.path.realpath(path))
    return found if is_below or is_beside else None


def read_input(path: str | os.PathLike[str]) -> bytes:
    """Read a file, or what the shell opened for this process (``/dev/stdin``, ``/dev/fd/63``).

    Raises:
        InputError: it cannot be read, or not into memory.
    """
    name = os.fspath(path)
    try:
        if os.path.abspath(name).startswith(_DESCRIPTORS):
            with open(path, "rb") as file:
                return read_stream(file, name)
        with open_input(path) as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    except (MemoryError, OverflowError):
        raise InputError(f"cannot read '{name}': it does not fit into memory") from None


def read_stream(stream: IO[bytes], name: str) -> bytes:
    """Read a file or a pipe to its end.

    Raises:
        InputError: it is a device other than a terminal, or longer than `LARGEST_STREAM`.
        OSError: it cannot be read.
    """
    try:
        status = os.fstat(stream.fileno())
    except io.UnsupportedOperation:  # it is in memory
        return stream.read()
    if stat.S_ISBLK(status.st_mode) or (
        stat.S_ISCHR(status.st_mode)
        and not stream.isatty()
        and not os.path.samestat(status, os.stat(os.devnull))
    ):
        raise InputError(f"cannot read '{name}': a device, not a file or a pipe")
    parts, size = [], 0
    while part := stream.read(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > LARGEST_STREAM:
            raise InputError(
                f"cannot read '{name}': more than {LARGEST_STREAM:,} bytes come from a pipe; write "
                "them to a file"
            )
    return b"".join(parts)


def _unreadable(path: str | os.PathLike[str], error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot read '{os.fspath(path)}': {reason}")


@contextlib.contextmanager
def open_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its name at the end of the block, if nothing is raised.

    A file that has the name already is replaced at the end, so the block may read it.

    Raises:
        OSError: the folder cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays, and what it points to is written
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:  # a device or a pipe, which must not be replaced
            yield file
        return
    with _unnamed(path.parent) as (file, give_name):
        yield file
        file.flush()
        give_name(path)


@contextlib.contextmanager
def _unnamed(folder: Path) -> Iterator[tuple[IO[bytes], Callable[[Path], None]]]:
    """Open a new file in a folder, and say how to give it a name, which may be taken.

    On Linux it has no name before: a process that is killed leaves nothing. Elsewhere, and on file
    systems without such files, it has a temporary one.
    """
    handle, temporary = -1, None
    if hasattr(os, "O_TMPFILE") and os.path.isdir(_OWN_FILES):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    if handle < 0:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        os.chmod(temporary, 0o666 & ~_umask())

    def give_name(path: Path) -> None:
        nonlocal temporary
        if temporary is None:
            temporary = os.path.join(folder, f"{_TEMPORARY}{os.urandom(8).hex()}")
            # With a folder's descriptor, which is not used, the link in /proc is followed.
            os.link(f"{_OWN_FILES}/{handle}", temporary, src_dir_fd=handle, follow_symlinks=True)
        os.replace(temporary, path)
        temporary = None

    try:
        with os.fdopen(handle, "wb") as file:
            yield file, give_name
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, which then takes its name.

    Raises:
        OSError: the folder cannot be written.
    """
    with open_whole(path) as file:
        file.write(data)


_LONGEST_STEM = 200
"""Bytes of a name that leave room for a suffix."""


def reproducer_name(stem: str) -> str:
    """Return the name of the file that replays what went wrong with a model of this stem."""
    while len(os.fsencode(stem)) > _LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}.reproducer.mlir"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
