"""The registry of operator importers of a front end, and the call that an importer gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ..errors import InputError, Place, SubquantError, UnsupportedError
from ..numerics.element_types import AnyArray, Array

_Function = TypeVar("_Function", bound=Callable[..., object])


class OperatorRegistry(dict[str, _Function]):
    """Operator importers by the names of operators."""

    def register(self, *names: str) -> Callable[[_Function], _Function]:
        """Register a function as the importer of operators."""

        def register(function: _Function) -> _Function:
            for name in names:
                self[name] = function
            return function

        return register


class _OperandLike(Protocol):
    """An input, whose text names it in errors."""

    @property
    def value(self) -> AnyArray: ...

    @property
    def is_constant(self) -> bool: ...


_Operand = TypeVar("_Operand", bound=_OperandLike)


class BaseCall(ABC, Generic[_Operand]):
    """An operator with the values of its inputs."""

    inputs: Sequence[_Operand | None]
    """An optional input that is absent is None."""

    @property
    @abstractmethod
    def subject(self) -> tuple[object, Place]:
        """The operator, whose text names it in errors, and the file."""

    def input(self, index: int) -> _Operand:
        """An input that must be present."""
        operand = self.optional(index)
        if operand is None:
            raise self.error(f"has no input {index}")
        return operand

    def optional(self, index: int) -> _Operand | None:
        """An input that may be absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> Array:
        """The elements of an input that must be constant."""
        operand = self.input(index)
        if not operand.is_constant:
            raise self.error(
                f"needs {operand} to be constant, and it is computed", UnsupportedError
            )
        return np.asarray(operand.value)

    def constant_scalar(self, index: int) -> Array:
        """The value of a constant input of one element, without dimensions."""
        element: Array = self.only_element(index, self.constant(index))
        return element

    def only_element(self, index: int, value: AnyArray) -> AnyArray:
        """The value of an input that must have one element, without dimensions."""
        if value.size != 1:
            raise self.error(f"has {value.size} elements in {self.input(index)}, expected one")
        return value.reshape(())

    def checked_axis(self, axis: int, rank: int) -> int:
        """An axis from 0, for an axis that can be negative; refuse one beyond the rank."""
        if not -rank <= axis < rank:
            raise self.error(f"has the axis {axis} of a tensor of {rank} dimensions")
        return int(axis) % rank

    def error(self, problem: str, kind: type[SubquantError] = InputError) -> SubquantError:
        """An error at this operator."""
        operator, location = self.subject
        return kind(f"{operator} {problem}", location)
