"""Depthwise f32 convolution kernel: a filter for each channel, or for small groups of channels.

::

    acc[y, x, c] = fma(image[y * stride + r * dilation, x * stride + t * dilation, c],
                       weight[r, t, c], acc)    for each r, t in order
    result = epilogue(acc)

A vector has channels. A workgroup has a range of items: a vector of channels and a range of output
rows, so that the image rows of a vector stay in the L1 cache from an output row to the next. For
each output row, MR output pixels at a time: for each row of the filter, each image pixel is loaded
once, and multiplied by all taps that read it.

With groups of several channels, the vector of a pixel is shuffled so that each lane has the first
channel of its group, then the second one, and so on; each has weights of its own.

Padding is not in memory. Rows of the filter in the vertical padding are skipped; at the ends of an
output row, pixels in the horizontal padding are replaced by zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    Vectors,
    load,
    loop,
    quotient,
    remainder,
    shuffle_lanes,
    store,
    when,
    workgroup_range,
)
from ...numerics.element_types import F32
from ..conv_geometry import ConvAxis
from ..epilogue.fused_epilogue import FusedEpilogue, epilogue_bindings
from ..isa.base import InstructionSet

_INT8_MACS_PER_MAC = 8
"""A MAC takes about as long as this many int8 MACs of a GEMM."""
_MAX_MR = 14
"""Output pixels of a register tile, at most."""
_COST_OF_TILE_IN_PIXELS = 1.0
"""Output pixels that take as long as the loads of a register tile's weights."""
_WEIGHTS_OF_GROUPS = 4
"""Registers for the weights of groups of several channels."""


@dataclass(frozen=True)
class F32Depthwise:
    """Depthwise f32 convolution of N `images` with C `channels`, at least the lanes of a vector.

    A vertical axis with padding has a dilation of 1. `row_blocks` are the ranges of output rows. An
    output channel is computed from the `group_channels` channels of its group, which divide the
    lanes of a vector.
    """

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    target: InstructionSet
    row_blocks: int
    workgroups: int
    epilogue: FusedEpilogue | None = None
    group_channels: int = 1

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: weight ``(taps * group channels) x C``, activations, epilogue tables, result.
        """
        vertical, horizontal = self.vertical, self.horizontal
        shape = self.images * vertical.outputs, horizontal.outputs, self.channels
        bindings = [
            Binding((vertical.taps * horizontal.taps * self.group_channels, self.channels), F32),
            Binding((self.images * vertical.size * horizontal.size, self.channels), F32),
            *epilogue_bindings(self.epilogue, self.channels, shape, accumulator=F32),
        ]
        name, macs = "f32_depthwise", self.equivalent_macs
        return Kernel(name, bindings, self.workgroups, self._body, 0, macs=macs)

    @property
    def equivalent_macs(self) -> int:
        """The int8 MACs of a GEMM that take about as long."""
        pixels = self.images * self.vertical.outputs * self.horizontal.outputs
        taps = self.vertical.taps * self.horizontal.taps * self.group_channels
        return _INT8_MACS_PER_MAC * pixels * self.channels * taps

    @property
    def vectors(self) -> int:
        """The vectors of channels; the last two may overlap."""
        return -(-self.channels // self.target.lanes)

    @property
    def mr(self) -> int:
        """MR, the output pixels of a register tile.

        Accumulators, the weights of a row of the filter, and two pixels are in registers.
        """
        columns, taps = self.horizontal.outputs, self.horizontal.taps
        if self.group_channels > 1:
            taps = self.group_channels + _WEIGHTS_OF_GROUPS  # others are read from memory
        limit = min(_MAX_MR, max(1, self.target.vector_registers - taps - 2), columns)
        choices = range(1, limit + 1)
        return min(choices, key=lambda n: -(-columns // n) * (n + _COST_OF_TILE_IN_PIXELS))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        items = self.vectors * self.row_blocks
        first, end = workgroup_range(scalar(workgroup), self.workgroups, items)

        def compute(number: Value) -> None:
            vector = quotient(scalar(number), self.row_blocks)
            block = remainder(scalar(number), self.row_blocks)
            channel = vector * self.target.lanes
            if self.channels % self.target.lanes:
                channel = np.minimum(channel, self.channels - self.target.lanes)
            _Channels(self, memories, channel).emit(block)

        loop(first.value, end.value, 1, compute)


@dataclass(frozen=True)
class _Channels:
    """A vector of channels, from `channel` on."""

    conv: F32Depthwise
    memories: Sequence[Value]
    channel: ArrayLike

    def emit(self, block: ArrayLike) -> None:
        """Emit the loops over a block of output rows, and their register tiles."""
        conv, horizontal = self.conv, self.conv.horizontal
        rows = conv.images * conv.vertical.outputs
        first, end = workgroup_range(block, conv.row_blocks, rows)
        columns, mr = horizontal.outputs, conv.mr

        def compute_row(number: Value) -> None:
            def compute(tile: Value) -> None:
                pixel = scalar(tile) * mr
                if columns % mr:
                    pixel = np.minimum(pixel, columns - mr)
                self._register_tile(scalar(number), pixel)

            loop(0, -(-columns // mr), 1, compute)

        loop(first.value, end.value, 1, compute_row)

    def _register_tile(self, row: ArrayLike, pixel: ArrayLike) -> None:
        """Compute MR output pixels of a row, counted over all images."""
        axis, mr = self.conv.horizontal, self.conv.mr
        first = pixel * axis.stride - axis.pad_low  # may be negative, as are ends beyond the size
        length = (mr - 1) * axis.stride + axis.receptive_field

        def read_inside(image_row: ArrayLike, column: ArrayLike) -> ArrayLike:
            index = [(image_row * axis.size + column).value, self.channel.value]
            return load(self.memories[1], index, self.conv.target.lanes, F32)

        def read_checked(image_row: ArrayLike, column: ArrayLike) -> ArrayLike:
            image = read_inside(image_row, np.clip(column, 0, axis.size - 1))
            return np.where((column >= 0) & (column < axis.size), image, 0.0)

        def compute(read: Callable[[ArrayLike, ArrayLike], ArrayLike]) -> None:
            self._store(self._accumulate(row, first, read), row, pixel)

        if not axis.pad_low and not axis.pad_high:
            compute(read_inside)
            return
        is_inside = (first >= 0) & (first + length <= axis.size)
        when(is_inside, lambda: compute(read_inside), lambda: compute(read_checked))

    def _accumulate(
        self,
        row: ArrayLike,
        first: ArrayLike,
        read: Callable[[ArrayLike, ArrayLike], ArrayLike],
    ) -> list[ArrayLike]:
        """Emit the loop over the rows of the filter that are not in the padding."""
        conv, mr = self.conv, self.conv.mr
        vertical, horizontal, lanes = conv.vertical, conv.horizontal, conv.target.lanes
        size = conv.group_channels
        image, own_row = quotient(row, vertical.outputs), remainder(row, vertical.outputs)
        top = image * vertical.size + own_row * vertical.stride - vertical.pad_low
        low, end = scalar(constant_index(0)), scalar(constant_index(vertical.taps))
        if vertical.pad_low or vertical.pad_high:
            low, end = vertical.taps_inside(own_row)
        users: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(mr):
            for tap in range(horizontal.taps):
                column = pixel * horizontal.stride + tap * horizontal.dilation
                users.setdefault(column, []).append((pixel, tap))

        def add_row(tap_row: Value, *carried: ArrayLike) -> list[ArrayLike]:
            accumulators, tap = list(carried), scalar(tap_row)
            image_row = top + tap * vertical.dilation
            first_weight = tap * (horizontal.taps * size)
            weights = [
                load(
                    self.memories[0],
                    [(first_weight + number).value, self.channel.value],
                    lanes,
                    F32,
                )
                for number in range(horizontal.taps * size)
            ]
            for column in sorted(users):
                loaded = self._group_channels(read(image_row, first + column))
                for pixel, number in users[column]:
                    for channel, each in enumerate(loaded):
                        accumulators[pixel] = conv.target.fma(
                            each, weights[number * size + channel], accumulators[pixel]
                        )
            return accumulators

        initial = [Vectors(lanes).known(0.0, F32)] * mr
        return loop(low.value, end.value, 1, add_row, initial)

    def _group_channels(self, vector: ArrayLike) -> list[ArrayLike]:
        """The first channel of its group in each lane, the second one, and so on."""
        lanes, size = self.conv.target.lanes, self.conv.group_channels
        if size == 1:
            return [vector]
        return [
            shuffle_lanes(vector, vector, [lane // size * size + number for lane in range(lanes)])
            for number in range(size)
        ]

    def _store(self, accumulators: Sequence[ArrayLike], row: ArrayLike, pixel: ArrayLike) -> None:
        """Apply the epilogue to the accumulators, and store them."""
        epilogue = self.conv.epilogue
        _, _, *tables, result = self.memories
        if epilogue is not None:
            accumulators = [epilogue.emit(tables, each, self.channel) for each in accumulators]
        for number, accumulator in enumerate(accumulators):
            store(accumulator, result, [row.value, (pixel + number).value, self.channel.value])
