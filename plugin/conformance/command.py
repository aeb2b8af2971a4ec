"""Engine of ``subquant conformance``: chooses cases, runs them, reports and judges."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np

from .. import __version__
from ..compiler.keys import code_digest
from ..core.reports import check_places, write_report
from ..core.versions import installed_versions
from ..errors import (
    EnvironmentProblem,
    InputError,
    UsageError,
    counted,
    expected_name,
    printable,
    quoted,
)
from ..isolation.command import exit_on_signals
from .cases import SYMBOL, Case, Outcome, prepare, programs_cases
from .options import RunOptions
from .report import (
    EXPECTED_FILE,
    Expected,
    Report,
    Run,
    digest_of_cases,
    digest_of_expected,
    judge,
    read_expected,
    updated_expected,
)
from .report_files import read_report, write_files
from .report_table import show_report
from .runner import DEVICES, Progress, machine, run_cases
from .shards import Plan, plan_run
from .suite import programs
from .suite_random import random_programs

Show = Callable[[int, str], None]
"""Shows the number of outcomes, and a state in rich's markup."""


def run(options: RunOptions, show_bar: Callable[[str, int], AbstractContextManager[Show]]) -> int:
    """Run the command and return its exit status; SubquantError for wrong options or files.

    `show_bar` shows the progress on a device, by its title and its total.
    """
    cases = _choose(options)
    plan = plan_run(cases, options.devices, options.part)
    if options.list:
        _list_names(cases, plan)
        return 0
    expected_file = Path(options.expected or EXPECTED_FILE)
    is_new = options.update_expected and not os.path.isfile(expected_file)
    expected: Expected = {} if is_new else read_expected(expected_file)
    check_places(options.json, options.junit)
    earlier = None if options.against is None else read_report(options.against)
    for device in options.devices:
        _check_device(device, is_here=options.cluster is None)
    which = _describe(options, cases, expected, plan)
    outcomes: list[Outcome] = []
    machines: set[str] = set()

    def report(missing: Sequence[str] = ()) -> Report:
        ordered = sorted(outcomes, key=lambda each: plan.numbers[each.device, each.name])
        saved = {} if options.save is None else _save(options.save, cases, ordered)
        replayable = [
            replace(o, replay=saved.get(o) or replay_command(o.name, o.device, options))
            for o in ordered
        ]
        return Report(
            which,
            tuple(replayable),
            tuple(plan.numbers[outcome.device, outcome.name] for outcome in replayable),
            judge(replayable, expected),
            tuple(sorted(machines)) or (machine(),),
            options.part,
            tuple(missing),
        )

    with exit_on_signals():
        try:
            for device, chosen in plan.chosen.items():
                with show_bar(f"conformance on {device}", len(chosen)) as show:
                    run_cases(
                        chosen, device, options.jobs, _recorder(outcomes, show),
                        cluster=options.cluster, machines=machines,
                    )  # fmt: skip
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal that ends the run
            total = sum(map(len, plan.chosen.values()))
            left = counted(total - len(outcomes), "result")
            show_report(report([f"{left}: the run was ended, and writes no files of results"]))
            raise
    final = report()
    if earlier is not None:
        pattern = _pattern(options)
        final = final.compared(
            earlier,
            is_chosen=lambda name: pattern.search(name) is not None,
            same_bits=options.same_bits,
        )
    show_report(final)
    write_files(final, options.json, options.junit)
    if options.update_expected:
        write_report(str(expected_file), updated_expected(final.outcomes, expected))
        return 0
    return final.exit_status


def _list_names(cases: Sequence[Case], plan: Plan) -> None:
    """Print the names of the cases, of a shard only its own."""
    names = {case.name for chosen in plan.chosen.values() for case in chosen}
    for case in cases:
        if plan.shard is None or case.name in names:
            print(printable(case.name))


def _recorder(outcomes: list[Outcome], show: Show) -> Progress:
    """Return a function that adds an outcome to a list, and shows how many of its own there are."""
    count = failed = 0

    def record(outcome: Outcome) -> None:
        nonlocal count, failed
        outcomes.append(outcome)
        count, failed = count + 1, failed + (not outcome.passes)
        show(count, f"[red]{failed} do not pass[/red]" if failed else "")

    return record


def _describe(options: RunOptions, cases: Sequence[Case], expected: Expected, plan: Plan) -> Run:
    """Say which run it is."""
    versions = {name: version or "none" for name, version in installed_versions().items()}
    return Run(
        {"subquant": __version__, "code": code_digest()[:16], **versions},
        options.devices,
        options.filter,
        options.random,
        options.strict,
        digest_of_cases(cases),
        digest_of_expected(expected),
        len(plan.numbers),
    )


def _pattern(options: RunOptions) -> re.Pattern[str]:
    try:
        return re.compile(options.filter)
    except re.error as error:
        raise UsageError(f"'{options.filter}' is no regular expression: {error}") from None


def _choose(options: RunOptions) -> list[Case]:
    pattern = _pattern(options)
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


def _check_device(device: str, *, is_here: bool) -> None:
    """Find out before anything runs that a device is not there; none is opened in this process."""
    from ..runtime import list_devices

    if device not in DEVICES and "://" not in device:
        raise UsageError(
            f"no device is named {quoted(device)}; "
            f"{expected_name(device, DEVICES, 'an IREE device URI or one of')}"
        )
    if device in ("interpreter", "llvm-cpu") or not is_here:
        return
    uris = [uri for uri, _ in list_devices()]
    if not any(uri == device or uri.startswith(f"{device}://") for uri in uris):
        raise EnvironmentProblem(
            f"no device '{device}'; IREE finds {', '.join(uris) or 'none'}; on Debian install "
            "libvulkan1 and mesa-vulkan-drivers for a software device"
        )


def _save(folder: str, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> dict[Outcome, str]:
    """Write the cases that do not pass, and say how to replay them."""
    by_name = {case.name: case for case in cases}
    commands = {}
    for outcome in outcomes:
        if outcome.passes:
            continue
        try:
            command = save_case(by_name[outcome.name], folder, outcome.device)
        except OSError as error:
            raise InputError(f"cannot write to '{folder}': {error.strerror}") from None
        if outcome.device != "interpreter":  # it ran another form of the program
            commands[outcome] = command
        print(printable(command), file=sys.stderr)
    return commands


# -- replay ----------------------------------------------------------------------------------------

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")


def replay_command(name: str, device: str, options: RunOptions) -> str:
    """Return the command that runs one case of a run again, quoted for a shell."""
    pattern = _SPECIAL.sub(r"\\\g<0>", name)
    words = ["subquant", "conformance", "--filter", f"^{pattern}$", "--device", device]
    if name.startswith("suite/random/"):
        words += ["--random", str(options.random)]
    if name.startswith(("stablehlo/", "tosa/")) and options.stablehlo is not None:
        words += ["--stablehlo", options.stablehlo]
    if name.startswith("llvm/") and options.llvm is not None:
        words += ["--llvm", options.llvm]
    if options.expected is not None:
        words += ["--expected", options.expected]
    return shlex.join(words)


def save_case(case: Case, folder: str | os.PathLike[str], device: str = "llvm-cpu") -> str:
    """Write a case's program and inputs, or raise OSError; return its replay command, quoted."""
    prepared = prepare(case)
    stem = re.sub(r"[^\w.-]+", "_", case.name)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    program = path / f"{stem}.mlir"
    program.write_text(prepared.text.replace(SYMBOL, "main"))
    if case.kind != "run":
        return shlex.join(["subquant", "compile", str(program), "--emit", "mlir"])
    words = ["subquant", "exec", str(program)]
    if device.partition("://")[0] == "vulkan":
        words += ["--target", "vulkan"]
    if "://" in device:
        words += ["--device", device]
    for number, array in enumerate(prepared.inputs):
        np.save(path / f"{stem}.{number}.npy", array, allow_pickle=False)
        words += ["--input", f"@{path / stem}.{number}.npy"]
    for number, golden in enumerate(prepared.goldens):
        np.save(path / f"{stem}.expected{number}.npy", golden.value, allow_pickle=False)
        words += ["--expect", f"@{path / stem}.expected{number}.npy"]
    return shlex.join(words)
