"""Outcomes of inputs, and the files of failures."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import ROOT

FAILURES = ROOT / "build/fuzz"
"""The folder of failures."""
_MAX_PRINTED_FAILURES = 12
"""Failures that are printed in full."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of an input: its status, and the failure, if any."""

    kind: str
    number: int
    status: int
    failure: str | None
    seconds: float


class Tally:
    """Outcomes of inputs, printed on arrival."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.statuses: Counter[int] = Counter()
        self.failures: list[Outcome] = []
        self.slowest = Outcome("", 0, 0, None, 0)
        self.started = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """Note how an input outcome."""
        self.statuses[outcome.status] += 1
        if outcome.seconds > self.slowest.seconds:
            self.slowest = outcome
        if outcome.failure is not None:
            self.failures.append(outcome)
            if len(self.failures) <= _MAX_PRINTED_FAILURES:
                print(
                    f"{outcome.kind}:{outcome.number}: {outcome.failure.strip()[-600:]}", flush=True
                )
        done = self.statuses.total()
        if sys.stderr.isatty() and done % 20 == 0:
            print(f"\r{done} inputs, {len(self.failures)} failures", end="", file=sys.stderr)

    def show(self) -> None:
        """Print the sums."""
        by_kind = Counter(outcome.kind for outcome in self.failures)
        if by_kind:
            print(", ".join(f"{name}: {count}" for name, count in by_kind.most_common()))
        statuses = (f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        slowest, used = self.slowest, time.monotonic() - self.started
        print(
            f"{self.statuses.total():,} inputs, {len(self.failures):,} failures (seed {self.seed}; "
            f"exit status {', '.join(statuses)}; slowest {slowest.kind}:{slowest.number} "
            f"{slowest.seconds:.1f} s; {used:.0f} s)"
        )


def keep_files(folder: Path, outcome: Outcome) -> Path | None:
    """Move the files of a failure to where they stay."""
    name = f"{outcome.kind}-{outcome.number}"
    if not (folder / name).exists():
        return None
    FAILURES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(FAILURES / name, ignore_errors=True)
    shutil.move(folder / name, FAILURES / name)
    (FAILURES / name / "wrong").write_text(f"{outcome}\n{outcome.failure}")
    return FAILURES / name
