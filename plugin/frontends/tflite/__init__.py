"""TensorFlow Lite models: a kernel for each operator, and the module that they write."""

from __future__ import annotations

from .importing import Interpreter, RealInterpreter, write_module

__all__ = ["Interpreter", "RealInterpreter", "write_module"]
