"""A team of threads shares the workgroups of a call: each is done once, whoever does it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.iree_hooks import session
from subquant.iree_hooks.worker_pool import MAILBOX_WORDS, SLOTS, TEAM, THREADS_KEY, threads_program
from subquant.runtime import Device, Executable
from subquant.runtime.cpu_affinity import other_processors
from subquant.runtime.executable import _threads_program
from subquant.runtime.vm_modules import load_module
from subquant.runtime.worker_threads import Team, _Habits
from subquant.signature import Work

# A product, and what is done with it in place, in workgroups of three dimensions and of one.
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
INTEGERS = """
func.func @main(%x: tensor<128x512xi8>, %w: tensor<512x256xi8>) -> tensor<128x256xi32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<128x512xi8>, tensor<512x256xi8>) -> tensor<128x256xi32>
  return %y : tensor<128x256xi32>
}
"""
THREADS = 5
"""More than there are processors on many machines, so that some are stopped while they work."""


@pytest.fixture(scope="module")
def program() -> bytes:
    return compile_to_bytes(PROGRAM)


@pytest.fixture(scope="module")
def integers() -> bytes:
    return compile_to_bytes(INTEGERS)


@pytest.fixture
def team(program: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """A team of its own, of which the threads that sleep are woken."""
    threads = _threads_program(load_module(program)[1])
    assert threads is not None
    made = Team(THREADS, threads)
    monkeypatch.setattr(Team, "of", staticmethod(lambda count, given: made))
    yield made
    made.stop()


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    """Of small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    shapes = ((4, 64, 128), (4, 128, 256))
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return x, w


def test_each_workgroup_is_done_once(team: Team, program: bytes) -> None:
    x, w = _arrays()
    executable = Executable(program, threads=THREADS)
    assert executable.threads == THREADS
    for call in range(1, 41):
        team.wake_all()
        np.testing.assert_array_equal(executable.main(x, w), call * (x @ w))
    assert team.taken > 0


def test_callers_at_once(team: Team, integers: bytes) -> None:
    """One has the team, the others work alone; each gets its own result."""
    executable = Executable(integers, threads=THREADS)
    rng = np.random.default_rng(4)
    wrong: list[int] = []

    def call(number: int) -> None:
        x = rng.integers(-128, 128, (128, 512)).astype(np.int8)
        w = np.full((512, 256), number, np.int8)
        expected = (x.astype(np.int32).sum(1, keepdims=True) * number).repeat(256, 1)
        for _ in range(60):
            if not np.array_equal(executable.main(x, w), expected):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(1, 4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


def test_a_team_that_sleeps_or_has_ended(team: Team, integers: bytes) -> None:
    """A call does not wait for it."""
    executable = Executable(integers, threads=THREADS)
    x, w = np.ones((128, 512), np.int8), np.ones((512, 256), np.int8)
    while len(team.sleeping) < THREADS - 1:
        threading.Event().wait(0.001)
    assert executable.main(x, w)[0, 0] == 512
    team.stop()
    assert not any(thread.is_alive() for thread in team._threads)
    assert executable.main(x, w)[-1, -1] == 512


def test_a_team_waits_until_its_first_thread_is_ready(
    program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one finds out how often all of them ask for work; the others may be there before."""
    threads = _threads_program(load_module(program)[1])
    assert threads is not None
    set_patience = Team._set_patience

    def later(team: Team, *arguments: Any) -> None:
        threading.Event().wait(0.2)
        set_patience(team, *arguments)

    monkeypatch.setattr(Team, "_set_patience", later)
    made = Team(3, threads)
    made.stop()
    assert made._mailbox[SLOTS["patience"]] > 0


def test_without_a_team_it_is_a_program_of_ires(program: bytes) -> None:
    """IREE's own threads, and the caller's, run it as any other."""
    x, w = _arrays()
    for device in ("local-task", "local-sync"):
        executable = Executable(program, device)
        for call in range(1, 4):
            np.testing.assert_array_equal(executable.main(x, w), call * (x @ w))


def test_of_a_team_that_does_not_start(program: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """IREE's threads run the program."""
    monkeypatch.setattr("subquant.runtime.worker_threads._TEAMS", {})
    monkeypatch.setattr("subquant.runtime.worker_threads.available_cores", lambda: 2)
    monkeypatch.setattr("subquant.runtime.worker_threads._START", 0.2)
    monkeypatch.setattr("subquant.runtime.executable.threads_program", lambda text: b"nothing")
    x, w = _arrays()
    executable = Executable(program, threads=2)
    assert "local-task" in repr(executable.main(x, w, resident=True))


@pytest.mark.parametrize("text", ["", "x", "eA==", "\N{SNOWMAN}"])
def test_threads_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        threads_program(text)


def test_what_is_compiled_for_teams(program: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert iree_driver.is_by_session(CompileOptions())
    assert not iree_driver.is_by_session(CompileOptions(iree_flags=("--iree-opt-level=O1",)))
    monkeypatch.setenv("IREE_TOOL_PATH", "/nowhere")
    assert not iree_driver.is_by_session(CompileOptions())
    _, module = load_module(program)
    assert TEAM in module.function_names
    recorded = dict(module.lookup_function(TEAM).reflection)
    assert len(recorded[THREADS_KEY]) < 10_000


def test_targets_are_registered_before_two_threads_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM's list of them becomes a ring where both add to it, and the compiler never ends."""
    happened: list[str] = []

    class Session:
        def __init__(self, flags: list[str]) -> None:
            assert flags == ["--flag"]

        def register_targets(self) -> None:
            time.sleep(0.05)
            happened.append("registered")

        def threads_program(self) -> bytes:
            happened.append("threads")
            return b"threads"

        def compile_file(self, given: str, made: str, threads: Future[bytes]) -> None:
            assert (given, made, threads.result()) == ("model", "made", b"threads")
            happened.append("program")

    monkeypatch.setattr(session, "_Session", Session)
    assert session._main("model", "made", session.NEW_TEAM, "--flag") == 0
    assert happened == ["registered", "threads", "program"]
    happened.clear()
    (tmp_path / "team").write_bytes(b"threads")
    assert session._main("model", "made", str(tmp_path / "team"), "--flag") == 0
    assert happened == ["program"]


def test_small_programs_are_not() -> None:
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    assert TEAM not in load_module(compile_to_bytes(text))[1].function_names


def test_places_of_the_mailbox() -> None:
    """They differ, lie in it, and what threads ask for is not where the job is written."""
    assert len({*SLOTS.values()}) == len(SLOTS)
    assert max(SLOTS.values()) < MAILBOX_WORDS
    job = ("range", "function", "environment", "state", "columns", "rows")
    assert {SLOTS[name] // 8 for name in job} == {0}
    lines = [SLOTS[name] // 16 for name in ("range", "done", "busy", "stop")]
    assert len({*lines}) == len(lines)


def test_threads_wait_for_the_end_of_what_one_does_alone(team: Team) -> None:
    team._mailbox[SLOTS["alone"]] = 1
    while len(team.sleeping) < THREADS - 1 and team._mailbox[SLOTS["alone"]]:
        threading.Event().wait(0.02)  # those that have asked before
        team.wake_all()
        threading.Event().wait(0.05)
        assert not team.sleeping
        team._mailbox[SLOTS["alone"]] = 0
    while len(team.sleeping) < THREADS - 1:
        threading.Event().wait(0.001)


@pytest.mark.skipif(sys.platform != "linux", reason="says nothing of processors")
def test_threads_are_woken_on_other_processors(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux has them run where the caller runs, which then waits for them."""
    own = os.sched_getaffinity(0)
    assert other_processors() < own
    assert len(other_processors()) == len(own) - 1
    placed: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", placed.__setitem__)
    monkeypatch.setattr("subquant.runtime.worker_threads.other_processors", lambda: {7})
    while len(placed) < THREADS - 1:
        threading.Event().wait(0.001)
        team.wake_all()
    assert placed == {thread.native_id: {7} for thread in team._threads}


MS = 1_000_000


def test_threads_are_not_woken_in_vain_again_and_again() -> None:
    habits, now, woken = _Habits(), 0, 0
    for _ in range(1000):  # a call every 10 ms, which is done when they come
        now += 10 * MS
        if habits.wakes(now):
            woken += 1
            habits.tired(now + MS, was_vain=True)
    assert 90 <= woken < 110
    now += 10 * MS
    assert [habits.wakes(now), habits.wakes(now + MS // 2)] == [False, True]
    habits.tired(now + MS, was_vain=False)
    assert all(habits.wakes(now + n * 10 * MS) for n in range(1, 100))


def test_threads_ask_less_long_where_they_sleep_long() -> None:
    habits = _Habits()
    patience = []
    for slept in (5 * MS, 20 * MS, 20 * MS, 20 * MS, 20 * MS, 5 * MS, MS // 2, MS // 2, 0, 0):
        habits.woken(slept)
        patience.append(habits.patience * 8 // MS)
    assert patience == [8, 4, 2, 1, 1, 1, 2, 4, 8, 8]


class _State(ctypes.Structure):
    """``iree_hal_executable_dispatch_state_v0_t``, as far as the team reads it."""

    _fields_ = (
        ("size", ctypes.c_uint32 * 2),
        ("size_z", ctypes.c_uint16),
        ("constants", ctypes.c_uint16),
        ("columns", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("layers", ctypes.c_uint16),
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
_TOGETHER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, _WORK, *[ctypes.c_void_p] * 3)


class _Dispatch:
    """A dispatch whose work is counted.

    Args:
        team: runs it.
        grid: columns, rows and layers of workgroups.
        fails: the workgroup that returns 7.
        seconds: that each takes.
    """

    def __init__(
        self,
        team: Team,
        grid: tuple[int, int, int],
        fails: tuple[int, int, int] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.mailbox, self.grid, self.counts = team._mailbox, grid, np.zeros(grid, np.int64)
        self.state = _State(columns=grid[0], rows=grid[1], layers=grid[2])
        self.where = ctypes.addressof(self.state)
        self.began: Callable[[], None] = lambda: None

        def work(environment: int, state: int, given: int) -> int:
            group = _Group.from_address(given)
            assert (environment, state) == (1, self.where)
            self.began()
            self.counts[group.x, group.y, group.z] += 1  # holding Python's lock
            if seconds:
                time.sleep(seconds)
            return 7 if (group.x, group.y, group.z) == fails else 0

        self.work = _WORK(work)

    def run(self) -> int:
        """Call for the first workgroup, and return what that returns."""
        together = _TOGETHER(int(self.mailbox[SLOTS["together"]]))
        group = _Group()
        address = self.mailbox.ctypes.data
        return int(together(address, self.work, 1, self.where, ctypes.addressof(group)))

    def end(self) -> None:
        """Do what the call for the last workgroup does."""
        busy, owner = (self.mailbox[SLOTS[name]] for name in ("busy", "owner"))
        assert (busy, owner) == (1, self.where)
        self.mailbox[SLOTS["owner"]] = self.mailbox[SLOTS["busy"]] = 0


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 3, 1), (17, 1, 1), (3, 5, 2), (1, 2, 40)])
def test_workgroups_of_a_grid(team: Team, grid: tuple[int, int, int]) -> None:
    dispatch = _Dispatch(team, grid)
    for call in range(1, 301):
        team.wake_all()
        assert dispatch.run() == 0
        assert (dispatch.counts == call).all()
        dispatch.end()


def test_threads_that_fall_asleep_find_work(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that begins meanwhile does not wake them."""
    monkeypatch.setattr("subquant.runtime.worker_threads._LOOKS", (0.001,) * 10_000)
    while len(team.sleeping) < THREADS - 1:
        time.sleep(0.001)
    team.wake_all()
    while len(team.sleeping) < THREADS - 1:
        time.sleep(0.001)
    taken, dispatch = team.taken, _Dispatch(team, (64, 1, 1), seconds=0.001)
    assert dispatch.run() == 0
    assert (dispatch.counts == 1).all()
    dispatch.end()
    assert team.taken > taken


@pytest.mark.parametrize(("count", "taken"), [(2, 1), (17, 2), (31, 3), (32, 2), (128, 8)])
def test_of_many_workgroups_few_are_taken_at_a_time(team: Team, count: int, taken: int) -> None:
    """By the caller first: an eighth with four other threads, or half as many."""
    dispatch = _Dispatch(team, (count, 1, 1))
    words: list[int] = []
    dispatch.began = lambda: words.append(int(team._mailbox[SLOTS["range"]]))
    assert dispatch.run() == 0
    dispatch.end()
    assert words[0] & 0xFFFFFFFF == taken


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_workgroup_that_fails(team: Team, place: int) -> None:
    """The dispatch fails, all of whose workgroups are done, and the team is for the next."""
    failing, other = _Dispatch(team, (8, 1, 1), (place, 0, 0)), _Dispatch(team, (8, 1, 1))
    for call in range(1, 101):
        team.wake_all()
        assert failing.run() == 7
        assert other.run() == 0
        other.end()
        for each in (failing, other):
            assert (each.counts == call).all()


def test_a_team_that_is_busy(team: Team) -> None:
    """A call does its own workgroup alone; so does that of a process that was forked meanwhile."""
    first, second = _Dispatch(team, (4, 1, 1)), _Dispatch(team, (4, 1, 1))
    assert first.run() == 0
    assert second.run() == 0
    assert (*second.counts.flat,) == (1, 0, 0, 0)
    first.end()
    assert first.run() == 0
    team.forget_callers()
    assert second.run() == 0
    assert (*second.counts.flat,) == (2, 1, 1, 1)
    second.end()


def test_the_end_of_python(tmp_path: Path, program: bytes) -> None:
    """Threads that wait for work, and those that sleep, do not hold it up."""
    path = tmp_path / "program.vmfb"
    path.write_bytes(program)
    script = (
        "import sys, threading, numpy as np, subquant\n"
        "from subquant.runtime import worker_pool\n"
        "worker_pool.available_cores = lambda: 3\n"
        "f = subquant.load(sys.argv[1], threads=3)\n"
        "x, w = np.ones((4, 64, 128), np.float32), np.ones((4, 128, 256), np.float32)\n"
        "calls = lambda: [f.main(x, w) for _ in range(1000000)]\n"
        "threading.Thread(target=calls, daemon=True).start()\n"
        "print(f.threads, f.main(x, w).shape)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (0, "3 (4, 64, 256)\n"), result.stderr


def test_a_team_of_the_device(program: bytes) -> None:
    """Programs that are loaded on devices of as many threads have one team."""
    first, second = (Executable(program, Device(threads=2)) for _ in range(2))
    assert first.threads == second.threads
    assert type(first.main._context) is type(second.main._context)


@pytest.mark.parametrize(("nanoseconds", "expected"), [(50_000, "wake"), (5_000_000, "wake_all")])
def test_long_calls_wake_threads_whatever_was_before(
    nanoseconds: int,
    expected: str,
    team: Team,
    program: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of short ones it is asked whether threads would come in time."""
    work = Work(nanoseconds, 1)
    monkeypatch.setattr("subquant.runtime.executable._work", lambda function: work)
    woken: list[str] = []
    for name in ("wake", "wake_all"):
        monkeypatch.setattr(team, name, lambda name=name: woken.append(name))
    executable = Executable(program, threads=2)
    while not team.sleeping:
        time.sleep(0.001)
    executable.main(*_arrays())
    monkeypatch.undo()
    assert set(woken) == {expected}
