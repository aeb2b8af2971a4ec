"""What the model takes as given, and what it must foretell, measured on this machine.

* *programs*: CPU time of each program's passes and of IREE's compiler, one at a time, and of a hit.
* *cores*: how much more work two and four threads do than one; and what threads in IREE's compiler
  cost and save.
* *overhead*: seconds of client, scheduler and worker for tasks that do nothing, without data, with
  1 KB and with 1 MB both ways.
* *waiting*: batches of tasks that only wait, with more workers than there are cores.
* *files*: calls of the system on the cache's files, for a hit and for a miss.
* *batches*: how long all programs take with one, two and four workers, on the local pool and on
  Dask, with an empty cache and with a full one.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from subquant.batch.engines import Task, run_tasks
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.iree_driver import compiler_path
from subquant.compiler.options import CompileOptions
from subquant.errors import SubquantError

__all__ = [
    "busy_share",
    "measure_batches",
    "measure_cores",
    "measure_files",
    "measure_overhead",
    "measure_programs",
    "measure_start",
    "measure_waiting",
]

_SCRIPTS = Path(__file__).parents[1]
_SMALLEST = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"
Say = Callable[[str], None]


# -- programs -------------------------------------------------------------------------------------


def _cpu_of_children() -> float:
    """CPU seconds of the processes that this one has started: those that ended, and those here."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _cpu_of(process: int) -> float:
    """CPU seconds of a process, its threads together, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children() -> list[int]:
    """The processes that this one has started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _cpu_of_serving() -> float:
    """CPU seconds of the processes that serve this one."""
    return sum(_cpu_of(child) for child in _children())


@dataclass(frozen=True)
class _Timed:
    output: bytes
    passes: float
    iree: float
    seconds: float


def _timed(source: str | Path, cache: Path) -> _Timed:
    serving, commands = _cpu_of_serving(), _cpu_of_children()
    start, own = time.perf_counter(), time.process_time()
    output = compile_to_bytes(source, cache=cache)
    seconds, own = time.perf_counter() - start, time.process_time() - own
    passes = own + _cpu_of_serving() - serving
    return _Timed(output, passes, _cpu_of_children() - commands, seconds)


def _timed_hit(source: str | Path, cache: Path) -> tuple[float, float]:
    """Seconds, and CPU seconds, of what needs no other process."""
    start, own = time.perf_counter(), time.process_time()
    compile_to_bytes(source, cache=cache)
    return time.perf_counter() - start, time.process_time() - own


def busy_share(seconds: float = 2.0) -> float:
    """Return the share of the machine's CPU time that others take now, while this one waits."""

    def times() -> list[int]:
        with open("/proc/stat") as file:
            return [int(field) for field in file.readline().split()[1:9]]

    before = times()
    time.sleep(seconds)
    passed = [after - earlier for after, earlier in zip(times(), before, strict=True)]
    return 1 - (passed[3] + passed[4]) / max(sum(passed), 1)  # idle, and waiting for disks


def measure_programs(
    programs: Mapping[str, str | Path], say: Say, hits: int = 5
) -> list[dict[str, Any]]:
    """Compile each program alone, and then get it from the cache.

    Args:
        programs: texts, or files, by their names, which begin with the kind. Files that are
            refused are left out.
        say: called with a line about each.
        hits: how often each is got from the cache; the median counts.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        compile_to_bytes(_SMALLEST)  # starts, and finds out, what a batch does once
        for name, program in programs.items():
            size = program.stat().st_size if isinstance(program, Path) else len(program)
            try:
                miss = _timed(program, cache)
            except SubquantError as error:
                if not isinstance(program, Path):
                    raise
                say(f"{name} is left out: {error}")
                continue
            hit, hit_cpu = sorted(_timed_hit(program, cache) for _ in range(hits))[hits // 2]
            rows.append(
                {
                    "name": name,
                    "kind": name.partition("-")[0],
                    "source": size,
                    "executable": len(miss.output),
                    "passes": round(miss.passes, 3),
                    "iree": round(miss.iree, 3),
                    "seconds": round(miss.seconds, 3),
                    "hit": round(hit, 5),
                    "hit_cpu": round(hit_cpu, 5),
                }
            )
            say(f"{name}: passes {miss.passes:.2f} s, IREE {miss.iree:.2f} s, of CPU time")
    return rows


def measure_start() -> dict[str, float]:
    """Return the seconds of imports, and how much longer a first compilation takes than others."""
    program = (
        "import sys, time\n"
        "times = [time.perf_counter()]\n"
        "from subquant.compiler.compilation import compile_to_bytes\n"
        "times.append(time.perf_counter())\n"
        "for _ in range(2):\n"
        "    compile_to_bytes(sys.argv[1])\n"
        "    times.append(time.perf_counter())\n"
        "print(*times)"
    )
    command = [sys.executable, "-c", program, _SMALLEST]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    times = [float(text) for text in found.stdout.split()]
    imports, first, second = (after - before for before, after in pairwise(times))
    return {"imports": round(imports, 3), "first": round(first - second, 3)}


# -- cores ----------------------------------------------------------------------------------------

THREADS = {
    "as it is": ({}, ()),
    "IREE_COMPILER_TASK_COUNT=1": ({"IREE_COMPILER_TASK_COUNT": "1"}, ()),
    "--mlir-disable-threading": ({}, ("--mlir-disable-threading",)),
}
"""How IREE's compiler can be told to have fewer threads: variables, flags."""


def measure_cores(program: str, say: Say, repeat: int = 3) -> dict[str, Any]:
    """Run IREE's compiler once, twice and four times at a time.

    Args:
        program: its text.
        say: called with a line about each.
        repeat: how often; the median counts.

    Returns:
        For each way to limit threads and number of processes: the seconds that all take, and the
        CPU seconds of one.
    """
    module = compile_to_bytes(program, emit="mlirbc")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "module.mlirbc"
        source.write_bytes(module)

        def run(variables: Mapping[str, str], flags: Sequence[str]) -> None:
            command = [compiler_path(), str(source), "-o", os.devnull, *CompileOptions().flags]
            environment = {**os.environ, **variables}
            subprocess.run([*command, *flags], check=True, env=environment)

        for name, (variables, flags) in THREADS.items():
            rows = {}
            for count in (1, 2, 4):
                seconds, cpu = [], []
                for _ in range(repeat):
                    before, start = _cpu_of_children(), time.perf_counter()
                    with ThreadPoolExecutor(count) as pool:
                        list(pool.map(lambda _: run(variables, flags), range(count)))  # noqa: B023
                    seconds.append(time.perf_counter() - start)
                    cpu.append((_cpu_of_children() - before) / count)
                rows[str(count)] = {
                    "seconds": round(statistics.median(seconds), 3),
                    "cpu": round(statistics.median(cpu), 3),
                }
                say(f"IREE's compiler, {count} at a time, {name}: {rows[str(count)]}")
            found[name] = rows
    return found


# -- clusters -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster on this machine.

    Args:
        address: of its scheduler.
        scheduler: the process of the scheduler.
    """

    address: str
    scheduler: int


@contextlib.contextmanager
def dask_cluster(workers: int, threads: int = 1) -> Iterator[Cluster]:
    """Start a scheduler and workers of so many threads each, as processes of their own."""
    from distributed import Client

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_SCRIPTS), *filter(None, [os.getenv("PYTHONPATH")])])
    }
    started = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "scheduler.json")
        try:
            scheduler = start(
                "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file,
                "--no-dashboard",
            )  # fmt: skip
            for _ in range(workers):
                start(
                    "worker", "--scheduler-file", file, "--nthreads", str(threads),
                    "--no-dashboard", "--no-nanny", "--local-directory", folder,
                )  # fmt: skip
            with Client(scheduler_file=file, timeout=60) as client:
                client.wait_for_workers(workers, timeout=60)
                address = client.scheduler.address
            yield Cluster(address, scheduler.pid)
        finally:
            for process in started:  # what serves them ends with them
                process.kill()
                process.wait()


# -- overhead -------------------------------------------------------------------------------------

SIZES = {"nothing": 0, "1 KB": 1000, "1 MB": 1_000_000}


def _empty_tasks(count: int, size: int) -> Iterator[Task]:
    for number in range(count):
        blobs = [number.to_bytes(8, "little") * (size // 8)] if size else []
        yield Task(f"task-{number}", "scaling.work:nothing", {}, blobs)


def _drain(tasks: Iterable[Task], **where: Any) -> tuple[float, float]:
    """Do tasks; return the seconds, and the CPU seconds of this process."""
    start, cpu = time.perf_counter(), time.process_time()
    for done in run_tasks(tasks, **where):
        if done.error is not None:
            raise done.error
    return time.perf_counter() - start, time.process_time() - cpu


def measure_overhead(say: Say, scale: int = 1, repeat: int = 3) -> dict[str, Any]:
    """Time tasks that do nothing.

    Args:
        say: called with a line about each.
        scale: how many times as many tasks as there must be.
        repeat: how often; the shortest time counts, with the CPU times of that run.

    Returns:
        For each engine and size of the data: milliseconds a task, and of CPU time of client and
        scheduler; and what the scheduler costs at rest.
    """
    counts = {"nothing": 400 * scale, "1 KB": 400 * scale, "1 MB": 40 * scale}
    found: dict[str, Any] = {}
    for name, size in SIZES.items():
        count = counts[name]
        _drain(_empty_tasks(4, size), jobs=1)
        seconds, cpu = min(_drain(_empty_tasks(count, size), jobs=1) for _ in range(repeat))
        found[f"local, {name}"] = {
            "seconds": seconds / count, "client": cpu / count, "count": count,
        }  # fmt: skip
        say(f"local pool, {name}: {seconds / count * 1e3:.2f} ms a task")
    with dask_cluster(1, 32) as cluster:  # so that none waits for a worker
        times = [_drain(_empty_tasks(1, 0), cluster=cluster.address)[0] for _ in range(3)]
        found["connect"] = min(times)  # the first imports Dask's client
        for name, size in SIZES.items():
            count = counts[name]
            _drain(_empty_tasks(64, size), cluster=cluster.address)
            runs = []
            for _ in range(repeat):
                before = _cpu_of(cluster.scheduler)
                run = _drain(_empty_tasks(count, size), cluster=cluster.address)
                runs.append((*run, _cpu_of(cluster.scheduler) - before))
            seconds, cpu, scheduler = min(runs)
            found[f"Dask, {name}"] = {
                "seconds": seconds / count,
                "client": cpu / count,
                "scheduler": scheduler / count,
                "count": count,
            }
            say(
                f"Dask, {name}: {seconds / count * 1e3:.2f} ms a task, of CPU time: "
                f"client {cpu / count * 1e3:.2f}, scheduler {scheduler / count * 1e3:.2f}"
            )
        found["bare Dask"] = _bare_dask(cluster, 2000 * scale)
        say(f"Dask without subquant: {found['bare Dask']}")
    found["heartbeat"] = _heartbeat()
    return found


def _heartbeat(count: int = 300) -> float:
    """CPU seconds of a worker's sign of life, of both sides together."""
    import asyncio
    import logging

    from distributed import Scheduler, Worker

    logging.getLogger("distributed").setLevel(logging.ERROR)

    async def beat() -> float:
        async with (
            Scheduler(dashboard_address="127.0.0.1:0", port=0, host="127.0.0.1") as scheduler,
            Worker(scheduler.address, nthreads=1) as worker,
        ):
            await worker.heartbeat()
            start = time.process_time()
            for _ in range(count):
                await worker.heartbeat()
            return (time.process_time() - start) / count

    return asyncio.run(beat())


def _bare_dask(cluster: Cluster, count: int) -> dict[str, Any]:
    """What Dask does alone, with all tasks at once."""
    from distributed import Client, wait

    def memory() -> int:
        text = Path(f"/proc/{cluster.scheduler}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found.group(1)) * 1024 if found else 0

    with Client(cluster.address, timeout=60) as client:
        wait(client.map(abs, range(100)))
        rest = 2.0
        before = _cpu_of(cluster.scheduler)
        time.sleep(rest)
        idle = _cpu_of(cluster.scheduler) - before
        cpu, grown, start = _cpu_of(cluster.scheduler), memory(), time.perf_counter()
        own = time.process_time()
        futures = [client.submit(abs, -1 - number, pure=False) for number in range(count)]
        submitted = time.perf_counter() - start
        own = time.process_time() - own
        wait(futures)
        seconds = time.perf_counter() - start
        return {
            "count": count,
            "submitted": submitted / count,
            "client": own / count,
            "seconds": seconds / count,
            "scheduler": (_cpu_of(cluster.scheduler) - cpu) / count,
            "bytes": max(memory() - grown, 0) / count,
            "idle": idle / rest,
        }


def measure_waiting(
    say: Say, counts: Sequence[int] = (4, 16, 64), seconds: float = 0.2, rounds: int = 8
) -> list[dict[str, Any]]:
    """Time Dask with tasks that only wait, so that there can be more workers than cores.

    Args:
        say: called with a line about each.
        counts: how many tasks wait at a time, in threads of one worker.
        seconds: how long each waits.
        rounds: how many tasks there are for each thread.
    """
    rows = []
    for count in counts:
        with dask_cluster(1, count) as cluster:
            tasks = [
                Task(f"task-{number}", "scaling.work:wait", {"seconds": seconds})
                for number in range(rounds * count)
            ]
            _drain(tasks[:count], cluster=cluster.address)
            taken, _ = _drain(tasks, cluster=cluster.address)
        rows.append({"workers": count, "tasks": len(tasks), "each": seconds, "seconds": taken})
        say(f"Dask, {count} tasks that wait at a time: {len(tasks)} in {taken:.2f} s")
    return rows


# -- files ----------------------------------------------------------------------------------------

_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)$")


def measure_files(program: str) -> dict[str, dict[str, int]] | None:
    """Count the calls of the system on the cache's files, for a miss and for a hit.

    Returns:
        The number of calls by their names; None where there is no strace.
    """
    if shutil.which("strace") is None:
        return None
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, cache = Path(folder) / "program.mlir", Path(folder) / "cache"
        source.write_text(program)
        cache.mkdir()
        for name in ("first", "miss", "hit"):
            if name == "miss":  # the folders are there, the entry is not
                source.write_text(program.replace("@main", "@other"))
            log = Path(folder) / name
            command = [
                "strace", "-f", "-y", "-e", "trace=file,desc", "-o", str(log),
                sys.executable, "-c",
                "import sys; from pathlib import Path\n"
                "from subquant.compiler.compilation import compile_to_bytes\n"
                "compile_to_bytes(Path(sys.argv[1]), cache=sys.argv[2])",
                str(source), str(cache),
            ]  # fmt: skip
            result = subprocess.run(command, check=False, capture_output=True)
            if result.returncode:
                return None
            counts: dict[str, int] = {}
            for line in log.read_text(errors="replace").splitlines():
                call = _CALL.match(line)
                if call and str(cache) in call.group(2).partition(" = ")[0]:
                    counts[call.group(1)] = counts.get(call.group(1), 0) + 1
            found[name] = dict(sorted(counts.items()))
    del found["first"]
    return found


# -- batches --------------------------------------------------------------------------------------


def measure_batches(
    programs: Mapping[str, str],
    say: Say,
    local: Sequence[int] = (1, 2),
    dask: Sequence[int] = (1, 2, 4),
) -> list[dict[str, Any]]:
    """Compile all programs with so many workers, with an empty cache and then with it.

    Args:
        programs: texts by names.
        say: called with a line about each.
        local: jobs of the local pool.
        dask: workers of a Dask cluster on this machine.
    """
    rows: list[dict[str, Any]] = []

    def run(engine: str, workers: int, where: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty", "full"):
                tasks = [
                    Task(name, "scaling.work:compile_program", {"cache": cache}, [text.encode()])
                    for name, text in programs.items()
                ]
                busy, done, start = 0.0, 0, time.perf_counter()
                for each in run_tasks(tasks, **where):
                    if each.error is not None:
                        raise each.error
                    busy += each.seconds
                    done += 1
                seconds = time.perf_counter() - start
                rows.append(
                    {
                        "engine": engine,
                        "workers": workers,
                        "cache": state,
                        "programs": done,
                        "seconds": round(seconds, 3),
                        "busy": round(busy, 3),
                    }
                )
                say(f"{engine}, {workers}, {state} cache: {done} programs in {seconds:.2f} s")

    for count in local:
        run("local", count, {"jobs": count})
    for count in dask:
        with dask_cluster(count) as cluster:
            run("Dask", count, {"cluster": cluster.address})
    return rows
