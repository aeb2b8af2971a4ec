"""TensorFlow Lite models: a kernel for each operator, and the module that they write."""

from __future__ import annotations

from .graphs import Interpreter, RealInterpreter
from .importing import write_module

__all__ = ["Interpreter", "RealInterpreter", "write_module"]
