"""Loop nests over dynamic shapes: helpers of the ``dynamic_*`` workarounds.

Sizes of dimensions are `linalg.DimSize`: an int if static, else a value of type ``index``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...emit import ArrayLike, linalg, stablehlo
from ...emit.operation import INDEX
from ...numerics.element_types import Array


def is_static(*values: Value) -> bool:
    """True if all values have static shapes."""
    return all(value.type.has_static_shape for value in values)


def index_scalar(value: Value) -> ArrayLike:
    """A traced scalar of a value of type ``index``."""
    return emit.scalar(value, INDEX)


def dim_size(*axes: tuple[Value, int]) -> linalg.DimSize:
    """The size that axes of several tensors share; an int if it is static in one of them."""
    for tensor, axis in axes:
        if not tensor.type.is_dynamic_dim(axis):
            return int(tensor.type.shape[axis])
    return linalg.dim(*axes[0])


def dilated_size(size: int, dilation: int) -> int:
    """The number of elements of a dilated axis or window."""
    return (size - 1) * dilation + 1 if size else 0


def window_count(
    operand: tuple[Value, int], window: tuple[Value, int] | int, stride: int, dilation: int
) -> linalg.DimSize:
    """The number of windows along an axis: ``(size - ((window - 1) * dilation + 1)) / stride + 1``.

    Args:
        operand: a padded tensor, and its axis.
        window: the size of a window, or a kernel and its axis of that size.
        stride, dilation: the distance of windows, and of the elements of one window.
    """
    size = dim_size(operand)
    window_size = window if isinstance(window, int) else dim_size(window)
    if isinstance(size, int) and isinstance(window_size, int):
        return max((size - (window_size - 1) * dilation - 1) // stride + 1, 0)
    whole, single = (
        each if isinstance(each, int) else emit.scalar(each) for each in (size, window_size)
    )
    last_start: ArrayLike = whole - (single - 1) * dilation - 1
    # Division rounds toward zero, so a negative last start has to give no window.
    return linalg.block_of(np.maximum(last_start + stride, 0).value, stride)


def clamped_start(start: ArrayLike, limit: ArrayLike) -> ArrayLike:
    """A start index between 0 and `limit`, as StableHLO's slices and gathers clamp theirs."""
    return np.maximum(np.minimum(start, limit), 0)


def elements_nest(
    sizes: Sequence[linalg.DimSize], type_: ir.RankedTensorType, element: Callable[[], Value]
) -> Value:
    """A loop nest without inputs over a result of some sizes; `element` emits each element."""
    output = linalg.empty(sizes, type_.element_type, type_.encoding)
    return linalg.generic([], output, [linalg.identity_map(len(sizes))], lambda _: element())


def pad_and_dilate(
    operand: Value, padding: Array, dilations: Sequence[int], fill: Value | None = None
) -> Value:
    """Pad an operand with `fill`, a scalar tensor, at its edges and between its elements.

    `padding` has the low and high padding of each axis, `dilations` the distance of neighboring
    elements in the result. Without `fill` the operand is padded with zeros.
    """
    interior = [dilation - 1 for dilation in dilations]
    if not (padding.any() or any(interior)):
        return operand
    low, high = (list(map(int, padding[:, side])) for side in (0, 1))
    return stablehlo.pad(operand, low, high, interior, fill)


def split_axis(value: Value, axis: int, count: int) -> Value:
    """Split an axis into two: `count` groups, and the elements of a group."""
    sizes = [dim_size((value, other)) for other in range(value.type.rank)]
    size = sizes[axis]
    groups = [
        [other] if other < axis else [axis, axis + 1] if other == axis else [other + 1]
        for other in range(len(sizes))
    ]
    sizes[axis : axis + 1] = [
        count,
        size // count if isinstance(size, int) else linalg.block_of(size, count),
    ]
    return linalg.expand(value, groups, sizes)


def with_copied_body(
    op: Operation,
    operands: Sequence[Value],
    results: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> Operation:
    """Create an operation like `op` that has a copy of its body."""
    clone = op.clone()
    created = emit.like(clone, operands, results, attributes, take_bodies=True)
    clone.erase()
    return created
