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
"""How often. A call takes as long as a copy for its threads: that wakes one, and the caller.

Calls of 83, 142 and 393 us on one thread took 83, 124 and 331 us on two, in the median: 41 to 53 us
more than half of the first two; the third waits for memory. A copy took 47 to 55 us from another
core than that of the thread (IREE 3.13, two cores of a Zen 4).
"""


@functools.cache
def waking_time() -> int:
    """Return about how many nanoseconds a call takes for its threads; measured once, in 3 ms."""
    try:
        found = max(statistics.median(each) for each in _copies())
    except EnvironmentProblem:  # which the program will meet, too, and say
        return LEAST_WAKING
    return max(LEAST_WAKING, round(found))


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
