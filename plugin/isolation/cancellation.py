"""Cancellation: one thread stops the child processes and the commands of another thread's work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Cancelled(BaseException):
    """The work of this thread was cancelled; no `Exception`, so that no handler stops it."""


class CancellableWork:
    """Work of one thread, which other threads may cancel.

    Args:
        cores: the cores of this machine that the work may use; None for all.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.cores = cores
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._stops: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Stop the children and the commands of the work; it can start no others."""
        with self._lock:
            self.is_cancelled = True
            for stop in self._stops:
                stop()

    def check(self) -> None:
        """Raise Cancelled if the work was cancelled."""
        if self.is_cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the work of the thread within the block."""
        previous = current_work()
        _THREAD.work = self
        try:
            yield
        finally:
            _THREAD.work = previous

    @contextlib.contextmanager
    def on_cancel(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let `cancel` call a function within the block, and never afterwards."""
        with self._lock:
            self.check()
            self._stops.append(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


_THREAD = threading.local()
_DEFAULT = CancellableWork()
"""The work of threads that have no other; nothing cancels it."""


def current_work() -> CancellableWork:
    """Return the work of this thread."""
    work: CancellableWork = getattr(_THREAD, "work", _DEFAULT)
    return work
