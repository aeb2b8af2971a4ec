"""Files: reads of untrusted files, and writes that are whole or do not happen."""

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

_KINDS = {
    b"ML\xefR": "module",
    b"GGUF": "weights",
    b"IRPA": "weights",
    b"\x93NUM": "array",
    b"PK\x03\x04": "zip",
    b"\x89HDF": "hdf5",
}

_FLATBUFFERS = {b"TFL3": "tflite", b"ORTM": "ort"}
"""Kinds by the identifier of a flatbuffer, bytes 4 to 8."""

MAX_STREAM_BYTES = 1 << 32
"""Bytes that are read of a pipe, at most, which does not tell its size: 4 GiB."""

_DESCRIPTORS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_CHUNK_BYTES = 1 << 20
"""The bytes of a pipe that are read at a time, 1 MiB."""
_DESCRIPTORS_FOLDER = "/proc/self/fd"
_TEMPORARY = ".subquant-"


def kind_of(data: bytes) -> str | None:
    """Return the kind of a file of ours or a neighbor's by its first bytes; None for others.

    Returns:
        ``executable``, ``module`` (bytecode), ``weights``, ``array`` (NumPy's), ``tflite``,
        ``pt2`` (of ``torch.export.save``: a ZIP archive whose first file has a weight), ``onnx``
        (a protobuf that begins with a version of ONNX's format, which no text does), ``zip``
        (other ZIP archives, as ``torch.save`` writes), ``hdf5`` (Keras writes it) or ``ort`` (ONNX
        Runtime's own format).
    """
    if data[4:8] in _FLATBUFFERS:
        return _FLATBUFFERS[data[4:8]]
    if len(data) > 2 and data[0] == 8 and 1 <= data[1] < 0x80:
        return "onnx"
    if data[4:8] == b"IREE" or (data[:2] == b"PK" and b"module.fb" in data[:64]):
        return "executable"
    if data[:2] == b"PK" and b"/data/weights/" in data[:512]:
        return "pt2"
    if data[4:9] == b"\0\0\0\0{":  # safetensors: the length of a header, and the header
        return "weights"
    return _KINDS.get(data[:4])


def wrong_download(data: bytes) -> str:
    """Return advice for a download that has another content than its name says; "" for others.

    Args:
        data: the first 64 bytes of the file, or more.

    Returns:
        A clause that follows the error: the file is a pointer of Git LFS, or a page of HTML.
    """
    if data.startswith(b"version https://git-lfs"):
        return "; it is a pointer of Git LFS, get the file itself with: git lfs pull"
    if data[:64].lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "; it is a page of HTML: the download failed, repeat it"
    return ""


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
    reason = "not a regular file; for a pipe give -"
    if is_folder:
        reason = "Is a directory, expected a file"
    raise InputError(f"cannot read '{os.fspath(path)}': {reason}")


def file_beside(path: str, name: str) -> str | None:
    """Return the path of a file that another file names, if it is in the same folder or below.

    Links may lead elsewhere inside this folder, or beside the target of the link `path`, like the
    links of a folder that was downloaded into a cache.

    Args:
        path: the path of the file with the name.
        name: a relative path with ``/``; in a hostile file any text.
    """
    is_relative = bool(name) and not name.startswith("/")
    if not is_relative or ".." in name.split("/") or any(mark in name for mark in "\\:\0"):
        return None
    folder = os.path.dirname(path)
    candidate = os.path.join(folder, name)
    inside, there = os.path.realpath(folder), os.path.realpath(candidate)
    is_below = there.startswith(os.path.join(inside, ""))
    is_beside = os.path.dirname(there) == os.path.dirname(os.path.realpath(path))
    return candidate if is_below or is_beside else None


def read_input(path: str | os.PathLike[str]) -> bytes:
    """Read a file, or a descriptor that the shell opened (``/dev/stdin``, ``/dev/fd/63``).

    Raises:
        InputError: it cannot be read, or does not fit into memory.
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
        InputError: it is a device other than a terminal, or longer than `MAX_STREAM_BYTES`.
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
    chunks, size = [], 0
    while chunk := stream.read(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_STREAM_BYTES:
            raise InputError(
                f"cannot read '{name}': more than {MAX_STREAM_BYTES:,} bytes come from a pipe; "
                "write them to a file"
            )
    return b"".join(chunks)


def _unreadable(path: str | os.PathLike[str], error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot read '{os.fspath(path)}': {reason}")


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name at the end of the block, if nothing is raised.

    A file with this name is replaced at the end, so the block may read it.

    Raises:
        OSError: the folder cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays, and its target is written
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:  # a device or a pipe, which must not be replaced
            yield file
        return
    with _open_unnamed(path.parent) as (file, give_name):
        yield file
        file.flush()
        give_name(path)


@contextlib.contextmanager
def _open_unnamed(folder: Path) -> Iterator[tuple[IO[bytes], Callable[[Path], None]]]:
    """Open a new file in a folder, and return it with the function that names it, by replacement.

    On Linux it has no name until then: a process that is killed leaves nothing. Elsewhere, and on
    file systems without such files, it has a temporary name.
    """
    handle, temporary = -1, None
    if hasattr(os, "O_TMPFILE") and os.path.isdir(_DESCRIPTORS_FOLDER):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    if handle < 0:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)

    def give_name(path: Path) -> None:
        nonlocal temporary
        if temporary is None:
            temporary = os.path.join(folder, f"{_TEMPORARY}{os.urandom(8).hex()}")
            # With a folder's descriptor, which is not used, the link in /proc is followed.
            os.link(
                f"{_DESCRIPTORS_FOLDER}/{handle}",
                temporary,
                src_dir_fd=handle,
                follow_symlinks=True,
            )
        os.replace(temporary, path)
        temporary = None

    try:
        with os.fdopen(handle, "wb") as file:
            yield file, give_name
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError of the block into an InputError: the file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write '{os.fspath(path)}': {reason}") from None


def write_atomically(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Write a file whole or not at all: to a temporary file beside it, which is then renamed.

    Raises:
        OSError: the folder cannot be written.
    """
    with open_atomically(path) as file:
        file.write(data)


_MAX_STEM_BYTES = 200
"""The bytes of a name that leave space for a suffix."""


def reproducer_name(stem: str) -> str:
    """Return the file name of the reproducer of a failure of a model with this stem."""
    while len(os.fsencode(stem)) > _MAX_STEM_BYTES:
        stem = stem[:-1]
    return f"{stem}.reproducer.mlir"
