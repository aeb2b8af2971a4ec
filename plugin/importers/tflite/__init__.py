"""Importer of TensorFlow Lite models: operator importers, interpreters, and the module writer."""

from __future__ import annotations

from .input_shapes import input_shapes
from .interpreter import FloatInterpreter, Interpreter
from .program import write_module

__all__ = ["FloatInterpreter", "Interpreter", "input_shapes", "write_module"]
