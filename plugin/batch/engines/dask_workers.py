"""Workers of a Dask cluster: polled once a second, admitted if they have the client's versions."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from distributed import Client

from ...errors import EnvironmentProblem, SubquantError, quoted
from . import dask_worker
from .dask_connection import call_within
from .dask_worker import Admission

WORKER_TIMEOUT_SECONDS = 60.0
"""The seconds without any worker after which a run ends."""

POLL_SECONDS = 1.0
"""Time between two queries of the workers."""

Resources: TypeAlias = Mapping[str, float]


@dataclass
class Snapshot:
    """State of the workers at one time.

    Args:
        present: the addresses of the workers.
        admitted: results of `dask_worker.admit` for new workers, or exceptions.
        error: the exception of a failed poll.
    """

    present: frozenset[str] = frozenset()
    admitted: dict[str, Admission | BaseException] = field(default_factory=dict)
    error: Exception | None = None


class ClusterWorkers:
    """Workers of a scheduler, and those that are admitted; `poll` puts snapshots into `events`."""

    def __init__(self, client: Client, address: str, events: queue.SimpleQueue[Any]) -> None:
        self.client, self.address, self.events = client, address, events
        self.versions = dask_worker.here()
        self.resource = dask_worker.resource_of(self.versions)
        self.seen: dict[str, Admission] = {}
        self.refused: set[str] = set()
        self.present: frozenset[str] = frozenset()

    @property
    def threads(self) -> int:
        """The number of tasks that the present workers run at a time."""
        return sum(
            admission.threads for address, admission in self.seen.items() if address in self.present
        )

    def offer(self, needs: Resources) -> bool:
        """Return True if an admitted worker offers these resources."""
        return any(offers(admission, needs) for admission in self.seen.values())

    def present_admissions(self) -> list[Admission]:
        """Return the admissions of the workers that are present."""
        return [self.seen[address] for address in self.present if address in self.seen]

    def wait(self, poller: ThreadPoolExecutor) -> None:
        """Wait for the first workers; EnvironmentProblem for none, or one with other versions."""
        self._check_scheduler()
        end = time.monotonic() + WORKER_TIMEOUT_SECONDS
        while not self.seen:
            poller.submit(self.poll)
            try:
                snapshot = self.events.get(timeout=max(end - time.monotonic(), POLL_SECONDS))
            except queue.Empty:
                raise EnvironmentProblem(
                    f"the workers of {quoted(self.address)} do not answer in "
                    f"{WORKER_TIMEOUT_SECONDS:.0f} s"
                ) from None
            refusals = self.update(snapshot)
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
                        f"{WORKER_TIMEOUT_SECONDS:.0f} s; start some with "
                        f"'dask worker {self.address}'"
                    )
                time.sleep(POLL_SECONDS)

    def _check_scheduler(self) -> None:
        """Check that the scheduler has the versions of this process, so that it can read the tasks.

        Raises:
            EnvironmentProblem: it has other versions, or does not answer.
        """
        try:
            versions = call_within(
                WORKER_TIMEOUT_SECONDS, lambda: self.client.run_on_scheduler(dask_worker.here)
            )
        except TimeoutError:
            raise self.lost() from None
        except Exception as error:
            message = self._reason(f"the scheduler at {self.address}", error)
        else:
            differences = dask_worker.differences_of(self.versions, versions)
            if not differences:
                return
            message = self._reason(
                f"the scheduler at {self.address}", Admission(differences, {}, 0, 0)
            )
        raise EnvironmentProblem(f"the scheduler must have what this machine has: {message}")

    def poll(self) -> None:
        """Query the workers and admit new ones, in a thread; put a `Snapshot` into the events."""
        snapshot = Snapshot()
        try:
            workers = self.client.run_on_scheduler(dask_worker.present, self.resource)
            snapshot.present = frozenset(workers)
            threads = dask_worker.threads_of_machines(workers)
            new = [each for each in workers if not self._is_current(workers[each], threads)]
            if new:
                snapshot.admitted = self.client.run(
                    dask_worker.admit, self.versions, threads, workers=new, on_error="return"
                )
            self.client.run_on_scheduler(dask_worker.retry_unrunnable)
        except Exception as error:  # the scheduler ended, or a worker during the call
            snapshot.error = error
        self.events.put(snapshot)

    def _is_current(self, worker: dask_worker.Present, threads: Mapping[str, int]) -> bool:
        """Return True if a worker was judged, with the current threads of its machine.

        A new process at a known address has not been admitted.
        """
        if worker.address in self.refused:
            return worker.address in self.present
        seen = self.seen.get(worker.address)
        return (
            seen is not None
            and worker.is_admitted
            and seen.threads_of_machine == threads[worker.machine]
        )

    def update(self, snapshot: Snapshot) -> list[str]:
        """Apply a snapshot; return a message for each worker that was refused."""
        refusals = []
        if snapshot.error is None:
            self.present = snapshot.present
        for address, admission in snapshot.admitted.items():
            if isinstance(
                admission, OSError
            ):  # it has ended since, or is admitted by the next poll
                continue
            if isinstance(admission, Admission) and not admission.differences:
                self.seen[address] = admission
                self.refused.discard(address)
            else:
                self.seen.pop(address, None)
                self.refused.add(address)
                refusals.append(self._reason(f"the worker {address}", admission))
        return refusals

    def _reason(self, who: str, admission: Admission | BaseException) -> str:
        """Return the reason why a worker, or the scheduler, cannot be used."""
        if isinstance(admission, ImportError):
            return (
                f"{who} cannot import subquant ({admission}); install this machine's versions there"
            )
        if isinstance(admission, SubquantError):
            return f"{who} cannot be used: {admission.message}"
        if isinstance(admission, BaseException):
            return f"{who} cannot be used: {type(admission).__name__}: {admission}"
        versions = [
            f"{name} {there or 'that is missing'} (here {here})"
            for name, (here, there) in admission.differences.items()
        ]
        return f"{who} has {', '.join(versions)}"

    def lost(self) -> EnvironmentProblem:
        """Return the error of a lost scheduler."""
        return EnvironmentProblem(
            f"the scheduler at {quoted(self.address)} ended, or cannot be reached; "
            "finished tasks stay finished"
        )


def offers(admission: Admission, needs: Resources) -> bool:
    """Return True if a worker offers these amounts of resources."""
    return all(admission.resources.get(name, 0) >= amount for name, amount in needs.items())
