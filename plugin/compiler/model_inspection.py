"""Inspection of models of other tools: their operators, and everything that a compilation refuses.

The importer lists the operators that it refuses. If it refuses none, the passes of a compilation
for llvm-cpu run too, and may refuse functions that IREE does not have. IREE itself does not run:
its refusals of single dispatches take a compilation to find.

`describe_model` is called in a child process.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..core.files import read_input
from ..dialects import create_context
from ..errors import SubquantError
from ..isolation.child import ReportStep
from .compile_options import CompileOptions
from .lowering import lower
from .reading import parse_bytes


def describe_model(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, Any], list[bytes]]:
    """Describe the model of the file ``path`` with the name ``file`` and the importer ``kind``."""
    inspection = importlib.import_module(f"..importers.{arguments['kind']}.inspection", __package__)
    data = read_input(arguments["path"])
    model, blobs = inspection.inspect_file(arguments, [data], steps)
    operators = [each for graph in model["graphs"] for each in graph["operators"]]
    if not model["refused"] and not any(each["refused"] for each in operators):
        steps("lower")
        model["refused"] = _refusal(data, arguments["path"], arguments["file"])
    return model, blobs


def _refusal(data: bytes, path: str, file: str) -> str | None:
    """Return the message of the first pass that refuses a model; None if none does."""
    context = create_context()
    try:
        module = parse_bytes(data, context, file, path=path)
        lower(module, CompileOptions())
    except SubquantError as error:
        name = f"'{error.op_name}' " if error.op_name else ""
        return f"{name}{error.message}"
    return None
