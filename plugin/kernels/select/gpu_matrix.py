"""Block contractions on GPUs with cooperative matrices: conversion of activations, and GEMM."""

from __future__ import annotations

from ...core._mlir import Value, ir
from ...emit import linalg, stablehlo
from ...emit.kernel import KernelTable
from ...emit.operation import mlir_type, tensor_type
from ...numerics.element_types import F16, F32
from ...numerics.parameters import ExpressedType
from ..gpu.half_rows import FLOAT_TERMS, GpuHalfRows
from ..gpu.matrix_gemm import GpuMatrixGemm, MatrixGrid
from ..pack.blockwise_weight import PackedOperands
from ..pack.packed_weight import PackedWeight, Tiles
from .blockwise import BlockwiseMatch, activation_matrix, result_tensor

SPIRV_MATRIX, SPIRV_MATRIX_8 = "spirv-matrix", "spirv-matrix-8"
"""Names of the kernels with matrices of 16 x 16 and subgroups of 32 threads, and those of 8."""
_SIDE_AND_SUBGROUP = {SPIRV_MATRIX: (16, 32), SPIRV_MATRIX_8: (8, 8)}
_MIN_ROWS = 8
"""M from which on matrices pay, although rows are added.

16 rows of 4096 x 4096 int4 take an H100 less time than 8 rows without matrices.
"""
_SUBGROUPS = 4
"""The subgroups of a workgroup, as 2 x 2, or 1 x 4 for the rows of one matrix."""
_MAX_MATRICES_OF_ROWS, _MATRICES_OF_COLUMNS = 4, 2
"""The matrices of a subgroup along M at most, and along N."""
_THREADS = 32
"""The threads of a workgroup that converts activations."""
_MAX_SPLIT_K, _SPLIT_K_WORKGROUPS = 8, 256
"""Split-K at most; the workgroups that keep a large GPU busy."""


def matrix_grid(
    match: BlockwiseMatch, weight: PackedWeight, instructions: str
) -> MatrixGrid | None:
    """Return the matrices of a workgroup; None if another kernel computes the contraction."""
    if instructions not in _SIDE_AND_SUBGROUP or match.choices is not None:
        return None
    (side, subgroup), tiles, m = _SIDE_AND_SUBGROUP[instructions], match.tiles, match.m
    if m is None or m < _MIN_ROWS:
        return None
    if match.has_float_activations and match.contraction.expressed is not ExpressedType.F32:
        return None  # dequantized values are rounded
    if weight.offset is not None or tiles.n % side or tiles.block_size % side:
        return None
    if m <= side:
        return MatrixGrid(side, subgroup, (1, _SUBGROUPS), (1, 1))
    rows = 2 * side  # of one matrix of each subgroup; M is divided evenly
    groups = -(-m // (rows * _MAX_MATRICES_OF_ROWS))
    matrices = -(-m // (rows * groups)), _MATRICES_OF_COLUMNS
    return MatrixGrid(side, subgroup, (2, _SUBGROUPS // 2), matrices)


def call_matrix_gemm(
    match: BlockwiseMatch,
    weight: PackedOperands,
    grid: MatrixGrid,
    kernels: KernelTable,
    result: ir.Type,
) -> Value:
    """Emit the calls for a packed weight, and return the result of the contraction."""
    tiles, m = match.tiles, match.m
    assert m is not None
    padding = -m % grid.rows
    padded_m, k, blocks = m + padding, tiles.k, tiles.k // tiles.block_size
    activations, extents = activation_matrix(match)
    if padding:
        activations = stablehlo.pad(activations, [0, 0], [padding, 0])
    # IREE evaluates constant operands on the CPU, which has no SPIR-V.
    activations = linalg.in_separate_dispatch(activations)
    terms = FLOAT_TERMS if match.has_float_activations else 1
    halves = GpuHalfRows(
        *(padded_m, k, match.activation_block, tiles.block_size, _THREADS, grid.side, terms)
    )
    types = [tensor_type([padded_m, k], mlir_type(F16))] * terms
    types.append(tensor_type([padded_m, blocks], mlir_type(F32)))
    operands = kernels.call(halves, halves.kernel(), [activations], types, padded_m)
    gemm = GpuMatrixGemm(weight.layout, grid, padded_m, terms, _split_k(tiles, padded_m, grid))
    split = [gemm.split_k] if gemm.split_k > 1 else []
    type_ = tensor_type([padded_m, *split, tiles.n], mlir_type(F32))
    operands = [*weight.operands, *operands]
    [value] = kernels.call(gemm, gemm.kernel(), operands, [type_], padded_m)
    if split:
        value = stablehlo.reduce(value, [1])
    if padding:
        value = stablehlo.pad(value, [0, 0], [-padding, 0])
    return result_tensor(match, value, extents, result)


def _split_k(tiles: Tiles, m: int, grid: MatrixGrid) -> int:
    """Return split-K: at most 8, and 256 workgroups in all."""
    workgroups = m // grid.rows * -(-tiles.n // grid.columns)
    limit = min(_MAX_SPLIT_K, max(1, _SPLIT_K_WORKGROUPS // workgroups))
    return next(n for n in range(limit, 0, -1) if tiles.steps % n == 0)
