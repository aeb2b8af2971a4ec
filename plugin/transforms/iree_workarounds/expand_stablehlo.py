"""``expand-stablehlo``: StableHLO operations that IREE refuses, written with others.

IREE 3.13 refuses

* ``reverse`` of narrow integers: `iree.reversal`.
* ``dynamic_broadcast_in_dim`` where the loops are written before IREE sees them, or dimensions may
  expand: `iree.dynamic_broadcasts`.
* ``dynamic_pad``, ``dynamic_reshape`` to unknown extents, ``dynamic_gather``, and ``dynamic_conv``
  whose padding is no constant: `iree.dynamic_shapes`.
* of dynamic shapes, ``dot_general`` but for products of matrices, ``convolution`` but for a dynamic
  batch without groups: `iree.dynamic_contractions`; ``reduce_window``: `iree.dynamic_windows`;
  ``gather`` with index vectors of one component: `iree.dynamic_gathers`; ``dynamic_update_slice``:
  `iree.dynamic_updates`; ``pad`` between elements, or of a negative number: `iree.dynamic_shapes`.
* ``select_and_scatter`` of values that are not quantized: `iree.select_and_scatter`.
* ``batch_norm_grad``, for which it has no lowering: `iree.batch_norm`.
* ``einsum`` of integers on Vulkan, and into another element type: `iree.einsum`.
* truth values behind a sum that are returned, and are integers of 8 bits, too:
  `iree.returned_truths`.
* convolutions with ``window_reversal``, of integers in groups, and some of one position:
  `iree.convolutions`.
* ``gather`` in batches whose axes are after that of the index vector: `iree.index_bounds`.
* ``dynamic_slice`` and ``dynamic_update_slice`` of tensors without axes.
* ``reduce_window`` of one position that leaves some of the operand unread: `iree.window_ends`.
* ``reduce_window`` of unsigned integers with padding: `iree.unsigned_windows`.
* ``sort`` along a negative dimension.
* ``get_dimension_size`` of unsigned integers.
* ``scatter`` in batches, with windows along scattered axes, and others: `iree.scatter_axes`.
* ``scf.index_switch`` of several cases: `iree.index_switches`.

and gives wrong results for

* ``gather`` out of bounds, where it makes a selection of rows that reads whatever is there, and
  ``scatter`` out of bounds, where it writes there, or the process ends: `iree.index_bounds`.
* ``dynamic_slice`` and ``dynamic_update_slice`` with start indices of fewer than 32 bits, which it
  takes for unsigned.
* ``sort`` with ``is_stable``, which it ignores: `iree.stable_sort`.
* ``broadcast_in_dim`` whose operand has its axes in another order: `iree.broadcast_axes`.
* ``pad`` between elements whose result is padded again, or inserted, or whose operand is padded;
  dilations of what is padded: `iree.inner_pads`.
* several ``sort``, ``scatter`` or ``dynamic_update_slice`` of equal tensors that are computed from
  no buffer, as two argsorts: `iree.updates_in_place`.
* loops and branches that hand one buffer on several times: `iree.carried_tensors`.
* ``reduce`` over neighboring axes of a tensor with several dynamic extents, beside another use of
  the tensor: `iree.dynamic_reductions`.
* windows of one element with strides, and other loops that read a part of what has other readers:
  `iree.partial_reads`.
* ``add`` of i1, which is a logical or.
* ``dot``, ``dot_general`` and ``convolution`` of unsigned integers, into more bits, and of what is
  converted from such or from truth values: `iree.unsigned_factors`.
* ``atan2``, ``power``, ``cbrt``, ``remainder``, ``ceil`` and ``floor`` of zeros, infinities, NaN or
  subnormals: `iree.special_points`.
* ``batch_norm_training`` on Vulkan, whose sums must not be fused with the rest: `iree.batch_norm`.
* a reduction of more elements than a loop of Mesa's llvmpipe runs: `iree.long_loops`.
* ``dot``, ``dot_general``, ``convolution`` and ``reduce`` of f16 and bf16, which it rounds in
  between, and refuses some of: `iree.half_sums`.
* a convolution of another layout than ``[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`` on Vulkan.

and waits in each iteration of a loop that counts: `iree.counted_loops`; and copies what a loop
updates in place: `iree.held_buffers`.

Before::

    %r = stablehlo.reverse %x, dims = [1] : tensor<3x4xi4>

After::

    %i = stablehlo.constant dense<[3, 2, 1, 0]> : tensor<4xi32>
    %r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [0], ...>}

Source: StableHLO specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ... import emit
from ...core._mlir import Operation, Rewriter, ir
from ...dialects.quant import element_type
from ...errors import Remark
from ..base import UNCHANGED, ModulePass, NoMatch, Pattern, apply_patterns, named
from ..quantization.math.contraction import CONTRACTIONS
from .batch_norm import expand_batch_norm_grad, expand_batch_norm_training
from .broadcast_axes import order_broadcast
from .buffer_iter_args import hand_on_buffers
from .carried_tensors import CARRIES, separate_carried
from .convolutions import expand_convolution, split_groups
from .counted_loops import count_on_host
from .dynamic_broadcasts import expand_dynamic_broadcast
from .dynamic_contractions import expand_dynamic_convolution, expand_dynamic_dot
from .dynamic_gathers import expand_gather
from .dynamic_reductions import reduce_axis_by_axis
from .dynamic_shapes import (
    expand_dynamic_conv,
    expand_dynamic_gather,
    expand_dynamic_pad,
    expand_dynamic_reshape,
    expand_pad,
)
from .dynamic_updates import expand_dynamic_update
from .dynamic_windows import expand_dynamic_window
from .einsum import EINSUMS, expand_einsum
from .exact_divisions import divide_exactly
from .f16_accumulators import widen_bf16_product, widen_product, widen_reduction
from .index_bounds import clamp_gather, contain_scatter, order_indices, widen_starts
from .index_switches import expand_index_switch
from .interior_pads import separate_bytes, separate_dilated, separate_pad
from .long_loops import split_dot, split_reduce
from .narrow_integer_bodies import widen_body
from .partial_reads import separate_partial_reads
from .returned_booleans import separate_truths
from .reversal import expand_reverse
from .scatter_axes import scatter_rows
from .select_and_scatter import expand_select_and_scatter
from .special_values import ARCTANGENTS, SPECIAL, expand_arctangent, expand_special
from .stable_sort import keep_sorted, stabilize_sort
from .unsigned_integers import bits_as, is_unsigned, signless, signless_window
from .unsigned_multiplicands import widen_factors
from .updates_in_place import UPDATES, separate_updated
from .window_ends import cut_windows

__all__ = ["ExpandStablehlo"]


@dataclass(frozen=True)
class ExpandStablehlo(ModulePass):
    """Write the StableHLO operations that IREE refuses with others.

    Options:
        split_groups: write a convolution of a few groups as one for each (Vulkan, where the loops
            that IREE is given for it are wrong).
        split_sums: write long reductions and contractions as those of parts (Vulkan, where one
            invocation adds up all of an element, and a device may end its loop).
        separate_truths: have truth values in memory that are returned, before integers of 8 bits
            are made of them (llvm-cpu, where IREE refuses what it writes for both).
        separate_bytes: have narrow integers in memory before they are padded (Vulkan, where some
            are put to other places).
        divide_exactly: correct quotients of f32 (Vulkan, whose division is nearly right only).
        widen_bodies: write sorts and scatters of narrow integers as those of 32 bits, and use all
            results of sorts (Vulkan, where IREE refuses what is written for narrow ones).
        widen_bf16: multiply bf16 as f32 (Vulkan, where IREE refuses products of bf16).
    """

    name: ClassVar[str] = "expand-stablehlo"

    split_groups: bool = False
    split_sums: bool = False
    separate_truths: bool = False
    separate_bytes: bool = False
    divide_exactly: bool = False
    widen_bodies: bool = False
    widen_bf16: bool = False

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        # Each step sees what those before it have written.
        steps = [_SHAPES, _GATHERS, _BOUNDS, _PATTERNS, _DILATIONS, _FACTORS]
        steps += [_HALVES, _DYNAMIC, _PADS]
        if self.widen_bf16:
            steps.append(dict.fromkeys(CONTRACTIONS, widen_bf16_product))
        if self.widen_bodies:
            steps.append({"stablehlo.sort": keep_sorted})
            steps.append({"stablehlo.scatter": widen_body, "stablehlo.sort": widen_body})
        if self.split_groups:
            steps.append({"stablehlo.convolution": split_groups})
        if self.split_sums:
            steps.append(_SUMS)
        if self.separate_bytes:
            steps.append({"stablehlo.pad": separate_bytes})
        steps += [_COUNTS, _IN_PLACE, dict.fromkeys(CARRIES, separate_carried), _UPDATES]
        is_changed = self.divide_exactly and divide_exactly(module)
        is_changed |= self.separate_truths and separate_truths(module)
        if named(module, {root for patterns in steps for root in patterns}):
            for patterns in steps:
                apply_patterns(module, patterns)
            is_changed = True
        is_changed |= separate_partial_reads(module)
        return None if is_changed else UNCHANGED


def _add(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """The sum of truth values is their logical or."""
    if element_type(op.results[0].type) != ir.IntegerType.get_signless(1):
        return NoMatch("does not add truth values")
    either = emit.value("stablehlo.or", list(op.operands), op.results[0].type)
    rewriter.replace_op(op, [either])
    return None


def _dimension_of_bits(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """IREE knows no extent of unsigned integers: it is asked of their bits."""
    operand = op.operands[0]
    if not is_unsigned(operand.type):
        return NoMatch("asks no unsigned integers")
    op.operands[0] = bits_as(operand, signless(operand.type))
    return None


def _select_and_scatter(op: Operation, rewriter: Rewriter) -> None:
    rewriter.replace_op(op, [expand_select_and_scatter(op, op.operands[1], op.operands[2])])


_SHAPES: dict[str, Pattern] = {
    "stablehlo.broadcast_in_dim": order_broadcast,
    "stablehlo.dynamic_conv": expand_dynamic_conv,
    "stablehlo.dynamic_gather": expand_dynamic_gather,
    "stablehlo.gather": order_indices,
    "stablehlo.get_dimension_size": _dimension_of_bits,
    "stablehlo.reduce_window": signless_window,
    "stablehlo.scatter": scatter_rows,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "scf.index_switch": expand_index_switch,
    **dict.fromkeys(EINSUMS, expand_einsum),
}
_GATHERS: dict[str, Pattern] = {"stablehlo.gather": expand_gather}
_BOUNDS: dict[str, Pattern] = {
    "stablehlo.dynamic_slice": widen_starts,
    "stablehlo.dynamic_update_slice": widen_starts,
    "stablehlo.gather": clamp_gather,
    "stablehlo.scatter": contain_scatter,
    "stablehlo.sort": stabilize_sort,
}
_PATTERNS: dict[str, Pattern] = {
    "stablehlo.add": _add,
    "stablehlo.batch_norm_grad": expand_batch_norm_grad,
    "stablehlo.batch_norm_training": expand_batch_norm_training,
    "stablehlo.convolution": expand_convolution,
    "stablehlo.dynamic_broadcast_in_dim": expand_dynamic_broadcast,
    "stablehlo.dynamic_pad": expand_dynamic_pad,
    "stablehlo.dynamic_reshape": expand_dynamic_reshape,
    "stablehlo.pad": separate_pad,
    "stablehlo.reduce_window": cut_windows,
    "stablehlo.reverse": expand_reverse,
    **dict.fromkeys(ARCTANGENTS, expand_arctangent),
    **dict.fromkeys(SPECIAL, expand_special),
    **dict.fromkeys(UPDATES, separate_updated),
}
_DILATIONS: dict[str, Pattern] = {
    "stablehlo.convolution": separate_dilated,
    "stablehlo.reduce_window": separate_dilated,
}
_FACTORS: dict[str, Pattern] = {
    "stablehlo.reduce": reduce_axis_by_axis,
    **dict.fromkeys(CONTRACTIONS, widen_factors),
}
_DYNAMIC: dict[str, Pattern] = {
    "stablehlo.convolution": expand_dynamic_convolution,
    "stablehlo.dot": expand_dynamic_dot,
    "stablehlo.dot_general": expand_dynamic_dot,
    "stablehlo.reduce_window": expand_dynamic_window,
}
_PADS: dict[str, Pattern] = {"stablehlo.pad": expand_pad}
_UPDATES: dict[str, Pattern] = {"stablehlo.dynamic_update_slice": expand_dynamic_update}
_HALVES: dict[str, Pattern] = {
    "stablehlo.reduce": widen_reduction,
    **dict.fromkeys(CONTRACTIONS, widen_product),
}
_COUNTS: dict[str, Pattern] = {"stablehlo.while": count_on_host}
_IN_PLACE: dict[str, Pattern] = {"scf.for": hand_on_buffers}
_SUMS: dict[str, Pattern] = {
    "stablehlo.dot": split_dot,
    "stablehlo.dot_general": split_dot,
    "stablehlo.reduce": split_reduce,
}
