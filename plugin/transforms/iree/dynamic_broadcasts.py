"""``dynamic_broadcast_in_dim`` as a loop nest whose extents are those that the shape was made of.

Where loops are written before IREE sees the program, the shape is a tensor of ``index``, which must
not cross a dispatch; ``tensor.dim`` of the values that it was made of may.
"""

from __future__ import annotations

from ... import emit
from ..._mlir import Operation, Rewriter, Value, ir
from ...dialects.dense import array_of_dense
from ...emit import linalg
from ...emit.operation import INDEX
from ..base import NoMatch

__all__ = ["expand_dynamic_broadcast"]


def expand_dynamic_broadcast(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a broadcast of a tensor of static shape as a loop nest."""
    operand, shape = op.operands
    source, target = operand.type, op.results[0].type
    if not source.has_static_shape:
        return NoMatch("may expand a dimension that is known at run time only")
    rank = len(target.shape)
    extents = [
        _entry(shape, axis) if target.is_dynamic_dim(axis) else int(target.shape[axis])
        for axis in range(rank)
    ]
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    positions = [
        ir.AffineExpr.get_constant(0) if int(extent) == 1 else ir.AffineExpr.get_dim(axis)
        for axis, extent in zip(axes, source.shape, strict=True)
    ]
    result = linalg.generic(
        [operand],
        linalg.empty(extents, target.element_type, target.encoding),
        [ir.AffineMap.get(rank, 0, positions), linalg.identity_map(rank)],
        lambda element, _: element,
    )
    rewriter.replace_op(op, [result])
    return None


def _entry(shape: Value, axis: int) -> Value:
    """One entry of a shape tensor as an index, through the operations that made it."""
    tensor, position = shape, axis
    while not isinstance(tensor.owner, ir.Block):
        owner = tensor.owner.operation
        if owner.name == "stablehlo.concatenate":
            for operand in owner.operands:
                extent = int(operand.type.shape[0])
                if position < extent:
                    tensor = operand
                    break
                position -= extent
        elif owner.name == "stablehlo.reshape" and tensor.type.shape == [1]:
            tensor = owner.operands[0]
        elif owner.name == "stablehlo.get_dimension_size":
            return linalg.dim(owner.operands[0], int(owner.attributes["dimension"].value))
        elif owner.name == "stablehlo.constant":
            numbers = array_of_dense(owner.attributes["value"]).reshape(-1)
            return linalg.constant_index(int(numbers[position]))
        else:
            break
    indices = [linalg.constant_index(position)] if len(tensor.type.shape) else []
    return emit.scalar(linalg.extract(tensor, indices)).convert(INDEX).value
