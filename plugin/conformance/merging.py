"""Merging of the reports of shards, into the report of the undivided run.

Reports of the same versions and cases on different devices are put together too, in the order in
which they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError, printable, quoted
from .cases import Key, Outcome
from .report import Report

_SAME = ("filter", "random", "strict", "cases", "expected")
"""The fields of `Run` that all reports have in common, the versions and the devices aside."""

_Named = tuple[str, Report]


def merge_reports(named: Sequence[_Named]) -> Report:
    """Put reports together; InputError if they are of different runs, or have the same results.

    There is at least one, each with the name of its file. A part that is not there is in `missing`
    of the report of the whole run.
    """
    for other in named[1:]:
        _check_same(named[0], other)
    groups: dict[tuple[str, ...], list[_Named]] = {}
    for name, report in named:
        groups.setdefault(report.run.devices, []).append((name, report))
    names: dict[str, str] = {}  # of the first report with each device
    for devices, [(name, _), *_] in groups.items():
        for device in devices:
            if device in names:
                raise InputError(
                    f"{quoted(name)} is of a run on {', '.join(map(quoted, devices))}, and "
                    f"{quoted(names[device])} of another one with {quoted(device)}"
                )
            names[device] = name
    numbered: dict[int, Outcome] = {}
    missing: list[str] = []
    total = 0
    for group in groups.values():
        results, absent = _merge_parts(group)
        numbered |= {total + number: results[number] for number in sorted(results)}
        missing += absent
        total += group[0][1].run.total
    return Report(
        replace(named[0][1].run, devices=tuple(names), total=total),
        tuple(numbered.values()),
        tuple(numbered),
        frozenset[Key]().union(*(report.unexpected for _, report in named)),
        tuple(sorted({machine for _, report in named for machine in report.machines})),
        missing=tuple(missing),
    )


def _check_same(first: _Named, other: _Named) -> None:
    (name, report), (other_name, other_report) = first, other
    run, other_run = report.run, other_report.run
    packages = dict.fromkeys((*other_run.versions, *run.versions))
    pairs = [
        (package, *(each.versions.get(package, "none") for each in (run, other_run)))
        for package in packages
    ]
    differ = [f"{package} {new}, not {old}" for package, old, new in pairs if old != new]
    if differ:
        raise InputError(
            f"{quoted(other_name)} was made with other versions than {quoted(name)}: "
            f"{', '.join(printable(each) for each in differ)}; to compare versions, use --against"
        )
    for field in _SAME:
        value, other_value = getattr(run, field), getattr(other_run, field)
        if value == other_value:
            continue
        what = {
            "cases": "its cases are others, of other checkouts, say",
            "expected": "its list of expected results is another one",
        }.get(field, f"--{field} is {other_value!r}, not {value!r}")
        raise InputError(
            f"{quoted(other_name)} is of another run than {quoted(name)}: {printable(what)}"
        )


def _merge_parts(group: Sequence[_Named]) -> tuple[dict[int, Outcome], list[str]]:
    """Return the numbered outcomes of the shards of one run, and the names of missing parts."""
    first_name, first = group[0]
    names: dict[int, str] = {}
    for name, report in group:
        number, of = (1, 1) if report.shard is None else (report.shard.number, report.shard.of)
        if of != (1 if first.shard is None else first.shard.of):
            raise InputError(
                f"{quoted(name)} is {_part(report)}, and {quoted(first_name)} is {_part(first)} "
                "of the same run"
            )
        if report.run.total != first.run.total:
            raise InputError(
                f"{quoted(name)} is a part of a run with {report.run.total} results, and "
                f"{quoted(first_name)} of one with {first.run.total}"
            )
        if number in names:
            raise InputError(
                f"{quoted(name)} and {quoted(names[number])} have the same results: both are "
                f"{_part(report)}"
            )
        names[number] = name
    count = 1 if first.shard is None else first.shard.of
    missing = [
        f"shard {number}/{count} on {', '.join(first.run.devices)}"
        for number in range(1, count + 1)
        if number not in names
    ]
    missing += [name for _, report in group for name in report.missing]
    numbered: dict[int, Outcome] = {}
    for name, report in group:
        for number, outcome in zip(report.numbers, report.outcomes, strict=True):
            if number in numbered:
                raise InputError(f"{quoted(name)} has results that another part has, too")
            numbered[number] = outcome
    if len({outcome.key for outcome in numbered.values()}) != len(numbered):
        raise InputError(f"{quoted(first_name)} and another part have the same results")
    if not missing and len(numbered) != first.run.total:
        missing = [f"{first.run.total - len(numbered)} of {first.run.total} results"]
    return numbered, missing


def _part(report: Report) -> str:
    return "all of a run" if report.shard is None else f"shard {report.shard}"
