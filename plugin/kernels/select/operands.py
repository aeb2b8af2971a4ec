"""Operands of contractions that become calls of kernels: known ones are arrays, others values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import dense_of_array
from ...dialects.windows import dot_axes
from ...emit import linalg, scalar
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import mlir_type
from ...emit.trace import traced
from ...numerics.array_functions import convert, is_known
from ...numerics.element_types import I8, U8, AnyArray, Array, ElementType
from ..constant_values import constant_bytes, constant_elements, is_constant
from ..kernel_table import KernelTable
from ..pack.parameters import origin_of
from .match_failure import MatchFailure

__all__ = [
    "LEAST_PRODUCTS",
    "array_of",
    "bytes_of",
    "has_elements",
    "laid_out",
    "matrix_axes",
    "stored_array",
    "value_of",
]

LEAST_PRODUCTS = 1 << 12
"""Of integers: a smaller contraction is not worth the call of a kernel."""


def has_elements(op: Operation, *elements: str) -> bool:
    """True if the operands of a contraction, and its result, have these elements."""
    types = [value.type for value in (*op.operands, *op.results)]
    return tuple(str(each.element_type) for each in types) == elements


def matrix_axes(op: Operation) -> tuple[list[int], list[int]] | MatchFailure:
    """The order of axes that makes matrices ``rows x depth`` and ``columns x depth``."""
    (left, right), (batch, _) = dot_axes(op)
    if batch:
        return MatchFailure("it has batch dimensions")
    if len(left) != 1 or any(value.type.rank != 2 for value in op.operands):
        return MatchFailure("its operands are not matrices")
    return [1 - left[0], left[0]], [1 - right[0], right[0]]


def array_of(value: Value) -> AnyArray:
    """A tensor for functions of arrays: NumPy's if it is known."""
    elements = constant_elements(value)
    return traced(value) if elements is None else elements


def bytes_of(value: Value) -> AnyArray:
    """Integers of at most 8 bits as bytes; bits above theirs are copies of the sign."""
    known = constant_bytes(value)
    if known is not None:
        return known
    if value.type.element_type.width == 8:
        return convert(traced(value), U8)
    # StableHLO converts no integers of 3, 5 or 6 bits.
    identity = linalg.identity_map(value.type.rank)
    output = linalg.empty([int(n) for n in value.type.shape], mlir_type(I8))
    wide = linalg.generic(
        [value], output, [identity] * 2, lambda each, _: scalar(each).convert(I8).value
    )
    return traced(wide, U8)


def value_of(array: AnyArray, element: ElementType) -> Value:
    """An array as a constant, or what was computed, with elements of a type."""
    if is_known(array):
        return linalg.constant(_stored(stored_array(array, element), mlir_type(element)))
    return emit_stablehlo.convert(array.value, mlir_type(element))


def _stored(array: Array, element: ir.Type) -> ir.Attribute:
    """An array as an attribute that is never a splat.

    IREE keeps no splat in an executable: each call allocates memory, and fills it, before kernels
    may begin, which takes 1 us (IREE 3.13, one thread).
    """
    attribute = dense_of_array(array, element)
    if not attribute.is_splat:
        return attribute
    bytes_ = np.ascontiguousarray(array)
    return ir.DenseResourceElementsAttr.get_from_buffer(bytes_, "splat", attribute.type)


def laid_out(
    kernels: KernelTable,
    sources: Sequence[Value],
    label: str,
    how: object,
    compute: Callable[[], AnyArray],
    element: ElementType,
) -> Value:
    """What a kernel reads that follows from values of the program.

    It is a constant, what the program computes, or a parameter of the archive that a compilation
    writes, if it was given those that it follows from.

    Args:
        kernels: the kernels of the module.
        sources: what it follows from.
        label: what people read of how it is laid out.
        how: what it follows from besides; its text says all of that.
        compute: returns it.
        element: its elements.
    """
    name = origin_of(sources, label, how) if all(map(is_constant, sources)) else None
    if name is None:
        return value_of(compute(), element)
    return kernels.parameter(name, lambda: stored_array(compute(), element), mlir_type(element))


def stored_array(array: Array, element: ElementType) -> Array:
    """An array as it is stored: integers of 8 bits are signless."""
    kept = array.view(np.int8) if array.dtype == np.uint8 else array
    dtype = np.int8 if element.bits == 8 else element.dtype
    return np.ascontiguousarray(kept.astype(dtype, copy=False))
