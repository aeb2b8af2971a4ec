"""Loads of packed weights in kernels: steps of integers, scales, zero points and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core._mlir import Value
from ...emit import ArrayLike
from ...emit.vectors import bitcast, load, quotient, remainder
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I32, U8
from ..kernel import Binding
from ..pack.packed_weight import PackedWeight, ScaleEncoding


def weight_bindings(weight: PackedWeight) -> list[Binding]:
    """Return the bindings of a packed weight: one, or those of its integers and fields."""
    return [Binding((weight.tiles.count, size), U8) for size in weight.binding_bytes()]


class BlockIndex(NamedTuple):
    """The position of a block in a tile.

    Attributes:
        record: number of the record.
        block: number of the block in the record.
    """

    record: ArrayLike
    block: int


@dataclass(frozen=True)
class WeightReader:
    """Emits loads of a packed weight.

    Args:
        weight: the layout.
        memrefs: memrefs of `weight_bindings`.
        first_record: number of the record that the memrefs start with; None for 0.
    """

    weight: PackedWeight
    memrefs: Sequence[Value]
    first_record: ArrayLike | None = None

    @classmethod
    def take(cls, weight: PackedWeight, memrefs: list[Value]) -> WeightReader:
        """Remove the memrefs of a weight from the front of a list, and return their reader."""
        return cls(weight, [memrefs.pop(0) for _ in weight.binding_bytes()])

    def step(self, record: ArrayLike, step: ArrayLike | int) -> tuple[Value, ArrayLike]:
        """Return the memref of a step of a record, and its byte offset in a tile."""
        weight, size = self.weight, self.weight.tiles.step_bytes
        if weight.is_planar:
            first = _times(self._local(record), weight.steps_per_record)
            return self.memrefs[0], (first + step) * size
        return self.memrefs[0], self._record_offset(record) + step * size

    def scale(
        self, tile: Value, block: BlockIndex, column: ArrayLike | int, lanes: int
    ) -> ArrayLike:
        """Load the scales of a block, f32, of consecutive columns of a tile."""
        return self._decoded(self.weight.scale, 0, tile, block, column, lanes)

    def zero_point(
        self, tile: Value, block: BlockIndex, column: ArrayLike | int, lanes: int
    ) -> ArrayLike | None:
        """Load the zero points of a block, u8; None where all blocks have the same."""
        if self.weight.zero_point is not None:
            return None
        return self._load(len(self.weight.scale.fields), tile, block, column, lanes)

    def offset(
        self, tile: Value, block: BlockIndex, column: ArrayLike | int, lanes: int
    ) -> ArrayLike | None:
        """Load the offsets of a block, f32; None where there are none."""
        encoding = self.weight.offset
        if encoding is None:
            return None
        first = len(self.weight.fields) - len(encoding.fields)
        return self._decoded(encoding, first, tile, block, column, lanes)

    def _decoded(
        self,
        encoding: ScaleEncoding,
        field: int,
        tile: Value,
        block: BlockIndex,
        column: ArrayLike | int,
        lanes: int,
    ) -> ArrayLike:
        """Load a field, times its outer scale."""
        stored = self._load(field, tile, block, column, lanes)
        if encoding.outer is None:
            return convert(stored, F32)
        outer = convert(self._load(field + 1, tile, block, column, lanes), F32)
        return convert(convert(stored, I32), F32) * outer

    def _load(
        self, field: int, tile: Value, block: BlockIndex, column: ArrayLike | int, lanes: int
    ) -> ArrayLike:
        element = self.weight.fields[field].element
        width = element.bits // 8
        memref, start = self._field(field, block)
        position = [tile, (start + column * width).value]
        if width == 1:
            return load(memref, position, lanes, element)
        return bitcast(load(memref, position, lanes * width, U8), element)

    def _field(self, number: int, block: BlockIndex) -> tuple[Value, ArrayLike]:
        """Return the memref of a field of a block, and its byte offset in a tile."""
        weight, field = self.weight, self.weight.fields[number]
        size = weight.field_bytes(field)
        if weight.is_planar:
            index = _times(self._local(block.record), weight.blocks_per_record) + block.block
            return self.memrefs[number + 1], _divided(index, field.blocks) * size
        [memref], start = self.memrefs, weight.field_offset(number)
        if field.blocks == 1:
            start += weight.steps_per_record * weight.tiles.step_bytes
            start += block.block * weight.block_field_bytes
            return memref, self._record_offset(block.record) + start
        superblock = _divided(block.record, weight.records_per_superblock)
        first = superblock * weight.superblock_bytes + start
        if field.blocks == weight.records_per_superblock * weight.blocks_per_record:
            return memref, first
        record = remainder(block.record, weight.records_per_superblock)
        index = _times(record, weight.blocks_per_record) + block.block
        return memref, first + _divided(index, field.blocks) * size

    def _record_offset(self, record: ArrayLike) -> ArrayLike:
        """Return the byte offset of a record in a tile."""
        weight = self.weight
        header = weight.superblock_header_bytes
        if weight.records_per_superblock == 1:
            return record * weight.record_bytes + header
        superblock = _divided(record, weight.records_per_superblock)
        first = superblock * weight.superblock_bytes + header
        return first + remainder(record, weight.records_per_superblock) * weight.record_bytes

    def _local(self, record: ArrayLike) -> ArrayLike:
        return record if self.first_record is None else record - self.first_record


def _times(index: ArrayLike, factor: int) -> ArrayLike:
    return index if factor == 1 else index * factor


def _divided(index: ArrayLike, divisor: int) -> ArrayLike:
    return index if divisor == 1 else quotient(index, divisor)
