"""Horizontal taps of a depthwise convolution, in the k-packs that an instruction multiplies.

K-pack ``g`` gathers the pixels ``g * spacing + i * dilation`` of an image row. An output pixel
reads a few k-packs; the weight is 0 for pixels that are not its taps. Adjacent output pixels share
a long k-pack: with three taps and stride 1, four pixels serve two outputs::

    pixels      0 1 2 3
    output 0    a b c 0
    output 1    0 a b c

The spacing minimizes the cost of gathering and multiplying. The pattern repeats after a *period* of
output pixels, when an output starts at the first pixel of a k-pack again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...numerics.element_types import AnyArray
from ..conv_geometry import ConvAxis

_GATHER_COST_IN_PRODUCTS = 4
"""Multiplications of a k-pack that take as long as gathering one."""
_MAX_SPACING = 8
"""Pixels from a k-pack to the next, at most."""


@dataclass(frozen=True)
class TapPacks:
    """K-packs, of `k_pack` pixels, of the taps of a horizontal axis.

    `rows` are vertical taps, whose image rows share gathered k-packs with other output rows.
    """

    axis: ConvAxis
    k_pack: int
    rows: int

    @cached_property
    def spacing(self) -> int:
        """Pixels from a k-pack to the next: the cheapest number whose k-packs have all taps."""
        axis, costs = self.axis, dict[int, float]()
        for spacing in range(1, _MAX_SPACING + 1):
            period = self._period(spacing)
            starts = range(0, period * axis.stride, axis.stride)
            offsets = [(n + m * axis.dilation) % spacing for n in starts for m in range(axis.taps)]
            if all(n % axis.dilation == 0 and n < axis.dilation * self.k_pack for n in offsets):
                packs = sum(len(list(self._packs(output, spacing))) for output in range(period))
                gathered = axis.stride / spacing
                # of an output, in multiplications of a k-pack
                costs[spacing] = gathered * _GATHER_COST_IN_PRODUCTS + self.rows * packs / period
        return min(costs, key=costs.__getitem__)

    @property
    def period(self) -> int:
        """Output pixels after which the pattern repeats."""
        return self._period(self.spacing)

    def of_output(self, output: int) -> list[tuple[int, int, range]]:
        """Return the k-packs of an output: number, first lane, and the taps from there on."""
        return list(self._packs(output, self.spacing))

    def count(self, outputs: int) -> int:
        """Return the number of k-packs of the first outputs."""
        return self.of_output(outputs - 1)[-1][0] + 1

    def pack(self, weight: AnyArray) -> AnyArray:
        """Pack a weight for each k-pack of each output of a period.

        The weight is ``rows x taps x C``, the result ``k-packs * rows x C * k_pack``.
        """
        rows, _, channels = weight.shape
        packed = []
        for output in range(self.period):
            for _, lane, taps in self.of_output(output):
                zeros = (lane, self.k_pack - lane - len(taps))
                values = weight[:, taps.start : taps.stop]
                if any(zeros):
                    values = np.pad(values, [(0, 0), zeros, (0, 0)])
                packed.append(values.transpose((0, 2, 1)).reshape((rows, channels * self.k_pack)))
        return np.concatenate(packed, axis=0)

    def _packs(self, output: int, spacing: int) -> Iterator[tuple[int, int, range]]:
        axis, tap = self.axis, 0
        while tap < axis.taps:
            pixel = output * axis.stride + tap * axis.dilation
            number = pixel // spacing
            lane = (pixel - number * spacing) // axis.dilation
            end = min(tap + self.k_pack - lane, axis.taps)
            yield number, lane, range(tap, end)
            tap = end

    def _period(self, spacing: int) -> int:
        return math.lcm(spacing, self.axis.stride) // self.axis.stride
