"""Operands that a loop reads only in part, in dispatches of their own.

Symptom: elements of a tensor that another operation reads are never written (all targets).
Cause: IREE 3.13 computes the operand in the dispatch that reads it. If the operand has other
readers, that dispatch also stores it for them, but only at the positions that it reads.
Test: `test_an_operand_that_is_read_in_part_is_still_written_in_part` in
tests/test_iree_limits_numbers.py.

Affected are windows of one element with strides, convolutions of one product with strides, a
``gather`` at constant positions, and linalg loops that do not reduce and read with strides, at
constant positions or on a diagonal. IREE computes operands of reductions over several elements
separately. A gather from a slice, which IREE 3.13 fuses, and then cannot translate ("LLVM
Translation failed"), is separated too: `test_a_gather_from_a_slice_is_still_refused`.

Before::

    %0 = stablehlo.abs %x
    %1 = "stablehlo.reduce_window"(%0, %zero) {window_dimensions = array<i64: 1, 1, 1, 1>,
        window_strides = array<i64: 1, 2, 2, 1>, ...}
    %2 = stablehlo.negate %0

After::

    %0 = stablehlo.abs %x
    %separate = iree_tensor_ext.compute_barrier.start %0
    %1 = "stablehlo.reduce_window"(%separate, %zero) ...
    %2 = stablehlo.negate %0
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, indexing_maps, ir
from ...core._mlir import stablehlo as bindings
from ...dialects.windows import window_steps
from ...emit import linalg
from ...emit.operation import is_dynamic
from ...emit.stablehlo_semantics import reshape_source
from ..base import named, producer_named

_LOOPS = [
    "linalg.generic",
    *(
        f"linalg.{operation}{layout}"
        for operation, layouts in {
            "conv_1d": " _ncw_fcw _nwc_wcf",
            "conv_2d": " _nchw_fchw _nchw_fchw_q _ngchw_fgchw _ngchw_gfchw "
            "_ngchw_gfchw_q _nhwc_fhwc _nhwc_fhwc_q _nhwc_hwcf _nhwc_hwcf_q "
            "_nhwgc_gfhwc _nhwgc_gfhwc_q",
            "conv_3d": " _ncdhw_fcdhw _ndhwc_dhwcf _ndhwc_dhwcf_q",
            "depthwise_conv_1d": "_ncw_cw _nwc_wc _nwc_wcm",
            "depthwise_conv_2d": "_nchw_chw _nhwc_hwc _nhwc_hwc_q _nhwc_hwcm _nhwc_hwcm_q",
            "depthwise_conv_3d": "_ncdhw_cdhw _ndhwc_dhwc _ndhwc_dhwcm",
            "pooling": "_nchw_max _nchw_sum _ncw_max _ncw_sum _ndhwc_max _ndhwc_min "
            "_ndhwc_sum _nhwc_max _nhwc_max_unsigned _nhwc_min "
            "_nhwc_min_unsigned _nhwc_sum _nwc_max _nwc_max_unsigned _nwc_min "
            "_nwc_min_unsigned _nwc_sum",
        }.items()
        for layout in layouts.split(" ")
    ),
]


def separate_partial_reads(module: Operation) -> bool:
    """Compute the operands that loops read in part separately; False if there are none."""
    finders: dict[str, Callable[[Operation], list[int]]] = {
        "stablehlo.reduce_window": _strided_window_operands,
        "stablehlo.convolution": _strided_convolution_operands,
        "stablehlo.gather": _gathered_operands,
        **dict.fromkeys(_LOOPS, _strided_loop_operands),
    }
    is_changed = False
    for op in named(module, finders):
        is_changed |= linalg.separate_operands(op, finders[op.name](op))
    return is_changed


def _gathered_operands(op: Operation) -> list[int]:
    """The operand of a ``gather`` at constant positions, or of one from a slice."""
    source = reshape_source(op.operands[0])
    is_slice = producer_named(source, "stablehlo.slice") is not None
    return [0] if is_slice or not linalg.depends_on_arguments(op.operands[1]) else []


def _strided_window_operands(op: Operation) -> list[int]:
    """The operands that a ``reduce_window`` reads with strides, by number."""
    rank = op.operands[0].type.rank
    sizes, strides = (
        window_steps(op, name, rank) for name in ("window_dimensions", "window_strides")
    )
    has_strides = max(sizes, default=1) == 1 < max(strides, default=1)
    return list(range(len(op.results))) if has_strides else []


def _strided_convolution_operands(op: Operation) -> list[int]:
    """The operands that a ``convolution`` reads with strides, by number."""
    numbers = bindings.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.kernel_spatial_dimensions)
    shape = op.operands[1].type.shape
    products = [shape[axis] for axis in (*spatial, numbers.kernel_input_feature_dimension)]
    strides = window_steps(op, "window_strides", len(spatial))
    return [0] if max(products, default=1) == 1 < max(strides, default=1) else []


def _strided_loop_operands(op: Operation) -> list[int]:
    """The operands that linalg loops read in part, by number."""
    maps = indexing_maps(op)
    operands = list(op.operands)[: len(maps)]
    sizes: dict[int, int] = {}
    for operand, map_ in zip(operands, maps, strict=True):
        for axis, expression in enumerate(map_.results):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = int(operand.type.shape[axis])
    results = {each.position for each in maps[-1].results if isinstance(each, ir.AffineDimExpr)}
    reduced = [size for loop, size in sizes.items() if loop not in results]
    if any(size != 1 and not is_dynamic(size) for size in reduced):
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
