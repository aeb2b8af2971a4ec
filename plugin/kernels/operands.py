"""Operands of contractions that become calls of kernels: known ones are arrays, others values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._mlir import Value
from ..dialects.dense import dense_of_array
from ..emit import linalg, scalar
from ..emit import stablehlo as emit_stablehlo
from ..emit.operation import mlir_type
from ..emit.trace import traced
from ..numerics.array_functions import convert
from ..numerics.element_types import I8, U8, AnyArray, ElementType
from .constants import elements_of, is_known

__all__ = ["Refusal", "array_of", "bytes_of", "value_of"]


@dataclass(frozen=True)
class Refusal:
    """Why a contraction is left to IREE's loops."""

    reason: str


def array_of(value: Value) -> AnyArray:
    """A tensor for functions of arrays: NumPy's if it is known."""
    elements = elements_of(value)
    return traced(value) if elements is None else elements


def bytes_of(value: Value) -> AnyArray:
    """Integers of at most 8 bits as bytes; bits above theirs are copies of the sign."""
    if is_known(value) or value.type.element_type.width == 8:
        return convert(array_of(value), U8)
    # StableHLO converts no integers of 3, 5 or 6 bits.
    identity = linalg.identity_map(value.type.rank)
    output = linalg.empty([int(n) for n in value.type.shape], mlir_type(I8))
    wide = linalg.generic(
        [value], output, [identity] * 2, lambda each, _: scalar(each).convert(I8).value
    )
    return traced(wide, U8)


def value_of(array: AnyArray, element: ElementType) -> Value:
    """An array as a constant, or what was computed, with elements of a type."""
    if isinstance(array, np.ndarray):
        kept = array.view(np.int8) if array.dtype == np.uint8 else array
        dtype = np.int8 if element.bits == 8 else element.dtype
        return linalg.constant(
            dense_of_array(np.ascontiguousarray(kept.astype(dtype)), mlir_type(element))
        )
    return emit_stablehlo.convert(array.value, mlir_type(element))
