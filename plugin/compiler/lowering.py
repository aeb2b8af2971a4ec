"""The passes of a compilation, and what they leave for IREE."""

from __future__ import annotations

import io
from collections.abc import Callable

from .._mlir import in_context_of, ir
from ..transforms.base import ModulePass, is_public
from .options import CompileOptions
from .pipeline import compile_pipeline, run_pipeline

__all__ = ["bytecode_of", "has_public_function", "lower"]


def lower(
    module: ir.Module,
    options: CompileOptions,
    on_pass: Callable[[ModulePass], None] | None = None,
) -> None:
    """Run the compilation's passes on `module` in place.

    Raises:
        SubquantError: from a pass, with its place.
    """
    run_pipeline(module, compile_pipeline(options), on_pass)
    if options.device_attribute is not None:
        with in_context_of(module.operation):
            devices = ir.Attribute.parse(f"[{options.device_attribute}]")
            module.operation.attributes["hal.device.targets"] = devices


def has_public_function(module: ir.Module) -> bool:
    """True if there is something to run, or may be: operations of IREE's may define functions."""
    for op in module.body.operations:
        operation = op.operation
        if operation.name != "func.func" or (
            is_public(operation) and len(operation.regions[0].blocks)
        ):
            return True
    return False


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as bytecode."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()
