"""``fold-constants``: operations on constants alone become constants.

IREE computes such values too, when it compiles: it moves each to a global with a function that
computes it, compiles that function with its whole compiler, and runs it. For networks of a hundred
weights that is a quarter of the time of a compilation (UltraFace in 8 bits: 12.6 s of CPU time, for
16.4 s), for one of two convolutions a third.

Folded are conversions to a type that holds every value of the other, `transpose`, `reshape`, and
barriers, in any order. By IREE's rule a constant may grow by 1 MiB; one that would grow more is
converted where it is used. The weights of convolutions are laid out as IREE's loops read
them, which IREE would do by a transposition. Constants without uses are erased.

Before::

    %c = stablehlo.constant dense<...> : tensor<16x8x3x3xi8>
    %w = stablehlo.convert %c : (tensor<16x8x3x3xi8>) -> tensor<16x8x3x3xi16>
    %y = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], ...

After::

    %w = stablehlo.constant dense<...> : tensor<3x3x8x16xi16>
    %y = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[0, 1, i, o]->[b, f, 0, 1], ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...emit import linalg
from ...emit.constant_evaluation import replace_by_constant
from ...emit.operation import erase_unused, is_used
from ...emit.stablehlo import transpose
from ...errors import Remark
from ...numerics.element_types import ElementType
from ..base import UNCHANGED, ModulePass, named, producer_of

MAX_CONSTANT_GROWTH_BYTES = 1 << 20
"""Bytes by which folding enlarges a constant, at most.

Source: the default of IREE 3.13's ``--iree-opt-const-expr-max-size-increase-threshold``; the two
must agree.
"""

_CONSTANT = "stablehlo.constant"
_CONSTANTS = (_CONSTANT, "arith.constant")
_ELEMENTS = ("i8", "i16", "i32", "i64", "f16", "f32", "f64")
"""Element types that NumPy has too."""


@dataclass(frozen=True)
class FoldConstants(ModulePass):
    """Fold conversions and rearrangements of constants."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        convolutions = named(module, ["stablehlo.convolution"])
        changes = [_lay_out_weights(op) for op in convolutions]
        changes += [_fold(op) for op in named(module, _FOLDED)]
        changes += [_erase_unused_constant(op) for op in named(module, _CONSTANTS)]
        return None if any(changes) else UNCHANGED


def _lay_out_weights(op: Operation) -> bool:
    """Transpose constant weights of a convolution with windows to ``[0, 1, i, o]``."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.kernel_spatial_dimensions)
    order = [
        *spatial,
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
    ]
    weights = op.operands[1]
    if order == sorted(order) or _constant_behind(weights) is None:
        return False
    if math.prod(int(weights.type.shape[axis]) for axis in spatial) == 1:
        return False  # a product of matrices, which IREE reads in either order
    with ir.InsertionPoint(op), op.location:
        op.operands[1] = transpose(weights, order)
    op.attributes["dimension_numbers"] = stablehlo.ConvDimensionNumbers.get(
        input_batch_dimension=numbers.input_batch_dimension,
        input_feature_dimension=numbers.input_feature_dimension,
        input_spatial_dimensions=numbers.input_spatial_dimensions,
        kernel_input_feature_dimension=len(spatial),
        kernel_output_feature_dimension=len(spatial) + 1,
        kernel_spatial_dimensions=list(range(len(spatial))),
        output_batch_dimension=numbers.output_batch_dimension,
        output_feature_dimension=numbers.output_feature_dimension,
        output_spatial_dimensions=numbers.output_spatial_dimensions,
    )
    return True


def _fold(op: Operation) -> bool:
    """Replace an operation by its constant, if operations that are not folded use it."""
    constant = _constant_behind(op.results[0])
    users = {use.owner.operation.name for use in op.results[0].uses}
    if constant is None or users.issubset(_FOLDED):
        return False
    source, result = constant.attributes["value"], op.results[0].type
    growth = (result.element_type.width - source.type.element_type.width) // 8
    if growth * math.prod(source.type.shape) > MAX_CONSTANT_GROWTH_BYTES:
        return False
    replace_by_constant(op)
    erase_unused(op)
    return True


def _erase_unused_constant(op: Operation) -> bool:
    """Erase a constant without uses: a weight of which a kernel has a copy in another order."""
    if is_used(op.results[0]):
        return False
    op.erase()
    return True


def _constant_behind(value: Value) -> Operation | None:
    """The constant that folded operations lead to; None for splats, which cost nothing."""
    op = producer_of(value)
    if op is None:
        return None
    if op.name == _CONSTANT:
        attribute = op.attributes["value"]
        is_dense = isinstance(attribute, ir.DenseElementsAttr) and not attribute.is_splat
        return op if is_dense and str(attribute.type.element_type) in _ELEMENTS else None
    if op.name not in _FOLDED or len(op.operands) != 1:
        return None
    if op.name == "stablehlo.convert" and not _holds_every_value(op):
        return None
    return _constant_behind(op.operands[0])


def _holds_every_value(op: Operation) -> bool:
    """True for a conversion that neither rounds nor saturates."""
    elements = [str(each.type.element_type) for each in (op.operands[0], op.results[0])]
    if not set(elements).issubset(_ELEMENTS):
        return False
    source, result = (ElementType.parse(element).dtype for element in elements)
    return np.can_cast(source, result, "safe")


_FOLDED = (
    *("stablehlo.convert", "stablehlo.transpose", "stablehlo.reshape"),
    *("stablehlo.optimization_barrier", linalg.BARRIER),
)
"""Operations of one operand that are folded."""
