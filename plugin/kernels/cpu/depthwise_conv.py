"""The kernel of convolutions that keep channels apart: each has a window of its own.

::

    result[l, m, c] = first[c] + sum_(r, t) x[l * step + r * apart, m * step + t * apart, c]
                                            * weight[r, t, c]

A vector holds channels, with several taps of each where an instruction multiplies several
(`TapPacks`). These are gathered once for each line of the picture, into memory that stays in the
cache, from which all windows of all lines read them: as many lines as a window spans are there, in
a ring. So what is outside of the picture is put in on the way, and the picture is read as it is.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import (
    Vectors,
    interleave_lanes,
    load,
    loop,
    quotient,
    remainder,
    scratch,
    slice_lanes,
    store,
    when,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32
from ..conv_geometry import ConvAxis
from ..epilogue.fused_epilogue import FusedEpilogue, epilogue_bindings
from ..isa.base import InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..kernel import Binding, Kernel
from ..pack.tap_packs import TapPacks
from ..workgroups import workgroup_range

__all__ = ["DepthwiseConv"]

_BYTES_AT_ONCE = 64
"""Channels whose groups are gathered together: a position's share of a line of the cache."""
_MOST_AT_ONCE = 8
"""ConvGeometry that are computed together at most."""
_SCRATCH = 24 << 10
"""Bytes of gathered groups at most: IREE gives a workgroup 32 KiB, and they stay in the cache."""
_MOST_WRITTEN_OUT = 64
"""Groups of the windows of a period that are written out at most; more lines are a loop."""
_TIME_OF_A_PRODUCT, _TIME_TO_GATHER = 4, 5
"""Of a product, and of a byte that is gathered, in products of a contraction, about."""


@dataclass(frozen=True)
class DepthwiseConv:
    """What is computed, and with what.

    Args:
        images: how many pictures there are.
        lines, windows: along the two axes of each.
        channels: how many there are, at least the lanes of a vector.
        outside: what stands around a picture, i8.
        instructions: a name in `INSTRUCTION_SETS`.
        workgroups: how many share the pictures.
        epilogue: what is done with the sums before they are written.
    """

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    outside: int
    instructions: str
    workgroups: int
    epilogue: FusedEpilogue | None = None

    @property
    def target(self) -> InstructionSet:
        """What is multiplied with."""
        return INSTRUCTION_SETS[self.instructions]

    @cached_property
    def groups(self) -> TapPacks:
        """How the taps of a line of a window are multiplied."""
        return TapPacks(self.horizontal, self.target.k_pack, self.vertical.taps)

    @property
    def fits_scratch(self) -> bool:
        """True if the lines that a window reads fit where they are gathered."""
        return self._plan is not None

    @property
    def equivalent_macs(self) -> int:
        """About how many products of a contraction take as long."""
        windows = self.images * self.vertical.outputs * self.horizontal.outputs
        return (
            _TIME_OF_A_PRODUCT * windows * self.channels * self.vertical.taps * self.horizontal.taps
        )

    @property
    def halo_macs(self) -> int:
        """The same of what each block of lines gathers that the one before has gathered, too."""
        lines = max(0, self.vertical.receptive_field - self.vertical.stride)
        return _TIME_TO_GATHER * lines * self.horizontal.size * self.channels

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, what sums begin with, activations, tables of `epilogue` and the
        result.
        """
        read = sum(len(self.groups.of_output(window)) for window in range(self.groups.period))
        positions = self.images * self.vertical.size * self.horizontal.size
        shape = self.images * self.vertical.outputs, self.horizontal.outputs, self.channels
        bindings = [
            Binding((read * self.vertical.taps, self.channels * self.target.k_pack), I8),
            Binding((self.channels,), I32),
            Binding((positions, self.channels), I8),
            *epilogue_bindings(self.epilogue, self.channels, shape),
        ]
        name, products = "depthwise_product", self.equivalent_macs
        return Kernel(name, bindings, self.workgroups, self._body, 0, macs=products)

    @cached_property
    def _plan(self) -> _Plan | None:
        """The most that fits, of what is better gathered together."""
        target, count = self.target, self.horizontal.outputs
        vectors = -(-self.channels // target.lanes)
        period = self.groups.period
        most = max(1, min(_MOST_AT_ONCE, target.max_accumulators // 2) // period)
        choices = [period * n for n in range(most, most // 2, -1)]
        at_once = next((n for n in choices if count % n == 0), choices[0])
        held = min(vectors, max(1, _BYTES_AT_ONCE // target.lanes))
        plan = _Plan(self, at_once, held, count)
        while plan.bytes > _SCRATCH:
            units = -(-plan.strip // plan.at_once)
            if units > 4 or (units > 1 and plan.held == 1):
                plan = replace(plan, strip=-(-units // 2) * plan.at_once)
            elif plan.held > 1:
                plan = replace(plan, held=plan.held // 2)
            elif plan.at_once > period:
                plan = replace(plan, at_once=period, strip=min(count, plan.at_once))
            else:
                return None
        return plan

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        plan = self._plan
        assert plan is not None
        begin, end = workgroup_range(scalar(number), self.workgroups, plan.tasks)
        room = scratch(plan.scratch, self.target.multiplicand_type)
        is_kept = self.epilogue is not None and self.epilogue.needs_fallback
        sums = scratch([plan.at_once, self.target.lanes], I32) if is_kept else None
        rooms = room, sums
        loop(begin.value, end.value, 1, lambda task: _Task(plan, memories, rooms, task).write())


@dataclass(frozen=True)
class _Plan:
    """What is gathered together.

    Args:
        product: what is computed.
        at_once: windows that are computed together, some periods of them.
        held: vectors of channels.
        strip: windows of a line; `at_once` or a multiple of it where a line has several strips.
    """

    product: DepthwiseConv
    at_once: int
    held: int
    strip: int

    @property
    def ring(self) -> int:
        """How many lines of the picture are gathered."""
        lines = self.product.vertical
        return lines.receptive_field if lines.dilation == 1 else lines.taps

    @property
    def scratch(self) -> tuple[int, ...]:
        """The extents of what is gathered."""
        target = self.product.target
        return self.ring, self.held, self.of_strip, target.lanes * target.k_pack

    @property
    def bytes(self) -> int:
        """How many bytes that is."""
        return math.prod(self.scratch) * self.product.target.multiplicand_type.bits // 8

    @property
    def of_strip(self) -> int:
        """How many groups the windows of a strip read."""
        return self.product.groups.count(min(self.strip, self.product.horizontal.outputs))

    @property
    def strips(self) -> int:
        """How many strips a line has."""
        return -(-self.product.horizontal.outputs // self.strip)

    @property
    def vectors(self) -> int:
        """How many vectors of channels there are."""
        return -(-self.product.channels // self.product.target.lanes)

    @property
    def chunks(self) -> int:
        """In how many parts these are gathered."""
        return -(-self.vectors // self.held)

    @property
    def blocks(self) -> int:
        """In how many parts the lines of a picture are shared."""
        others = self.chunks * self.strips * self.product.images
        return min(self.product.vertical.outputs, -(-self.product.workgroups // others))

    @property
    def tasks(self) -> int:
        """How many parts of all this there are, in each of which lines follow one another."""
        return self.chunks * self.strips * self.product.images * self.blocks


class _Task:
    """The lines of a block, of a strip and of some vectors of channels.

    Args:
        plan: what is gathered together.
        memories: of the kernel.
        rooms: for what is gathered, and for sums that are to be finished.
        task: the number of the task.
    """

    def __init__(
        self,
        plan: _Plan,
        memories: Sequence[Value],
        rooms: tuple[Value, Value | None],
        task: Value,
    ) -> None:
        self.plan, self.product = plan, plan.product
        self.room, self.sums = rooms
        self.target, self.groups = plan.product.target, plan.product.groups
        self.weight, self.first, self.activations, *self.tables, self.result = memories
        number = scalar(task)
        chunk, number = remainder(number, plan.chunks), quotient(number, plan.chunks)
        self.strip, number = remainder(number, plan.strips), quotient(number, plan.strips)
        self.block, self.image = remainder(number, plan.blocks), quotient(number, plan.blocks)
        self.vector = chunk * plan.held
        held = self.plan.held
        if plan.vectors % held == 0:
            self.held = scalar(constant_index(held))
        else:
            self.held = np.minimum(plan.vectors - self.vector, held)

    def write(self) -> None:
        """Write the loop over its lines."""
        lines, ring = self.product.vertical, self.plan.ring
        begin, end = workgroup_range(self.block, self.plan.blocks, lines.outputs)
        # Lines of the picture that the line before has gathered.
        kept = max(0, ring - lines.stride) if lines.dilation == 1 else 0

        def of_line(number: Value) -> None:
            line = scalar(number)
            fresh: ArrayLike = np.where(line == begin, 0, kept)
            loop(fresh.value if kept else 0, ring, 1, lambda tap: self._gather(line, scalar(tap)))
            loop(0, self.held.value, 1, lambda vector: self._multiply(line, scalar(vector)))

        loop(begin.value, end.value, 1, of_line)

    def _channel(self, vector: ArrayLike) -> ArrayLike:
        """The first channel of a vector; the last vector may share channels with that before."""
        channel, lanes = (vector + self.vector) * self.target.lanes, self.target.lanes
        if self.product.channels % lanes:
            channel = np.minimum(channel, self.product.channels - lanes)
        return channel

    def _slot(self, line: ArrayLike, tap: ArrayLike) -> ArrayLike:
        """Where the line of the picture is gathered that is a tap of the windows of a line."""
        lines = self.product.vertical
        return remainder(line * lines.stride + tap, self.plan.ring) if lines.dilation == 1 else tap

    # -- gathering ------------------------------------------------------------------------------

    def _gather(self, line: ArrayLike, tap: ArrayLike) -> None:
        lines = self.product.vertical
        slot = self._slot(line, tap)
        source = line * lines.stride + tap * lines.dilation - lines.pad_low

        def of_vector(vector: Value) -> None:
            at = [slot.value, vector]
            if not lines.pad_low and not lines.pad_high:
                self._gather_line(at, source, vector)
                return
            inside = (source >= 0) & (source < lines.size)
            when(inside, lambda: self._gather_line(at, source, vector))
            when(~inside, lambda: self._gather_nothing(at))

        loop(0, self.held.value, 1, of_vector)

    def _gather_nothing(self, at: Sequence[Value]) -> None:
        target = self.target
        outside = Vectors(target.lanes * target.k_pack).known(self.product.outside, I8)
        outside = target.multiplicands(outside)
        zero = constant_index(0)
        loop(
            0,
            self.plan.of_strip,
            1,
            lambda group: store(outside, self.room, [*at, group, zero]),
        )

    def _gather_line(self, at: Sequence[Value], source: ArrayLike, vector: Value) -> None:
        """Gather a line of the picture: at its ends some positions are outside."""
        axis, plan, target, every = (
            self.product.horizontal,
            self.plan,
            self.target,
            self.groups.spacing,
        )
        channel = self._channel(scalar(vector))
        first = (self.image * self.product.vertical.size + source) * axis.size
        start = self.strip * (plan.strip * axis.stride) - axis.pad_low

        def gathered(read: Callable[[ArrayLike], ArrayLike]) -> Callable[[Value], None]:
            def of_group(group: Value) -> None:
                column = start + scalar(group) * every
                parts = [read(column + tap * axis.dilation) for tap in range(target.k_pack)]
                found = target.multiplicands(interleave_lanes(parts))
                store(found, self.room, [*at, group, constant_index(0)])

            return of_group

        def inner(column: ArrayLike) -> ArrayLike:
            place = [(first + column).value, channel.value]
            return load(self.activations, place, target.lanes, I8)

        def outer(column: ArrayLike) -> ArrayLike:
            found = inner(np.clip(column, 0, axis.size - 1))
            inside = (column >= 0) & (column < axis.size)
            return np.where(inside, found, self.product.outside)

        # Groups of the line whose positions are all inside.
        reach = (target.k_pack - 1) * axis.dilation
        low = -(-axis.pad_low // every)
        high = (axis.size - 1 + axis.pad_low - reach) // every + 1
        behind = self.strip * (plan.strip * axis.stride // every)
        begin = np.clip(low - behind, 0, plan.of_strip)
        end = np.maximum(np.minimum(high - behind, plan.of_strip), begin)
        loop(0, begin.value, 1, gathered(outer))
        loop(begin.value, end.value, 1, gathered(inner))
        loop(end.value, plan.of_strip, 1, gathered(outer))

    # -- multiplying ----------------------------------------------------------------------------

    def _multiply(self, line: ArrayLike, vector: ArrayLike) -> None:
        """Write the windows of a line, of a vector of channels."""
        plan, axis = self.plan, self.product.horizontal
        rest = axis.outputs % plan.at_once
        units = scalar(constant_index(min(plan.strip, axis.outputs) // plan.at_once))
        begin = self.strip * plan.strip
        if plan.strips > 1:
            units = quotient(np.minimum(axis.outputs - begin, plan.strip), plan.at_once)
        of_windows = self._of_windows(line, vector, begin)
        loop(0, units.value, 1, lambda unit: of_windows(scalar(unit), plan.at_once))
        if rest:
            of_rest = units * plan.at_once + begin == axis.outputs - rest
            when(of_rest, lambda: of_windows(units, rest))

    def _of_windows(
        self, line: ArrayLike, vector: ArrayLike, begin: ArrayLike
    ) -> Callable[[ArrayLike, int], None]:
        product, groups, target = self.product, self.groups, self.target
        lines, lanes = product.vertical, target.lanes
        channel = self._channel(vector)
        which = [
            (window, place)
            for window in range(groups.period)
            for place in range(len(groups.of_output(window)))
        ]
        is_loop = len(which) * lines.taps > _MOST_WRITTEN_OUT

        def weights(tap: ArrayLike) -> dict[tuple[int, int], ArrayLike]:
            found = {}
            for number, key in enumerate(which):
                place = [(tap + number * lines.taps).value, (channel * target.k_pack).value]
                stored = load(self.weight, place, lanes * target.k_pack, I8)
                found[key] = convert(stored, target.multiplicand_type)
            return found

        def of_line(
            tap: ArrayLike,
            stored: dict[tuple[int, int], ArrayLike],
            place: ArrayLike,
            sums: Sequence[ArrayLike],
        ) -> list[ArrayLike]:
            slot, read, totals = self._slot(line, tap), {}, list(sums)
            for window in range(len(sums)):
                for number, (group, *_) in enumerate(groups.of_output(window)):
                    if group not in read:
                        at = [slot.value, vector.value, (place + group).value, constant_index(0)]
                        read[group] = load(
                            self.room, at, lanes * target.k_pack, target.multiplicand_type
                        )
                    factor = stored[window % groups.period, number]
                    totals[window] = target.add_products(totals[window], read[group], factor)
            return totals

        taps = [scalar(constant_index(tap)) for tap in range(lines.taps)]
        known = [] if is_loop else [weights(tap) for tap in taps]
        first = load(self.first, [channel.value], lanes, I32)

        def of_windows(unit: ArrayLike, count: int) -> None:
            place = unit * (self.plan.at_once * product.horizontal.stride // groups.spacing)
            sums = [first] * count
            if is_loop:
                sums = loop(
                    0,
                    lines.taps,
                    1,
                    lambda tap, *given: of_line(scalar(tap), weights(scalar(tap)), place, given),
                    sums,
                )
            for tap, stored in zip(taps, known, strict=False):
                sums = of_line(tap, stored, place, sums)
            row = self.image * lines.outputs + line
            self._store(sums, row, begin + unit * self.plan.at_once, channel)

        return of_windows

    def _store(
        self, sums: Sequence[ArrayLike], row: ArrayLike, window: ArrayLike, channel: ArrayLike
    ) -> None:
        """Write the sums of some windows, finished if there is something to do."""
        epilogue, lanes = self.product.epilogue, self.target.lanes
        if not epilogue:
            for number, total in enumerate(sums):
                store(total, self.result, [row.value, (window + number).value, channel.value])
            return
        room = self.sums

        def of_window(number: Value) -> None:
            assert room is not None  # sums are kept
            total = load(room, [number, 0], lanes, I32)
            place = [row.value, (window + scalar(number)).value, channel.value]

            def write() -> None:
                store(epilogue.emit(self.tables, total, channel), self.result, place)

            if epilogue.vectors_per_estimate:  # of some windows one is near a tie
                _, is_near = epilogue.estimate(self.tables, [total], [channel])
                assert is_near is not None  # else nothing is written again
                when(is_near, write)
            else:
                write()

        def exactly() -> None:
            assert room is not None
            for number, total in enumerate(sums):
                store(total, room, [number, 0])
            loop(0, len(sums), 1, of_window)

        if not epilogue.vectors_per_estimate:
            exactly()
            return
        nears = []
        for first in range(0, len(sums), epilogue.vectors_per_estimate):
            group = sums[first : first + epilogue.vectors_per_estimate]
            made, is_near = epilogue.estimate(self.tables, group, [channel] * len(group))
            if is_near is not None:
                nears.append(is_near)
            for number in range(len(group)):
                place = [row.value, (window + (first + number)).value, channel.value]
                store(slice_lanes(made, number * lanes, lanes), self.result, place)
        if nears:
            when(functools.reduce(operator.or_, nears), exactly)
