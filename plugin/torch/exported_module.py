"""Export of PyTorch modules: traced programs, and the MLIR module that they become."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram

from ..core._mlir import ir
from ..core.files import write_atomically
from ..dialects import create_context
from ..errors import SubquantError, UnsupportedError, UsageError
from ..importers.torch.exported_program import import_programs
from ..importers.torch.source_lines import place_of_error

Traceable: TypeAlias = "torch.nn.Module | ExportedProgram"
"""A module, or a program that ``torch.export.export`` traced."""


@dataclass(frozen=True)
class ExportedModule:
    """A PyTorch module as MLIR: ``torch`` dialect, one public function for each program.

    Args:
        programs: the traced programs by the names of their functions.
        bytecode: the MLIR module, as bytecode.
    """

    programs: Mapping[str, ExportedProgram]
    bytecode: bytes

    def __str__(self) -> str:
        """Return the module as text; large constants are left out (``dense_resource``)."""
        context = create_context()
        module = ir.Module.parse(self.bytecode, context)
        return str(module.operation.get_asm(large_elements_limit=16, large_resource_limit=64))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module for ``subquant compile`` and other commands, as bytecode (``.mlir``)."""
        write_atomically(path, self.bytecode)


def export_module(
    module: Traceable | Mapping[str, Traceable],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ExportedModule:
    """Trace a module by ``torch.export``, and import it as MLIR.

    Args:
        module: a module in evaluation mode, or a program of ``torch.export.export``; several by
            names are several functions of one executable, which share parameters and the buffers
            that they update.
        args: example arguments of the module; their values do not matter, shapes and types do. A
            program has its own.
        kwargs: example keyword arguments.
        dynamic_shapes: the dimensions that may vary, as for ``torch.export.export``.

    Returns:
        The module. Its function is ``main``, or has the name of `module`'s key.

    Raises:
        UsageError: the module is in training mode.
        UnsupportedError: ``torch.export`` or torch-mlir cannot express the module; the error has
            the line of the Python code.
    """
    named = module if isinstance(module, Mapping) else {"main": module}
    programs = {name: _trace(each, args, kwargs, dynamic_shapes) for name, each in named.items()}
    context = create_context()
    with context, ir.Location.unknown():
        result = ir.Module.create()
        import_programs(programs, result)
        buffer = io.BytesIO()
        result.operation.write_bytecode(buffer)
    return ExportedModule(programs, buffer.getvalue())


def _trace(
    module: Traceable, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    if isinstance(module, ExportedProgram):
        return module
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"expected a torch.nn.Module or a torch.export.ExportedProgram, found a "
            f"{type(module).__name__}"
        )
    if not isinstance(args, tuple):
        raise UsageError(
            f"expected the example arguments as a tuple, such as (x,), got a {type(args).__name__}"
        )
    if module.training and not isinstance(module, torch.fx.GraphModule):
        raise UsageError(
            f"the module {type(module).__name__} is in training mode, where dropout and batch "
            "normalization differ; call module.eval() first"
        )
    try:
        return torch.export.export(
            module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
        )
    except SubquantError as error:
        raise error.located(place_of_error(error)) from None
    except Exception as error:  # of any class, by the module
        kind, reason = type(error).__name__, str(error).strip().partition("\n\n")[0]
        advice = "; compute both results, and select by torch.where" if "Data" in kind else ""
        raise UnsupportedError(
            f"torch.export cannot trace the module: {kind}: {reason}{advice}", place_of_error(error)
        ) from error
