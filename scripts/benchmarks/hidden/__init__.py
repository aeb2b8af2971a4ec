"""Hides CPU features from peers, so that they run their AVX2 code."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

HIDDEN = "SUBQUANT_HIDDEN"
"""The environment variable of a process whose `cpuid` reports no more than AVX2."""

_SOURCE = Path(__file__).with_name("cpuid.c")
_MORE = ("avx512f", "avxvnni")
_CPU_INFO = Path("/proc/cpuinfo")


def build(features: Collection[str], folder: Path) -> Path | None:
    """Compile a preloaded library that makes `cpuid` report AVX2 and no more.

    Args:
        features: the features to report (LLVM's names).
        folder: the folder of the library.

    Returns:
        The library; None for other features, or if this machine cannot trap `cpuid`.
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
