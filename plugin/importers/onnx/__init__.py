"""ONNX models: an importer for each operator, of formulas over arrays."""

from __future__ import annotations

from .graph import Interpreter
from .program import write_module
from .reading.arguments import arguments_of

__all__ = ["Interpreter", "arguments_of", "write_module"]
