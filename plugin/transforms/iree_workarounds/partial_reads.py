"""Loops that read their operand in part, computed apart from it.

IREE 3.13 computes the operand in the dispatch that reads it. If the operand has other readers,
that dispatch also writes it for them, but only at the positions that it reads: the other readers
get numbers that nobody wrote. So the operand is computed apart. Concerned are windows of one
element with strides, convolutions of one product with strides, a ``gather`` at constant positions,
and loops of ``linalg`` that do not add and read with strides, at constant positions or on a
diagonal. Loops that add several elements are computed apart by IREE itself::

    %0 = stablehlo.abs %x
    %1 = "stablehlo.reduce_window"(%0, %zero) {window_dimensions = array<i64: 1, 1, 1, 1>,
        window_strides = array<i64: 1, 2, 2, 1>, ...}
    %2 = stablehlo.negate %0

becomes ::

    %0 = stablehlo.abs %x
    %apart = iree_tensor_ext.compute_barrier.start %0
    %1 = "stablehlo.reduce_window"(%apart, %zero) ...
    %2 = stablehlo.negate %0
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, indexing_maps, ir
from ...core._mlir import stablehlo as bindings
from ...dialects.windows import window_steps
from ...emit import linalg
from ...emit.operation import is_dynamic
from ..base import named

__all__ = ["separate_partial_reads"]

_LOOPS = [
    "linalg.generic",
    "linalg.conv_1d",
    "linalg.conv_1d_ncw_fcw",
    "linalg.conv_1d_nwc_wcf",
    "linalg.conv_2d",
    "linalg.conv_2d_nchw_fchw",
    "linalg.conv_2d_nchw_fchw_q",
    "linalg.conv_2d_ngchw_fgchw",
    "linalg.conv_2d_ngchw_gfchw",
    "linalg.conv_2d_ngchw_gfchw_q",
    "linalg.conv_2d_nhwc_fhwc",
    "linalg.conv_2d_nhwc_fhwc_q",
    "linalg.conv_2d_nhwc_hwcf",
    "linalg.conv_2d_nhwc_hwcf_q",
    "linalg.conv_2d_nhwgc_gfhwc",
    "linalg.conv_2d_nhwgc_gfhwc_q",
    "linalg.conv_3d",
    "linalg.conv_3d_ncdhw_fcdhw",
    "linalg.conv_3d_ndhwc_dhwcf",
    "linalg.conv_3d_ndhwc_dhwcf_q",
    "linalg.depthwise_conv_1d_ncw_cw",
    "linalg.depthwise_conv_1d_nwc_wc",
    "linalg.depthwise_conv_1d_nwc_wcm",
    "linalg.depthwise_conv_2d_nchw_chw",
    "linalg.depthwise_conv_2d_nhwc_hwc",
    "linalg.depthwise_conv_2d_nhwc_hwc_q",
    "linalg.depthwise_conv_2d_nhwc_hwcm",
    "linalg.depthwise_conv_2d_nhwc_hwcm_q",
    "linalg.depthwise_conv_3d_ncdhw_cdhw",
    "linalg.depthwise_conv_3d_ndhwc_dhwc",
    "linalg.depthwise_conv_3d_ndhwc_dhwcm",
    "linalg.pooling_nchw_max",
    "linalg.pooling_nchw_sum",
    "linalg.pooling_ncw_max",
    "linalg.pooling_ncw_sum",
    "linalg.pooling_ndhwc_max",
    "linalg.pooling_ndhwc_min",
    "linalg.pooling_ndhwc_sum",
    "linalg.pooling_nhwc_max",
    "linalg.pooling_nhwc_max_unsigned",
    "linalg.pooling_nhwc_min",
    "linalg.pooling_nhwc_min_unsigned",
    "linalg.pooling_nhwc_sum",
    "linalg.pooling_nwc_max",
    "linalg.pooling_nwc_max_unsigned",
    "linalg.pooling_nwc_min",
    "linalg.pooling_nwc_min_unsigned",
    "linalg.pooling_nwc_sum",
]


def separate_partial_reads(module: Operation) -> bool:
    """Compute apart the operands that loops read in part.

    Returns:
        False if there are none.
    """
    finders: dict[str, Callable[[Operation], list[int]]] = {
        "stablehlo.reduce_window": _of_window,
        "stablehlo.convolution": _of_convolution,
        "stablehlo.gather": _of_gather,
        **dict.fromkeys(_LOOPS, _of_loops),
    }
    is_changed = False
    for op in named(module, finders):
        is_changed |= linalg.set_apart(op, finders[op.name](op))
    return is_changed


def _of_window(op: Operation) -> list[int]:
    """Return the numbers of the operands that a ``reduce_window`` reads with strides."""
    rank = op.operands[0].type.rank
    sizes, strides = (
        window_steps(op, name, rank) for name in ("window_dimensions", "window_strides")
    )
    has_strides = max(sizes, default=1) == 1 < max(strides, default=1)
    return list(range(len(op.results))) if has_strides else []


def _of_convolution(op: Operation) -> list[int]:
    """Return the numbers of the operands that a ``convolution`` reads with strides."""
    numbers = bindings.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.kernel_spatial_dimensions)
    shape = op.operands[1].type.shape
    products = [shape[axis] for axis in (*spatial, numbers.kernel_input_feature_dimension)]
    strides = window_steps(op, "window_strides", len(spatial))
    return [0] if max(products, default=1) == 1 < max(strides, default=1) else []


def _of_gather(op: Operation) -> list[int]:
    """Return the number of the operand that a ``gather`` reads at constant positions."""
    return [] if linalg.is_of_the_call(op.operands[1]) else [0]


def _of_loops(op: Operation) -> list[int]:
    """Return the numbers of the operands that loops of ``linalg`` read in part."""
    maps = indexing_maps(op)
    operands = list(op.operands)[: len(maps)]
    extents: dict[int, int] = {}
    for operand, map_ in zip(operands, maps, strict=True):
        for axis, expression in enumerate(map_.results):
            if isinstance(expression, ir.AffineDimExpr):
                extents[expression.position] = int(operand.type.shape[axis])
    results = {each.position for each in maps[-1].results if isinstance(each, ir.AffineDimExpr)}
    summed = [extent for loop, extent in extents.items() if loop not in results]
    if any(extent != 1 and not is_dynamic(extent) for extent in summed):
        return []
    return [
        number
        for number, (operand, map_) in enumerate(zip(operands, maps, strict=True))
        if isinstance(operand.type, ir.RankedTensorType) and _reads_in_part(map_)
    ]


def _reads_in_part(map_: ir.AffineMap) -> bool:
    """True for a map with a constant, a stride, or one loop for several axes."""
    loops = [each.position for each in map_.results if isinstance(each, ir.AffineDimExpr)]
    return len(set(loops)) < len(loops) or any(map(_is_partial, map_.results))


def _is_partial(expression: ir.AffineExpr) -> bool:
    """True for a constant position, and for one that advances by more than 1."""
    if isinstance(expression, ir.AffineAddExpr):
        return _is_partial(expression.lhs) or _is_partial(expression.rhs)
    return isinstance(expression, (ir.AffineMulExpr, ir.AffineConstantExpr))
