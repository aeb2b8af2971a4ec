"""Inputs of a model that become constants when it is compiled.

``--input-value sr=16000`` replaces the input ``sr`` by a constant of the input's type and shape, so
that branches on it are decided and shapes that depend on it are known. The compiled function has no
argument for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import Place, UsageError, expected_name, quoted
from ..numerics.element_types import Array, ElementType


@dataclass(frozen=True)
class InputType:
    """The type of an input.

    Args:
        type: the file format's name of the type, for errors.
        element: the element type; the storage type of a quantized input.
        shape: the dimension sizes; a dynamic one is no integer. None for any shape.
    """

    type: str
    element: ElementType
    shape: Sequence[int | str | None] | None


def input_constants(
    inputs: Mapping[str, InputType], values: Sequence[str], location: Place
) -> dict[str, Array]:
    """Return the inputs that become constants, by name.

    Args:
        values: ``NAME=NUMBER`` or ``NAME=NUMBER,NUMBER,...`` for each input, in row-major order.
            One number fills an input of any fixed shape.

    Raises:
        UsageError: the model has no such input, or the numbers do not fit its type and shape.
    """
    constants: dict[str, Array] = {}
    for text in values:
        name, _, numbers = text.rpartition("=")
        remaining = {each: None for each in inputs if each not in constants}
        if name not in remaining:
            raise UsageError(
                f"no input is called {quoted(name)}; {expected_name(name, remaining)}", location
            )
        subject = f"the value {quoted(numbers)} of the input {quoted(name)}"
        constants[name] = _constant(inputs[name], numbers, subject, location)
    return constants


def _constant(input_: InputType, text: str, subject: str, location: Place) -> Array:
    """Return the value of an input."""
    element = input_.element
    parse: Callable[[str], float] = int
    if element.kind in ("bool", "float"):
        parse = float if element.is_float else _boolean
    try:
        numbers = [parse(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"expected numbers of {input_.type}, got {subject}", location) from None
    if element.is_integer:
        least = -(1 << element.bits - 1) if element.kind == "int" else 0
        most = least + (1 << element.bits) - 1
        if any(not least <= number <= most for number in numbers):
            raise UsageError(f"expected {least} to {most}, got {subject}", location)
    array = np.array(numbers, np.float64 if element.is_float else None).astype(element.dtype)
    open_ = [n for n in input_.shape or () if not isinstance(n, int)]
    shape = tuple(n if isinstance(n, int) else -1 for n in input_.shape or ())
    if input_.shape is None:
        return array if len(numbers) > 1 else array.reshape(())
    if len(open_) == 1 and len(numbers) % max(math.prod(n for n in shape if n != -1), 1) == 0:
        return array.reshape(shape)
    if not open_ and len(numbers) == 1:
        return np.full(shape, array[0])
    if open_ or math.prod(shape) != len(numbers):
        listed = ", ".join(str(n) for n in input_.shape)
        raise UsageError(f"expected numbers for the shape [{listed}], got {subject}", location)
    return array.reshape(shape)


def _boolean(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text.lower() in ("1", "true")
