"""Look-ups of rows in a table that a contraction multiplies with, in the tiles of its kernel.

A language model whose table of tokens is tied looks rows up in it, and multiplies with all of it
for the logits. The product reads tiles (`subquant.kernels.pack.packed_weight`); as rows are read
there as well, nothing reads the table as it was written, and no archive has it. Before::

    %q = util.global.load @table : tensor<512x64xi8>
    %s = util.global.load @scales : tensor<512x2xf16>
    %1 = "stablehlo.gather"(%q, %tokens) ... -> tensor<4x64xi8>
    %2 = "stablehlo.gather"(%s, %tokens) ... -> tensor<4x2xf16>
    %x = "subquant.dequantize"(%1, %2) ... -> tensor<4x64xf32>
    ...
    %y = "subquant.block_contraction"(%z, %q, %s) ... -> tensor<1x512xf32>

After::

    %x = flow.dispatch @take_rows::@take_rows(%tiles, %tile_scales, %tokens) -> tensor<4x64xf32>
    ...
    %y = flow.dispatch @block_product::@block_product(%tiles, %tile_scales, ...)

The rows are those of the contraction's weight if all that is taken by the same numbers, and then
unpacked, converted and scaled row by row, is what the weight is made of in the same way. The table
is a constant or a parameter that nothing changes. Where no kernel multiplies with it, a look-up
stays.
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
from ...emit.gathers import AxisGather
from ...emit.operation import (
    attributes_of,
    clone_computation,
    element_of,
    erase_unused,
    is_used,
    mlir_type,
    tensor_type,
)
from ...numerics.element_types import F32
from ...numerics.parameters import ExpressedType
from ..constant_values import is_invariant
from ..cpu.gather_rows import GatherRows
from ..kernel_table import KernelTable
from .match_blockwise import Product
from .match_failure import MatchFailure

__all__ = ["RowLookup", "lookups_of"]

_GATHER = "stablehlo.gather"
_BY_ROW = {
    *("stablehlo.add", "stablehlo.convert", "stablehlo.multiply", "stablehlo.reshape"),
    *("stablehlo.subtract", "stablehlo.xor", DEQUANTIZE, UNPACK),
}
"""Operations that compute each row of their result of the same rows of operands.

Those of rows are as many as of their operands: a reshape may not change that, nor a block be of
several.
"""
_SIZES = "block_sizes"


@dataclass(frozen=True)
class RowLookup:
    """A look-up of rows.

    Attributes:
        operation: the ``subquant.dequantize`` that gives the rows.
        product: the contraction that multiplies with the table.
        indices: the numbers of the rows.
        count: how many there are.
    """

    operation: Operation
    product: Product
    indices: Value
    count: int

    def replace(self, kernels: KernelTable) -> None:
        """Call the kernel in the place of the look-up."""
        op, tiles = self.operation, self.product.tiles
        with ir.InsertionPoint(op), op.location:
            contraction, known = self.product.contraction, dict[Value, Value]()

            def again(given: Value | None) -> Value | None:
                return None if given is None else clone_computation(given, known)

            own = replace(
                contraction,
                storage=again(contraction.storage),
                storage_high=again(contraction.storage_high),
                scales=again(contraction.scales),
                zero_points=again(contraction.zero_points),
                offsets=again(contraction.offsets),
            )
            weight = replace(self.product, contraction=own).weight(kernels)
            taking = GatherRows(
                weight.stored,
                self.count,
                element_of(self.indices.type),
            )
            indices = emit_stablehlo.reshape(self.indices, [self.count])
            type_ = tensor_type([self.count, tiles.k], mlir_type(F32))
            [rows] = kernels.call(
                taking, taking.kernel(), [*weight.operands, indices], [type_], self.count
            )
            shape = [int(extent) for extent in op.results[0].type.shape]
            op.results[0].replace_all_uses_with(emit_stablehlo.reshape(rows, shape))
        erase_unused(op)
        for value in reversed(known.values()):
            if not is_used(value):
                value.owner.operation.erase()


def lookups_of(
    dequantizations: Sequence[Operation], contractions: Sequence[Operation], instructions: str
) -> list[RowLookup]:
    """Find look-ups of rows in the weights of contractions that kernels compute.

    Args:
        dequantizations: the ``subquant.dequantize`` of a module.
        contractions: its ``subquant.block_contraction``.
        instructions: a name in `INSTRUCTION_SETS`.
    """
    found: list[RowLookup] = []
    tables: dict[tuple[int, ...], list[BlockContraction]] = {}
    for op in contractions:
        contraction = BlockContraction.of(op)
        tables.setdefault(tuple(contraction.storage_shape[1:]), []).append(contraction)
    for op in dequantizations:
        type_ = op.results[0].type
        if not type_.has_static_shape:
            continue
        shape = tuple(int(extent) for extent in type_.shape)
        lookups = (
            _lookup(op, contraction, shape[:-rank], instructions)
            for rank in range(1, len(shape) + 1)
            for contraction in tables.get(shape[-rank:], ())
        )
        lookup = next(filter(None, lookups), None)
        if lookup is not None:
            found.append(lookup)
    return found


def _lookup(
    op: Operation, contraction: BlockContraction, taken: tuple[int, ...], instructions: str
) -> RowLookup | None:
    """The look-up of rows of a contraction's weight, if a dequantization is such a one."""
    rows = _Rows(taken)
    if not rows.are_dequantized(op, contraction) or rows.indices is None:
        return None
    parts = [contraction.scales, contraction.zero_points, contraction.offsets]
    if not all(is_invariant(part) for part in (*contraction.planes, *parts) if part is not None):
        return None
    product = Product.of(contraction, instructions)
    if isinstance(product, MatchFailure):
        return None
    [(loop, _)] = contraction.indices[1][0]
    if product.looks_up or product.batch or product.columns != [loop]:
        return None
    count = math.prod(taken)
    return RowLookup(op, product, rows.indices, count) if count else None


@dataclass
class _Rows:
    """Rows of several tensors that are taken by the same numbers.

    Attributes:
        taken: the shape of the numbers.
        indices: the numbers, as soon as they are known.
        known: pairs of values, and whether the first has rows of the second.
    """

    taken: tuple[int, ...]
    indices: Value | None = None
    known: dict[tuple[Value, Value], bool] = field(default_factory=dict)

    def are_dequantized(self, op: Operation, contraction: BlockContraction) -> bool:
        """True if an operation dequantizes rows of the weight of a contraction."""
        operands = operands_of(op)
        whole = {
            "scales": contraction.scales,
            "zero_points": contraction.zero_points,
            "offsets": contraction.offsets,
        }
        given = operands.pop("input")
        is_of_f32 = contraction.expressed is ExpressedType.F32
        if not is_of_f32 or element_of(op.results[0].type) != F32:
            return False
        if described_type(op) != (contraction.storage_type, contraction.expressed):
            return False
        if not self._are_blocks(op.attributes[_SIZES], contraction.block_sizes):
            return False
        if set(operands) != {name for name, part in whole.items() if part is not None}:
            return False
        planes = [given]
        if contraction.plane_bits is not None:
            if isinstance(given.owner, ir.Block) or given.owner.operation.name != UNPACK:
                return False
            unpacking = given.owner.operation
            if tuple(int(n) for n in unpacking.attributes["bits"]) != contraction.plane_bits:
                return False
            planes = list(unpacking.operands)
        pairs = [*zip(planes, contraction.planes, strict=True)]
        pairs += [(operands[name], part) for name, part in whole.items() if part is not None]
        return all(self._are_of(rows, part) for rows, part in pairs)

    def _are_of(self, rows: Value, whole: Value) -> bool:
        """True if a value has rows of another one."""
        if (rows, whole) not in self.known:
            self.known[rows, whole] = self._are_computed(rows, whole)
        return self.known[rows, whole]

    def _are_computed(self, rows: Value, whole: Value) -> bool:
        """The same of values that were not looked at before."""
        if isinstance(rows.owner, ir.Block) or not self._has_rows(rows.type, whole.type):
            return False
        op = rows.owner.operation
        if op.name == _GATHER and self._takes(op) and _is_same(op.operands[0], whole):
            return True
        if isinstance(whole.owner, ir.Block):
            return False
        other = whole.owner.operation
        if op.name in CONSTANTS and other.name in CONSTANTS:
            return _is_same_splat(op.attributes["value"], other.attributes["value"])
        if op.name != other.name or op.name not in _BY_ROW:
            return False
        attributes, others = attributes_of(op), attributes_of(other)
        if op.name == DEQUANTIZE:
            sizes = attributes.pop(_SIZES)
            if not self._are_blocks(sizes, [int(n) for n in others.pop(_SIZES)]):
                return False
        return attributes == others and all(
            self._are_of(*each) for each in zip(op.operands, other.operands, strict=True)
        )

    def _has_rows(self, rows: ir.Type, whole: ir.Type) -> bool:
        if not rows.has_static_shape or not whole.has_static_shape or whole.rank < 2:
            return False
        shape, of_whole = ([int(n) for n in type_.shape] for type_ in (rows, whole))
        return rows.element_type == whole.element_type and shape == [*self.taken, *of_whole[1:]]

    def _are_blocks(self, sizes: Sequence[int], whole: Sequence[int]) -> bool:
        """True for blocks of rows, each of one row."""
        own = [int(size) for size in sizes]
        return whole[0] == 1 and own == [*[1] * len(self.taken), *whole[1:]]

    def _takes(self, op: Operation) -> bool:
        """True if a gather takes rows by the numbers that others are taken by."""
        taking, rank = AxisGather.of(op), len(self.taken)
        if taking is None or taking.axis or taking.shape[:rank] != list(self.taken):
            return False
        if taking.offsets != list(range(rank, len(taking.shape))):
            return False
        if str(taking.indices.type.element_type) not in ("i32", "i64"):
            return False
        if self.indices is None:
            self.indices = taking.indices
        return bool(self.indices == taking.indices)


def _is_same(one: Value, other: Value) -> bool:
    """True if two values are computed of the same constants and globals in the same way."""
    pending, seen = [(one, other)], {(one, other)}
    while pending:
        given, twin = pending.pop()
        if given == twin:
            continue
        if isinstance(given.owner, ir.Block) or isinstance(twin.owner, ir.Block):
            return False
        op, like = given.owner.operation, twin.owner.operation
        is_alike = op.name == like.name and given.type == twin.type
        if not is_alike or len(op.operands) != len(like.operands):
            return False
        if attributes_of(op) != attributes_of(like):
            return False
        pairs = set(zip(op.operands, like.operands, strict=True)) - seen
        pending += pairs
        seen |= pairs
    return True


def _is_same_splat(one: ir.Attribute, other: ir.Attribute) -> bool:
    if not all(isinstance(each, ir.DenseElementsAttr) and each.is_splat for each in (one, other)):
        return False
    return bool(one.get_splat_value() == other.get_splat_value())
