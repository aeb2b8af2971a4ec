"""A run of ``subquant conformance`` with four results, in parts and as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from subquant.conformance.cases import Outcome, programs_cases
from subquant.conformance.options import Shard
from subquant.conformance.report import Report, Run
from subquant.conformance.suite import programs
from subquant.conformance.suite_random import random_programs

CASES = programs_cases([*programs(), *random_programs(30)])
RUN = Run({"subquant": "1", "iree": "3"}, ("llvm-cpu",), "", 0, False, "c", "e", 4)
OUTCOMES = [
    Outcome("suite/a", "add", "llvm-cpu", "pass", 10, 1, 2, "", 0.25, "aa", "run a"),
    Outcome("suite/b", "add", "llvm-cpu", "wrong", 10, 0, 0, "expected 1 \x1b<&", 1, "bb", "run b"),
    Outcome("suite/c", "sine", "llvm-cpu", "unsupported", message="no", replay="run c"),
    Outcome("suite/d", "send", "llvm-cpu", "legalized", replay="run d"),
]


def make(numbers: Sequence[int], shard: str | None = None, run: Run = RUN) -> Report:
    outcomes = tuple(replace(OUTCOMES[n], device=run.devices[0]) for n in numbers)
    unexpected = frozenset(o.key for o in outcomes if o.name in ("suite/a", "suite/b"))
    part = None if shard is None else Shard.parse(shard)
    return Report(run, outcomes, tuple(numbers), unexpected, ("A CPU",), part)


def failure_of(report: Any) -> tuple[str, str, str]:
    """The type, message and text of the first failure of a JUnit report."""
    failure = report.find(".//failure")
    return failure.get("type"), failure.get("message"), failure.text


WHOLE = make([0, 1, 2, 3])
