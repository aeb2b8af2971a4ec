"""Kinds of the axes of a tensor in blocks.

An axis is *whole* (one block), *unit* (blocks of size 1), *split* (blocks that divide a static
size) or *ragged* (any other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ....core._mlir import ir
from ....emit.operation import is_dynamic

AxisKind = Literal["whole", "unit", "split", "ragged"]


@dataclass(frozen=True)
class BlockAxes:
    """The kind and the block size (None for one block) of each axis."""

    kinds: tuple[AxisKind, ...]
    sizes: tuple[int | None, ...]

    @staticmethod
    def of(
        type_: ir.RankedTensorType, sizes: Sequence[int | None], counts: Sequence[int | None]
    ) -> BlockAxes:
        """Choose the kinds.

        Args:
            type_: the tensor's type.
            sizes: the block size along each axis, None for one block.
            counts: the number of blocks along each axis, None if it is dynamic.
        """
        kinds: list[AxisKind] = []
        for size, count, dim in zip(sizes, counts, map(int, type_.shape), strict=True):
            if size is None or count == 1:
                kinds.append("whole")
            elif size == 1:
                kinds.append("unit")
            elif not is_dynamic(dim) and dim % size == 0:
                kinds.append("split")
            else:
                kinds.append("ragged")
        return BlockAxes(tuple(kinds), tuple(sizes))

    @staticmethod
    def all_whole(rank: int) -> BlockAxes:
        """One block."""
        kinds: list[AxisKind] = ["whole"] * rank
        return BlockAxes(tuple(kinds), (None,) * rank)

    @property
    def in_blocks(self) -> list[int]:
        """The axes that are not whole."""
        return [axis for axis, kind in enumerate(self.kinds) if kind != "whole"]
