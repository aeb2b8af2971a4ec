"""The integers of a weight of 8 bits, widened once for many windows.

An instruction that multiplies integers of 16 bits (`InstructionSet.multiplicand_type`) needs a
weight of bytes widened, which takes as long as a multiplication does: of 18 instructions that four
windows and 16 columns take for a word of each window, two. So the groups of a tile, or some of them
after others, are written as factors to memory of the workgroup, a *panel*, which all of its windows
read. With AVX2 a 3x3 convolution of 56x56x64 with as many columns takes 1.70 ms for 1.81, a 1x1
convolution 0.236 for 0.259, and 512 rows times 1024 x 1024 integers 8.24 for 8.65 (code for Haswell
on Emerald Rapids, one thread).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import Formula, scalar
from ...emit.vectors import load, loop, scratch, store
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I16
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles

__all__ = ["WidenedPanels", "widened_panels"]

_WHOLE = 18 << 10
"""Bytes of a tile that is one panel, at most; 3x3 positions of 64 channels and 16 columns."""
_PART = 10 << 10
"""Bytes of a panel at most, where sums wait in memory beside it."""
_LEAST_GROUPS = 32
"""Of a panel: sums of which those before wait are read and written for so many, at least."""
_LEAST_WINDOWS = 32
"""That read a panel, at least: it is written in the time that they save, about."""


@dataclass(frozen=True)
class WidenedPanels:
    """How a tile is cut into panels.

    Attributes:
        tiles: how the weight lies in memory; a step has one group.
        target: what is multiplied with.
        groups: how many of a tile a panel has.
    """

    tiles: Tiles
    target: InstructionSet
    groups: int

    @property
    def count(self) -> int:
        """How many panels a tile has."""
        return self.tiles.steps // self.groups

    def memory(self) -> Value:
        """Memory for a panel, which has the shape of a weight of one tile."""
        return scratch([1, self.groups, self.tiles.step_bytes], self.target.multiplicand_type)

    def write(self, weight: Value, tile: Formula, panel: Formula, memory: Value) -> None:
        """Write a panel of a tile."""
        length = self.tiles.lanes * self.target.k_pack
        first = panel * self.groups

        def of_group(number: Value) -> None:
            at = first + scalar(number)
            for part in range(self.tiles.vectors):
                column = load(weight, [tile.value, at.value, part * length], length, I8)
                store(
                    convert(column, self.target.multiplicand_type),
                    memory,
                    [0, number, part * length],
                )

        loop(0, self.groups, 1, of_group)


def widened_panels(
    tiles: Tiles, target: InstructionSet, windows: int, most: int, *, is_cut: bool
) -> WidenedPanels | None:
    """The panels of a tile; None where it is read as it is.

    Args:
        tiles: how the weight lies in memory.
        target: what is multiplied with.
        windows: that read a tile, of a workgroup.
        most: bytes of memory that a workgroup has for a panel.
        is_cut: a tile may be cut.
    """
    of_group = tiles.step_bytes * target.multiplicand_type.bits // I8.bits
    if target.multiplicand_type != I16 or windows < _LEAST_WINDOWS:
        return None
    if tiles.steps * of_group <= min(most, _WHOLE):
        return WidenedPanels(tiles, target, tiles.steps)
    groups = min(most, _PART) // of_group if is_cut else 0
    choices = [n for n in range(_LEAST_GROUPS, groups + 1) if tiles.steps % n == 0]
    if not choices:
        return None
    # Groups of a loop are written out, several of them.
    return WidenedPanels(tiles, target, max(choices, key=lambda n: (math.gcd(n, 8), n)))
