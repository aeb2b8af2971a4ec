"""Advisory locks of open files (``flock``), and lock files that processes share."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


def create_with_folder(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, and create its folder only if that is missing (network folders are slow)."""
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def lock_file(handle: int, *, exclusive: bool) -> bool:
    """Lock an open file until it is closed; False if the file system has no locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def try_lock(path: Path) -> int | None:
    """Create and lock a lock file, and return its descriptor; None while another has locked it.

    Raises:
        OSError: it cannot be created, or there are no locks.
    """
    handle = create_with_folder(path, os.O_RDWR | os.O_CREAT)
    try:
        if not lock_file(handle, exclusive=True):
            path.unlink(missing_ok=True)
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        # The previous holder removes the file: the locked one may no longer be at the path.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None
