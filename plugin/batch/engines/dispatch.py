"""Where tasks are done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable

from ...errors import EnvironmentProblem, UsageError, printable
from .available_cores import available_cores
from .local_threads import run_locally
from .tasks import Done, OnStep, Task

__all__ = ["run_tasks"]


def run_tasks(
    tasks: Iterable[Task],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    on_step: OnStep | None = None,
    on_notice: Callable[[str], object] | None = None,
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
        on_notice: called with what people should know of the cluster, such as that a worker is
            refused; by default it is written on standard error.

    Raises:
        UsageError: that is no address of a scheduler, or no number of jobs.
        EnvironmentProblem: Dask is not installed, the scheduler does not answer or has ended, or
            its workers cannot do what is asked for.
        RuntimeError: a function has a bug. It is raised after all else is done, and its message has
            the tracebacks.
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
