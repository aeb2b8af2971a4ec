"""What a run found: a table by operation and device, JSON, JUnit XML, and the expected results.

JSON, of the form of `subquant.reports`::

    {"version": 1, "report": "conformance",
     "summary": {"llvm-cpu": {"pass": 780, "wrong": 2, ...}, ...},
     "regressions": [...], "newly_passing": [...],
     "results": [{"name": "suite/add/i8-i8-to-i8", "op": "add", "device": "llvm-cpu",
                  "status": "pass", "elements": 7, "near_ties": 0, "other_reading": 0,
                  "message": "", "seconds": 0.1}, ...]}

Expected results (``expected.json``): name to device to status, one line a case.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import reports
from ..errors import InputError, printable
from ..formats.strict_json import load_json
from .cases import PASSING, Outcome

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "EXPECTED_FILE", "Expected", "Judgement", "judge", "read_expected", "render_table", "to_json",
    "to_junit", "updated_expected",
]  # fmt: skip

Expected = dict[str, dict[str, str]]
EXPECTED_FILE = Path(__file__).parent / "expected.json"
VERSION = 1


@dataclass(frozen=True)
class Judgement:
    """Outcomes against the expected results.

    Args:
        regressions: expected to pass, or not in the list, and not passing.
        newly_passing: passing, and not expected to.
    """

    regressions: tuple[Outcome, ...]
    newly_passing: tuple[Outcome, ...]


def read_expected(path: str | Path) -> Expected:
    """Read a list of expected results.

    Raises:
        InputError: the file cannot be read or has another form.
    """
    values = load_json(path, "the list of expected results")
    results = values.get("results")
    if not isinstance(results, dict) or values.get("version") != VERSION:
        raise InputError(
            f"'{path}' is no list of expected results of version {VERSION}; write one with "
            "--update-expected"
        )
    for name, devices in results.items():
        if not isinstance(devices, dict) or not all(isinstance(v, str) for v in devices.values()):
            raise InputError(f"'{path}' has no device and status for '{name}'")
    return results


def judge(outcomes: Sequence[Outcome], expected: Expected) -> Judgement:
    """Compare outcomes with expected results; a case that is not listed is expected to pass."""
    regressions, newly = [], []
    for outcome in outcomes:
        status = expected.get(outcome.name, {}).get(outcome.device)
        if outcome.passes:
            if status is not None and status not in PASSING:
                newly.append(outcome)
        elif status is None or status in PASSING:
            regressions.append(outcome)
    return Judgement(tuple(regressions), tuple(newly))


def updated_expected(outcomes: Sequence[Outcome], expected: Expected) -> str:
    """Return the text of a list with these outcomes in place of those of the same case."""
    merged = {name: dict(devices) for name, devices in expected.items()}
    for outcome in outcomes:
        merged.setdefault(outcome.name, {})[outcome.device] = outcome.status
    lines = [
        f"  {json.dumps(name)}: {json.dumps(merged[name], sort_keys=True)}"
        for name in sorted(merged)
    ]
    return f'{{"version": {VERSION}, "results": {{\n' + ",\n".join(lines) + "\n}}\n"


def to_json(outcomes: Sequence[Outcome], judgement: Judgement) -> str:
    """Return the outcomes as JSON text."""
    summary: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        summary.setdefault(outcome.device, Counter())[outcome.status] += 1
    return reports.to_json(
        "conformance",
        {device: dict(counts) for device, counts in summary.items()},
        [{**asdict(outcome), "seconds": round(outcome.seconds, 3)} for outcome in outcomes],
        regressions=[[o.name, o.device] for o in judgement.regressions],
        newly_passing=[[o.name, o.device] for o in judgement.newly_passing],
    )


def to_junit(outcomes: Sequence[Outcome], judgement: Judgement) -> bytes:
    """Return the outcomes as JUnit XML: a suite a device, a class an operation.

    A regression is a failure; another case that does not pass is skipped, with its reason.
    """
    regressions = {(o.name, o.device) for o in judgement.regressions}
    cases = []
    for o in outcomes:
        is_regression = (o.name, o.device) in regressions
        is_skipped = not o.passes and not is_regression
        message = f"expected {o.status}: {o.message}" if is_skipped else o.message
        cases.append(
            reports.Case(
                o.device, f"{o.device}.{o.op}", o.name, o.seconds,
                o.status if is_regression else None, is_skipped, message,
            )
        )  # fmt: skip
    return reports.to_junit("subquant conformance", cases)


def render_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table of operations and devices: passed of all, near ties, what did not pass."""
    from rich.table import Table
    from rich.text import Text

    devices = list(dict.fromkeys(outcome.device for outcome in outcomes))
    counts: dict[str, dict[str, Counter[str]]] = {}
    for outcome in outcomes:
        for key in (outcome.op, ""):
            cell = counts.setdefault(key, {}).setdefault(outcome.device, Counter())
            cell[outcome.status] += 1
            cell["near ties"] += outcome.near_ties
            cell["other reading"] += outcome.other_reading
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("operation")
    for device in devices:
        table.add_column(Text(printable(device)))
    for op in [*sorted(key for key in counts if key), ""]:
        cells = [_cell(counts.get(op, {}).get(device)) for device in devices]
        table.add_row(Text(printable(op or "all")), *cells, style=None if op else "bold")
    return table


_NOTES = ("near ties", "other reading")
"""Counts of elements, beside the counts of cases."""


def _cell(counts: Counter[str] | None) -> str:
    if not counts:
        return "[dim]-[/dim]"
    total = sum(count for status, count in counts.items() if status not in _NOTES)
    passed = sum(counts[status] for status in PASSING)
    text = f"{passed}/{total}"
    notes = [f"{counts[s]} {s}" for s in ("legalized", "refused") if counts[s]]
    notes += [f"{counts[s]} {s}" for s in _NOTES if counts[s]]
    failed = [f"{n} {s}" for s, n in counts.items() if s not in PASSING and s not in _NOTES]
    if notes:
        text += f" [dim]({', '.join(notes)})[/dim]"
    return f"{text} [red]{', '.join(failed)}[/red]" if failed else text
