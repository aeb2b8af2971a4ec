"""Row gathers from a table that is also the weight of a block contraction: matcher and call.

A language model with tied embeddings gathers the rows of its tokens from the table that computes
the logits. The contraction reads packed tiles (`subquant.kernels.pack.packed_weight`); if the
gather reads them as well, neither program nor archive needs the table in its original layout.
Before::

    %q = util.global.load @table : tensor<512x64xi8>
    %s = util.global.load @scales : tensor<512x2xf16>
    %1 = "stablehlo.gather"(%q, %tokens) ... -> tensor<4x64xi8>
    %2 = "stablehlo.gather"(%s, %tokens) ... -> tensor<4x2xf16>
    %x = "subquant.dequantize"(%1, %2) ... -> tensor<4x64xf32>
    ...
    %y = "subquant.block_contraction"(%z, %q, %s) ... -> tensor<1x512xf32>

After::

    %x = flow.dispatch @gather_rows::@gather_rows(%tiles, %tile_scales, %tokens) -> tensor<4x64xf32>
    ...
    %y = flow.dispatch @blockwise_gemm::@blockwise_gemm(%tiles, %tile_scales, ...)

The gathered rows are rows of the weight if every tensor is gathered with the same indices, and the
rows are then unpacked, converted and scaled as the weight is. The table has to be invariant. A
gather from another table stays. Rows of a table of floats are gathered and widened::

    %w = "stablehlo.gather"(%table, %tokens) ... -> tensor<4x64xbf16>
    %x = stablehlo.convert %w : (tensor<4x64xbf16>) -> tensor<4x64xf32>
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...core._mlir import Operation, Value, ir
from ...dialects.block_contraction import BlockContraction
from ...dialects.dense import CONSTANTS
from ...dialects.quant import described_type
from ...dialects.subquant import DEQUANTIZE, UNPACK, operands_of
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import is_invariant
from ...emit.gathers import AxisGather
from ...emit.kernel import KernelTable
from ...emit.operation import (
    attributes_of,
    clone_computation,
    element_of,
    erase_unused,
    is_used,
    mlir_type,
    tensor_type,
)
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import F32
from ...numerics.parameters import ExpressedType
from ..cpu.gather_rows import GatherRows
from ..isa.base import InstructionSet
from .blockwise import BlockwiseMatch
from .match_failure import MatchFailure

GATHER = "stablehlo.gather"
ROWWISE = {
    *("stablehlo.add", "stablehlo.convert", "stablehlo.multiply", "stablehlo.reshape"),
    *("stablehlo.subtract", "stablehlo.xor", DEQUANTIZE, UNPACK),
}
"""Operations that compute a row of the result from the same row of each operand.

The number of rows is that of the operands: no reshape changes it, and no block has several rows.
"""
_BLOCK_SIZES = "block_sizes"


@dataclass(frozen=True)
class GatherRowsMatch:
    """A gather of dequantized rows of a contraction's weight.

    The rows are the result of `operation`, a ``subquant.dequantize`` or ``stablehlo.convert``.
    """

    operation: Operation
    contraction: BlockwiseMatch
    indices: Value
    count: int


def match_gather_rows(
    dequantizations: Sequence[Operation],
    contractions: Sequence[Operation],
    target: InstructionSet,
    module_globals: ModuleGlobals,
) -> list[GatherRowsMatch]:
    """Match row gathers from the weights of contractions that kernels compute."""
    matches: list[GatherRowsMatch] = []
    by_row_shape: dict[tuple[int, ...], list[BlockContraction]] = {}
    for op in contractions:
        contraction = BlockContraction.of(op)
        by_row_shape.setdefault(tuple(contraction.storage_shape[1:]), []).append(contraction)
    for op in dequantizations:
        type_ = op.results[0].type
        if not type_.has_static_shape:
            continue
        shape = tuple(int(extent) for extent in type_.shape)
        candidates = (
            _match(op, contraction, shape[:-rank], target, module_globals)
            for rank in range(1, len(shape) + 1)
            for contraction in by_row_shape.get(shape[-rank:], ())
        )
        match = next(filter(None, candidates), None)
        if match is not None:
            matches.append(match)
    return matches


def match_gather_floats(
    conversions: Sequence[Operation], weights: Sequence[BlockwiseMatch]
) -> list[GatherRowsMatch]:
    """Match conversions of rows that are gathered from the weights, of floats, of contractions."""
    matches: list[GatherRowsMatch] = []
    for op in conversions:
        type_, rows = op.results[0].type, op.operands[0]
        if not type_.has_static_shape or element_of(type_) != F32:
            continue
        shape = tuple(int(extent) for extent in type_.shape)
        for match in weights:
            contraction, weight = match.contraction, match.weight
            rank = len(contraction.storage_shape) - 1
            gathered, floats = _GatheredRows(shape[: len(shape) - rank]), weight.floats
            [(loop, _)] = contraction.indices[1][0]
            if weight.batch or weight.columns != [loop] or floats is None:
                continue
            if floats.scales is not None:
                continue
            if gathered.are_rows(rows, floats.codes) and gathered.indices is not None:
                count = math.prod(gathered.index_shape)
                matches += [GatherRowsMatch(op, match, gathered.indices, count)] if count else []
                break
    return matches


def _match(
    op: Operation,
    contraction: BlockContraction,
    index_shape: tuple[int, ...],
    target: InstructionSet,
    module_globals: ModuleGlobals,
) -> GatherRowsMatch | None:
    """Match dequantized rows of a weight; None for computed or batched weights, or no rows."""
    rows = _GatheredRows(index_shape)
    if not rows.are_dequantized(op, contraction) or rows.indices is None:
        return None
    parameters = [contraction.scales, contraction.zero_points, contraction.offsets]
    values = [value for value in (*contraction.planes, *parameters) if value is not None]
    if not all(is_invariant(value, module_globals) for value in values):
        return None
    match = BlockwiseMatch.of(contraction, target, module_globals)
    if isinstance(match, MatchFailure):
        return None
    [(loop, _)] = contraction.indices[1][0]
    weight = match.weight
    if weight.uses_shuffle or weight.batch or weight.columns != [loop]:
        return None
    count = math.prod(index_shape)
    return GatherRowsMatch(op, match, rows.indices, count) if count else None


@dataclass
class _GatheredRows:
    """Rows of several tensors that are gathered with the same indices.

    Attributes:
        indices: the indices, once a gather is found.
        checked: pairs of values, and whether the first has rows of the second.
    """

    index_shape: tuple[int, ...]
    indices: Value | None = None
    checked: dict[tuple[Value, Value], bool] = field(default_factory=dict)

    def are_dequantized(self, op: Operation, contraction: BlockContraction) -> bool:
        """True if an operation dequantizes rows of the weight of a contraction."""
        operands = operands_of(op)
        parameters = {
            "scales": contraction.scales,
            "zero_points": contraction.zero_points,
            "offsets": contraction.offsets,
        }
        storage = operands.pop("input")
        is_f32 = contraction.expressed is ExpressedType.F32
        if not is_f32 or element_of(op.results[0].type) != F32:
            return False
        if described_type(op) != (contraction.storage_type, contraction.expressed):
            return False
        if not self._are_row_blocks(op.attributes[_BLOCK_SIZES], contraction.block_sizes):
            return False
        if set(operands) != {name for name, value in parameters.items() if value is not None}:
            return False
        planes = [storage]
        if contraction.plane_bits is not None:
            if isinstance(storage.owner, ir.Block) or storage.owner.operation.name != UNPACK:
                return False
            unpack = storage.owner.operation
            if tuple(int(n) for n in unpack.attributes["bits"]) != contraction.plane_bits:
                return False
            planes = list(unpack.operands)
        pairs = [*zip(planes, contraction.planes, strict=True)]
        pairs += [
            (operands[name], value) for name, value in parameters.items() if value is not None
        ]
        return all(self.are_rows(rows, table) for rows, table in pairs)

    def are_rows(self, rows: Value, table: Value) -> bool:
        """True if a value has rows of another value."""
        if (rows, table) not in self.checked:
            self.checked[rows, table] = self._are_computed_rows(rows, table)
        return self.checked[rows, table]

    def _are_computed_rows(self, rows: Value, table: Value) -> bool:
        types = row_type, table_type = rows.type, table.type
        if isinstance(rows.owner, ir.Block) or not all(type_.has_static_shape for type_ in types):
            return False
        shape, table_shape = ([int(n) for n in type_.shape] for type_ in types)
        if table_type.rank < 2 or row_type.element_type != table_type.element_type:
            return False
        if shape != [*self.index_shape, *table_shape[1:]]:
            return False
        op = rows.owner.operation
        if op.name == GATHER and self._gathers(op) and _is_same(op.operands[0], table):
            return True
        if isinstance(table.owner, ir.Block):
            return False
        table_op = table.owner.operation
        if op.name in CONSTANTS and table_op.name in CONSTANTS:
            splats = [each.attributes["value"] for each in (op, table_op)]
            if not all(isinstance(each, ir.DenseElementsAttr) and each.is_splat for each in splats):
                return False
            return bool(splats[0].get_splat_value() == splats[1].get_splat_value())
        if op.name != table_op.name or op.name not in ROWWISE:
            return False
        attributes, table_attributes = attributes_of(op), attributes_of(table_op)
        if op.name == DEQUANTIZE:
            sizes = attributes.pop(_BLOCK_SIZES)
            table_sizes = [int(n) for n in table_attributes.pop(_BLOCK_SIZES)]
            if not self._are_row_blocks(sizes, table_sizes):
                return False
        return attributes == table_attributes and all(
            self.are_rows(*pair) for pair in zip(op.operands, table_op.operands, strict=True)
        )

    def _are_row_blocks(self, sizes: Sequence[int], table_sizes: Sequence[int]) -> bool:
        """True if blocks of rows are those of the table, and each is in one row."""
        row_sizes = [int(size) for size in sizes]
        expected = [*[1] * len(self.index_shape), *table_sizes[1:]]
        return table_sizes[0] == 1 and row_sizes == expected

    def _gathers(self, op: Operation) -> bool:
        """True if a gather reads rows at the indices of the other gathers."""
        taking, rank = AxisGather.of(op), len(self.index_shape)
        if taking is None or taking.axis or taking.shape[:rank] != list(self.index_shape):
            return False
        if taking.offsets != list(range(rank, len(taking.shape))):
            return False
        if str(taking.indices.type.element_type) not in ("i32", "i64"):
            return False
        if self.indices is None:
            self.indices = taking.indices
        return bool(self.indices == taking.indices)


def _is_same(left: Value, right: Value) -> bool:
    """True if two values are computed from the same constants and globals in the same way."""
    pending, seen = [(left, right)], {(left, right)}
    while pending:
        a, b = pending.pop()
        if a == b:
            continue
        if isinstance(a.owner, ir.Block) or isinstance(b.owner, ir.Block):
            return False
        op, other = a.owner.operation, b.owner.operation
        is_alike = op.name == other.name and a.type == b.type
        if not is_alike or len(op.operands) != len(other.operands):
            return False
        if attributes_of(op) != attributes_of(other):
            return False
        pairs = set(zip(op.operands, other.operands, strict=True)) - seen
        pending += pairs
        seen |= pairs
    return True


# -- calls -----------------------------------------------------------------------------------------


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
