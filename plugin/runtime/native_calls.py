"""Calls of IREE's runtime, and what they must not meet: the end of Python, and a fork.

When Python ends it stops a daemon thread where that next takes Python's lock; inside a call of C++
this aborts the process. So Python's end waits for calls that are under way, and further ones never
begin.

A process that is forked has none of the threads that work for IREE: a call would wait for them
forever, and so would the release of what they work for. What was loaded before is refused, with
what to do, and never released; devices are opened anew.
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

__all__ = ["CALLS", "Calls", "begin_call", "check_process", "is_forked", "native_call"]

EXIT_WAIT_SECONDS = 60.0
"""How many seconds the end of Python waits for calls."""
_EXIT_POLL_SECONDS = 0.001
"""Seconds after which it looks again."""
_nothing: Callable[[], object] = tuple
"""What ends a call that is not counted: nothing that has an effect takes less time."""


class Calls(contextlib.AbstractContextManager["Calls"]):
    """The calls that are under way: each is a use of this as a context.

    A call is counted before it looks whether Python ends, and Python's end says so before it
    counts: one of the two sees the other, without a lock that each call would take twice.

    Calls of the main thread are not counted. Python's end is in that one, so that none of them is
    under way then; and a Ctrl-C, which comes there alone, and between any two lines, would leave
    one counted forever.

    Attributes:
        main: the identity of the main thread.
        under_way: one entry for each call of another thread.
        is_ending: Python's end has begun.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.under_way: collections.deque[None] = collections.deque()
        self.is_ending = False

    def __enter__(self) -> Calls:
        self.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        if threading.get_ident() != self.main:
            self.under_way.pop()

    def begin(self) -> Callable[[], object]:
        """Begin a call, and return what ends it: what a context does, in a third of the time."""
        if threading.get_ident() == self.main:
            return _nothing
        self.under_way.append(None)
        if self.is_ending:
            self.stay()
        return self.under_way.pop

    def stay(self) -> None:
        """Never return from a call that has begun in a daemon thread, as Python ends."""
        if threading.current_thread().daemon:
            self.under_way.pop()
            threading.Event().wait()  # until the process has ended

    def wait(self) -> None:
        """Let no further call begin, and wait for those that have."""
        self.is_ending = True
        end = time.monotonic() + EXIT_WAIT_SECONDS
        while self.under_way and time.monotonic() < end:
            time.sleep(_EXIT_POLL_SECONDS)


CALLS = Calls()
"""Those of this process: in one that is forked there are others."""
_FORKED = False
_PROCESS = os.getpid()


def _start_anew() -> None:
    global CALLS, _FORKED, _PROCESS
    CALLS, _FORKED, _PROCESS = Calls(), True, os.getpid()


def _wait() -> None:
    CALLS.wait()  # those of this process, which may be a forked one


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def native_call() -> contextlib.AbstractContextManager[object]:
    """Return the context in which IREE's runtime is called."""
    return CALLS


def begin_call(loaded_in: int) -> Callable[[], object]:
    """Check the process as `check_process` does, begin a call, and return what ends it.

    For those who make many short calls; others use `native_call`.
    """
    if loaded_in != _PROCESS:
        check_process(loaded_in)
    return CALLS.begin()


def is_forked() -> bool:
    """True in a process that was forked after this module was imported."""
    return _FORKED


def check_process(loaded_in: int) -> None:
    """Check that what is used was loaded in this process.

    Raises:
        ExecutionError: this process was forked since.
    """
    if loaded_in != _PROCESS:
        raise ExecutionError(
            f"this was loaded in process {loaded_in}, of which this process was forked without the "
            "threads that run it; load it again here, or start processes by multiprocessing's "
            "method 'spawn'"
        )
