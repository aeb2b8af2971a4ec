"""ONNX models: an importer for each operator, of formulas over arrays."""

from __future__ import annotations

from .extents import arguments_of
from .importing import Interpreter, write_module

__all__ = ["Interpreter", "arguments_of", "write_module"]
