"""How long this machine takes to have IREE's threads do something.

A processor that has nothing to do sleeps, and a virtual machine gives it back meanwhile: to wake a
thread there takes 10 us on one machine and 50 on another. What a program gains by several threads
depends on it (`subquant.signature.Work`).
"""

from __future__ import annotations

import functools
import os
import statistics
import time

import numpy as np

from ..errors import EnvironmentProblem
from ..signature import LEAST_WAKING
from .open_device import OpenDevice

__all__ = ["waking_time"]

_COPIES = 30
_OF_A_CALL = 2
"""What a call takes for its threads, in copies, for which one is woken, and the caller then.

Calls of 42, 93, 141 and 524 us on one thread took 128, 155, 187 and 377 us on two, in the median:
115 us more than half of that. A copy took 30 to 58 us (IREE 3.13, two cores of a Zen 4).
"""


@functools.cache
def waking_time() -> int:
    """Return about how many nanoseconds a call takes for its threads; measured once, in 3 ms."""
    try:
        found = max(statistics.median(each) for each in _copies())
    except EnvironmentProblem:  # which the program will meet, too, and say
        return LEAST_WAKING
    return max(LEAST_WAKING, round(_OF_A_CALL * found))


def _copies() -> list[list[int]]:
    """Nanoseconds in which a thread of IREE copies a few bytes, asked for from one core or two.

    Each of its threads stays on a core: it is found awake from the same one.
    """
    opened = OpenDevice("local-task")
    view = opened.upload(np.zeros(16, np.int32), "i32")

    def copies() -> list[int]:
        found = []
        for _ in range(_COPIES):
            start = time.perf_counter_ns()
            opened.copied(view)
            found.append(time.perf_counter_ns() - start)
        return found

    if not hasattr(os, "sched_setaffinity"):
        return [copies()]
    found, allowed = [], os.sched_getaffinity(0)
    try:
        for core in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {core})
            found.append(copies())
    except OSError:  # a container may not allow it
        found.append(copies())
    finally:
        os.sched_setaffinity(0, allowed)
    return found
