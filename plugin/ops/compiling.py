"""Compile functions of tensors: the planes become arguments of the executable."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from .. import compile as compile_module
from .._mlir import ir
from ..emit.trace import trace
from ..layouts import InferenceTensor, PlanarQuantizedTensor, QuantizedTensor
from ..runtime import Executable
from .registry import operand

__all__ = ["Compiled", "compile_function"]


class Compiled:
    """A function that is compiled for tensors of certain shapes and layouts.

    Args:
        write: writes the module that is compiled.
        **options: of `subquant.compile`.

    Attributes:
        executable: what IREE made of it.
    """

    def __init__(self, write: Callable[[], ir.Module], **options: Any) -> None:
        self._write = write
        self.executable: Executable = compile_module(write(), **options)

    @cached_property
    def text(self) -> str:
        """The MLIR module before its compilation."""
        return str(self._write())

    def __call__(self, *arguments: Any) -> Any:
        """Call with arrays and tensors of the shapes and layouts that it was compiled for."""
        flat = [array for argument in arguments for array in _arrays(argument)]
        return self.executable["main"](*[_stored(array) for array in flat])


def compile_function(function: Callable[..., Any], *examples: Any, **options: Any) -> Compiled:
    """Compile a function of arrays and tensors.

    Args:
        function: of as many arguments as there are examples; it may use the operators of arrays
            and the operations of this package.
        *examples: an array or a tensor for each argument, of whose values only the constants of
            layouts are used.
        **options: of `subquant.compile`.

    Raises:
        UnsupportedError: the function does what cannot be traced.
    """
    counts = [len(_arrays(example)) for example in examples]

    def flat(*arrays: Any) -> Any:
        given, place = [], 0
        for example, count in zip(examples, counts, strict=True):
            given.append(_rebuilt(example, arrays[place : place + count]))
            place += count
        return function(*given)

    types = [(a.shape, a.dtype) for example in examples for a in _arrays(example)]
    return Compiled(lambda: trace(flat, types), **options)


def _arrays(argument: Any) -> list[Any]:
    if isinstance(argument, QuantizedTensor):
        return list(argument.unpack().planes.values())
    return [np.asarray(operand(argument))]


def _rebuilt(example: Any, arrays: Any) -> Any:
    if isinstance(example, QuantizedTensor):
        layout = example.unpack()
        planes = dict(zip(layout.planes, arrays, strict=True))
        return PlanarQuantizedTensor(layout.with_planes(planes), example.name)
    assert not isinstance(example, InferenceTensor) or len(arrays) == 1
    return arrays[0]


def _stored(array: Any) -> Any:
    if array.dtype.kind != "u":
        return array
    return np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}")
