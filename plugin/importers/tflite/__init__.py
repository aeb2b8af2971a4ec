"""TensorFlow Lite models: a kernel for each operator, and the module that they write."""

from __future__ import annotations

from .input_shapes import input_shapes
from .interpreter import Interpreter, RealInterpreter
from .program import write_module

__all__ = ["Interpreter", "RealInterpreter", "input_shapes", "write_module"]
