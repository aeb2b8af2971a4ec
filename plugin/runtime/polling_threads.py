"""Threads that a device waits with by asking again and again: they give way to those that work.

IREE has a thread for each queue of a Vulkan device that waits for any of two semaphores. Mesa, on
its software device, waits for any of several by asking for one after the other without a pause:
these threads are never idle, and take the cores from those that compute. They are given less of
them, and still so much that nobody waits long for a lock that such a thread holds: one as low as
possible had calls wait for a second where other programs ran on all cores.

Of 128 x 1024 x 1024 products on two cores, a call took 25 ms on average, and takes 17 so; one of
1 x 1024 x 1024 took 0.8 ms, and takes 0.6 (of functions that take fences: `OpenDevice.complete`).
"""

from __future__ import annotations

import contextlib
import os
import time

__all__ = ["list_threads", "lower_busy_threads"]

_STEPS = 5
"""Of priority (``nice``): such a thread gets a third of what one gets that works."""
_LOOKS = 3
_PAUSE = 0.001
"""Seconds between looks."""


def list_threads() -> set[int]:
    """The numbers of the threads of this process, where that can be found out: on Linux."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def lower_busy_threads(before: set[int]) -> None:
    """Lower the priority of the threads that are new, and run though there is nothing to do.

    Args:
        before: the threads that are not new.
    """
    busy = list_threads() - before if before else set()
    for _ in range(_LOOKS if busy else 0):
        time.sleep(_PAUSE)  # a thread that is started runs, too
        busy = {thread for thread in busy if _is_running(thread)}
    for thread in busy:
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, thread, _STEPS + os.getpriority(os.PRIO_PROCESS, 0))


def _is_running(thread: int) -> bool:
    """True for a thread that runs, or would if it had a core."""
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
