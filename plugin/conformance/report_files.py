"""Report files: JSON in the format of `subquant.core.reports`, and JUnit XML.

JSON::

    {"version": 1, "report": "conformance",
     "summary": {"llvm-cpu": {"pass": 780, "wrong": 2, ...}, ...},
     "run": {"versions": {"subquant": "0.1.0", ...}, "devices": ["llvm-cpu"], "filter": "", ...,
             "total": 957},
     "shard": null or {"number": 2, "of": 4}, "missing": [], "machines": ["..."],
     "regressions": [[name, device], ...], "newly_passing": [[name, device], ...],
     "against": null or {"run": {...}, "machines": [...], "same_bits": false,
                         "changes": [{"kind": "regressed", "name": ..., "device": ...,
                                      "text": "pass -> wrong: ...", "before": {...}}, ...]},
     "results": [{"name": "suite/add/i8-i8-to-i8", "op": "add", "device": "llvm-cpu",
                  "status": "pass", "elements": 7, "near_ties": 0, "other_reading": 0,
                  "message": "", "seconds": 0.1, "digest": "90a4b2d1c0ffee00", "replay": "",
                  "number": 0}, ...]}

``run`` is `subquant.conformance.report.Run`, a result `subquant.conformance.cases.Outcome` with its
number in the whole run. Files are not trusted: the type of each field is checked.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, fields
from typing import Any, get_args

from ..core import reports
from ..errors import Place, quoted
from .cases import Key, Outcome, Status
from .options import MAX_SHARDS, Shard
from .report import Comparison, Report, Run

_KIND = "conformance"


def to_json(report: Report) -> str:
    """Return a report as JSON text."""
    summary: dict[str, Counter[str]] = {device: Counter() for device in report.run.devices}
    for outcome in report.outcomes:
        summary[outcome.device][outcome.status] += 1
    return reports.to_json(
        _KIND,
        {device: dict(counts) for device, counts in summary.items()},
        [
            {**_values(outcome), "number": number}
            for outcome, number in zip(report.outcomes, report.numbers, strict=True)
        ],
        run=asdict(report.run),
        shard=None if report.shard is None else asdict(report.shard),
        missing=list(report.missing),
        machines=list(report.machines),
        regressions=[[o.name, o.device] for o in report.regressions],
        newly_passing=[[o.name, o.device] for o in report.newly_passing],
        against=None if report.comparison is None else _against(report.comparison),
    )


def _values(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "seconds": round(outcome.seconds, 3)}


def _against(comparison: Comparison) -> dict[str, Any]:
    return {
        "run": asdict(comparison.run),
        "machines": list(comparison.machines),
        "same_bits": comparison.same_bits,
        "changes": [
            {
                "kind": change.kind,
                "name": change.outcome.name,
                "device": change.outcome.device,
                "text": change.text,
                "before": None if change.before is None else _values(change.before),
            }
            for change in comparison.changes
        ],
    }


def to_junit(report: Report) -> bytes:
    """Return the outcomes as JUnit XML: a suite a device, a class an operation.

    What fails the run is a failure; another case that does not pass is skipped, with its reason.
    A part that is missing is a failure of the suite ``shards``.
    """
    failures = {o.key for o in report.failures}
    changes = report.comparison.changes if report.comparison is not None else ()
    texts = {c.now.key: c.text for c in changes if c.now is not None and c.has_other_bits}
    cases = []
    for o in report.outcomes:
        failed = o.key in failures
        is_skipped = not o.passes and not failed
        message = f"expected {o.status}: {o.message}" if is_skipped else o.message
        kind: str = o.status
        if failed and o.passes:
            kind = "other bits" if o.key in texts else "passes"
            message = texts.get(o.key, "it is not expected to pass")
        cases.append(
            reports.Case(
                o.device, f"{o.device}.{o.op}", o.name, o.seconds, kind if failed else None,
                is_skipped, message, f"replay: {o.replay}" if o.replay else "",
            )
        )  # fmt: skip
    cases += [
        reports.Case("shards", "shards", name, 0.0, "missing", message="its report is not there")
        for name in report.missing
    ]
    return reports.to_junit("subquant conformance", cases)


# -- reading --------------------------------------------------------------------------------------


def read_report(path: str | os.PathLike[str]) -> Report:
    """Read a report of `to_json`, without its comparison; InputError if it has another form."""
    values = reports.Fields(reports.read_report(path, _KIND), Place(os.fspath(path)), "the report")
    run = _run_of(values.object("run"))
    results = [
        reports.Fields(v, values.place, f"result {n}") for n, v in enumerate(values.list("results"))
    ]
    outcomes = [_outcome_of(result) for result in results]
    numbers = [result.count("number") for result in results]
    if len(set(numbers)) != len(numbers) or max(numbers, default=-1) >= run.total:
        values.fail(f"has a number of a result twice, or one beyond the {run.total} of the run")
    passed, failed = ({o.key for o in outcomes if o.passes == passes} for passes in (True, False))
    if len(passed | failed) != len(outcomes):
        values.fail("has a case twice on one device")
    if any(outcome.device not in run.devices for outcome in outcomes):
        values.fail("has results on a device that its run does not have")
    shard = values.values.get("shard")
    return Report(
        run,
        tuple(outcomes),
        tuple(numbers),
        _named(values, "regressions", failed) | _named(values, "newly_passing", passed),
        values.texts("machines"),
        None if shard is None else _shard_of(values.object("shard")),
        values.texts("missing"),
    )


def _run_of(values: reports.Fields) -> Run:
    versions = values.object("versions").values
    if not all(isinstance(version, str) for version in versions.values()):
        values.fail("has a version that is no text")
    devices = values.texts("devices")
    if len(set(devices)) != len(devices):
        values.fail("has a device twice")
    return Run(
        dict(versions), devices, values.text("filter"), values.count("random"),
        values.truth("strict"), values.text("cases"), values.text("expected"),
        values.count("total"),
    )  # fmt: skip


def _shard_of(values: reports.Fields) -> Shard:
    shard = Shard(values.count("number"), values.count("of"))
    if not 1 <= shard.number <= shard.of <= MAX_SHARDS:
        values.fail(f"is {shard}, expected a part such as 1/4 of at most {MAX_SHARDS}")
    return shard


def _outcome_of(values: reports.Fields) -> Outcome:
    status = values.text("status")
    if status not in get_args(Status):
        values.fail(f"has the unknown status {quoted(status)}")
    values_of_fields: dict[str, Any] = {"status": status}
    for declared in fields(Outcome):
        if declared.type == "int":
            values_of_fields[declared.name] = values.count(declared.name)
        elif declared.type == "str":
            values_of_fields[declared.name] = values.text(declared.name)
    return Outcome(**values_of_fields, seconds=values.seconds("seconds"))


def _named(values: reports.Fields, field: str, known: set[Key]) -> frozenset[Key]:
    """Return a list of names and devices, all of which are known."""
    named = values.list(field)
    if not all(isinstance(pair, list) and tuple(map(str, pair)) in known for pair in named):
        values.fail(f"names an unknown result in '{field}'")
    return frozenset((str(name), str(device)) for name, device in named)


def write_files(report: Report, json: str | None, junit: str | None) -> None:
    """Write a report as JSON and JUnit XML, if a file is given; InputError if that fails."""
    if json:
        reports.write_report(json, to_json(report))
    if junit:
        reports.write_report(junit, to_junit(report))
