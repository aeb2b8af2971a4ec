"""Engine of ``subquant report`` for the report of a conformance run."""

from __future__ import annotations

from ..core.reports import write_report
from .report import Report
from .report_files import read_report, to_json, to_junit
from .report_table import show_report


def finish(
    report: Report,
    *,
    json: str | None,
    junit: str | None,
    against: str | None,
    same_bits: bool,
) -> int:
    """Compare, show and write a report.

    Args:
        report: the report.
        json, junit: files to write.
        against: an earlier report, which it is compared with.
        same_bits: fail also if results have other bits than in that one.

    Returns:
        The exit status.

    Raises:
        SubquantError: a file cannot be read or written, or has another form.
    """
    if against is not None:
        before = read_report(against)
        # The cases that another filter would have chosen are unknown.
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
