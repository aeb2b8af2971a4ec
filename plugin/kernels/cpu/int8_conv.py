"""The kernel of products of 8-bit integers with an 8-bit weight: matrices and convolutions.

::

    result[l, m, n] = first[n] + sum_(t, c) x[l * line_step + m * step + t, c] * weight[n, t, c]

Activations are a row of *positions* with some channels ``c`` each. A window has a position at each
of some distances ``t``, its *taps*; windows ``m`` of a *line* ``l`` are a step apart
(`ConvGeometry`). A product of matrices has one line, and windows of one tap. Activations are
factors of an instruction (`InstructionSet.multiplicand_type`), and may be more than they are by a
number: what that adds to a sum is the same for all windows, and is in ``first``.

What is around pictures may be put into memory of the workgroup, with the lines that are inside, for
the windows of some lines at a time, which are a *block*: workgroups share blocks then.

Where channels are in groups, a tile of the weight reads those of its columns' groups only, which
lie side by side.

Lines of taps that are around pictures are not multiplied: what they add is the same for all windows
of a line, and is in ``first``, which has numbers for each count of such lines.

Where factors are no bytes, a tile of the weight is widened for many windows (`WidenedPanels`). Of a
tile that is cut into panels, the sums of some windows wait in memory from one panel to the next.

Sums are of i32, and exact: the caller sees to it that they fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import (
    bitcast,
    load,
    load_element,
    loop,
    memref_type,
    prefetch,
    quotient,
    remainder,
    scratch,
    store,
    view,
    when,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, ElementType
from ..conv_geometry import ConvAxis
from ..epilogue.fused_epilogue import epilogue_bindings
from ..kernel import Binding, Kernel
from ..workgroups import workgroup_range
from .conv_gemm import ROOM, ConvGemm
from .output_tile import OutputTile
from .weight_panels import WidenedPanels, widened_panels

__all__ = ["Int8Conv"]

_WRITTEN_OUT = 8
"""Groups that are written out at most; more are a loop."""
_LEAST_WRITTEN_OUT = 4
"""Groups that are written out at least, where something is done between them."""
_DEEP = 1 << 11
"""Products of a sum from which on it takes less than a hundredth of them to finish it."""
_MOST_FACTORS = 8 << 10
"""Bytes of factors that a workgroup keeps: IREE allows 32 KiB for all that are joined.

A 1x1 convolution of 14x14x576 with 24 columns takes 12 us for 20, and of 56x56x64 with as many 48
for 64, where factors of the windows that are computed together are kept (Emerald Rapids).
"""
_COST_OF_A_WEIGHT = 0.25
"""What reading the weight for some windows costs, in windows."""
_CACHE = 24 << 10
"""Bytes of a weight that stay in the first cache, beside activations."""
_SECOND_CACHE = 256 << 10
"""Bytes of a weight that the second cache of any processor still has from the call before."""
_LEAST_LEFT_OUT = 0.01
"""Of the products, at least, that are of lines around pictures: fewer take as long as to find them.

With 3x3 positions, 7x7x512 takes 0.538 ms for 0.591 and 14x14x256 0.556 for 0.581, each with as
many columns; 112x112x16 with steps of two, of which it is 0.006, would take 2 % longer (Zen 4).
"""
_MEMORY = 24 << 10
"""Bytes that a workgroup has beside its sums, of the 32 KiB that IREE allows."""
_WAITING = 8 << 10
"""Bytes of sums that wait for the next panel of the weight."""
_LEAST_BESIDE = 4
"""Times that windows of a line are computed together, where what later ones read is written beside
the products of those before: of two times one is not.
"""


@dataclass(frozen=True)
class _Weight:
    """A tile of the weight, in a memory of tiles.

    Attributes:
        memory: that it is in.
        tile: its number there.
        element: what it holds.
    """

    memory: Value
    tile: ArrayLike
    element: ElementType = I8


@dataclass(frozen=True)
class Int8Conv(ConvGemm):
    """A product by vectors, of which workgroups share the windows of each tile of the weight.

    Args:
        slices: how many parts of the channels there are, of which a tile reads one; the tiles of
            each follow one another, and are as many.
        is_widening: activations are i8, and become factors when they are read: where that is once,
            it takes less than to do it before.
        around: the lines of pictures, with what is around them; None if that is multiplied.
    """

    slices: int = 1
    converts_activations: bool = False
    skipped_padding: ConvAxis | None = None

    def can_skip_padding(self, lines: ConvAxis) -> bool:
        """True if lines of taps that are around pictures can be left out, and are worth a loop.

        Args:
            lines: of the pictures.
        """
        (taps, distance), *_ = (*self.geometry.taps, (0, 0))
        if taps != lines.taps or distance == 0 or lines.min_taps_inside == 0:
            return False
        of_line = self.geometry.tap_count // taps * self.groups // self.slices
        return lines.padding_share >= _LEAST_LEFT_OUT and of_line >= _WRITTEN_OUT

    @property
    def skipped_taps(self) -> list[tuple[int, int]]:
        """Of how many lines of taps before a picture, and behind it, sums have numbers."""
        if self.skipped_padding is None:
            return [(0, 0)]
        before, behind = self.skipped_padding.max_padding_taps
        return list(itertools.product(range(before + 1), range(behind + 1)))

    @property
    def groups(self) -> int:
        """How many words of factors a position has."""
        return self.channels // self.target.k_pack

    @property
    def at_once(self) -> int:
        """How many windows are computed together: those that compute few twice, of all that fit.

        What is read for them of the weight is read once; fewer than half are not worth that.
        """
        count = self.geometry.output_columns
        most = self.target.pixels_per_tile(self.tiles.vectors, is_pipelined=self._is_behind)
        most = min(most, count)
        choices = range((most + 1) // 2, most + 1)
        return min(choices, key=lambda n: (-(-count // n) * (n + _COST_OF_A_WEIGHT), -n))

    @cached_property
    def panels(self) -> WidenedPanels | None:
        """How a tile of the weight is widened; None where it is read as it is.

        It is cut where windows have one position, whose words follow one another.
        """
        windows = self.geometry
        of_workgroup = windows.output_pixels // self.workgroups
        most = _MEMORY - self.room_of(self.rows_per_block)
        is_cut = windows.tap_count == self.slices == 1
        return widened_panels(self.tiles, self.target, of_workgroup, most, can_split=is_cut)

    @property
    def _is_cut(self) -> bool:
        """True if sums wait from one panel to the next."""
        return self.panels is not None and self.panels.count > 1

    @property
    def _groups_at_once(self) -> int:
        """How many words of a position are multiplied before the next windows are."""
        return self.panels.k_packs if self.panels and self._is_cut else self.groups

    @cached_property
    def rows_per_block(self) -> int:
        """How many lines of windows read what is written together; there are enough to share."""
        lines, images = self.geometry.output_rows, self.geometry.images
        most = max(1, lines * images // self.workgroups)
        choices = (n for n in range(min(most, lines), 0, -1) if lines % n == 0)
        return next(n for n in choices if n == 1 or self.room_of(n) <= ROOM)

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, what sums begin with, activations, tables of `epilogue` and the
        result.
        """
        tiles, windows = self.tiles, self.geometry
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((len(self.skipped_taps) * tiles.count, tiles.nr), I32),
            self._given,
            *epilogue_bindings(self.epilogue, tiles.count * tiles.nr, self.shape),
        ]
        count = tiles.count * self.workgroups
        rows = windows.output_pixels
        products = rows * tiles.k * tiles.n
        return Kernel("integer_product", bindings, count, self._body, rows, macs=products)

    @property
    def _given(self) -> Binding:
        """That of the activations: bytes where they are written as factors, or words of these."""
        if self.pad_copy is not None:
            return Binding((self.pad_copy.given,), I8)
        if self._is_spread_from_memory:
            return Binding((self.geometry.input_pixels * self.channels,), I8)
        return Binding((self.geometry.input_pixels * self.groups,), I32)

    @property
    def can_convert_activations(self) -> bool:
        """True if activations can become factors when they are read, and are none."""
        factor, excess = self.target.multiplicand_type, self.target.sign_offset
        return self._is_spread_from_memory or (factor.bits == I8.bits and excess != 0)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        stored, first, activations, *tables, result = memories
        factor = self.target.multiplicand_type
        waiting = _WAITING // (self.at_once * self.tiles.nr * I32.bits // 8)
        writer = OutputTile(
            self.tiles,
            self.at_once * waiting if self._is_cut else self.at_once,
            self.epilogue,
            tables,
            result,
            in_memory=self._is_behind or self._is_cut,
        )
        factors = activations
        if self._is_spread_from_memory:
            factors = scratch([self.at_once * self._groups_at_once], I32)
        # The rows of a line in parts of `at_once`: the last one may share rows with the one before.
        windows, of_line = self.geometry, self._parts_of_line
        parts = of_line * windows.output_rows * windows.images
        tile = quotient(scalar(number), self.workgroups)
        together = 1 if self.pad_copy is None else self.rows_per_block * of_line
        begin, end = (
            place * together
            for place in workgroup_range(
                remainder(scalar(number), self.workgroups), self.workgroups, parts // together
            )
        )
        if self._is_cut:
            self._go_through_panels(
                (stored, first, activations, factors), writer, waiting, tile, begin, end
            )
            return
        weight = _Weight(stored, tile)
        if self.panels is not None:
            panel, zero = self.panels.allocate(), scalar(constant_index(0))
            self.panels.write(stored, tile, zero, panel)
            weight = _Weight(panel, zero, factor)
        given, room = activations, self.room_of(self.rows_per_block)
        if self.pad_copy is not None:
            memory = scratch([room], I8)
            padded = view(memory, 0, memref_type([room * 8 // factor.bits], factor))
            activations = view(memory, 0, memref_type([room * 8 // I32.bits], I32))

        def write_behind(part: ArrayLike, group: ArrayLike) -> None:
            zero = scalar(constant_index(0))
            writer.write_group(group, self.at_once, zero, *self._place(part), tile)

        def of_part(number: Value) -> None:
            part = scalar(number)
            line, row = self._place(part)
            read_line = line
            if self.pad_copy is not None:
                read_line = remainder(line, self.rows_per_block)
                is_first = remainder(part, together) == 0
                when(is_first, lambda: self._write_lines(given, padded, line))
            before, is_later = np.maximum(part, begin + 1) - 1, part > begin
            groups = -(-self.at_once // writer.pixels_per_group(self.at_once))

            def beside(leaf: ArrayLike, leaves: int) -> None:
                if self._is_written_beside:
                    is_read = read_line == 0
                    next_ = remainder(part, of_line) + 1
                    is_wanted = is_read & (next_ < of_line)
                    self._write_beside(given, padded, line, next_, is_wanted, leaf, leaves)
                of_leaf = -(-groups // leaves)

                def write(group: ArrayLike) -> None:
                    when(is_later & (group < groups), lambda: write_behind(before, group))

                if of_leaf == 1:
                    write(leaf)
                    return
                first = leaf * of_leaf
                loop(0, of_leaf, 1, lambda group: write(first + scalar(group)))

            start = windows.first_tap(read_line, row) * self.groups
            read, start, apart = self._read_from(activations, start, factors)
            is_back = remainder(part, 2) == 1 if self._is_turned else None
            operands = weight, first, read, tile, line, start, apart, is_back
            if not self._is_behind:
                writer.write(self._sums(*operands), line, row, tile)
                return
            writer.spill(self._sums(*operands, beside, groups))

        loop(begin.value, end.value, 1, of_part)
        if self._is_behind:
            groups = -(-self.at_once // writer.pixels_per_group(self.at_once))

            def write_last(group: Value) -> None:
                write_behind(end - 1, scalar(group))

            def write_all() -> None:
                loop(0, groups, 1, write_last)

            when(end > begin, write_all)

    def _go_through_panels(
        self,
        memories: Sequence[Value],
        writer: OutputTile,
        waiting: int,
        tile: ArrayLike,
        begin: ArrayLike,
        end: ArrayLike,
    ) -> None:
        """Multiply windows with a tile of the weight, panel by panel, and write their sums.

        Args:
            memories: the weight, what sums begin with, activations, and those for their factors.
            writer: has the sums of some windows.
            waiting: how many parts of `at_once` windows these are.
            tile: its number.
            begin, end: the windows' parts.
        """
        stored, first, activations, factors = memories
        panels, zero = self.panels, scalar(constant_index(0))
        assert panels is not None
        weight = _Weight(panels.allocate(), zero, self.target.multiplicand_type)
        groups = -(-self.at_once // writer.pixels_per_group(self.at_once))
        lanes, parts = self.tiles.lanes, range(self.tiles.vectors)
        begin_with = [load(first, [tile.value, part * lanes], lanes, I32) for part in parts]

        def of_block(number: Value) -> None:
            block = scalar(number)
            stop = np.minimum(block + waiting, end)

            def wait_at(part: ArrayLike) -> ArrayLike:
                return (part - block) * self.at_once

            def begin_part(number: Value) -> None:
                writer.spill(begin_with * self.at_once, wait_at(scalar(number)))

            def of_panel(number: Value) -> None:
                panel = scalar(number)
                panels.write(stored, tile, panel, weight.memory)

                def add(number: Value) -> None:
                    at = wait_at(scalar(number))
                    line, row = self._place(scalar(number))
                    start = self.geometry.first_tap(line, row) * self.groups
                    start = start + panel * panels.k_packs
                    read, start, apart = self._read_from(activations, start, factors)
                    sums = writer.reload(at, self.at_once)
                    operands = weight, first, read, tile, line, start, apart, None
                    writer.spill(self._sums(*operands, sums=sums), at)

                loop(block.value, stop.value, 1, add)

            def finish(number: Value) -> None:
                part = scalar(number)

                def write(group: Value) -> None:
                    place = self._place(part)
                    at = wait_at(part)
                    writer.write_group(scalar(group), self.at_once, at, *place, tile)

                loop(0, groups, 1, write)

            loop(block.value, stop.value, 1, begin_part)
            loop(0, panels.count, 1, of_panel)
            loop(block.value, stop.value, 1, finish)

        loop(begin.value, end.value, waiting, of_block)

    @property
    def _parts_of_line(self) -> int:
        """How many times `at_once` windows of a line are computed."""
        return -(-self.geometry.output_columns // self.at_once)

    def _place(self, part: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """The line of `at_once` windows, and the first one in it."""
        windows = self.geometry
        line = quotient(part, self._parts_of_line)
        row = remainder(part, self._parts_of_line) * self.at_once
        if windows.output_columns % self.at_once:
            row = np.minimum(row, windows.output_columns - self.at_once)
        return line, row

    def _read_from(
        self, activations: Value, start: ArrayLike, factors: Value
    ) -> tuple[Value, ArrayLike, int]:
        """What memory factors are read from, the first word there, and words between windows.

        Args:
            activations: memory.
            start: the first word of the first window.
            factors: memory for them, to which they are written if they are spread from it.
        """
        if not self._is_spread_from_memory:
            return activations, start, self._apart
        self._widen(activations, start, factors)
        return factors, scalar(constant_index(0)), self._groups_at_once

    def _write_lines(self, given: Value, padded: Value, line: ArrayLike) -> None:
        """Write the lines of a picture that a block reads, with what is around them.

        Args:
            given: the pictures.
            padded: memory of factors.
            line: the first line of windows, among those of all images.
        """
        pad_copy, lines = self.pad_copy, self.geometry.output_rows
        assert pad_copy is not None
        *_, positions, channels = pad_copy.shape
        image, first = quotient(line, lines), remainder(line, lines) * pad_copy.vertical.stride

        def write(number: Value) -> None:
            offset = scalar(number)
            place = offset * (positions * channels)
            line_of_picture = given, padded, image, first + offset, place
            if self._is_written_beside:
                pad_copy.write_begin(*line_of_picture, self._first_length)
            else:
                pad_copy.write_line(*line_of_picture)

        loop(0, self.lines_read(self.rows_per_block), 1, write)

    @property
    def _length_beside(self) -> int:
        """How many integers of a line the next windows read that those before do not."""
        return self.at_once * self.geometry.column_stride * self.channels

    @property
    def _first_length(self) -> int:
        """How many integers of a line of a picture the first windows read."""
        assert self.pad_copy is not None
        axis = self.pad_copy.horizontal
        return (
            (self.at_once - 1) * axis.stride + axis.receptive_field - axis.pad_low
        ) * self.channels

    @property
    def _is_written_beside(self) -> bool:
        """True if the lines of a block are written while windows are multiplied that come before.

        A 3x3 convolution of 56x56x64 with steps of two takes 0.128 ms for 0.131 (Zen 4).
        """
        if self.pad_copy is None or not self._is_behind:
            return False
        most = self.pad_copy.horizontal.size * self.channels - self._length_beside
        is_whole = self._length_beside % (self.target.lanes * self.target.k_pack) == 0
        is_long = self.geometry.output_columns >= _LEAST_BESIDE * self.at_once
        return is_whole and is_long and 0 < self._first_length <= most

    def _write_beside(
        self,
        given: Value,
        padded: Value,
        line: ArrayLike,
        part: ArrayLike,
        is_wanted: ArrayLike,
        leaf: ArrayLike,
        leaves: int,
    ) -> None:
        """Write some of what the next windows of a block's first line read, of all its lines.

        Args:
            given, padded, line: as of `_write_lines`.
            part: the number of these windows in the line.
            is_wanted: if there are such.
            leaf, leaves: the place, and how many there are.
        """
        pad_copy, lines, step = self.pad_copy, self.geometry.output_rows, self._length_beside
        assert pad_copy is not None
        *_, positions, channels = pad_copy.shape
        lanes = self.target.lanes * self.target.k_pack
        of_line, every = step // lanes, step // lanes * self.lines_read(self.rows_per_block)
        of_leaf = -(-every // leaves)
        image, first = quotient(line, lines), remainder(line, lines) * pad_copy.vertical.stride
        most = pad_copy.horizontal.size * channels - step
        start = np.minimum((part - 1) * step + self._first_length, most)

        def write() -> None:
            for index in range(of_leaf):
                number = leaf * of_leaf + index
                if every % of_leaf:
                    number = np.minimum(number, every - 1)
                offset = quotient(number, of_line)
                place = offset * (positions * channels)
                at = start + remainder(number, of_line) * lanes
                pad_copy.write_vector(given, padded, image, first + offset, place, at)

        when(is_wanted & (leaf * of_leaf < every), write)

    @property
    def _is_behind(self) -> bool:
        """True if sums are finished while the next ones are computed."""
        is_estimated = self.epilogue is not None and self.epilogue.vectors_per_estimate > 0
        return is_estimated and self.target.max_accumulators_pipelined > 0 and self.tiles.k < _DEEP

    @property
    def _is_turned(self) -> bool:
        """True if the weight of a tile is gone through forwards and backwards in turn.

        What was read last is still in the first cache, where not all fits it, but a part that
        counts: a 3x3 convolution of 56x56x64 with steps of two takes 0.1265 ms for 0.1277 (Zen 4).
        """
        return _CACHE < self.tiles.steps * self.tiles.step_bytes <= 4 * _CACHE

    @property
    def _ahead(self) -> int:
        """Bytes of the weight that are asked for before they are read; 0 for none.

        One window reads a weight once, from memory if it is large. Where the second cache has it
        from the call before, to ask for each line takes as long as to read it: ten layers of 0.3 MB
        together take 3.7 us for 4.1 (Emerald Rapids).
        """
        size = self.tiles.count * self.tiles.steps * self.tiles.step_bytes
        return self.target.prefetch_bytes_int8 if self.at_once == 1 and size >= _SECOND_CACHE else 0

    @property
    def _is_spread_from_memory(self) -> bool:
        """True if factors are written, before they are read, to memory that a workgroup has.

        Those of windows of one position: larger ones share factors, and lie apart.
        """
        size = self.at_once * self._groups_at_once * I32.bits // 8
        are_factors = self.target.multiplicand_type == I8 and not self.target.sign_offset
        is_small = self.geometry.tap_count == 1 and size <= _MOST_FACTORS
        return self.converts_activations and is_small and not are_factors

    @property
    def _apart(self) -> int:
        """How many words a window is behind the one before."""
        return self.geometry.column_stride * self.groups

    def _widen(self, activations: Value, place: ArrayLike, factors: Value) -> None:
        """Write the factors of `at_once` windows one behind the other.

        Args:
            activations: memory.
            place: the first word of the first window, of factors.
            factors: memory, from which they are spread: from registers that would take as long as
                a product does.
        """
        apart, of_window = self._apart, self._groups_at_once
        runs = [(window * apart, of_window) for window in range(self.at_once)]
        if apart == of_window:
            runs = [(0, self.at_once * of_window)]
        for number, (offset, length) in enumerate(runs):
            self._widen_run(activations, place + offset, factors, number * length, length)

    def _widen_run(
        self, activations: Value, place: ArrayLike, factors: Value, first: int, length: int
    ) -> None:
        """Write words of factors that lie one behind the other."""
        lanes, begin, taps = self.target.lanes, scalar(constant_index(first)), self.target.k_pack
        while lanes > length:
            lanes //= 2

        def write(offset: ArrayLike) -> None:
            given = load(activations, [((place + offset) * taps).value], lanes * taps, I8)
            made = bitcast(self.target.multiplicands(given), I32)
            store(made, factors, [(begin + offset).value])

        loop(0, length // lanes * lanes, lanes, lambda at: write(scalar(at)))
        if length % lanes:  # some are written twice
            write(scalar(constant_index(length - lanes)))

    def _sums(
        self,
        weight: _Weight,
        first: Value,
        activations: Value,
        tile: ArrayLike,
        line: ArrayLike,
        start: ArrayLike,
        apart: int,
        is_back: ArrayLike | None,
        beside: Callable[[ArrayLike, int], None] | None = None,
        least: int = 1,
        sums: Sequence[ArrayLike] = (),
    ) -> list[ArrayLike]:
        """The sums of `at_once` windows, for each part of the columns.

        Args:
            weight: the tile, or a panel of it.
            first, activations: memory.
            tile: its number.
            line: of the windows, among those of all images.
            start: the first word of the first window.
            apart: words from a window to the next.
            is_back: if groups are gone through from the last to the first; None for never.
            beside: called where something else may be done, with the number of the place, and how
                many there are.
            least: how many places there should be.
            sums: those of the panels before, which they begin with.
        """
        lanes, parts = self.tiles.lanes, self.tiles.vectors
        groups, read = self.groups, self._groups_at_once // self.slices
        loops = [(count, distance * groups) for count, distance in self.geometry.taps]
        loops.append((read, 1))
        every = math.prod(n for n, _ in loops)
        zero, row = scalar(constant_index(0)), tile
        number, place, lines = zero, start, scalar(constant_index(loops[0][0]))
        if self.slices > 1:
            place = place + quotient(tile, self.tiles.count // self.slices) * read
        if self.skipped_padding is not None:
            taps, (_, most_behind) = (
                self.skipped_padding.taps,
                self.skipped_padding.max_padding_taps,
            )
            before, end = self.skipped_padding.taps_inside(
                remainder(line, self.geometry.output_rows)
            )
            row = tile + (before * (most_behind + 1) + taps - end) * self.tiles.count
            number, place = before * (every // taps), place + before * loops[0][1]
            lines = end - before
            every = every // taps * self.skipped_padding.min_taps_inside
        if not sums:
            of_row = [load(first, [row.value, part * lanes], lanes, I32) for part in range(parts)]
            sums = of_row * self.at_once
        most = max(_LEAST_WRITTEN_OUT, min(_WRITTEN_OUT, every // least))

        def of_leaf(
            done: ArrayLike,
            indices: Sequence[tuple[ArrayLike, ArrayLike]],
            sums: Sequence[ArrayLike],
        ) -> list[ArrayLike]:
            """Groups that are written out, by their numbers and places, after so many others."""
            totals = list(sums)
            for number, place in indices:
                totals = self._group(weight, activations, number, place, apart, totals)
            if beside is not None:
                size = len(indices)
                beside(quotient(done, size), every // size)
            return totals

        def of_loop(
            level: int,
            done: ArrayLike,
            number: ArrayLike,
            place: ArrayLike,
            words: Sequence[ArrayLike],
        ) -> Sequence[ArrayLike]:
            """Go through the loops from a level on, in the order in which the weight lies."""
            (count, distance), *inner = loops[level:]
            of_inner = math.prod(n for n, _ in inner)
            if count * of_inner <= most:
                indices = []
                for offset, index in enumerate(np.ndindex(*(n for n, _ in loops[level:]))):
                    given = sum(i * d for i, (_, d) in zip(index, loops[level:], strict=True))
                    indices.append((number + offset, place + given))
                return of_leaf(done, indices, words)
            step = 1
            if not inner:
                step = next(n for n in range(most, 0, -1) if count % n == 0)

            def body(position: Value, *so_far: ArrayLike) -> Sequence[ArrayLike]:
                index = order = scalar(position)
                if is_back is not None:
                    whole = scalar(constant_index(count)) if level else lines
                    index = np.where(is_back, whole - step - order, order)
                if inner:
                    return of_loop(
                        level + 1,
                        done + order * of_inner,
                        number + index * of_inner,
                        place + index * distance,
                        so_far,
                    )
                at = [(number + index + n, place + index + n) for n in range(step)]
                return of_leaf(done + order, at, so_far)

            return loop(0, count if level else lines.value, step, body, words)

        return list(of_loop(0, zero, number, place, sums))

    def _group(
        self,
        weight: _Weight,
        activations: Value,
        number: ArrayLike,
        place: ArrayLike,
        apart: int,
        sums: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of a group of the weight with the activations at a place."""
        target, parts = self.target, self.tiles.vectors
        length = self.tiles.lanes * target.k_pack
        stored = []
        for part in range(parts):
            first = part * length
            at = [weight.tile.value, number.value]
            column = load(weight.memory, [*at, first], length, weight.element)
            stored.append(convert(column, target.multiplicand_type))
            if self._ahead:
                prefetch(weight.memory, [*at, first + self._ahead])
        totals = []
        for window in range(self.at_once):
            given = load_element(activations, [(place + window * apart).value])
            group = target.broadcast_k_pack(given, target.multiplicand_type)
            if self.converts_activations and not self._is_spread_from_memory:
                group = target.multiplicands(group)
            for part, column in enumerate(stored):
                total = sums[window * parts + part]
                totals.append(target.add_products(total, group, column))
        return [target.with_barrier_i32(total) for total in totals]
