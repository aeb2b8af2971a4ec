"""Products of offsets and row sums: the initial accumulators of AMX loop nests.

Beside AMX tiles a processor executes one 512-bit FMA per cycle instead of two, so these products
come before those of tiles, and not between them.
"""

from __future__ import annotations

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.vectors import Vectors, broadcast, loop
from ...numerics.element_types import F32
from ..isa.base import InstructionSet
from .activation_layout import BlockWord, RowWords
from .weight_reader import BlockColumns, BlockIndex, WeightReader


def offset_products(
    reader: WeightReader, columns: BlockColumns, rows: RowWords, target: InstructionSet
) -> list[ArrayLike]:
    """``sum_b offset[n, b] * scaled_sum[m, b]`` of some rows and a vector of columns, f32.

    Args:
        columns: the columns in the first block.
    """
    weight = reader.weight
    lanes, blocks = columns.lanes, weight.blocks_per_record

    def add_record(record: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
        totals = list(accumulators)
        for number in range(blocks):
            offsets = reader.offset(columns._replace(block=BlockIndex(scalar(record), number)))
            assert offsets is not None  # the weight has them
            row_sums = rows.load(scalar(record) * blocks + number, BlockWord.SCALED_SUM)
            for index, row_sum in enumerate(row_sums):
                totals[index] = target.fma(offsets, broadcast(row_sum, lanes), totals[index])
        return totals

    return loop(0, weight.records, 1, add_record, [Vectors(lanes).known(0.0, F32)] * rows.count)
