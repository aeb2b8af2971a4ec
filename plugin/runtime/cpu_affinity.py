"""On which processors the threads of a call run, and who runs first on one (Linux).

IREE 3.13 wakes who waits for a call, and only then says that it has done so; who was woken asks
for that again and again (``iree_async_semaphore_multi_wait``). Linux lets him run first where he
wakes on the processor of the thread that wakes him: of calls by two threads on two processors, one
in ten asked for 3 ms, as long as a time slice is. A caller under ``SCHED_BATCH`` lets that thread
go on, which sleeps soon.

And Linux need not move the second of two threads to the processor that is free: where each has its
own, two take half as long as one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["other_processors", "physical_cores", "yielding_to_waker"]

_PROCESSORS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")


def physical_cores() -> int | None:
    """Return how many threads IREE makes by itself, each on a core of its own.

    None where that is not known, or others than the cores that this process may use.
    """
    if not hasattr(os, "sched_getaffinity") or len(list(_NODES.glob("node[0-9]*"))) > 1:
        return None
    sibling_lists = set()
    for processor in os.sched_getaffinity(0):
        file = _PROCESSORS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        try:
            sibling_lists.add(file.read_text())
        except OSError:
            return None
    return len(sibling_lists)


def yielding_to_waker(invoke: Callable[..., object]) -> Callable[..., object]:
    """Return what does the same, and lets threads go on that wake the caller.

    A caller that has a policy of scheduling of its own keeps it. This takes 3 us.
    """
    if not hasattr(os, "sched_setscheduler"):
        return invoke
    usual, patient = os.SCHED_OTHER, os.SCHED_BATCH

    def call(*arguments: Any) -> object:
        if _policy() != usual:
            return invoke(*arguments)
        try:
            _set_policy(patient)
            return invoke(*arguments)
        finally:
            _set_policy(usual)

    return call


def _policy() -> int:
    """Of the thread that asks."""
    try:
        return os.sched_getscheduler(0)
    except OSError:  # a sandbox may not allow it, and musl has none
        return -1


def _set_policy(policy: int) -> None:
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return


_CURRENT = getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


def other_processors() -> set[int]:
    """Return the processors of this process without that of the calling thread.

    Linux wakes a thread where the thread that wakes it runs, more often than not, and moves one of
    them only after some milliseconds. The set is empty where a system says nothing of processors.
    """
    return os.sched_getaffinity(0) - {_CURRENT()} if _CURRENT is not None else set()
