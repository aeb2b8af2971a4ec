"""Threads of IREE on Linux: scheduling between them and the caller, and their priority.

**Waking.** IREE 3.13 wakes the thread that waits for a call before it stores that the call is done,
and the waiting thread polls for this state (``iree_async_semaphore_multi_wait``). On the processor
of the waking thread Linux runs the woken thread first: one in ten calls by two threads on two
processors polled for 3 ms, a time slice. A caller with the policy ``SCHED_BATCH`` lets the waking
thread go on, which soon sleeps. `tests/test_cpu_affinity.py`,
`test_calls_yield_to_the_waking_thread`, shows it.

**Processors.** Linux does not always move the second of two threads to a free processor: two
threads take half the time of one only if each has its own.

**Polling threads** of a Vulkan device get a lower priority than computing threads. IREE has a
thread for each queue of the device that waits for any of two semaphores. Mesa's software device
waits for any of several by polling them without a pause: these threads are never idle, and take
cores from the threads that compute. Their priority is lowered, but not to the lowest value: a
thread that holds a lock and hardly runs made calls wait for a second on a loaded machine. On two
cores a call of a 128x1024x1024 GEMM takes 17 ms on average with this change, and 25 ms without; of
a 1x1024x1024 GEMV 0.6 and 0.8 ms (with asynchronous entry points: `OpenDevice.complete`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROCESSORS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_NICE_STEPS = 5
"""Steps of ``nice`` for a polling thread: it gets a third of the time of a computing one."""
_LOOKS = 3
"""A thread polls if it runs at each of this many looks."""
_LOOK_INTERVAL_SECONDS = 0.001
"""The seconds between looks."""


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


# -- polling threads ------------------------------------------------------------------------------


def list_threads() -> set[int]:
    """Return the numbers of the threads of this process; none except on Linux."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def lower_busy_threads(before: set[int]) -> None:
    """Lower the priority of new threads that run although there is no work."""
    busy = list_threads() - before if before else set()
    for _ in range(_LOOKS if busy else 0):
        time.sleep(_LOOK_INTERVAL_SECONDS)  # a thread that is started runs, too
        busy = {thread for thread in busy if _is_running(thread)}
    for thread in busy:
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(
                os.PRIO_PROCESS, thread, _NICE_STEPS + os.getpriority(os.PRIO_PROCESS, 0)
            )


def _is_running(thread: int) -> bool:
    """True for a thread that runs, or waits for a core."""
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
