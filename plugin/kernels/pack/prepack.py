"""Prepacked operands of kernels: constants, parameters of an archive, or operations of the program.

A constant operand is packed by the compiler. Where it is computed from parameters that the compiler
reads (`subquant.kernels.parameters`), the result is a parameter of another archive. All other
operands are traced: the pack functions emit operations that the program executes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.dense import dense_of_array
from ...emit import linalg, scalar
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import mlir_type
from ...emit.trace import traced
from ...numerics.array_functions import convert, is_known
from ...numerics.element_types import I8, U8, AnyArray, Array, ElementType
from ..constant_values import constant_bytes, constant_elements, is_constant
from ..kernel_table import KernelTable
from ..parameters import ModuleGlobals


def array_of(value: Value, module_globals: ModuleGlobals) -> AnyArray:
    """Return the elements of a constant, or a traced array of another tensor."""
    elements = constant_elements(value, module_globals)
    return traced(value) if elements is None else elements


def bytes_of(value: Value, module_globals: ModuleGlobals) -> AnyArray:
    """Return integers of at most 8 bits as sign-extended bytes."""
    constant = constant_bytes(value, module_globals)
    if constant is not None:
        return constant
    if value.type.element_type.width == 8:
        return convert(traced(value), U8)
    # StableHLO converts no integers of 3, 5 or 6 bits.
    identity = linalg.identity_map(value.type.rank)
    output = linalg.empty([int(n) for n in value.type.shape], mlir_type(I8))
    extended = linalg.generic(
        [value], output, [identity] * 2, lambda each, _: scalar(each).convert(I8).value
    )
    return traced(extended, U8)


def materialize(array: AnyArray, element: ElementType) -> Value:
    """Return the value of an array: a constant, or the result that was traced."""
    if is_known(array):
        return linalg.constant(_not_splat(to_storage(array, element), mlir_type(element)))
    return emit_stablehlo.convert(array.value, mlir_type(element))


def to_storage(array: Array, element: ElementType) -> Array:
    """Convert an array to the dtype of its element type, 8-bit integers to signless int8."""
    signless = array.view(np.int8) if array.dtype == np.uint8 else array
    dtype = np.int8 if element.bits == 8 else element.dtype
    return np.ascontiguousarray(signless.astype(dtype, copy=False))


def prepacked(
    kernels: KernelTable,
    sources: Sequence[Value],
    label: str,
    layout: object,
    pack: Callable[[], AnyArray],
    element: ElementType,
) -> Value:
    """Return a prepacked operand: a constant, a parameter that is written, or a traced result.

    Args:
        sources: tensors that it is computed from.
        label: legible summary of the layout, for the name of a parameter.
        layout: all else that it depends on, see `ModuleGlobals.packed_name`.
        pack: returns the elements.
        element: their type.
    """
    module_globals, name = kernels.module_globals, None
    is_archived = module_globals.parameters is not None
    if is_archived and all(is_constant(source, module_globals) for source in sources):
        name = module_globals.packed_name(sources, label, layout)
    if name is None:
        return materialize(pack(), element)
    return kernels.parameter(name, lambda: to_storage(pack(), element), mlir_type(element))


def _not_splat(array: Array, element: ir.Type) -> ir.Attribute:
    """Return a constant's attribute, as a resource if it is a splat.

    IREE keeps no splat in an executable: each call allocates memory and fills it before the first
    kernel starts, which takes 1 us (IREE 3.13, one thread).
    """
    attribute = dense_of_array(array, element)
    if not attribute.is_splat:
        return attribute
    bytes_ = np.ascontiguousarray(array)
    return ir.DenseResourceElementsAttr.get_from_buffer(bytes_, "splat", attribute.type)
