"""Convolutions in the forms that kernels of CPUs compute best, ahead of their selection.

`fold_depth`, `drop_unit_axes` and `split_output_phases` have the forms before and after.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, Value, ir
from ...emit.constant_values import erase_unused, is_invariant
from ...emit.parameters import ModuleGlobals
from ...kernels.isa.base import InstructionSet
from ...kernels.select.conv_match import ConvMatch
from ...kernels.select.float_conv import FloatConvMatch
from ...kernels.select.match_failure import MatchFailure
from ...kernels.select.match_int8 import Int8Match
from ..base import named
from .drop_unit_axes import drop_unit_axis
from .fold_depth import fold_depth
from .split_output_phases import split_output_phases

_CONVOLUTION = ["stablehlo.convolution"]


def normalize_convolutions(
    module: Operation, target: InstructionSet, module_globals: ModuleGlobals, min_macs: int
) -> None:
    """Rewrite convolutions with constant weights that have, or get, kernels of `target`.

    `min_macs` is the least number of MACs of an int8 convolution that has a kernel.
    """
    for op in named(module, _CONVOLUTION):
        _replace(op, fold_depth)
    for op in named(module, _CONVOLUTION):
        _drop_unit_axis(op, target, module_globals, min_macs)
    if target.has_fma:
        for op in named(module, _CONVOLUTION):
            _replace(op, lambda each: split_output_phases(each, module_globals))


def _drop_unit_axis(
    op: Operation, target: InstructionSet, module_globals: ModuleGlobals, min_macs: int
) -> None:
    """Remove an axis of size 1 from a convolution that has a kernel, and the reshape after it."""
    is_integer = isinstance(op.results[0].type.element_type, ir.IntegerType)
    match: ConvMatch | MatchFailure = (
        Int8Match.of_shape(op, min_macs)
        if is_integer
        else FloatConvMatch.of(op, target, module_globals)
    )
    if isinstance(match, MatchFailure) or not is_invariant(op.operands[1], module_globals):
        return
    with ir.InsertionPoint(op), op.location:
        convolution = drop_unit_axis(op)
    if convolution is not None:
        [reshape] = [use.owner.operation for use in op.results[0].uses]
        operands = list(op.operands)
        reshape.erase()
        op.erase()
        erase_unused(*operands)


def _replace(op: Operation, emit: Callable[[Operation], Value | None]) -> None:
    """Replace a convolution by the value that a function emits, if it does."""
    with ir.InsertionPoint(op), op.location:
        value = emit(op)
    if value is not None:
        operands = list(op.operands)
        op.results[0].replace_all_uses_with(value)
        op.erase()
        erase_unused(*operands)
