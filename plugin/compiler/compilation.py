"""Compile a module with quantized types to an IREE executable.

The module is parsed, verified and lowered in a child process (`worker`); IREE's compiler then runs
as a process of its own on the bytecode. Everything that subquant asks of IREE, and every way around
what IREE 3.13 does not do, is in `options`, `targets`, `iree` or a pass of the pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..errors import InputError, Remark, UsageError
from ..processes import Limits
from . import worker
from .cache import Cache, key_of
from .cpu_features import recorded_features
from .iree import run_iree
from .options import CompileOptions, Emit
from .worker import Input, Source

if TYPE_CHECKING:
    from ..signature import Signature

__all__ = ["Progress", "compile_to_bytes"]

Progress = Callable[[str], None]


def compile_to_bytes(
    source: Source | Input,
    options: CompileOptions | None = None,
    *,
    emit: Emit = "vmfb",
    cache: str | os.PathLike[str] | None = None,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    check: Callable[[Mapping[str, Signature]], object] | None = None,
    on_remark: Callable[[Remark], object] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    limits: Limits | None = None,
) -> bytes:
    """Compile a module.

    Args:
        source: as for `subquant.compiler.reading.read_module`. A module that is parsed already is
            handed over as bytecode, and left as it is.
        options: what to compile for.
        emit: ``vmfb`` for an executable; ``mlir`` or ``mlirbc`` to stop before IREE.
        cache: a folder that keeps executables by content; by default the environment variable
            ``SUBQUANT_CACHE``, and none if that is not set.
        reproducer: where to write the module if MLIR crashes or IREE fails (default:
            ``subquant.reproducer.mlir`` in the current folder).
        progress: called with a line about each step.
        check: called with the signatures of the public functions before IREE's compiler runs; what
            it raises ends the compilation.
        on_remark: called with what `CompileOptions.explain` asks for.
        parameters: a file (``.irpa``) that constants of 1 KiB and more go to, which the executable
            then takes as the parameters of scope ``model``.
        weights: files of weights (``.irpa``, ``.gguf`` and what else ``subquant import`` reads) by
            the scope of their parameters in the module. The compilation lays them out for the
            kernels that read them, and writes them, with those that are read as they are, to
            `parameters`, which the executable takes in place of all of them: it maps that file and
            copies nothing. A parameter that was made for other kernels has another name, and an
            executable that does not find it is not loaded.
        limits: of the process that parses and lowers.

    Returns:
        The executable, text or bytecode.

    Raises:
        SubquantError: the input is wrong or not supported (with its place), or IREE failed.
    """
    if weights and parameters is None:
        raise UsageError("weights are given, and no file of parameters that they are written to")
    options = options or CompileOptions()
    notify = progress or (lambda step: None)
    lowered = worker.lower(
        source,
        options,
        emit,
        cpu_features=recorded_features(options) if emit == "vmfb" else "",
        parameters=parameters,
        weights=weights,
        reproducer=reproducer,
        progress=notify,
        limits=limits,
    )
    if on_remark is not None:
        for remark in lowered.remarks:
            on_remark(remark)
    if emit != "vmfb":
        return lowered.data
    if not lowered.is_runnable:
        raise InputError("the module has no public function with a body; there is nothing to run")
    if check is not None:
        check(lowered.signatures)
    bytecode = lowered.data
    folder = cache or os.environ.get("SUBQUANT_CACHE")
    if not folder:
        notify("iree-compile")
        return run_iree(bytecode, options, reproducer)
    kept, key = Cache(folder), key_of(bytecode, options)
    executable = kept.read(key)
    if executable is None:
        with kept.reserved(key, lambda: notify("wait for the same compilation elsewhere")):
            executable = kept.read(key)
            if executable is None:
                notify("iree-compile")
                executable = run_iree(bytecode, options, reproducer)
                kept.write(key, executable)
                return executable
    notify("cached")
    return executable
