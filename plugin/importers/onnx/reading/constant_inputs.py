"""Inputs of an ONNX model that become constants when it is compiled (``--input-value``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....errors import Place
from ...input_values import InputType, input_constants
from .model import Model, Tensor, element_of


def with_input_values(model: Model, values: Sequence[str]) -> Model:
    """Replace inputs of a model by constants.

    Args:
        model: the model.
        values: see `input_constants`.

    Raises:
        UsageError: the model has no such input, or the numbers do not fit its type and shape.
    """
    if not values:
        return model
    types = {
        each.name: InputType(each.type, element_of(each.type), each.shape) for each in model.inputs
    }
    constants = {
        each.name: Tensor(each.name, each.type, array)
        for name, array in input_constants(types, values, Place(model.file)).items()
        for each in model.inputs
        if each.name == name
    }
    inputs = tuple(each for each in model.inputs if each.name not in constants)
    return replace(model, constants={**model.constants, **constants}, inputs=inputs)
