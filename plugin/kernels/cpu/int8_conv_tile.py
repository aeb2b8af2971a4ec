"""Register tile of the int8 convolution kernel: initial accumulators and K loop.

::

    acc[p, n] = initial[n] + sum_(t, c) multiplicand(x[first_tap(p) + t, c]) * weight[n, t, c]

for MR output pixels ``p``, taps ``t`` and input channels ``c``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import load, load_element, prefetch, quotient, remainder
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, ElementType
from ..isa.base import Accumulator
from .int8_conv_plan import Int8ConvPlan
from .k_loop_nest import MAX_UNROLL, KLoopNest, Slot

_MIN_PIPELINED_UNROLL = 4
"""k-packs that are unrolled between two slots, at least."""


@dataclass(frozen=True)
class WeightTile:
    """A weight tile, or a panel of it, in memory: a memref of tiles."""

    memory: Value
    tile: ArrayLike
    element: ElementType = I8


@dataclass(frozen=True)
class Int8ConvTile:
    """MR output pixels of a row times a weight tile.

    Attributes:
        added_to_pixels: vectors that are added to the initial accumulators of each pixel, or none.
        activations: the memref that is read.
        row: the output row, counted over all images.
        start: the first k-pack of the first pixel in `activations`.
        pixel_step: k-packs from a pixel to the next.
        is_backwards: true where the loops go through K backwards; None if they never do.
    """

    plan: Int8ConvPlan
    weight: WeightTile
    initial: Value
    added_to_pixels: Sequence[ArrayLike]
    activations: Value
    tile: ArrayLike
    row: ArrayLike
    start: ArrayLike
    pixel_step: int
    is_backwards: ArrayLike | None

    def accumulate(
        self,
        slot: Slot | None = None,
        min_slots: int = 1,
        accumulators: Sequence[ArrayLike] = (),
    ) -> list[ArrayLike]:
        """Emit the K loop; return the accumulators of MR pixels, for each vector of the tile.

        It starts from the accumulators of the panels before, by default from the initial ones.
        `slot` emits other work between unrolled k-packs, in at least `min_slots` slots.
        """
        plan = self.plan
        k_packs, own = plan.k_packs_per_pixel, plan.k_packs_per_pass // plan.channel_slices
        loops = [(count, distance * k_packs) for count, distance in plan.geometry.taps]
        loops.append((own, 1))
        total = math.prod(count for count, _ in loops)
        zero, initial_tile = scalar(constant_index(0)), self.tile
        number, position, rows = zero, self.start, scalar(constant_index(loops[0][0]))
        if plan.channel_slices > 1:
            position = position + quotient(self.tile, plan.tiles.count // plan.channel_slices) * own
        if plan.skipped_padding is not None:
            axis = plan.skipped_padding
            taps, (_, max_high) = axis.taps, axis.max_padding_taps
            low, end = axis.taps_inside(remainder(self.row, plan.geometry.output_rows))
            variant = low * (max_high + 1) + taps - end
            initial_tile = self.tile + variant * plan.tiles.count
            number, position = low * (total // taps), position + low * loops[0][1]
            rows = end - low
            total = total // taps * axis.min_taps_inside
        if not accumulators:
            offsets = range(0, plan.tiles.nr, plan.tiles.lanes)
            index = initial_tile.value
            pixel = [load(self.initial, [index, n], plan.tiles.lanes, I32) for n in offsets]
            accumulators = sums_with_addends(pixel, plan.mr, self.added_to_pixels)
        unroll = max(_MIN_PIPELINED_UNROLL, min(MAX_UNROLL, total // min_slots))
        nest = KLoopNest(self, loops, rows, unroll, total, slot)
        return list(nest.emit(0, zero, number, position, accumulators))

    def add_k_pack(
        self, number: ArrayLike, position: ArrayLike, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add the products of a k-pack of the weight with the activations at a position."""
        plan, target, vectors = self.plan, self.plan.target, self.plan.tiles.vectors
        length = plan.tiles.lanes * target.k_pack
        weights = []
        for vector in range(vectors):
            offset = vector * length
            index = [self.weight.tile.value, number.value]
            loaded = load(self.weight.memory, [*index, offset], length, self.weight.element)
            weights.append(convert(loaded, target.multiplicand_type))
            if plan.prefetch_bytes:
                prefetch(self.weight.memory, [*index, offset + plan.prefetch_bytes])
        results = []
        for pixel in range(plan.mr):
            own = (position + pixel * self.pixel_step).value
            word = load_element(self.activations, [own])
            multiplicands = target.broadcast_k_pack(word, target.multiplicand_type)
            if plan.converts_activations and not plan.converts_to_scratch:
                multiplicands = target.multiplicands(multiplicands)
            for vector, weight in enumerate(weights):
                accumulator = accumulators[pixel * vectors + vector]
                results.append(target.add_products(accumulator, multiplicands, weight))
        return [target.with_barrier(Accumulator(each)).i32 for each in results]


def sums_with_addends(
    initial: Sequence[ArrayLike], pixels: int, added_to_pixels: Sequence[ArrayLike]
) -> list[ArrayLike]:
    """Return the initial accumulators of each pixel, with the vector that is added to the pixel."""
    if not added_to_pixels:
        return [*initial] * pixels
    return [each + added for added in added_to_pixels for each in initial]
