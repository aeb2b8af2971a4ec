"""ONNX models: a kernel for each quantized operator, torch-mlir for those of floats."""

from __future__ import annotations

from .extents import arguments_of
from .importing import Interpreter, write_module

__all__ = ["Interpreter", "arguments_of", "write_module"]
