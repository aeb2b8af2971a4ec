"""Contractions with a weight whose blocks each have a scale: one loop nest, no float weight.

StableHLO's operations do not take sub-channel types, so a program has the weight dequantized in
front of them. This recognises the pair and writes, for a dot of ``x`` with a weight of storage
``q``, scales ``s`` and zero points ``z``::

    y[m, n] = sum_b sum_k x[m, b, k] * ((q[b, k, n] - z[b, n]) * s[b, n])

as one ``linalg.generic``: each contracted or free axis with blocks is split into (block number,
position in block) in both operands, so that scales are indexed by plain dimensions. Sums are f32
for f16 and bf16, else of the expressed type. A convolution is the same with a window.

Left to the cast's own lowering: ragged or dynamic blocks, blocks along a window, groups, dilated or
reversed windows.

Before::

    %w = quant.dcast %q : tensor<64x8x!quant.uniform<i4:f32:{0:32}, ...>> to tensor<64x8xf32>
    %y = stablehlo.dot %x, %w : (tensor<4x64xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>

After::

    %xb = tensor.expand_shape %x [[0], [1, 2]] : tensor<4x64xf32> into tensor<4x2x32xf32>
    %qb = tensor.expand_shape %s [[0, 1], [2]] : tensor<64x8xi4> into tensor<2x32x8xi4>
    %y = linalg.generic {iterator_types = ["parallel", "parallel", "reduction", "reduction"], ...}
           ins(%xb, %qb, %scales) outs(%zero) { ... } -> tensor<4x8xf32>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._mlir import ir, stablehlo
from ..dialects.dense import dense_of_array
from ..dialects.quant import (
    element_type,
    expressed_mlir_type,
    parameters_of,
    storage_mlir_type,
    storage_of_any,
)
from ..numerics.parameters import ExpressedType, StorageType
from .arithmetic import CastArithmetic, Division
from .base import Builder, NoMatch
from .quantized_values import check_scales, stored

__all__ = ["contract_blocks"]

_CASTS = ("quant.dcast", "subquant.dcast")


@dataclass(frozen=True)
class _Weight:
    """A dequantized operand before it was."""

    stored: Any
    storage: StorageType
    expressed: ExpressedType
    blocks: tuple[int | None, ...]  # for each axis; None for one block
    scales: Any  # an array, or a tensor, with one dimension for each axis that has blocks
    zero_points: Any  # as scales, or None


def contract_blocks(op: Any, division: Division) -> Any | NoMatch:
    """Write a dot or convolution of a dequantized weight over its blocks.

    Returns:
        The result, or why the cast's own lowering has to do.
    """
    for number in (1, 0):
        owner = op.operands[number].owner
        if isinstance(owner, ir.Block):
            continue
        weight = _weight(owner.operation)
        if isinstance(weight, NoMatch):
            return weight
        if weight is None:
            continue
        nest = _window_nest(op, weight) if "conv" in op.name else _dot_nest(op, number, weight)
        return nest if isinstance(nest, NoMatch) else _emit(op, nest, weight, division)
    return NoMatch("has no operand with blocks")


# -- the weight -----------------------------------------------------------------------------------


def _weight(cast: Any) -> _Weight | NoMatch | None:
    if cast.name in _CASTS:
        parameters = parameters_of(cast.operands[0].type, cast)
        type_ = cast.operands[0].type
        if parameters is None or parameters.granularity != "sub-channel":
            return None
        if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
            return NoMatch("has a weight of a dynamic shape")
        check_scales(parameters, cast)
        scales, zero_points = parameters.grids(type_.rank)
        blocks = tuple(
            None if scales.shape[axis] == 1 else parameters.block_size_of(axis)
            for axis in range(type_.rank)
        )
        if _is_ragged(type_, blocks):
            return NoMatch("has a ragged last block")
        kept = [n for n, block in zip(scales.shape, blocks, strict=True) if block]
        return _Weight(
            stored(cast.operands[0]),
            parameters.storage,
            parameters.expressed,
            blocks,
            scales.reshape(kept),
            zero_points.reshape(kept) if zero_points.any() else None,
        )
    if cast.name == "subquant.dequantize":
        described = storage_of_any(cast.attributes["quantized_type"].value, cast)
        assert described is not None  # verified before
        value, scales, *rest = cast.operands
        if not value.type.has_static_shape or not scales.type.has_static_shape:
            return NoMatch("has a weight of a dynamic shape")
        sizes = [int(block) for block in cast.attributes["block_sizes"]]
        blocks = tuple(
            None if int(count) == 1 else size
            for size, count in zip(sizes, scales.type.shape, strict=True)
        )
        if _is_ragged(value.type, blocks):
            return NoMatch("has a ragged last block")
        tensors = [_squeeze(tensor, blocks) for tensor in (scales, *rest)]
        return _Weight(
            value, *described, blocks, tensors[0], tensors[1] if len(tensors) > 1 else None
        )
    return None


def _is_ragged(type_: Any, blocks: Sequence[int | None]) -> bool:
    return any(block and int(n) % block for n, block in zip(type_.shape, blocks, strict=True))


def _squeeze(tensor: Any, blocks: Sequence[int | None]) -> Any:
    """Drop the axes with one block from a tensor of scales or zero points."""
    kept = [int(n) for n, block in zip(tensor.type.shape, blocks, strict=True) if block]
    if len(kept) == tensor.type.rank:
        return tensor
    type_ = ir.RankedTensorType.get(kept, tensor.type.element_type)
    return Builder().op("stablehlo.reshape", [tensor], type_)


# -- loop nests -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loop:
    """A loop over an axis, or two where the weight has blocks along it."""

    extent: Any  # an int, or None where it is dynamic
    block: int | None
    reduces: bool


@dataclass(frozen=True)
class _Nest:
    """Which loops index which axes.

    An axis of `other` is a list of (loop, factor): one loop of factor 1, or a window's sum.
    """

    loops: list[_Loop]
    other: Any
    other_axes: list[list[tuple[int, int]]]
    weight_axes: list[int]
    result_axes: list[int]


def _dot_nest(op: Any, number: int, weight: _Weight) -> _Nest | NoMatch:
    sides = list(op.operands)
    ranks = [len(value.type.shape) for value in sides]
    contracted: list[list[int]]
    batch: list[list[int]]
    if op.name == "stablehlo.dot":
        contracted, batch = [[ranks[0] - 1], [0]], [[], []]
    else:
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        contracted = [
            list(numbers.lhs_contracting_dimensions),
            list(numbers.rhs_contracting_dimensions),
        ]
        batch = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    free = [
        [axis for axis in range(rank) if axis not in contracted[side] and axis not in batch[side]]
        for side, rank in enumerate(ranks)
    ]
    result_rank = len(batch[0]) + len(free[0]) + len(free[1])
    loop_of: list[dict[int, int]] = [{}, {}]
    for side in (0, 1):
        first = len(batch[0]) + (len(free[0]) if side else 0)
        loop_of[side] |= {axis: position for position, axis in enumerate(batch[side])}
        loop_of[side] |= {axis: first + position for position, axis in enumerate(free[side])}
        loop_of[side] |= {a: result_rank + position for position, a in enumerate(contracted[side])}
    own, other = loop_of[number], sides[1 - number]
    count = result_rank + len(contracted[0])
    loops = []
    for loop in range(count):
        axis = next((axis for axis, found in own.items() if found == loop), None)
        there = next((a for a, found in loop_of[1 - number].items() if found == loop), None)
        block = weight.blocks[axis] if axis is not None else None
        if axis is not None:
            extent: Any = int(weight.stored.type.shape[axis])
        else:
            dynamic = other.type.is_dynamic_dim(there)
            extent = None if dynamic else int(other.type.shape[there])
        if block and there is not None and other.type.is_dynamic_dim(there):
            return NoMatch("has blocks along a dimension that is dynamic in the other operand")
        loops.append(_Loop(extent, block, loop >= result_rank))
    other_axes = [[(loop_of[1 - number][axis], 1)] for axis in range(ranks[1 - number])]
    weight_axes = [own[axis] for axis in range(ranks[number])]
    return _Nest(loops, other, other_axes, weight_axes, list(range(result_rank)))


def _window_nest(op: Any, weight: _Weight) -> _Nest | NoMatch:
    if op.name != "stablehlo.convolution":
        return NoMatch("is a convolution whose padding is an operand")
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    count = len(spatial)
    plain = [1] * count
    if not _is_weight(op, 1):
        return NoMatch("has blocks in its left operand")
    if any(int(op.attributes[f"{kind}_group_count"].value) != 1 for kind in ("feature", "batch")):
        return NoMatch("has groups")
    if _integers(op, "lhs_dilation", plain) != plain:
        return NoMatch("dilates its left operand")
    if "window_reversal" in op.attributes and "true" in str(op.attributes["window_reversal"]):
        return NoMatch("reverses its window")
    kernel_spatial = list(numbers.kernel_spatial_dimensions)
    if any(weight.blocks[axis] not in (None, 1) for axis in kernel_spatial):
        return NoMatch("has blocks along its window")
    strides = _integers(op, "window_strides", plain)
    dilation = _integers(op, "rhs_dilation", plain)
    windows = [
        (int(weight.stored.type.shape[axis]) - 1) * step + 1
        for axis, step in zip(kernel_spatial, dilation, strict=True)
    ]
    other = _padded(op, spatial, numbers.output_spatial_dimensions, windows)
    if other is None:
        return NoMatch("has a dynamic shape")
    type_, shape = op.results[0].type, [int(n) for n in weight.stored.type.shape]
    result_rank = count + 2
    feature, output = numbers.kernel_input_feature_dimension, numbers.output_feature_dimension
    loops = [_Loop(int(type_.shape[axis]), None, False) for axis in range(result_rank)]
    out = numbers.kernel_output_feature_dimension
    loops[output] = _Loop(shape[out], weight.blocks[out], False)
    loops += [_Loop(shape[axis], weight.blocks[axis], True) for axis in kernel_spatial]
    loops.append(_Loop(shape[feature], weight.blocks[feature], True))
    other_axes: list[list[tuple[int, int]]] = [[] for _ in range(result_rank)]
    other_axes[numbers.input_batch_dimension] = [(numbers.output_batch_dimension, 1)]
    other_axes[numbers.input_feature_dimension] = [(result_rank + count, 1)]
    weight_axes = [0] * result_rank
    weight_axes[out], weight_axes[feature] = output, result_rank + count
    for position, axis in enumerate(spatial):
        outer = numbers.output_spatial_dimensions[position]
        other_axes[axis] = [
            (outer, strides[position]),
            (result_rank + position, dilation[position]),
        ]
        weight_axes[kernel_spatial[position]] = result_rank + position
    return _Nest(loops, other, other_axes, weight_axes, list(range(result_rank)))


def _is_weight(op: Any, number: int) -> bool:
    owner = op.operands[number].owner
    return not isinstance(owner, ir.Block) and owner.operation.name in (
        *_CASTS,
        "subquant.dequantize",
    )


def _integers(op: Any, name: str, default: list[int]) -> list[int]:
    if name not in op.attributes:
        return default
    return [int(value) for value in op.attributes[name]]


def _padded(op: Any, spatial: Sequence[int], output: Sequence[int], windows: Sequence[int]) -> Any:
    """The left operand with the convolution's padding, or None if its shape is dynamic.

    Where the result has one position, IREE takes elements after its window for wrong: they are cut.
    """
    value = op.operands[0]
    if not value.type.has_static_shape or not op.results[0].type.has_static_shape:
        return None
    padding = np.zeros((len(spatial), 2), np.int64)
    if "padding" in op.attributes:
        given = np.array(op.attributes["padding"]).reshape(-1, 2)
        padding = np.broadcast_to(given, padding.shape)
    padding = padding.copy()
    for number, (axis, out, window) in enumerate(zip(spatial, output, windows, strict=True)):
        if int(op.results[0].type.shape[out]) == 1:
            padding[number, 1] = window - int(value.type.shape[axis]) - padding[number, 0]
    if not padding.any():
        return value
    rank = len(value.type.shape)
    low, high, shape = [0] * rank, [0] * rank, [int(n) for n in value.type.shape]
    for axis, (before, after) in zip(spatial, padding, strict=True):
        low[axis], high[axis] = int(before), int(after)
        if shape[axis] + low[axis] + high[axis] <= 0:  # cuts all there is, or more
            low[axis], high[axis] = 0, -shape[axis]
        shape[axis] += low[axis] + high[axis]
    b, element = Builder(), element_type(value.type)
    zero = dense_of_array(np.zeros((), np.float64), element)
    constant = b.op("stablehlo.constant", [], zero.type, {"value": zero})
    return b.op(
        "stablehlo.pad",
        [value, constant],
        ir.RankedTensorType.get(shape, element),
        {
            "edge_padding_low": ir.DenseI64ArrayAttr.get(low),
            "edge_padding_high": ir.DenseI64ArrayAttr.get(high),
            "interior_padding": ir.DenseI64ArrayAttr.get([0] * rank),
        },
    )


# -- emission -------------------------------------------------------------------------------------


def _emit(op: Any, nest: _Nest, weight: _Weight, division: Division) -> Any:
    b = Builder()
    half = weight.expressed in (ExpressedType.F16, ExpressedType.BF16)
    sum_type = b.f32 if half else expressed_mlir_type(weight.expressed)
    parts, extents = _parts(nest)
    weight_groups = [parts[loop] for loop in nest.weight_axes]
    result_groups = [parts[loop] for loop in nest.result_axes]
    stored_value = _expand(b, weight.stored, weight_groups, extents)
    other_groups = [parts[axis[0][0]] if len(axis) == 1 else [0] for axis in nest.other_axes]
    other = _expand(b, nest.other, other_groups, extents)
    dims = [ir.AffineExpr.get_dim(number) for number in range(len(extents))]
    other_exprs: list[Any] = []
    for axis, group in zip(nest.other_axes, other_groups, strict=True):
        if len(axis) == 1:
            other_exprs += [dims[number] for number in group]
        else:
            terms = [dims[parts[loop][0]] * factor for loop, factor in axis]
            other_exprs.append(terms[0] + terms[1])
    flat = [number for group in weight_groups for number in group]
    block_dims = [
        group[0] for group, block in zip(weight_groups, weight.blocks, strict=True) if block
    ]
    maps = [other_exprs, [dims[number] for number in flat]]
    inputs = [other, stored_value]
    for values, element in (
        (weight.scales, expressed_mlir_type(weight.expressed)),
        (weight.zero_points, storage_mlir_type(weight.storage)),
    ):
        if values is None:
            continue
        inputs.append(_tensor(b, values, element))
        maps.append([dims[number] for number in block_dims])
    result_dims = [number for group in result_groups for number in group]
    maps.append([dims[number] for number in result_dims])
    output = _zeros(b, op, nest, parts, extents, sum_type)
    arithmetic = CastArithmetic(weight.storage, weight.expressed, division=division)

    def body(x: Any, q: Any, scale: Any, *rest: Any) -> Any:
        *zero_point, total = rest
        real = arithmetic.dequantize(b, q, scale, zero_point[0] if zero_point else 0)
        if half:
            x, real = (b.op("arith.extf", [value], b.f32) for value in (x, real))
        product = b.op("arith.mulf", [x, real], sum_type)
        return b.op("arith.addf", [total, product], sum_type)

    kinds = [
        "reduction" if loop.reduces else "parallel"
        for loop, group in zip(nest.loops, parts, strict=True)
        for _ in group
    ]
    result = _generic(b, inputs, output, maps, kinds, body)
    result = _collapse(b, result, result_groups)
    wanted = op.results[0].type
    if sum_type != wanted.element_type:
        plain = ir.RankedTensorType.get(list(result.type.shape), wanted.element_type)
        result = b.op("stablehlo.convert", [result], plain)
    return result if result.type == wanted else b.op("tensor.cast", [result], wanted)


def _parts(nest: _Nest) -> tuple[list[list[int]], list[Any]]:
    """For each loop the loop dimensions it becomes, and the extent of each of these."""
    parts: list[list[int]] = []
    extents: list[Any] = []
    for loop in nest.loops:
        first = len(extents)
        if loop.block and loop.block > 1:
            extents += [loop.extent // loop.block, loop.block]
            parts.append([first, first + 1])
        else:
            extents.append(loop.extent)
            parts.append([first])
    return parts, extents


def _reassociation(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64, position, result = ir.IntegerType.get_signless(64), 0, []
    for group in groups:
        numbers = range(position, position + len(group))
        result.append(ir.ArrayAttr.get([ir.IntegerAttr.get(i64, n) for n in numbers]))
        position += len(group)
    return ir.ArrayAttr.get(result)


def _expand(b: Builder, value: Any, groups: list[list[int]], extents: list[Any]) -> Any:
    """Split the axes that become two loop dimensions."""
    if all(len(group) == 1 for group in groups):
        return value
    shape, sizes = [], []
    for axis, group in enumerate(groups):
        if len(group) == 1 and value.type.is_dynamic_dim(axis):
            shape.append(ir.ShapedType.get_dynamic_size())
            sizes.append(b.dim(value, axis))
        elif len(group) == 1:
            shape.append(int(value.type.shape[axis]))
        else:
            shape += [extents[number] for number in group]
    attributes = {
        "reassociation": _reassociation(groups),
        "static_output_shape": ir.DenseI64ArrayAttr.get(shape),
    }
    type_ = ir.RankedTensorType.get(shape, element_type(value.type))
    return b.op("tensor.expand_shape", [value, *sizes], type_, attributes)


def _collapse(b: Builder, value: Any, groups: list[list[int]]) -> Any:
    if all(len(group) == 1 for group in groups):
        return value
    found, shape, position = value.type, [], 0
    for group in groups:
        numbers = range(position, position + len(group))
        sizes = [int(found.shape[n]) for n in numbers]
        shape.append(sizes[0] if len(group) == 1 else int(np.prod(sizes)))
        position += len(group)
    type_ = ir.RankedTensorType.get(shape, found.element_type)
    return b.op("tensor.collapse_shape", [value], type_, {"reassociation": _reassociation(groups)})


def _tensor(b: Builder, values: Any, element: ir.Type) -> Any:
    """Scales or zero points as a tensor: IREE does not compile bf16 constants for Vulkan."""
    if not isinstance(values, np.ndarray):
        return values
    wide = b.f32 if element == ir.BF16Type.get() else element
    return b.dense(dense_of_array(values, wide))


def _zeros(
    b: Builder, op: Any, nest: _Nest, parts: list[list[int]], extents: list[Any], element: ir.Type
) -> Any:
    """The output to add to: a tensor of zeros."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape, sizes = [], []
    for loop in nest.result_axes:
        for number in parts[loop]:
            if extents[number] is not None:
                shape.append(extents[number])
                continue
            shape.append(dynamic)
            axis = next(a for a, axis in enumerate(nest.other_axes) if axis == [(loop, 1)])
            sizes.append(b.dim(nest.other, axis))
    type_ = ir.RankedTensorType.get(shape, element)
    empty = b.op("tensor.empty", sizes, type_)
    zero = b.constant(0.0, element)
    fill = ir.Operation.create(
        "linalg.fill",
        results=[type_],
        operands=[zero, empty],
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])},
        regions=1,
    )
    block = fill.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", operands=[block.arguments[0]])
    return fill.results[0]


def _generic(
    b: Builder,
    inputs: Sequence[Any],
    output: Any,
    exprs: Sequence[Sequence[Any]],
    kinds: Sequence[str],
    body: Any,
) -> Any:
    maps = [ir.AffineMap.get(len(kinds), 0, list(results)) for results in exprs]
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        "iterator_types": ir.ArrayAttr.get(
            [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
        ),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), 1]),
    }
    generic = ir.Operation.create(
        "linalg.generic",
        results=[output.type],
        operands=[*inputs, output],
        attributes=attributes,
        regions=1,
    )
    elements = [value.type.element_type for value in (*inputs, output)]
    location = ir.Location.current
    block = generic.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    with ir.InsertionPoint(block):
        b.op("linalg.yield", [body(*block.arguments)])
    return generic.results[0]
