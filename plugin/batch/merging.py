"""Reading and merging of compile reports, into the report of one run over all models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from ..compiler.compile_options import CompileOptions, Emit
from ..core import reports
from ..errors import InputError, Place, UsageError, error_from_json, printable, quoted
from .report import Compilations, show_table, summary_line, write_reports
from .run import CompiledModel, Status


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
    """Merge reports, in the order of the arguments.

    Raises:
        InputError: versions or options differ, or two reports have the same model.
    """
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


def show_compilations(
    report: Compilations, *, json: str | None = None, junit: str | None = None
) -> int:
    """Print a report, write it, and return the exit status.

    Raises:
        InputError: a file cannot be written.
    """
    show_table(report.results)
    print(summary_line(report.results, report.seconds))
    write_reports(report, json, junit)
    return report.exit_status
