"""Matcher of i8 x i8 -> i32 matrix products with a dynamic M."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...emit.constant_values import is_invariant
from ...emit.parameters import ModuleGlobals
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure
from .match_int8 import MIN_MACS, has_elements, matrix_axes


@dataclass(frozen=True)
class DynamicMMatch:
    """An int8 matrix product with a dynamic M.

    Attributes:
        activation_axes, weight_axes: permutations to ``M x K`` and ``N x K``.
    """

    activations: Value
    weight: Value
    activation_axes: list[int]
    weight_axes: list[int]

    @staticmethod
    def has_dynamic_shape(op: Operation) -> bool:
        """True for a ``stablehlo.dot_general`` whose left operand has a dynamic shape."""
        type_ = op.operands[0].type
        is_ranked = isinstance(type_, ir.RankedTensorType)
        return op.name == "stablehlo.dot_general" and is_ranked and not type_.has_static_shape

    @classmethod
    def of(cls, op: Operation, module_globals: ModuleGlobals) -> DynamicMMatch | MatchFailure:
        """Match a ``stablehlo.dot_general``."""
        if not has_elements(op, "i8", "i8", "i32"):
            return NOT_INT8
        match = cls.of_shape(op)
        if not isinstance(match, MatchFailure) and not is_invariant(match.weight, module_globals):
            return MatchFailure("its weight is not constant, and a dynamic M may be small")
        return match

    @classmethod
    def of_shape(cls, op: Operation) -> DynamicMMatch | MatchFailure:
        """Match a product by all but its element types, which later passes may narrow to i8."""
        activations, weight = op.operands[:2]
        if not isinstance(weight.type, ir.RankedTensorType) or not weight.type.has_static_shape:
            return MatchFailure("its weight has a dynamic shape")
        axes = matrix_axes(op)
        if isinstance(axes, MatchFailure):
            return axes
        if activations.type.is_dynamic_dim(axes[0][1]):
            return MatchFailure("its K is dynamic")
        if math.prod(weight.type.shape) < MIN_MACS:  # for each row
            return IS_SMALL
        return cls(activations, weight, *axes)
