"""Tasks on this machine: outcomes, and clean-up of cancelled tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import is_alive, wait_until
from subquant.batch.engines import Done, Task, run_tasks
from subquant.batch.engines.tasks import cores_of_each
from subquant.errors import EnvironmentProblem, InputError, Place
from subquant.isolation import client
from subquant.isolation.cancellation import CancellableWork, Cancelled
from subquant.isolation.command import run_supervised

TESTS = Path(__file__).parent


def task(function: str, name: str = "", /, **arguments: object) -> Task:
    return Task(name or function, f"engine_tasks:{function}", arguments)


def test_tasks_are_done() -> None:
    steps: list[tuple[str, str]] = []
    tasks = [
        *(Task(f"double {x}", "engine_tasks:double", {"x": x}, [b"x"] * x) for x in range(20)),
        task("in_child", "in a child", function="double", x=21),
    ]
    actual = list(
        run_tasks(tasks, jobs=3, on_step=lambda task, step: steps.append((task.name, step)))
    )
    by_name = {done.task.name: done for done in actual}
    assert len(actual) == len(by_name) == 21
    for x in range(20):
        done = by_name[f"double {x}"]
        assert (done.value, list(done.blobs), done.error) == (2 * x, [b"xx"] * x, None)
        assert done.worker == ""
    assert by_name["in a child"].value == 42
    assert sorted(steps) == sorted((each.name, "double") for each in tasks)
    assert list(run_tasks([])) == []


def test_an_error_is_that_of_its_task() -> None:
    tasks = [task("refuse"), task("in_child", function="refuse"), task("double", x=1),
             task("in_child", "ended", function="end")]  # fmt: skip
    actual = {done.task.name: done for done in run_tasks(tasks, jobs=1)}
    for name in ("refuse", "in_child"):
        error = actual[name].error
        assert type(error) is InputError
        assert (error.place, error.notes) == (Place("model.mlir", 3, 5), ("seen before",))
    assert actual["double"].value == 2
    ended = actual["ended"].error
    assert type(ended) is EnvironmentProblem
    assert ended.message == "the process that did 'ended' ended (exit status 3)"


def test_a_bug_is_not_lost_and_stops_no_other_task() -> None:
    tasks = [task("fail"), task("in_child", function="fail"), task("double", x=1)]
    actual: list[Done] = []
    with pytest.raises(
        RuntimeError, match=r"(?s)in the task 'fail':\n.*KeyError: 'nothing'"
    ) as bug:
        actual.extend(run_tasks(tasks, jobs=1))
    assert [done.value for done in actual] == [2]
    assert str(bug.value).count("KeyError: 'nothing'") == 2


def test_tasks_are_taken_when_their_turn_comes() -> None:
    used: list[int] = []

    def endless() -> Iterator[Task]:
        while True:
            used.append(len(used))
            yield Task(f"task {len(used)}", "engine_tasks:double", {"x": 1})

    with contextlib.closing(run_tasks(endless(), jobs=2)) as actual:
        for done, _ in zip(actual, range(50), strict=False):
            assert done.value == 2
    assert 50 <= len(used) <= 56


def test_large_tasks_are_not_taken_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquant.batch.engines.local_threads.MAX_WINDOW_BYTES", 10)
    used: list[int] = []

    def tasks(size: int) -> Iterator[Task]:
        for number in range(9):
            used.append(number)
            yield Task(f"{number}", "engine_tasks:double", {"x": 1}, [b"x" * size])

    for size, prefetched in ((20, 2), (1, 4)):
        used.clear()
        with contextlib.closing(run_tasks(tasks(size), jobs=2)) as actual:
            for count, _ in enumerate(actual, 1):
                assert len(used) == min(count + prefetched, 9)


def test_tasks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """And children know it; one that is done alone may take all."""
    monkeypatch.setattr("subquant.batch.engines.tasks.available_cores", lambda: 9)
    tasks = [
        *(task("cores", f"{n}", seconds=0.05) for n in range(6)),
        *(task("in_child", f"child {n}", function="cores", seconds=0.05) for n in range(6)),
    ]
    shared = {done.task.name: done.value for done in run_tasks(tasks, jobs=4)}
    assert [shared[f"{n}"] for n in range(4, 6)] == [2, 2]
    assert {shared[f"child {n}"] for n in range(3)} == {2}
    assert {done.value for done in run_tasks(tasks[-1:], jobs=4)} == {None}
    assert {done.value for done in run_tasks(tasks[-2:], jobs=1)} == {None}
    assert [cores_of_each(tasks) for tasks in (1, 2, 9, 10)] == [None, 4, 1, 1]


def test_there_are_as_many_children_as_jobs() -> None:
    jobs = client.MAX_CHILDREN + 2
    tasks = [
        task("in_child", f"{number}", function="process", seconds=0.5) for number in range(jobs)
    ]
    start = time.monotonic()
    actual = list(run_tasks(tasks, jobs=jobs))
    assert len({done.value for done in actual}) == jobs, time.monotonic() - start
    assert len(client._POOL.idle) <= client._POOL.size == client.MAX_CHILDREN


@pytest.mark.parametrize("function", ["sleep", "run_command"])
def test_what_runs_is_cancelled_when_nobody_wants_the_rest(tmp_path: Path, function: str) -> None:
    kind, options = ("in_child", {"function": function}) if function == "sleep" else (function, {})
    tasks = [task(kind, f"{n}", folder=str(tmp_path), **options) for n in range(9)]
    running = run_tasks([task("double", x=1), *tasks], jobs=2)
    assert next(running).value == 2
    expected = 2 if function == "sleep" else 4
    assert wait_until(lambda: len(os.listdir(tmp_path)) == expected)
    start = time.monotonic()
    running.close()
    assert time.monotonic() - start < 5
    pids = [int(name) for name in os.listdir(tmp_path)]
    assert len(pids) == expected
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    # And the children are as many as before, for others.
    assert next(run_tasks([task("in_child", function="double", x=3)])).value == 6


RUN = """
import contextlib, sys
from subquant.batch.engines import Task, run_tasks
tasks = [Task(str(number), "engine_tasks:in_child", {"function": "sleep", "folder": sys.argv[1]})
         for number in range(9)]
with contextlib.closing(run_tasks(tasks, jobs=2)) as found:
    for done in found:
        print(done)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_signal_ends_the_children(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: len(os.listdir(tmp_path)) == 2)
    process.send_signal(signal.Signals[name])
    shown, errors = process.communicate(timeout=10)
    assert (shown, process.returncode) == ("", -signal.Signals[name])
    assert errors.endswith("KeyboardInterrupt\n") == (name == "SIGINT")
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in os.listdir(tmp_path)))


def test_work_that_is_cancelled_has_no_more_children() -> None:
    work = CancellableWork()
    raised: list[BaseException] = []

    def wait_for_place() -> None:
        with work.active():
            try:
                client.call("engine_tasks:double", {"x": 1})
            except Cancelled as error:
                raised.append(error)

    thread = threading.Thread(target=wait_for_place)
    with contextlib.ExitStack() as stack:
        for _ in range(client.MAX_CHILDREN):  # all are taken
            stack.enter_context(client._POOL.child("os"))
        thread.start()
        time.sleep(0.1)
        assert not raised
        work.cancel()
        thread.join(10)
    assert len(raised) == 1
    with work.active(), pytest.raises(Cancelled):
        run_supervised(["/bin/true"], {})
    assert run_supervised(["/bin/true"], {}).status == 0
