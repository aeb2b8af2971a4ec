"""Worker pool: the threads that compute workgroups of a caller's dispatches (`iree_hooks`).

A worker spins for a millisecond after its last work, like those of OpenMP, llama.cpp and ONNX
Runtime, and then parks. A call wakes parked workers and does not wait for them: it computes the
workgroups itself that no worker has claimed. If calls are short and rare, workers wake too late:
then fewer calls wake them, and they spin for less time (`_SpinPolicy`).

On Linux a worker parks in the compiled program and needs no lock of Python to wake. On other
systems it returns, and waits for a condition.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import sys
import threading
import time
from typing import Any

import numpy as np

from ..iree_hooks.control_block import CONTROL_BLOCK_WORDS, WORDS
from ..isolation.limits import available_cores
from .cpu_affinity import other_processors
from .entry_points import worker_entry
from .open_device import OpenDevice, iree_runtime
from .vm_modules import vm_instance

_MAX_SPIN_NANOSECONDS = 1_000_000
"""Nanoseconds that a worker spins before it parks, at most (1 ms); more take CPU time of others."""
_MIN_SPIN_NANOSECONDS = _MAX_SPIN_NANOSECONDS // 8
"""Nanoseconds that a worker spins before it parks, at least; rare calls halve the time to this."""
_RARE_CALL_NANOSECONDS = 10 * _MAX_SPIN_NANOSECONDS
"""Nanoseconds between two calls, beyond which calls are rare."""
_MIN_PAUSE_NANOSECONDS = 2 * _MAX_SPIN_NANOSECONDS
"""Nanoseconds for which calls wake no workers after a wake-up in vain, at least."""
_MAX_PAUSE_NANOSECONDS = 100 * _MAX_SPIN_NANOSECONDS
"""Nanoseconds for which calls wake no workers, at most; each wake-up in vain doubles the time."""
_TRIAL_LOOKS, _TRIALS = 10_000, 3
"""Looks for work in a measurement of the time that a look takes, and measurements."""
_MAX_START_SECONDS = 10.0
"""Seconds in which a worker starts, or ends, at most."""
_ALIGNMENT_BYTES = 128
"""Bytes of the alignment of the control block: two cache lines."""
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's system call ``futex`` by processor."""
_FUTEX_WAKE = 129
"""Its operation that wakes threads of this process."""
_FUTEX = _FUTEX_CALLS.get(platform.machine(), 0) if sys.platform == "linux" else 0
_SYSTEM_CALL: Any = ctypes.CDLL(None).syscall if _FUTEX else None
_WAKE_UPS_BY_CALLER = 2
"""Workers that a call wakes; each of them wakes others."""
_CONTEXTS: list[tuple[Any, ...]] = []
"""Loaded worker programs, which are never freed: callers use their functions after the workers."""
_POOLS: dict[int, WorkerPool | None] = {}
_LOCK = threading.Lock()


def _wake_threads(address: int) -> None:
    """Wake some threads that wait for the word at an address to change; only on Linux."""
    if _SYSTEM_CALL is not None:
        number, word = ctypes.c_long(_FUTEX), ctypes.c_void_p(address)
        _SYSTEM_CALL(number, word, _FUTEX_WAKE, _WAKE_UPS_BY_CALLER, None)


class _SpinPolicy:
    """The spin time of workers, and the calls that wake them, after calls that found them parked.

    Attributes:
        spin_nanoseconds: the time for which workers spin.
    """

    def __init__(self) -> None:
        self.spin_nanoseconds = _MAX_SPIN_NANOSECONDS
        self._pause = self._pause_end = self._last_call = 0
        self._wake_up: tuple[int, int] | None = None  # the last one: time, workgroups before it

    def should_wake(self, now: int, computed_workgroups: int) -> bool:
        """True if a call wakes parked workers: after the pause, or just after another call.

        Args:
            now: the time in nanoseconds.
            computed_workgroups: those that workers have computed until now.
        """
        gap, self._last_call = now - self._last_call, now
        if gap > _RARE_CALL_NANOSECONDS:
            self.spin_nanoseconds = max(_MIN_SPIN_NANOSECONDS, self.spin_nanoseconds // 2)
        elif gap < _MAX_SPIN_NANOSECONDS:
            self.spin_nanoseconds = min(_MAX_SPIN_NANOSECONDS, self.spin_nanoseconds * 2)
        if self._wake_up is not None:
            woken_at, computed_before = self._wake_up
            longer = min(_MAX_PAUSE_NANOSECONDS, max(_MIN_PAUSE_NANOSECONDS, 2 * self._pause))
            self._pause = longer if computed_workgroups == computed_before else 0
            self._pause_end, self._wake_up = woken_at + self._pause, None
        if now < self._pause_end and gap >= _MAX_SPIN_NANOSECONDS:
            return False
        self._wake_up = now, computed_workgroups
        return True


class WorkerPool:
    """Threads that work for one caller at a time; other callers compute alone.

    Args:
        threads: the number of workers and the caller, 2 or more.
        program: the worker program (`subquant.iree_hooks.worker_pool`).

    Attributes:
        threads: as above.
        parked: the number of parked workers.

    Raises:
        RuntimeError: IREE cannot run the program, or the system starts no thread.
    """

    def __init__(self, threads: int, program: bytes) -> None:
        self._memory = np.zeros(CONTROL_BLOCK_WORDS + _ALIGNMENT_BYTES // 8, np.int64)
        start = -self._memory.ctypes.data % _ALIGNMENT_BYTES // self._memory.itemsize
        self._control_block = self._memory[start : start + CONTROL_BLOCK_WORDS]
        self._control_block[WORDS["claim_shift"]] = (threads - 1).bit_length()
        self._program = program
        self._policy, self._looks_per_nanosecond = _SpinPolicy(), 0.0
        self._affinity: set[int] = set()
        self.threads = threads
        address = self._control_block.ctypes.data
        self._parked = ctypes.c_int64.from_address(address + 8 * WORDS["parked"])
        self._wake_ups = address + 8 * WORDS["wake_ups"]
        self._returned = threading.Condition()  # of workers that cannot park in the program
        self._is_ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"subquant-worker-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()
        if not self._is_ready.wait(_MAX_START_SECONDS) or not self._control_block[WORDS["publish"]]:
            self.stop()
            raise RuntimeError("the threads of a worker pool do not start")

    @staticmethod
    def of(threads: int, program: bytes) -> WorkerPool | None:
        """Return the pool of this process with a number of threads; None if it cannot start.

        A pool has no more threads than this process has cores. Any worker program is as good as
        another.
        """
        threads = min(threads, available_cores())
        if threads < 2:
            return None
        with _LOCK:
            if threads not in _POOLS:
                try:
                    _POOLS[threads] = WorkerPool(threads, program)
                except (RuntimeError, ValueError, IndexError):
                    _POOLS[threads] = None
            return _POOLS[threads]

    @property
    def computed_workgroups(self) -> int:
        """The number of workgroups that workers, not callers, have computed."""
        return int(self._control_block[WORDS["done"]])

    @property
    def parked(self) -> int:
        """The number of parked workers."""
        return self._parked.value

    def wake(self) -> None:
        """Wake the parked workers if the policy says so, without a wait."""
        policy = self._policy
        should_wake = policy.should_wake(time.perf_counter_ns(), self.computed_workgroups)
        self._set_spin_budget(policy.spin_nanoseconds)
        if should_wake:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake the parked workers, on other processors than the caller's."""
        other_cpus = other_processors()
        if other_cpus and self._affinity != other_cpus:
            self._affinity = other_cpus
            for thread in self._threads:
                with contextlib.suppress(OSError, TypeError):  # it has ended, or not begun
                    os.sched_setaffinity(thread.native_id, other_cpus)  # type: ignore[arg-type]
        self._control_block[WORDS["wake_ups"]] += 1
        _wake_threads(self._wake_ups)
        with self._returned:
            self._returned.notify_all()

    def stop(self) -> None:
        """End the workers."""
        self._control_block[WORDS["stop"]] = 1
        self._is_ready.set()
        self.wake_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(_MAX_START_SECONDS)

    def reset_publisher(self) -> None:
        """Clear the job in a forked process, which lacks the threads of its publisher."""
        for name in ("range", "failed", "busy", "owner", "single", "parked"):
            self._control_block[WORDS[name]] = 0

    def _work(self) -> None:
        """Run the worker program until the pool stops: the main function of a worker."""
        is_first = threading.current_thread() is self._threads[0]
        try:
            device = OpenDevice("local-sync")
            runtime, instance = iree_runtime(), vm_instance()
            module = runtime.VmModule.copy_buffer(instance, self._program)
            hal = runtime.create_hal_module(instance, device.handle)
            context = runtime.VmContext(instance, [hal, module])
            _CONTEXTS.append((context, hal, module, device))
            entry = worker_entry(module)
            if is_first:
                self._measure_looks(device, context.invoke, entry)
                self._control_block[WORDS["can_park"]] = bool(_FUTEX)
                self._is_ready.set()
            self._is_ready.wait()
            while not self._control_block[WORDS["stop"]]:
                self.call(device, context.invoke, entry)
                with self._returned:
                    if not self._control_block[WORDS["stop"]] and not self._has_unclaimed_work:
                        self._parked.value += 1
                        self._returned.wait()
                        self._parked.value -= 1
        except Exception:  # any error of IREE: no thread waits for this one
            if is_first:
                self._is_ready.set()

    @property
    def _has_unclaimed_work(self) -> bool:
        """True if a dispatch has unclaimed workgroups."""
        word = int(self._control_block[WORDS["range"]])
        return word & 0xFFFFFFFF < word >> 32

    def _measure_looks(self, device: OpenDevice, invoke: Any, entry: Any) -> None:
        """Measure the time of a look for work, which differs tenfold between processors."""
        best = _MAX_SPIN_NANOSECONDS
        for _ in range(_TRIALS):
            self._control_block[WORDS["spin_budget"]] = _TRIAL_LOOKS
            start = time.perf_counter_ns()
            self.call(device, invoke, entry)
            best = min(best, time.perf_counter_ns() - start)
        self._looks_per_nanosecond = _TRIAL_LOOKS / max(best, 1)
        self._set_spin_budget(_MAX_SPIN_NANOSECONDS)

    def _set_spin_budget(self, nanoseconds: int) -> None:
        """Set the spin budget of workers that begin to spin."""
        looks = max(1, int(nanoseconds * self._looks_per_nanosecond))
        self._control_block[WORDS["spin_budget"]] = looks

    def call(self, device: OpenDevice, invoke: Any, function: Any) -> None:
        """Call a function with the control block.

        Args:
            function: the main function of a worker, or the one that sets the control block of a
                program, whose workgroups this pool computes from then on.
        """
        runtime = iree_runtime()
        pushed, popped = runtime.VmVariantList(1), runtime.VmVariantList(1)
        pushed.push_ref(device.view_of_memory(self._control_block, "i64"))
        invoke(function, pushed, popped)


def _stop_all() -> None:
    """End the workers of all pools, when Python ends."""
    for pool in _POOLS.values():
        if pool is not None:
            pool.stop()


_INHERITED: list[WorkerPool] = []


def _start_anew() -> None:
    """Forget the pools of the parent in a forked process, which lacks their threads."""
    global _LOCK
    for pool in _POOLS.values():
        if pool is not None:
            pool.reset_publisher()  # loaded programs still refer to it
            _INHERITED.append(pool)
    _POOLS.clear()
    _LOCK = threading.Lock()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
