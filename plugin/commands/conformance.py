"""``subquant conformance``."""

from __future__ import annotations

from typing import Any

import click

from ..conformance.options import MAX_JOBS, MAX_RANDOM_PROGRAMS, RunOptions
from .console import show_bar
from .shared_options import options_of


@click.command("conformance")
@options_of(
    RunOptions,
    random={"type": click.IntRange(0, MAX_RANDOM_PROGRAMS)},
    jobs={"type": click.IntRange(1, MAX_JOBS)},
)
def command(**options: Any) -> None:
    """Run programs with known results on devices; fail on regressions.

    \b
    subquant conformance
    subquant conformance --device llvm-cpu,vulkan --filter dot_general
    subquant conformance --stablehlo ~/stablehlo --json out.json --junit out.xml
    """
    from ..conformance.command import run

    click.get_current_context().exit(run(RunOptions(**options), show_bar))
