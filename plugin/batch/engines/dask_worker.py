"""Functions that run on the workers of a Dask cluster: admission, tasks, cancellation.

**Admission.** Before a worker gets tasks, the client calls `admit` there (``Client.run``). If the
worker has the client's versions, it then offers the Dask resource that all tasks of the client need
(`resource_of`). So Dask sends no task to another worker, nor to a new worker before its admission.

**Cancellation.** Dask does not end a thread. If a task's future was cancelled or its client ended,
the worker's state of the task changes from executing to released, and the worker plugin
(`_Children.transition`) cancels the `CancellableWork` of the task: its child processes end. They
also end with the worker.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distributed import Reschedule, Scheduler, Worker, WorkerPlugin, get_worker
from distributed.comm.addressing import get_address_host

from ...compiler.digests import digest_of
from ...compiler.keys import code_digest, host_cpu
from ...core.versions import PINNED_VERSIONS, versions_of
from ...isolation import client
from ...isolation.cancellation import CancellableWork, Cancelled
from .tasks import Answer, Task, cores_of_each, perform

PREFIX = "subquant-"
"""Prefix of the names of tasks, resources and plugins in Dask."""

CPU_RESOURCE = f"{PREFIX}cpu-"
"""Prefix of the resource that names a worker's CPU."""

STEPS = f"{PREFIX}steps"
"""Topic of the events that report the steps of tasks."""

_UNBOUNDED = 1e9
"""The amount of a resource that limits nothing."""

_IDLE_SECONDS = 10
"""The seconds without a task after which the idle children of a worker end."""

Versions = Mapping[str, "str | None"]


@dataclass(frozen=True)
class Admission:
    """Versions and resources of a worker.

    Args:
        differences: the versions that are not those of the client, as ``name: (here, there)``; the
            worker is admitted if there are none.
        resources: the resources that it offers.
        threads: tasks that it runs at a time.
        threads_of_machine: tasks that all workers of its machine run at a time.
    """

    differences: Mapping[str, tuple[str | None, str | None]]
    resources: Mapping[str, float]
    threads: int
    threads_of_machine: int


def here() -> Versions:
    """Return the versions on which the results of tasks depend, without the CPU."""
    names = [*PINNED_VERSIONS, "numpy", "ml_dtypes", "onnx"]
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "subquant's code": code_digest()[:16],
        **versions_of([*names, "distributed"]),
    }


def differences_of(
    required: Versions, actual: Versions
) -> dict[str, tuple[str | None, str | None]]:
    """Return differing versions as ``name: (required, actual)``; None is not required."""
    return {
        name: (version, actual.get(name))
        for name, version in required.items()
        if version is not None and version != actual.get(name)
    }


def resource_of(versions: Versions) -> str:
    """Return the name of the resource that workers with these versions offer."""
    return PREFIX + digest_of(repr(sorted(versions.items())).encode())[:16]


def cpu_resource() -> str:
    """Return the name of the resource that workers with a CPU as this machine's offer."""
    return CPU_RESOURCE + digest_of("\n".join(host_cpu()).encode())[:16]


@dataclass(frozen=True)
class Present:
    """Worker of the scheduler, which is admitted if it offers `resource_of`."""

    address: str
    machine: str
    threads: int
    is_admitted: bool


def present(resource: str, dask_scheduler: Scheduler) -> dict[str, Present]:
    """Return the workers by their addresses."""
    return {
        address: Present(
            address, get_address_host(address), state.nthreads, resource in state.resources
        )
        for address, state in dask_scheduler.workers.items()
    }


def threads_of_machines(workers: Mapping[str, Present]) -> Counter[str]:
    """Return the number of tasks that each machine runs at a time."""
    threads: Counter[str] = Counter()
    for worker in workers.values():
        threads[worker.machine] += worker.threads
    return threads


async def admit(
    versions: Versions, threads_of_machines: Mapping[str, int], dask_worker: Worker
) -> Admission:
    """Admit this worker for the tasks of a client, if it has the client's versions.

    Args:
        versions: the client's versions; None for packages that it does not have.
        threads_of_machines: tasks at a time by machine.
        dask_worker: this worker, passed by Dask.
    """
    differences = differences_of(versions, here())
    threads = dask_worker.state.nthreads
    threads_of_machine = threads_of_machines[get_address_host(dask_worker.address)]
    if not differences:
        if PREFIX not in dask_worker.plugins:
            await dask_worker.plugin_add(_Children(), PREFIX, catch_errors=False)
        resources = {resource_of(versions): _UNBOUNDED, cpu_resource(): _UNBOUNDED}
        if not resources.keys() <= dask_worker.state.total_resources.keys():
            await dask_worker.set_resources(**resources)
        children = dask_worker.plugins[PREFIX]
        assert isinstance(children, _Children)
        children.threads_of_others = threads_of_machine - threads
    return Admission(
        differences, dict(dask_worker.state.total_resources), threads, threads_of_machine
    )


def retry_unrunnable(dask_scheduler: Scheduler) -> None:
    """Schedule tasks again that no worker could run before the last admission.

    Dask does so when a worker joins, which is before its admission.
    """
    for worker in list(dask_scheduler.running):
        if not dask_scheduler.unrunnable:
            return
        recommendations = dask_scheduler.bulk_schedule_unrunnable_after_adding_worker(worker)
        dask_scheduler.transitions(recommendations, f"{PREFIX}retry")


class _Children(WorkerPlugin):
    """Plugin of a worker: the child processes of its tasks, one for each thread."""

    def __init__(self) -> None:
        self.works: dict[str, CancellableWork] = {}
        self.threads_of_others = 0  # of the workers of this machine
        self._stack = contextlib.ExitStack()
        self._count = 0

    def setup(self, worker: Worker) -> None:
        self._loop = worker.loop
        self._stack.enter_context(client.extra_children(worker.state.nthreads))

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if not str(key).startswith(PREFIX):
            return
        if finish == "executing":
            self._count += 1
            self.works[key] = CancellableWork()
        elif start == "executing" and key in self.works:
            work = self.works.pop(key)
            if finish == "released":
                work.cancel()
            if not self.works:
                self._loop.call_later(_IDLE_SECONDS, self._close_idle, self._count)

    def work_of(self, key: str) -> CancellableWork | None:
        """Return the work of a starting task; None if it was cancelled meanwhile."""
        work = self.works.get(key)
        if work is not None:
            work.cores = cores_of_each(self.threads_of_others + len(self.works))
        return work

    def _close_idle(self, count: int) -> None:
        """End the idle children, if no task started in the meantime."""
        if count == self._count:
            client.close_idle_children()

    def teardown(self, worker: Worker) -> None:
        for work in self.works.values():
            work.cancel()
        self._stack.close()
        client.close_idle_children()


def perform_there(task: Task, key: str, has_steps: bool, *blobs: bytes) -> tuple[str, Answer]:
    """Run a task without its blobs in a thread of a worker.

    Returns:
        The address of this worker, and the answer.
    """
    worker = get_worker()
    children = worker.plugins.get(PREFIX)
    work = children.work_of(key) if isinstance(children, _Children) else None
    if work is None:
        raise Reschedule

    def steps(step: str, detail: str = "") -> None:
        if has_steps:
            worker.log_event(STEPS, {"key": key, "step": step})

    try:
        return worker.address, perform(replace(task, blobs=blobs), steps, work)
    except Cancelled:  # the worker ends: another one runs the task
        raise Reschedule from None
