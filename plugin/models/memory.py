"""The memory of this process, and what it may do with less of."""

from __future__ import annotations

import contextlib
import ctypes
import sys

__all__ = ["peak_memory", "return_free_memory"]


def peak_memory() -> int | None:
    """Return the most bytes that this process has had in memory; None where that is not known.

    What it has mapped of files, weights for example, is among them as far as it was read.
    """
    try:
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        return None


def return_free_memory() -> None:
    """Give what was freed back to the system, where C's library keeps it: that of GNU."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another library
            ctypes.CDLL(None).malloc_trim(0)
