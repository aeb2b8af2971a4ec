"""IREE's compiler as a process of its own, so that a crash there is an exit code."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.cpu_features import simulated_host_cpu
from ..core.files import write_whole
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
from ..isolation.cancellation import allowed_cores
from ..isolation.command import CommandResult, run_supervised
from .compile_options import CompileOptions
from .mlir_client import text_of
from .targets import IREE_VULKAN_TARGETS, VULKAN_TARGETS

__all__ = [
    "compile_worker_program",
    "compiler_path",
    "is_by_session",
    "run_iree",
    "target_features",
]


def compiler_path() -> str:
    """Return the path of ``iree-compile``.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    path = os.path.join(_package_folder(), "_mlir_libs", "iree-compile")
    if os.access(path, os.X_OK) and "IREE_TOOL_PATH" not in os.environ:
        return path
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool("iree-compile"))


def _package_folder() -> str:
    """Return where the compiler's package is, without an import of it: that has an MLIR too.

    Raises:
        EnvironmentProblem: it is not installed.
    """
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


_STRATEGY = "iree-llvmcpu-vector-pproc-strategy"
"""What is done with what fills no vector."""
_FUSES_SHARED = "iree-dispatch-creation-fuse-multi-use"
"""Fusion of operations with an operation whose result other operations read too."""
_OF_SHARED = (
    b"exceeded stack allocation limit",
    b"write affecting operations on global resources are restricted",
)
"""Parts of the messages about dispatches that IREE compiles without this fusion."""


def run_iree(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None = None,
    *,
    peels_loops: bool = False,
    team: bool = False,
    threads: bytes = b"",
) -> bytes:
    """Compile a module to an executable.

    IREE 3.13 refuses a CPU dispatch that needs more than 32 KiB of stack. It allocates rows of
    intermediate tensors there if it fuses a reduction with an operation whose result is returned,
    or read by another dispatch, too: a residual sum and its layer norm, for 128x384 and more. It
    also refuses some dispatches with several results, as where every tensor of a model is returned.
    A module that is refused for either reason is compiled again without these fusions.

    Args:
        bytecode: the module.
        options: what to compile for.
        reproducer: where to write it; by default ``subquant.reproducer.mlir`` in the current
            folder.
        peels_loops: what fills no vector is to be written by itself, unless a flag says how, or
            IREE refuses the module so.
        team: a team of threads can run it (`subquant.iree_hooks`), for a CPU; of options for which
            `is_by_session`.
        threads: what `compile_worker_program` gives for them, where that is there already.

    Raises:
        EnvironmentProblem: IREE's compiler is not installed.
        CompilerError: it refused the module, or crashed.
        UsageError: it knows no such target.
    """
    flags, files = options.flags, {"module.mlirbc": bytecode}
    shared: str | dict[str, str] = session.COMPILE_WORKER_PROGRAM if team else ""
    if team and threads:
        shared, files = {"file": "threads.vmfb"}, {**files, "threads.vmfb": threads}
    attempts = [flags]
    if peels_loops and not any(_STRATEGY in flag for flag in flags):
        # IREE has a bound for vectors, which what is not masked may exceed: the default is next.
        attempts.insert(0, [f"--{_STRATEGY}=peel", *flags])
    for each in attempts:
        result = _finished(files, options, shared, each)
        is_of_shared = any(message in result.stderr for message in _OF_SHARED)
        if is_of_shared and not any(_FUSES_SHARED in flag for flag in each):
            result = _finished(files, options, shared, [f"--{_FUSES_SHARED}=false", *each])
        if result.status == 0 and result.output is not None:
            return result.output
    raise _compiler_error(bytecode, options, reproducer, result)


def _finished(
    files: Mapping[str, bytes],
    options: CompileOptions,
    shared: str | dict[str, str],
    flags: Sequence[str],
) -> CommandResult:
    """Run IREE's compiler on a module.

    Args:
        files: the module, and the program of a team's threads if it is there.
        options: as of `run_iree`.
        shared: what a session is told of a team.
        flags: for the compiler.
    """
    given, made = "module.mlirbc", "module.vmfb"
    command: list[str | dict[str, str]]
    if is_by_session(options):
        command = [*session_command(), {"file": given}, {"file": made}, shared, *flags]
    else:
        command = [compiler_path(), {"file": given}, "-o", {"file": made}, *flags]
    return run_supervised(command, files, output=made, variables=_variables())


def session_command() -> list[str]:
    """The program that is IREE's compiler, and does more.

    Python looks for no other packages, which takes most of the time that it needs to start.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    packages = os.path.dirname(os.path.dirname(_package_folder()))
    return [sys.executable, "-S", session.__file__, packages]


def compile_worker_program(options: CompileOptions) -> bytes:
    """Compile the program of a team's threads; b"" if IREE's compiler does not.

    It is the same for every module with these options.
    """
    made = "threads.vmfb"
    command: list[str | dict[str, str]]
    command = [*session_command(), "", {"file": made}, "", *options.flags]
    result = run_supervised(command, {}, output=made, variables=_variables())
    return (result.output or b"") if result.status == 0 else b""


def is_by_session(options: CompileOptions) -> bool:
    """True for our flags and the package's compiler: a session does not know all others."""
    return not (options.iree_flags or "IREE_TOOL_PATH" in os.environ)


_TASK_COUNT = "IREE_COMPILER_TASK_COUNT"
_MOST_TASKS = 12
"""Tasks that IREE's compiler does at a time by itself, if there are as many cores."""


def _variables() -> dict[str, str]:
    """What has the compiler take the cores of this work only: others compile on the others."""
    cores = allowed_cores()
    if cores is None or cores >= _MOST_TASKS or _TASK_COUNT in os.environ:
        return {}
    return {_TASK_COUNT: str(cores)}


_CPU_FEATURES = re.compile(r'cpu_features = "([^"]*)"')


def target_features(options: CompileOptions) -> frozenset[str]:
    """Return the features that LLVM has for the CPU of a compilation, by its names.

    Raises:
        EnvironmentProblem: IREE's compiler is not installed.
        UsageError: LLVM knows no such CPU.
    """
    return _features_of_flags(options, tuple(options.flags))


@functools.cache
def _features_of_flags(options: CompileOptions, flags: tuple[str, ...]) -> frozenset[str]:
    given, made = "module.mlir", "targets.mlir"
    command: list[str | dict[str, str]]
    command = [compiler_path(), {"file": given}, "-o", {"file": made}, *flags]
    command.append("--compile-to=executable-sources")
    result = run_supervised(command, {given: b"module {}"}, output=made)
    unknown = _unknown_target(result.stderr.decode(errors="replace"), options)
    if unknown is not None:
        raise unknown
    found = _CPU_FEATURES.search((result.output or b"").decode(errors="replace"))
    written = found.group(1).split(",") if found else []  # a later one counts
    state = {feature[1:]: feature[0] for feature in written if feature}
    return frozenset(name for name, sign in state.items() if sign == "+")


_UNKNOWN_CPU = re.compile(
    r"Unknown CPU for target architecture (\S+)\.\s+List of accepted CPUs: ([^\n]*)"
)
_UNKNOWN_VULKAN = re.compile(r"Unknown Vulkan target '(.*)'")


def _unknown_target(stderr: str, options: CompileOptions) -> UsageError | None:
    """Say that a target is unknown, where IREE's compiler warns of that and crashes."""
    found = _UNKNOWN_CPU.search(stderr)
    if found is not None:
        names = ["host", "generic", *found.group(2).split(", ")]
        cpu = options.target_cpu
        if cpu == "host":  # of which LLVM knows that of this machine
            cpu = simulated_host_cpu().partition(",")[0]
        return UsageError(
            f"LLVM knows no CPU {quoted(cpu)} of {found.group(1)}; {expected_name(cpu, names)}"
        )
    if _UNKNOWN_VULKAN.search(stderr) is not None:
        names = [*VULKAN_TARGETS, "auto", *IREE_VULKAN_TARGETS]
        return UsageError(
            f"IREE knows no Vulkan target {quoted(options.vulkan_target)}; "
            f"{expected_name(options.vulkan_target, names)}"
        )
    return None


def _compiler_error(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None,
    result: CommandResult,
) -> SubquantError:
    """Say what happened; if it is not that a target is unknown, write a reproducer."""
    stderr = result.stderr.decode(errors="replace")
    unknown = _unknown_target(stderr, options)
    if unknown is not None:
        return unknown
    path = Path(reproducer or "subquant.reproducer.mlir")
    replay = shlex.join(["iree-compile", str(path), "-o", os.devnull, *options.flags])
    text = text_of(bytecode)
    try:
        write_whole(path, f"// {replay}\n{text}\n".encode())
        where = f"replay with: {replay}"
    except OSError as error:
        where = f"no reproducer was written to '{path}': {error.strerror}"
    first = next((line for line in stderr.splitlines() if ": error: " in line), None)
    if result.status < 0:
        message, place = f"IREE's compiler crashed (signal {-result.status})", None
    elif first is not None:
        position, _, reason = first.partition(": error: ")
        message, place = f"IREE refused the module: {reason}", _place(position)
    else:
        tail = stderr.strip().splitlines()[-1:] or ["no message"]
        message = f"IREE's compiler failed with status {result.status}: {tail[0]}"
        place = None
    return CompilerError(message, place, (where,))


def _place(position: str) -> Place:
    file, _, rest = position.partition(":")
    line, _, column = rest.partition(":")
    if line.isdecimal() and column.isdecimal():
        return Place(file, int(line), int(column))
    return Place(position)
