"""Constants that depend on the size of a dynamic batch, in a program for one element.

SHAPE is a constant where shapes are static, and so is every value that is computed of it. Each is
computed for a second batch, too. One that differs may state the shape of a result, which is the
batch of 1 in the program for one element. Other operators would compute with a batch of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import SubquantError, UnsupportedError
from ...numerics.element_types import AnyArray, Array
from ..batch_loop import is_alike_in_batches
from .call import Call
from .operand import Operand

_OTHER_BATCH = 3
"""The batch for which constants are computed again."""

_SHAPE_INPUTS = {
    "BROADCAST_TO": 1,
    "CONV_3D_TRANSPOSE": 0,
    "RESHAPE": 1,
    "SLICE": 2,
    "STRIDED_SLICE": 2,
    "TRANSPOSE_CONV": 0,
}
"""The input of an operator that states the sizes of its result."""
_CALLS = ("CALL", "CALL_ONCE", "STABLEHLO_COMPOSITE")
"""Operators whose inputs are those of another graph, which is checked itself."""


class BatchConstants:
    """Constants that differ for another batch.

    Args:
        compute: the computation of an operator.
    """

    def __init__(self, compute: Callable[[Call], Sequence[AnyArray]]) -> None:
        self._compute = compute
        # By identity: a constant, which is kept alive, and that for the other batch.
        self._pairs: dict[int, tuple[Any, Array]] = {}

    def check_uses(self, call: Call) -> None:
        """Refuse an operator that computes with a constant of the batch, if it is no shape.

        Raises:
            UnsupportedError: it does.
        """
        name = call.operator.name
        for index, each in enumerate(call.inputs):
            if each is None or id(each.value) not in self._pairs or name in _CALLS:
                continue
            one, many = self._pairs[id(each.value)]
            is_alike = is_alike_in_batches(np.asarray(one), many, _OTHER_BATCH)
            if not is_alike and index != _SHAPE_INPUTS.get(name):
                raise refusal(call)

    def record(self, call: Call, results: Sequence[AnyArray], batch_axis: int) -> None:
        """Record the constant results of an operator.

        Args:
            batch_axis: the axis of the batch in input 0, or -1.

        Raises:
            UnsupportedError: the operator has no result for another batch.
        """
        name = call.operator.name
        if name in ("SHAPE", "ZEROS_LIKE") and batch_axis >= 0:
            sizes = list(call.input(0).shape)
            sizes[batch_axis] *= _OTHER_BATCH
            dtype = np.asarray(results[0]).dtype
            other_results: Sequence[AnyArray] = [
                np.array(sizes, dtype) if name == "SHAPE" else np.zeros(sizes, dtype)
            ]
        elif any(each is not None and id(each.value) in self._pairs for each in call.inputs):
            operands = [self._other(each) for each in call.inputs]
            try:
                other_results = self._compute(replace(call, inputs=operands))
            except SubquantError:
                raise refusal(call) from None
        else:
            return
        for each, other in zip(results, other_results, strict=True):
            one, many = np.asarray(each), np.asarray(other)
            if one.shape != many.shape or not np.array_equal(one, many):
                self._pairs[id(each)] = each, many

    def _other(self, operand: Operand | None) -> Operand | None:
        """Return an operand for the other batch."""
        if operand is None or id(operand.value) not in self._pairs:
            return operand
        return replace(operand, value=self._pairs[id(operand.value)][1])


def refusal(call: Call) -> SubquantError:
    """Return the error of an operator that may combine elements of the batch."""
    return call.error(
        "is not known to compute each element of the batch alone; give --batch a number",
        UnsupportedError,
    )
