"""Calls of the kernel that gathers rows from the packed tiles of a weight."""

from __future__ import annotations

from dataclasses import replace

from ...core._mlir import Value, ir
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import (
    clone_computation,
    element_of,
    erase_unused,
    is_used,
    mlir_type,
    tensor_type,
)
from ...numerics.element_types import F32
from ..cpu.gather_rows import GatherRows
from ..kernel import KernelTable
from .match_gather_rows import GatherRowsMatch


def replace_gather_rows(match: GatherRowsMatch, kernels: KernelTable) -> None:
    """Replace a row gather by a call.

    The operations of the table may follow the gather, so that they are cloned before it.
    """
    op, contraction = match.operation, match.contraction.contraction
    clones = dict[Value, Value]()

    def clone(value: Value | None) -> Value | None:
        return None if value is None else clone_computation(value, clones)

    with ir.InsertionPoint(op), op.location:
        cloned = replace(
            contraction,
            storage=clone(contraction.storage),
            storage_high=clone(contraction.storage_high),
            scales=clone(contraction.scales),
            zero_points=clone(contraction.zero_points),
            offsets=clone(contraction.offsets),
        )
        weight = replace(match.contraction.weight, contraction=cloned).packed(kernels)
        kernel = GatherRows(weight.layout, match.count, element_of(match.indices.type))
        indices = emit_stablehlo.reshape(match.indices, [match.count])
        type_ = tensor_type([match.count, match.contraction.tiles.k], mlir_type(F32))
        operands = [*weight.operands, indices]
        [rows] = kernels.call(kernel, kernel.kernel(), operands, [type_], match.count)
        shape = [int(extent) for extent in op.results[0].type.shape]
        op.results[0].replace_all_uses_with(emit_stablehlo.reshape(rows, shape))
    erase_unused(op)
    for value in reversed(clones.values()):
        if not is_used(value):
            value.owner.operation.erase()
