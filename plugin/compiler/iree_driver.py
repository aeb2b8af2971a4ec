"""Driver of IREE's compiler, which runs as a process of its own: a crash there is an exit code."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.cpu_features import KNOWN_FEATURES, cpuinfo_features, simulated_host_cpu
from ..core.files import write_atomically
from ..core.versions import PINNED_VERSIONS
from ..errors import (
    CompilerError,
    EnvironmentProblem,
    Place,
    SubquantError,
    UsageError,
    expected_name,
    quoted,
)
from ..iree_hooks import session
from ..isolation.cancellation import current_work
from ..isolation.command import CommandResult, run_supervised
from .compile_options import CompileOptions
from .mlir_client import text_of
from .targets import IREE_VULKAN_TARGETS, VULKAN_TARGETS


def compiler_path() -> str:
    """Return the path of ``iree-compile``; EnvironmentProblem if it is not installed."""
    path = os.path.join(_package_folder(), "_mlir_libs", "iree-compile")
    if os.access(path, os.X_OK) and "IREE_TOOL_PATH" not in os.environ:
        return path
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool("iree-compile"))


def _package_folder() -> str:
    """Return the folder of the compiler's package without an import, which would load an MLIR."""
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ImportError:
        spec = None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        version = PINNED_VERSIONS["iree-base-compiler"]
        raise EnvironmentProblem(
            f"IREE's compiler is not installed; run: pip install iree-base-compiler=={version}"
        )
    return folders[0]


_REMAINDER_STRATEGY_FLAG = "iree-llvmcpu-vector-pproc-strategy"
"""The flag of the strategy for remainder loops: peel or mask."""
_HOISTING_FLAG = "iree-opt-const-expr-hoisting"
"""The flag of computing constant expressions before the first call."""
_BRANCHES_FLAG = "--iree-preprocessing-pass-pipeline=builtin.module(util.func(convert-scf-to-cf))"
"""The flag that replaces structured loops by branches between blocks."""
_REMEDIES = (
    (
        "--iree-dispatch-creation-fuse-multi-use=false",
        (
            b"exceeded stack allocation limit",
            b"write affecting operations on global resources are restricted",
        ),
    ),
    (
        _BRANCHES_FLAG,
        (
            b"maximum iteration count exceeded in fixed point pipeline",
            b"region branch point has",
            b"failed to legalize unresolved source materialization",
        ),
    ),
)
"""Flags, each with parts of the messages about modules that IREE compiles with it."""


_WHILE = b"while\0"
"""The name of ``while`` loops in bytecode."""

VERIFIES_EACH_PASS = False
"""True to have IREE's compiler verify a module after each of its passes in all attempts."""


def run_iree(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None = None,
    *,
    peels_loops: bool = False,
    hoists_constants: bool = True,
    with_workers: bool = False,
    worker_program: bytes = b"",
) -> bytes:
    """Compile a module: with peeled remainder loops first, then as IREE does by default.

    IREE 3.13 refuses a CPU dispatch that needs more than 32 KiB of stack. It allocates rows of
    intermediate tensors there if it fuses a reduction with an operation whose result is returned,
    or read by another dispatch, too: a residual sum and its layer norm, for 128x384 and more. It
    also refuses some dispatches with several results, for example if a model returns all tensors. A
    module that is refused for either reason is compiled again without these fusions.

    IREE 3.13 refuses a ``while`` loop, or crashes, if the loop yields fewer tensors than it carries
    once unneeded ones are removed (ConvertToStream assumes the same types), or if a pass adds a
    wait that another pass removes (ElideTimepoints). The module is compiled again with branches
    instead of structured loops. `_REMEDIES` has the flags of both.

    Flags of the user may make IREE's compiler print, as ``--mlir-print-ir-after-all`` does: the
    messages of the attempt that succeeds go to standard error.

    A session verifies the module after each pass in the last attempt only, whose messages count
    (`subquant.iree_hooks.session`), and in all attempts if the module has a ``while`` loop.

    Args:
        reproducer: the file for the module if IREE fails; by default ``subquant.reproducer.mlir``
            in the current folder.
        peels_loops: peel remainder loops, unless a flag says otherwise or IREE then refuses the
            module.
        hoists_constants: compute constant expressions before the first call, unless a flag says
            otherwise; they are where IREE fails without.
        with_workers: add a worker pool (`subquant.iree_hooks`), for a CPU; only for options with
            `uses_session`.
        worker_program: the result of `compile_worker_program`, if it is in the cache.

    Raises:
        EnvironmentProblem: IREE's compiler is not installed.
        CompilerError: it refused the module, or crashed.
        UsageError: it does not know the target.
    """
    flags, files = options.flags, {"module.mlirbc": bytecode}
    workers: str | dict[str, str] = session.COMPILE_WORKER_PROGRAM if with_workers else ""
    if with_workers and worker_program:
        workers, files = {"file": "threads.vmfb"}, {**files, "threads.vmfb": worker_program}
    attempts = [flags]
    if peels_loops and not any(_REMAINDER_STRATEGY_FLAG in flag for flag in flags):
        # Unmasked vectors may exceed IREE's bound for vectors: the default is the next attempt.
        attempts.insert(0, [f"--{_REMAINDER_STRATEGY_FLAG}=peel", *flags])
    if not (hoists_constants or any(_HOISTING_FLAG in flag for flag in flags)):
        attempts.insert(0, [f"--{_HOISTING_FLAG}=false", *attempts[0]])
    verification = [session.VERIFY_FLAG] if uses_session(options) else []
    if VERIFIES_EACH_PASS or _WHILE in bytecode:
        attempts = [[*verification, *each] for each in attempts]
    elif verification:
        attempts.append([*verification, *attempts[-1]])
    for each in attempts:
        result = _run_compiler(files, options, workers, each)
        while (remedy := _remedy(result, each)) is not None:
            each = [remedy, *each]
            result = _run_compiler(files, options, workers, each)
        if result.status == 0 and result.output is not None:
            if options.iree_flags and sys.stderr is not None:
                sys.stderr.write(result.stderr.decode(errors="replace"))
            return result.output
    raise _compiler_error(bytecode, options, reproducer, result)


def _remedy(result: CommandResult, flags: Sequence[str]) -> str | None:
    """The flag with which IREE may compile a module that it refused; None if there is none."""
    for flag, messages in _REMEDIES:
        is_refused = any(message in result.stderr for message in messages)
        if is_refused or (result.status < 0 and flag == _BRANCHES_FLAG):
            name = flag.partition("=")[0]
            if not any(each.startswith(name) for each in flags):
                return flag
    return None


def _run_compiler(
    files: Mapping[str, bytes],
    options: CompileOptions,
    workers: str | dict[str, str],
    flags: Sequence[str],
) -> CommandResult:
    """Run IREE's compiler on the module in `files`; `workers` is the session's argument."""
    module, output = {"file": "module.mlirbc"}, "module.vmfb"
    command: list[str | dict[str, str]]
    if uses_session(options):
        command = [*session_command(), module, {"file": output}, workers, *flags]
    else:
        command = [compiler_path(), module, "-o", {"file": output}, *flags]
    return run_supervised(command, files, output=output, variables=_variables())


def session_command() -> list[str]:
    """Return the command of the session; ``-S`` spares Python the search for other packages."""
    packages = os.path.dirname(os.path.dirname(_package_folder()))
    return [sys.executable, "-S", session.__file__, packages]


def compile_worker_program(options: CompileOptions) -> bytes:
    """Compile the worker program, the same for all modules of the options; b"" if IREE fails."""
    output_name = "threads.vmfb"
    command: list[str | dict[str, str]]
    command = [*session_command(), "", {"file": output_name}, "", *options.flags]
    result = run_supervised(command, {}, output=output_name, variables=_variables())
    return (result.output or b"") if result.status == 0 else b""


def uses_session(options: CompileOptions) -> bool:
    """True for subquant's flags and the package's compiler: a session knows no other flags."""
    return not (options.iree_flags or "IREE_TOOL_PATH" in os.environ)


_TASK_COUNT_VARIABLE = "IREE_COMPILER_TASK_COUNT"
_IREE_MAX_TASKS = 12
"""The parallel tasks of IREE's compiler by default, if there are as many cores."""


def _variables() -> dict[str, str]:
    """Return environment variables that limit the compiler to the cores of this work."""
    cores = current_work().cores
    if cores is None or cores >= _IREE_MAX_TASKS or _TASK_COUNT_VARIABLE in os.environ:
        return {}
    return {_TASK_COUNT_VARIABLE: str(cores)}


_CPU_FEATURES = re.compile(r'cpu_features = "([^"]*)"')


def target_features(options: CompileOptions) -> frozenset[str]:
    """Return the features of the CPU of a compilation, by LLVM's names.

    Raises:
        EnvironmentProblem: IREE's compiler is not installed.
        UsageError: LLVM does not know the CPU.
    """
    return _features_of_flags(options, tuple(options.flags))


@functools.cache
def _features_of_flags(options: CompileOptions, flags: tuple[str, ...]) -> frozenset[str]:
    input_name, output_name = "module.mlir", "targets.mlir"
    command: list[str | dict[str, str]]
    command = [compiler_path(), {"file": input_name}, "-o", {"file": output_name}, *flags]
    command.append("--compile-to=executable-sources")
    result = run_supervised(command, {input_name: b"module {}"}, output=output_name)
    unknown = _unknown_target(result.stderr.decode(errors="replace"), options)
    if unknown is not None:
        raise unknown
    match = _CPU_FEATURES.search((result.output or b"").decode(errors="replace"))
    written = match.group(1).split(",") if match else []  # a later one counts
    state = {feature[1:]: feature[0] for feature in written if feature}
    return frozenset(name for name, sign in state.items() if sign == "+")


def check_vulkan_target(options: CompileOptions) -> None:
    """Raise UsageError for a Vulkan target that IREE does not know.

    IREE's compiler has to be run for the names of products only: those of architectures are listed.
    """
    is_listed = options.vulkan_target in (*VULKAN_TARGETS, *IREE_VULKAN_TARGETS)
    if options.target == "vulkan" and not is_listed:
        _features_of_flags(options, tuple(options.flags))


# -- features that the executable records ----------------------------------------------------------
#
# IREE's runtime does not check features, and a CPU that lacks an instruction ends the process at
# it: the executable records them for the check at load time. Code for ``generic`` needs no
# features. Without ``/proc/cpuinfo`` nothing is recorded.


@functools.cache
def host_features() -> frozenset[str] | None:
    """Return the features of this machine's CPU, by LLVM's names; None if they are unknown."""
    if simulated_host_cpu():
        return target_features(CompileOptions()) & KNOWN_FEATURES
    return cpuinfo_features()


def simulated_features(
    arguments: dict[str, Any], blobs: list[bytes], steps: object
) -> tuple[list[str], list[bytes]]:
    """Return the features of the CPU ``cpu`` that is simulated: for `runtime`, in a child."""
    name, _, changes = arguments["cpu"].partition(",")
    flags = (f"--iree-llvmcpu-target-cpu-features={changes}",) if changes else ()
    features = target_features(CompileOptions(target_cpu=name, iree_flags=flags))
    return sorted(features & KNOWN_FEATURES), []


def recorded_features(options: CompileOptions) -> str:
    """Return the features that code may use, separated by commas; errors as `target_features`."""
    if options.target != "llvm-cpu":
        return ""
    if not any(flag.startswith("--iree-llvmcpu-target") for flag in options.iree_flags):
        if options.target_cpu == "generic":
            return ""
        if options.target_cpu == "host":
            return ",".join(sorted(host_features() or ()))
    return ",".join(sorted(KNOWN_FEATURES & target_features(options)))


# -- errors ----------------------------------------------------------------------------------------

_UNKNOWN_CPU = re.compile(
    r"Unknown CPU for target architecture (\S+)\.\s+List of accepted CPUs: ([^\n]*)"
)
_UNKNOWN_VULKAN = re.compile(r"Unknown Vulkan target '(.*)'")
_UNKNOWN_FLAG = re.compile(r"Unknown command line argument '(.*?)'")
_SIMILAR_FLAG = re.compile(r"Did you mean '(--.*?)'")


def _unknown_target(stderr: str, options: CompileOptions) -> UsageError | None:
    """Return an error for an unknown target, which IREE's compiler warns of before it crashes."""
    match = _UNKNOWN_CPU.search(stderr)
    if match is not None:
        names = ["host", "generic", *match.group(2).split(", ")]
        cpu = options.target_cpu
        if cpu == "host":  # of which LLVM knows that of this machine
            cpu = simulated_host_cpu().partition(",")[0]
        return UsageError(
            f"LLVM knows no CPU {quoted(cpu)} of {match.group(1)}; {expected_name(cpu, names)}"
        )
    if _UNKNOWN_VULKAN.search(stderr) is not None:
        names = [*VULKAN_TARGETS, "auto", *IREE_VULKAN_TARGETS]
        return UsageError(
            f"IREE knows no Vulkan target {quoted(options.vulkan_target)}; "
            f"{expected_name(options.vulkan_target, names)}"
        )
    flag = _UNKNOWN_FLAG.search(stderr)
    if flag is not None and options.iree_flags:
        similar = _SIMILAR_FLAG.search(stderr)
        hint = f"; did you mean {quoted(similar.group(1))}?" if similar else ""
        return UsageError(f"--iree-flag: iree-compile has no flag {quoted(flag.group(1))}{hint}")
    return None


def _compiler_error(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None,
    result: CommandResult,
) -> SubquantError:
    """Return the error of a compilation, and write a reproducer unless the target is unknown."""
    stderr = result.stderr.decode(errors="replace")
    unknown = _unknown_target(stderr, options)
    if unknown is not None:
        return unknown
    path = Path(reproducer or "subquant.reproducer.mlir")
    replay = shlex.join(["iree-compile", str(path), "-o", os.devnull, *options.flags])
    text = text_of(bytecode)
    try:
        write_atomically(path, f"// {replay}\n{text}\n".encode())
        where = f"replay with: {replay}"
    except OSError as error:
        where = f"no reproducer was written to '{path}': {error.strerror}"
    first = next((line for line in stderr.splitlines() if ": error: " in line), None)
    if result.status < 0:
        message, location = f"IREE's compiler crashed (signal {-result.status})", None
    elif first is not None:
        position, _, reason = first.partition(": error: ")
        message, location = f"IREE refused the module: {reason}", _location_of(position)
    else:
        tail = stderr.strip().splitlines()[-1:] or ["no message"]
        message = f"IREE's compiler failed with status {result.status}: {tail[0]}"
        location = None
    return CompilerError(message, location, (where,))


def _location_of(position: str) -> Place:
    file, _, rest = position.partition(":")
    line, _, column = rest.partition(":")
    if line.isdecimal() and column.isdecimal():
        return Place(file, int(line), int(column))
    return Place(position)
