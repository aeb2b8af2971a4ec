"""ONNX models: a kernel for each quantized operator, torch-mlir for those of floats."""

from __future__ import annotations

from .importing import Interpreter, write_module

__all__ = ["Interpreter", "write_module"]
