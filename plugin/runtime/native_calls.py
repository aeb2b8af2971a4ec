"""Calls of IREE's runtime, which must not meet the end of Python or a fork.

At its end Python stops a daemon thread when that acquires the GIL; inside a call of C++ this aborts
the process. The end of Python therefore waits for running calls, and later calls never start.

A forked process has none of IREE's threads: a call would wait for them forever, and so would the
release of an object that they work for. Objects of the parent are refused with advice, and never
released; devices are opened anew.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable

from ..errors import ExecutionError

EXIT_WAIT_SECONDS = 60.0
"""The time for which the end of Python waits for running calls."""
_EXIT_POLL_SECONDS = 0.001
"""The time between two checks for running calls at the end of Python."""
_nothing: Callable[[], object] = tuple
"""The end of a call that is not counted: the cheapest callable without an effect."""


class Calls(contextlib.AbstractContextManager["Calls"]):
    """The running calls; each is a use of this object as a context.

    A call is counted before it checks for the end of Python, and the end of Python is stored before
    the calls are counted: one of the two sees the other, without a lock in each call.

    Calls of the main thread are not counted. The end of Python runs in this thread, so that none of
    its calls is running then; and a Ctrl-C, which comes in this thread alone and between any two
    lines, would leave one counted forever.

    Attributes:
        main: the identity of the main thread.
        running: one entry for each running call of another thread.
        is_ending: the end of Python has begun.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.running: collections.deque[None] = collections.deque()
        self.is_ending = False

    def __enter__(self) -> Calls:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if threading.get_ident() != self.main:
            self.running.pop()

    def start(self) -> Callable[[], object]:
        """Start a call, and return the function that ends it: a third of the time of a context."""
        if threading.get_ident() == self.main:
            return _nothing
        self.running.append(None)
        if self.is_ending:
            self.stay()
        return self.running.pop

    def stay(self) -> None:
        """Never return from a call that has started in a daemon thread at the end of Python."""
        if threading.current_thread().daemon:
            self.running.pop()
            threading.Event().wait()  # until the process has ended

    def wait(self) -> None:
        """Let no further call start, and wait for the running ones."""
        self.is_ending = True
        end = time.monotonic() + EXIT_WAIT_SECONDS
        while self.running and time.monotonic() < end:
            time.sleep(_EXIT_POLL_SECONDS)


CALLS = Calls()
"""The calls of this process; a forked process has another object."""
_FORKED = False
_PROCESS = os.getpid()


def _start_anew() -> None:
    global CALLS, _FORKED, _PROCESS
    CALLS, _FORKED, _PROCESS = Calls(), True, os.getpid()


def _wait() -> None:
    CALLS.wait()  # the object of this process, which may be a forked one


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def native_call() -> contextlib.AbstractContextManager[object]:
    """Return the context for calls of IREE's runtime."""
    return CALLS


def begin_call(loaded_in: int) -> Callable[[], object]:
    """Check the process as `check_process`, start a call, and return the function that ends it.

    It is for short calls; others use `native_call`.
    """
    if loaded_in != _PROCESS:
        check_process(loaded_in)
    return CALLS.start()


def is_forked() -> bool:
    """True in a process that was forked after the import of this module."""
    return _FORKED


def check_process(loaded_in: int) -> None:
    """Refuse an object that another process loaded: a fork has none of its threads.

    Raises:
        ExecutionError: this process was forked since.
    """
    if loaded_in != _PROCESS:
        raise ExecutionError(
            f"this was loaded in process {loaded_in}, of which this process was forked without the "
            "threads that run it; load it again here, or start processes by multiprocessing's "
            "method 'spawn'"
        )
