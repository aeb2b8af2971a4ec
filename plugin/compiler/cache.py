"""Executables kept by content in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from .._mlir import installed_versions
from ..files import write_whole
from .options import CompileOptions

__all__ = ["Cache", "key_of"]


class Cache:
    """A folder of executables by key; each after its SHA-256, so that a broken one is seen."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def read(self, key: str) -> bytes | None:
        """Return an executable if it is there and whole."""
        try:
            data = (self.folder / key).read_bytes()
        except OSError:
            return None
        digest, executable = data[:32], data[32:]
        return executable if hashlib.sha256(executable).digest() == digest else None

    def write(self, key: str, executable: bytes) -> None:
        """Keep an executable, if that is possible: a cache that cannot be written is no cache."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / key, hashlib.sha256(executable).digest() + executable)


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
