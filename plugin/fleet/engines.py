"""Where tasks are done."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable

from ..errors import EnvironmentProblem
from .local import run_locally
from .tasks import Done, OnStep, Task

__all__ = ["available_cores", "run_tasks"]


def available_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1


def run_tasks(
    tasks: Iterable[Task],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    on_step: OnStep = lambda task, step: None,
) -> Generator[Done, None, None]:
    """Do tasks, and give what came of each in the order in which they end.

    The tasks are taken when their turn comes near, so that there may be more of them than memory
    has place for. When the generator is closed, by Ctrl-C or by ``contextlib.closing``, those that
    run are cancelled, with their child processes; take it in a ``with closing(...)`` wherever the
    loop may end before it does.

    Args:
        tasks: what to do.
        jobs: how many at a time on this machine; by default one a core.
        cluster: the address of a Dask scheduler, whose workers do them in place of this machine.
        on_step: called with a task and each step that its function reports.

    Raises:
        EnvironmentProblem: the cluster cannot be used.
        RuntimeError: a function has a bug. It is raised after all else is done, and its message has
            the tracebacks.
    """
    if cluster is not None:
        raise EnvironmentProblem("this version of subquant uses no cluster")
    bugs: list[str] = []
    yield from run_locally(iter(tasks), jobs or available_cores(), on_step, bugs)
    if bugs:
        raise RuntimeError("\n".join(bugs))
