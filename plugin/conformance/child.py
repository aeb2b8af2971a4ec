"""Others' test files as cases, in a child process: the other side of `testdata`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..isolation.child import ReportStep
from ..isolation.limits import time_limit
from .cases import Case, cases_to_fields
from .stablehlo_testdata import stablehlo_file_cases
from .tosa_testdata import tosa_file_cases

Answer = tuple[Any, list[bytes]]


def stablehlo_file(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Read a file of StableHLO's test data."""
    return _read(stablehlo_file_cases, arguments, steps)


def tosa_file(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Read a file of StableHLO's TOSA tests, and lower its functions."""
    return _read(tosa_file_cases, arguments, steps)


def _read(
    read: Callable[[Path], Iterable[Case]], arguments: dict[str, Any], steps: ReportStep
) -> Answer:
    steps("parse")
    with time_limit(arguments["parse_seconds"]):
        return cases_to_fields(list(read(Path(arguments["source"]["path"]))))
