"""Ranges of inputs as tasks of a Dask scheduler's workers.

A worker runs `make_archive`'s program, which is the command with ``--results FILE``: it runs a
range and writes the outcomes with the files of failures (`run_range`). `add_results` reads them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from . import ROOT
from .kinds import inputs_of
from .outcomes import Outcome, Tally, keep_files
from .server import SCRIPT, run_inputs

INPUTS_PER_TASK = 500
"""Inputs of a task, whose processes take some seconds to start."""
_GENERATOR_PACKAGES = ("jax", "ai-edge-litert", "flatbuffers", "safetensors")
"""Packages that inputs are made with, beside those which all workers must have as here."""
_RESULTS_NAME = "results.json"
_FILES_FOLDER = "kept/"


_MAIN_OF_ARCHIVE = """
import os, sys, zipfile
folder = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "tree")
with zipfile.ZipFile(sys.argv[0]) as archive:
    archive.extractall(folder)
script = os.path.join(folder, "scripts", "fuzz.py")
os.execv(sys.executable, [sys.executable, script, *sys.argv[1:]])
"""
"""The program of the archive: it unpacks itself, and runs ``scripts/fuzz.py``."""


def make_archive() -> bytes:
    """Return ``scripts/fuzz.py``, its packages, and the files of the corpus, as a program."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN_OF_ARCHIVE)
        paths = [SCRIPT, *(ROOT / "examples").glob("*.mlir")]
        for pattern in ("*.mlir", "tflite_*.py", "gguf_models.py"):
            paths += (ROOT / "tests").rglob(pattern)
        for pattern in (
            "*.safetensors",
            "*config*.json",
            "*index.json",
            "tokenizer.json",
            "*.jinja",
        ):
            paths += (ROOT / "tests/data/huggingface").glob(f"*/{pattern}")
        for package in ("damaged_inputs", "pieces"):
            paths += (ROOT / "scripts" / package).glob("*.py")
        for path in paths:
            archive.write(path, path.relative_to(ROOT))
    return buffer.getvalue()


def run_on_cluster(inputs: Any, tally: Tally) -> bool:
    """Have workers run the inputs; true if they ran all."""
    from subquant.batch.engines import Task, run_tasks
    from subquant.errors import SubquantError

    archive = make_archive()
    options = ["--kinds", inputs.kinds, "--seed", str(inputs.seed), "--seconds",
               str(inputs.seconds)]  # fmt: skip
    last = inputs.first + inputs.count

    def task(first: int) -> Task:
        count = min(INPUTS_PER_TASK, last - first)
        arguments = [*options, "--first", str(first), "--count", str(count), "--results"]
        return Task(
            f"inputs {first} to {first + count - 1}",
            "subquant.batch.engines.tasks:run_archive",
            {"arguments": arguments},
            [archive],
        )

    missing: list[str] = []
    tasks = map(task, range(inputs.first, last, INPUTS_PER_TASK))
    try:
        with contextlib.closing(run_tasks(tasks, cluster=inputs.cluster)) as run:
            for done in run:
                why = done.error and str(done.error)
                if done.error is None and not done.blobs:
                    why = f"exit status {done.value['status']}: {done.value['errors'][-600:]}"
                if not why:
                    why = add_results(done.blobs[0], tally)
                if why:
                    missing.append(done.task.name)
                    print(f"{done.task.name}, {done.worker}: {why}", flush=True)
    except SubquantError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return False
    return not missing


def add_results(results: bytes, tally: Tally) -> str | None:
    """Record the outcome of a range, and keep its files; or report why it does not count."""
    with zipfile.ZipFile(io.BytesIO(results)) as archive:
        actual, versions = json.loads(archive.read(_RESULTS_NAME)), generator_versions()
        if actual["made_with"] != versions:
            return f"inputs are made with {actual['made_with']} there, and here {versions}"
        names = [name for name in archive.namelist() if name.startswith(_FILES_FOLDER)]
        with tempfile.TemporaryDirectory(prefix="subquant-fuzz-") as scratch:
            archive.extractall(scratch, names)
            for fields in actual["outcomes"]:
                outcome = Outcome(**fields)
                if outcome.failure is not None:
                    keep_files(Path(scratch) / _FILES_FOLDER, outcome)
                tally.add(outcome)
    return None


def run_range(arguments: Any, kinds: list[str], scratch: Path) -> None:
    """Run a range on a worker, and write how each input ended, with the files of failures."""
    folder = scratch / "range"
    inputs = inputs_of(kinds, arguments.first, arguments.count)
    outcomes = list(run_inputs(arguments, inputs, folder))
    fields = [dataclasses.asdict(outcome) for outcome in outcomes]
    actual = {"made_with": generator_versions(), "outcomes": fields}
    with zipfile.ZipFile(arguments.results, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_RESULTS_NAME, json.dumps(actual))
        for outcome in outcomes:
            if outcome.failure is not None:
                for path in sorted((folder / f"{outcome.kind}-{outcome.number}").rglob("*")):
                    archive.write(path, _FILES_FOLDER + path.relative_to(folder).as_posix())


def generator_versions() -> dict[str, str | None]:
    """Return the versions of the generators of inputs."""
    from subquant.core.versions import versions_of

    return dict(versions_of(_GENERATOR_PACKAGES))
