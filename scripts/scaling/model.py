"""What a compilation asks of each station on its way, and what follows from that without events.

A batch of ``N`` compilations runs on ``W`` workers, which are handed one task after the other. On
its way a task visits stations that serve one after the other, the *client*, the *scheduler*, the
*link* of their machine and the *files* of the cache, and keeps its worker for ``Z`` seconds. With
``D_k`` for the mean seconds of a compilation at station ``k``, its *demand*:

* No station does more than one second's work in a second, and no worker more than one task at a
  time: ``X <= min(W / (Z + sum D_k), 1 / max D_k)`` for the throughput ``X``. The two meet at
  ``W* = (Z + sum D_k) / max D_k`` workers; more are of no use. (Denning and Buzen, *The operational
  analysis of queueing network models*, ACM Computing Surveys 10(3), 1978.)
* Between the two bounds tasks wait for one another. A closed network of stations with exponential
  times is solved exactly by mean value analysis (Reiser and Lavenberg, Journal of the ACM 27(2),
  1980): with one customer a worker, from none upwards, ``R_k = D_k (1 + Q_k)``,
  ``X = n / (Z + sum R_k)``, ``Q_k = X R_k``. Times that vary less wait less, so this errs towards
  longer.
* At the end there is nothing left to hand out, and the batch waits for the last worker. What is
  left of a task at such a moment, ``R``, has the distribution ``P(R <= x) = E[min(x, S)] / E[S]``
  of renewal theory, ``S`` being a worker's seconds for a task. With ``n = X Z`` workers busy,
  ``T = N / X - E[R] + E[max of n times R]``.
* A worker that dies ``l`` times a second costs a task of ``S`` seconds ``(exp(l S) - 1) / l``
  seconds of workers, and the time in which it comes back (Poisson deaths; the task starts anew).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

__all__ = ["STATIONS", "Batch", "Compilation", "Estimate", "Prices", "Site", "Visit", "estimate"]

STATIONS = ("client", "scheduler", "link", "files")
"""What serves all workers, one request after the other."""


@dataclass(frozen=True)
class Compilation:
    """A program that was compiled.

    Args:
        name: of the program.
        kind: of which kind it is.
        source_bytes: what is handed to the worker.
        executable_bytes: what comes back.
        pass_seconds: of CPU time, of parsing and of subquant's passes.
        iree_seconds: of CPU time, of IREE's compiler.
        hit_seconds: of CPU time, if the executable comes from the cache.
    """

    name: str
    kind: str
    source_bytes: int
    executable_bytes: int
    pass_seconds: float
    iree_seconds: float
    hit_seconds: float

    @property
    def miss_seconds(self) -> float:
        """CPU time of a compilation."""
        return self.pass_seconds + self.iree_seconds


@dataclass(frozen=True)
class Site:
    """What a batch runs on; times in seconds.

    Args:
        workers: how many compile at a time.
        speed: of a worker's core, beside the one that compilations were measured on.
        submit: of the client for a task, both ways.
        submit_byte: of the client for a byte that it sends or gets.
        schedule: of the scheduler for a task.
        schedule_byte: of the scheduler for a byte that goes through it.
        heartbeat: of the scheduler for a worker's sign of life.
        link_rate: bytes a second, of the network of the scheduler's machine.
        is_carried: sources and executables go through client and scheduler, not through files.
        hit_operations: on the cache's files, for a hit.
        miss_operations: for a miss: it looks, locks, and writes.
        file_operation: of the file server, for an operation.
        file_latency: until the answer to an operation is here.
        file_rate: bytes a second, of the file server.
        connect: until the client submits its first task.
        start: of a worker, before its first task.
        deaths: of a worker in a second.
        restart: until a worker that died is there again.
        ahead: tasks that a worker has waiting.
        per_task: compilations in one task.
    """

    workers: int = 1
    speed: float = 1.0
    submit: float = 0.0
    submit_byte: float = 0.0
    schedule: float = 0.0
    schedule_byte: float = 0.0
    heartbeat: float = 0.0
    link_rate: float = math.inf
    is_carried: bool = True
    hit_operations: float = 0.0
    miss_operations: float = 0.0
    file_operation: float = 0.0
    file_latency: float = 0.0
    file_rate: float = math.inf
    connect: float = 0.0
    start: float = 0.0
    deaths: float = 0.0
    restart: float = 0.0
    ahead: int = 0
    per_task: int = 1

    @property
    def heartbeat_share(self) -> float:
        """The share of the scheduler's time that signs of life take.

        `distributed.scheduler.heartbeat_interval` (2026.8): each half second up to 10 workers, each
        second below 50, two below 200, then ``workers / 200 + 1``: at most 200 in a second.
        """
        count = self.workers
        steps = ((10, 0.5), (49, 1.0), (199, 2.0))
        interval = next((each for most, each in steps if count <= most), count / 200 + 1)
        return min(count / interval * self.heartbeat, 0.99)


@dataclass(frozen=True)
class Visit:
    """What one task asks of the stations and of its worker, in seconds; see `Site`."""

    client: float
    scheduler: float
    link: float
    files: float
    worker: float

    def __add__(self, other: Visit) -> Visit:
        return Visit(
            self.client + other.client,
            self.scheduler + other.scheduler,
            self.link + other.link,
            self.files + other.files,
            self.worker + other.worker,
        )


@dataclass(frozen=True)
class Batch:
    """Compilations to do.

    Args:
        count: how many.
        mix: programs that they are like, with how often each comes.
        hits: the share whose executables are in the cache.
    """

    count: int
    mix: Sequence[tuple[float, Compilation]]
    hits: float = 0.0

    @cached_property
    def weights(self) -> list[float]:
        """How often each of `mix` comes, in sum 1."""
        total = sum(weight for weight, _ in self.mix)
        return [weight / total for weight, _ in self.mix]

    def cases(self, site: Site) -> list[tuple[float, Visit]]:
        """What a compilation may ask for, each with its probability; see `once`."""
        found = []
        for weight, (_, program) in zip(self.weights, self.mix, strict=True):
            for is_hit, share in ((True, self.hits), (False, 1 - self.hits)):
                if share:
                    found.append((weight * share, once(program, is_hit, site)))
        return found

    def visits(self, site: Site, seed: int = 0) -> Iterator[Visit]:
        """Draw the tasks, each of `Site.per_task` compilations; the last may have fewer."""
        source = random.Random(seed)
        cases = self.cases(site)
        shares = np.cumsum([share for share, _ in cases]).tolist()
        possible = [visit for _, visit in cases]
        task = Visit(site.submit, site.schedule / (1 - site.heartbeat_share), 0, 0, 0)
        for start in range(0, self.count, site.per_task):
            count = min(site.per_task, self.count - start)
            total = task
            for visit in source.choices(possible, cum_weights=shares, k=count):
                total += visit
            yield total


def once(program: Compilation, is_hit: bool, site: Site) -> Visit:
    """Return what a compilation asks for, without what each task costs."""
    carried = (program.source_bytes + program.executable_bytes) * site.is_carried
    operations = site.hit_operations if is_hit else site.miss_operations
    # The executable is read, or written; the source is read from there if it is not carried.
    stored = program.executable_bytes + program.source_bytes * (not site.is_carried)
    compute = program.hit_seconds if is_hit else program.miss_seconds + program.hit_seconds
    return Visit(
        client=carried * site.submit_byte,
        scheduler=carried * site.schedule_byte / (1 - site.heartbeat_share),
        link=2 * carried / site.link_rate,  # from the client to the scheduler, and to the worker
        files=operations * site.file_operation + stored / site.file_rate,
        worker=compute / site.speed + operations * site.file_latency,
    )


# -- without events -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """How a batch goes.

    Args:
        seconds: until all is done.
        throughput: compilations a second, while all workers have work.
        cpu_seconds: of workers that compile.
        shares: of the time that each station, and the workers, are busy meanwhile.
    """

    seconds: float
    throughput: float
    cpu_seconds: float
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """What is busiest."""
        return max(self.shares, key=lambda name: self.shares[name])


@dataclass(frozen=True)
class Prices:
    """Examples of what machines cost, in dollars.

    Args:
        core: of a worker's core, an hour.
        scheduler: of the machine of client and scheduler, an hour.
        files: of the file server, an hour.
    """

    core: float = 0.045
    scheduler: float = 0.20
    files: float = 0.50

    def of(self, seconds: float, workers: int) -> float:
        """Return what a batch costs: all machines are there until it is done."""
        return seconds / 3600 * (workers * self.core + self.scheduler + self.files)


def demands(batch: Batch, site: Site) -> Visit:
    """Return the mean seconds of a compilation at each station and on its worker."""
    task = Visit(site.submit, site.schedule / (1 - site.heartbeat_share), 0, 0, 0)
    totals = dict.fromkeys((*STATIONS, "worker"), 0.0)
    for share, visit in batch.cases(site):
        for name in totals:
            totals[name] += share * getattr(visit, name)
    totals["worker"] = _with_deaths(batch, site)
    return Visit(**{name: totals[name] + getattr(task, name) / site.per_task for name in totals})


def _with_deaths(batch: Batch, site: Site) -> float:
    """The mean seconds of a worker for a compilation."""
    cases = batch.cases(site)
    if not site.deaths:
        return sum(share * visit.worker for share, visit in cases)
    rate = site.deaths
    # Of a task of several compilations: exp is that of a sum of independent times.
    grown = sum(share * math.exp(rate * visit.worker) for share, visit in cases)
    mean = (grown**site.per_task - 1) / rate
    return mean * (1 + rate * site.restart) / site.per_task


def useful_workers(batch: Batch, site: Site) -> dict[str, float]:
    """Return the number of workers that each station keeps busy: ``W*`` with it alone."""
    mean = demands(batch, site)
    through = mean.worker + mean.scheduler + mean.link + mean.files
    return {
        name: through / getattr(mean, name) if getattr(mean, name) else math.inf
        for name in STATIONS
    }


def throughput(mean: Visit, site: Site) -> float:
    """Return compilations a second, by mean value analysis.

    With tasks waiting at the workers (`Site.ahead`), the workers are a station of `Site.workers`
    servers, which count as one that is as fast as all of them, and the rest of the time as a delay
    (Seidmann and others, *Performance evaluation of flexible manufacturing systems*, 1987).
    """
    count = site.per_task
    stations = [getattr(mean, name) * count for name in ("scheduler", "link", "files")]
    delay, customers = mean.worker * count, site.workers
    if site.ahead and delay:
        stations.append(delay / site.workers)
        delay -= delay / site.workers
        customers *= 1 + site.ahead
    waiting = [0.0] * len(stations)
    rate = 0.0
    for present in range(1, customers + 1):
        answers = [time * (1 + queue) for time, queue in zip(stations, waiting, strict=True)]
        total = delay + sum(answers)
        rate = present / total if total else math.inf
        waiting = [rate * answer if answer else 0.0 for answer in answers]
    limit = 1 / mean.client if mean.client else math.inf
    return min(rate * count, limit)


def estimate(batch: Batch, site: Site, seed: int = 0) -> Estimate:
    """Return how a batch goes, by the formulas above: at once, for any number of compilations."""
    mean = demands(batch, site)
    rate = throughput(mean, site)
    busy = min(rate * mean.worker, site.workers)
    tasks = math.ceil(batch.count / site.per_task)
    times = _task_times(batch, site, seed)
    through = (mean.client + mean.scheduler + mean.link + mean.files) * site.per_task
    if tasks <= site.workers:  # no worker has a second one
        slowest = max(mean.client, mean.scheduler, mean.link, mean.files) * site.per_task
        # Half of what a station does for a task comes after it: meanwhile, if the task has ended.
        begun = tasks * slowest / 2
        ended = float(np.maximum(0, 1 - times / begun).mean()) if begun else 0.0
        gap = slowest / 2 * (1 + ended)
        seconds = max(last_of(times, tasks, gap), tasks * slowest) + through
    else:
        rest = float((times**2).mean() / (2 * times.mean())) if times.any() else 0.0
        seconds = batch.count / rate + through
        seconds += greatest(times, max(busy, 1.0), True) - rest * busy / site.workers
    seconds += site.connect + site.start
    shares = {name: batch.count * getattr(mean, name) / seconds for name in STATIONS}
    shares["workers"] = batch.count * mean.worker / (seconds * site.workers)
    cpu = sum(
        weight * ((1 - batch.hits) * program.miss_seconds + program.hit_seconds)
        for weight, (_, program) in zip(batch.weights, batch.mix, strict=True)
    )
    return Estimate(seconds, rate, batch.count * cpu / site.speed, shares)


_SAMPLES = 20_000


def _task_times(batch: Batch, site: Site, seed: int) -> np.ndarray:
    """A worker's seconds for tasks, as a sample."""
    one = replace(batch, count=_SAMPLES)
    source = np.random.default_rng(seed)
    cases = one.cases(site)
    shares = np.array([share for share, _ in cases])
    times = np.array([visit.worker for _, visit in cases])
    drawn = source.choice(times, p=shares / shares.sum(), size=(_SAMPLES // 10, site.per_task))
    return (
        drawn.sum(axis=1)
        if site.per_task > 1
        else source.choice(times, p=shares / shares.sum(), size=_SAMPLES)
    )


def greatest(times: np.ndarray, count: float, is_left: bool) -> float:
    """Return the mean of the greatest of so many draws.

    Args:
        times: a sample.
        count: how many are drawn; need not be a whole number.
        is_left: of what is left of them, at a moment at which they are under way.
    """
    ordered = np.sort(times)
    if not ordered.size or not ordered[-1]:
        return 0.0
    if not is_left:
        below = np.arange(1, ordered.size + 1) / ordered.size
        steps = np.diff(np.append(ordered, ordered[-1]))
        return float(ordered[0] + ((1 - below**count) * steps).sum())
    # P(R <= x) is linear between the times of the sample: E[min(x, S)] / E[S].
    places = np.unique(np.concatenate(([0.0], ordered, np.linspace(0, ordered[-1], 4000))))
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    index = np.searchsorted(ordered, places, side="right")
    below = (sums[index] + places * (ordered.size - index)) / sums[-1]
    above = 1 - np.minimum(below, 1.0) ** count
    return float(((above[1:] + above[:-1]) / 2 * np.diff(places)).sum())


def last_of(times: np.ndarray, count: int, gap: float) -> float:
    """Return the mean time at which all of so many tasks have ended that begin one by one.

    ``P(all have ended by x)`` is the product of ``P(S <= x - i gap)``; its logarithm, a sum over
    ``i``, is taken as an integral.

    Args:
        times: a sample of what they take.
        count: how many.
        gap: between the beginnings of two.
    """
    top = float(times.max()) if times.size else 0.0
    if not gap or not top:
        return gap * count + greatest(times, count, False)
    places = np.linspace(0, top, 4000)
    ended = np.searchsorted(np.sort(times), places, side="right") / times.size
    logarithms = np.log(np.maximum(ended, 1e-300))
    parts = (logarithms[1:] + logarithms[:-1]) / 2 * np.diff(places)
    from_here = np.append(np.cumsum(parts[::-1])[::-1], 0.0)  # the integral from a place to the top
    begun = gap * count
    later = np.interp(np.minimum(places + begun, top), places, from_here)
    above = 1 - np.exp((from_here - later) / gap)
    return begun + float(((above[1:] + above[:-1]) / 2 * np.diff(places)).sum())
