"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, which then takes its name.

    Raises:
        OSError: the folder cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays, and what it points to is written
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)  # a device or a pipe, which must not be replaced
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
