"""IREE's compiler as a process of its own, so that a crash there is an exit code."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ..errors import CompilerError, EnvironmentProblem, Place
from ..files import write_whole
from ..processes import Finished, run_guarded
from ..versions import PINNED_VERSIONS
from .options import CompileOptions
from .worker import text_of

__all__ = ["compiler_path", "run_iree"]


def compiler_path() -> str:
    """Return the path of ``iree-compile``.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        from iree.compiler.tools.binaries import find_tool
    except ImportError:
        version = PINNED_VERSIONS["iree-base-compiler"]
        raise EnvironmentProblem(
            f"IREE's compiler is not installed; run: pip install iree-base-compiler=={version}"
        ) from None
    return str(find_tool("iree-compile"))


def run_iree(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None = None,
) -> bytes:
    """Compile a module to an executable.

    Args:
        bytecode: the module.
        options: what to compile for.
        reproducer: where to write it; by default ``subquant.reproducer.mlir`` in the current
            folder.

    Raises:
        EnvironmentProblem: IREE's compiler is not installed.
        CompilerError: it refused the module, or crashed.
    """
    given, made = "module.mlirbc", "module.vmfb"
    command: list[str | dict[str, str]]
    command = [compiler_path(), {"file": given}, "-o", {"file": made}, *options.flags]
    result = run_guarded(command, {given: bytecode}, output=made)
    if result.status == 0 and result.output is not None:
        return result.output
    raise _compiler_error(bytecode, options, reproducer, result)


def _compiler_error(
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None,
    result: Finished,
) -> CompilerError:
    """Write a reproducer, and say what happened and how to replay it."""
    path = Path(reproducer or "subquant.reproducer.mlir")
    replay = shlex.join(["iree-compile", str(path), "-o", os.devnull, *options.flags])
    text = text_of(bytecode)
    try:
        write_whole(path, f"// {replay}\n{text}\n".encode())
        where = f"replay with: {replay}"
    except OSError as error:
        where = f"no reproducer was written to '{path}': {error.strerror}"
    stderr = result.stderr.decode(errors="replace")
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
    if line.isdigit() and column.isdigit():
        return Place(file, int(line), int(column))
    return Place(position)
