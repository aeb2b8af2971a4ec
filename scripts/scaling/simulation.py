"""A batch, event by event.

A task waits for a worker that has a place for it, then for the scheduler, which hands it over; goes
over the network; uses the cache's files; computes; and is reported to the scheduler and to the
client. Each station serves one request after the other, in the order in which they come. A worker
computes one task at a time. `Site.ahead` tasks for each worker have left the scheduler before it is
free, for whichever is free first (Dask's scheduler has queued tasks stolen from busy workers). If a
worker dies, its task begins anew, and it comes back after `Site.restart`.

By default each worker has a core of its own. `Cores` are shared by the workers of one machine, as
those of a run here are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from .model import STATIONS, Site, Visit

__all__ = ["Cores", "Run", "simulate"]

Events = Generator[Any, Any, None]


@dataclass
class Run:
    """What happened.

    Args:
        seconds: until the last task was done.
        done: tasks that were done.
        lost: times that a worker died with a task.
        busy: seconds of each station, and of all workers together.
        waits: of the tasks for a worker, in seconds, if they were asked for.
    """

    seconds: float = 0.0
    done: int = 0
    lost: int = 0
    busy: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys((*STATIONS, "workers"), 0.0)
    )
    waits: list[float] = field(default_factory=list)

    def shares(self, workers: int) -> dict[str, float]:
        """The share of the time that each station was busy."""
        if not self.seconds:
            return dict.fromkeys(self.busy, 0.0)
        shares = {name: seconds / self.seconds for name, seconds in self.busy.items()}
        shares["workers"] /= workers
        return shares


class Cores:
    """The cores of one machine, shared evenly by what computes there.

    With ``x`` threads computing, the machine does ``speeds(x)`` times the work of one thread alone,
    and each thread its part of that: two threads of one core do less than twice the work of one.

    Args:
        environment: of the simulation.
        speeds: of 1, 2, ... threads; with more it is as with the last. Between whole numbers it is
            between theirs.
    """

    def __init__(self, environment: simpy.Environment, speeds: Sequence[float]) -> None:
        self._environment = environment
        self._speeds = [0.0, *speeds]
        self._jobs: dict[simpy.Event, list[float]] = {}  # what is left of each, and its threads
        self._since = environment.now
        self._change = 0

    def _efficiency(self, threads: float) -> float:
        """Of each thread, where so many compute."""
        if threads <= 1:
            return self._speeds[1]
        low = min(int(threads), len(self._speeds) - 1)
        high = min(low + 1, len(self._speeds) - 1)
        part = threads - int(threads) if high > low else 0.0
        return (self._speeds[low] * (1 - part) + self._speeds[high] * part) / threads

    def _rate(self, threads: float) -> float:
        """How fast a job goes, beside how fast it goes alone."""
        present = sum(job[1] for job in self._jobs.values())
        return min(self._efficiency(present) / self._efficiency(threads), 1.0)

    def compute(self, seconds: float, threads: float = 1.0) -> simpy.Event:
        """Return the event of the end of a job.

        Args:
            seconds: that it takes alone.
            threads: that it has on average.
        """
        self._advance()
        event = self._environment.event()
        self._jobs[event] = [seconds, threads]
        self._plan()
        return event

    def _advance(self) -> None:
        passed = self._environment.now - self._since
        self._since = self._environment.now
        rates = [self._rate(job[1]) for job in self._jobs.values()]
        for job, rate in zip(self._jobs.values(), rates, strict=True):
            job[0] -= passed * rate

    def _plan(self) -> None:
        self._change += 1
        if self._jobs:
            first = min(job[0] / self._rate(job[1]) for job in self._jobs.values())
            self._environment.process(self._end(max(first, 0.0), self._change))

    def _end(self, delay: float, change: int) -> Events:
        yield self._environment.timeout(delay)
        if change != self._change:
            return  # another job has come or gone since
        self._advance()
        for event in [event for event, job in self._jobs.items() if job[0] <= 1e-9]:
            del self._jobs[event]
            event.succeed()
        self._plan()


class _Simulation:
    def __init__(
        self,
        site: Site,
        speeds: Sequence[float] | None,
        threads: float,
        seed: int,
        keep_waits: bool,
    ) -> None:
        self.environment = environment = simpy.Environment()
        self.site = site
        self.run = Run()
        self.stations = {name: simpy.Resource(environment) for name in STATIONS}
        self.submitted = simpy.Store(environment)
        self.places = simpy.Store(environment)
        self.places.items.extend(range(site.workers * (1 + site.ahead)))
        self.workers = simpy.Store(environment)
        self.workers.items.extend(range(site.workers))
        self.is_started = [False] * site.workers
        self.cores = Cores(environment, speeds) if speeds is not None else None
        self.threads = threads
        self.random = random.Random(f"deaths {seed}")  # other numbers than those of the visits
        self.keep_waits = keep_waits

    def serve(self, station: str, seconds: float) -> Events:
        if seconds:
            with self.stations[station].request() as turn:
                yield turn
                yield self.environment.timeout(seconds)
            self.run.busy[station] += seconds

    def compute(self, seconds: float) -> Events:
        if self.cores is not None:
            yield self.cores.compute(seconds, self.threads)
        elif seconds:
            yield self.environment.timeout(seconds)

    def client(self, visits: Iterable[Visit], gap: Callable[[], float] | None) -> Events:
        yield self.environment.timeout(self.site.connect)
        for visit in visits:
            if gap is not None:
                yield self.environment.timeout(gap())
            yield from self.serve("client", visit.client / 2)
            self.submitted.put((self.environment.now, visit))

    def hand_out(self) -> Events:
        while True:
            came, visit = yield self.submitted.get()
            place = yield self.places.get()
            self.environment.process(self.task(visit, came, place))

    def task(self, visit: Visit, came: float, place: int) -> Events:
        environment, site = self.environment, self.site
        yield from self.serve("scheduler", visit.scheduler / 2)
        yield from self.serve("link", visit.link / 2)
        worker = yield self.workers.get()
        if self.keep_waits:
            self.run.waits.append(environment.now - came)
        began = environment.now
        if not self.is_started[worker]:
            self.is_started[worker] = True
            yield from self.compute(site.start)
        left = self.random.expovariate(site.deaths) if site.deaths else math.inf
        if left < visit.worker:
            yield from self.compute(left)
            self.submitted.put((environment.now, visit))
        else:
            yield from self.serve("files", visit.files)
            yield from self.compute(visit.worker)
        self.run.busy["workers"] += environment.now - began
        if left < visit.worker:
            self.run.lost += 1
            yield environment.timeout(site.restart)
        self.workers.put(worker)
        self.places.put(place)
        if left < visit.worker:
            return
        yield from self.serve("link", visit.link / 2)
        yield from self.serve("scheduler", visit.scheduler / 2)
        yield from self.serve("client", visit.client / 2)
        self.run.done += 1
        self.run.seconds = environment.now


def simulate(
    visits: Iterable[Visit],
    site: Site,
    *,
    speeds: Sequence[float] | None = None,
    threads: float = 1.0,
    gap: Callable[[], float] | None = None,
    keep_waits: bool = False,
    seed: int = 0,
) -> Run:
    """Run tasks.

    Args:
        visits: what each asks for, in the order in which they are submitted.
        site: where.
        speeds: of the cores that the workers share, as of `Cores`; by default each has its own.
        threads: that a task has on average, with shared cores.
        gap: draws the seconds before each submission; by default there are none.
        keep_waits: keep how long each waited for its worker.
        seed: of the deaths.

    Raises:
        RuntimeError: a task asks for more than there can be.
    """
    simulation = _Simulation(site, speeds, threads, seed, keep_waits)
    simulation.environment.process(simulation.client(visits, gap))
    simulation.environment.process(simulation.hand_out())
    simulation.environment.run()
    if not math.isfinite(simulation.run.seconds):
        raise RuntimeError("a station never ends; its rate must be positive")
    return simulation.run
