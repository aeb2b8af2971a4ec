"""The kernel of convolutions that keep channels apart: each has a window of its own.

::

    result[i, l, m, c] = sum_t x[i, l * line_step + m * step + t, c] * weight[t, c]

A vector holds channels. Integers of 8 bits are widened to 32, whose products LLVM writes with
instructions of 16 bits, for it sees that the factors fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._mlir import Value
from ..emit import Formula, scalar
from ..emit.linalg import Extent
from ..emit.vectors import Vectors, load, loop, quotient, remainder, store
from ..numerics.array_functions import convert
from ..numerics.element_types import I8, I32
from .executables import Binding, Kernel
from .windows import Windows

__all__ = ["DepthwiseProduct"]

_AT_ONCE = 4
"""Windows that are computed together: they share positions, and the weight."""


@dataclass(frozen=True)
class DepthwiseProduct:
    """What is computed, and with what.

    Args:
        windows: where they are.
        channels: how many there are, a multiple of `lanes`.
        lanes: channels in a vector.
        workgroups: how many share the windows.
    """

    windows: Windows
    channels: int
    lanes: int
    workgroups: int

    def kernel(self) -> Kernel:
        """The kernel: its bindings are the weight, activations and the result."""
        windows = self.windows
        bindings = [
            Binding((windows.size, self.channels), I8),
            Binding((windows.positions, self.channels), I8),
            Binding((windows.images * windows.lines, windows.count, self.channels), I32),
        ]
        return Kernel("depthwise_product", bindings, self.workgroups, self._body, 0)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        weight, activations, result = memories
        windows, lanes = self.windows, self.lanes
        at_once = min(_AT_ONCE, windows.count)
        of_line = -(-windows.count // at_once)
        parts = of_line * windows.lines * windows.images
        share = -(-parts // self.workgroups)
        begin = scalar(number) * share
        end = np.minimum(begin + share, parts)

        def of_channels(channel: Value) -> None:
            taps = windows.distances()
            stored = [convert(load(weight, [n, channel], lanes, I8), I32) for n in range(len(taps))]

            def of_part(part: Value) -> None:
                line = quotient(scalar(part), of_line)
                row = remainder(scalar(part), of_line) * at_once
                if windows.count % at_once:
                    row = np.minimum(row, windows.count - at_once)
                start = windows.start(line, row)
                read: dict[int, Formula] = {}

                def given(distance: int) -> Formula:
                    if distance not in read:
                        place = [(start + distance).value, channel]
                        read[distance] = convert(load(activations, place, lanes, I8), I32)
                    return read[distance]

                sums = [Vectors(lanes).known(0, I32)] * at_once
                for tap, factor in zip(taps, stored, strict=True):
                    for window in range(at_once):
                        product = given(tap + window * windows.step) * factor
                        sums[window] = sums[window] + product
                for window, total in enumerate(sums):
                    store(total, result, [line.value, (row + window).value, channel])

            loop(begin.value, end.value, 1, of_part)

        loop(0, self.channels, lanes, of_channels)
