"""Memory of this process: its peak, and the return of free memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def peak_memory() -> int | None:
    """Return the peak resident memory of this process in bytes; None if it is unknown.

    Mapped files (weights, for example) count as far as they were read.
    """
    try:
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        return None


def return_free_memory() -> None:
    """Return freed memory to the system (glibc keeps it otherwise)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another library
            ctypes.CDLL(None).malloc_trim(0)


def in_own_arena(function: Callable[[], _Result]) -> _Result:
    """Call a function whose memory `return_free_memory` is to return later.

    A thread of its own calls it, with a glibc arena of its own. In the main arena IREE's zeroed
    key-value caches would reuse that memory and touch its pages.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
