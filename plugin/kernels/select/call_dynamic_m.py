"""Calls of the kernel of int8 matrix products with a dynamic M."""

from __future__ import annotations

import numpy as np

from ...core._mlir import Value, ir
from ...emit import linalg, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import array_of
from ...emit.operation import mlir_type, tensor_type
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray
from ..cpu.dynamic_gemm import DynamicGemm
from ..isa.base import InstructionSet
from ..kernel import KernelTable
from ..pack.packed_weight import Tiles
from .match_dynamic_m import DynamicMMatch


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
