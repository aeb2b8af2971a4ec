"""Nodes with bounded tensors as inputs, and the registry of their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ....errors import SubquantError
from ....numerics.element_types import AnyArray
from ...operator_registry import OperatorRegistry
from ..call import Call, Operand
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor

Compute: TypeAlias = Callable[[Call], list[Operand]]
"""The function computes a node whose inputs are no bounded tensors."""


@dataclass(frozen=True)
class BoundedNode:
    """A node with bounded tensors as inputs."""

    call: Call
    compute: Compute

    @property
    def tensors(self) -> Mapping[int, BoundedTensor]:
        """The bounded tensors, by input."""
        return self.call.values_of(BoundedTensor)

    @property
    def axes(self) -> Mapping[int, int]:
        """The axes of the data-dependent sizes, by input."""
        return {index: each.axis for index, each in self.tensors.items()}

    @property
    def has_one_count(self) -> bool:
        """True if all bounded tensors have the same rows."""
        counts = [each.count for each in self.tensors.values()]
        return all(count is counts[0] for count in counts)

    def _optional(self, index: int) -> Operand | None:
        return self.call.inputs[index] if index < len(self.call.inputs) else None

    def has(self, index: int) -> bool:
        """Return True if an input is present."""
        return self._optional(index) is not None

    def shape(self, index: int) -> tuple[int, ...]:
        """The dimension sizes of an input; none for one that is absent."""
        operand = self._optional(index)
        return () if operand is None else operand.shape

    def constant(self, index: int) -> list[int] | None:
        """The elements of an input that is constant, None for others and absent ones."""
        operand = self._optional(index)
        if operand is None or not operand.is_constant:
            return None
        return [int(n) for n in np.asarray(operand.value).reshape(-1)]

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute; the importer records that it is read."""
        value = self.call.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, from 0."""
        rank = len(self.shape(0)) if rank is None else rank
        return self.attribute("axis", default) % max(rank, 1)

    def with_arrays(self, changed: Mapping[int, AnyArray] | None = None) -> Call:
        """The node with arrays in place of bounded tensors, and with `changed` values of inputs."""
        arrays = {index: each.value for index, each in self.tensors.items()}
        return self.call.with_values({**arrays, **(changed or {})})

    def with_padding(self, number: AnyArray) -> Call:
        """The node with a number in the padding of its first input."""
        tensor = self.tensors[0]
        is_valid = tensor.is_valid_row()
        return self.with_arrays({0: np.where(is_valid, self.call.floats(tensor.value), number)})

    def compute_rows(self, call: Call, axis: int, count: AnyArray) -> list[Operand]:
        """Compute results with a data-dependent size."""
        return [self.operand(each, axis, count) for each in self.compute(call)]

    def read_all(self) -> None:
        """Record that all inputs and attributes are read."""
        self.call.read_parts.inputs.update(range(len(self.call.inputs)))
        self.call.read_parts.attributes.update(self.call.node.attributes)

    def refusal(self) -> SubquantError:
        """The error that the operator combines rows."""
        names = ", ".join(str(self.call.input(index)) for index in self.tensors)
        return self.call.unsupported(
            f"combines the rows of {names}, or takes one of them: {DYNAMIC_SIZE_ADVICE}"
        )

    @staticmethod
    def operand(result: Operand | Operand, axis: int, count: AnyArray) -> Operand:
        """A result with a data-dependent size."""
        return Operand(result.type, BoundedTensor(result.value, axis, count))


_Handler: TypeAlias = Callable[[BoundedNode], "list[Operand] | None"]
"""The function returns the results, or None where a rule decides."""

HANDLERS: OperatorRegistry[_Handler] = OperatorRegistry()
"""The handlers by operator."""
handles = HANDLERS.register
