"""Engine of a Dask cluster: submits tasks to its scheduler and returns their results.

Dask schedules, transports, sends heartbeats and recovers from lost workers. This client connects
(`dask_connection`), admits workers (`dask_workers`), keeps a window of submitted tasks, and yields
the results.

* **Lost workers.** Dask gives the tasks of a dead worker to other workers. A task fails if more of
  its workers died than ``distributed.scheduler.allowed-failures`` allows. Without any worker the
  client waits `WORKER_TIMEOUT_SECONDS`. A result whose worker dies before it is fetched is computed
  again; if Dask has forgotten the task by then, it reports a cancellation, and the client submits
  the task again.
* **Lost scheduler.** The run ends with an error; finished tasks stay finished.
* **Window.** The scheduler keeps submitted data in memory, and all tasks of a dead worker count as
  suspect. So at most twice as many tasks as the workers' threads are submitted, and at most
  `MAX_WINDOW_BYTES` bytes.
* **Large blobs** are tasks of their own (``bytes`` of the bytes): the scheduler has one copy for
  all tasks that share the blob, and can send it again after a worker died. Scattered data would be
  lost.
* **Results** are fetched in the thread of Dask's client, several in one message. A lost result is
  computed again meanwhile, and does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from distributed import Client, Future, KilledWorker
from distributed.comm.core import CommClosedError

from ...errors import EnvironmentProblem, printable, quoted
from . import dask_worker
from .dask_connection import call_within, connected, without_dask_logs
from .dask_worker import PREFIX, STEPS
from .dask_workers import (
    POLL_SECONDS,
    WORKER_TIMEOUT_SECONDS,
    ClusterWorkers,
    Resources,
    Snapshot,
    offers,
)
from .tasks import HOST_CPU, MAX_WINDOW_BYTES, Answer, Done, OnStep, Task, done_from

_MAX_RESUBMISSIONS = 3
"""Times that a task is submitted again after Dask cancelled it; then it fails."""

_LARGE_BLOB = 1 << 20
"""The size in bytes from which on a blob is a Dask task of its own, 1 MiB."""

_Future: TypeAlias = "Future[tuple[str, Answer]]"


def run_on_cluster(
    tasks: Iterator[Task],
    address: str,
    on_step: OnStep | None,
    bugs: list[str],
) -> Generator[Done, None, None]:
    """Run tasks on a Dask cluster, as `local_threads.run_tasks`; collect tracebacks in `bugs`."""
    with without_dask_logs(), connected(address) as client:
        yield from _Run(client, address, on_step, bugs).run(tasks)


def _write_notice(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"warning: {printable(text)}\n")


# -- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    """Outcome of a future: the result of `dask_worker.perform_there`, or an exception."""

    future: _Future
    outcome: tuple[str, Answer] | BaseException


@dataclass
class _Blob:
    future: Future[bytes]
    data: bytes
    users: int = 0


@dataclass
class _Pending:
    task: Task
    needs: Resources
    large: list[_Blob]
    size: int
    cancelled: int = 0
    unmet_since: float | None = None


@dataclass(eq=False)
class _Run:
    client: Client
    address: str
    on_step: OnStep | None
    bugs: list[str]
    events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    pending: dict[_Future, _Pending] = field(default_factory=dict)
    by_key: dict[str, Task] = field(default_factory=dict)
    blobs: dict[int, _Blob] = field(default_factory=dict)
    size: int = 0
    without_workers_since: float | None = None
    number: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.workers = ClusterWorkers(self.client, self.address, self.events)

    def run(self, tasks: Iterator[Task]) -> Generator[Done, None, None]:
        poller = ThreadPoolExecutor(1, "subquant-poll")
        try:
            self.workers.wait(poller)
            if self.on_step is not None:
                self.client.subscribe_topic(STEPS, self.events.put)
            yield from self._work(tasks, poller)
        finally:
            poller.shutdown(wait=False, cancel_futures=True)
            if self.pending and self.client.status == "running":
                with contextlib.suppress(Exception):
                    call_within(5, lambda: self.client.cancel(list(self.pending)))

    # -- tasks --

    def _work(
        self, tasks: Iterator[Task], poller: ThreadPoolExecutor
    ) -> Generator[Done, None, None]:
        next_poll = time.monotonic()
        is_polling = False
        rest: Iterator[Task] | None = tasks
        while True:
            while rest is not None and self._is_window_open():
                task = next(rest, None)
                if task is None:
                    rest = None
                else:
                    yield from self._submit(task)
            if not self.pending:
                return
            if not is_polling and time.monotonic() >= next_poll:
                is_polling = True
                poller.submit(self.workers.poll)
            try:
                event = self.events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(event, Snapshot):
                is_polling, next_poll = False, time.monotonic() + POLL_SECONDS
                for refusal in self.workers.update(event):
                    _write_notice(f"{refusal}, and gets no tasks")
                self._check_workers()
                yield from self._expired()
            elif isinstance(event, _Result):
                yield from self._finish(event)
            else:
                _, message = event
                known = self.by_key.get(message["key"])
                if known is not None and self.on_step is not None:
                    self.on_step(known, message["step"])

    def _is_window_open(self) -> bool:
        return len(self.pending) < max(2 * self.workers.threads, 2) and self.size < MAX_WINDOW_BYTES

    def _submit(self, task: Task, cancelled: int = 0) -> Iterator[Done]:
        """Submit a task; yield its `Done` if no worker offers its resources."""
        needs = self._resources(task.needs)
        preferred = {**needs, **task.optional_resources}
        if self.workers.offer(preferred):
            task, needs = replace(task, needs={**task.needs, **task.optional_resources}), preferred
        if not self.workers.offer(needs):
            yield Done(task, error=self._unmet(task))
            return
        self.number += 1
        blobs: list[Any] = []
        large: list[_Blob] = []
        size = 0
        for blob in task.blobs:
            if len(blob) < _LARGE_BLOB:
                blobs.append(blob)
                size += len(blob)
            else:
                large.append(self._large(blob))
                blobs.append(large[-1].future)
        key = f"{PREFIX}{task.function.partition(':')[2]}-{self.id}{self.number}"
        future = self.client.submit(
            dask_worker.perform_there,
            replace(task, blobs=()),
            key,
            self.on_step is not None,
            *blobs,
            key=key,
            resources=needs,
            pure=False,
        )
        self.pending[future] = _Pending(task, needs, large, size, cancelled)
        self.by_key[key] = task
        self.size += size
        assert self.client.loop is not None  # as long as it is not closed
        self.client.loop.add_callback(self._fetch, future)

    async def _fetch(self, future: _Future) -> None:
        """Wait for a result, in the thread of Dask's client."""
        try:
            outcome = await self.client.gather(future, asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            outcome = error
        self.events.put(_Result(future, outcome))

    def _resources(self, needs: Resources) -> dict[str, float]:
        """Return Dask's resources of a task."""
        named = {
            dask_worker.cpu_resource() if name == HOST_CPU else name: amount
            for name, amount in needs.items()
        }
        return {self.workers.resource: 1, **named}

    def _large(self, data: bytes) -> _Blob:
        blob = self.blobs.get(id(data))
        if blob is None:
            self.number += 1
            future = self.client.submit(
                bytes,
                data,
                key=f"{PREFIX}blob-{self.id}{self.number}",
                resources={self.workers.resource: 1},
                pure=False,
            )
            blob = self.blobs[id(data)] = _Blob(future, data)
            self.size += len(data)
        blob.users += 1
        return blob

    def _forget(self, future: _Future) -> _Pending:
        pending = self.pending.pop(future)
        self.by_key.pop(str(future.key), None)
        self.size -= pending.size
        for blob in pending.large:
            blob.users -= 1
            if not blob.users:
                del self.blobs[id(blob.data)]
                self.size -= len(blob.data)
        return pending

    def _finish(self, result: _Result) -> Iterator[Done]:
        """Yield the `Done` of a task, or submit it again."""
        if result.future not in self.pending:  # it expired
            return
        outcome = result.outcome
        if self.client.status != "running" or isinstance(outcome, CommClosedError):
            raise self.workers.lost()
        pending = self._forget(result.future)
        task = pending.task
        if isinstance(outcome, CancelledError) and pending.cancelled < _MAX_RESUBMISSIONS:
            yield from self._submit(task, pending.cancelled + 1)
        elif isinstance(outcome, CancelledError):
            message = f"{quoted(task.name)} was cancelled on the cluster repeatedly"
            yield Done(task, error=EnvironmentProblem(message))
        elif isinstance(outcome, BaseException):
            last = outcome.last_worker.address if isinstance(outcome, KilledWorker) else ""
            yield Done(task, error=self._failure(task, outcome), worker=last)
        else:
            worker, answer = outcome
            if answer.bug:
                self.bugs.append(f"in the task '{task.name}' on {worker}:\n{answer.bug}")
            else:
                yield done_from(task, answer, worker)

    def _failure(self, task: Task, error: Any) -> EnvironmentProblem:
        """Return the error of a task without a result."""
        if isinstance(error, KilledWorker):
            return EnvironmentProblem(
                f"the worker that did {quoted(task.name)} ended, {error.allowed_failures + 1} "
                f"times; the last was {error.last_worker.address}, see its log (usually it "
                "ran out of memory)"
            )
        return EnvironmentProblem(
            f"{quoted(task.name)} was not done by the cluster: {type(error).__name__}: {error}"
        )

    # -- needs --

    def _unmet(self, task: Task) -> EnvironmentProblem:
        """Return the error of a task whose resources no worker offers."""
        resources = {name: amount for name, amount in task.needs.items() if name != HOST_CPU}
        if resources and not self.workers.offer(resources):
            shown = " ".join(f"{name}={amount:g}" for name, amount in resources.items())
            return EnvironmentProblem(
                f"{quoted(task.name)} needs a worker that offers {shown}, and no worker of "
                f"{self.address} does; start one with "
                f"'dask worker {self.address} --resources \"{shown}\"'"
            )
        return EnvironmentProblem(
            f"{quoted(task.name)} is for this machine's CPU ('host'), and no worker of "
            f"{self.address} has the same; name a CPU, or 'generic'"
        )

    def _check_workers(self) -> None:
        """Raise EnvironmentProblem if the scheduler is lost, or no worker is left for too long."""
        if self.client.status in ("closed", "closing"):
            raise self.workers.lost()
        now = time.monotonic()
        if self.workers.present_admissions():
            self.without_workers_since = None
        elif self.without_workers_since is None:
            self.without_workers_since = now
        elif now - self.without_workers_since > WORKER_TIMEOUT_SECONDS:
            raise EnvironmentProblem(
                f"all workers of {quoted(self.address)} ended, and no other started in "
                f"{WORKER_TIMEOUT_SECONDS:.0f} s; finished tasks stay finished"
            )

    def _expired(self) -> Iterator[Done]:
        """Yield errors of tasks whose resources no present worker has offered for too long."""
        now = time.monotonic()
        admissions = self.workers.present_admissions()
        for future, pending in list(self.pending.items()):
            if any(offers(admission, pending.needs) for admission in admissions):
                pending.unmet_since = None
            elif pending.unmet_since is None:
                pending.unmet_since = now
            elif admissions and now - pending.unmet_since > WORKER_TIMEOUT_SECONDS:
                self._forget(future)
                future.cancel()
                yield Done(pending.task, error=self._unmet(pending.task))
