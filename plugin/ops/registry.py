"""Operations with several implementations, of which the types of the arguments choose one.

An `Op` is called with arrays, `InferenceTensor`s and options. Quantized tensors are unpacked to
their layouts, others to arrays, and the first registered implementation that accepts them computes
the result. What ran can be asked: `Op.choose` says what would, and `recorded` what did.

Source: "Direct quantization with sharktank", "Op specializations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..errors import UsageError
from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedLayout, QuantizedTensor
from ..numerics.array_functions import beside, is_known
from ..numerics.element_types import AnyArray

Argument: TypeAlias = InferenceTensor | AnyArray
"""Argument of an operation: a tensor, an array or a number."""

Operand: TypeAlias = Any
"""Operand of an implementation: the layout of a quantized tensor, or an array."""


@dataclass(frozen=True)
class Ran:
    """An implementation that ran."""

    op: str
    implementation: str


_RECORD: ContextVar[list[Ran] | None] = ContextVar("record", default=None)


@contextmanager
def recorded() -> Iterator[list[Ran]]:
    """Collect what runs in the block, in order."""
    record: list[Ran] = []
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def operand(value: Argument) -> Operand:
    """A layout for a quantized tensor, an array (or traced array) for another, None for None."""
    if isinstance(value, QuantizedTensor):
        return value.unpack()
    if isinstance(value, PrimitiveTensor):
        return value.array
    if isinstance(value, (list, float, int)) and not isinstance(value, bool):
        return np.asarray(value)
    return value


def operands(*values: Argument) -> tuple[Operand, ...]:
    """Each as `operand` has it; beside values of a program, planes are values of it too.

    So a layout that a traced function brings along enters the program as its planes, not as floats.
    """
    unpacked = tuple(operand(value) for value in values)
    planes = [
        plane
        for value in unpacked
        for plane in (value.planes.values() if isinstance(value, QuantizedLayout) else [value])
    ]
    program = next((p for p in planes if p is not None and not is_known(p)), None)
    if program is None:
        return unpacked
    return tuple(
        value.with_planes({name: beside(program, p) for name, p in value.planes.items()})
        if isinstance(value, QuantizedLayout)
        else value
        for value in unpacked
    )


def real(value: Operand) -> AnyArray:
    """The float32 values of a layout or an array."""
    values = value.dequant() if isinstance(value, QuantizedLayout) else value
    return values.astype(np.float32)


Accepts = Callable[..., bool]
Function = Callable[..., AnyArray]


@dataclass(frozen=True)
class _Implementation:
    name: str
    accepts: Accepts
    function: Function


class Op:
    """An operation; call it as a function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._implementations: list[_Implementation] = []

    def implementation(
        self, name: str, accepts: Accepts, *, first: bool = False
    ) -> Callable[[Function], Function]:
        """Register a function as an implementation.

        Args:
            first: try it before those that are registered (a kernel for a special case).

        Raises:
            UsageError: the name is taken.
        """
        if name in self.implementations:
            raise UsageError(f"{self.name} has an implementation named '{name}'")

        def register(function: Function) -> Function:
            index = 0 if first else len(self._implementations)
            self._implementations.insert(index, _Implementation(name, accepts, function))
            return function

        return register

    @property
    def implementations(self) -> tuple[str, ...]:
        """The names, in the order in which they are tried."""
        return tuple(known.name for known in self._implementations)

    def _find(self, arguments: tuple[Operand, ...], options: Mapping[str, Any]) -> _Implementation:
        for known in self._implementations:
            if known.accepts(*arguments, **options):
                return known
        kinds = ", ".join(
            a.name if isinstance(a, QuantizedLayout) else type(a).__name__ for a in arguments
        )
        raise UsageError(f"{self.name} has no implementation for ({kinds})")

    def choose(self, *arguments: Argument, **options: Any) -> str:
        """The name of the implementation that would run.

        Raises:
            UsageError: none would.
        """
        return self._find(operands(*arguments), options).name

    def __call__(self, *arguments: Argument, **options: Any) -> AnyArray:
        """Run the first implementation that accepts the arguments.

        Raises:
            UsageError: none does.
        """
        unpacked = operands(*arguments)
        chosen = self._find(unpacked, options)
        record = _RECORD.get()
        if record is not None:
            record.append(Ran(self.name, chosen.name))
        return chosen.function(*unpacked, **options)

    def __repr__(self) -> str:
        return f"Op({self.name}: {', '.join(self.implementations)})"
