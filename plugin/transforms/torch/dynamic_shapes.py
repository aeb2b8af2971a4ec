"""Broadcasts and shapes of dynamic programs in StableHLO, without the dialect ``shape``.

torch-mlir writes broadcasts of the dialect ``chlo``. StableHLO lowers them to operations
that compare shapes at run time, which IREE refuses. ``torch.export`` has compared the shapes
already: a dynamic dimension is never repeated, and two at the same position are equal. Before::

    %0 = chlo.broadcast_add %x, %y : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>

After::

    %shape = stablehlo.concatenate %size_of_x, %eight, dim = 0 : ... -> tensor<2xi32>
    %1 = stablehlo.dynamic_broadcast_in_dim %y, %shape, dims = [1] : ... -> tensor<?x8xf32>
    %0 = stablehlo.add %x, %1 : tensor<?x8xf32>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import erase_unused, is_dynamic, tensor_type, value
from ..base import has_type, named, producer_named, walk

_PREFIX = "chlo.broadcast_"
_TAKE_SHAPES = ("stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_reshape")
_DIRECTION = re.compile(r"#chlo<comparison_direction (\w+)>")
_KIND = re.compile(r"#chlo<comparison_type (\w+)>")


def write_iotas(module: Operation) -> None:
    """Give the positions of a sort of dynamic shape the shape of its first operand.

    torch-mlir writes them as an ``iota``, which StableHLO requires to have a static shape.
    """
    for sort in named(module, ["stablehlo.sort"]):
        for number, operand in enumerate(sort.operands):
            iota = producer_named(operand, "stablehlo.iota")
            if iota is not None and _is_dynamic(operand.type):
                with ir.InsertionPoint(sort), sort.location:
                    shape = emit_stablehlo.dim_sizes(sort.operands[0])
                    axis = {"iota_dimension": iota.attributes["iota_dimension"]}
                    positions = value("stablehlo.dynamic_iota", [shape], operand.type, axis)
                sort.operands[number] = positions
                erase_unused(iota)


def write_broadcasts(module: Operation) -> None:
    """Write ``chlo`` broadcasts of dynamic shapes as broadcasts and operations on elements."""
    for op in walk(module):
        if op.name.startswith(_PREFIX) and has_type(op, _is_dynamic):
            with ir.InsertionPoint(op), op.location:
                elementwise = _elementwise(op)
            op.results[0].replace_all_uses_with(elementwise)
            op.erase()


def _is_dynamic(type_: ir.Type) -> bool:
    return not type_.has_static_shape


def _elementwise(op: Operation) -> Value:
    """Return the StableHLO operation of a broadcast on operands of the result's shape."""
    operands, result = list(op.operands), op.results[0].type
    name = op.name.removeprefix(_PREFIX)
    shaped = [_broadcast(operand, operands, result) for operand in operands]
    if name != "compare":
        return value(f"stablehlo.{name}", shaped, result)
    [direction] = _DIRECTION.findall(str(op.attributes["comparison_direction"]))
    kinds = (
        _KIND.findall(str(op.attributes["compare_type"])) if "compare_type" in op.attributes else []
    )
    kind = kinds[0] if kinds else _compare_kind(operands[0].type.element_type)
    left, right = shaped
    return emit_stablehlo.compare(direction, kind, left, right, result)


def _compare_kind(element: ir.Type) -> str:
    """Return the comparison that StableHLO takes for a type where none is given."""
    if isinstance(element, ir.FloatType):
        return "FLOAT"
    is_unsigned = element.is_unsigned or element.width == 1
    return "UNSIGNED" if is_unsigned else "SIGNED"


def _broadcast(operand: Value, operands: Sequence[Value], result: ir.Type) -> Value:
    """Broadcast an operand to the shape of the result, aligned at the last axis."""
    sizes = [int(size) for size in result.shape]
    shape = [int(size) for size in operand.type.shape]
    if _matches(shape, sizes):
        return operand
    type_ = tensor_type([None if is_dynamic(n) else n for n in sizes], operand.type.element_type)
    axes = range(len(sizes) - len(shape), len(sizes))
    entries = [
        _size_of(operands, axis - len(sizes)) if is_dynamic(size) else _constant_entry(size)
        for axis, size in enumerate(sizes)
    ]
    return emit_stablehlo.broadcast(operand, type_, axes, emit_stablehlo.concatenate(entries, 0))


def _matches(shape: Sequence[int], sizes: Sequence[int]) -> bool:
    return len(shape) == len(sizes) and all(
        is_dynamic(a) == is_dynamic(b) and (is_dynamic(a) or a == b)
        for a, b in zip(shape, sizes, strict=True)
    )


def _size_of(operands: Sequence[Value], axis: int) -> Value:
    """Return the size of a dynamic axis, counted from the end, as a tensor of one i32."""
    for operand in operands:
        position = operand.type.rank + axis
        if position >= 0 and operand.type.is_dynamic_dim(position):
            return emit_stablehlo.reshape(emit_stablehlo.dimension_size(operand, position), [1])
    raise AssertionError("a dynamic result has a dynamic operand")


def _constant_entry(size: int) -> Value:
    return emit_stablehlo.constant(np.array([size]), ir.IntegerType.get_signless(32))


def write_shapes(module: Operation) -> None:
    """Write the shapes of the dialect ``shape`` as the sizes of each axis."""
    for op in named(module, ("shape.num_elements",)):
        shape = producer_named(op.operands[0], "shape.shape_of")
        if shape is None:
            continue
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_element_count(shape.operands[0]))
        erase_unused(op)
    for op in named(module, ("shape.shape_of",)):
        with ir.InsertionPoint(op), op.location:
            sizes = emit_stablehlo.dim_sizes(op.operands[0])
        for use in list(op.results[0].uses):
            if use.owner.name in _TAKE_SHAPES:
                use.owner.operands[use.operand_number] = sizes
        erase_unused(op)


def _element_count(tensor: Value) -> Value:
    """Return the number of elements of a tensor, as an ``index``."""
    count = linalg.constant_index(1)
    for axis in range(tensor.type.rank):
        count = value("arith.muli", [count, linalg.dim(tensor, axis)], count.type)
    return count
