"""Int8 convolution and GEMM kernel: i8 x i8 -> i32 with SIMD accumulators.

::

    result[row, column, n] = initial[n] + sum_(t, c) x[row, column, t, c] * weight[n, t, c]

NHWC activations are flattened to ``[pixels, C]``; output pixel (row, column) reads KH * KW input
pixels at fixed offsets ``t`` from its first (`ConvGeometry`). Accumulators are i32 and exact: the
caller checks that they fit.

Activations become multiplicands of the instruction set. VPDPBUSD multiplies u8 by s8: activations
are biased by +128, and ``-128 * sum(w)`` is folded into the initial accumulators.

Loop nest of a workgroup, which has a weight tile of NR columns and a range of register tiles of MR
output pixels (`Int8ConvTile`):

* Padding: the padded rows that a block of output rows reads are copied to scratch memory first,
  or vertical padding is skipped: then the initial accumulators include the products of the skipped
  taps, for each number of skipped rows.
* Panels: where multiplicands are i16, the weight tile is widened once (`WidenedPanels`). If it has
  several panels, the accumulators of some register tiles wait in memory from one to the next.
* Epilogue: of a register tile at its end, or pipelined: between the multiplications of the next.

With grouped channels, a weight tile reads the channel slice of its own columns only. Of a batch of
products, it multiplies the row of its own product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    bitcast,
    broadcast,
    load,
    load_element,
    loop,
    memref_type,
    quotient,
    remainder,
    scratch,
    store,
    view,
    when,
    workgroup_range,
)
from ...numerics.element_types import I8, I32
from ..epilogue.fused_epilogue import epilogue_bindings
from .concatenate import for_vectors
from .int8_conv_plan import Int8ConvPlan
from .int8_conv_tile import Int8ConvTile, WeightTile, sums_with_addends
from .output_tile import OutputTile


@dataclass(frozen=True)
class Int8Conv(Int8ConvPlan):
    """Int8 convolution or GEMM for SIMD instruction sets."""

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: weight, initial accumulators, activations, a number for each output pixel with
        `has_row_addends`, tables of the epilogue, result.
        """
        tiles, pixels = self.tiles, self.geometry.output_pixels
        # i8 where the kernel converts activations in memory, else k-packs of 32 bits.
        activations = Binding((self.geometry.input_pixels * self.k_packs_per_pixel,), I32)
        if self.pad_copy is not None:
            activations = Binding((self.pad_copy.input_size,), I8)
        elif self.converts_to_scratch:
            activations = Binding((self.geometry.input_pixels * self.channels,), I8)
        bindings = [
            Binding((self.batches * tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((len(self.skipped_taps) * self.batches * tiles.count, tiles.nr), I32),
            activations,
            *([Binding((pixels,), I32)] if self.has_row_addends else []),
            *epilogue_bindings(self.epilogue, tiles.count * tiles.nr, self.result_shape),
        ]
        workgroups = self.batches * tiles.count * self.workgroups
        macs = pixels * tiles.k * tiles.n
        return Kernel("int8_conv", bindings, workgroups, self._body, pixels, macs=macs)

    def _body(self, memories: Sequence[Value], number: Value, _: DimSize) -> None:
        workgroup = _Workgroup(self, memories, scalar(number))
        if self.splits_panels:
            workgroup.emit_panels()
        else:
            workgroup.emit()


class _Workgroup:
    """The loop nest of a workgroup, by its number."""

    def __init__(self, conv: Int8Conv, memories: Sequence[Value], number: ArrayLike) -> None:
        self.conv = conv
        self.weight, self.initial, self.activations, *tables, result = memories
        self.row_addends = tables.pop(0) if conv.has_row_addends else None
        self.output = OutputTile(
            conv.tiles,
            conv.mr * conv.waiting_tiles if conv.splits_panels else conv.mr,
            conv.epilogue,
            tables,
            result,
            in_memory=conv.is_epilogue_pipelined or conv.splits_panels,
        )
        self.converted = self.activations
        if conv.converts_to_scratch:
            self.converted = scratch([conv.mr * conv.k_packs_per_pass], I32)
        rows = conv.geometry.output_rows * conv.geometry.images // conv.batches
        count = conv.tiles_per_row * rows
        self.tile = self.weight_tile = quotient(number, conv.workgroups)
        self.batch: ArrayLike | None = None
        if conv.batches > 1:
            self.batch = quotient(self.weight_tile, conv.tiles.count)
            self.tile = remainder(self.weight_tile, conv.tiles.count)
        share = remainder(number, conv.workgroups)
        self.block_tiles = 1 if conv.pad_copy is None else conv.rows_per_block * conv.tiles_per_row
        blocks = workgroup_range(share, conv.workgroups, count // self.block_tiles)
        self.first, self.end = (block * self.block_tiles for block in blocks)

    def _position(self, tile: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """The output row of a register tile, and its first pixel there."""
        conv, columns = self.conv, self.conv.geometry.output_columns
        row = quotient(tile, conv.tiles_per_row) if self.batch is None else self.batch
        pixel = remainder(tile, conv.tiles_per_row) * conv.mr
        if columns % conv.mr:
            pixel = np.minimum(pixel, columns - conv.mr)
        return row, pixel

    def _added_to_pixels(self, row: ArrayLike, first: ArrayLike) -> list[ArrayLike]:
        """The vectors that are added to all accumulators of MR pixels of a row; none for zeros."""
        conv, memory = self.conv, self.row_addends
        if memory is None:
            return []
        start = row * conv.geometry.output_columns + first
        words = [load_element(memory, [(start + pixel).value]) for pixel in range(conv.mr)]
        return [broadcast(word, conv.tiles.lanes) for word in words]

    # -- a weight tile that is one panel, or is not widened ---------------------------------------

    def emit(self) -> None:
        """Emit the loop over register tiles."""
        conv, weight = self.conv, WeightTile(self.weight, self.weight_tile)
        if conv.panels is not None:
            panel, zero = conv.panels.allocate(), scalar(constant_index(0))
            conv.panels.write(self.weight, self.weight_tile, zero, panel)
            weight = WeightTile(panel, zero, conv.target.multiplicand_type)
        padded = _PaddedRows(conv, self.activations) if conv.pad_copy is not None else None

        def multiply(number: Value) -> None:
            tile = scalar(number)
            row, pixel = self._position(tile)
            own_row, source = row, self.activations
            if padded is not None:
                own_row, source = remainder(row, conv.rows_per_block), padded.k_packs
                is_first = remainder(tile, self.block_tiles) == 0
                when(is_first, lambda: padded.copy_block(row))
            previous, has_previous = np.maximum(tile, self.first + 1) - 1, tile > self.first
            groups = self.output.groups(conv.mr)

            def slot(index: ArrayLike, slots: int) -> None:
                if padded is not None and conv.is_copy_pipelined:
                    is_first_row = own_row == 0
                    next_tile = remainder(tile, conv.tiles_per_row) + 1
                    has_next = is_first_row & (next_tile < conv.tiles_per_row)
                    padded.copy_ahead(row, next_tile, has_next, index, slots)
                self._write_in_slot(index, -(-groups // slots), groups, previous, has_previous)

            start = conv.geometry.first_tap(own_row, pixel) * conv.k_packs_per_pixel
            read = self._multiplicands(source, start)
            is_backwards = remainder(tile, 2) == 1 if conv.alternates_k_order else None
            register_tile = Int8ConvTile(
                *(conv, weight, self.initial, self._added_to_pixels(row, pixel), read[0]),
                *(self.weight_tile, row, *read[1:], is_backwards),
            )
            if conv.is_epilogue_pipelined:
                self.output.spill(register_tile.accumulate(slot, groups))
            else:
                self.output.write(register_tile.accumulate(), row, pixel, self.tile)

        loop(self.first.value, self.end.value, 1, multiply)
        if conv.is_epilogue_pipelined:
            groups = self.output.groups(conv.mr)

            def write_groups() -> None:
                loop(0, groups, 1, lambda group: self._write_group(self.end - 1, scalar(group)))

            when(self.end > self.first, write_groups)

    def _write_in_slot(
        self, slot: ArrayLike, count: int, groups: int, tile: ArrayLike, has_previous: ArrayLike
    ) -> None:
        """Write ``count`` groups of the previous register tile, if any, in a slot of the K loop."""

        def write(group: ArrayLike) -> None:
            when(has_previous & (group < groups), lambda: self._write_group(tile, group))

        if count == 1:
            write(slot)
            return
        first = slot * count
        loop(0, count, 1, lambda group: write(first + scalar(group)))

    def _write_group(self, tile: ArrayLike, group: ArrayLike) -> None:
        """Write a group of the pixels of a register tile whose accumulators are in memory."""
        zero = scalar(constant_index(0))
        self.output.write_group(group, self.conv.mr, zero, *self._position(tile), self.tile)

    # -- a weight tile of several panels ----------------------------------------------------------

    def emit_panels(self) -> None:
        """Emit loops over groups of register tiles, panels, and the register tiles of a group."""
        conv, panels, zero = self.conv, self.conv.panels, scalar(constant_index(0))
        assert panels is not None
        weight = WeightTile(panels.allocate(), zero, conv.target.multiplicand_type)
        groups = self.output.groups(conv.mr)
        lanes, own = conv.tiles.lanes, self.weight_tile.value
        offsets = range(0, conv.tiles.nr, lanes)
        initial = [load(self.initial, [own, offset], lanes, I32) for offset in offsets]

        def multiply_group(number: Value) -> None:
            first = scalar(number)
            end = np.minimum(first + conv.waiting_tiles, self.end)

            def memory_pixel(tile: ArrayLike) -> ArrayLike:
                """The first pixel of a register tile in memory."""
                return (tile - first) * conv.mr

            def initialize(number: Value) -> None:
                tile = scalar(number)
                added = self._added_to_pixels(*self._position(tile))
                self.output.spill(sums_with_addends(initial, conv.mr, added), memory_pixel(tile))

            def add_panel(number: Value) -> None:
                panel = scalar(number)
                panels.write(self.weight, self.weight_tile, panel, weight.memory)

                def add(number: Value) -> None:
                    memory = memory_pixel(scalar(number))
                    row, pixel = self._position(scalar(number))
                    start = conv.geometry.first_tap(row, pixel) * conv.k_packs_per_pixel
                    read = self._multiplicands(self.activations, start + panel * panels.k_packs)
                    carried = self.output.reload(memory, conv.mr)
                    register_tile = Int8ConvTile(
                        *(conv, weight, self.initial, [], read[0]),
                        *(self.weight_tile, row, *read[1:], None),
                    )
                    accumulators = register_tile.accumulate(accumulators=carried)
                    self.output.spill(accumulators, memory)

                loop(first.value, end.value, 1, add)

            def write(number: Value) -> None:
                tile = scalar(number)

                def write_group(group: Value) -> None:
                    position = self._position(tile)
                    memory = memory_pixel(tile)
                    self.output.write_group(scalar(group), conv.mr, memory, *position, self.tile)

                loop(0, groups, 1, write_group)

            loop(first.value, end.value, 1, initialize)
            loop(0, panels.count, 1, add_panel)
            loop(first.value, end.value, 1, write)

        loop(self.first.value, self.end.value, conv.waiting_tiles, multiply_group)

    # -- multiplicands ----------------------------------------------------------------------------

    def _multiplicands(self, activations: Value, start: ArrayLike) -> tuple[Value, ArrayLike, int]:
        """The memref of multiplicands, the first k-pack there, and k-packs between pixels.

        The first pixel starts at the k-pack `start`. Where `converts_to_scratch`, they are written
        there: broadcasts from registers would take as long as multiplications.
        """
        conv, step, length = self.conv, self.conv.pixel_step, self.conv.k_packs_per_pass
        if not conv.converts_to_scratch:
            return activations, start, step
        runs = [(pixel * step, length) for pixel in range(conv.mr)]
        if step == length:
            runs = [(0, conv.mr * length)]
        for number, (offset, size) in enumerate(runs):
            self._convert(activations, start + offset, number * size, size)
        return self.converted, scalar(constant_index(0)), length

    def _convert(self, activations: Value, start: ArrayLike, first: int, length: int) -> None:
        """Convert consecutive k-packs; the last two vectors may overlap."""
        target = self.conv.target
        target_first, k_pack = scalar(constant_index(first)), target.k_pack

        def convert_vector(offset: ArrayLike, lanes: int) -> None:
            bytes_ = load(activations, [((start + offset) * k_pack).value], lanes * k_pack, I8)
            words = bitcast(target.multiplicands(bytes_), I32)
            store(words, self.converted, [(target_first + offset).value])

        for_vectors(length, target.lanes, convert_vector)


class _PaddedRows:
    """The padded rows of a block of output rows, as k-packs of multiplicands in scratch memory."""

    def __init__(self, conv: Int8Conv, images: Value) -> None:
        assert conv.pad_copy is not None
        self._conv, self._pad_copy, self._images = conv, conv.pad_copy, images
        size, element = conv.padded_bytes(conv.rows_per_block), conv.target.multiplicand_type
        memory = scratch([size], I8)
        self._elements = view(memory, 0, memref_type([size * 8 // element.bits], element))
        self.k_packs = view(memory, 0, memref_type([size * 8 // I32.bits], I32))

    def copy_block(self, row: ArrayLike) -> None:
        """Copy the padded rows of the block of an output row.

        If the copy is pipelined: only the part that the first register tile reads.
        """
        conv, pad_copy = self._conv, self._pad_copy
        *_, width, channels = pad_copy.padded_shape
        image, first = self._first_row(row)

        def copy(number: Value) -> None:
            offset = scalar(number)
            start = offset * (width * channels)
            padded_row = self._images, self._elements, image, first + offset, start
            if conv.is_copy_pipelined:
                pad_copy.copy_row_start(*padded_row, conv.first_copy_length)
            else:
                pad_copy.copy_row(*padded_row)

        loop(0, conv.padded_rows(conv.rows_per_block), 1, copy)

    def copy_ahead(
        self, row: ArrayLike, tile: ArrayLike, has_tile: ArrayLike, slot: ArrayLike, slots: int
    ) -> None:
        """Copy, in a slot, a part of the padded rows that a register tile of a row reads.

        `row` is the first output row of a block; `has_tile` is true if it has the tile `tile`.
        """
        conv, pad_copy, step = self._conv, self._pad_copy, self._conv.copy_step
        *_, width, channels = pad_copy.padded_shape
        lanes = conv.target.lanes * conv.target.k_pack
        row_vectors = step // lanes
        vectors = row_vectors * conv.padded_rows(conv.rows_per_block)
        slot_vectors = -(-vectors // slots)
        image, first = self._first_row(row)
        limit = pad_copy.horizontal.size * channels - step
        start = np.minimum((tile - 1) * step + conv.first_copy_length, limit)

        def copy() -> None:
            for index in range(slot_vectors):
                number = slot * slot_vectors + index
                if vectors % slot_vectors:
                    number = np.minimum(number, vectors - 1)
                offset = quotient(number, row_vectors)
                row_start = offset * (width * channels)
                element = start + remainder(number, row_vectors) * lanes
                pad_copy.copy_row_vector(
                    self._images, self._elements, image, first + offset, row_start, element
                )

        when(has_tile & (slot * slot_vectors < vectors), copy)

    def _first_row(self, row: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """The image of an output row, and the first padded row that it reads."""
        rows = self._conv.geometry.output_rows
        return quotient(row, rows), remainder(row, rows) * self._pad_copy.vertical.stride
