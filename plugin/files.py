"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["open_whole", "write_whole"]


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
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, which then takes its name.

    Raises:
        OSError: the folder cannot be written.
    """
    with open_whole(path) as file:
        file.write(data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
