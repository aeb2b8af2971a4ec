"""Processes that run inputs: the loop of a process, and its handle."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import ROOT
from .corpus import make_corpus
from .kinds import make_case
from .outcomes import Outcome
from .running import run_case, run_killed, write_case

SCRIPT = ROOT / "scripts/fuzz.py"
"""The command, which serves inputs with ``--serve``."""
_MEMORY_LIMIT = 12 << 30
"""Bytes of a process."""


def serve(seed: int) -> None:
    """Run the inputs that standard input names, and write how each ended to standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers, names = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "r")
    corpus = make_corpus()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    base = Path(os.environ["FUZZ_FOLDER"])
    answers.write("ready\n")
    answers.flush()
    for line in names:
        name, number = line.split()
        folder = base / "case"
        folder.mkdir()
        case = make_case(seed, name, int(number), corpus)
        write_case(case, folder)
        run = run_case if case.killed is None else run_killed
        status, failure = run(case, folder)
        if failure is None:
            shutil.rmtree(folder)
        else:
            folder.rename(base / f"{name}-{number}")
        answers.write(json.dumps([status, failure]) + "\n")
        answers.flush()


class Server:
    """A process that runs inputs."""

    def __init__(self, seed: int, folder: Path, seconds: float) -> None:
        self.seed, self.folder, self.seconds = seed, folder, seconds
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str, number: int) -> Outcome:
        """Run one input."""
        process = self._started()
        started = time.monotonic()
        assert process.stdin is not None
        process.stdin.write(f"{name} {number}\n")
        process.stdin.flush()
        answer = self._answer(self.seconds * (10 if name == "kills" else 1))
        used = time.monotonic() - started
        if answer:
            status, failure = json.loads(answer)
            return Outcome(name, number, status, failure, used)
        code = None if answer is None else process.wait()
        failure = f"took more than {self.seconds:g} s" if code is None else f"ended with {code}"
        self.stop()
        with contextlib.suppress(OSError):
            (self.folder / "case").rename(self.folder / f"{name}-{number}")
        return Outcome(name, number, code or -1, failure, used)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            temporary = self.folder / "tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(self.folder / "case", ignore_errors=True)
            temporary.mkdir(parents=True)
            environment = {
                **os.environ,
                "FUZZ_FOLDER": str(self.folder),
                "TMPDIR": str(temporary),
                "PYTHONHASHSEED": "0",  # JAX and ONNX write sets in the order of hashes
                "SUBQUANT_CACHE": str(self.folder / "cache"),  # some of them clear it
            }
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), "--serve", "--seed", str(self.seed)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=environment, cwd=self.folder,
            )  # fmt: skip
            if self._answer(300) != "ready\n":
                raise SystemExit("fuzz: the process that runs inputs did not start")
        return self._process

    def _answer(self, seconds: float) -> str | None:
        """Return the next line, "" if the process ended, and None if there is none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None


def run_inputs(arguments: Any, work: list[tuple[str, int]], folder: Path) -> Iterator[Outcome]:
    """Run inputs one after another; files of failing inputs stay in the folder."""
    folder.mkdir()
    server = Server(arguments.seed, folder, arguments.seconds)
    try:
        for name, number in work:
            yield server.run(name, number)
    finally:
        server.stop()
