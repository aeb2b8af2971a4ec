"""``subquant report``: reports as files, shown, put together and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .options import stacked

__all__ = ["command"]


@click.group("report")
def command() -> None:
    """Show reports of conformance runs, put those of parts together, compare them.

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

    What comes out is what the undivided run would have written, but for the times. A part that is
    missing is named, and the exit status is 1. Reports of other versions, or of other cases, are
    an error. Those of the same cases on other devices are put side by side.

    \b
    subquant report merge 1.json 2.json 3.json 4.json --json all.json --junit all.xml
    """
    from ..conformance import reporting

    click.get_current_context().exit(reporting.merge(files, **options))


@command.command("show")
@click.argument("file", metavar="FILE")
@_options
def show(file: str, **options: Any) -> None:
    """Show a report as the run did that wrote it, and fail as that did.

    \b
    subquant report show all.json
    subquant report show all.json --against before.json
    """
    from ..conformance import reporting

    click.get_current_context().exit(reporting.show(file, **options))
