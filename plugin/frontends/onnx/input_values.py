"""Inputs of an ONNX model that become constants when it is compiled.

``--input-value sr=16000`` replaces the input ``sr`` by a constant of the input's type and shape, so
that branches on it are decided and shapes that depend on it are known. The compiled function has no
argument for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import Place, SubquantError, UsageError, expected_name, quoted
from ...formats.onnx import Model, Tensor, TensorType, element_of
from ...numerics.element_types import Array

__all__ = ["with_input_values"]


def with_input_values(model: Model, values: Sequence[str]) -> Model:
    """Return a model some of whose inputs are constants.

    Args:
        model: as read.
        values: ``NAME=NUMBER`` or ``NAME=NUMBER,NUMBER,...`` for each input, in row-major order.
            One number fills an input of any fixed shape.

    Raises:
        UsageError: the model has no such input, or the numbers do not fit its type and shape.
    """
    location = Place(model.file)
    constants, inputs = dict(model.constants), {each.name: each for each in model.inputs}
    for text in values:
        name, _, numbers = text.rpartition("=")
        if name not in inputs:
            error: SubquantError = UsageError(
                f"no input is called {quoted(name)}; {expected_name(name, inputs)}", location
            )
            raise error
        input_ = inputs.pop(name)
        constants[name] = Tensor(name, input_.type, _constant(input_, numbers, location))
    if not values:
        return model
    return replace(model, constants=constants, inputs=tuple(inputs.values()))


def _constant(input_: TensorType, text: str, location: Place) -> Array:
    """Return the value of an input."""
    element = element_of(input_.type)
    what = f"the value {quoted(text)} of the input {quoted(input_.name)}"
    parse: Callable[[str], float] = int
    if element.kind in ("bool", "float"):
        parse = float if element.is_float else _boolean
    try:
        numbers = [parse(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"expected numbers of {input_.type}, got {what}", location) from None
    if element.is_integer:
        info = np.iinfo(element.dtype)
        if any(not info.min <= number <= info.max for number in numbers):
            raise UsageError(f"expected {info.min} to {info.max}, got {what}", location)
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
        raise UsageError(f"expected numbers for the shape [{listed}], got {what}", location)
    return array.reshape(shape)


def _boolean(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text.lower() in ("1", "true")
