"""Contractions and convolutions of dynamic shapes as loop nests that accumulate products.

Symptom: IREE refuses a ``dot_general`` of dynamic shape unless it is a product of two matrices: a
rank-3 activation times a weight of rank 2, a single row or column beside a dynamic size, several
contracted axes. It refuses a convolution with dynamic images, channels or kernels, and one with a
dynamic batch in groups, depthwise ones among them (all targets).
Cause: IREE 3.13 writes a ``dot_general`` as a matrix product between reshapes, and refuses reshapes
of dynamic shapes.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

Each operation becomes one ``linalg.generic``::

    %r = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0]
        : (tensor<?x5x8xi32>, tensor<8x4xi32>) -> tensor<?x5x4xi32>

becomes ::

    %r = linalg.generic (a, b, n, k) ins(%x at (a, b, k), %w at (k, n)) outs(%zeros at (a, b, n)) {
      %p = arith.muli %x, %w
      %s = arith.addi %out, %p
    }

A convolution is padded and dilated first; output pixel ``position`` and kernel element ``tap`` read
the input at ``position * stride + tap * dilation``. Groups are an axis of their own: of input
channels and kernels (``feature_group_count``), or of the batch and kernels (``batch_group_count``).

Source: StableHLO specification, ``dot_general`` and ``convolution``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.windows import dot_axes, window_padding, window_steps
from ...emit import ArrayLike, linalg, stablehlo
from ...emit.operation import constant, element_of, is_dynamic, number_of
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL
from ..base import NoMatch, Replacement
from .loop_nests import dim_size, is_static, pad_and_dilate, split_axis, window_count


def expand_dynamic_dot(op: Operation) -> Replacement:
    """Rewrite a ``dot`` or ``dot_general`` of a dynamic shape as a loop nest."""
    left, right = op.operands
    result = op.results[0].type
    if is_static(left, right, op.results[0]):
        return NoMatch("has a static shape")
    if not _is_of_numbers(op):
        return NoMatch("multiplies complex numbers")
    (left_contracted, right_contracted), (left_batch, right_batch) = dot_axes(op)
    m_axes = _axes_without(left.type.rank, [*left_contracted, *left_batch])
    n_axes = _axes_without(right.type.rank, [*right_contracted, *right_batch])
    if _is_matrix_product(op, [m_axes, n_axes, left_contracted]):
        return NoMatch("is a product of matrices, which IREE takes")
    numbers = itertools.count()
    batch, m, n, k = (
        {axis: next(numbers) for axis in axes}
        for axes in (left_batch, m_axes, n_axes, left_contracted)
    )
    right_loops = (
        dict(zip(right_batch, batch.values(), strict=True))
        | n
        | dict(zip(right_contracted, k.values(), strict=True))
    )
    sizes = [
        *(
            dim_size((left, axis), (right, other))
            for axis, other in zip(left_batch, right_batch, strict=True)
        ),
        *(dim_size((left, axis)) for axis in m_axes),
        *(dim_size((right, axis)) for axis in n_axes),
    ]
    count = len(sizes) + len(k)
    maps = [
        ir.AffineMap.get(count, 0, [ir.AffineExpr.get_dim(d[a]) for a in range(value.type.rank)])
        for value, d in ((left, batch | m | k), (right, right_loops))
    ]
    products = _accumulated([left, right], maps, sizes, element_type(result))
    return linalg.cast(products, result)


def _is_matrix_product(op: Operation, axes: Sequence[Sequence[int]]) -> bool:
    """True for one M, one N and one K axis, none of them of one element."""
    if any(len(each) != 1 for each in axes):
        return False
    left, right = (list(map(int, value.type.shape)) for value in op.operands)
    (m_axis,), (n_axis,), (k_axis,) = axes
    return 1 not in (left[m_axis], right[n_axis], left[k_axis])


def _axes_without(rank: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


def expand_dynamic_convolution(op: Operation) -> Replacement:
    """Rewrite a ``convolution`` of the layout ``[b, 0, f]x[0, i, o]->[b, 0, f]`` as a loop nest."""
    operand, kernel = op.operands
    result = op.results[0].type
    feature_groups, batch_groups = (
        int(op.attributes[f"{name}_group_count"].value) for name in ("feature", "batch")
    )
    if _is_static_but_batch(op) and feature_groups == batch_groups == 1:
        return NoMatch("is a convolution of a dynamic batch at most, which IREE takes")
    if is_static(operand, kernel, op.results[0]):
        return NoMatch("has a static shape")
    if not _is_of_numbers(op):
        return NoMatch("multiplies complex numbers")
    count = result.rank - 2
    padding = np.pad(window_padding(op, count), ((1, 1), (0, 0)))
    operand = pad_and_dilate(operand, padding, [1, *window_steps(op, "lhs_dilation", count), 1])
    strides, dilations = (
        window_steps(op, name, count) for name in ("window_strides", "rhs_dilation")
    )
    positions = [
        window_count((operand, 1 + axis), (kernel, axis), strides[axis], dilations[axis])
        for axis in range(count)
    ]
    features = [dim_size((kernel, count + 1))]
    batch = [dim_size((operand, 0))]

    # The loops: batch, positions, group, features of a group; taps, channels of a group.
    rank = 2 * count + 4
    loop = [ir.AffineExpr.get_dim(number) for number in range(rank)]
    b, at, (g, o) = loop[0], loop[1 : count + 1], loop[count + 1 : count + 3]
    taps, c = loop[count + 3 : -1], loop[-1]
    read = [
        position * stride + tap * dilation
        for position, stride, tap, dilation in zip(at, strides, taps, dilations, strict=True)
    ]
    groups = feature_groups * batch_groups
    kernel = split_axis(kernel, count + 1, groups)
    if batch_groups > 1:
        operand = split_axis(operand, 0, groups)
        batch = [dim_size((operand, 1))]
        dimensions = [g, b, *read, c]
    else:
        operand = split_axis(operand, count + 1, groups)
        dimensions = [b, *read, g, c]
    maps = [ir.AffineMap.get(rank, 0, exprs) for exprs in (dimensions, [*taps, c, g, o])]
    sizes = [*batch, *positions, groups, dim_size((kernel, count + 2))]
    products = _accumulated([operand, kernel], maps, sizes, element_type(result))
    joined = [[axis] for axis in range(count + 1)] + [[count + 1, count + 2]]
    shape = [each if isinstance(each, int) else None for each in (*batch, *positions, *features)]
    products = linalg.collapse(products, joined, shape)
    return linalg.cast(products, result)


def _is_static_but_batch(op: Operation) -> bool:
    """True if the channels, the kernel, and the result except for its batch are static."""
    operand, kernel = op.operands
    sizes = [*list(op.results[0].type.shape)[1:], *kernel.type.shape, operand.type.shape[-1]]
    return not any(is_dynamic(int(size)) for size in sizes)


def _is_of_numbers(op: Operation) -> bool:
    """True if operands and result have integers or floats."""
    kinds = (ir.IntegerType, ir.FloatType)
    return all(isinstance(element_type(v.type), kinds) for v in (*op.operands, *op.results))


def _accumulated(
    operands: Sequence[Value],
    maps: Sequence[ir.AffineMap],
    sizes: Sequence[linalg.DimSize],
    element: ir.Type,
) -> Value:
    """The accumulated products of two tensors with these indexing maps.

    The result has the sizes and the element; its axes are the first loops, the other loops are
    reductions. Operands of more bits are accumulated in their own type.
    """
    target = element
    for operand in operands:
        if element_type(operand.type).width > element.width:
            element = element_type(operand.type)
    start = linalg.filled(sizes, constant(number_of(element, 0)))
    rank, loops = len(sizes), maps[0].n_dims
    kind = element_of(element)
    multiply, add = (np.bitwise_and, np.bitwise_or) if kind == BOOL else (np.multiply, np.add)

    def accumulate(left: Value, right: Value, accumulator: Value) -> Value:
        terms = [convert(emit.scalar(each), kind) for each in (left, right)]
        accumulated: ArrayLike = add(emit.scalar(accumulator), multiply(*terms))
        return accumulated.value

    result_map = ir.AffineMap.get(loops, 0, [ir.AffineExpr.get_dim(n) for n in range(rank)])
    kinds: list[linalg.Iterator] = ["parallel"] * rank
    kinds += ["reduction"] * (loops - rank)
    accumulators = linalg.generic(operands, start, [*maps, result_map], accumulate, kinds)
    return stablehlo.convert(accumulators, target)
