"""Many models on a Dask cluster of this machine: the files are those of this machine alone.

Two workers, of which one is killed again and again, and then the scheduler. The short suite lowers
twelve models, and kills once; the long one makes two hundred executables, and kills ten times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dask_cluster import Cluster
from many_models import write_models
from processes import wait_until
from programs import LONG
from subquant.batch.manifest import NAME

distributed = pytest.importorskip("distributed")

COUNT, KILLS = (200, 10) if LONG else (12, 1)
GIVEN = ("compile", "*/*/*.mlir", "*/*/*.mlirbc", "**/*.tflite", "**/*.onnx")
EMIT = () if LONG else ("--emit", "mlirbc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder, COUNT)
    return folder


@pytest.fixture(scope="module")
def cache(models: Path) -> Path:
    """The cache that the first run fills, and the last one uses."""
    return models.parent / "cache"


@pytest.fixture(scope="module")
def alone(models: Path, cache: Path) -> dict[str, Any]:
    """The report of the run on this machine."""
    return report_of(models, "alone", start(models, "alone", "--jobs", "1", cache=cache))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    environment = {"SUBQUANT_CACHE": ""}
    with Cluster(tmp_path_factory.mktemp("cluster")) as created:
        for _ in range(2):
            created.start_worker(**environment)
        created.wait_for_workers(2)
        yield created


def start(
    models: Path, output: str, *arguments: str, cache: Path | None = None
) -> subprocess.Popen[str]:
    """Start to compile all models to a folder beside them."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "subquant",
            *GIVEN,
            "-o",
            f"../{output}",
            *EMIT,
            *["--json", f"../{output}.json"],
            *arguments,
        ],
        cwd=models,
        env={**os.environ, "SUBQUANT_CACHE": "" if cache is None else str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_of(models: Path, output: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run, and return its report and output; some models are invalid."""
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    report: dict[str, Any] = json.loads((models.parent / f"{output}.json").read_text())
    return {**report, "said": errors}


def files(models: Path, output: str) -> dict[str, bytes]:
    folder = models.parent / output
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != NAME}  # fmt: skip


def manifest_counts(models: Path, output: str) -> Counter[str]:
    """Return how often the manifest of a folder names each output."""
    path = models.parent / output / NAME
    actual = path.read_text().splitlines() if path.exists() else []
    return Counter(json.loads(line)["output"] for line in actual)


def outcome(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(each["name"], each["status"], each["message"]) for each in report["results"]]


@pytest.mark.skipif(not LONG, reason="6 s; test_dask_engine kills workers, too")
def test_nothing_is_lost_where_workers_are_killed(
    models: Path, alone: dict[str, Any], cluster: Cluster
) -> None:
    """And nothing is done twice: each has one result, one output and one line in the manifest."""
    draw = random.Random(15)
    killed: list[float] = []
    client = distributed.Client(cluster.address, set_as_default=False)
    process = start(models, "there", "--cluster", cluster.address)
    first = time.monotonic()

    def kill() -> None:
        while process.poll() is None and len(killed) < KILLS:
            time.sleep(draw.uniform(0.5, 12) if LONG else 0.05)
            if manifest_counts(models, "there"):
                actual = client.run(os.getpid, on_error="ignore")
                if actual:  # or one is not there yet, and the other not any more
                    os.kill(draw.choice(sorted(actual.values())), signal.SIGKILL)
                    killed.append(round(time.monotonic() - first, 1))

    killer = threading.Thread(target=kill)
    killer.start()
    report = report_of(models, "there", process)
    killer.join()
    client.close()
    print("killed at", killed, "of", report["seconds"], "s;", report["summary"])
    assert len(killed) == KILLS
    assert outcome(report) == outcome(alone)
    assert len(report["results"]) == COUNT
    if LONG:  # twelve models may all be done by the worker that has the first one
        assert len({each["worker"] for each in report["results"] if each["worker"]}) > 1
    created = files(models, "there")
    assert created == files(models, "alone")
    assert manifest_counts(models, "there") == Counter([*created])  # once each
    assert len(created) == COUNT - report["summary"]["failed"]


@pytest.mark.skipif(not LONG, reason="4 s; test_compile_many_resume stops runs, too")
def test_what_was_done_stays_done_where_the_scheduler_is_killed(
    models: Path, alone: dict[str, Any], cluster: Cluster, cache: Path
) -> None:
    cluster.wait_for_workers(2)
    process = start(models, "half", "--cluster", cluster.address)
    assert wait_until(lambda: len(manifest_counts(models, "half")) >= COUNT // 20 + 1, 300)
    cluster.scheduler.send_signal(signal.SIGKILL)
    report = report_of(models, "half", process)
    done = report["summary"]["compiled"]
    assert 0 < done < COUNT
    assert report["summary"]["not-run"] > 0
    assert "note: --resume compiles the rest" in report["said"]
    assert "ended, or cannot be reached" in report["said"].splitlines()[-1]
    expected = files(models, "alone")
    created = files(models, "half")
    assert len(created) == done
    assert created.items() <= expected.items()
    repeated = start(models, "half", "--jobs", "2", "--resume", cache=cache)
    report = report_of(models, "half", repeated)
    assert report["summary"]["up-to-date"] == done
    assert report["summary"]["failed"] == alone["summary"]["failed"]
    assert files(models, "half") == expected
    print(done, "were done;", report["summary"], "in", report["seconds"], "s")
