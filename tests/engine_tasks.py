"""Functions of tasks, which children and workers import too."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subquant.errors import InputError, Place
from subquant.isolation import client
from subquant.isolation.cancellation import current_work
from subquant.isolation.child import ReportStep
from subquant.isolation.command import run_supervised

Result = tuple[Any, list[bytes]]


def double(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    steps("double")
    return 2 * arguments["x"], [2 * blob for blob in blobs]


def refuse(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    raise InputError("no such thing", Place("model.mlir", 3, 5), ("seen before",))


def fail(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    return arguments["nothing"], []


def in_child(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    """Call one of the others in a child."""
    return client.call(f"{__name__}:{arguments['function']}", arguments, blobs, steps=steps)


def process(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    """Say which process this is, after a while."""
    time.sleep(arguments.get("seconds", 0))
    return os.getpid(), []


def cores(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    """Say how many cores this work may take, after a while."""
    time.sleep(arguments.get("seconds", 0))
    return current_work().cores, []


def end(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    os._exit(3)


def sleep(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    """Write the number of this process into a folder, and stay."""
    Path(arguments["folder"], str(os.getpid())).touch()
    steps("sleep")
    time.sleep(1000)
    return None, []


def run_command(arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep) -> Result:
    """Sleep in a supervised command and its child."""
    script = 'touch "$1/$$"; sleep 1000 & touch "$1/$!"; wait'
    run_supervised(["/bin/sh", "-c", script, "sh", arguments["folder"]], {})
    return None, []
