"""Timing of cases: each peer computes in a process of its own, in alternating time slices."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from subquant.runtime.timing import Times

from .ceilings import CEILINGS, READ_COPIES
from .checks import Check, Data, check
from .hidden import HIDDEN

OURS = "subquant"
CPUID_PEERS = ("onnxruntime", "onnxruntime_exact", "litert")
"""Peers that choose their instruction set by the processor's `cpuid`."""
PEERS = ("onnxruntime", "onnxruntime_exact", "litert", "llama", "transformers", "iree")

_MIN_ROTATED_BYTES = 360 * 2**20
"""Bytes of all copies of the weights of a rotated case: more than a cache holds."""
_MAX_COPIES = 64
_MIN_SLICE_SECONDS, _MAX_SLICE_SECONDS = 0.003, 0.1
"""Bounds of a time slice: a peer runs for one slice, then the next peer does.

A machine is slower for some hundredths of a second at times, which should hit all peers alike.
The ratio of medians of one peer timed twice (calls of 0.13 ms, 0.3 s each) has a standard deviation
of 3.1 % with slices of 0.1 s, 2.0 % with 0.01 s, and 0.8 % with 0.003 s.
"""
_CALLS_PER_SLICE = 10
"""Timed calls of a slice, after one warm-up call, unless the slice gets too long."""
_MIN_CALLS = 3
_LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment of ceilings: glibc allocates their memory in large pages."""


class PeerFailed(Exception):
    """The peer reports that it cannot answer a request."""


class PeerEnded(PeerFailed):
    """The peer's process ended."""


def _paths() -> str:
    """Return a worker's PYTHONPATH: this package's folder, then PYTHONPATH of this process."""
    return os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.getenv("PYTHONPATH")])]
    )


class Worker:
    """A peer in its process, which is stopped (SIGSTOP) between requests.

    A peer's idle threads may spin: XNNPACK's for 70 ms after a call, an open Vulkan device of
    Mesa's always. They would take half of a core on which another peer is timed.

    Args:
        name: of a module of `benchmarks.peers`, or a ceiling.
        log: the file of its output.
        preloaded: a library that hides features of the processor from `CPUID_PEERS`.
    """

    def __init__(self, name: str, log: Path, preloaded: Path | None = None) -> None:
        module = "limits" if name in CEILINGS else name
        is_hidden_from = preloaded is not None and name in CPUID_PEERS
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ
                | {"PYTHONPATH": _paths()}
                | (_LARGE_PAGES if name in CEILINGS else {})
                | ({"LD_PRELOAD": str(preloaded), HIDDEN: "1"} if is_hidden_from else {}),
            )

    def ask(self, do: str, **request: Any) -> Any:
        """Send a request, and return the answer.

        Raises:
            PeerFailed: the peer reports an error, or its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.send_signal(signal.SIGCONT)
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerEnded(f"its process ended with status {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        reply = json.loads(line)
        if "error" in reply:
            raise PeerFailed(reply["error"].removeprefix("Unsupported: "))
        return reply["answer"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@dataclass
class Measured:
    """Measurement of a peer, or of a ceiling, in a case.

    Args:
        name: the peer's module, or the ceiling.
        notes: the `notes` of its `Prepared`.
        times: the times of its calls; None if there are none.
        check: the comparison of its result.
        failure: the reason for the absence of times.
    """

    name: str
    notes: dict[str, Any] = field(default_factory=dict)
    times: Times | None = None
    check: Check | None = None
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the measurement in JSON's types."""
        values: dict[str, Any] = {"peer": self.name, "notes": self.notes}
        if self.times is not None:
            values["milliseconds"] = self.times.to_json()
        if self.check is not None:
            values |= {"is_right": self.check.is_right, "check": self.check.text}
        if self.failure:
            values["failure"] = self.failure
        return values


class Workers:
    """Processes of peers, one for each peer and number of threads, started on the first use."""

    def __init__(self, log: Path, preloaded: Path | None = None) -> None:
        self._log, self._preloaded = log, preloaded
        self._started: dict[tuple[str, int], Worker] = {}

    def get(self, name: str, threads: int) -> Worker:
        """Return the process of a peer."""
        key = name, threads
        if key not in self._started:
            self._started[key] = Worker(name, self._log, self._preloaded)
        return self._started[key]

    def drop(self, name: str, threads: int) -> None:
        """End a process; the next `get` starts another."""
        self._started.pop((name, threads)).close()

    def close(self) -> None:
        """End all processes."""
        while self._started:
            self._started.popitem()[1].close()


def measure(
    data: Data,
    threads: int,
    peers: Sequence[str],
    workers: Workers,
    seconds: float,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Measured]:
    """Time a case.

    Args:
        threads: of each peer.
        seconds: measured time of each peer, in all slices.
        progress: called with one line for each step.

    Returns:
        The measurement of each peer, then of each ceiling (``read``, ``multiply``, ...).
    """
    measurements: list[Measured] = []
    timed: list[tuple[Measured, Worker, list[int]]] = []
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "arrays.npz")
        np.savez(arrays, **data.arrays)
        for name in [*peers, *_ceilings(data)]:
            progress(f"prepare {name}")
            each = Measured(name)
            measurements.append(each)
            worker = workers.get(name, threads)
            try:
                each.notes = worker.ask(
                    "prepare",
                    case=data.values | {"ceiling": name},
                    arrays=str(arrays),
                    threads=threads,
                    copies=_copies(name, data),
                )
                if name not in CEILINGS:
                    file = Path(folder, "result.npy")
                    worker.ask("result", file=str(file))
                    each.check = check(data, np.load(file), each.notes)
                timed.append((each, worker, []))
            except PeerFailed as error:
                _fail(each, threads, error, workers)
        progress("time")
        _time_in_slices(timed, threads, workers, seconds)
    for each, worker, nanoseconds in timed:
        if not each.failure:
            each.times = Times.of(nanoseconds)
            worker.ask("release")
    return measurements


def _copies(name: str, data: Data) -> int:
    """Return the number of copies of the weights that a peer, or a ceiling, cycles through."""
    if name in CEILINGS:
        return READ_COPIES if name == "read" else 1
    return min(_MAX_COPIES, -(-_MIN_ROTATED_BYTES // data.bytes)) if data.rotated else 1


def _ceilings(data: Data) -> Sequence[str]:
    """Return a case's ceilings: reading the weights, or multiplying; none for models and Vulkan.

    A token of a language model reads its weights.
    """
    if data.rotated:
        return CEILINGS[:1]
    return CEILINGS[1:] if data.products and data.values.get("target") != "vulkan" else ()


def _time_in_slices(
    timed: Sequence[tuple[Measured, Worker, list[int]]],
    threads: int,
    workers: Workers,
    seconds: float,
) -> None:
    """Time all peers in alternating slices, until each has its seconds and a few calls.

    The order is shuffled in each round, so that no peer always follows the same other peer.
    """
    waiting, order = list(timed), random.Random(0)
    while waiting:
        order.shuffle(waiting)
        for entry in tuple(waiting):
            each, worker, nanoseconds = entry
            try:
                nanoseconds += worker.ask("time", seconds=min(_seconds(nanoseconds), seconds))
            except PeerFailed as error:
                _fail(each, threads, error, workers)
            has_all = sum(nanoseconds) >= 1e9 * seconds and len(nanoseconds) >= _MIN_CALLS
            if each.failure or has_all:
                waiting.remove(entry)


def _seconds(nanoseconds: Sequence[int]) -> float:
    """Return the length of the next slice, from the times of the last calls."""
    last = nanoseconds[-_CALLS_PER_SLICE:]
    call = float(np.median(last)) / 1e9 if last else 0.0
    return min(max(_CALLS_PER_SLICE * call, _MIN_SLICE_SECONDS), _MAX_SLICE_SECONDS)


def _fail(each: Measured, threads: int, error: PeerFailed, workers: Workers) -> None:
    each.failure = str(error)
    if isinstance(error, PeerEnded):
        workers.drop(each.name, threads)
