"""Tensors of the ``torch`` dialect as tensors of the builtin dialect, and back."""

from __future__ import annotations

import re

from ..core._mlir import Value, ir
from .operation import tensor_type, value

_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,?]*)\],(.+)>")


def builtin_tensor_type(type_: ir.Type) -> ir.Type:
    """Return the builtin type of a tensor type of the ``torch`` dialect; signed is signless."""
    [(shape, element)] = _TENSOR.findall(str(type_))
    sizes = [None if size == "?" else int(size) for size in shape.split(",") if size]
    return tensor_type(sizes, ir.Type.parse(element.replace("si", "i")))


def as_builtin(tensor: Value) -> Value:
    """Convert a tensor of the ``torch`` dialect."""
    return value("torch_c.to_builtin_tensor", [tensor], builtin_tensor_type(tensor.type))


def as_torch(tensor: Value, type_: ir.Type) -> Value:
    """Convert a builtin tensor to a type of the ``torch`` dialect."""
    return value("torch_c.from_builtin_tensor", [tensor], type_)
