"""Calls of the kernels of block contractions on CPUs: quantization of rows, and blockwise GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core._mlir import Value, ir
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.linalg import Extent
from ...emit.operation import is_dynamic, mlir_type, tensor_type
from ...numerics.element_types import F32, I8, I32
from ..cpu.blockwise_gemm import BlockwiseGemm
from ..cpu.quantize_rows import QuantizeRows
from ..isa.base import InstructionSet
from ..kernel import KernelTable, items_per_workgroup
from .match_blockwise import BlockwiseMatch


def call_blockwise(
    match: BlockwiseMatch, kernels: KernelTable, result: ir.Type, target: InstructionSet
) -> Value:
    """Emit the calls, and return the result of the contraction and its epilogue."""
    tiles, batches, epilogue = match.tiles, match.weight.batches, match.epilogue
    weight = match.weight.packed(kernels)
    # An f32 accumulator and a converted weight take registers of float activations.
    max_mr = max(1, target.mr * 3 // 4) if match.has_float_activations else target.mr
    m_per_batch = 0 if match.m is None else match.m // batches
    kernel = BlockwiseGemm(
        weight.layout,
        target,
        match.m,
        min(max_mr, m_per_batch or max_mr),
        1,
        match.has_float_activations,
        batches,
        epilogue,
    )
    together = kernel.tiles_per_iteration
    macs = (m_per_batch or 1) * together * tiles.nr * tiles.k
    items = items_per_workgroup(-(-tiles.count // together), macs, batches)
    kernel = replace(kernel, tiles_per_workgroup=items * together)
    activations, extents = activation_matrix(match)
    m: Extent = match.m if match.m is not None else linalg.dim(activations, 0)
    operands = [activations]
    if not match.has_float_activations:
        lanes, factor = target.lanes, weight.layout.row_sum_factor
        quantize = QuantizeRows(match.m, tiles.k, tiles.block_size, lanes, factor)
        types = [  # int8, and for each block the scale and the sum times `row_sum_factor`
            tensor_type([match.m, tiles.k], mlir_type(I8)),
            tensor_type([match.m, 2 * (tiles.k // tiles.block_size)], mlir_type(I32)),
        ]
        operands = kernels.call(quantize, quantize.kernel(), [activations], types, m)
    tables = epilogue.operands(tiles.count * tiles.nr) if epilogue else []
    operands = [*weight.operands, *operands, *tables]
    type_ = tensor_type([match.m, tiles.n], mlir_type(F32))
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], m)
    return result_tensor(match, value, extents, result)


def activation_matrix(match: BlockwiseMatch) -> tuple[Value, list[Extent]]:
    """Return the activations as ``M x K`` of f32, and the extents of the loops of M."""
    contraction, weight = match.contraction, match.weight
    loops = [loop for [(loop, _)] in contraction.indices[0]]
    rows = [*weight.batch, *match.outer]
    order = [*rows, *weight.inner]
    tensor = emit_stablehlo.convert(contraction.activations, mlir_type(F32))
    tensor = emit_stablehlo.transpose(tensor, [loops.index(loop) for loop in order])
    shape = [int(extent) for extent in tensor.type.shape]
    rank = len(rows)
    extents: list[Extent] = [
        linalg.dim(tensor, axis) if is_dynamic(shape[axis]) else shape[axis] for axis in range(rank)
    ]
    if not rank:
        return emit_stablehlo.reshape(tensor, [1, weight.tiles.k]), extents
    groups = [list(range(rank)), list(range(rank, len(order)))]
    return linalg.collapse(tensor, groups), extents


def result_tensor(
    match: BlockwiseMatch, matrix: Value, extents: Sequence[Extent], type_: ir.Type
) -> Value:
    """Return the result of a contraction, from ``M x N``.

    Args:
        matrix: f32.
        extents: of the loops of M.
    """
    weight, sizes = match.weight, match.weight.loop_sizes
    n: list[Extent] = [sizes[loop] for loop in weight.columns]
    if extents:
        rank, total = len(extents), len(extents) + len(n)
        groups = [list(range(rank)), list(range(rank, total))]
        tensor = linalg.expand(matrix, groups, [*extents, *n])
    else:
        tensor = emit_stablehlo.reshape(matrix, [sizes[loop] for loop in weight.columns])
    loops = [*weight.batch, *match.outer, *weight.columns]
    order = [loops.index(loop) for [(loop, _)] in match.contraction.indices[2]]
    tensor = emit_stablehlo.transpose(tensor, order)
    return linalg.cast(emit_stablehlo.convert(tensor, type_.element_type), type_)
