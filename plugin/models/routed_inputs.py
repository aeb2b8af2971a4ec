"""Inputs of the layers of experts, as a forward pass in NumPy shows them. Needs no MLIR."""

from __future__ import annotations

from typing import NamedTuple

from ..numerics.element_types import Array


class RoutedInputs(NamedTuple):
    """Inputs of a layer of a block's experts.

    Attributes:
        rows: float32 ``[R, K]``.
        choices: the experts that have each row as input, integers ``[R, chosen]``.
    """

    rows: Array
    choices: Array

    def of(self, expert: int) -> Array:
        """Return the inputs of one expert, ``[rows, K]``."""
        inputs: Array = self.rows[(self.choices == expert).any(axis=1)]
        return inputs
