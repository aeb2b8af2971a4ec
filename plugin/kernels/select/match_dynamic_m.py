"""Matcher of int8 GEMMs with a dynamic M; emits calls of `kernels.cpu.dynamic_gemm`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import linalg, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import mlir_type, tensor_type
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray
from ..constant_values import is_invariant
from ..cpu.dynamic_gemm import DynamicGemm
from ..isa.registry import INSTRUCTION_SETS
from ..kernel_table import KernelTable
from ..pack.packed_weight import Tiles
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure
from .operands import LEAST_PRODUCTS, array_of, has_elements, laid_out, matrix_axes

__all__ = ["RowContraction"]


@dataclass(frozen=True)
class RowContraction:
    """A product of matrices of i8 with a number of rows that is not known.

    Attributes:
        activations, weight: i8.
        of_activations, of_weight: the order of axes that makes them ``rows x depth`` and ``columns
            x depth``.
    """

    activations: Value
    weight: Value
    of_activations: list[int]
    of_weight: list[int]

    @staticmethod
    def has_dynamic_rows(op: Operation) -> bool:
        """True for products whose left operand has a dynamic shape."""
        type_ = op.operands[0].type
        is_ranked = isinstance(type_, ir.RankedTensorType)
        return op.name == "stablehlo.dot_general" and is_ranked and not type_.has_static_shape

    @classmethod
    def of(cls, op: Operation) -> RowContraction | MatchFailure:
        """Read a ``stablehlo.dot_general``."""
        if not has_elements(op, "i8", "i8", "i32"):
            return NOT_INT8
        found = cls.of_shape(op)
        if not isinstance(found, MatchFailure) and not is_invariant(found.weight):
            return MatchFailure("its weight is not known, and its rows may be few")
        return found

    @classmethod
    def of_shape(cls, op: Operation) -> RowContraction | MatchFailure:
        """Read a contraction whose operands may become i8."""
        activations, weight = op.operands[:2]
        if not isinstance(weight.type, ir.RankedTensorType) or not weight.type.has_static_shape:
            return MatchFailure("its weight has a dynamic shape")
        axes = matrix_axes(op)
        if isinstance(axes, MatchFailure):
            return axes
        if activations.type.is_dynamic_dim(axes[0][1]):
            return MatchFailure("it sums over a dynamic dimension")
        # Of each row: how many there are is not known.
        if int(np.prod(weight.type.shape)) < LEAST_PRODUCTS:
            return IS_SMALL
        return cls(activations, weight, *axes)

    def emit(self, kernels: KernelTable, result: ir.Type, instructions: str) -> Value:
        """Write the call, and return its result.

        Args:
            kernels: the kernels of the module.
            result: the type of the sums.
            instructions: a name in `INSTRUCTION_SETS`.
        """
        target = INSTRUCTION_SETS[instructions]
        columns, depth = (int(self.weight.type.shape[axis]) for axis in self.of_weight)
        missing = -depth % target.k_pack
        parts = target.vectors_per_tile(columns, target.max_vectors_int8)
        tiles = Tiles(
            8, target.k_pack, columns, depth + missing, target.lanes, parts, target.k_pack
        )
        width = tiles.count * tiles.nr
        how = (tiles, self.of_weight, target.sign_offset)

        def rows() -> AnyArray:
            weight = array_of(self.weight).transpose(self.of_weight)
            return np.pad(weight, [(0, 0), (0, missing)]) if missing else weight

        def first() -> AnyArray:
            sums = convert(rows(), I32).sum(1, dtype=np.int32) * np.int32(-target.sign_offset)
            if width != columns:
                sums = np.pad(sums, [(0, width - columns)])
            return sums.reshape((tiles.count, tiles.nr))

        given = target.multiplicands(tensor(self.activations)).value
        given = emit_stablehlo.transpose(given, self.of_activations)
        if missing:
            given = emit_stablehlo.pad(given, [0, 0], [0, missing])
        product = DynamicGemm(tiles, instructions)
        operands = [
            laid_out(kernels, [self.weight], str(tiles), how, lambda: tiles.pack(rows()), I8),
            laid_out(kernels, [self.weight], str(tiles), (*how, "first"), first, I32),
            given,
        ]
        type_ = tensor_type([None, columns], mlir_type(I32))
        [sums] = kernels.call(product, product.kernel(), operands, [type_], linalg.dim(given, 0))
        return linalg.cast(sums, result)
