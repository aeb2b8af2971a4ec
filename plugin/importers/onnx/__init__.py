"""ONNX models: an importer for each operator, of formulas over arrays."""

from __future__ import annotations

from .importing import Interpreter, write_module
from .reading.arguments import arguments_of

__all__ = ["Interpreter", "arguments_of", "write_module"]
