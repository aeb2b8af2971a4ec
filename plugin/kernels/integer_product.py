"""The kernel of products of 8-bit integers with an 8-bit weight: matrices and convolutions.

::

    result[l, m, n] = first[n] + sum_(t, c) x[l * line_step + m * step + t, c] * weight[n, t, c]

Activations are a row of *positions* with some channels ``c`` each. A window has a position at each
of some distances ``t``, its *taps*; windows ``m`` of a *line* ``l`` are a step apart (`Windows`). A
product of matrices has one line, and windows of one tap. Activations are factors of an instruction
(`Instructions.factor`), and may be more than they are by a number: what that adds to a sum is the
same for all windows, and is in ``first``.

Where channels are in groups, a tile of the weight reads those of its columns' groups only, which
lie side by side.

Sums are of i32, and exact: the caller sees to it that they fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._mlir import Value
from ..emit import Formula, scalar
from ..emit.linalg import Extent, constant_index
from ..emit.vectors import (
    load,
    load_element,
    loop,
    prefetch,
    quotient,
    remainder,
)
from ..numerics.array_functions import convert
from ..numerics.element_types import I8, I32
from .columns import SumWriter
from .epilogue import last_bindings
from .executables import Binding, Kernel
from .window_product import WindowProduct

__all__ = ["IntegerProduct"]

_WRITTEN_OUT = 8
"""Groups that are written out at most; more are a loop."""
_COST_OF_A_WEIGHT = 0.25
"""What reading the weight for some windows costs, in windows."""


@dataclass(frozen=True)
class IntegerProduct(WindowProduct):
    """A product by vectors, of which workgroups share the windows of each tile of the weight.

    Args:
        slices: how many parts of the channels there are, of which a tile reads one; the tiles of
            each follow one another, and are as many.
        is_widening: activations are i8, and become factors, which have as many bits, when they are
            read: where that is once, it takes less than to do it before.
    """

    slices: int = 1
    is_widening: bool = False

    @property
    def groups(self) -> int:
        """How many words of factors a position has."""
        return self.channels // self.target.taps

    @property
    def at_once(self) -> int:
        """How many windows are computed together: those that compute few twice, of all that fit.

        What is read for them of the weight is read once; fewer than half are not worth that.
        """
        count = self.windows.count
        most = min(self.target.windows_at_once(self.tiles.parts), count)
        choices = range((most + 1) // 2, most + 1)
        return min(choices, key=lambda n: (-(-count // n) * (n + _COST_OF_A_WEIGHT), -n))

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, what sums begin with, activations, tables of `finish`, and the
        result.
        """
        tiles, windows = self.tiles, self.windows
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((tiles.count, tiles.width), I32),
            Binding((windows.positions * self.groups,), I32),
            *last_bindings(self.finish, tiles.count * tiles.width, self.shape),
        ]
        count = tiles.count * self.workgroups
        rows = windows.images * windows.lines * windows.count
        products = rows * tiles.depth * tiles.columns
        return Kernel("integer_product", bindings, count, self._body, rows, products=products)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        weight, first, activations, *tables, result = memories
        writer = SumWriter(self.tiles, self.at_once, self.finish, tables, result)
        # The rows of a line in parts of `at_once`: the last one may share rows with the one before.
        windows = self.windows
        of_line = -(-windows.count // self.at_once)
        parts = of_line * windows.lines * windows.images
        share = -(-parts // self.workgroups)
        tile = quotient(scalar(number), self.workgroups)
        begin = remainder(scalar(number), self.workgroups) * share
        end = np.minimum(begin + share, parts)

        def of_part(part: Value) -> None:
            line = quotient(scalar(part), of_line)
            row = remainder(scalar(part), of_line) * self.at_once
            if windows.count % self.at_once:
                row = np.minimum(row, windows.count - self.at_once)
            start = windows.start(line, row)
            sums = self._sums(weight, first, activations, tile, start)
            writer.write(sums, line, row, tile)

        loop(begin.value, end.value, 1, of_part)

    def _sums(
        self, weight: Value, first: Value, activations: Value, tile: Formula, start: Formula
    ) -> list[Formula]:
        """The sums of `at_once` windows from position `start` on, for each part of the columns."""
        lanes, parts = self.tiles.lanes, self.tiles.parts
        begin = [load(first, [tile.value, part * lanes], lanes, I32) for part in range(parts)]
        groups, read = self.groups, self.groups // self.slices
        loops = [(count, distance * groups) for count, distance in self.windows.taps]
        loops.append((read, 1))

        def of_loop(
            level: int, number: Formula, place: Formula, words: Sequence[Formula]
        ) -> Sequence[Formula]:
            """Go through the loops from a level on, in the order in which the weight lies."""
            (count, distance), *inner = loops[level:]
            written_out = math.prod(n for n, _ in loops[level:])
            if written_out <= _WRITTEN_OUT:
                sums = list(words)
                for offset, index in enumerate(np.ndindex(*(n for n, _ in loops[level:]))):
                    given = sum(i * d for i, (_, d) in zip(index, loops[level:], strict=True))
                    sums = self._group(
                        weight, activations, tile, number + offset, place + given, sums
                    )
                return sums
            step = 1
            if not inner:
                step = next(n for n in range(_WRITTEN_OUT, 0, -1) if count % n == 0)

            def body(position: Value, *so_far: Formula) -> Sequence[Formula]:
                index = scalar(position)
                if inner:
                    return of_loop(
                        level + 1,
                        number + index * math.prod(n for n, _ in inner),
                        place + index * distance,
                        so_far,
                    )
                sums = list(so_far)
                for offset in range(step):
                    sums = self._group(
                        weight,
                        activations,
                        tile,
                        number + index + offset,
                        place + index + offset,
                        sums,
                    )
                return sums

            return loop(0, count, step, body, words)

        place = start * groups
        if self.slices > 1:
            place = place + quotient(tile, self.tiles.count // self.slices) * read
        return list(of_loop(0, scalar(constant_index(0)), place, begin * self.at_once))

    def _group(
        self,
        weight: Value,
        activations: Value,
        tile: Formula,
        number: Formula,
        place: Formula,
        sums: Sequence[Formula],
    ) -> list[Formula]:
        """Add the products of a group of the weight with the activations at a place."""
        target, parts = self.target, self.tiles.parts
        length = self.tiles.lanes * target.taps
        stored = []
        for part in range(parts):
            first = part * length
            column = load(weight, [tile.value, number.value, first], length, I8)
            stored.append(convert(column, target.factor))
            if self.at_once == 1 and target.bytes_ahead:
                prefetch(weight, [tile.value, number.value, first + target.bytes_ahead])
        totals, apart = [], self.windows.step * self.groups
        for window in range(self.at_once):
            given = load_element(activations, [(place + window * apart).value])
            group = target.spread(given, target.factor)
            if self.is_widening:
                group = target.factors(group)
            for part, column in enumerate(stored):
                total = sums[window * parts + part]
                totals.append(target.add_factors(total, group, column))
        return [target.held_words(total) for total in totals]
