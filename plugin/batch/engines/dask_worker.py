"""What runs on the workers of a Dask cluster: they are admitted, and do tasks.

**Admission.** Before a worker is given tasks, `admit` is called there (by ``Client.run``): it says
which versions the worker has, and if they are those of the client, it lets the worker offer the
Dask resource that all tasks of such clients need (`resource_of`). So Dask gives the tasks to no
other worker, also to none that joins later, before the client has looked at it.

**Cancellation.** Dask does not end a thread. When nobody wants a task any more, because its future
was cancelled, or its client has ended, however that was, the worker's state of the task goes from
executing to released, which a worker plugin is told (`_Children.transition`). It cancels the
`CancellableWork` of the task, whose child processes end. They end with the worker too.
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
from .available_cores import cores_of_each
from .tasks import Answer, Task, perform

__all__ = [
    "CPU_RESOURCE",
    "PREFIX",
    "STEPS",
    "Admission",
    "Present",
    "Versions",
    "admit",
    "cpu_resource",
    "differences_of",
    "here",
    "look_again",
    "perform_there",
    "present",
    "resource_of",
    "threads_of_machines",
]

PREFIX = "subquant-"
"""How the names of our tasks, resources and plugins begin in Dask."""

CPU_RESOURCE = f"{PREFIX}cpu-"
"""How the resource begins that says which CPU a worker has."""

STEPS = f"{PREFIX}steps"
"""The topic of the events that say which step of a task begins."""

_PLENTY = 1e9
"""Of a resource that is no bound."""

_IDLE_SECONDS = 10
"""After so long without a task, the idle children of a worker end."""

Versions = Mapping[str, "str | None"]


@dataclass(frozen=True)
class Admission:
    """What a worker has, and whether it can do what the client asks for.

    Args:
        differences: the versions that are not those of the client, as ``name: (here, there)``; the
            worker is admitted if there are none.
        resources: what it offers.
        threads: how many tasks it does at a time.
        threads_of_machine: how many it and the other workers of its machine do.
    """

    differences: Mapping[str, tuple[str | None, str | None]]
    resources: Mapping[str, float]
    threads: int
    threads_of_machine: int


def here() -> Versions:
    """Return what the results of tasks depend on, but for the CPU, in this process."""
    names = [*PINNED_VERSIONS, "numpy", "ml_dtypes", "onnx"]
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "subquant's code": code_digest()[:16],
        **versions_of([*names, "distributed"]),
    }


def differences_of(wanted: Versions, found: Versions) -> dict[str, tuple[str | None, str | None]]:
    """Return what is not as it is wanted, as ``name: (wanted, found)``; None is not wanted."""
    return {
        name: (version, found.get(name))
        for name, version in wanted.items()
        if version is not None and version != found.get(name)
    }


def resource_of(versions: Versions) -> str:
    """Return the name of the resource that workers of these versions offer."""
    return PREFIX + digest_of(repr(sorted(versions.items())).encode())[:16]


def cpu_resource() -> str:
    """Return the name of the resource that workers with a CPU as this machine's offer."""
    return CPU_RESOURCE + digest_of("\n".join(host_cpu()).encode())[:16]


@dataclass(frozen=True)
class Present:
    """A worker that the scheduler has.

    Args:
        address: of it.
        machine: where it is.
        threads: how many tasks it does at a time.
        is_admitted: it offers what `resource_of` the client's versions names.
    """

    address: str
    machine: str
    threads: int
    is_admitted: bool


def present(resource: str, dask_scheduler: Scheduler) -> dict[str, Present]:
    """Return which workers there are, by their addresses.

    Args:
        resource: of `resource_of`.
        dask_scheduler: Dask gives it.
    """
    return {
        address: Present(address, _machine(address), state.nthreads, resource in state.resources)
        for address, state in dask_scheduler.workers.items()
    }


def _machine(address: str) -> str:
    host: str = get_address_host(address)
    return host


def threads_of_machines(workers: Mapping[str, Present]) -> Counter[str]:
    """Return how many tasks each machine does at a time."""
    found: Counter[str] = Counter()
    for worker in workers.values():
        found[worker.machine] += worker.threads
    return found


async def admit(
    versions: Versions, threads_of_machines: Mapping[str, int], dask_worker: Worker
) -> Admission:
    """Let this worker do the tasks of a client, if it has the client's versions.

    Args:
        versions: those of the client. What it does not have itself, it does not ask for.
        threads_of_machines: how many tasks the machines of this worker and of others do at a time.
        dask_worker: this worker; Dask gives it.
    """
    differences = differences_of(versions, here())
    threads = dask_worker.state.nthreads
    threads_of_machine = threads_of_machines[_machine(dask_worker.address)]
    if not differences:
        if PREFIX not in dask_worker.plugins:
            await dask_worker.plugin_add(_Children(), PREFIX, catch_errors=False)
        resources = {resource_of(versions): _PLENTY, cpu_resource(): _PLENTY}
        if not resources.keys() <= dask_worker.state.total_resources.keys():
            await dask_worker.set_resources(**resources)
        children = dask_worker.plugins[PREFIX]
        assert isinstance(children, _Children)
        children.threads_of_others = threads_of_machine - threads
    return Admission(
        differences, dict(dask_worker.state.total_resources), threads, threads_of_machine
    )


def look_again(dask_scheduler: Scheduler) -> None:
    """Have the scheduler look at tasks that no worker could do: one may have been admitted since.

    It does so itself only when a worker comes, which is before the worker is admitted.

    Args:
        dask_scheduler: Dask gives it.
    """
    for worker in list(dask_scheduler.running):
        if not dask_scheduler.unrunnable:
            return
        found = dask_scheduler.bulk_schedule_unrunnable_after_adding_worker(worker)
        dask_scheduler.transitions(found, f"{PREFIX}look-again")


class _Children(WorkerPlugin):
    """The child processes of a worker's tasks: as many as its threads, and ended with them."""

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

    def begin(self, key: str) -> CancellableWork | None:
        """Return the work of a task that begins; None if it was cancelled meanwhile."""
        work = self.works.get(key)
        if work is not None:
            work.cores = cores_of_each(self.threads_of_others + len(self.works))
        return work

    def _close_idle(self, count: int) -> None:
        """End the idle children, if nothing began in the meantime."""
        if count == self._count:
            client.close_idle_children()

    def teardown(self, worker: Worker) -> None:
        for work in self.works.values():
            work.cancel()
        self._stack.close()
        client.close_idle_children()


def perform_there(task: Task, key: str, has_steps: bool, *blobs: bytes) -> tuple[str, Answer]:
    """Do a task in a thread of a worker.

    Args:
        task: the task, without its blobs.
        key: Dask's name of it.
        has_steps: somebody wants to know its steps.
        blobs: those of the task.

    Returns:
        The address of this worker, and the answer.
    """
    worker = get_worker()
    children = worker.plugins.get(PREFIX)
    work = children.begin(key) if isinstance(children, _Children) else None
    if work is None:
        raise Reschedule

    def steps(step: str, detail: str = "") -> None:
        if has_steps:
            worker.log_event(STEPS, {"key": key, "step": step})

    try:
        return worker.address, perform(replace(task, blobs=blobs), steps, work)
    except Cancelled:  # by the worker's own end, if anybody wants it yet
        raise Reschedule from None
