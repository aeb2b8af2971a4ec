"""Quantized values and their storage.

They are connected by ``subquant.scast``, which later passes remove.
"""

from __future__ import annotations

from typing import Any

from .._mlir import ir
from ..dialects.quant import parameters_of, storage_mlir_type
from . import linalg
from .operation import value, with_element

__all__ = ["as_quantized", "stored"]

_SCASTS = ("quant.scast", "subquant.scast")


def stored(quantized: Any) -> Any:
    """The storage of a quantized tensor, through a ``subquant.scast`` if it is not at hand."""
    owner = quantized.owner
    if not isinstance(owner, ir.Block) and owner.operation.name in _SCASTS:
        return owner.operation.operands[0]
    parameters = parameters_of(quantized.type)
    assert parameters is not None  # callers have looked
    type_ = with_element(quantized.type, storage_mlir_type(parameters.storage))
    return value("subquant.scast", [quantized], type_)


def as_quantized(storage: Any, type_: Any) -> Any:
    """A storage tensor as a value of a quantized tensor type (of a compatible shape)."""
    parameters = parameters_of(type_)
    assert parameters is not None  # callers have looked
    expected = with_element(type_, storage_mlir_type(parameters.storage))
    return value("subquant.scast", [linalg.cast(storage, expected)], type_)
