"""Peers that find less than this machine has: AVX2, beside our code for such a processor."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

__all__ = ["HIDDEN", "build"]

HIDDEN = "SUBQUANT_HIDDEN"
"""The environment variable that is set in a process that finds no more than AVX2."""

_SOURCE = Path(__file__).with_name("cpuid.c")
_MORE = ("avx512f", "avxvnni")
_CPU_INFO = Path("/proc/cpuinfo")


def build(features: Collection[str], folder: Path) -> Path | None:
    """Compile what is preloaded to have a process find a processor with AVX2 and no more.

    Args:
        features: of the processor to be found, by LLVM's names.
        folder: where the library is written.

    Returns:
        The library; None where it is for other features, or this machine cannot do it.
    """
    if "avx2" not in features or not {*_MORE}.isdisjoint(features):
        return None
    if not _CPU_INFO.exists() or "cpuid_fault" not in _CPU_INFO.read_text():
        return None
    library = folder / "hidden.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library
