"""How long many compilations take on many machines, and what they cost: docs/scale.md.

    scripts/scale                                             the plan, from what was measured
    scripts/scale simulate --count 10000 --workers 100 --hits 0.9   a batch, event by event
    scripts/scale simulate --workers 100 --set file_latency=0.002 --set per_task=10
    scripts/scale validate                                    measured batches beside simulated ones
    scripts/scale measure                                     measure this machine: a table
    scripts/scale measure --write                             and write docs/scale.md anew
    scripts/scale measure --write --only models               networks of the folder SUBQUANT_MODELS

Let nothing run beside `measure`, which takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report
from .model import Batch, Prices, Site, estimate
from .simulation import simulate

_ROOT = Path(__file__).parents[2]
_DATA = _ROOT / "docs" / "scale.json"
_PAGE = _ROOT / "docs" / "scale.md"
_PARTS = ("programs", "cores", "overhead", "waiting", "files", "batches", "checks", "models")
_SHOWN = {"batches": "validation", "models": "programs"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, default=_DATA, metavar="FILE", help="what was measured"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("plan", help="tables of times, costs and limits (the default)")
    commands.add_parser("validate", help="measured batches beside simulated ones")
    one = commands.add_parser("simulate", help="one batch, event by event and by formulas")
    one.add_argument("--count", type=int, default=1000, help="compilations (default: 1000)")
    one.add_argument("--workers", type=int, default=10, help="default: 10")
    one.add_argument("--hits", type=float, default=0.0, help="share in the cache, 0 to 1")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument(
        "--set", action="append", default=[], metavar="FIELD=NUMBER", help="a field of model.Site"
    )
    for field in dataclasses.fields(Prices):
        one.add_argument(
            f"--price-{field.name}", type=float, default=field.default, metavar="DOLLARS",
            help=f"an hour (default: {field.default})",
        )  # fmt: skip
    measure = commands.add_parser("measure", help="measure this machine")
    measure.add_argument("--programs", type=int, default=48, help="of each batch (default: 48)")
    measure.add_argument(
        "--only", nargs="+", choices=_PARTS, help="these parts (default: all but models)"
    )
    measure.add_argument("--write", action="store_true", help="write the data and the page")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _site(measured: dict[str, Any], workers: int, fields: Sequence[str]) -> Site:
    known = {field.name: field for field in dataclasses.fields(Site)}
    changes: dict[str, Any] = {}
    for text in fields:
        name, _, value = text.partition("=")
        if name not in known:
            raise ValueError(f"no field is named {name!r}; there are {', '.join(known)}")
        whole = name in ("workers", "ahead", "per_task", "is_carried")
        changes[name] = int(value) if whole else float(value)
    return dataclasses.replace(report.plan_site(measured, workers), **changes)


def _simulate(measured: dict[str, Any], options: argparse.Namespace) -> None:
    site = _site(measured, options.workers, options.set)
    batch = Batch(options.count, report.mix_of(measured), options.hits)
    prices = Prices(
        **{
            field.name: getattr(options, f"price_{field.name}")
            for field in dataclasses.fields(Prices)
        }
    )
    run = simulate(batch.visits(site, options.seed), site, seed=options.seed)
    found = estimate(batch, site)
    for title, seconds, shares in (
        ("event by event", run.seconds, run.shares(site.workers)),
        ("by formulas", found.seconds, found.shares),
    ):
        busy = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        cost = prices.of(seconds, site.workers)
        print(f"{title}: {seconds:,.1f} s, {cost:,.2f} $; busy: {busy}")
    print(f"compiling: {found.cpu_seconds / 3600:,.2f} CPU hours; workers died {run.lost} times")


def _measure(measured: dict[str, Any], count: int, parts: Sequence[str]) -> None:
    """Put what is measured into `measured`."""
    from subquant.runtime.machine import describe_machine

    from . import measurement
    from .programs import make_programs, networks

    os.environ.pop("SUBQUANT_CACHE", None)
    programs = make_programs(count)
    if set(parts) - {"models", "checks"}:
        measured["machine"] = describe_machine()
        measured["busy"] = {"before": round(measurement.busy_share(), 3)}
    if "programs" in parts:
        measured["start"] = measurement.measure_start()
        measured["programs"] = measurement.measure_programs(programs, _say)
    if "models" in parts:
        measured["models"] = measurement.measure_programs(networks(), _say)
    if "cores" in parts:
        measured["cores"] = measurement.measure_cores(programs["matmul-0002"], _say)
    if "overhead" in parts:
        measured["overhead"] = measurement.measure_overhead(_say)
    if "waiting" in parts:
        measured["waiting"] = measurement.measure_waiting(_say)
    if "files" in parts:
        measured["files"] = (
            measurement.measure_files(programs["elementwise-0000"]) or measured["files"]
        )
    if "batches" in parts:
        measured["batches"] = measurement.measure_batches(programs, _say)
    if "busy" in measured:
        measured["busy"]["after"] = round(measurement.busy_share(), 3)
    if "checks" in parts:
        measured["checks"] = report.check(measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked for; 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    measured = json.loads(options.data.read_text()) if options.data.exists() else {}
    if options.command == "measure":
        _measure(measured, options.programs, options.only or _PARTS[:-1])
        if options.write:
            options.data.write_text(to_text(measured))
            _PAGE.write_text(report.write_sections(_PAGE.read_text(), measured))
            report.draw(_PAGE.parent, measured)
        for name in options.only or _PARTS[:-2]:
            print(report.SECTIONS[_SHOWN.get(name, name)](measured), end="\n\n")
        return 0
    if not measured:
        _say(f"error: nothing was measured yet ({options.data}); see scripts/scale measure")
        return 2
    if options.command == "simulate":
        try:
            _simulate(measured, options)
        except ValueError as error:
            _say(f"error: {error}")
            return 2
        return 0
    names = ("validation",) if options.command == "validate" else ("times", "costs", "limits")
    print("\n\n".join(report.SECTIONS[name](measured) for name in names))
    return 0


def to_text(measured: dict[str, Any]) -> str:
    """Return the data as JSON, a row of a table in a line."""
    lines = []
    for name, value in measured.items():
        if isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        elif isinstance(value, dict):
            rows = ",\n".join(
                f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()
            )
            lines.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
