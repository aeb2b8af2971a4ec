"""A report on a terminal: a table by operation and device, what fails, and what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import counted, printable
from .cases import PASSING, Outcome
from .changes import KINDS
from .report import Comparison, Report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = 40
"""The number of rows of the table; a JSON report has all."""


def show_report(report: Report) -> None:
    """Print a report on standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    if report.shard is not None:
        count, total = len(report.outcomes), report.run.total
        console.print(f"shard {report.shard}: {count} of {counted(total, 'result')}")
    console.print(render_table(report.outcomes))
    for name in report.missing:
        _say(console, f"missing: {name}", style="bold red")
    for title, chosen in (
        ("regressions", report.regressions),
        ("newly passing", report.newly_passing),
    ):
        rows = []
        for outcome in chosen:
            text = f"{outcome.name} on {outcome.device}: {outcome.status}"
            replay = "" if outcome.passes else outcome.replay
            rows.append((f"{text}: {outcome.message}" if outcome.message else text, replay))
        _show_list(console, title, rows)
    if report.comparison is not None:
        _show_comparison(console, report, report.comparison)


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(printable(text, keep="\n"), markup=False, soft_wrap=True, style=style)


def _show_list(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a group of cases with their replay commands."""
    if not rows:
        return
    console.print(f"\n{title}: {len(rows)}", style="bold")
    for text, replay in rows[:_SHOWN]:
        _say(console, f"  {text}")
        if replay:
            _say(console, f"    replay: {replay}")
    if len(rows) > _SHOWN:
        console.print(f"  and {len(rows) - _SHOWN} more (--json FILE has them all)")


def _table_of(first: str, devices: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(first, box=None, header_style="bold", pad_edge=False)
    for device in devices:
        table.add_column(Text(printable(device)))
    return table


def _show_comparison(console: Console, report: Report, comparison: Comparison) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.run.versions.items())
    _say(console, f"\nagainst {versions}", style="bold")
    if set(comparison.machines) != set(report.machines):
        before, now = (", ".join(m) or "unknown" for m in (comparison.machines, report.machines))
        _say(console, f"other processors: {before} -> {now}; floats may have other bits for that")
    changes = comparison.changes
    if not changes:
        console.print("nothing changed")
        return
    devices = list(dict.fromkeys(change.outcome.device for change in changes))
    counts = Counter((change.kind, change.outcome.device) for change in changes)
    table = _table_of("change", devices)
    for kind in KINDS:
        if any(counts[kind, device] for device in devices):
            table.add_row(kind, *(str(counts[kind, device] or "-") for device in devices))
    console.print(table)
    for kind in KINDS:
        # A replay can show these changes.
        has_replay = kind in ("regressed", "other status", "other numbers")
        rows = [
            (
                f"{change.outcome.name} on {change.outcome.device}: {change.text}",
                change.now.replay if has_replay and change.now is not None else "",
            )
            for change in changes
            if change.kind == kind
        ]
        _show_list(console, kind, rows)


def render_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table of operations and devices: passed of all, near ties, what did not pass."""
    from rich.text import Text

    devices = list(dict.fromkeys(outcome.device for outcome in outcomes))
    counts: dict[str, dict[str, Counter[str]]] = {}
    for outcome in outcomes:
        for key in (outcome.op, ""):
            cell = counts.setdefault(key, {}).setdefault(outcome.device, Counter())
            cell[outcome.status] += 1
            cell["near ties"] += outcome.near_ties
            cell["other reading"] += outcome.other_reading
    table = _table_of("operation", devices)
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
