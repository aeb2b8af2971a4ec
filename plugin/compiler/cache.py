"""Executables kept by content in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import InputError
from ..files import open_input, write_whole
from ..versions import installed_versions
from .options import CompileOptions

__all__ = ["Cache", "key_of"]


class Cache:
    """A folder of executables by key; each after its SHA-256, so that a broken one is seen."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def read(self, key: str) -> bytes | None:
        """Return an executable if it is there and whole."""
        try:
            with open_input(self.folder / key) as file:
                data = file.read()
        except (InputError, OSError):
            return None
        digest, executable = data[:32], data[32:]
        return executable if hashlib.sha256(executable).digest() == digest else None

    def write(self, key: str, executable: bytes) -> None:
        """Keep an executable, if that is possible: a cache that cannot be written is no cache."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            entry = self.folder / key
            if entry.exists() and not entry.is_file():  # a pipe, say: it would be written to
                entry.unlink()
            write_whole(self.folder / key, hashlib.sha256(executable).digest() + executable)

    @contextlib.contextmanager
    def reserved(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold a key while its executable is compiled; others that ask for the key wait.

        The lock is a file beside the executable, held by the operating system until the block or
        the process ends. Where there are no such locks, or the folder cannot be written, nobody
        waits, and each compiles for itself.

        Args:
            key: of the executable, which should be read again inside the block.
            on_wait: called before waiting for another holder.
        """
        handle = self._locked(self.folder / f"{key}.lock", on_wait)
        try:
            yield
        finally:
            if handle is not None:
                (self.folder / f"{key}.lock").unlink(missing_ok=True)
                os.close(handle)
                self._remove_stale_locks()

    def _remove_stale_locks(self) -> None:
        """Remove the locks that processes have left that were killed."""
        import fcntl

        for path in self.folder.glob("*.lock"):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()  # whoever waits for it looks whether it is there
                finally:
                    os.close(handle)

    def _locked(self, path: Path, on_wait: Callable[[], None]) -> int | None:
        """Open and lock a file; None where that is not possible."""
        try:
            import fcntl
        except ImportError:  # Windows
            return None
        handle = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_wait()
                    fcntl.flock(handle, fcntl.LOCK_EX)
                # The holder before removed the file: what is locked may no longer be at its path.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), path.stat()):
                        return handle
                os.close(handle)
                handle = None
        except OSError:
            if handle is not None:
                os.close(handle)
            return None


def key_of(bytecode: bytes, options: CompileOptions) -> str:
    """Return what tells a compilation from others: module, flags, versions, this machine's CPU."""
    digest = hashlib.sha256(bytecode)
    host = _host_cpu() if options.target_cpu == "host" else ""
    versions = sorted(installed_versions().items())
    digest.update(repr((options.flags, versions, host)).encode())
    return digest.hexdigest()


def _host_cpu() -> str:
    """What tells this machine's CPU from another's, for the cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        import platform

        return platform.processor()
    wanted = ("model name", "flags", "Features")
    return "".join(sorted({line for line in lines if line.startswith(wanted)}))
