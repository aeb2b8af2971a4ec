"""Tasks on a local Dask cluster: outcomes of failures of workers, scheduler and client.

The cluster is started once, and its scheduler is killed by the last test.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from distributed import Client

import subquant
from command_line import fail, succeed
from compile_many_runs import PROGRAM, write_onnx
from dask_cluster import Cluster
from processes import is_alive, wait_until
from programs import LONG
from subquant.batch.engines import HOST_CPU, Done, Task, available_cores, run_tasks
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.conformance import suite
from subquant.conformance.cases import programs_cases
from subquant.conformance.runner import machine, run_cases
from subquant.errors import EnvironmentProblem, InputError, Place
from subquant.runtime.machine import describe_machine
from test_task_engines import task

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers of a thread each, the second of which has a device, and times alone."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as created:
        created.start_worker()
        created.start_worker("--resources", "vulkan=1 bench=1")
        created.wait_for_workers(2)
        yield created


def run(cluster: Cluster, tasks: Sequence[Task], **options: object) -> dict[str, Done]:
    actual = list(run_tasks(tasks, cluster=cluster.address, **options))  # type: ignore[arg-type]
    by_name = {done.task.name: done for done in actual}
    assert len(actual) == len(by_name) == len(tasks)  # nothing lost, nothing twice
    return by_name


def end_worker(cluster: Cluster, nanny: subprocess.Popen[bytes]) -> None:
    nanny.terminate()
    nanny.wait(20)
    cluster.wait_for_workers(2)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.mark.long
def test_tasks_are_done_as_on_this_machine(cluster: Cluster) -> None:
    steps: list[tuple[str, str]] = []
    large = b"x" * (1 << 20)
    tasks = [
        *(Task(f"{x}", "engine_tasks:double", {"x": x}, [b"x" * x, large]) for x in range(9)),
        task("in_child", function="double", x=21),
        task("refuse"),
        task("in_child", "ended", function="end"),
    ]
    actual = run(cluster, tasks, on_step=lambda task, step: steps.append((task.name, step)))
    for x in range(9):
        done = actual[f"{x}"]
        assert (done.value, list(done.blobs)) == (2 * x, [b"xx" * x, 2 * large])
        assert done.worker.startswith("tcp://127.0.0.1:")
    assert actual["in_child"].value == 42
    assert steps.count(("in_child", "double")) == 1
    refused, ended = actual["refuse"].error, actual["ended"].error
    assert type(refused) is InputError
    assert (refused.place, refused.notes) == (Place("model.mlir", 3, 5), ("seen before",))
    assert ended is not None
    assert ended.message == "the process that did 'ended' ended (exit status 3)"


def test_a_bug_on_a_worker_is_not_lost(cluster: Cluster) -> None:
    actual: list[Done] = []
    with pytest.raises(RuntimeError, match=r"(?s)the task 'fail' on tcp:.*KeyError: 'nothing'"):
        actual.extend(run_tasks([task("fail"), task("double", x=1)], cluster=cluster.address))
    assert [done.value for done in actual] == [2]


def test_devices_are_resources(cluster: Cluster) -> None:
    tasks = [
        *(Task(f"{n}", "engine_tasks:process", {}, needs={"vulkan": 1}) for n in range(4)),
        Task("same CPU", "engine_tasks:double", {"x": 1}, needs={HOST_CPU: 1}),
        Task("none", "engine_tasks:double", {"x": 1}, needs={"hip": 2, "vulkan": 1}),
    ]
    start = time.monotonic()
    actual = run(cluster, tasks)
    assert len({actual[f"{n}"].worker for n in range(4)}) == 1
    assert actual["same CPU"].value == 2
    error = actual["none"].error
    assert type(error) is EnvironmentProblem
    assert '--resources "hip=2 vulkan=1"\'' in error.message
    assert time.monotonic() - start < 20


def test_wishes_are_needs_where_a_worker_can_fulfil_them(cluster: Cluster) -> None:
    optional_resources = [{"vulkan": 1.0}] * 3 + [{"hip": 1.0, "vulkan": 1.0}]
    tasks = [
        Task(f"{n}", "engine_tasks:process", {}, optional_resources=wished)
        for n, wished in enumerate(optional_resources)
    ]
    actual = run(cluster, tasks)
    assert [name for name, done in actual.items() if done.error is not None] == []
    (device,) = {actual[f"{n}"].worker for n in range(3)}
    assert actual["0"].task.needs == {"vulkan": 1}
    assert actual["3"].task.needs == {}
    assert actual["3"].worker
    lone = run(cluster, [Task("x", "engine_tasks:process", {}, needs={"vulkan": 1})])
    assert lone["x"].worker == device


@pytest.mark.parametrize("times", [2, 5])
def test_what_others_cancel_is_done_again(cluster: Cluster, times: int) -> None:
    """Dask cancels a task whose result it lost with a worker."""

    def cancel(dask_scheduler: Any = None) -> list[str]:
        keys = [key for key in dask_scheduler.tasks if "process-" in key]
        for key in keys:
            for client in list(dask_scheduler.tasks[key].who_wants):
                dask_scheduler.stimulus_cancel([key], client.client_key, True, "test", "")
        return keys

    cancelled: set[str] = set()

    def disturb() -> None:
        with Client(cluster.address, set_as_default=False) as other:
            while len(cancelled) < times and working.is_set():
                cancelled.update(other.run_on_scheduler(cancel))
                time.sleep(0.02)

    working = threading.Event()
    working.set()
    thread = in_thread(disturb)
    try:
        actual = run(cluster, [task("process", seconds=1)])
    finally:
        working.clear()
        thread.join()
    error = actual["process"].error
    assert (error is None) == (times <= 3)
    assert error is None or error.message == ("'process' was cancelled on the cluster repeatedly")
    assert len(cancelled) == min(times, 4)


def test_workers_of_a_machine_share_its_cores(cluster: Cluster) -> None:
    actual = run(cluster, [task("cores", f"{n}", seconds=0.1) for n in range(4)])
    assert {done.value for done in actual.values()} == {max(available_cores() // 2, 1)}


def test_another_cpu_is_told_apart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquant.batch.engines.dask_worker.host_cpu", lambda: ("flags: other",))
    tasks = [
        Task("host", "engine_tasks:double", {"x": 1}, needs={HOST_CPU: 1}),
        Task("any", "engine_tasks:double", {"x": 1}),
    ]
    actual = run(cluster, tasks)
    assert actual["any"].value == 2
    error = actual["host"].error
    assert error is not None
    assert "is for this machine's CPU ('host'), and no worker" in error.message


CLIENT = """
import sys
from subquant.batch.engines import Task, run_tasks
tasks = [Task(str(number), "engine_tasks:in_child", {"function": "sleep", "folder": sys.argv[2]})
         for number in range(9)]
for done in run_tasks(tasks, cluster=sys.argv[1]):
    print(done)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_children_end_with_the_client(cluster: Cluster, tmp_path: Path, name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, cluster.address, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: len(os.listdir(tmp_path)) == 2, 60)
    process.send_signal(signal.Signals[name])
    shown, errors = process.communicate(timeout=20)
    assert (shown, process.returncode) == ("", -signal.Signals[name]), errors
    assert errors.endswith("KeyboardInterrupt\n") == (name == "SIGINT")
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in os.listdir(tmp_path)))
    assert len(os.listdir(tmp_path)) == 2
    assert run(cluster, [task("in_child", function="double", x=1)])["in_child"].value == 2


@pytest.mark.skipif(not LONG, reason="waits ten seconds; scripts/test --long")
def test_idle_children_of_workers_end(cluster: Cluster) -> None:
    actual = run(cluster, [task("in_child", function="process")])
    assert wait_until(lambda: not is_alive(actual["in_child"].value), 30)


def test_a_worker_dies(cluster: Cluster) -> None:
    """And so does each that has the task which ends its worker; the others are done."""
    cluster.wait_for_workers(2)
    rest = [task("double", f"{n}", x=n) for n in range(6)]
    actual = run(cluster, [*rest, Task("end", "engine_tasks:end", {}, needs={"vulkan": 1})])
    error = actual["end"].error
    assert type(error) is EnvironmentProblem
    assert error.message.startswith("the worker that did 'end' ended, 2 times; the last was tcp:")
    assert [name for name, done in actual.items() if done.error is not None] == ["end"]


@pytest.mark.skipif(not LONG, reason="4 s; a worker of other processes is refused, too")
def test_a_worker_comes_back_where_it_was(cluster: Cluster) -> None:
    """At the same address it is another process, which nobody has admitted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nanny = cluster.start_worker("--worker-port", f"{port}", "--resources", "fixed=1")
    cluster.wait_for_workers(3)
    fixed = {
        name: Task(name, "engine_tasks:process", {}, needs={"fixed": 1}) for name in ("one", "two")
    }
    actual: dict[str, Done] = {}

    def tasks() -> Iterator[Task]:
        yield fixed["one"]
        while "one" not in actual:
            yield task("process", f"{len(actual)} {time.monotonic()}", seconds=0.1)
        os.kill(actual["one"].value, signal.SIGKILL)
        yield fixed["two"]

    for done in run_tasks(tasks(), cluster=cluster.address):
        actual[done.task.name] = done
    assert [done for done in actual.values() if done.error is not None] == []
    assert actual["one"].worker == actual["two"].worker == f"tcp://127.0.0.1:{port}"
    assert actual["one"].value != actual["two"].value
    end_worker(cluster, nanny)


@pytest.mark.skipif(not LONG, reason="3 s; a check of versions before tasks run")
def test_workers_of_other_code_are_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that joins is given no tasks, and one that is there is an error."""
    package = Path(subquant.__file__).resolve().parent
    shutil.copytree(package, tmp_path / "subquant", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "subquant/errors.py").open("a") as file:
        file.write("# changed\n")
    notices: list[str] = []
    monkeypatch.setattr("subquant.batch.engines.dask_cluster._write_notice", notices.append)
    names = (f"{n}" for n in range(10_000) if not notices)
    tasks = (task("in_child", name, function="process", seconds=0.05) for name in names)
    nanny = None
    actual = []
    for done in run_tasks(tasks, cluster=cluster.address):
        if nanny is None:
            nanny = cluster.start_worker(PYTHONPATH=os.pathsep.join([str(tmp_path), str(TESTS)]))
        actual.append(done)
    assert nanny is not None
    (notice,) = notices
    assert "has subquant's code " in notice
    assert notice.endswith(", and gets no tasks")
    assert len({done.worker for done in actual}) == 2
    assert all(done.error is None for done in actual)
    with pytest.raises(EnvironmentProblem, match="the workers must have what this machine has: "):
        list(run_tasks([task("double", x=1)], cluster=cluster.address))
    end_worker(cluster, nanny)


@pytest.mark.long
def test_conformance_on_a_cluster(cluster: Cluster) -> None:
    """Outcomes equal the local ones, also of a case that ends its process."""
    programs = {program.name: program for program in suite.programs()}
    norm = replace(programs["batch_norm_inference/i8-2d"], interpreted=True)
    cases = programs_cases([programs["add/i8-i8-to-i8"], norm, programs["abs/i8-to-i8"]])
    machines: set[str] = set()
    actual = run_cases(cases, "interpreter", None, cluster=cluster.address, machines=machines)
    assert [outcome.status for outcome in actual] == ["pass", "crash", "pass"]
    assert "batch_norm_inference is unsupported" in actual[1].message
    assert machines == {machine()}
    with pytest.raises(EnvironmentProblem, match="needs a worker that offers hip=1, and no worker"):
        run_cases(cases, "hip", None, cluster=cluster.address)


def bench(cluster: Cluster, *arguments: str) -> Result:
    return succeed("bench", *arguments, "--cluster", cluster.address)


def bench_error(cluster: Cluster, *arguments: str) -> str:
    return fail(1, "bench", *arguments, "--cluster", cluster.address)


@pytest.mark.long
@pytest.mark.usefixtures("in_temporary_folder")
def test_bench_on_a_cluster(cluster: Cluster) -> None:
    """The executable, its parameters and its arguments are sent from here."""
    weight = ", ".join(map(str, range(512)))
    text = f"""func.func @f(%x: tensor<512xf32>, %y: tensor<f32>) -> tensor<512xf32> {{
  %w = arith.constant dense<[{weight}]> : tensor<512xi32>
  %f = arith.sitofp %w : tensor<512xi32> to tensor<512xf32>
  %z = arith.addf %x, %f : tensor<512xf32>
  return %z : tensor<512xf32>
}}"""
    options = CompileOptions(target_cpu="generic")
    Path("f.vmfb").write_bytes(compile_to_bytes(text, options, parameters="w.irpa"))
    np.save("x.npy", np.zeros(512, np.float32))
    arguments = ("f.vmfb", "--input", "@x.npy", "--input", "f32=1", "--repeat", "3")
    actual = bench(cluster, *arguments, "--parameters", "model=w.irpa", "--json")
    message = json.loads(actual.stdout)
    assert (message["function"], message["milliseconds"]["count"]) == ("f", 3)
    assert message["machine"] == describe_machine()
    with Client(cluster.address, set_as_default=False) as client:
        workers = client.scheduler_info()["workers"]
    assert "bench" in workers[message["worker"]]["resources"]
    without = bench_error(cluster, *arguments, "--parameters", "other=w.irpa")
    assert without.startswith("error: 'f.vmfb' needs parameters; ")
    Path("w.irpa").write_bytes(b"none")
    wrong = bench_error(cluster, *arguments, "--parameters", "model=w.irpa")
    assert wrong.startswith("w.irpa: error: ")
    bench_error(cluster, "f.vmfb", "--input", "@nowhere.npy")


@pytest.mark.long
@pytest.mark.usefixtures("in_temporary_folder")
def test_a_model_is_compiled_where_it_is_timed(cluster: Cluster) -> None:
    """External data is sent along; errors name the caller's files."""
    Path("m").mkdir()
    write_onnx("m/parts.onnx", external="parts.bin")
    arguments = ("m/parts.onnx", "--repeat", "2", "--threads", "1")
    actual = bench(cluster, *arguments)
    assert re.search(r"median .*, 2 calls, on tcp://127\.0\.0\.1:\d+\n", actual.stdout)
    assert re.search(r"compiled in [\d.]+ s, [\d,]+ bytes", actual.stderr)
    failed = bench_error(cluster, *arguments, "--iree-flag=--iree-opt-level=O9")
    assert Path("parts.reproducer.mlir").stat().st_size
    assert "parts.reproducer.mlir" in failed
    Path("m/parts.bin").unlink()
    without = bench_error(cluster, *arguments)
    assert "m/parts.bin" in without
    assert tempfile.gettempdir() not in without
    Path("wrong.mlir").write_text("func.func @f() {\n  return %x : i8\n}")
    assert bench_error(cluster, "wrong.mlir").startswith("wrong.mlir:2:10: error: ")
    absent = bench_error(cluster, "wrong.mlir", "--device", "hip")
    assert "needs a worker that offers hip=1, and no worker" in absent


SPECIFICATION = """module attributes { transform.with_named_sequence } {
  transform.named_sequence @__kernel_config(%op: !transform.any_op {transform.consumed}) {
    transform.yield
  }
}
"""


@pytest.mark.long
@pytest.mark.usefixtures("in_temporary_folder")
def test_files_of_flags_go_to_workers(cluster: Cluster) -> None:
    """Errors name the caller's files."""
    Path("x.mlir").write_text(PROGRAM.format(n=4))
    Path("spec.mlir").write_text(SPECIFICATION)
    flag = "--iree-flag=--iree-codegen-tuning-spec-path"
    Path("wrong.mlir").write_text("nonsense")
    failed = bench_error(cluster, "x.mlir", f"{flag}=wrong.mlir")
    assert failed.startswith("wrong.mlir:1:1: error: IREE refused the module: ")
    assert f"{flag.removeprefix('--iree-flag=')}=wrong.mlir\n" in failed
    inputs = ["compile", "x.mlir", "-o", "out/", "--cluster", cluster.address]
    succeed(*inputs, f"{flag}=spec.mlir")
    for arguments in (["bench", "x.mlir", "--cluster", cluster.address], inputs):
        refused = fail(2, *arguments, "--iree-flag=--dump-to=out/")
        assert refused.startswith("error: 'out/', which --iree-flag names, is no file that")


@pytest.mark.skipif(not LONG, reason="a minute: ten kills")
def test_workers_are_killed_at_ten_random_moments(cluster: Cluster) -> None:
    """No task is lost or done twice, and no child of a killed worker is left."""
    draw = random.Random(0)
    killed: list[int] = []
    arguments: list[str] = []

    def kill() -> None:
        with Client(cluster.address, set_as_default=False) as client:
            while len(killed) < 10:
                time.sleep(draw.uniform(0.2, 3))
                actual = client.run(os.getpid, on_error="ignore")
                if actual:
                    killed.append(draw.choice(sorted(actual.values())))
                    os.kill(killed[-1], signal.SIGKILL)

    def tasks() -> Iterator[Task]:
        while len(killed) < 10 or len(arguments) < 100:
            arguments.append(str(len(arguments)))
            yield task("in_child", arguments[-1], function="process", seconds=draw.uniform(0, 0.4))

    cluster.set_allowed_failures(3)  # as it is where nobody sets it
    killer = in_thread(kill)
    actual = list(run_tasks(tasks(), cluster=cluster.address))
    killer.join()
    assert sorted(done.task.name for done in actual) == sorted(arguments)
    assert [done for done in actual if done.error is not None] == []
    assert not any(is_alive(pid) for pid in killed)
    assert wait_until(lambda: not any(is_alive(done.value) for done in actual), 30)


def test_all_workers_end_and_then_the_scheduler(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []

    def sleep() -> None:
        tasks = [task("in_child", f"{n}", function="sleep", folder=str(tmp_path)) for n in range(9)]
        with contextlib.suppress(StopIteration):
            try:
                next(run_tasks(tasks, cluster=cluster.address))
            except EnvironmentProblem as error:
                errors.append(error.message)

    thread = in_thread(sleep)
    assert wait_until(lambda: len(os.listdir(tmp_path)) == 2)
    cluster.scheduler.kill()
    start = time.monotonic()
    thread.join(20)
    assert time.monotonic() - start < 5
    where = f"the scheduler at '{cluster.address}'"
    assert errors == [f"{where} ended, or cannot be reached; finished tasks stay finished"]
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in os.listdir(tmp_path)))
