"""Worker pool: each workgroup of a call is computed once, by the caller or a worker."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import run_python
from programs import one_operation
from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.iree_hooks import session
from subquant.iree_hooks.control_block import WORDS
from subquant.iree_hooks.entry_names import SET_CONTROL_BLOCK, WORKER_PROGRAM_KEY
from subquant.runtime import Device, Executable
from subquant.runtime.cpu_affinity import other_processors
from subquant.runtime.entry_points import worker_program
from subquant.runtime.vm_modules import load_module
from subquant.runtime.worker_threads import WorkerPool
from subquant.signature import WorkEstimate

# A product and its update in place, in workgroups of three dimensions and of one.
PROGRAM = """
ml_program.global private mutable @sum(dense<0.0> : tensor<4x64x256xf32>) : tensor<4x64x256xf32>
func.func @main(%x: tensor<4x64x128xf32>, %w: tensor<4x128x256xf32>) -> tensor<4x64x256xf32> {
  %p = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<4x64x128xf32>, tensor<4x128x256xf32>) -> tensor<4x64x256xf32>
  %s = ml_program.global_load @sum : tensor<4x64x256xf32>
  %n = stablehlo.add %s, %p : tensor<4x64x256xf32>
  ml_program.global_store @sum = %n : tensor<4x64x256xf32>
  return %n : tensor<4x64x256xf32>
}
"""
INTEGERS = one_operation(
    "stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]",
    ["128x512xi8", "512x256xi8"],
    "128x256xi32",
)
THREADS = 5
"""More than there are processors on many machines, so that some are stopped while they work."""


@pytest.fixture(scope="module")
def program() -> bytes:
    return compile_to_bytes(PROGRAM)


@pytest.fixture(scope="module")
def integers() -> bytes:
    return compile_to_bytes(INTEGERS)


@pytest.fixture(scope="module")
def threads(program: bytes) -> bytes:
    """The program of the workers."""
    threads = worker_program(load_module(program)[1])
    assert threads is not None
    return threads


@pytest.fixture
def pool(threads: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """A pool of its own, which every device uses."""
    workers = WorkerPool(THREADS, threads)
    monkeypatch.setattr(WorkerPool, "of", staticmethod(lambda count, program: workers))
    yield workers
    workers.stop()


def wait_until_parked(pool: WorkerPool) -> None:
    while pool.parked < THREADS - 1:
        time.sleep(0.001)


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    """Arrays of small integers: their accumulators are exact in any order."""
    rng = np.random.default_rng(3)
    shapes = ((4, 64, 128), (4, 128, 256))
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return x, w


def test_each_workgroup_is_done_once(pool: WorkerPool, program: bytes) -> None:
    x, w = _arrays()
    executable = Executable(program, threads=THREADS)
    assert executable.threads == THREADS
    for call in range(1, 41):
        pool.wake_all()
        np.testing.assert_array_equal(executable.main(x, w), call * (x @ w))
    assert pool.computed_workgroups > 0


def test_64_threads(threads: bytes, integers: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are those of one thread, for two callers at once, and workers that are woken."""
    count = 64
    workers = WorkerPool(count, threads)
    monkeypatch.setattr(WorkerPool, "of", staticmethod(lambda count, program: workers))
    executable = Executable(integers, threads=count)
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((128, 512), (512, 256)))

    def call(number: int) -> None:
        for _ in range(30):
            np.testing.assert_array_equal(executable.main(x + number, w), expected[number])

    expected = [(x + number).astype(np.int32) @ w.astype(np.int32) for number in range(2)]
    for _ in range(2):
        with ThreadPoolExecutor(2) as callers:
            list(callers.map(call, range(2)))  # raises their errors
        while workers.parked < count - 1:
            time.sleep(0.001)
    workers.stop()
    assert not any(thread.is_alive() for thread in workers._threads)


def test_callers_at_once(pool: WorkerPool, integers: bytes) -> None:
    """One caller has the pool, the others compute alone; each gets its own result."""
    executable = Executable(integers, threads=THREADS)
    rng = np.random.default_rng(4)

    def call(number: int) -> None:
        x = rng.integers(-128, 128, (128, 512)).astype(np.int8)
        w = np.full((512, 256), number, np.int8)
        expected = (x.astype(np.int32).sum(1, keepdims=True) * number).repeat(256, 1)
        for _ in range(60):
            np.testing.assert_array_equal(executable.main(x, w), expected)

    with ThreadPoolExecutor(3) as callers:
        list(callers.map(call, range(1, 4)))  # raises their errors


def test_a_pool_that_is_parked_or_stopped(pool: WorkerPool, integers: bytes) -> None:
    """A call does not wait for the workers."""
    executable = Executable(integers, threads=THREADS)
    x, w = np.ones((128, 512), np.int8), np.ones((512, 256), np.int8)
    wait_until_parked(pool)
    assert executable.main(x, w)[0, 0] == 512
    pool.stop()
    assert not any(thread.is_alive() for thread in pool._threads)
    assert executable.main(x, w)[-1, -1] == 512


def test_a_pool_waits_until_its_first_worker_is_ready(
    threads: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker measures the spin budget of all; others may start before it."""
    measure_looks = WorkerPool._measure_looks

    def later(pool: WorkerPool, *arguments: Any) -> None:
        threading.Event().wait(0.2)
        measure_looks(pool, *arguments)

    monkeypatch.setattr(WorkerPool, "_measure_looks", later)
    workers = WorkerPool(3, threads)
    workers.stop()
    assert workers._control_block[WORDS["spin_budget"]] > 0


def test_the_program_without_a_pool(program: bytes) -> None:
    """IREE's threads and the caller's thread run it like any other program."""
    x, w = _arrays()
    for device in ("local-task", "local-sync"):
        executable = Executable(program, device)
        for call in range(1, 4):
            np.testing.assert_array_equal(executable.main(x, w), call * (x @ w))


def test_a_pool_that_does_not_start(program: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """IREE's threads run the program."""
    monkeypatch.setattr("subquant.runtime.worker_threads._POOLS", {})
    monkeypatch.setattr("subquant.runtime.worker_threads.available_cores", lambda: 2)
    monkeypatch.setattr("subquant.runtime.worker_threads._MAX_START_SECONDS", 0.2)
    monkeypatch.setattr(
        "subquant.runtime.entry_points.decode_worker_program", lambda text: b"nothing"
    )
    x, w = _arrays()
    assert "local-task" in repr(Executable(program, threads=2).main(x, w, resident=True))


def test_programs_that_are_compiled_for_a_pool(
    program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert iree_driver.uses_session(CompileOptions())
    assert not iree_driver.uses_session(CompileOptions(iree_flags=("--iree-opt-level=O1",)))
    monkeypatch.setenv("IREE_TOOL_PATH", "/nowhere")
    assert not iree_driver.uses_session(CompileOptions())
    module = load_module(program)[1]
    assert SET_CONTROL_BLOCK in module.function_names
    recorded = dict(module.lookup_function(SET_CONTROL_BLOCK).reflection)
    assert len(recorded[WORKER_PROGRAM_KEY]) < 10_000


def test_targets_are_registered_before_two_threads_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If both add targets, LLVM's list of targets becomes a ring, and the compiler never ends."""
    happened: list[str] = []

    class Session:
        def __init__(self, flags: list[str]) -> None:
            assert flags == ["--flag"]

        def register_targets(self) -> None:
            time.sleep(0.05)
            happened.append("registered")

        def compile_worker_program(self) -> bytes:
            happened.append("threads")
            return b"threads"

        def compile_file(self, module: str, executable: str, workers: Future[bytes]) -> None:
            assert (module, executable, workers.result()) == ("model", "made", b"threads")
            happened.append("program")

    monkeypatch.setattr(session, "_Session", Session)
    assert session._main("model", "made", session.COMPILE_WORKER_PROGRAM, "--flag") == 0
    assert happened == ["registered", "threads", "program"]
    happened.clear()
    (tmp_path / "workers").write_bytes(b"threads")
    assert session._main("model", "made", str(tmp_path / "workers"), "--flag") == 0
    assert happened == ["program"]


def test_small_programs_have_no_pool() -> None:
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    assert SET_CONTROL_BLOCK not in load_module(compile_to_bytes(text))[1].function_names


def test_workers_spin_while_a_single_workgroup_runs(pool: WorkerPool) -> None:
    pool._control_block[WORDS["single"]] = 1
    threading.Event().wait(0.05)  # workers that looked before
    while pool.parked:
        pool.wake_all()
        threading.Event().wait(0.001)
    threading.Event().wait(0.05)
    assert not pool.parked
    pool._control_block[WORDS["single"]] = 0
    wait_until_parked(pool)


@pytest.mark.skipif(sys.platform != "linux", reason="says nothing of processors")
def test_workers_wake_on_other_processors(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux would run them on the caller's processor, and the caller would wait for them."""
    own = os.sched_getaffinity(0)
    assert other_processors() < own
    assert len(other_processors()) == len(own) - 1
    placed: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", placed.__setitem__)
    monkeypatch.setattr("subquant.runtime.worker_threads.other_processors", lambda: {7})
    while len(placed) < THREADS - 1:
        threading.Event().wait(0.001)
        pool.wake_all()
    assert placed == {thread.native_id: {7} for thread in pool._threads}


class _State(ctypes.Structure):
    """``iree_hal_executable_dispatch_state_v0_t``, as far as the pool reads it."""

    _fields_ = (
        ("size", ctypes.c_uint32 * 2),
        ("size_z", ctypes.c_uint16),
        ("constants", ctypes.c_uint16),
        ("grid_x", ctypes.c_uint32),
        ("grid_y", ctypes.c_uint32),
        ("grid_z", ctypes.c_uint16),
        ("rest", ctypes.c_uint8 * 32),
    )


class _Group(ctypes.Structure):
    """``iree_hal_executable_workgroup_state_v0_t``."""

    _fields_ = (
        ("x", ctypes.c_uint32),
        ("y", ctypes.c_uint32),
        ("z", ctypes.c_uint16),
        ("rest", ctypes.c_uint8 * 32),
    )


_WORK = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
_PUBLISH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, _WORK, *[ctypes.c_void_p] * 3)


class _Dispatch:
    """A dispatch that counts the calls for each workgroup; one of them fails with the status 7."""

    def __init__(
        self,
        pool: WorkerPool,
        grid: tuple[int, int, int],
        fails: tuple[int, int, int] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.control_block, self.counts = pool._control_block, np.zeros(grid, np.int64)
        self.state = _State(grid_x=grid[0], grid_y=grid[1], grid_z=grid[2])
        self.state_address = ctypes.addressof(self.state)
        self.on_workgroup: Callable[[], None] = lambda: None

        def work(environment: int, state: int, address: int) -> int:
            group = _Group.from_address(address)
            assert (environment, state) == (1, self.state_address)
            self.on_workgroup()
            self.counts[group.x, group.y, group.z] += 1  # holding Python's lock
            if seconds:
                time.sleep(seconds)
            return 7 if (group.x, group.y, group.z) == fails else 0

        self.work = _WORK(work)

    def run(self) -> int:
        """Call for the first workgroup, and return its status."""
        publish = _PUBLISH(int(self.control_block[WORDS["publish"]]))
        group = _Group()
        address = self.control_block.ctypes.data
        return int(publish(address, self.work, 1, self.state_address, ctypes.addressof(group)))

    def end(self) -> None:
        """Clear the control block like the call for the last workgroup."""
        busy, owner = (self.control_block[WORDS[name]] for name in ("busy", "owner"))
        assert (busy, owner) == (1, self.state_address)
        self.control_block[WORDS["owner"]] = self.control_block[WORDS["busy"]] = 0


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 3, 1), (17, 1, 1), (3, 5, 2), (1, 2, 40)])
def test_workgroups_of_a_grid(pool: WorkerPool, grid: tuple[int, int, int]) -> None:
    dispatch = _Dispatch(pool, grid)
    for call in range(1, 301):
        pool.wake_all()
        assert dispatch.run() == 0
        assert (dispatch.counts == call).all()
        dispatch.end()


def test_workers_look_for_work_before_they_park(pool: WorkerPool) -> None:
    """A call that begins at this time, some milliseconds, does not wake them."""
    wait_until_parked(pool)
    computed, calls = pool.computed_workgroups, 0
    dispatch = _Dispatch(pool, (8, 1, 1), seconds=0.001)
    while pool.computed_workgroups == computed:
        pool.wake_all()
        wait_until_parked(pool)
        assert dispatch.run() == 0
        dispatch.end()
        calls += 1
        assert (dispatch.counts == calls).all()


@pytest.mark.parametrize(("count", "claimed"), [(2, 1), (17, 2), (31, 3), (32, 2), (128, 8)])
def test_claims_of_many_workgroups_are_small(pool: WorkerPool, count: int, claimed: int) -> None:
    """The first claim of the caller: an eighth with four workers, or half as many."""
    dispatch = _Dispatch(pool, (count, 1, 1))
    words: list[int] = []
    dispatch.on_workgroup = lambda: words.append(int(pool._control_block[WORDS["range"]]))
    assert dispatch.run() == 0
    dispatch.end()
    assert words[0] & 0xFFFFFFFF == claimed


@pytest.mark.parametrize("index", [0, 3, 7])
def test_a_workgroup_that_fails(pool: WorkerPool, index: int) -> None:
    """The dispatch fails after all its workgroups, and the pool is free for the next one."""
    failing, other = _Dispatch(pool, (8, 1, 1), (index, 0, 0)), _Dispatch(pool, (8, 1, 1))
    for call in range(1, 101):
        pool.wake_all()
        assert failing.run() == 7
        assert other.run() == 0
        other.end()
        for each in (failing, other):
            assert (each.counts == call).all()


def test_a_busy_pool(pool: WorkerPool) -> None:
    """A call computes its own workgroup alone; so does a call in a forked process."""
    first, second = _Dispatch(pool, (4, 1, 1)), _Dispatch(pool, (4, 1, 1))
    assert first.run() == 0
    assert second.run() == 0
    assert (*second.counts.flat,) == (1, 0, 0, 0)
    first.end()
    assert first.run() == 0
    pool.reset_publisher()
    assert second.run() == 0
    assert (*second.counts.flat,) == (2, 1, 1, 1)
    second.end()


def test_the_end_of_python(tmp_path: Path, program: bytes) -> None:
    """Spinning and parked workers do not delay it."""
    path = tmp_path / "program.vmfb"
    path.write_bytes(program)
    script = (
        "import sys, threading, numpy as np, subquant\n"
        "from subquant.runtime import worker_threads\n"
        "worker_threads.available_cores = lambda: 3\n"
        "f = subquant.load(sys.argv[1], threads=3)\n"
        "x, w = np.ones((4, 64, 128), np.float32), np.ones((4, 128, 256), np.float32)\n"
        "calls = lambda: [f.main(x, w) for _ in range(1000000)]\n"
        "threading.Thread(target=calls, daemon=True).start()\n"
        "print(f.threads, f.main(x, w).shape)\n"
    )
    assert run_python(script, path, timeout=60) == "3 (4, 64, 256)\n"


def test_the_pool_of_a_device(program: bytes) -> None:
    """Programs that are loaded on devices with the same number of threads share one pool."""
    first, second = (Executable(program, Device(threads=2)) for _ in range(2))
    assert first.threads == second.threads
    assert type(first.main._invoker) is type(second.main._invoker)


@pytest.mark.parametrize(("nanoseconds", "expected"), [(50_000, "wake"), (5_000_000, "wake_all")])
def test_long_calls_wake_workers_without_the_policy(
    nanoseconds: int,
    expected: str,
    pool: WorkerPool,
    program: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy decides for short calls whether workers would wake in time."""
    work = WorkEstimate(nanoseconds, 1)
    monkeypatch.setattr("subquant.signature.WorkEstimate.from_text", lambda text: work)
    woken: list[str] = []
    for name in ("wake", "wake_all"):
        monkeypatch.setattr(pool, name, lambda name=name: woken.append(name))
    executable = Executable(program, threads=2)
    while not pool.parked:
        time.sleep(0.001)
    executable.main(*_arrays())
    monkeypatch.undo()
    assert set(woken) == {expected}
