"""CPU affinity of the threads of a call, and scheduling between them (Linux).

IREE 3.13 wakes the thread that waits for a call before it stores that the call is done, and the
waiting thread polls for this state (``iree_async_semaphore_multi_wait``). On the processor of the
waking thread Linux runs the woken thread first: one in ten calls by two threads on two processors
polled for 3 ms, a time slice. A caller with the policy ``SCHED_BATCH`` lets the waking thread go
on, which soon sleeps. `tests/test_cpu_affinity.py`, `test_calls_yield_to_the_waking_thread`, shows
it.

Linux does not always move the second of two threads to a free processor: two threads take half the
time of one only if each has its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROCESSORS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")


def physical_cores() -> int | None:
    """Return the number of threads that IREE starts by default, each on a core of its own.

    None if it is unknown, or if these are not the cores that this process may use.
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
    """Return a function that does the same and yields to the thread that wakes the caller.

    A caller with a scheduling policy of its own keeps it. The change takes 3 us.
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
    """Return the scheduling policy of the calling thread; -1 if it is unknown."""
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

    Linux usually wakes a thread on the processor of the waking thread, and moves one of them only
    after some milliseconds. The set is empty if the system does not tell its processors.
    """
    return os.sched_getaffinity(0) - {_CURRENT()} if _CURRENT is not None else set()
