"""A node of an older operator set while it is converted, and the registry of conversion rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ....errors import SubquantError, UnsupportedError
from ....numerics.element_types import Array
from ..call import Call, Operand, type_of_dtype


@dataclass(frozen=True)
class OlderNode:
    """A node of an operator set while it is converted; `call` has the node in the file."""

    call: Call
    opset: int
    operator: str
    attributes: dict[str, Any]
    inputs: list[Operand | None]

    def with_input(self, index: int, array: Array) -> OlderNode:
        """Return the node with a constant as an input, behind absent ones if there are fewer."""
        inputs = [*self.inputs, *[None] * (index + 1 - len(self.inputs))]
        inputs[index] = Operand(type_of_dtype(array.dtype), array, f"input {index}")
        return replace(self, inputs=inputs)

    def attribute_to_input(self, name: str, index: int, dtype: Any = np.int64) -> OlderNode:
        """Return the node with an attribute, if it is present, as an input."""
        if name not in self.attributes:
            return self
        value = np.asarray(self.attributes[name], dtype)
        return self.without(name).with_input(index, value)

    def without(self, *names: str) -> OlderNode:
        """Return the node without some attributes."""
        remaining = {name: value for name, value in self.attributes.items() if name not in names}
        return replace(self, attributes=remaining)

    def having(self, **attributes: Any) -> OlderNode:
        """Return the node with other values of some attributes."""
        return replace(self, attributes={**self.attributes, **attributes})

    def with_default(self, name: str, value: Any) -> OlderNode:
        """Return the node with an attribute that is stated or the default of its version."""
        return self if name in self.attributes else self.having(**{name: value})

    def operand(self, index: int) -> Operand:
        """Return an input that must be present."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise self.call.error(f"has no input {index}")
        return operand

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.operand(index).shape

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Return the dtype of an input."""
        dtype: np.dtype[Any] = np.dtype(self.operand(index).value.dtype)
        return dtype

    def error(self, problem: str) -> SubquantError:
        """Return an error at the node."""
        return self.call.error(problem, UnsupportedError)


Results: TypeAlias = list[Operand]
Rule: TypeAlias = Callable[[OlderNode], "OlderNode | Results"]
"""The function returns the converted node, or the results of the nodes that replace it."""

RULES: dict[str, list[tuple[int, Rule]]] = {}
"""The conversion rules by operator, each with the first operator set of the new form."""


def before(opset: int, *operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for nodes of operator sets before `opset`."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            RULES.setdefault(operator, []).append((opset, rule))
        return rule

    return register
