"""What ``subquant conformance`` does: choose cases, run them, show, write and judge."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import (
    EnvironmentProblem,
    InputError,
    UsageError,
    expected_name,
    printable,
    quoted,
)
from ..reports import write_report
from . import report
from .cases import Case, Outcome, programs_cases
from .options import RunOptions
from .replay import save_case
from .runner import DEVICES, Progress, run_cases
from .suite import programs
from .suite_random import random_programs

__all__ = ["run"]

_SHOWN = 40


def run(options: RunOptions) -> int:
    """Run the command and return its exit status.

    Raises:
        SubquantError: wrong options, or files that cannot be read or written.
    """
    cases = _choose(options)
    if options.list:
        for case in cases:
            print(printable(case.name))
        return 0
    expected_file = Path(options.expected or report.EXPECTED_FILE)
    expected: report.Expected = {}
    if os.path.isfile(expected_file) or not options.update_expected:
        expected = report.read_expected(expected_file)
    outcomes: list[Outcome] = []
    for device in options.devices:
        _check_device(device)
    with _cleaning_up():
        for device in options.devices:
            with _progress(f"conformance on {device}", len(cases)) as progress:
                jobs = options.jobs or os.cpu_count() or 1
                outcomes += run_cases(cases, device, jobs, progress)
    judgement = report.judge(outcomes, expected)
    _show(outcomes, judgement)
    if options.json:
        write_report(options.json, report.to_json(outcomes, judgement))
    if options.junit:
        write_report(options.junit, report.to_junit(outcomes, judgement))
    if options.save:
        _save(options.save, cases, outcomes)
    if options.update_expected:
        write_report(str(expected_file), report.updated_expected(outcomes, expected))
        return 0
    failed = judgement.regressions or (options.strict and judgement.newly_passing)
    return 1 if failed else 0


@contextlib.contextmanager
def _cleaning_up() -> Iterator[None]:
    """Let a signal end the processes that run cases, and remove their files."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                before[name] = signal.signal(getattr(signal, name), end)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _choose(options: RunOptions) -> list[Case]:
    try:
        pattern = re.compile(options.filter)
    except re.error as error:
        raise UsageError(f"'{options.filter}' is no regular expression: {error}") from None
    cases = programs_cases([*programs(), *random_programs(options.random)])
    if options.stablehlo is not None or options.llvm is not None:
        from .testdata import llvm_cases, stablehlo_cases, tosa_cases

        cases += stablehlo_cases(options.stablehlo) if options.stablehlo is not None else []
        cases += tosa_cases(options.stablehlo) if options.stablehlo is not None else []
        cases += llvm_cases(options.llvm) if options.llvm is not None else []
    chosen = [case for case in cases if pattern.search(case.name)]
    if not chosen:
        raise UsageError(
            f"no case matches '{options.filter}'; --list shows the names of all {len(cases)}"
        )
    return chosen


def _check_device(device: str) -> None:
    """Find out before anything runs that a device is not there; none is opened in this process."""
    from ..runtime import list_devices

    if device not in DEVICES and "://" not in device:
        raise UsageError(
            f"no device is named {quoted(device)}; "
            f"{expected_name(device, DEVICES, 'an IREE device URI or one of')}"
        )
    if device in ("interpreter", "llvm-cpu"):
        return
    found = [uri for uri, _ in list_devices()]
    if not any(uri == device or uri.startswith(f"{device}://") for uri in found):
        raise EnvironmentProblem(
            f"no device '{device}'; IREE finds {', '.join(found) or 'none'}; on Debian install "
            "libvulkan1 and mesa-vulkan-drivers for a software device"
        )


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Progress]:
    """Show how far the run is, on standard error and on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda outcome: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(title), total=total, failed="")
        failed = 0

        def advance(outcome: Outcome) -> None:
            nonlocal failed
            failed += not outcome.passes
            text = f"[red]{failed} do not pass[/red]" if failed else ""
            progress.update(task, advance=1, failed=text)

        yield advance


def _show(outcomes: Sequence[Outcome], judgement: report.Judgement) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(report.render_table(outcomes))
    for title, chosen in (
        ("regressions", judgement.regressions),
        ("newly passing", judgement.newly_passing),
    ):
        if not chosen:
            continue
        console.print(f"\n{title}: {len(chosen)}", style="bold")
        for outcome in chosen[:_SHOWN]:
            text = f"  {outcome.name} on {outcome.device}: {outcome.status}"
            text += f": {outcome.message}" if outcome.message else ""
            console.print(printable(text, keep="\n"), markup=False, soft_wrap=True)
        if len(chosen) > _SHOWN:
            console.print(f"  and {len(chosen) - _SHOWN} more (--json FILE has them all)")


def _save(folder: str, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> None:
    """Write the cases that do not pass, and say how to replay them."""
    by_name = {case.name: case for case in cases}
    for outcome in outcomes:
        if outcome.passes:
            continue
        try:
            command = save_case(by_name[outcome.name], folder, outcome.device)
        except OSError as error:
            raise InputError(f"cannot write to '{folder}': {error.strerror}") from None
        print(printable(command), file=sys.stderr)
