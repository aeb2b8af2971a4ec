"""``expand-stablehlo``: StableHLO operations that IREE refuses, written with others.

IREE 3.13 refuses

* ``reverse`` of narrow integers and a convolution's ``window_reversal``: they become loops over a
  decreasing map, which its verifier takes for out of bounds. A ``gather`` of decreasing positions
  does the same.
* ``dynamic_broadcast_in_dim`` where the loops are written before IREE sees them: the shape is then
  a tensor of ``index``, which must not cross a dispatch. A loop nest whose extents are
  ``tensor.dim`` of the values that the shape was made of does the same.
* ``batch_norm_grad``, for which it has no lowering: its definition in the specification is written
  out.
* a convolution whose result has one position along a window that leaves some of the operand unread:
  its verifier takes the extents for wrong. The rest is cut off.
* a depthwise convolution of integers into wider ones: the operands are widened before.

and gives wrong results for

* ``gather`` out of bounds, where it makes a selection of rows that reads whatever is there, and
  ``scatter`` out of bounds, where it writes there, or the process ends: `iree.index_bounds`.
* ``dynamic_slice`` and ``dynamic_update_slice`` with start indices of fewer than 32 bits, which it
  takes for unsigned.
* ``sort`` with ``is_stable``, which it ignores (`iree.stable_sort`), or a negative dimension.
* ``add`` of i1, which is a logical or.
* a convolution of another layout than ``[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`` on Vulkan, where
  it is written as loops before IREE sees it: operands and result are transposed.

Before::

    %r = stablehlo.reverse %x, dims = [1] : tensor<3x4xi4>

After::

    %i = stablehlo.constant dense<[3, 2, 1, 0]> : tensor<4xi32>
    %r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [0], ...>}

Source: StableHLO specification, ``reverse``, ``convolution`` and ``batch_norm_grad``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._mlir import ir, stablehlo
from ..dialects.dense import array_of_dense, dense_of_array
from ..dialects.quant import element_type
from .base import Builder, ModulePass, NoMatch, Pattern, apply_patterns, walk
from .iree.index_bounds import clamp_gather, contain_scatter, widen_starts
from .iree.stable_sort import stabilize_sort

__all__ = ["ExpandStablehlo"]


@dataclass(frozen=True)
class ExpandStablehlo(ModulePass):
    """Write the StableHLO operations that IREE refuses with others.

    Options:
        split_groups: write a convolution of a few groups as one for each (Vulkan, where the loops
            that IREE is given for it are wrong).
    """

    name: ClassVar[str] = "expand-stablehlo"

    split_groups: bool = False

    def run(self, module: ir.Operation) -> None:
        """Rewrite `module`."""
        names = {op.name for op in walk(module)}
        for patterns in (_BOUNDS, _PATTERNS):  # what the first make is for the second
            if names & patterns.keys():
                apply_patterns(module, patterns)
                names = {op.name for op in walk(module)}
        if self.split_groups:
            apply_patterns(module, {"stablehlo.convolution": _split_groups})


# -- reversal -------------------------------------------------------------------------------------


def _reverse(op: Any, rewriter: Any) -> NoMatch | None:
    axes = [int(axis) for axis in op.attributes["dimensions"]]
    if any(op.operands[0].type.is_dynamic_dim(axis) for axis in axes):
        return NoMatch("reverses a dynamic dimension")
    rewriter.replace_op(op, [_reversed(op.operands[0], axes)])
    return None


def _reversed(value: Any, axes: list[int]) -> Any:
    for axis in axes:
        shape = [int(extent) for extent in value.type.shape]
        if shape[axis] < 2:
            continue
        b, rank = Builder(), len(shape)
        positions = np.arange(shape[axis])[::-1].astype(np.int64)
        indices = dense_of_array(positions, b.i32)
        others = [other for other in range(rank) if other != axis]
        numbers = (
            f"#stablehlo.gather<offset_dims = {others}, collapsed_slice_dims = [{axis}], "
            f"start_index_map = [{axis}], index_vector_dim = 1>"
        )
        if any(value.type.is_dynamic_dim(other) for other in others):
            return _reversed_dynamically(value, axes)
        sizes = [1 if other == axis else extent for other, extent in enumerate(shape)]
        constant = b.op("stablehlo.constant", [], indices.type, {"value": indices})
        value = b.op(
            "stablehlo.gather",
            [value, constant],
            value.type,
            {
                "dimension_numbers": ir.Attribute.parse(numbers),
                "slice_sizes": ir.DenseI64ArrayAttr.get(sizes),
                "indices_are_sorted": ir.BoolAttr.get(False),
            },
        )
    return value


def _reversed_dynamically(value: Any, axes: list[int]) -> Any:
    """Leave the operation where another extent is not known: a gather's slices are static."""
    return Builder().op(
        "stablehlo.reverse", [value], value.type, {"dimensions": ir.DenseI64ArrayAttr.get(axes)}
    )


def _convolution(op: Any, rewriter: Any) -> NoMatch | None:
    changed = [_in_plain_layout(op), _reverse_window(op), _cut_unread(op), _widen_depthwise(op)]
    return None if any(changed) else NoMatch("is a convolution that IREE takes")


def _in_plain_layout(op: Any) -> bool:
    """Transpose a convolution to ``[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]``."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    orders = [
        [
            numbers.input_batch_dimension,
            *numbers.input_spatial_dimensions,
            numbers.input_feature_dimension,
        ],
        [
            *numbers.kernel_spatial_dimensions,
            numbers.kernel_input_feature_dimension,
            numbers.kernel_output_feature_dimension,
        ],
        [
            numbers.output_batch_dimension,
            *numbers.output_spatial_dimensions,
            numbers.output_feature_dimension,
        ],
    ]
    if all(order == sorted(order) for order in orders):
        return False
    for number in (0, 1):
        op.operands[number] = _transposed(op.operands[number], orders[number])
    spatial = "".join(f"{axis}, " for axis in range(len(orders[0]) - 2))
    plain = f"[b, {spatial}f]x[{spatial}i, o]->[b, {spatial}f]"
    op.attributes["dimension_numbers"] = ir.Attribute.parse(f"#stablehlo.conv<{plain}>")
    result = op.results[0]
    users = [(use.owner, use.operand_number) for use in result.uses]
    shape = [int(result.type.shape[axis]) for axis in orders[2]]
    result.set_type(ir.RankedTensorType.get(shape, result.type.element_type, result.type.encoding))
    back = [orders[2].index(axis) for axis in range(len(shape))]
    with ir.InsertionPoint.after(op):
        value = _transposed(result, back)
    for owner, number in users:
        owner.operands[number] = value
    return True


_MOST_SPLIT = 16


def _split_groups(op: Any, rewriter: Any) -> NoMatch | None:
    """One convolution a group, of its part of the operands; the results side by side."""
    counts = {
        kind: int(op.attributes[f"{kind}_group_count"].value) for kind in ("feature", "batch")
    }
    groups = max(counts.values())
    kernel = op.operands[1].type
    spatial = len(kernel.shape) - 2
    static = all(value.type.has_static_shape for value in (*op.operands, *op.results))
    depthwise = counts["feature"] > 1 and int(kernel.shape[spatial]) == 1
    if not 1 < groups <= _MOST_SPLIT or depthwise or not static:
        return NoMatch("has no groups to split")
    of_batch = counts["batch"] > 1
    features = spatial + 1
    b, type_ = Builder(), op.results[0].type
    shape = [int(n) for n in type_.shape]
    part_type = ir.RankedTensorType.get(
        [*shape[:features], shape[features] // groups], type_.element_type, type_.encoding
    )
    one = ir.IntegerAttr.get(b.i64, 1)
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes |= {"feature_group_count": one, "batch_group_count": one}
    parts = []
    for group in range(groups):
        left = _part(b, op.operands[0], 0 if of_batch else features, group, groups)
        right = _part(b, op.operands[1], features, group, groups)
        parts.append(b.op("stablehlo.convolution", [left, right], part_type, attributes))
    side_by_side = {"dimension": ir.IntegerAttr.get(b.i64, features)}
    rewriter.replace_op(op, [b.op("stablehlo.concatenate", parts, type_, side_by_side)])
    return None


def _part(b: Builder, value: Any, axis: int, number: int, count: int) -> Any:
    """One of `count` equal parts of a tensor along an axis."""
    type_ = value.type
    shape = [int(n) for n in type_.shape]
    size = shape[axis] // count
    start, limit = [0] * len(shape), list(shape)
    start[axis], limit[axis], shape[axis] = number * size, (number + 1) * size, size
    return b.op(
        "stablehlo.slice",
        [value],
        ir.RankedTensorType.get(shape, type_.element_type, type_.encoding),
        {
            "start_indices": ir.DenseI64ArrayAttr.get(start),
            "limit_indices": ir.DenseI64ArrayAttr.get(limit),
            "strides": ir.DenseI64ArrayAttr.get([1] * len(shape)),
        },
    )


def _transposed(value: Any, order: list[int]) -> Any:
    if order == sorted(order):
        return value
    type_ = value.type
    shape = [int(type_.shape[axis]) for axis in order]
    return Builder().op(
        "stablehlo.transpose",
        [value],
        ir.RankedTensorType.get(shape, type_.element_type, type_.encoding),
        {"permutation": ir.DenseI64ArrayAttr.get(order)},
    )


def _reverse_window(op: Any) -> bool:
    if "window_reversal" not in op.attributes:
        return False
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.kernel_spatial_dimensions)
    flags = str(op.attributes["window_reversal"]).partition(":")[2].strip(" >").split(",")
    reverses = [flag.strip() == "true" for flag in flags if flag.strip()]
    axes = [axis for axis, flag in zip(spatial, reverses, strict=True) if flag]
    kernel = op.operands[1]
    if any(kernel.type.is_dynamic_dim(axis) for axis in axes):
        return False
    op.operands[1] = _reversed(kernel, axes)
    del op.attributes["window_reversal"]
    return True


def _cut_unread(op: Any) -> bool:
    """Cut the end of the left operand that no window reads, where the result has one position."""
    value, kernel, result = op.operands[0], op.operands[1].type, op.results[0].type
    shapes = (value.type, kernel, result)
    if not all(type_.has_static_shape for type_ in shapes):
        return False
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    count = len(spatial)
    ones = [1] * count
    dilates = integers_of(op, "lhs_dilation", ones) != ones
    padding, dilation = padding_of(op, count), integers_of(op, "rhs_dilation", ones)
    if dilates:
        if all(int(result.shape[axis]) != 1 for axis in numbers.output_spatial_dimensions):
            return False
        if not isinstance(value.type.element_type, (ir.IntegerType, ir.FloatType)):
            return False
        value = _dilate(op, spatial)
    limits, cut = [int(n) for n in value.type.shape], dilates
    for position, axis in enumerate(spatial):
        window = int(kernel.shape[numbers.kernel_spatial_dimensions[position]])
        if int(result.shape[numbers.output_spatial_dimensions[position]]) != 1:
            continue
        read = (window - 1) * dilation[position] + 1
        unread = limits[axis] + int(padding[position].sum()) - read
        if unread <= 0:
            continue
        cut = True
        from_padding = min(unread, max(int(padding[position, 1]), 0))
        padding[position, 1] -= from_padding
        limits[axis] -= unread - from_padding
    if not cut:
        return False
    b, rank = Builder(), len(limits)
    if limits != [int(n) for n in value.type.shape]:
        op.operands[0] = b.op(
            "stablehlo.slice",
            [value],
            ir.RankedTensorType.get(limits, value.type.element_type),
            {
                "start_indices": ir.DenseI64ArrayAttr.get([0] * rank),
                "limit_indices": ir.DenseI64ArrayAttr.get(limits),
                "strides": ir.DenseI64ArrayAttr.get([1] * rank),
            },
        )
    op.attributes["padding"] = dense_of_array(padding, b.i64)
    return True


def _dilate(op: Any, spatial: list[int]) -> Any:
    """Write a convolution's left dilation as a pad; return the new left operand."""
    value = op.operands[0]
    element, shape = value.type.element_type, [int(n) for n in value.type.shape]
    interior = [0] * len(shape)
    for axis, step in zip(spatial, integers_of(op, "lhs_dilation", []), strict=True):
        interior[axis] = step - 1
        shape[axis] = max((shape[axis] - 1) * step + 1, 0)
    b, none = Builder(), ir.DenseI64ArrayAttr.get([0] * len(shape))
    scalar = ir.RankedTensorType.get([], element)
    zero = ir.DenseElementsAttr.get_splat(scalar, _zero(element))
    attributes = {
        "edge_padding_low": none,
        "edge_padding_high": none,
        "interior_padding": ir.DenseI64ArrayAttr.get(interior),
    }
    operands = [value, b.op("stablehlo.constant", [], scalar, {"value": zero})]
    type_ = ir.RankedTensorType.get(shape, element, value.type.encoding)
    op.operands[0] = b.op("stablehlo.pad", operands, type_, attributes)
    del op.attributes["lhs_dilation"]
    return op.operands[0]


def _widen_depthwise(op: Any) -> bool:
    element, wide = element_type(op.operands[0].type), element_type(op.results[0].type)
    groups = int(op.attributes["feature_group_count"].value)
    if groups == 1 or not isinstance(element, ir.IntegerType) or element == wide:
        return False
    b = Builder()
    for number in (0, 1):
        type_ = op.operands[number].type
        widened = ir.RankedTensorType.get(list(type_.shape), wide, type_.encoding)
        value = b.op("stablehlo.convert", [op.operands[number]], widened)
        # IREE would take the conversion back into the convolution.
        op.operands[number] = b.op("stablehlo.optimization_barrier", [value], widened)
    return True


def integers_of(op: Any, name: str, default: list[int]) -> list[int]:
    """An attribute of integers, or the default where it is left out."""
    if name not in op.attributes:
        return default
    return [int(value) for value in op.attributes[name]]


def padding_of(op: Any, count: int) -> Any:
    """A convolution's padding: (low, high) for each of `count` spatial dimensions."""
    padding = np.zeros((count, 2), np.int64)
    if "padding" in op.attributes:
        padding += np.array(op.attributes["padding"]).reshape(-1, 2)
    return padding


# -- gather and add -------------------------------------------------------------------------------


def _gather(op: Any, rewriter: Any) -> NoMatch | None:
    return clamp_gather(op)


def _starts(op: Any, rewriter: Any) -> NoMatch | None:
    return widen_starts(op)


def _scatter(op: Any, rewriter: Any) -> NoMatch | None:
    return _replaced(contain_scatter(op), rewriter, op)


def _sort(op: Any, rewriter: Any) -> NoMatch | None:
    axis = int(op.attributes["dimension"].value)
    if axis < 0:
        axis += len(op.operands[0].type.shape)
        op.attributes["dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)
    return _replaced(stabilize_sort(op), rewriter, op)


def _replaced(results: list[Any] | NoMatch, rewriter: Any, op: Any) -> NoMatch | None:
    if isinstance(results, NoMatch):
        return results
    rewriter.replace_op(op, results)
    return None


def _zero(element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType):
        return ir.IntegerAttr.get(element, 0)
    return ir.FloatAttr.get(element, 0.0)


def _add(op: Any, rewriter: Any) -> NoMatch | None:
    if element_type(op.results[0].type) != ir.IntegerType.get_signless(1):
        return NoMatch("does not add truth values")
    rewriter.replace_op(op, [Builder().op("stablehlo.or", list(op.operands), op.results[0].type)])
    return None


# -- dynamic broadcasts ---------------------------------------------------------------------------


def _dynamic_broadcast(op: Any, rewriter: Any) -> NoMatch | None:
    source, target = op.operands[0].type, op.results[0].type
    if not source.has_static_shape:
        return NoMatch("may expand a dimension that is known at run time only")
    b = Builder()
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    sizes = [
        _extent(b, op.operands[1], axis)
        for axis in range(len(target.shape))
        if target.is_dynamic_dim(axis)
    ]
    empty = b.op("tensor.empty", sizes, target)
    rank = len(target.shape)
    exprs = []
    for position, axis in enumerate(axes):
        expands = int(source.shape[position]) == 1
        exprs.append(ir.AffineExpr.get_constant(0) if expands else ir.AffineExpr.get_dim(axis))
    maps = [ir.AffineMap.get(rank, 0, exprs), ir.AffineMap.get_identity(rank)]
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    generic = ir.Operation.create(
        "linalg.generic",
        results=[target],
        operands=[op.operands[0], empty],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
            "iterator_types": ir.ArrayAttr.get([parallel] * rank),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
        },
        regions=1,
    )
    element = target.element_type
    block = generic.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", operands=[block.arguments[0]])
    rewriter.replace_op(op, list(generic.results))
    return None


def _extent(b: Builder, shape: Any, axis: int) -> Any:
    """One entry of a shape tensor as an index, through the operations that made it."""
    value, position = shape, axis
    while not isinstance(value.owner, ir.Block):
        owner = value.owner.operation
        if owner.name == "stablehlo.concatenate":
            for operand in owner.operands:
                extent = int(operand.type.shape[0])
                if position < extent:
                    value = operand
                    break
                position -= extent
        elif owner.name == "stablehlo.reshape" and value.type.shape == [1]:
            value = owner.operands[0]
        elif owner.name == "stablehlo.get_dimension_size":
            return b.dim(owner.operands[0], int(owner.attributes["dimension"].value))
        elif owner.name == "stablehlo.constant":
            numbers = array_of_dense(owner.attributes["value"]).reshape(-1)
            return b.constant(int(numbers[position]), b.index)
        else:
            break
    indices = [b.constant(position, b.index)] if len(value.type.shape) else []
    element = b.op("tensor.extract", [value, *indices], element_type(value.type))
    return b.op("arith.index_cast", [element], b.index)


# -- batch normalization --------------------------------------------------------------------------


def _batch_norm_grad(op: Any, rewriter: Any) -> NoMatch | None:
    """The gradients of operand, scale and offset; sums go over all axes but the feature's."""
    operand, scale, mean, variance, grad = op.operands
    if not operand.type.has_static_shape:
        return NoMatch("has a dynamic shape")
    feature = int(op.attributes["feature_index"].value)
    epsilon = float(op.attributes["epsilon"].value)
    type_, vector = operand.type, scale.type
    count = float(np.prod([int(n) for n in type_.shape]) / int(type_.shape[feature]))
    b = Builder()

    def splat(value: float, shaped: Any) -> Any:
        dense = ir.DenseElementsAttr.get_splat(shaped, ir.FloatAttr.get(shaped.element_type, value))
        return b.op("stablehlo.constant", [], shaped, {"value": dense})

    def apply(name: str, *values: Any) -> Any:
        return b.op(f"stablehlo.{name}", list(values), values[0].type)

    def spread(value: Any) -> Any:
        dims = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([feature])}
        return b.op("stablehlo.broadcast_in_dim", [value], type_, dims)

    def total(value: Any) -> Any:
        return _sum(b, value, feature, vector)

    root = apply("sqrt", apply("add", variance, splat(epsilon, vector)))
    centered = apply("subtract", operand, spread(mean))
    normalized = apply("divide", centered, spread(root))
    # i1 .. i6 are the names of the specification's formula.
    i1 = apply("multiply", grad, spread(splat(count, vector)))
    i2 = spread(total(grad))
    i3 = spread(total(apply("multiply", grad, centered)))
    i4 = apply("multiply", i3, centered)
    deviation = spread(apply("add", variance, splat(epsilon, vector)))
    i5 = apply("divide", i4, deviation)
    i6 = apply("subtract", apply("subtract", i1, i2), i5)
    factor = spread(apply("divide", apply("divide", scale, root), splat(count, vector)))
    grad_operand = apply("multiply", factor, i6)
    grad_scale = total(apply("multiply", grad, normalized))
    rewriter.replace_op(op, [grad_operand, grad_scale, total(grad)])
    return None


def _sum(b: Builder, value: Any, feature: int, vector: Any) -> Any:
    scalar = ir.RankedTensorType.get([], vector.element_type)
    zero = ir.DenseElementsAttr.get_splat(scalar, ir.FloatAttr.get(vector.element_type, 0.0))
    init = b.op("stablehlo.constant", [], scalar, {"value": zero})
    axes = [axis for axis in range(len(value.type.shape)) if axis != feature]
    reduce = ir.Operation.create(
        "stablehlo.reduce",
        results=[vector],
        operands=[value, init],
        attributes={"dimensions": ir.DenseI64ArrayAttr.get(axes)},
        regions=1,
    )
    location = ir.Location.current
    block = reduce.regions[0].blocks.append(scalar, scalar, arg_locs=[location] * 2)
    with ir.InsertionPoint(block):
        result = ir.Operation.create(
            "stablehlo.add", results=[scalar], operands=list(block.arguments)
        )
        ir.Operation.create("stablehlo.return", operands=[result.results[0]])
    return reduce.results[0]


_BOUNDS: dict[str, Pattern] = {
    "stablehlo.dynamic_slice": _starts,
    "stablehlo.dynamic_update_slice": _starts,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": _sort,
}
_PATTERNS: dict[str, Pattern] = {
    "stablehlo.add": _add,
    "stablehlo.batch_norm_grad": _batch_norm_grad,
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_broadcast_in_dim": _dynamic_broadcast,
    "stablehlo.reverse": _reverse,
}
