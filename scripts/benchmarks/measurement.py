"""Time cases: peers in processes of their own, one after the other, again and again."""

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

from .cases import Check, Data, check
from .ceilings import CEILINGS, READ_COPIES
from .hidden import HIDDEN

__all__ = ["OURS", "PEERS", "Measured", "PeerEnded", "PeerFailed", "Worker", "Workers", "measure"]

OURS = "subquant"
CHOOSING = ("onnxruntime", "onnxruntime_exact", "litert")
"""Peers that choose their instructions by what the processor says that it has."""
PEERS = ("onnxruntime", "onnxruntime_exact", "litert", "llama", "iree")

_ROTATED_BYTES = 360 * 2**20
"""So many bytes of weights are gone through: no cache holds them."""
_MOST_COPIES = 64
_SHORT_TURN, _LONG_TURN = 0.003, 0.1
"""Seconds of a turn, at least and at most.

A machine is slower for some hundredths of a second, again and again: each peer should meet as much
of that. Of the same peer twice, with calls of 0.13 ms and 0.3 s for each, the ratio of medians
varies by 3.1 % (standard deviation) in turns of 0.1 s, 2.0 % of 0.01 s, and 0.8 % of 0.003 s.
"""
_CALLS_OF_A_TURN = 10
"""At least, if the turn is not too long by that: before them there is one that does not count."""
_LEAST_CALLS = 3
_LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""What a machine can do, it does in large pages of memory, which glibc asks for."""


class PeerFailed(Exception):
    """A peer says that it cannot do what was asked."""


class PeerEnded(PeerFailed):
    """Its process ended."""


def _paths() -> str:
    """Where a worker finds modules: this package, and what goes before others here."""
    return os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.getenv("PYTHONPATH")])]
    )


class Worker:
    """A peer in its process, which is stopped but while it is asked for something.

    A peer's threads may wait for work by looking for it again and again: those of XNNPACK for 70 ms
    after a call, those of an open Vulkan device of Mesa's always. On a core that another peer is
    timed on they would take half of it.

    Args:
        name: of a module of `benchmarks.peers`, or a ceiling.
        log: where to write what it prints.
        preloaded: a library that hides what a processor has from peers that look for it.
    """

    def __init__(self, name: str, log: Path, preloaded: Path | None = None) -> None:
        module = "limits" if name in CEILINGS else name
        is_hidden_from = preloaded is not None and name in CHOOSING
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
        """Ask, and wait for the answer.

        Raises:
            PeerFailed: it says so, or its process ended.
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
    """What was found of a peer, or a ceiling, in a case.

    Args:
        name: of the peer.
        notes: what it said of itself.
        times: None if there are none.
        check: of its result.
        failure: why there are no times.
    """

    name: str
    notes: dict[str, Any] = field(default_factory=dict)
    times: Times | None = None
    check: Check | None = None
    failure: str = ""

    def as_json(self) -> dict[str, Any]:
        """As JSON's types."""
        found: dict[str, Any] = {"peer": self.name, "notes": self.notes}
        if self.times is not None:
            found["milliseconds"] = self.times.to_json()
        if self.check is not None:
            found |= {"is_right": self.check.is_right, "check": self.check.text}
        if self.failure:
            found["failure"] = self.failure
        return found


class Workers:
    """A process for each peer and number of threads, started when it is asked for.

    Args:
        log, preloaded: as of a `Worker`.
    """

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
        """Forget a process that ended, or should."""
        self._started.pop((name, threads)).close()

    def close(self) -> None:
        """End all."""
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
        data: the case.
        threads: of each peer.
        peers: modules of `benchmarks.peers`.
        workers: their processes.
        seconds: for each peer, in all its turns.
        progress: called with a line about each step.

    Returns:
        What was found of each peer; then of the ceilings, named ``read``, ``multiply`` and so on.
    """
    found: list[Measured] = []
    turns: list[tuple[Measured, Worker, list[int]]] = []
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "arrays.npz")
        np.savez(arrays, **data.arrays)
        for name in [*peers, *_ceilings(data)]:
            progress(f"prepare {name}")
            each = Measured(name)
            found.append(each)
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
                turns.append((each, worker, []))
            except PeerFailed as error:
                _fail(each, threads, error, workers)
        progress("time")
        _take_turns(turns, threads, workers, seconds)
    for each, worker, nanoseconds in turns:
        if not each.failure:
            each.times = Times.of(nanoseconds)
            worker.ask("release")
    return found


def _copies(name: str, data: Data) -> int:
    """How many tensors a peer, or a ceiling, goes through."""
    if name in CEILINGS:
        return READ_COPIES if name == "read" else 1
    return min(_MOST_COPIES, -(-_ROTATED_BYTES // data.bytes)) if data.rotated else 1


def _ceilings(data: Data) -> Sequence[str]:
    """What bounds a case on a CPU: reading the weights, or multiplying; not said of models."""
    if not data.products or data.values.get("target") == "vulkan":
        return ()
    return CEILINGS[:1] if data.rotated else CEILINGS[1:]


def _take_turns(
    turns: Sequence[tuple[Measured, Worker, list[int]]],
    threads: int,
    workers: Workers,
    seconds: float,
) -> None:
    """Time all in turn, until each had its seconds, and some calls if these are long.

    In each round the order is another one: what a peer leaves behind is not always met by the same.
    """
    waiting, order = list(turns), random.Random(0)
    while waiting:
        order.shuffle(waiting)
        for turn in tuple(waiting):
            each, worker, nanoseconds = turn
            try:
                nanoseconds += worker.ask("time", seconds=min(_seconds(nanoseconds), seconds))
            except PeerFailed as error:
                _fail(each, threads, error, workers)
            has_all = sum(nanoseconds) >= 1e9 * seconds and len(nanoseconds) >= _LEAST_CALLS
            if each.failure or has_all:
                waiting.remove(turn)


def _seconds(nanoseconds: Sequence[int]) -> float:
    """How long a turn is, by the times of the last calls."""
    last = nanoseconds[-_CALLS_OF_A_TURN:]
    call = float(np.median(last)) / 1e9 if last else 0.0
    return min(max(_CALLS_OF_A_TURN * call, _SHORT_TURN), _LONG_TURN)


def _fail(each: Measured, threads: int, error: PeerFailed, workers: Workers) -> None:
    each.failure = str(error)
    if isinstance(error, PeerEnded):
        workers.drop(each.name, threads)
