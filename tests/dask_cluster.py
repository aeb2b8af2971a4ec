"""A Dask cluster of processes of this machine, started as people start one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from distributed import Client, Scheduler

from processes import wait_until

TESTS = Path(__file__).parent
QUIET = {"DASK_LOGGING__DISTRIBUTED": "error"}


class Cluster:
    """A scheduler with environment variables, workers with nannies, and their files in a folder."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--port", "0", "--host", "127.0.0.1", variables=variables
        )
        assert wait_until(self._file.is_file)
        self.address: str = json.loads(self._file.read_text())["address"]

    def _start(
        self, what: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        name = f"distributed.cli.dask_{what}"
        command = [sys.executable, "-m", name, "--scheduler-file", str(self._file)]
        paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        with (self.folder / f"{what}{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--no-dashboard", *arguments],
                env={**os.environ, "PYTHONPATH": paths, **QUIET, **(variables or {})},
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start_worker(
        self, *arguments: str, threads: int = 1, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker with a nanny; return the nanny."""
        inputs = ["--nthreads", str(threads), "--local-directory", str(self.folder)]
        return self._start("worker", *inputs, *arguments, variables=variables)

    def wait_for_workers(self, count: int) -> None:
        """Wait until exactly this number of workers is present."""
        with Client(self.address, set_as_default=False) as client:
            assert wait_until(lambda: len(client.nthreads()) == count, 60)

    def set_allowed_failures(self, count: int) -> None:
        """Set the number of workers that a task may end before it fails."""

        def set_it(dask_scheduler: Scheduler) -> None:
            dask_scheduler.allowed_failures = count

        with Client(self.address, set_as_default=False) as client:
            client.run_on_scheduler(set_it)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
