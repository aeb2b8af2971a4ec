"""Dispatch of tasks, to a Dask cluster or to threads that wait for child processes here."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ...errors import EnvironmentProblem, UsageError
from ...isolation.cancellation import CancellableWork
from ...isolation.client import extra_children
from ...isolation.limits import available_cores
from .tasks import MAX_WINDOW_BYTES, Answer, Done, OnStep, Task, cores_of_each, done_from, perform


def run_tasks(
    tasks: Iterable[Task],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    on_step: OnStep | None = None,
) -> Generator[Done, None, None]:
    """Run tasks, and yield a `Done` for each in the order of completion.

    The iterator of tasks is advanced shortly before each one runs, so that all of them need not fit
    into memory. Closing the generator (Ctrl-C, ``contextlib.closing``) cancels the running tasks
    with their child processes; use ``with closing(...)`` if the loop may end early.

    Args:
        jobs: tasks at a time on this machine; by default one for each core.
        cluster: the address of a Dask scheduler, whose workers run them instead of this machine.
        on_step: called with a task and each step that its function reports.

    Raises:
        UsageError: the address or the number of jobs is invalid.
        EnvironmentProblem: Dask is not installed, the scheduler does not answer or has ended, or
            its workers cannot run the tasks.
        RuntimeError: a function has a bug. It is raised after all tasks, with the tracebacks.
    """
    bugs: list[str] = []
    if jobs is not None and jobs < 1:
        raise UsageError(f"expected 1 or more jobs, got {jobs}")
    if cluster is None:
        yield from run_locally(iter(tasks), jobs or available_cores(), on_step, bugs)
    else:
        try:
            from .dask_cluster import run_on_cluster
        except ImportError as error:
            raise EnvironmentProblem(
                f"a cluster needs Dask's package 'distributed' ({error}); "
                "run: pip install 'subquant[cluster]'"
            ) from None
        yield from run_on_cluster(iter(tasks), cluster, on_step, bugs)
    if bugs:
        raise RuntimeError("\n".join(bugs))


def run_locally(
    tasks: Iterator[Task], jobs: int, on_step: OnStep | None, bugs: list[str]
) -> Generator[Done, None, None]:
    """Run tasks in threads of this process, as `run_tasks`; collect tracebacks in `bugs`.

    Up to `jobs` tasks are prefetched, unless they are large.
    """
    events: queue.SimpleQueue[Future[Answer] | tuple[Task, str]] = queue.SimpleQueue()
    running: dict[Future[Answer], tuple[Task, CancellableWork]] = {}

    def is_window_open() -> bool:
        if len(running) < jobs:
            return True
        size = sum(len(blob) for task, _ in running.values() for blob in task.blobs)
        return len(running) < 2 * jobs and size < MAX_WINDOW_BYTES

    def fill() -> None:
        while is_window_open() and (task := next(tasks, None)) is not None:
            start(task)

    def start(task: Task) -> None:
        def steps(step: str, detail: str = "") -> None:
            if on_step is not None:
                events.put((task, step))

        def do(work: CancellableWork) -> Answer:
            work.cores = cores_of_each(min(jobs, len(running)))
            return perform(task, steps, work)

        work = CancellableWork()
        future = executor.submit(do, work)
        running[future] = task, work
        future.add_done_callback(events.put)

    with extra_children(jobs), ThreadPoolExecutor(jobs, "subquant") as executor:
        try:
            fill()
            while running:
                event = events.get()
                if isinstance(event, tuple):
                    if on_step is not None:
                        on_step(*event)
                    continue
                task, _ = running.pop(event)
                answer = event.result()
                fill()
                if answer.bug:
                    bugs.append(f"in the task '{task.name}':\n{answer.bug}")
                else:
                    yield done_from(task, answer)
        finally:  # also at Ctrl-C, and if the generator is closed
            executor.shutdown(wait=False, cancel_futures=True)
            for _, work in running.values():
                work.cancel()
