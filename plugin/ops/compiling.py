"""Compile functions of tensors: the planes become arguments of the executable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import compile as compile_module
from ..core._mlir import ir
from ..emit.trace import trace
from ..layouts import InferenceTensor, PlanarQuantizedTensor, QuantizedTensor
from ..numerics.element_types import AnyArray, Array
from ..runtime import Function
from .registry import Argument, operand


class Compiled:
    """Function compiled for tensors of fixed shapes and layouts."""

    def __init__(self, function: Function, write: Callable[[], ir.Module]) -> None:
        self._function = function
        self._write = write

    @cached_property
    def text(self) -> str:
        """The MLIR module before its compilation."""
        return str(self._write())

    def __call__(self, *arguments: Argument) -> AnyArray:
        """Call with arrays and tensors of the shapes and layouts that it was compiled for."""
        flat = [array for argument in arguments for array in _arrays(argument)]
        return self._function(*[_stored(array) for array in flat])


def compile_function(
    function: Callable[..., AnyArray], *examples: Argument, **options: Any
) -> Compiled:
    """Compile a function of arrays and tensors, with the arguments of `trace_function`.

    The options are those of `subquant.compile`.

    Raises:
        UnsupportedError: an operation of the function cannot be traced.
    """

    def write() -> ir.Module:
        return trace_function(function, *examples)

    return Compiled(compile_module(write(), **options)["main"], write)


def trace_function(function: Callable[..., AnyArray], *examples: Argument) -> ir.Module:
    """Write a function of arrays and tensors as a module whose function ``main`` takes planes.

    Args:
        function: its arguments correspond to the examples; it may use the operators of arrays
            and the operations of this package.
        *examples: an array or a tensor for each argument, of whose values only the constants of
            layouts are used.

    Raises:
        UnsupportedError: an operation of the function cannot be traced.
    """
    counts = [len(_arrays(example)) for example in examples]

    def flat(*arrays: AnyArray) -> AnyArray:
        operands, position = [], 0
        for example, count in zip(examples, counts, strict=True):
            operands.append(_rebuilt(example, arrays[position : position + count]))
            position += count
        return function(*operands)

    return trace(flat, [(a.shape, a.dtype) for example in examples for a in _arrays(example)])


def _arrays(argument: Argument) -> list[AnyArray]:
    if isinstance(argument, QuantizedTensor):
        return list(argument.unpack().planes.values())
    return [np.asarray(operand(argument))]


def _rebuilt(example: Argument, arrays: Sequence[AnyArray]) -> Argument:
    if isinstance(example, QuantizedTensor):
        layout = example.unpack()
        planes = dict(zip(layout.planes, arrays, strict=True))
        return PlanarQuantizedTensor(layout.with_planes(planes), example.name)
    assert not isinstance(example, InferenceTensor) or len(arrays) == 1
    return arrays[0]


def _stored(array: Array) -> Array:
    """Unsigned integers as signed integers of the same bits and shape."""
    if array.dtype.kind != "u":
        return array
    return np.asarray(array, order="C").view(f"i{array.dtype.itemsize}")
