"""Compile a module with quantized types to an IREE executable.

The module is parsed, verified and lowered here; IREE's compiler then runs as a process of its own
on the bytecode. Everything that subquant asks of IREE, and every way around what IREE 3.13 does not
do, is in `options`, `targets`, `iree` or a pass of the pipeline.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from .._mlir import in_context_of, ir
from ..errors import InputError
from ..transforms.base import is_public
from .cache import Cache, key_of
from .iree import run_iree
from .options import CompileOptions, Emit
from .pipeline import compile_pipeline, run_pipeline
from .reading import Source, read_module

__all__ = ["Progress", "bytecode_of", "compile_to_bytes", "lower"]

Progress = Callable[[str], None]


def lower(module: ir.Module, options: CompileOptions, progress: Progress | None = None) -> None:
    """Run the compilation's passes on `module` in place.

    Raises:
        SubquantError: from a pass, with its place.
    """
    notify = progress or (lambda step: None)
    run_pipeline(module, compile_pipeline(options), lambda step: notify(f"pass {step.name}"))
    if options.device_attribute is not None:
        with in_context_of(module.operation):
            devices = ir.Attribute.parse(f"[{options.device_attribute}]")
            module.operation.attributes["hal.device.targets"] = devices


def compile_to_bytes(
    source: Source,
    options: CompileOptions | None = None,
    *,
    emit: Emit = "vmfb",
    cache: str | os.PathLike[str] | None = None,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> bytes:
    """Compile a module.

    Args:
        source: as for `read_module`.
        options: what to compile for.
        emit: ``vmfb`` for an executable; ``mlir`` or ``mlirbc`` to stop before IREE.
        cache: a folder that keeps executables by content; by default the environment variable
            ``SUBQUANT_CACHE``, and none if that is not set.
        reproducer: where to write the module if IREE fails (default: ``subquant.reproducer.mlir``
            in the current folder).
        progress: called with a line about each step.

    Returns:
        The executable, text or bytecode.

    Raises:
        SubquantError: the input is wrong or not supported (with its place), or IREE failed.
    """
    options = options or CompileOptions()
    notify = progress or (lambda step: None)
    notify("parse")
    module = read_module(source)
    lower(module, options, progress)
    if emit == "mlir":
        return (str(module) + "\n").encode()
    bytecode = bytecode_of(module)
    if emit == "mlirbc":
        return bytecode
    _check_public_function(module)
    folder = cache or os.environ.get("SUBQUANT_CACHE")
    if not folder:
        notify("iree-compile")
        return run_iree(module, bytecode, options, reproducer)
    kept, key = Cache(folder), key_of(bytecode, options)
    executable = kept.read(key)
    if executable is None:
        with kept.reserved(key, lambda: notify("wait for the same compilation elsewhere")):
            executable = kept.read(key)
            if executable is None:
                notify("iree-compile")
                executable = run_iree(module, bytecode, options, reproducer)
                kept.write(key, executable)
                return executable
    notify("cached")
    return executable


def _check_public_function(module: ir.Module) -> None:
    for op in module.body.operations:
        operation = op.operation
        if operation.name != "func.func" or (
            is_public(operation) and len(operation.regions[0].blocks)
        ):
            return  # other operations may define functions
    raise InputError("the module has no public function with a body; there is nothing to run")


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as bytecode."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()
