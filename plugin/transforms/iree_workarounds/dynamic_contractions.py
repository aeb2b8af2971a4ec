"""Contractions and convolutions of dynamic shapes, as loop nests of products that are added up.

IREE 3.13 writes a ``dot_general`` as a matrix product between reshapes, and refuses reshapes of
dynamic shapes: a rank-3 activation times a weight of rank 2, a single row or column beside a
dynamic extent, several contracted axes. It refuses a convolution of dynamic images, channels or
kernels, and one of a dynamic batch in groups, depthwise ones among them. Each is one
``linalg.generic``::

    %r = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0]
        : (tensor<?x5x8xi32>, tensor<8x4xi32>) -> tensor<?x5x4xi32>

becomes ::

    %r = linalg.generic (a, b, n, k) ins(%x at (a, b, k), %w at (k, n)) outs(%zeros at (a, b, n)) {
      %p = arith.muli %x, %w
      %s = arith.addi %out, %p
    }

A convolution is padded and dilated before, and reads the input at ``position * stride + tap *
dilation``. Groups are an axis of their own: of input channels and kernels (``feature_group_count``)
or of the batch and kernels (``batch_group_count``).

Source: StableHLO specification, ``dot_general`` and ``convolution``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...dialects.windows import dot_axes, window_padding, window_steps
from ...emit import Formula, linalg, stablehlo
from ...emit.operation import constant, element_of, is_dynamic, number_of
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL
from ..base import NoMatch

__all__ = ["expand_dynamic_convolution", "expand_dynamic_dot", "extent_of", "window_count"]


def expand_dynamic_dot(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``dot`` or ``dot_general`` of a dynamic shape as a loop nest."""
    left, right = op.operands
    result = op.results[0].type
    if all(type_.has_static_shape for type_ in (left.type, right.type, result)):
        return NoMatch("has a static shape")
    if not _has_products(op):
        return NoMatch("multiplies complex numbers")
    (left_contracted, right_contracted), (left_batch, right_batch) = dot_axes(op)
    rows = _axes_without(left.type.rank, [*left_contracted, *left_batch])
    columns = _axes_without(right.type.rank, [*right_contracted, *right_batch])
    if _is_matrix_product(op, [rows, columns, left_contracted]):
        return NoMatch("is a product of matrices, which IREE takes")
    numbers = itertools.count()
    loops = [
        {axis: next(numbers) for axis in axes}
        for axes in (left_batch, rows, columns, left_contracted)
    ]
    of_batch, of_rows, of_columns, of_contracted = loops
    right_loops = (
        dict(zip(right_batch, of_batch.values(), strict=True))
        | of_columns
        | dict(zip(right_contracted, of_contracted.values(), strict=True))
    )
    left_loops = of_batch | of_rows | of_contracted
    extents = [
        *(
            extent_of((left, axis), (right, other))
            for axis, other in zip(left_batch, right_batch, strict=True)
        ),
        *(extent_of((left, axis)) for axis in rows),
        *(extent_of((right, axis)) for axis in columns),
    ]
    count = sum(map(len, loops))
    maps = [
        _map(count, [ir.AffineExpr.get_dim(loop[axis]) for axis in range(value.type.rank)])
        for value, loop in ((left, left_loops), (right, right_loops))
    ]
    products = _products_added([left, right], maps, extents, count, element_type(result))
    rewriter.replace_op(op, [linalg.cast(products, result)])
    return None


def _is_matrix_product(op: Operation, axes: Sequence[Sequence[int]]) -> bool:
    """True for one row axis, column axis and contracted axis, none of them of one element."""
    if any(len(each) != 1 for each in axes):
        return False
    shapes = [list(map(int, value.type.shape)) for value in op.operands]
    (row,), (column,), (contracted,) = axes
    return 1 not in (shapes[0][row], shapes[1][column], shapes[0][contracted])


def _axes_without(rank: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


# -- convolutions ---------------------------------------------------------------------------------


def expand_dynamic_convolution(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``convolution`` of the layout ``[b, 0, f]x[0, i, o]->[b, 0, f]`` as a loop nest."""
    operand, kernel = op.operands
    result = op.results[0].type
    groups, of_batch = (
        int(op.attributes[f"{name}_group_count"].value) for name in ("feature", "batch")
    )
    if _is_taken(op) and groups == of_batch == 1:
        return NoMatch("is a convolution of a dynamic batch at most, which IREE takes")
    if all(type_.has_static_shape for type_ in (operand.type, kernel.type, result)):
        return NoMatch("has a static shape")
    if not _has_products(op):
        return NoMatch("multiplies complex numbers")
    count = result.rank - 2
    operand = _padded(op, operand, count)
    strides, within = (window_steps(op, name, count) for name in ("window_strides", "rhs_dilation"))
    positions = [
        window_count((operand, 1 + axis), (kernel, axis), strides[axis], within[axis])
        for axis in range(count)
    ]
    features = [extent_of((kernel, count + 1))]
    batch = [extent_of((operand, 0))]

    # The loops: batch, positions, group, features of a group; taps, channels of a group.
    rank = 2 * count + 4
    loop = [ir.AffineExpr.get_dim(number) for number in range(rank)]
    b, at, (g, o) = loop[0], loop[1 : count + 1], loop[count + 1 : count + 3]
    taps, c = loop[count + 3 : -1], loop[-1]
    read = [
        position * stride + tap * step
        for position, stride, tap, step in zip(at, strides, taps, within, strict=True)
    ]
    number = groups * of_batch
    kernel = _split(kernel, count + 1, number)
    if of_batch > 1:
        operand = _split(operand, 0, number)
        batch = [extent_of((operand, 1))]
        dimensions = [g, b, *read, c]
    else:
        operand = _split(operand, count + 1, number)
        dimensions = [b, *read, g, c]
    maps = [_map(rank, dimensions), _map(rank, [*taps, c, g, o])]
    extents = [*batch, *positions, number, extent_of((kernel, count + 2))]
    products = _products_added([operand, kernel], maps, extents, rank, element_type(result))
    joined = [[axis] for axis in range(count + 1)] + [[count + 1, count + 2]]
    shape = [each if isinstance(each, int) else None for each in (*batch, *positions, *features)]
    products = linalg.collapse(products, joined, shape)
    rewriter.replace_op(op, [linalg.cast(products, result)])
    return None


def _is_taken(op: Operation) -> bool:
    """True if the channels, the kernel, and the result but for its batch are static."""
    operand, kernel = op.operands
    extents = [*list(op.results[0].type.shape)[1:], *kernel.type.shape, operand.type.shape[-1]]
    return not any(is_dynamic(int(extent)) for extent in extents)


def _padded(op: Operation, operand: Value, count: int) -> Value:
    """The input of a convolution with zeros around and between its elements."""
    padding = window_padding(op, count)
    between = [step - 1 for step in window_steps(op, "lhs_dilation", count)]
    if not (padding.any() or any(between)):
        return operand
    low, high = ([0, *map(int, padding[:, side]), 0] for side in (0, 1))
    return stablehlo.pad(operand, low, high, [0, *between, 0])


def _split(value: Value, axis: int, groups: int) -> Value:
    """Make an axis one of groups, and one of the elements of a group."""
    shape = [extent_of((value, other)) for other in range(value.type.rank)]
    extent = shape[axis]
    shape[axis : axis + 1] = [
        groups,
        extent // groups if isinstance(extent, int) else linalg.block_of(extent, groups),
    ]
    axes = [
        [other] if other < axis else [axis, axis + 1] if other == axis else [other + 1]
        for other in range(value.type.rank)
    ]
    return linalg.expand(value, axes, shape)


# -- pieces ---------------------------------------------------------------------------------------


def extent_of(*axes: tuple[Value, int]) -> linalg.Extent:
    """The extent that axes of tensors have in common; a number if one of them is static."""
    for tensor, axis in axes:
        if not tensor.type.is_dynamic_dim(axis):
            return int(tensor.type.shape[axis])
    return linalg.dim(*axes[0])


def window_count(
    operand: tuple[Value, int], window: tuple[Value, int] | int, stride: int, step: int
) -> linalg.Extent:
    """The number of windows along an axis: ``(extent - ((size - 1) * step + 1)) / stride + 1``.

    Args:
        operand: a tensor that is padded, and its axis.
        window: the size of a window, or a tensor and its axis that has it.
        stride, step: the distance of windows, and that of the elements of one.
    """
    extent = extent_of(operand)
    size = window if isinstance(window, int) else extent_of(window)
    if isinstance(extent, int) and isinstance(size, int):
        return max((extent - (size - 1) * step - 1) // stride + 1, 0)
    whole, single = (
        each if isinstance(each, int) else emit.scalar(each) for each in (extent, size)
    )
    free: Formula = whole - (single - 1) * step - 1
    # Division rounds toward zero: a window that does not fit is none.
    moved = np.maximum(free + stride, 0)
    return linalg.block_of(moved.value, stride)


def _has_products(op: Operation) -> bool:
    """True if the factors and the sum are integers or floats."""
    kinds = (ir.IntegerType, ir.FloatType)
    return all(isinstance(element_type(v.type), kinds) for v in (*op.operands, *op.results))


def _map(loops: int, results: Sequence[ir.AffineExpr]) -> ir.AffineMap:
    return ir.AffineMap.get(loops, 0, list(results))


def _products_added(
    factors: Sequence[Value],
    maps: Sequence[ir.AffineMap],
    extents: Sequence[linalg.Extent],
    loops: int,
    element: ir.Type,
) -> Value:
    """The sums of products of two tensors.

    Args:
        factors, maps: the tensors, and where each is read.
        extents: of the result, whose axes are the first loops.
        loops: how many there are; the others add up.
        element: of the result. Factors of more bits are added up as they are.
    """
    target = element
    for factor in factors:
        if element_type(factor.type).width > element.width:
            element = element_type(factor.type)
    start = linalg.filled(extents, constant(number_of(element, 0)))
    rank = len(extents)
    kind = element_of(element)

    def add(left: Value, right: Value, total: Value) -> Value:
        product, sum_ = (np.bitwise_and, np.bitwise_or) if kind == BOOL else (np.multiply, np.add)
        terms = [convert(emit.scalar(each), kind) for each in (left, right)]
        added: Formula = sum_(emit.scalar(total), product(*terms))
        return added.value

    result_map = _map(loops, [ir.AffineExpr.get_dim(number) for number in range(rank)])
    kinds: list[linalg.Iterator] = ["parallel"] * rank
    kinds += ["reduction"] * (loops - rank)
    accumulators = linalg.generic(factors, start, [*maps, result_map], add, kinds)
    return stablehlo.convert(accumulators, target)
