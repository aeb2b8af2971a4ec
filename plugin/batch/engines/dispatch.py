"""Dispatch of tasks to the engine of this machine or of a Dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable

from ...errors import EnvironmentProblem, UsageError, printable
from ...isolation.limits import available_cores
from .local_threads import run_locally
from .tasks import Done, OnStep, Task


def run_tasks(
    tasks: Iterable[Task],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    on_step: OnStep | None = None,
    on_notice: Callable[[str], object] | None = None,
) -> Generator[Done, None, None]:
    """Run tasks, and yield a `Done` for each in the order of completion.

    The iterator of tasks is advanced shortly before each one runs, so that all of them need not fit
    into memory. Closing the generator (Ctrl-C, ``contextlib.closing``) cancels the running tasks
    with their child processes; use ``with closing(...)`` if the loop may end early.

    Args:
        jobs: tasks at a time on this machine; by default one for each core.
        cluster: the address of a Dask scheduler, whose workers run them instead of this machine.
        on_step: called with a task and each step that its function reports.
        on_notice: called with messages about the cluster, such as a refused worker; by default
            written to standard error.

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
        notify = on_notice or _write_notice
        yield from run_on_cluster(iter(tasks), cluster, on_step, notify, bugs)
    if bugs:
        raise RuntimeError("\n".join(bugs))


def _write_notice(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"warning: {printable(text)}\n")
