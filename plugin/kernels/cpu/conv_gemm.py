"""What kernels of products of windows with a weight in tiles compute, whatever multiplies."""

from __future__ import annotations

from dataclasses import dataclass

from ..conv_geometry import ConvGeometry
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..pack.packed_weight import Tiles
from .pad_copy import PadCopyKernel

__all__ = ["ROOM", "ConvGemm"]

ROOM = 16 << 10
"""Bytes of lines with what is around them at most, which stay in the cache beside the weight.
IREE gives a workgroup 32 KiB.
"""


@dataclass(frozen=True)
class ConvGemm:
    """What is computed, and with what.

    Args:
        tiles: how the weight lies in memory: its depth is that of a window, as the kernel reads it.
        instructions: what multiplies, a name in `INSTRUCTION_SETS`.
        windows: where they are on the activations.
        channels: integers of a position, a multiple of what is multiplied in a lane.
        workgroups: how many share the work.
        epilogue: what is done with the sums before they are written.
        pictures: what is put around activations in the kernel, or None: they have it.
    """

    tiles: Tiles
    instructions: str
    geometry: ConvGeometry
    channels: int
    workgroups: int
    epilogue: FusedEpilogue | None = None
    pad_copy: PadCopyKernel | None = None

    @property
    def target(self) -> InstructionSet:
        """What is multiplied with; of tiles, where there are none."""
        return INSTRUCTION_SETS[self.instructions]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The extents of the result: lines, windows, columns."""
        windows = self.geometry
        return windows.images * windows.output_rows, windows.output_columns, self.tiles.n

    @property
    def fits_scratch(self) -> bool:
        """True if the lines that a window reads fit where they are written with what is around."""
        return self.room_of(1) <= ROOM

    def room_of(self, lines: int) -> int:
        """How many bytes the windows of some lines read of what is written."""
        if self.pad_copy is None:
            return 0
        *_, positions, channels = self.pad_copy.shape
        return (
            self.lines_read(lines) * positions * channels * self.target.multiplicand_type.bits // 8
        )

    def lines_read(self, lines: int) -> int:
        """How many lines of a picture the windows of some lines read."""
        assert self.pad_copy is not None
        axis = self.pad_copy.vertical
        return (lines - 1) * axis.stride + axis.receptive_field
