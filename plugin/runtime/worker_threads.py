"""Worker pool: the threads that compute workgroups of a caller's dispatches (`iree_hooks`).

A worker spins for a millisecond after its last work, like those of OpenMP, llama.cpp and ONNX
Runtime, and then parks. A call wakes parked workers and does not wait for them: it computes the
workgroups itself that no worker has claimed. If calls are short and rare, workers wake too late:
then fewer calls wake them, and they spin for less time (`_SpinPolicy`).

A worker that stops spinning when a call has just begun is not woken by this call, which then takes
twice as long. A worker therefore looks for work a few more times before it parks.
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

from ..iree_hooks.control_block import CONTROL_BLOCK_WORDS, WORDS
from ..isolation.limits import available_cores
from .cpu_affinity import other_processors
from .entry_points import worker_entry
from .open_device import OpenDevice, iree_runtime
from .vm_modules import vm_instance

_SPIN_NANOSECONDS = 1_000_000
"""Nanoseconds that a worker spins before it parks, at most (1 ms); more take CPU time of others."""
_MIN_SPIN_NANOSECONDS = _SPIN_NANOSECONDS // 8
"""The least such time, to which long parking halves it step by step."""
_LONG_PARKING_NANOSECONDS = 10 * _SPIN_NANOSECONDS
"""Longer parking halves the spin time, as calls come rarely."""
_MIN_PAUSE_NANOSECONDS = 2 * _SPIN_NANOSECONDS
"""The time for which calls wake no workers after workers were woken in vain; it doubles."""
_MAX_PAUSE_NANOSECONDS = 100 * _SPIN_NANOSECONDS
"""The greatest time for which calls wake no workers, after several wake-ups in vain."""
_TRIAL_LOOKS, _TRIALS = 10_000, 3
"""Looks for work in a measurement of the time that a look takes, and measurements."""
_SECONDS_BEFORE_PARKING = (0.0, 0.0001, 0.0002, 0.0004, 0.0008, 0.0016)
"""The times between the last looks for work before a worker parks."""
_START_SECONDS = 10.0
"""The time within which a worker has started."""
_ALIGNMENT = 128
"""The alignment of the control block in bytes: two cache lines."""
_ParkedWorker: TypeAlias = "tuple[int, queue.SimpleQueue[None]]"
_CONTEXTS: list[tuple[Any, ...]] = []
"""Loaded worker programs, which are never freed: callers use their functions after the workers."""
_POOLS: dict[int, WorkerPool | None] = {}
_LOCK = threading.Lock()


class _SpinPolicy:
    """Decides how long workers spin and which calls wake them, from earlier calls.

    Attributes:
        spin_nanoseconds: the time for which workers spin.
    """

    def __init__(self) -> None:
        self.spin_nanoseconds = _SPIN_NANOSECONDS
        self._pause = self._pause_end = self._last_call = 0

    def should_wake(self, now: int) -> bool:
        """True if a call wakes parked workers: after the pause, or just after another call."""
        last_call, self._last_call = self._last_call, now
        return now >= self._pause_end or now - last_call < _SPIN_NANOSECONDS

    def record_parking(self, nanoseconds: int) -> None:
        """Adapt to the time for which a worker was parked."""
        if nanoseconds > _LONG_PARKING_NANOSECONDS:
            self.spin_nanoseconds = max(_MIN_SPIN_NANOSECONDS, self.spin_nanoseconds // 2)
        elif nanoseconds < _SPIN_NANOSECONDS:
            self.spin_nanoseconds = min(_SPIN_NANOSECONDS, self.spin_nanoseconds * 2)

    def record_wake_up(self, now: int, *, was_vain: bool) -> None:
        """Adapt to whether a woken worker computed nothing before it parks again."""
        longer = max(_MIN_PAUSE_NANOSECONDS, 2 * self._pause)
        self._pause = min(_MAX_PAUSE_NANOSECONDS, longer) if was_vain else 0
        self._pause_end = now + self._pause


class WorkerPool:
    """Threads that work for one caller at a time; other callers compute alone.

    Args:
        threads: the number of workers and the caller, 2 or more.
        program: the worker program (`subquant.iree_hooks.worker_pool`).

    Attributes:
        threads: as above.
        parked: the system's number of each parked thread, and the queue that wakes it.

    Raises:
        RuntimeError: IREE cannot run the program, or the system starts no thread.
    """

    def __init__(self, threads: int, program: bytes) -> None:
        self._memory = np.zeros(CONTROL_BLOCK_WORDS + _ALIGNMENT, np.int64)
        start = -self._memory.ctypes.data % _ALIGNMENT // self._memory.itemsize
        self._control_block = self._memory[start : start + CONTROL_BLOCK_WORDS]
        self._control_block[WORDS["claim_shift"]] = (threads - 1).bit_length()
        self._program = program
        self._policy, self._looks_per_nanosecond = _SpinPolicy(), 0.0
        self._affinities: dict[int, set[int]] = {}
        self.threads = threads
        self.parked: list[_ParkedWorker] = []
        self._is_ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"subquant-worker-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()
        if not self._is_ready.wait(_START_SECONDS) or not self._control_block[WORDS["publish"]]:
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

    def wake(self) -> None:
        """Wake the parked workers if the policy says so; it takes 5 us, without a wait."""
        if self._policy.should_wake(time.perf_counter_ns()):
            self.wake_all()

    def wake_all(self) -> None:
        """Wake the parked workers, on other processors than the caller's."""
        other_cpus = other_processors()
        while self.parked:
            try:
                thread, wake_up = self.parked.pop()
            except IndexError:  # another caller was faster
                return
            if other_cpus and self._affinities.get(thread) != other_cpus:
                self._affinities[thread] = other_cpus
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, other_cpus)
            wake_up.put(None)

    def stop(self) -> None:
        """End the workers."""
        self._control_block[WORDS["stop"]] = 1
        self.wake_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(_START_SECONDS)

    def reset_publisher(self) -> None:
        """Clear the job in a forked process, which lacks the threads of its publisher."""
        for name in ("range", "failed", "busy", "owner", "single"):
            self._control_block[WORDS[name]] = 0

    def _work(self) -> None:
        """Spin, compute and park until the pool stops: the main function of a worker."""
        wake_up: queue.SimpleQueue[None] = queue.SimpleQueue()
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
                self._is_ready.set()
            self.call(device, context.invoke, entry)
            while not self._control_block[WORDS["stop"]]:
                parked_at = time.perf_counter_ns()
                worker = threading.get_native_id(), wake_up
                self.parked.append(worker)
                if self._control_block[WORDS["stop"]]:
                    break
                was_woken = self._park(worker)
                self._policy.record_parking(time.perf_counter_ns() - parked_at)
                self._set_spin_budget(self._policy.spin_nanoseconds)
                computed = self.computed_workgroups
                self.call(device, context.invoke, entry)
                was_vain = was_woken and self.computed_workgroups == computed
                self._policy.record_wake_up(time.perf_counter_ns(), was_vain=was_vain)
        except Exception:  # any error of IREE: no thread waits for this one
            if is_first:
                self._is_ready.set()

    def _park(self, worker: _ParkedWorker) -> bool:
        """Wait until a call wakes this worker (True), or it sees work before it parks (False)."""
        _, wake_up = worker
        for seconds in _SECONDS_BEFORE_PARKING:
            with contextlib.suppress(queue.Empty):
                wake_up.get(timeout=seconds)
                return True
            if self._has_unclaimed_work:
                with contextlib.suppress(ValueError):  # a call wakes it at this moment
                    self.parked.remove(worker)
                    return False
        wake_up.get()
        return True

    @property
    def _has_unclaimed_work(self) -> bool:
        """True if a dispatch has unclaimed workgroups."""
        word = int(self._control_block[WORDS["range"]])
        return word & 0xFFFFFFFF < word >> 32

    def _measure_looks(self, device: OpenDevice, invoke: Any, entry: Any) -> None:
        """Measure the time of a look for work, which differs tenfold between processors."""
        best = _SPIN_NANOSECONDS
        for _ in range(_TRIALS):
            self._control_block[WORDS["spin_budget"]] = _TRIAL_LOOKS
            start = time.perf_counter_ns()
            self.call(device, invoke, entry)
            best = min(best, time.perf_counter_ns() - start)
        self._looks_per_nanosecond = _TRIAL_LOOKS / max(best, 1)
        self._set_spin_budget(_SPIN_NANOSECONDS)

    def _set_spin_budget(self, nanoseconds: int) -> None:
        """Set the spin budget of workers that begin to spin."""
        looks = max(1, int(nanoseconds * self._looks_per_nanosecond))
        self._control_block[WORDS["spin_budget"]] = looks

    def call(self, device: OpenDevice, invoke: Any, function: Any) -> None:
        """Call a function with the control block, such as that which lets this pool run a program.

        From then on the pool runs it.
        """
        runtime = iree_runtime()
        pushed, popped = runtime.VmVariantList(1), runtime.VmVariantList(1)
        pushed.push_ref(device.view_of_memory(self._control_block, "i64"))
        invoke(function, pushed, popped)


def _stop_all() -> None:
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
