"""``subquant conformance``."""

from __future__ import annotations

from typing import Any

import click

from ..errors import UsageError

__all__ = ["command"]


@click.command("conformance")
@click.option(
    "--stablehlo",
    default=None,
    metavar="PATH",
    help="Also the quantized test data of this StableHLO checkout.",
)
@click.option(
    "--llvm",
    default=None,
    metavar="PATH",
    help="Also the tests of the quant dialect of this LLVM checkout.",
)
@click.option(
    "--random",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also the first N programs drawn at random (operations, types, shapes).",
)
@click.option(
    "--device",
    "devices",
    default="llvm-cpu",
    show_default=True,
    metavar="DEVICES",
    help="Devices, with commas: llvm-cpu, vulkan, interpreter (StableHLO's own, on the "
    "float form: it checks the goldens), or IREE device URIs.",
)
@click.option(
    "--filter", "pattern", default="", metavar="REGEX", help="Only cases whose name has a match."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Processes.  [default: one a core]",
)
@click.option("--json", "json_file", default=None, metavar="FILE", help="Write JSON.")
@click.option("--junit", default=None, metavar="FILE", help="Write JUnit XML.")
@click.option(
    "--expected",
    default=None,
    metavar="FILE",
    help="The expected results.  [default: those that come with subquant]",
)
@click.option(
    "--update-expected",
    is_flag=True,
    help="Write what came out as the expected results of the cases that ran.",
)
@click.option("--strict", is_flag=True, help="Fail also if a case passes that is not expected to.")
@click.option(
    "--save",
    default=None,
    metavar="DIR",
    help="Write the program and inputs of each case that does not pass.",
)
@click.option("--list", "list_cases", is_flag=True, help="Show the names of the cases.")
def command(devices: str, json_file: str | None, **options: Any) -> None:
    """Run programs with known results on devices; fail if one does worse than expected.

    \b
    subquant conformance
    subquant conformance --device llvm-cpu,vulkan --filter dot_general
    subquant conformance --stablehlo ~/stablehlo --json out.json --junit out.xml
    """
    from ..conformance.command import Options, run

    names = tuple(name.strip() for name in devices.split(",") if name.strip())
    if not names:
        raise UsageError("expected at least one device for --device")
    click.get_current_context().exit(run(Options(devices=names, json=json_file, **options)))
