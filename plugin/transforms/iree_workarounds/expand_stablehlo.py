"""``expand-stablehlo``: StableHLO operations that IREE refuses or gets wrong, written with others.

README.md of this folder lists each workaround, its symptom, its cause, and its test. This pass
applies their patterns in an order in which each sees the results of earlier ones.

Four small workarounds are patterns of this file (all targets):

* ``add`` of i1: IREE adds modulo 2, but the specification defines a logical or.
* ``convert`` of integers to bf16: IREE calls a function that it has not (``__truncsfbf2``).
* ``get_dimension_size`` of unsigned integers: IREE refuses it.
* ``select_and_scatter`` that is not quantized: IREE refuses it (`select_and_scatter`).

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

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.stablehlo import CONTRACTIONS
from ...emit.operation import with_element
from ...errors import Remark
from ..base import (
    UNCHANGED,
    ModulePass,
    NoMatch,
    Pattern,
    Replacement,
    apply_patterns,
    named,
    producer_named,
)
from .batch_norm import expand_batch_norm_grad, expand_batch_norm_training
from .bf16_quantization import round_quantization
from .broadcast_axes import order_broadcast
from .buffer_iter_args import carry_buffers
from .carried_tensors import CARRIES, separate_buffers
from .convolutions import expand_convolution, multiply_patches, split_groups
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
from .float8_arithmetic import write_float8
from .float_functions import FLOAT_FUNCTIONS, expand_float_function
from .fourier_transforms import expand_fft
from .host_divisions import DIVISIONS, check_divisor
from .index_bounds import clamp_gather, order_indices, pad_scatter, widen_starts
from .index_switches import expand_index_switch
from .interior_pads import separate_bytes, separate_dilated, separate_pad
from .long_loops import split_dot, split_reduce
from .narrow_integer_bodies import widen_narrow_body
from .nested_reductions import separate_nested_reductions
from .partial_reads import separate_partial_reads
from .remainders import expand_remainder
from .returned_booleans import separate_booleans
from .reversal import expand_reverse
from .roundings import ROUNDINGS, round_by_addition
from .scatter_axes import scatter_rows
from .scatter_updates import separate_updates
from .select_and_scatter import expand_select_and_scatter
from .single_device import SINGLE_DEVICE
from .special_values import ARCTANGENTS, SPECIAL, expand_arctangent, expand_special
from .stable_sort import stabilize_sort, use_all_results
from .summed_squares import separate_squares
from .top_k import expand_top_k
from .unsigned_integers import bits_as, is_unsigned, reduce_window_of_bits, signless
from .unsigned_multiplicands import widen_multiplicands
from .updates_in_place import UPDATES, separate_updated
from .window_ends import cut_windows


@dataclass(frozen=True)
class ExpandStablehlo(ModulePass):
    """Apply the patterns of all workarounds that a target needs.

    Options:
        split_groups: write a convolution of a few groups as one for each group (Vulkan, where IREE
            gets its loops wrong).
        split_sums: split long reductions and contractions (Vulkan, where one invocation accumulates
            an element, and a device may end its loop).
        separate_booleans: store returned booleans before 8-bit integers are made of them (llvm-cpu,
            where IREE refuses a dispatch that writes both).
        round_by_addition: round f32 to even by additions (llvm-cpu, where IREE takes 40
            instructions).
        separate_squares: add up magnitudes of squares (llvm-cpu, where IREE multiplies and adds
            squares without vectors).
        separate_reductions: compute reductions apart from those over their results (llvm-cpu, where
            IREE gets both wrong; on Vulkan, `isolate-contraction-operands` does so).
        separate_bytes: store narrow integers before they are padded (Vulkan, where some end at
            wrong indices).
        divide_exactly: correct quotients of f32 (Vulkan, where a division may be off).
        widen_bodies: write sorts and scatters of narrow integers as those of 32 bits, and use all
            results of sorts (Vulkan, where IREE refuses loops in their bodies).
        widen_bf16: multiply bf16 as f32 (Vulkan, where IREE refuses products of bf16).
    """

    split_groups: bool = False
    split_sums: bool = False
    separate_booleans: bool = False
    round_by_addition: bool = False
    separate_squares: bool = False
    separate_reductions: bool = False
    separate_bytes: bool = False
    divide_exactly: bool = False
    widen_bodies: bool = False
    widen_bf16: bool = False

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        # Each step sees the results of the earlier ones.
        steps = [_SHAPES, _GATHERS, _BOUNDS, _FLOATS, _PATTERNS, _DILATIONS, _MULTIPLICANDS]
        steps += [_PATCHES, _F16_ACCUMULATORS, _WIDE_ACCUMULATORS, _DYNAMIC, _PADS]
        if self.widen_bf16:
            steps.append(dict.fromkeys(CONTRACTIONS, widen_bf16_product))
        if self.widen_bodies:
            steps.append({"stablehlo.sort": use_all_results})
            bodies = ("stablehlo.scatter", "stablehlo.sort")
            steps.append(dict.fromkeys(bodies, widen_narrow_body))
        if self.split_groups:
            steps.append({"stablehlo.convolution": split_groups})
        if self.split_sums:
            steps.append(_LONG_LOOPS)
        if self.separate_bytes:
            steps.append({"stablehlo.pad": separate_bytes})
        if self.round_by_addition:
            steps.append(dict.fromkeys(ROUNDINGS, round_by_addition))
        if self.separate_squares:
            steps.append({"stablehlo.reduce": separate_squares})
        steps += [_COUNTED_LOOPS, _IN_PLACE, dict.fromkeys(CARRIES, separate_buffers), _UPDATES]
        steps.append(dict.fromkeys(DIVISIONS, check_divisor))
        is_changed = write_float8(module)
        is_changed |= round_quantization(module)
        is_changed |= self.divide_exactly and divide_exactly(module)
        is_changed |= self.separate_booleans and separate_booleans(module)
        if named(module, {root for patterns in steps for root in patterns}):
            for patterns in steps:
                apply_patterns(module, patterns)
            is_changed = True
        is_changed |= separate_partial_reads(module)
        is_changed |= self.separate_reductions and separate_nested_reductions(module)
        return None if is_changed else UNCHANGED


def _add(op: Operation) -> Replacement:
    """Rewrite an ``add`` of booleans as a logical or."""
    if element_type(op.results[0].type) != ir.IntegerType.get_signless(1):
        return NoMatch("does not add booleans")
    return emit.value("stablehlo.or", list(op.operands), op.results[0].type)


def _convert_integers(op: Operation) -> Replacement:
    """Convert integers to f32 first, rounded to the precision of bf16: else IREE folds both."""
    operand, type_ = op.operands[0], op.results[0].type
    if element_type(type_) != ir.BF16Type.get():
        return NoMatch("does not convert to bf16")
    is_f32 = element_type(operand.type) == ir.F32Type.get()
    of_integers = producer_named(operand, "stablehlo.convert") if is_f32 else op
    if of_integers is None or not _has_integers(of_integers.operands[0]):
        return NoMatch("converts no integers")
    wide = with_element(type_, ir.F32Type.get())
    value = emit.value("stablehlo.convert", [of_integers.operands[0]], wide)
    i32 = ir.IntegerType.get_signless(32)
    sizes = {"exponent_bits": 8, "mantissa_bits": 7}
    bits = {name: ir.IntegerAttr.get(i32, size) for name, size in sizes.items()}
    rounded = emit.value("stablehlo.reduce_precision", [value], wide, bits)
    return emit.value("stablehlo.convert", [rounded], type_)


def _has_integers(value: Value) -> bool:
    return isinstance(element_type(value.type), ir.IntegerType)


def _dimension_of_bits(op: Operation) -> NoMatch | None:
    """Take the dimension size of the bits of unsigned integers."""
    operand = op.operands[0]
    if not is_unsigned(operand.type):
        return NoMatch("has no unsigned integers")
    op.operands[0] = bits_as(operand, signless(operand.type))
    return None


_SHAPES: dict[str, Pattern] = {
    "chlo.top_k": expand_top_k,
    "stablehlo.broadcast_in_dim": order_broadcast,
    "stablehlo.dynamic_conv": expand_dynamic_conv,
    "stablehlo.dynamic_gather": expand_dynamic_gather,
    "stablehlo.gather": order_indices,
    "stablehlo.get_dimension_size": _dimension_of_bits,
    "stablehlo.reduce_window": reduce_window_of_bits,
    "stablehlo.scatter": scatter_rows,
    "stablehlo.select_and_scatter": lambda op: expand_select_and_scatter(op, *op.operands[1:]),
    "scf.index_switch": expand_index_switch,
    **dict.fromkeys(EINSUMS, expand_einsum),
}
_GATHERS: dict[str, Pattern] = {"stablehlo.gather": expand_gather}
_BOUNDS: dict[str, Pattern] = {
    "stablehlo.dynamic_slice": widen_starts,
    "stablehlo.dynamic_update_slice": widen_starts,
    "stablehlo.gather": clamp_gather,
    "stablehlo.scatter": pad_scatter,
    "stablehlo.sort": stabilize_sort,
}
_FLOATS: dict[str, Pattern] = dict.fromkeys(FLOAT_FUNCTIONS, expand_float_function)
_PATTERNS: dict[str, Pattern] = {
    "stablehlo.add": _add,
    "stablehlo.convert": _convert_integers,
    "stablehlo.batch_norm_grad": expand_batch_norm_grad,
    "stablehlo.batch_norm_training": expand_batch_norm_training,
    "stablehlo.convolution": expand_convolution,
    "stablehlo.dynamic_broadcast_in_dim": expand_dynamic_broadcast,
    "stablehlo.dynamic_pad": expand_dynamic_pad,
    "stablehlo.dynamic_reshape": expand_dynamic_reshape,
    "stablehlo.fft": expand_fft,
    "stablehlo.pad": separate_pad,
    "stablehlo.reduce_window": cut_windows,
    "stablehlo.remainder": expand_remainder,
    "stablehlo.reverse": expand_reverse,
    **SINGLE_DEVICE,
    **dict.fromkeys(ARCTANGENTS, expand_arctangent),
    **dict.fromkeys(SPECIAL, expand_special),
    **dict.fromkeys(UPDATES, separate_updated),
}
_DILATIONS: dict[str, Pattern] = {
    "stablehlo.convolution": separate_dilated,
    "stablehlo.reduce_window": separate_dilated,
}
_MULTIPLICANDS: dict[str, Pattern] = {
    "stablehlo.reduce": reduce_axis_by_axis,
    **dict.fromkeys(CONTRACTIONS, widen_multiplicands),
}
_PATCHES: dict[str, Pattern] = {"stablehlo.convolution": multiply_patches}
_DYNAMIC: dict[str, Pattern] = {
    "stablehlo.convolution": expand_dynamic_convolution,
    "stablehlo.dot": expand_dynamic_dot,
    "stablehlo.dot_general": expand_dynamic_dot,
    "stablehlo.reduce_window": expand_dynamic_window,
}
_PADS: dict[str, Pattern] = {"stablehlo.pad": expand_pad}
_UPDATES: dict[str, Pattern] = {
    "stablehlo.dynamic_update_slice": expand_dynamic_update,
    "stablehlo.scatter": separate_updates,
}
_F16_ACCUMULATORS: dict[str, Pattern] = {
    "stablehlo.reduce": widen_reduction,
    **dict.fromkeys(CONTRACTIONS, widen_product),
}
_WIDE_ACCUMULATORS: dict[str, Pattern] = {"stablehlo.convolution": expand_convolution}
"""Depthwise convolutions of f16 have f32 accumulators by now, for which operands are widened."""
_COUNTED_LOOPS: dict[str, Pattern] = {"stablehlo.while": count_on_host}
_IN_PLACE: dict[str, Pattern] = {"scf.for": carry_buffers}
_LONG_LOOPS: dict[str, Pattern] = {
    "stablehlo.dot": split_dot,
    "stablehlo.dot_general": split_dot,
    "stablehlo.reduce": split_reduce,
}
