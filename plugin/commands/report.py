"""``subquant report``: show, merge and compare JSON reports."""

from __future__ import annotations

from typing import Any

import click

from ..conformance.options import RunOptions
from .shared_options import options_of


@click.group("report")
def command() -> None:
    """Show, merge and compare JSON reports of compile and conformance.

    \b
    subquant conformance --shard 1/2 --json 1.json
    subquant conformance --shard 2/2 --json 2.json
    subquant report merge 1.json 2.json --json all.json --junit all.xml
    subquant report show all.json --against before.json
    """


_options = options_of(
    RunOptions,
    only=("json", "junit", "against", "same_bits"),
    against={"help": "Compare with this earlier report; fail if a case no longer passes."},
)


@command.command("merge", short_help="Merge the reports of the shards of a run.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_options
def merge(files: tuple[str, ...], **options: Any) -> None:
    """Merge the reports of the shards of a run; exit as the undivided run would.

    Merged reports of conformance equal the report of the undivided run, except for times. A missing
    shard is named, and the exit status is 1. Different versions or different cases are an error;
    reports of the same cases on other devices are shown side by side.

    Merged reports of compile have the models of all files, in the order of the files. A model that
    occurs twice, different versions and different options are an error.

    \b
    subquant report merge 1.json 2.json 3.json 4.json --json all.json --junit all.xml
    """
    _report(files, options)


@command.command("show", short_help="Show a report as the run that wrote it did.")
@click.argument("file", metavar="FILE")
@_options
def show(file: str, **options: Any) -> None:
    """Show a report as the run that wrote it did, with the same exit status.

    \b
    subquant report show all.json
    subquant report show all.json --against before.json
    """
    _report((file,), options, as_shards=False)


def _report(files: tuple[str, ...], options: dict[str, Any], *, as_shards: bool = True) -> None:
    from ..core.reports import read_report
    from ..errors import InputError, Place, UsageError, quoted

    if options["same_bits"] and options["against"] is None:
        raise UsageError("--same-bits needs --against, the report to compare with")
    kind = read_report(files[0])["report"]
    if kind == "conformance":
        from ..conformance import report_files
        from ..conformance.merging import merge_reports
        from ..conformance.report_table import show_report

        reports = [(file, report_files.read_report(file)) for file in files]
        report = merge_reports(reports) if as_shards else reports[0][1]
        if options["against"] is not None:
            before = report_files.read_report(options["against"])
            # The cases that another filter would have chosen are unknown.
            is_same = before.run.filter == report.run.filter
            report = report.compared(
                before, is_chosen=lambda name: is_same, same_bits=options["same_bits"]
            )
        show_report(report)
        report_files.write_files(report, options["json"], options["junit"])
        status = report.exit_status
    elif kind == "compile":
        from ..batch import report as batch_report

        if options["against"] is not None:
            raise UsageError(
                "--against compares reports of conformance, and this report is of compile"
            )
        named = [(file, batch_report.read_compilations(file)) for file in files]
        merged = batch_report.merge_compilations(named)
        batch_report.show_table(merged.results)
        print(batch_report.summary_line(merged.results, merged.seconds))
        batch_report.write_reports(merged, options["json"], options["junit"])
        status = merged.exit_status
    else:
        expected = "expected one of 'conformance' or 'compile'"
        raise InputError(f"is a report of {quoted(kind)}, {expected}", Place(files[0]))
    click.get_current_context().exit(status)
