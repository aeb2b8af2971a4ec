"""TensorFlow Lite models: a kernel for each operator, and the module that they write."""

from __future__ import annotations

from .extents import input_shapes
from .graphs import Interpreter, RealInterpreter
from .importing import write_module

__all__ = ["Interpreter", "RealInterpreter", "input_shapes", "write_module"]
