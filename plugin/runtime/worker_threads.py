"""The threads of a team: they share the workgroups of what a caller runs (`subquant.iree_hooks`).

A thread asks for work for a millisecond after the last, as those of OpenMP, llama.cpp and ONNX
Runtime do, and sleeps then. A call wakes those that sleep, and does not wait for them: it takes
the workgroups itself that no thread has taken. Where calls are short and rare, threads come too
late: then fewer calls wake them, and they ask for less long (`_Habits`).

A thread that stops to ask when a call has just begun is not woken by it. So it looks for work some
more times while it falls asleep: it would sleep as long as the call lasts, which takes twice as
long then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from typing import Any, TypeAlias

import numpy as np

from ..iree_hooks.worker_pool import MAILBOX_WORDS, SLOTS, THREADS
from ..isolation.limits import available_cores
from .cpu_affinity import other_processors
from .open_device import OpenDevice, iree_runtime
from .vm_modules import vm_instance

__all__ = ["Team"]

_PATIENCE = 1_000_000
"""Nanoseconds for which a thread asks for work."""
_LEAST_PATIENCE, _LONG = _PATIENCE // 8, 10 * _PATIENCE
"""The same where they sleep long, and what that is."""
_LEAST_REST, _MOST_REST = 2 * _PATIENCE, 100 * _PATIENCE
"""Nanoseconds for which they are not woken where that was in vain, and again and again."""
_TRIAL, _TRIALS = 10_000, 3
"""How often a thread asks to find out how long that takes, and how often it finds that out."""
_LOOKS = (0.0, 0.0001, 0.0002, 0.0004, 0.0008, 0.0016)
"""Seconds from one look for work to the next, of a thread that falls asleep."""
_START = 10.0
"""Seconds in which a thread has started."""
_ALIGNMENT = 128
_Sleeper: TypeAlias = "tuple[int, queue.SimpleQueue[None]]"
_LOADED: list[tuple[Any, ...]] = []
"""The programs of threads, for good: callers run functions of them when these have ended, too."""
_TEAMS: dict[int, Team | None] = {}
_LOCK = threading.Lock()


class _Habits:
    """How long threads ask for work, and when they are woken, by what came of it before.

    Attributes:
        patience: nanoseconds for which they ask.
    """

    def __init__(self) -> None:
        self.patience = _PATIENCE
        self._rest = self._rested = self._called = 0

    def wakes(self, now: int) -> bool:
        """True if a call wakes those that sleep: after their rest, or another call just before.

        Args:
            now: when, in nanoseconds.
        """
        before, self._called = self._called, now
        return now >= self._rested or now - before < _PATIENCE

    def woken(self, slept: int) -> None:
        """Learn how many nanoseconds a thread has slept."""
        if slept > _LONG:
            self.patience = max(_LEAST_PATIENCE, self.patience // 2)
        elif slept < _PATIENCE:
            self.patience = min(_PATIENCE, self.patience * 2)

    def tired(self, now: int, *, was_vain: bool) -> None:
        """Learn whether threads had no work after they were woken, before they sleep again."""
        self._rest = min(_MOST_REST, max(_LEAST_REST, 2 * self._rest)) if was_vain else 0
        self._rested = now + self._rest


class Team:
    """Threads that work for callers: for one at a time, while others work alone.

    Args:
        threads: how many there are with the caller, 2 or more.
        program: the threads' own (`subquant.iree_hooks.worker_pool.threads_program`).

    Attributes:
        threads: as given.
        sleeping: the threads that sleep, by their numbers of the system, and what wakes each.

    Raises:
        RuntimeError: IREE cannot run the program, or the system starts no thread.
    """

    def __init__(self, threads: int, program: bytes) -> None:
        self._memory = np.zeros(MAILBOX_WORDS + _ALIGNMENT, np.int64)
        start = -self._memory.ctypes.data % _ALIGNMENT // self._memory.itemsize
        self._mailbox = self._memory[start : start + MAILBOX_WORDS]
        self._mailbox[SLOTS["shift"]] = (threads - 1).bit_length()
        self._program = program
        self._habits, self._asks = _Habits(), 0.0
        self._places: dict[int, set[int]] = {}
        self.threads = threads
        self.sleeping: list[_Sleeper] = []
        self._is_ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, name=f"subquant-team-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()
        if not self._is_ready.wait(_START) or not self._mailbox[SLOTS["together"]]:
            self.stop()
            raise RuntimeError("the threads of a team do not start")

    @staticmethod
    def of(threads: int, program: bytes) -> Team | None:
        """Return this process's team of a size, started if need be; None if that is not possible.

        Args:
            threads: as many as asked for; a team has no more than this process has processors.
            program: the threads' own; that of an earlier call does as well.
        """
        threads = min(threads, available_cores())
        if threads < 2:
            return None
        with _LOCK:
            if threads not in _TEAMS:
                try:
                    _TEAMS[threads] = Team(threads, program)
                except (RuntimeError, ValueError, IndexError):
                    _TEAMS[threads] = None
            return _TEAMS[threads]

    @property
    def taken(self) -> int:
        """How many workgroups its threads have done beside the callers."""
        return int(self._mailbox[SLOTS["done"]])

    def join(self, device: OpenDevice, invoke: Any, handle: Any) -> None:
        """Have a program that is loaded be run by this team from now on.

        Args:
            device: that it is loaded on, whose calls are the caller's own.
            invoke: runs a function of it.
            handle: of its function `subquant.iree_hooks.worker_pool.TEAM`.
        """
        self._call(device, invoke, handle)

    def wake(self) -> None:
        """Wake the threads that sleep, if that is worth it for a call.

        This takes 5 us and does not wait for them.
        """
        if self._habits.wakes(time.perf_counter_ns()):
            self.wake_all()

    def wake_all(self) -> None:
        """Wake the threads that sleep, on other processors than the caller's."""
        others = other_processors()
        while self.sleeping:
            try:
                thread, awoken = self.sleeping.pop()
            except IndexError:  # another caller was faster
                return
            if others and self._places.get(thread) != others:
                self._places[thread] = others
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, others)
            awoken.put(None)

    def stop(self) -> None:
        """Let the threads end."""
        self._mailbox[SLOTS["stop"]] = 1
        self.wake_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(_START)

    def forget_callers(self) -> None:
        """Have nobody be the publisher of a dispatch: in a process without those that were."""
        for name in ("range", "failed", "busy", "owner", "alone"):
            self._mailbox[SLOTS[name]] = 0

    def _serve(self) -> None:
        """Work, or sleep, until the team is stopped."""
        awoken: queue.SimpleQueue[None] = queue.SimpleQueue()
        is_first = threading.current_thread() is self._threads[0]
        try:
            device = OpenDevice("local-sync")
            runtime, instance = iree_runtime(), vm_instance()
            module = runtime.VmModule.copy_buffer(instance, self._program)
            hal = runtime.create_hal_module(instance, device.handle)
            context = runtime.VmContext(instance, [hal, module])
            _LOADED.append((context, hal, module, device))
            handle = module.lookup_function(THREADS)
            if is_first:
                self._set_patience(device, context.invoke, handle)
                self._is_ready.set()
            self._call(device, context.invoke, handle)
            while not self._mailbox[SLOTS["stop"]]:
                asleep = time.perf_counter_ns()
                sleeper = threading.get_native_id(), awoken
                self.sleeping.append(sleeper)
                if self._mailbox[SLOTS["stop"]]:
                    break
                is_called = self._sleep(sleeper)
                self._habits.woken(time.perf_counter_ns() - asleep)
                self._ask_for(self._habits.patience)
                before = self.taken
                self._call(device, context.invoke, handle)
                was_vain = is_called and self.taken == before
                self._habits.tired(time.perf_counter_ns(), was_vain=was_vain)
        except Exception:  # what IREE raises, of all kinds: nobody waits for this thread
            if is_first:
                self._is_ready.set()

    def _sleep(self, sleeper: _Sleeper) -> bool:
        """Sleep until a call wakes this thread (True), or it finds work by itself, before long.

        Args:
            sleeper: what `sleeping` has of it.
        """
        _, awoken = sleeper
        for seconds in _LOOKS:
            with contextlib.suppress(queue.Empty):
                awoken.get(timeout=seconds)
                return True
            if self._is_work_left:
                with contextlib.suppress(ValueError):  # that wakes it at this moment
                    self.sleeping.remove(sleeper)
                    return False
        awoken.get()
        return True

    @property
    def _is_work_left(self) -> bool:
        """True if a dispatch has workgroups that nobody has taken."""
        word = int(self._mailbox[SLOTS["range"]])
        return word & 0xFFFFFFFF < word >> 32

    def _set_patience(self, device: OpenDevice, invoke: Any, handle: Any) -> None:
        """Find out how long it takes to ask for work, which differs by ten between processors."""
        slot, best = SLOTS["patience"], _PATIENCE
        for _ in range(_TRIALS):
            self._mailbox[slot] = _TRIAL
            start = time.perf_counter_ns()
            self._call(device, invoke, handle)
            best = min(best, time.perf_counter_ns() - start)
        self._asks = _TRIAL / max(best, 1)
        self._ask_for(_PATIENCE)

    def _ask_for(self, nanoseconds: int) -> None:
        """Have threads that begin to ask for work ask for so long."""
        self._mailbox[SLOTS["patience"]] = max(1, int(nanoseconds * self._asks))

    def _call(self, device: OpenDevice, invoke: Any, handle: Any) -> None:
        """Call a function with the mailbox."""
        runtime = iree_runtime()
        given, returned = runtime.VmVariantList(1), runtime.VmVariantList(1)
        given.push_ref(device.view_of_memory(self._mailbox, "i64"))
        invoke(handle, given, returned)


def _stop_all() -> None:
    for team in _TEAMS.values():
        if team is not None:
            team.stop()


_INHERITED: list[Team] = []


def _start_anew() -> None:
    """Forget, in a process that was forked, the teams of its parent, which has their threads."""
    global _LOCK
    for team in _TEAMS.values():
        if team is not None:
            team.forget_callers()  # programs still have it
            _INHERITED.append(team)
    _TEAMS.clear()
    _LOCK = threading.Lock()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
