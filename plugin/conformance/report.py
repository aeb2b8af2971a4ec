"""Report of a run: outcomes, identity of the run, comparison with expected results.

Expected results (``expected.json``): name to device to status, one line a case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.strict_json import load_json
from ..errors import InputError
from .cases import PASSING, Case, Key, Outcome
from .changes import Change, changes_between
from .options import Shard

Expected = dict[str, dict[str, str]]
EXPECTED_FILE = Path(__file__).parent / "expected.json"
_VERSION = 1
"""The version of the list of expected results."""


@dataclass(frozen=True)
class Run:
    """Identity of a run, equal for all of its shards.

    Args:
        versions: versions of subquant, its code, the bindings and IREE.
        devices: where the cases were run.
        filter, random, strict: the options.
        cases: `digest_of_cases` of the chosen cases.
        expected: `digest_of_expected` of the expected results.
        total: how many results all parts have together.
    """

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    filter: str
    random: int
    strict: bool
    cases: str
    expected: str
    total: int


@dataclass(frozen=True)
class Comparison:
    """The changes from an earlier run on other or the same machines.

    With `same_bits`, a result with other bits is a failure.
    """

    run: Run
    machines: tuple[str, ...]
    changes: tuple[Change, ...]
    same_bits: bool = False

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The outcomes that are worse than before, or have other bits where that counts."""
        return tuple(
            change.now
            for change in self.changes
            if change.now is not None
            and (change.kind == "regressed" or (self.same_bits and change.has_other_bits))
        )


@dataclass(frozen=True)
class Report:
    """Results of a run, or of a shard, in order.

    Args:
        numbers: the numbers of the outcomes in the whole run.
        unexpected: the keys of outcomes that are not as expected, as `judge` returns them.
        machines: the processors that it ran on.
        shard: None for all of the run.
        missing: the absent parts of reports that were put together.
        comparison: None unless the run was compared with an earlier one.
    """

    run: Run
    outcomes: tuple[Outcome, ...]
    numbers: tuple[int, ...]
    unexpected: frozenset[Key]
    machines: tuple[str, ...] = ()
    shard: Shard | None = None
    missing: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def regressions(self) -> tuple[Outcome, ...]:
        """The outcomes that should pass, or are not in the list, and do not pass."""
        return tuple(o for o in self.outcomes if o.key in self.unexpected and not o.passes)

    @property
    def newly_passing(self) -> tuple[Outcome, ...]:
        """The outcomes that pass, and are not expected to."""
        return tuple(o for o in self.outcomes if o.key in self.unexpected and o.passes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The outcomes for which the run fails, in order."""
        failed = {*(self.unexpected if self.run.strict else (o.key for o in self.regressions))}
        if self.comparison is not None:
            failed.update(outcome.key for outcome in self.comparison.failures)
        return tuple(outcome for outcome in self.outcomes if outcome.key in failed)

    @property
    def exit_status(self) -> int:
        """0, or 1 if a case is worse than expected, or than before, or a part is missing."""
        return 1 if self.failures or self.missing else 0

    def compared(
        self, before: Report, *, is_chosen: Callable[[str], bool], same_bits: bool = False
    ) -> Report:
        """Compare with the report of an earlier run.

        A case that this run does not choose, by `is_chosen` of its name, is not gone. With
        `same_bits`, a result with other bits is a failure.
        """
        now = {outcome.key for outcome in self.outcomes}
        old = [
            outcome
            for outcome in before.outcomes
            if outcome.key in now
            or (outcome.device in self.run.devices and is_chosen(outcome.name))
        ]
        changes = changes_between(old, self.outcomes)
        comparison = Comparison(before.run, before.machines, changes, same_bits)
        return replace(self, comparison=comparison)


def digest_of_cases(cases: Sequence[Case]) -> str:
    """Return a digest of cases: their names, and the contents of external tests.

    The version covers the programs of the suite.
    """
    digest = hashlib.sha256()
    for case in cases:
        chunks = [case.name.encode()]
        if case.prepared is not None:
            chunks += [case.prepared.text.encode(), *(a.tobytes() for a in case.prepared.inputs)]
            chunks += [golden.value.tobytes() for golden in case.prepared.goldens]
        for chunk in chunks:
            digest.update(len(chunk).to_bytes(8, "little") + chunk)
    return digest.hexdigest()[:16]


def digest_of_expected(expected: Expected) -> str:
    """Return a digest of the expected results."""
    return hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()[:16]


def read_expected(path: str | Path) -> Expected:
    """Read a list of expected results; InputError if the file is unreadable or has another form."""
    values = load_json(path, "the list of expected results")
    results = values.get("results")
    if not isinstance(results, dict) or values.get("version") != _VERSION:
        raise InputError(
            f"'{path}' is no list of expected results of version {_VERSION}; write one with "
            "--update-expected"
        )
    for name, devices in results.items():
        if not isinstance(devices, dict) or not all(isinstance(v, str) for v in devices.values()):
            raise InputError(f"'{path}' has no device and status for '{name}'")
    return results


def judge(outcomes: Sequence[Outcome], expected: Expected) -> frozenset[Key]:
    """Return the keys of the outcomes that pass or fail unlike expected; others should pass."""
    return frozenset(
        outcome.key
        for outcome in outcomes
        if outcome.passes != (expected.get(outcome.name, {}).get(outcome.device, "pass") in PASSING)
    )


def updated_expected(outcomes: Sequence[Outcome], expected: Expected) -> str:
    """Return the text of the list with the outcomes of its cases replaced."""
    merged = {name: dict(devices) for name, devices in expected.items()}
    for outcome in outcomes:
        merged.setdefault(outcome.name, {})[outcome.device] = outcome.status
    rows = [
        f"  {json.dumps(name)}: {json.dumps(merged[name], sort_keys=True)}"
        for name in sorted(merged)
    ]
    return f'{{"version": {_VERSION}, "results": {{\n' + ",\n".join(rows) + "\n}}\n"
