"""Reports of a batch: a table, JSON and JUnit XML, in the order of the input; their merging.

JSON in the format of `subquant.core.reports`::

    {"version": 1, "report": "compile",
     "summary": {"compiled": 17, "up-to-date": 180, "failed": 3, "not-run": 0},
     "seconds": 41.2, "emit": "vmfb", "options": {"target": "llvm-cpu", ...},
     "versions": {"subquant": "0.1.0", "torch-mlir": "20261001", ...},
     "results": [{"name": "models/a/x.mlir", "output": "out/models/a/x.vmfb",
                  "status": "compiled", "seconds": 1.1, "passes_seconds": 0.2,
                  "iree_seconds": 0.9, "cached": false, "size": 4123, "worker": "",
                  "message": "", "error": null}, ...]}

``message`` is the first line of an error as printed; ``error`` has class, message, location,
operation and notes. An up-to-date model has the times of its compilation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, get_args

from ..compiler.compile_options import CompileOptions, Emit
from ..core import reports
from ..errors import (
    InputError,
    Place,
    UsageError,
    error_from_json,
    error_to_json,
    printable,
    quoted,
)
from .run import CompiledModel, Status

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"compiled": "green", "up-to-date": "dim", "failed": "red", "not-run": "yellow"}


@dataclass(frozen=True)
class Compilations:
    """Results of a run."""

    results: tuple[CompiledModel, ...]
    options: CompileOptions
    emit: Emit
    seconds: float
    versions: Mapping[str, str | None]

    @property
    def exit_status(self) -> int:
        """0, or 1 if a model failed or was not run."""
        done = ("compiled", "up-to-date")
        return 0 if all(result.status in done for result in self.results) else 1


def _counts(results: Sequence[CompiledModel]) -> dict[str, int]:
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in get_args(Status)}


def write_reports(report: Compilations, json: str | None, junit: str | None) -> None:
    """Write the reports whose paths are given; InputError if a file cannot be written."""
    if json is not None:
        reports.write_report(json, to_json(report))
    if junit is not None:
        reports.write_report(junit, to_junit(report))


def to_json(report: Compilations) -> str:
    """Return the results as JSON text."""
    return reports.to_json(
        "compile",
        _counts(report.results),
        [_fields(result) for result in report.results],
        seconds=round(report.seconds, 3),
        emit=report.emit,
        options=asdict(report.options),
        versions=dict(report.versions),
    )


def _fields(result: CompiledModel) -> dict[str, Any]:
    return {
        "name": result.name,
        "output": os.fspath(result.output),
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "passes_seconds": round(result.passes_seconds, 3),
        "iree_seconds": round(result.iree_seconds, 3),
        "cached": result.is_cached,
        "size": result.size,
        "worker": result.worker,
        "message": _message(result),
        "error": None if result.error is None else error_to_json(result.error),
    }


def _message(result: CompiledModel) -> str:
    return "" if result.error is None else str(result.error).splitlines()[0]


def to_junit(report: Compilations) -> bytes:
    """Return the results as JUnit XML: a suite of the target, a class for each folder."""
    cases, label = [], report.options.label
    for result in report.results:
        folders = [part for part in PurePath(result.name).parent.parts if part not in ("/", "..")]
        failure = None if result.error is None else type(result.error).__name__
        message = "" if result.error is None else str(result.error)
        is_skipped = result.status == "not-run"
        cases.append(
            reports.Case(
                label,
                ".".join((label, *folders)),
                result.name,
                0.0 if result.status == "up-to-date" else result.seconds,
                failure,
                is_skipped,
                "the run ended before it was compiled" if is_skipped else message,
            )
        )
    return reports.to_junit("subquant compile", cases)


def summary_line(results: Sequence[CompiledModel], seconds: float) -> str:
    """Return the counts of each status: ``3 compiled, 1 failed in 2.5 s``."""
    counts = [f"{count} {status}" for status, count in _counts(results).items() if count]
    return f"{', '.join(counts) or 'no models'} in {seconds:.1f} s"


def show_table(results: Sequence[CompiledModel]) -> None:
    """Print the table on standard output."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(render_table(results))
        return
    titles = _titles(results)
    for line in reports.plain_table(titles, [_cells(each, titles) for each in results], _NUMBERS):
        print(line)


def render_table(results: Sequence[CompiledModel]) -> Table:
    """Return a table with a row for each model."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    titles = _titles(results)
    for number, title in enumerate(titles):
        is_text = title in ("model", "error")
        table.add_column(
            title,
            justify="right" if number in _NUMBERS else "left",
            no_wrap=not is_text,
            overflow="fold" if is_text else "ellipsis",
        )
    for result in results:
        name, status, *remaining = _cells(result, titles)
        colored = Text(status, _STYLES[result.status])
        table.add_row(Text(name), colored, *map(Text, remaining))
    return table


_NUMBERS = (2, 3, 4)
"""The columns of numbers."""


def _titles(results: Sequence[CompiledModel]) -> list[str]:
    has_errors = any(result.error is not None for result in results)
    return ["model", "status", "passes s", "IREE s", "bytes", *["error"] * has_errors]


def _cells(result: CompiledModel, titles: Sequence[str]) -> list[str]:
    """Return the row of a model."""
    is_compiled = result.status in ("compiled", "up-to-date")
    seconds = (result.passes_seconds, result.iree_seconds)
    cells = [
        printable(result.name),
        f"{result.status} (cache)" if result.is_cached else result.status,
        *(f"{each:.2f}" if is_compiled or each else "-" for each in seconds),
        f"{result.size:,}" if is_compiled else "-",
        printable(_message(result)),
    ]
    return cells[: len(titles)]


# -- reading and merging ---------------------------------------------------------------------------


def read_compilations(path: str | os.PathLike[str]) -> Compilations:
    """Read a report of ``subquant compile``; InputError if it is unreadable or has another form."""
    values = reports.read_report(path, "compile")
    report = reports.Fields(values, Place(os.fspath(path)), "the report")
    listed = enumerate(report.list("results"))
    emit = report.text("emit")
    if emit not in get_args(Emit):
        report.fail(f"has the unknown output format {quoted(emit)}")
    versions = report.object("versions").values
    if not all(version is None or isinstance(version, str) for version in versions.values()):
        report.fail("has a version that is not a string")
    return Compilations(
        tuple(_result_of(reports.Fields(v, report.place, f"result {n}")) for n, v in listed),
        _options_of(report.object("options")),
        emit,  # type: ignore[arg-type]
        report.seconds("seconds"),
        dict(versions),
    )


def _options_of(values: reports.Fields) -> CompileOptions:
    options: dict[str, Any] = {}
    for declared in fields(CompileOptions):
        old_name = declared.metadata.get("old_name", "")  # in reports of earlier versions
        name = declared.name if declared.name in values.values else old_name
        value = values.values.get(name, declared.default)
        if isinstance(declared.default, tuple) and isinstance(value, list):
            value = values.texts(name)
        if declared.default is not None and type(value) is not type(declared.default):
            values.fail(f"has no '{declared.name}' of the right kind")
        options[declared.name] = value
    try:
        return CompileOptions(**options)
    except (UsageError, TypeError, ValueError) as error:
        values.fail(f"are invalid: {getattr(error, 'message', error)}")


def _result_of(values: reports.Fields) -> CompiledModel:
    status = values.text("status")
    if status not in get_args(Status):
        values.fail(f"has the unknown status {quoted(status)}")
    error = None
    if values.values.get("error") is not None:
        try:
            error = error_from_json(values.object("error").values)
        except (KeyError, TypeError, ValueError):
            values.fail("has a malformed error")
    if (status == "failed") != (error is not None):
        values.fail(f"has the status '{status}' with{'' if error else 'out'} an error")
    return CompiledModel(
        values.text("name"),
        Path(values.text("output")),
        status,  # type: ignore[arg-type]
        values.seconds("passes_seconds"),
        values.seconds("iree_seconds"),
        values.count("size"),
        values.truth("cached"),
        error,
        values.text("worker"),
    )


def merge_compilations(named: Sequence[tuple[str, Compilations]]) -> Compilations:
    """Merge reports in their order; InputError for other versions or options, or a model twice."""
    first_name, first = named[0]
    seen: dict[str, str] = {}
    for name, report in named:
        for what, value, expected in (
            ("versions", dict(report.versions), dict(first.versions)),
            ("options", asdict(report.options), asdict(first.options)),
            ("outputs", {"--emit": report.emit}, {"--emit": first.emit}),
        ):
            differ = [
                f"{key} {value.get(key)}, not {expected.get(key)}"
                for key in {**expected, **value}
                if value.get(key) != expected.get(key)
            ]
            if differ:
                raise InputError(
                    f"{quoted(name)} was made with other {what} than {quoted(first_name)}: "
                    f"{printable(', '.join(differ))}"
                )
        for result in report.results:
            if result.name in seen:
                raise InputError(
                    f"{quoted(name)} and {quoted(seen[result.name])} both have the model "
                    f"{quoted(result.name)}"
                )
            seen[result.name] = name
    return replace(
        first,
        results=tuple(result for _, report in named for result in report.results),
        seconds=sum(report.seconds for _, report in named),
    )
