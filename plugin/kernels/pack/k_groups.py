"""Taps of windows on a line, in the groups that an instruction multiplies at once.

Group ``g`` has some positions of a line, ``g * every + i * apart``. A window reads a few groups; of
the positions that it does not have the weight is 0. Where a group is long enough, windows that lie
side by side share it: of three taps at a step of 1, four positions serve two windows::

    positions    0 1 2 3
    window 0     a b c 0
    window 1     0 a b c

How far groups are apart is chosen so that gathering them and multiplying cost the least together.
ConvGeometry repeat after a *period*: then they begin at the first position of a group again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...numerics.element_types import AnyArray
from ..conv_geometry import ConvAxis

__all__ = ["TapGroups"]

_COST_OF_GATHERING = 4
"""What it costs to gather a group, in multiplications of one."""
_MOST_APART = 8


@dataclass(frozen=True)
class TapGroups:
    """How the taps of windows on a line are read.

    Args:
        axis: the windows.
        size: positions of a group.
        lines: of a window, which read groups that are gathered once.
    """

    axis: ConvAxis
    size: int
    lines: int

    @cached_property
    def every(self) -> int:
        """Positions from a group to the next."""
        return min(filter(self._reaches, range(1, _MOST_APART + 1)), key=self._cost)

    @property
    def period(self) -> int:
        """ConvGeometry from one that begins with a group to the next that does."""
        return self._period(self.every)

    def of_window(self, window: int) -> list[tuple[int, int, range]]:
        """The groups that a window reads: number, a position of it, and the taps from there on."""
        return list(self._groups(window, self.every))

    def count(self, windows: int) -> int:
        """How many groups the first windows read."""
        return self.of_window(windows - 1)[-1][0] + 1

    def pack(self, weight: AnyArray) -> AnyArray:
        """Lay out a weight: of each group of each window of a period, for each line.

        Args:
            weight: ``lines x taps x channels``.

        Returns:
            ``groups * lines x channels * size``.
        """
        lines, _, channels = weight.shape
        found = []
        for window in range(self.period):
            for _, place, of_group in self.of_window(window):
                missing = (place, self.size - place - len(of_group))
                part = weight[:, of_group.start : of_group.stop]
                if any(missing):
                    part = np.pad(part, [(0, 0), missing, (0, 0)])
                found.append(part.transpose((0, 2, 1)).reshape((lines, channels * self.size)))
        return np.concatenate(found, axis=0)

    def _groups(self, window: int, every: int) -> Iterator[tuple[int, int, range]]:
        axis, tap = self.axis, 0
        while tap < axis.taps:
            position = window * axis.stride + tap * axis.dilation
            number = position // every
            place = (position - number * every) // axis.dilation
            end = min(tap + self.size - place, axis.taps)
            yield number, place, range(tap, end)
            tap = end

    def _reaches(self, every: int) -> bool:
        """True if each tap is a position of a group."""
        axis = self.axis
        starts = range(0, self._period(every) * axis.stride, axis.stride)
        distances = [(n + tap * axis.dilation) % every for n in starts for tap in range(axis.taps)]
        return all(n % axis.dilation == 0 and n < axis.dilation * self.size for n in distances)

    def _cost(self, every: int) -> float:
        """Of a window, in multiplications of a group."""
        period = self._period(every)
        read = sum(len(list(self._groups(window, every))) for window in range(period))
        return self.axis.stride / every * _COST_OF_GATHERING + self.lines * read / period

    def _period(self, every: int) -> int:
        return math.lcm(every, self.axis.stride) // self.axis.stride
