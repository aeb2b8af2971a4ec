"""Streaming: one call of a function for each slice of its inputs, in order.

A program with variables (``tosa.variable``) is called step by step: each call sees the values of
the call before. The variables belong to the loaded executable; a new `Executable` starts with the
initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import SubquantError, UsageError
from ..numerics.element_types import Array
from ..signature import Signature


class Invocable(Protocol):
    """A function of an executable, or of an interpreted module."""

    @property
    def signature(self) -> Signature | None:
        """The types of its arguments and results, if they are known."""

    def invoke(
        self, arguments: Sequence[npt.ArrayLike], *, quantized_io: bool = False
    ) -> list[Array]:
        """Call it; see `subquant.runtime.Function`."""


def stream(
    function: Invocable,
    arguments: Sequence[npt.ArrayLike],
    *,
    quantized_io: bool = False,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Array]:
    """Call `function` for each slice of its arguments along axis 0.

    Args:
        arguments: one array for each argument. An array with one more axis than the signature is
            sliced; any other is an argument of each call.
        quantized_io: as in `subquant.runtime.Function`.
        on_step: called before each call with its number, from 0, and the number of calls.

    Returns:
        For each result of the function the results of all calls, stacked along a new axis 0.

    Raises:
        UsageError: no argument has another axis, or they have different numbers of slices.
        SignatureError, ExecutionError: as a call, with the number of the step.
    """
    inputs = () if function.signature is None else function.signature.inputs
    if len(arguments) != len(inputs):
        function.invoke(arguments)  # raises an error
    arrays = [np.asanyarray(argument) for argument in arguments]  # a mask is refused below
    are_sliced = [
        type_.shape is not None and array.ndim == len(type_.shape) + 1
        for array, type_ in zip(arrays, inputs, strict=False)
    ]
    are_sliced += [False] * (len(arrays) - len(are_sliced))
    counts = {len(array) for array, is_sliced in zip(arrays, are_sliced, strict=True) if is_sliced}
    if len(counts) != 1:
        shapes = "; ".join(
            f"argument {number} of type {type_} has the shape {array.shape}"
            for number, (array, type_) in enumerate(zip(arrays, inputs, strict=False))
        )
        requirement = (
            "one more axis than its argument, first" if not counts else "equally many slices"
        )
        raise UsageError(
            f"a stream needs inputs with {requirement}, got: "
            f"{shapes or 'no input with a known type'}"
        )
    count = counts.pop()
    if not count:
        raise UsageError("a stream needs at least one slice, got 0")
    steps = []
    for step in range(count):
        if on_step is not None:
            on_step(step, count)
        slices = [
            array[step] if is_sliced else argument
            for array, argument, is_sliced in zip(arrays, arguments, are_sliced, strict=True)
        ]
        try:
            steps.append(function.invoke(slices, quantized_io=quantized_io))
        except SubquantError as error:
            error.message = f"step {step} of {count}: {error.message}"
            error.args = (str(error),)
            raise
    return [np.stack(results) for results in zip(*steps, strict=True)]
