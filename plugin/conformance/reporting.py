"""What ``subquant report`` does with reports of conformance runs."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..reports import write_report
from .merging import merge_reports
from .report import Report
from .report_files import read_report, to_json, to_junit
from .report_table import show_report

__all__ = ["merge", "show", "write_files"]


def merge(
    files: Sequence[str],
    *,
    json: str | None = None,
    junit: str | None = None,
    against: str | None = None,
    same_bits: bool = False,
) -> int:
    """Put the reports of the parts of a run together; the rest is as of `show`."""
    merged = merge_reports([(file, read_report(file)) for file in files])
    return _finish(merged, json=json, junit=junit, against=against, same_bits=same_bits)


def show(
    file: str,
    *,
    json: str | None = None,
    junit: str | None = None,
    against: str | None = None,
    same_bits: bool = False,
) -> int:
    """Show a report.

    Args:
        file: the report.
        json, junit: files for it.
        against: an earlier report, which it is compared with.
        same_bits: fail also if results have other bits than in that one.

    Returns:
        The exit status.

    Raises:
        SubquantError: a file cannot be read or written, or has another form.
    """
    return _finish(read_report(file), json=json, junit=junit, against=against, same_bits=same_bits)


def _finish(
    report: Report,
    *,
    json: str | None,
    junit: str | None,
    against: str | None,
    same_bits: bool,
) -> int:
    """Compare, show and write a report, and return the exit status."""
    if same_bits and against is None:
        raise UsageError("--same-bits needs --against, the report that has the bits")
    if against is not None:
        before = read_report(against)
        # Of a run with another filter it is not known what this one would have chosen.
        is_same = before.run.filter == report.run.filter
        report = report.compared(before, is_chosen=lambda name: is_same, same_bits=same_bits)
    show_report(report)
    write_files(report, json, junit)
    return report.exit_status


def write_files(report: Report, json: str | None, junit: str | None) -> None:
    """Write a report as JSON and as JUnit XML, each if a file is given.

    Raises:
        InputError: a file cannot be written.
    """
    if json:
        write_report(json, to_json(report))
    if junit:
        write_report(junit, to_junit(report))
