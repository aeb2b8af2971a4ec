"""Sorts that a kernel computes.

Before::

    %0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
      %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4x8400xf32>, tensor<4x8400xi32>) -> (tensor<4x8400xf32>, tensor<4x8400xi32>)

After, where further results are the kernel's buffers::

    %0:6 = flow.dispatch @merge_sort::@merge_sort(%x, %i)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import splat_attribute
from ...dialects.windows import sorted_axis
from ...emit import ArrayLike, scalar, stablehlo
from ...emit.kernel import KernelTable
from ...emit.linalg import constant, depends_on_arguments
from ...emit.operation import element_of, mlir_type, tensor_type, value, with_element
from ...emit.stablehlo_semantics import COMPARISONS, EVALUATED, comparison_direction
from ...numerics.array_functions import bits_of
from ...numerics.element_types import ElementType
from ...numerics.ordering import in_total_order
from ..cpu.merge_sort import Comparator, MergeSort

SORT = "stablehlo.sort"
_COMPARE, _CONSTANT = "stablehlo.compare", "stablehlo.constant"
_ELEMENTS = frozenset(
    ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64")
)
_COMPARATOR_OPERATIONS = frozenset(
    (
        _COMPARE,
        _CONSTANT,
        *(f"stablehlo.{n}" for n in ("and", "negate", "not", "or", "select", "xor")),
    )
)


def replace_sorts(kernels: KernelTable, sorts: Sequence[Operation]) -> None:
    """Replace sorts of static tensors by calls of kernels."""
    for op in sorts:
        types = [each.type for each in op.operands]
        comparator = _comparator(op)
        is_static = all(type_.has_static_shape for type_ in types)
        has_elements = all(str(type_.element_type) in _ELEMENTS for type_ in types)
        if comparator is None or not is_static or not has_elements:
            continue
        if not any(map(depends_on_arguments, op.operands)):
            continue  # IREE's compiler evaluates it, and cannot call a kernel
        axis, shape = sorted_axis(op), [int(size) for size in types[0].shape]
        if not shape or shape[axis] < 2 or not math.prod(shape):
            continue
        with ir.InsertionPoint(op), op.location:
            results = _call(kernels, op, axis, shape, comparator)
        for result, sorted_ in zip(op.results, results, strict=True):
            result.replace_all_uses_with(sorted_)
        op.erase()


def _call(
    kernels: KernelTable, op: Operation, axis: int, shape: Sequence[int], comparator: Comparator
) -> list[Value]:
    """Emit the call of the kernel, and return the sorted tensors."""
    order = [n for n in range(len(shape)) if n != axis] + [axis]
    back = [order.index(n) for n in range(len(shape))]
    moved = [shape[n] for n in order]
    size = math.prod(shape)
    elements = tuple(element_of(each.type) for each in op.operands)
    kernel = MergeSort(size // shape[axis], shape[axis], elements, comparator)
    stored = [_with_element(each, mlir_type(element_of(each.type))) for each in op.operands]
    operands = [stablehlo.reshape(stablehlo.transpose(each, order), [size]) for each in stored]
    types = [
        *(each.type for each in operands),
        *(tensor_type([size], mlir_type(each)) for each in kernel.scratch_elements),
    ]
    results = kernels.call(kernel, kernel.kernel(), operands, types, 0)
    return [
        _with_element(
            stablehlo.transpose(stablehlo.reshape(each, moved), back), operand.type.element_type
        )
        for each, operand in zip(results[: len(elements)], op.operands, strict=True)
    ]


def _with_element(tensor: Value, element: ir.Type) -> Value:
    """A tensor of integers with or without a sign: buffers have those without."""
    type_ = with_element(tensor.type, element)
    return tensor if type_ == tensor.type else value("stablehlo.bitcast_convert", [tensor], type_)


def _comparator(op: Operation) -> Comparator | None:
    """The comparator of a sort; None if a kernel cannot compute it."""
    block = op.regions[0].blocks[0]
    *operations, returned = [each.operation for each in block.operations]
    arguments = list(block.arguments)
    known, read = {*arguments}, set[int]()
    for each in operations:
        if each.name not in _COMPARATOR_OPERATIONS or len(each.results) != 1:
            return None
        if each.name == _CONSTANT and splat_attribute(each.results[0], ()) is None:
            return None
        if not known.issuperset(each.operands):
            return None
        known.add(each.results[0])
        read |= {arguments.index(value) // 2 for value in each.operands if value in arguments}
    if returned.operands[0] not in known or returned.operands[0] in arguments or not read:
        return None
    keys = tuple(sorted(read))

    def is_before(first: Sequence[ArrayLike], second: Sequence[ArrayLike]) -> ArrayLike:
        values = dict[Value, ArrayLike]()
        for key, left, right in zip(keys, first, second, strict=True):
            values[arguments[2 * key]], values[arguments[2 * key + 1]] = left, right
        for each in operations:
            values[each.results[0]] = _evaluated(each, [values[value] for value in each.operands])
        return values[returned.operands[0]]

    return Comparator(keys, str(block), is_before)


def _evaluated(op: Operation, operands: Sequence[ArrayLike]) -> ArrayLike:
    """Emit an operation of the comparator on scalars."""
    if op.name == _CONSTANT:
        attribute = splat_attribute(op.results[0], ())
        assert attribute is not None  # `_comparator`
        return scalar(constant(attribute.get_splat_value()), element_of(op.results[0].type))
    if op.name != _COMPARE:
        result: ArrayLike = EVALUATED[op.name](op, *operands)
        return result
    kind = str(op.attributes["compare_type"]) if "compare_type" in op.attributes else ""
    element = element_of(op.operands[0].type)
    if "TOTALORDER" in kind:
        signed = ElementType.parse(f"i{element.bits}")
        operands = [in_total_order(bits_of(each, signed), element.bits) for each in operands]
    elif "UNSIGNED" in kind:
        operands = [bits_of(each, ElementType.parse(f"u{element.bits}")) for each in operands]
    compared: ArrayLike = COMPARISONS[comparison_direction(op)](*operands)
    return compared
