"""``subquant report``: reports of runs, shown, put together and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .options import stacked

__all__ = ["command"]


@click.group("report")
def command() -> None:
    """Show reports of runs (--json), put those of parts together, compare them.

    \b
    subquant conformance --shard 1/2 --json 1.json
    subquant conformance --shard 2/2 --json 2.json
    subquant report merge 1.json 2.json --json all.json --junit all.xml
    subquant report show all.json --against before.json
    """


_options: Callable[[Callable[..., Any]], Callable[..., Any]] = stacked(
    [
        click.option("--json", metavar="FILE", help="Write JSON."),
        click.option("--junit", metavar="FILE", help="Write JUnit XML."),
        click.option(
            "--against",
            metavar="FILE",
            help="Show what changed since this report, and fail if a case passed there.",
        ),
        click.option(
            "--same-bits",
            is_flag=True,
            help="With --against: fail also if a result that passes has other bits.",
        ),
    ]
)


@command.command("merge")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_options
def merge(files: tuple[str, ...], **options: Any) -> None:
    """Put the reports of the parts of a run together, and fail as the whole run would.

    Of conformance, what comes out is what the undivided run would have written, but for the
    times. A part that is missing is named, and the exit status is 1. Reports of other versions,
    or of other cases, are an error. Those of the same cases on other devices are put side by side.

    Of compile, the models are those of all reports, in the order of the files; the same model
    twice, other versions and other options are an error.

    \b
    subquant report merge 1.json 2.json 3.json 4.json --json all.json --junit all.xml
    """
    _report(files, options)


@command.command("show")
@click.argument("file", metavar="FILE")
@_options
def show(file: str, **options: Any) -> None:
    """Show a report as the run did that wrote it, and fail as that did.

    \b
    subquant report show all.json
    subquant report show all.json --against before.json
    """
    _report((file,), options, as_parts=False)


def _report(files: tuple[str, ...], options: dict[str, Any], *, as_parts: bool = True) -> None:
    from ..core.reports import read_report
    from ..errors import InputError, Place, UsageError, quoted

    if options["same_bits"] and options["against"] is None:
        raise UsageError("--same-bits needs --against, the report that has the bits")
    kind = read_report(files[0])["report"]
    if kind == "conformance":
        from ..conformance.merging import merge_reports
        from ..conformance.report_files import read_report as read
        from ..conformance.reporting import finish

        found = [(file, read(file)) for file in files]
        status = finish(merge_reports(found) if as_parts else found[0][1], **options)
    elif kind == "compile":
        from ..batch import merging

        if options.pop("against") is not None:
            raise UsageError("--against compares reports of conformance, and this is of compile")
        del options["same_bits"]
        named = [(file, merging.read_compilations(file)) for file in files]
        status = merging.show_compilations(merging.merge_compilations(named), **options)
    else:
        expected = "expected one of 'conformance' or 'compile'"
        raise InputError(f"is a report of {quoted(kind)}, {expected}", Place(files[0]))
    click.get_current_context().exit(status)
