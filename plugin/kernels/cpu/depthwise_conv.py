"""Depthwise int8 convolution kernel: i8 x i8 -> i32, a filter for each channel.

::

    result[y, x, c] = initial[c] + sum_(r, t) image[y * stride + r * dilation,
                                                    x * stride + t * dilation, c] * weight[r, t, c]

A vector has channels, with a k-pack of horizontal taps of each (`TapPacks`). Loop nest of a task
(`GatherPlan`): for each output row, gather the image rows that are new, with their padding, as
k-packs into a ring in scratch memory; then, for each vector of channels, MR output pixels at a
time, accumulate all taps. All output pixels of all rows read the gathered k-packs, which stay in
the L1 cache.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
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
    workgroup_range,
)
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32
from ..epilogue.fused_epilogue import epilogue_bindings
from .depthwise_plan import DepthwisePlan, GatherPlan

_MAX_UNROLL = 64
"""Weight vectors of a period, at most, for which the rows of the filter are unrolled."""


@dataclass(frozen=True)
class DepthwiseConv(DepthwisePlan):
    """Depthwise int8 convolution for CPUs."""

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: weight, initial accumulators, activations, tables of the epilogue, result.
        """
        packs = self.tap_packs
        period_packs = sum(len(packs.of_output(output)) for output in range(packs.period))
        pixels = self.images * self.vertical.size * self.horizontal.size
        shape = self.images * self.vertical.outputs, self.horizontal.outputs, self.channels
        bindings = [
            Binding((period_packs * self.vertical.taps, self.channels * self.target.k_pack), I8),
            Binding((self.channels,), I32),
            Binding((pixels, self.channels), I8),
            *epilogue_bindings(self.epilogue, self.channels, shape),
        ]
        name, macs = "depthwise_conv", self.equivalent_macs
        return Kernel(name, bindings, self.workgroups, self._body, 0, macs=macs)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        plan = self.gather_plan
        assert plan is not None  # callers test fits_scratch
        first, end = workgroup_range(scalar(workgroup), self.workgroups, plan.tasks)
        ring = scratch(plan.scratch_shape, self.target.multiplicand_type)
        accumulators = None
        if self.epilogue is not None and self.epilogue.needs_fallback:
            accumulators = scratch([plan.mr, self.target.lanes], I32)

        def emit_task(number: Value) -> None:
            _Task(plan, memories, ring, accumulators, scalar(number)).emit()

        loop(first.value, end.value, 1, emit_task)


class _Task:
    """The loop nest of a task, by its number in the plan.

    `memories` are the memrefs of the kernel, `ring` the memref of gathered k-packs, `accumulators`
    that of accumulators for the exact epilogue; None where it is not needed.
    """

    def __init__(
        self,
        plan: GatherPlan,
        memories: Sequence[Value],
        ring: Value,
        accumulators: Value | None,
        number: ArrayLike,
    ) -> None:
        self.plan, self.conv, self.target = plan, plan.conv, plan.conv.target
        self.ring, self.accumulators, self.packs = ring, accumulators, plan.conv.tap_packs
        self.weight, self.initial, self.activations, *self.tables, self.result = memories
        chunk, number = remainder(number, plan.chunks), quotient(number, plan.chunks)
        self.strip, number = remainder(number, plan.strips), quotient(number, plan.strips)
        self.block, self.image = remainder(number, plan.blocks), quotient(number, plan.blocks)
        self.first_vector = chunk * plan.chunk_vectors
        if plan.vectors % plan.chunk_vectors == 0:
            self.chunk_vectors = scalar(constant_index(plan.chunk_vectors))
        else:
            rest = plan.vectors - self.first_vector
            self.chunk_vectors = np.minimum(rest, plan.chunk_vectors)

    def emit(self) -> None:
        """Emit the loop over the output rows of the block."""
        axis, ring_rows = self.conv.vertical, self.plan.ring_rows
        first, end = workgroup_range(self.block, self.plan.blocks, axis.outputs)
        # Image rows that the output row before has gathered.
        reused = max(0, ring_rows - axis.stride) if axis.dilation == 1 else 0

        def emit_row(number: Value) -> None:
            row = scalar(number)
            new: ArrayLike = np.where(row == first, 0, reused)
            first_tap = new.value if reused else 0
            loop(first_tap, ring_rows, 1, lambda tap: self._gather(row, scalar(tap)))
            vectors = self.chunk_vectors.value
            loop(0, vectors, 1, lambda vector: self._multiply(row, scalar(vector)))

        loop(first.value, end.value, 1, emit_row)

    def channel(self, vector: ArrayLike) -> ArrayLike:
        """The first channel of a vector of the chunk; the last two vectors may overlap."""
        channel, lanes = (vector + self.first_vector) * self.target.lanes, self.target.lanes
        if self.conv.channels % lanes:
            channel = np.minimum(channel, self.conv.channels - lanes)
        return channel

    def ring_row(self, row: ArrayLike, tap: ArrayLike) -> ArrayLike:
        """The row in the ring of a vertical tap of an output row."""
        axis = self.conv.vertical
        return (
            remainder(row * axis.stride + tap, self.plan.ring_rows) if axis.dilation == 1 else tap
        )

    # -- gathering --------------------------------------------------------------------------------

    def _gather(self, row: ArrayLike, tap: ArrayLike) -> None:
        """Gather the image row of a vertical tap of an output row, or padding."""
        axis = self.conv.vertical
        ring_row = self.ring_row(row, tap)
        image_row = row * axis.stride + tap * axis.dilation - axis.pad_low

        def gather_vector(vector: Value) -> None:
            position = [ring_row.value, vector]
            if not axis.pad_low and not axis.pad_high:
                self._gather_row(position, image_row, vector)
                return
            is_inside = (image_row >= 0) & (image_row < axis.size)
            when(is_inside, lambda: self._gather_row(position, image_row, vector))
            when(~is_inside, lambda: self._gather_padding(position))

        loop(0, self.chunk_vectors.value, 1, gather_vector)

    def _gather_padding(self, position: Sequence[Value]) -> None:
        target = self.target
        vectors = Vectors(target.lanes * target.k_pack)
        padding = target.multiplicands(vectors.known(self.conv.padding_value, I8))
        zero, packs = constant_index(0), self.plan.strip_packs
        loop(0, packs, 1, lambda pack: store(padding, self.ring, [*position, pack, zero]))

    def _gather_row(self, position: Sequence[Value], image_row: ArrayLike, vector: Value) -> None:
        """Gather an image row; pixels at its ends may be padding."""
        axis, plan, target = self.conv.horizontal, self.plan, self.target
        spacing, strip_packs = self.packs.spacing, self.plan.strip_packs
        channel = self.channel(scalar(vector))
        first_pixel = (self.image * self.conv.vertical.size + image_row) * axis.size
        start = self.strip * (plan.strip * axis.stride) - axis.pad_low

        def gather(read: Callable[[ArrayLike], ArrayLike]) -> Callable[[Value], None]:
            def gather_pack(pack: Value) -> None:
                column = start + scalar(pack) * spacing
                pixels = [read(column + tap * axis.dilation) for tap in range(target.k_pack)]
                multiplicands = target.multiplicands(interleave_lanes(pixels))
                store(multiplicands, self.ring, [*position, pack, constant_index(0)])

            return gather_pack

        def read_inside(column: ArrayLike) -> ArrayLike:
            index = [(first_pixel + column).value, channel.value]
            return load(self.activations, index, target.lanes, I8)

        def read_checked(column: ArrayLike) -> ArrayLike:
            pixels = read_inside(np.clip(column, 0, axis.size - 1))
            is_inside = (column >= 0) & (column < axis.size)
            return np.where(is_inside, pixels, self.conv.padding_value)

        # The range of k-packs whose pixels are all inside the image.
        reach = (target.k_pack - 1) * axis.dilation
        low = -(-axis.pad_low // spacing)
        high = (axis.size - 1 + axis.pad_low - reach) // spacing + 1
        offset = self.strip * (plan.strip * axis.stride // spacing)
        first = np.clip(low - offset, 0, strip_packs)
        end = np.maximum(np.minimum(high - offset, strip_packs), first)
        loop(0, first.value, 1, gather(read_checked))
        loop(first.value, end.value, 1, gather(read_inside))
        loop(end.value, strip_packs, 1, gather(read_checked))

    # -- multiplying ------------------------------------------------------------------------------

    def _multiply(self, row: ArrayLike, vector: ArrayLike) -> None:
        """Compute a strip of an output row, for a vector of channels."""
        plan, outputs = self.plan, self.conv.horizontal.outputs
        rest = outputs % plan.mr
        tiles = scalar(constant_index(min(plan.strip, outputs) // plan.mr))
        first = self.strip * plan.strip
        if plan.strips > 1:
            tiles = quotient(np.minimum(outputs - first, plan.strip), plan.mr)
        strip = _StripOfVector(self, row, vector, first)
        loop(0, tiles.value, 1, lambda tile: strip.compute_tile(scalar(tile), plan.mr))
        if rest:
            has_rest = tiles * plan.mr + first == outputs - rest
            when(has_rest, lambda: strip.compute_tile(tiles, rest))

    # -- epilogue and store -----------------------------------------------------------------------

    def store(
        self,
        accumulators: Sequence[ArrayLike],
        row: ArrayLike,
        column: ArrayLike,
        channel: ArrayLike,
    ) -> None:
        """Apply the epilogue to the accumulators of adjacent output pixels, and store them."""
        epilogue, lanes = self.conv.epilogue, self.target.lanes

        def index(offset: ArrayLike | int) -> list[Value]:
            return [row.value, (column + offset).value, channel.value]

        if not epilogue:
            for number, accumulator in enumerate(accumulators):
                store(accumulator, self.result, index(number))
            return
        memory, width = self.accumulators, epilogue.vectors_per_estimate

        def write_exactly() -> None:
            assert memory is not None  # the epilogue needs the fallback
            for number, accumulator in enumerate(accumulators):
                store(accumulator, memory, [number, 0])

            def write_pixel(number: Value) -> None:
                accumulator = load(memory, [number, 0], lanes, I32)
                target = index(scalar(number))

                def write() -> None:
                    store(epilogue.emit(self.tables, accumulator, channel), self.result, target)

                if width:  # only vectors near a tie are written again
                    _, needs_fallback = epilogue.estimate(self.tables, [accumulator], [channel])
                    assert needs_fallback is not None
                    when(needs_fallback, write)
                else:
                    write()

            loop(0, len(accumulators), 1, write_pixel)

        if not width:
            write_exactly()
            return
        conditions = []
        for first in range(0, len(accumulators), width):
            group = accumulators[first : first + width]
            estimate, needs_fallback = epilogue.estimate(self.tables, group, [channel] * len(group))
            if needs_fallback is not None:
                conditions.append(needs_fallback)
            for number in range(len(group)):
                target = index(first + number)
                store(slice_lanes(estimate, number * lanes, lanes), self.result, target)
        if conditions:
            when(functools.reduce(operator.or_, conditions), write_exactly)


class _StripOfVector:
    """The register tiles of a strip of an output row, for a vector of channels.

    It is constructed before the loop over register tiles, where it loads the initial accumulators,
    and the weight if the rows of the filter are unrolled.

    Args:
        row: the output row.
        vector: the number of the vector in the chunk.
        first: the strip's first output pixel.
    """

    def __init__(self, task: _Task, row: ArrayLike, vector: ArrayLike, first: ArrayLike) -> None:
        self._task, self._row, self._vector, self._first = task, row, vector, first
        self._channel, packs = task.channel(vector), task.packs
        self._pack_keys = [
            (output, number)
            for output in range(packs.period)
            for number in range(len(packs.of_output(output)))
        ]
        filter_rows = task.conv.vertical.taps
        self._is_loop = len(self._pack_keys) * filter_rows > _MAX_UNROLL
        self._taps = [scalar(constant_index(tap)) for tap in range(filter_rows)]
        self._weights = [] if self._is_loop else [self._load_weights(tap) for tap in self._taps]
        self._initial = load(task.initial, [self._channel.value], task.target.lanes, I32)

    @property
    def _length(self) -> int:
        """The elements of a vector of k-packs."""
        return self._task.target.lanes * self._task.target.k_pack

    def compute_tile(self, tile: ArrayLike, pixels: int) -> None:
        """Compute a register tile, by its number in the strip, and store it."""
        task, axis = self._task, self._task.conv.horizontal
        first_pack = tile * (task.plan.mr * axis.stride // task.packs.spacing)
        accumulators = [self._initial] * pixels
        if self._is_loop:

            def add_loaded_row(tap: Value, *carried: ArrayLike) -> list[ArrayLike]:
                weights = self._load_weights(scalar(tap))
                return self._add_row(scalar(tap), weights, first_pack, carried)

            accumulators = loop(0, len(self._taps), 1, add_loaded_row, accumulators)
        for tap, weights in zip(self._taps, self._weights, strict=False):
            accumulators = self._add_row(tap, weights, first_pack, accumulators)
        output_row = task.image * task.conv.vertical.outputs + self._row
        task.store(accumulators, output_row, self._first + tile * task.plan.mr, self._channel)

    def _load_weights(self, tap: ArrayLike) -> dict[tuple[int, int], ArrayLike]:
        """Load a row of the filter: the weight of each k-pack of each output pixel of a period."""
        task, filter_rows = self._task, self._task.conv.vertical.taps
        weights = {}
        for number, key in enumerate(self._pack_keys):
            position = [tap + number * filter_rows, self._channel * task.target.k_pack]
            index = [each.value for each in position]
            loaded = load(task.weight, index, self._length, I8)
            weights[key] = convert(loaded, task.target.multiplicand_type)
        return weights

    def _add_row(
        self,
        tap: ArrayLike,
        weights: Mapping[tuple[int, int], ArrayLike],
        first_pack: ArrayLike,
        carried: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        """Add the products of a row of the filter."""
        task, target, packs = self._task, self._task.target, self._task.packs
        ring_row, loaded = task.ring_row(self._row, tap), dict[int, ArrayLike]()
        accumulators = list(carried)
        for output in range(len(accumulators)):
            for number, (pack, *_) in enumerate(packs.of_output(output)):
                if pack not in loaded:
                    column = (first_pack + pack).value
                    index = [ring_row.value, self._vector.value, column, constant_index(0)]
                    loaded[pack] = load(task.ring, index, self._length, target.multiplicand_type)
                weight = weights[output % packs.period, number]
                accumulators[output] = target.add_products(
                    accumulators[output], loaded[pack], weight
                )
        return accumulators
