"""The engine of many machines: a Dask cluster, which somebody has started.

Scheduling, heartbeats, transport and what follows when a worker dies are Dask's. What is here is
the client: it connects, has workers admitted (`workers`), keeps a window of tasks submitted, and
gives what comes of them.

* **Lost workers.** Dask gives the tasks of a worker that died to others, and gives up one whose
  workers died more often than its setting ``distributed.scheduler.allowed-failures`` allows: that
  is the error of the task. While no worker is there at all, the client waits `_PATIENCE` seconds.
  A result whose worker dies before it is fetched is computed again; where Dask has forgotten the
  task by then, it says that it was cancelled, and gets it once more.
* **Lost scheduler.** The run ends with an error; what was given before stays done.
* **Window.** Dask's scheduler keeps what is submitted in its memory, and all tasks of a worker that
  dies count as suspect, so only as many are submitted as the workers' threads do next, twice, and
  no more than `LARGEST_WINDOW` bytes.
* **Large blobs** are tasks of their own (``bytes`` of the bytes), so that the scheduler has one
  copy for all tasks that have the blob in common, and can send it again where a worker died with
  it; data that is scattered would be lost with its worker.
* **Results** are fetched as they come, in the thread of Dask's client, which asks once for all that
  have come by the same message. One that was lost with its worker is made again meanwhile, and
  keeps nobody from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import dask
from distributed import Client, Future, KilledWorker
from distributed.comm.core import CommClosedError

from ...errors import EnvironmentProblem, SubquantError, UsageError, quoted
from . import dask_worker
from .dask_worker import PREFIX, STEPS, Admission
from .tasks import HOST_CPU, LARGEST_WINDOW, Answer, Done, OnStep, Task, done_of

__all__ = ["run_on_cluster"]

_CONNECT = 10.0
"""Seconds to find the scheduler."""

_PATIENCE = 60.0
"""Seconds without a worker after which nobody waits for one."""

_LOOK = 1.0
"""Seconds between two looks at which workers are there."""

_MOST_CANCELLED = 3
"""How often a task is given to Dask again that was cancelled there."""

_LARGE_BLOB = 1 << 20

_ADDRESS = re.compile(r"((tcp|tls|wss?)://)?([^\s/@\[\]:]+|\[[0-9a-fA-F:.%]+\]):[0-9]{1,5}")

Resources: TypeAlias = Mapping[str, float]
_Future: TypeAlias = "Future[tuple[str, Answer]]"
_T = TypeVar("_T")


def run_on_cluster(
    tasks: Iterator[Task],
    address: str,
    on_step: OnStep | None,
    on_notice: Callable[[str], object],
    bugs: list[str],
) -> Generator[Done, None, None]:
    """Do tasks on the workers of a Dask scheduler; see `engines.run_tasks`.

    Args:
        tasks: what to do.
        address: of the scheduler.
        on_step: called with the steps.
        on_notice: called with what people should know, such as that a worker is refused.
        bugs: where tracebacks are added.
    """
    with _quiet(), _connected(address) as client:
        yield from _Run(client, address, on_step, on_notice, bugs).run(tasks)


# -- the connection -------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Client]:
    """Connect to a scheduler.

    Raises:
        UsageError: that is no address.
        EnvironmentProblem: there is no scheduler, or it has no subquant.
    """
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"{quoted(address)} is no address of a Dask scheduler; expected HOST:PORT, as "
            "'dask scheduler' shows it, such as tcp://10.0.0.1:8786"
        )

    def connect() -> Client:
        return Client(address, timeout=_CONNECT, set_as_default=False, name="subquant")

    try:
        client = _within(_CONNECT + 1, connect)
    except (OSError, ValueError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"no Dask scheduler answers at {quoted(address)} in {_CONNECT:.0f} s "
            f"({type(error).__name__}); start one with 'dask scheduler', see "
            "docs/guide/cluster.md"
        ) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):  # the scheduler may have ended
            client.close(timeout=5)


def _within(seconds: float, function: Callable[[], _T]) -> _T:
    """Call a function in a thread that is left to itself if it takes too long.

    Raises:
        TimeoutError: it took too long.
    """
    found: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:
            found.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave it to our own errors to say what Dask's client would log, and warn of."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "tornado")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# -- a run ----------------------------------------------------------------------------------------


@dataclass
class _Look:
    """Which workers are there.

    Args:
        present: their addresses.
        admitted: what `workers.admit` said of those that were asked, or why it could not.
        error: why nothing is known.
    """

    present: frozenset[str] = frozenset()
    admitted: dict[str, Admission | BaseException] = field(default_factory=dict)
    error: Exception | None = None


@dataclass(frozen=True)
class _Result:
    """What came of a future: what `workers.perform_there` returned, or an exception."""

    future: _Future
    found: tuple[str, Answer] | BaseException


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
    hopeless_since: float | None = None


class _Run:
    def __init__(
        self,
        client: Client,
        address: str,
        on_step: OnStep | None,
        on_notice: Callable[[str], object],
        bugs: list[str],
    ) -> None:
        assert client.loop is not None  # as long as it is not closed
        self.client, self.loop = client, client.loop
        self.address = address
        self.on_step = on_step
        self.on_notice = on_notice
        self.bugs = bugs
        self.versions = dask_worker.here()
        self.resource = dask_worker.resource_of(self.versions)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.pending: dict[_Future, _Pending] = {}
        self.by_key: dict[str, Task] = {}
        self.blobs: dict[int, _Blob] = {}
        self.size = 0
        self.seen: dict[str, Admission] = {}
        self.refused: set[str] = set()
        self.present: frozenset[str] = frozenset()
        self.alone_since: float | None = None
        self.number = 0
        self.id = uuid.uuid4().hex

    def run(self, tasks: Iterator[Task]) -> Generator[Done, None, None]:
        looker = ThreadPoolExecutor(1, "subquant-look")
        try:
            self._start(looker)
            yield from self._work(tasks, looker)
        finally:
            looker.shutdown(wait=False, cancel_futures=True)
            if self.pending and self.client.status == "running":
                with contextlib.suppress(Exception):
                    _within(5, lambda: self.client.cancel(list(self.pending)))

    # -- workers --

    def _start(self, looker: ThreadPoolExecutor) -> None:
        """Wait for workers, and refuse all if one of them cannot do what is asked for.

        Raises:
            EnvironmentProblem: there are none, or they have other versions.
        """
        self._check_scheduler()
        end = time.monotonic() + _PATIENCE
        while not self.seen:
            looker.submit(self._look)
            try:
                look = self.events.get(timeout=max(end - time.monotonic(), _LOOK))
            except queue.Empty:
                raise EnvironmentProblem(
                    f"the workers of {quoted(self.address)} do not answer in {_PATIENCE:.0f} s"
                ) from None
            refusals = self._take_look(look)
            if refusals:
                raise EnvironmentProblem(
                    "the workers must have what this machine has: "
                    + refusals[0]
                    + (f"; and {len(refusals) - 1} more" if len(refusals) > 1 else "")
                )
            if not self.seen:
                if time.monotonic() > end:
                    raise EnvironmentProblem(
                        f"the scheduler at {quoted(self.address)} has no worker after "
                        f"{_PATIENCE:.0f} s; start some with 'dask worker {self.address}'"
                    )
                time.sleep(_LOOK)
        if self.on_step is not None:
            self.client.subscribe_topic(STEPS, self.events.put)

    def _check_scheduler(self) -> None:
        """Find out that the scheduler can read our tasks.

        Raises:
            EnvironmentProblem: it cannot.
        """
        try:
            found = _within(_PATIENCE, lambda: self.client.run_on_scheduler(dask_worker.here))
        except TimeoutError:
            raise self._lost() from None
        except Exception as error:
            message = self._why(f"the scheduler at {self.address}", error)
        else:
            differences = dask_worker.differences_of(self.versions, found)
            if not differences:
                return
            message = self._why(
                f"the scheduler at {self.address}", Admission(differences, {}, 0, 0)
            )
        raise EnvironmentProblem(f"the scheduler must have what this machine has: {message}")

    def _look(self) -> None:
        """Find out which workers are there, and have the new ones admitted; in a thread."""
        look = _Look()
        try:
            found = self.client.run_on_scheduler(dask_worker.present, self.resource)
            look.present = frozenset(found)
            threads = dask_worker.threads_of_machines(found)
            new = [each for each in found if not self._knows(found[each], threads)]
            if new:
                look.admitted = self.client.run(
                    dask_worker.admit, self.versions, threads, workers=new, on_error="return"
                )
            self.client.run_on_scheduler(dask_worker.look_again)
        except Exception as error:  # the scheduler ended, or a worker while it was asked
            look.error = error
        self.events.put(look)

    def _knows(self, worker: dask_worker.Present, threads: Mapping[str, int]) -> bool:
        """Whether a worker has nothing to be asked, or told of the others of its machine.

        Another process may be where one was before: it has not been admitted.
        """
        if worker.address in self.refused:
            return worker.address in self.present
        seen = self.seen.get(worker.address)
        return (
            seen is not None
            and worker.is_admitted
            and seen.threads_of_machine == threads[worker.machine]
        )

    def _take_look(self, look: _Look) -> list[str]:
        """Note what a look has found; return what is to be said of workers that are refused."""
        refusals = []
        if look.error is None:
            self.present = look.present
        for address, admission in look.admitted.items():
            if isinstance(admission, OSError):  # it has ended since; or it is asked once more
                continue
            if isinstance(admission, Admission) and not admission.differences:
                self.seen[address] = admission
                self.refused.discard(address)
            else:
                self.seen.pop(address, None)
                self.refused.add(address)
                refusals.append(self._why(f"the worker {address}", admission))
        return refusals

    def _why(self, who: str, admission: Admission | BaseException) -> str:
        """What is wrong with a worker, or with the scheduler."""
        if isinstance(admission, ImportError):
            return f"{who} cannot import subquant ({admission}); install there what is here"
        if isinstance(admission, SubquantError):
            return f"{who} cannot be used: {admission.message}"
        if isinstance(admission, BaseException):
            return f"{who} cannot be used: {type(admission).__name__}: {admission}"
        parts = [
            f"{name} {there or 'that is missing'} (here {wanted})"
            for name, (wanted, there) in admission.differences.items()
        ]
        return f"{who} has {', '.join(parts)}"

    def _lost(self) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"the scheduler at {quoted(self.address)} ended, or cannot be reached any more; what "
            "was done before stays done"
        )

    # -- tasks --

    def _work(
        self, tasks: Iterator[Task], looker: ThreadPoolExecutor
    ) -> Generator[Done, None, None]:
        next_look = time.monotonic()
        is_looking = False
        rest: Iterator[Task] | None = tasks
        while True:
            while rest is not None and self._has_room():
                task = next(rest, None)
                if task is None:
                    rest = None
                else:
                    yield from self._submit(task)
            if not self.pending:
                return
            if not is_looking and time.monotonic() >= next_look:
                is_looking = True
                looker.submit(self._look)
            try:
                event = self.events.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if isinstance(event, _Look):
                is_looking, next_look = False, time.monotonic() + _LOOK
                for refusal in self._take_look(event):
                    self.on_notice(f"{refusal}, and is given no tasks")
                self._check_hope()
                yield from self._hopeless()
            elif isinstance(event, _Result):
                yield from self._take(event)
            else:
                _, message = event
                known = self.by_key.get(message["key"])
                if known is not None and self.on_step is not None:
                    self.on_step(known, message["step"])

    def _has_room(self) -> bool:
        threads = sum(
            admission.threads for address, admission in self.seen.items() if address in self.present
        )
        return len(self.pending) < max(2 * threads, 2) and self.size < LARGEST_WINDOW

    def _submit(self, task: Task, cancelled: int = 0) -> Iterator[Done]:
        """Give a task to Dask; the `Done` of one that no worker can do comes at once.

        Args:
            task: what to do.
            cancelled: how often it was given before.
        """
        needs = self._resources(task.needs)
        wanted = {**needs, **task.wishes}
        if any(_offers(admission, wanted) for admission in self.seen.values()):
            task, needs = replace(task, needs={**task.needs, **task.wishes}), wanted
        if not any(_offers(admission, needs) for admission in self.seen.values()):
            yield Done(task, error=self._unmet(task))
            return
        self.number += 1
        given: list[Any] = []
        large: list[_Blob] = []
        size = 0
        for blob in task.blobs:
            if len(blob) < _LARGE_BLOB:
                given.append(blob)
                size += len(blob)
            else:
                large.append(self._large(blob))
                given.append(large[-1].future)
        key = f"{PREFIX}{task.function.partition(':')[2]}-{self.id}{self.number}"
        future = self.client.submit(
            dask_worker.perform_there,
            replace(task, blobs=()),
            key,
            self.on_step is not None,
            *given,
            key=key,
            resources=needs,
            pure=False,
        )
        self.pending[future] = _Pending(task, needs, large, size, cancelled)
        self.by_key[key] = task
        self.size += size
        self.loop.add_callback(self._fetch, future)

    async def _fetch(self, future: _Future) -> None:
        """Wait for a result, in the thread of Dask's client."""
        try:
            found = await self.client.gather(future, asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            found = error
        self.events.put(_Result(future, found))

    def _resources(self, needs: Resources) -> dict[str, float]:
        """The names and amounts for Dask."""
        named = {
            dask_worker.cpu_resource() if name == HOST_CPU else name: amount
            for name, amount in needs.items()
        }
        return {self.resource: 1, **named}

    def _large(self, data: bytes) -> _Blob:
        blob = self.blobs.get(id(data))
        if blob is None:
            self.number += 1
            future = self.client.submit(
                bytes,
                data,
                key=f"{PREFIX}blob-{self.id}{self.number}",
                resources={self.resource: 1},
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

    def _take(self, result: _Result) -> Iterator[Done]:
        """Give what came of a task."""
        if result.future not in self.pending:  # it was given up
            return
        found = result.found
        if self.client.status != "running" or isinstance(found, CommClosedError):
            raise self._lost()
        pending = self._forget(result.future)
        task = pending.task
        if isinstance(found, CancelledError) and pending.cancelled < _MOST_CANCELLED:
            yield from self._submit(task, pending.cancelled + 1)
        elif isinstance(found, CancelledError):
            message = f"{quoted(task.name)} was cancelled on the cluster again and again"
            yield Done(task, error=EnvironmentProblem(message))
        elif isinstance(found, BaseException):
            last = found.last_worker.address if isinstance(found, KilledWorker) else ""
            yield Done(task, error=self._failure(task, found), worker=last)
        else:
            worker, answer = found
            if answer.bug:
                self.bugs.append(f"in the task '{task.name}' on {worker}:\n{answer.bug}")
            else:
                yield done_of(task, answer, worker)

    def _failure(self, task: Task, error: Any) -> EnvironmentProblem:
        """The error of a task that Dask has no result of."""
        if isinstance(error, KilledWorker):
            return EnvironmentProblem(
                f"the worker that did {quoted(task.name)} ended, {error.allowed_failures + 1} "
                f"times; the last was {error.last_worker.address}, whose log may say why (too "
                "little memory, as a rule)"
            )
        return EnvironmentProblem(
            f"{quoted(task.name)} was not done by the cluster: {type(error).__name__}: {error}"
        )

    # -- needs --

    def _unmet(self, task: Task) -> EnvironmentProblem:
        """Why no worker can do a task."""
        others = {name: amount for name, amount in task.needs.items() if name != HOST_CPU}
        if others and not any(_offers(each, others) for each in self.seen.values()):
            wanted = " ".join(f"{name}={amount:g}" for name, amount in others.items())
            return EnvironmentProblem(
                f"{quoted(task.name)} needs a worker that offers {wanted}, and no worker of "
                f"{self.address} does; start one with "
                f"'dask worker {self.address} --resources \"{wanted}\"'"
            )
        return EnvironmentProblem(
            f"{quoted(task.name)} is for this machine's CPU ('host'), and no worker of "
            f"{self.address} has the same; name the CPU that is meant, or 'generic'"
        )

    def _check_hope(self) -> None:
        """Raise EnvironmentProblem if the scheduler is lost, or all workers, for too long."""
        if self.client.status in ("closed", "closing"):
            raise self._lost()
        now = time.monotonic()
        if any(address in self.present for address in self.seen):
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = now
        elif now - self.alone_since > _PATIENCE:
            raise EnvironmentProblem(
                f"all workers of {quoted(self.address)} ended, and there was none for "
                f"{_PATIENCE:.0f} s; what was done before stays done"
            )

    def _hopeless(self) -> Iterator[Done]:
        """Give up tasks whose needs no worker that is there has met for too long."""
        now = time.monotonic()
        there = [self.seen[address] for address in self.present if address in self.seen]
        for future, pending in list(self.pending.items()):
            if any(_offers(admission, pending.needs) for admission in there):
                pending.hopeless_since = None
            elif pending.hopeless_since is None:
                pending.hopeless_since = now
            elif there and now - pending.hopeless_since > _PATIENCE:
                self._forget(future)
                future.cancel()
                yield Done(pending.task, error=self._unmet(pending.task))


def _offers(admission: Admission, needs: Resources) -> bool:
    return all(admission.resources.get(name, 0) >= amount for name, amount in needs.items())
