"""What kernels of products of windows with a weight in tiles compute, whatever multiplies."""

from __future__ import annotations

from dataclasses import dataclass

from .epilogue import Finish
from .instructions import INSTRUCTIONS, Instructions
from .tiles import Tiles
from .windows import Windows

__all__ = ["WindowProduct"]


@dataclass(frozen=True)
class WindowProduct:
    """What is computed, and with what.

    Args:
        tiles: how the weight lies in memory: its depth is that of a window, as the kernel reads it.
        instructions: what multiplies, a name in `INSTRUCTIONS`.
        windows: where they are on the activations.
        channels: integers of a position, a multiple of what is multiplied in a lane.
        workgroups: how many share the work.
        finish: what is done with the sums before they are written.
    """

    tiles: Tiles
    instructions: str
    windows: Windows
    channels: int
    workgroups: int
    finish: Finish | None = None

    @property
    def target(self) -> Instructions:
        """What is multiplied with; of tiles, where there are none."""
        return INSTRUCTIONS[self.instructions]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The extents of the result: lines, windows, columns."""
        windows = self.windows
        return windows.images * windows.lines, windows.count, self.tiles.columns
