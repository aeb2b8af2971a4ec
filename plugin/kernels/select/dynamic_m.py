"""Matcher and call of i8 x i8 -> i32 matrix products with a dynamic M."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import linalg, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import array_of, is_invariant
from ...emit.kernel import KernelTable
from ...emit.operation import mlir_type, tensor_type
from ...emit.parameters import ModuleGlobals
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray
from ..cpu.dynamic_gemm import DynamicGemm
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .conv_match import MIN_MACS, matrix_axes
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure
from .match_int8 import has_elements


@dataclass(frozen=True)
class DynamicMMatch:
    """An int8 matrix product with a dynamic M.

    The axes are permutations to ``M x K`` and ``N x K``.
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
        if activations.type.rank != 2 or weight.type.rank != 2:
            return MatchFailure("its activations are not a matrix")
        if activations.type.is_dynamic_dim(axes[0][1]):
            return MatchFailure("its K is dynamic")
        if math.prod(weight.type.shape) < MIN_MACS:  # for each row
            return IS_SMALL
        return cls(activations, weight, *axes)


# -- calls -----------------------------------------------------------------------------------------


def call_dynamic_m(
    match: DynamicMMatch, kernels: KernelTable, result: ir.Type, target: InstructionSet
) -> Value:
    """Emit the call, and return its result."""
    n, k = (int(match.weight.type.shape[axis]) for axis in match.weight_axes)
    k_padding = -k % target.k_pack
    vectors = target.vectors_per_tile(n, target.max_vectors_int8)
    tiles = Tiles(8, target.k_pack, n, k + k_padding, target.lanes, vectors, target.k_pack)

    def matrix() -> AnyArray:
        weight = array_of(match.weight, kernels.module_globals).transpose(match.weight_axes)
        return np.pad(weight, [(0, 0), (0, k_padding)]) if k_padding else weight

    def initial_accumulators() -> AnyArray:
        initial = convert(matrix(), I32).sum(1, dtype=np.int32) * np.int32(-target.sign_offset)
        if tiles.count * tiles.nr != n:
            initial = np.pad(initial, [(0, tiles.count * tiles.nr - n)])
        return initial.reshape((tiles.count, tiles.nr))

    activations = target.multiplicands(tensor(match.activations)).value
    activations = emit_stablehlo.transpose(activations, match.activation_axes)
    if k_padding:
        activations = emit_stablehlo.pad(activations, [0, 0], [0, k_padding])
    label, key = str(tiles), (tiles, match.weight_axes, target.sign_offset)
    operands = [
        kernels.prepacked([match.weight], label, key, lambda: tiles.pack(matrix()), I8),
        kernels.prepacked([match.weight], label, (*key, "first"), initial_accumulators, I32),
        activations,
    ]
    kernel = DynamicGemm(tiles, target)
    type_, m = tensor_type([None, n], mlir_type(I32)), linalg.dim(activations, 0)
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], m)
    return linalg.cast(value, result)
