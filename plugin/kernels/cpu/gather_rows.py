"""Gather kernel: rows of a table of blocks or of floats that is packed as a GEMM weight.

A row of the table is a column of the packed weight::

    result[m, k] = (weight[n, k] - zero[n, b]) * scale[n, b] + offset[n, b]
    n = min(max(index[m], 0), N - 1)

where ``b`` is the block of ``k``: the formula of `subquant.numerics.casts`, with an offset where
the weight has one. Floats are decoded, and multiplied by a scale if they have one. Each load takes
the k-pack of one lane. So a table that is also multiplied, such as the token embeddings of a
language model, is in memory once; and a row touches no more pages than a tile has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.operation import index_type, value
from ...emit.vectors import (
    broadcast,
    element_at,
    load,
    load_element,
    loop,
    quotient,
    remainder,
    store,
)
from ...numerics.array_functions import convert
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32, U8, ElementType
from ...numerics.parameters import ExpressedType, StorageType
from ..pack.packed_weight import PackedWeight
from .float_decoding import decode_floats
from .weight_reader import BlockColumns, BlockIndex, WeightReader, weight_bindings

_CAST = Cast(StorageType(8, False), ExpressedType.F32)
_INT8_MACS_PER_ELEMENT = 8
"""Dequantizing an element takes about as long as this many int8 MACs."""
_ROWS_PER_WORKGROUP = 32
"""Rows of a workgroup: 32 rows of 640 elements take a thread 16 us."""


@dataclass(frozen=True)
class GatherRows:
    """Gather of rows of a table with the layout `weight`; indices are i32 or i64."""

    weight: PackedWeight
    rows: int
    index_element: ElementType

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the table, the indices, and the result ``rows x K``."""
        k = self.weight.tiles.k
        bindings = [
            *weight_bindings(self.weight),
            Binding((self.rows,), self.index_element),
            Binding((self.rows, k), F32),
        ]
        workgroups = -(-self.rows // _ROWS_PER_WORKGROUP)
        macs = _INT8_MACS_PER_ELEMENT * self.rows * k
        return Kernel("gather_rows", bindings, workgroups, self._body, self.rows, macs=macs)

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: DimSize) -> None:
        first = scalar(workgroup) * _ROWS_PER_WORKGROUP
        end = first + _ROWS_PER_WORKGROUP
        if self.rows % _ROWS_PER_WORKGROUP:
            end = np.minimum(end, self.rows)
        loop(first.value, end.value, 1, lambda row: _Row(self.weight, memories, row).emit())


class _Row:
    """A row of the result; `weight` is the layout of the table."""

    def __init__(self, weight: PackedWeight, memories: Sequence[Value], row: Value) -> None:
        arguments, self.weight, self.row = list(memories), weight, row
        self.tiles = tiles = weight.tiles
        self.reader = WeightReader.take(weight, arguments)
        indices, self.result = arguments
        index = np.minimum(np.maximum(load_element(indices, [row]), 0), tiles.n - 1)
        n = scalar(value("arith.index_cast", [index.value], index_type()))
        self.tile, self.column = quotient(n, tiles.nr).value, remainder(n, tiles.nr)
        self.vector = quotient(self.column, tiles.lanes)
        self.lane = remainder(self.column, tiles.lanes)

    def emit(self) -> None:
        """Emit loops over records and steps of K."""
        steps, blocks = self.weight.steps_per_record, self.weight.blocks_per_record

        def emit_record(number: Value) -> None:
            record = scalar(number)
            if self.weight.floats is not None:
                scales = self._scales(record) if self.weight.scale is not None else []
                loop(0, steps, 1, lambda step: self._write_floats(record, scalar(step), scales))
                return
            parameters = [self._parameters(BlockIndex(record, block)) for block in range(blocks)]
            loop(0, steps, 1, lambda step: self._write_step(record, scalar(step), parameters))

        loop(0, self.weight.records, 1, emit_record)

    def _write_step(
        self,
        record: ArrayLike,
        number: ArrayLike,
        parameters: Sequence[tuple[ArrayLike, ArrayLike | int, ArrayLike | None]],
    ) -> None:
        """Dequantize a step, whose blocks have the parameters, and store it."""
        tiles, loaded = self.tiles, dict[tuple[int, int], ArrayLike]()
        k_packs = tiles.k_per_step // tiles.k_pack
        first_k = (record * self.weight.steps_per_record + number) * tiles.k_per_step
        memory, step = self.reader.step(record, number)
        for k_pack in range(k_packs):
            integers: ArrayLike | None = None
            for plane, vector, bits, byte_shift, integer_shift in tiles.bit_fields(k_pack):
                if (plane, vector) not in loaded:  # bytes of the column
                    index = tiles.vector_index(plane, self.vector + vector * tiles.vectors)
                    offset = step + (index * tiles.lanes + self.lane) * tiles.k_pack
                    bytes_ = load(memory, [self.tile, offset.value], tiles.k_pack, U8)
                    loaded[plane, vector] = convert(bytes_, I32)
                field = loaded[plane, vector]
                if bits < 8:
                    field = (field >> byte_shift) & ((1 << bits) - 1)
                field = field << integer_shift if integer_shift else field
                integers = field if integers is None else integers | field
            real = _CAST.dequantize(integers, *parameters[k_pack * len(parameters) // k_packs])
            store(real, self.result, [self.row, (first_k + k_pack * tiles.k_pack).value])

    def _write_floats(
        self, record: ArrayLike, number: ArrayLike, scales: Sequence[ArrayLike]
    ) -> None:
        """Decode a step of floats, whose blocks have the scales, and store it."""
        tiles, floats = self.tiles, self.weight.floats
        assert floats is not None
        size, k_packs = tiles.vector_bytes // tiles.lanes, tiles.k_per_step // tiles.k_pack
        first_k = (record * self.weight.steps_per_record + number) * tiles.k_per_step
        memory, step = self.reader.step(record, number)
        for k_pack in range(k_packs):
            index = self.vector + k_pack * tiles.vectors
            offset = step + (index * tiles.lanes + self.lane) * size
            bytes_ = load(memory, [self.tile, offset.value], size, U8)
            for member, [real] in enumerate(decode_floats(floats, None, [bytes_])):
                if scales:  # of floats whose factor is 1
                    real = real * scales[k_pack * len(scales) // k_packs]
                k = first_k + (k_pack * tiles.k_pack + member)
                store(real, self.result, [self.row, k.value])

    def _scales(self, record: ArrayLike) -> list[ArrayLike]:
        """The scale of each block of a record, as a vector of one lane."""
        blocks = [BlockIndex(record, block) for block in range(self.weight.blocks_per_record)]
        return [self.reader.scale(BlockColumns(self.tile, b, self.column, 1)) for b in blocks]

    def _parameters(self, block: BlockIndex) -> tuple[ArrayLike, ArrayLike | int, ArrayLike | None]:
        """The scale, zero point and offset of a block, broadcast to a k-pack."""
        columns, reader = BlockColumns(self.tile, block, self.column, 1), self.reader

        def broadcast_lane(vector: ArrayLike | None) -> ArrayLike | None:
            return None if vector is None else broadcast(element_at(vector, 0), self.tiles.k_pack)

        zero_point = broadcast_lane(reader.zero_point(columns))
        return (
            broadcast_lane(reader.scale(columns)),
            self.weight.zero_point if zero_point is None else convert(zero_point, I32),
            broadcast_lane(reader.offset(columns)),
        )
