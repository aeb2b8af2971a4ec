"""F32 convolution and GEMM kernel: an implicit GEMM with f32 accumulators.

::

    acc[row, column, n] = fma(x[row, column, t, c], weight[n, t, c], acc)    for each t, c in order
    result = epilogue(acc)

Accumulators start with 0. NHWC activations are flattened to ``[pixels, C]``; output pixel (row,
column) reads KH * KW input pixels at fixed offsets ``t`` from its first (`ConvGeometry`): patches
are not copied. The activations in memory have their padding.

Loop nest of a workgroup, which has a weight tile of NR columns and a range of register tiles of MR
output pixels: for each register tile, K. MR x NR accumulators are in registers; each k loads NR
weights, and broadcasts MR activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    Vectors,
    broadcast,
    load,
    load_element,
    loop,
    prefetch,
    quotient,
    remainder,
    store_vectors_with_tail,
    workgroup_range,
)
from ...numerics.element_types import F32
from ..epilogue.fused_epilogue import epilogue_bindings
from ..isa.base import InstructionSet
from .conv_gemm import ConvGemm
from .k_loop_nest import KLoopNest

INT8_MACS_PER_MAC = 4
"""An f32 MAC takes as long as this many int8 MACs."""
_MAX_UNROLL = 4
"""k that are unrolled in a loop over K, at most."""
_MAX_VECTORS = 8
"""NR in vectors, at most."""
_FMA_LATENCY = 4
"""Cycles from an FMA to the next one of the same accumulator; two FMAs start in a cycle."""
_LOAD_CYCLES = 0.75
"""Cycles of a load: half of one, and more where it misses the L1 cache."""
_WEIGHT_CYCLES = 0.25
"""Cycles that the load of a weight vector takes longer, from the L2 cache."""
_CACHE_SET_PERIOD = 4096
"""The bytes after which addresses have the same set of an L1 cache again: 64 sets of 64 bytes."""
_MAX_PIXELS_PER_SET = 6
"""Pixels that stay in a set, at most: it has 8 to 12 lines, and weights and results need some."""
_EVICTION_FACTOR = 1.25
"""The cycles of a register tile whose pixels evict each other from a set, as a multiple of others.

512 x 1024 x 1024 takes 7.2 ms with MR = 14 and 6.3 ms with MR = 6; with K = 1008 both take 6.4 ms
(Intel Xeon with AMX).
"""


@dataclass(frozen=True)
class F32Conv(ConvGemm):
    """F32 convolution or GEMM.

    Attributes:
        mr: MR, the output pixels of a register tile.
        groups: groups of channels, each with whole tiles of output channels of its own.
        batches: number of weights; each output row is of a product with a weight of its own.
    """

    mr: int = 1
    groups: int = 1
    batches: int = 1

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: weight, activations, tables of the epilogue, result.
        """
        tiles, pixels = self.tiles, self.geometry.output_pixels
        bindings = [
            Binding((self.batches * tiles.count, tiles.k, tiles.nr), F32),
            Binding((self.geometry.input_pixels * self.channels,), F32),
            *epilogue_bindings(
                self.epilogue, tiles.count * tiles.nr, self.result_shape, accumulator=F32
            ),
        ]
        workgroups = tiles.count * self.workgroups
        macs = INT8_MACS_PER_MAC * pixels * tiles.k * tiles.n
        return Kernel("f32_conv", bindings, workgroups, self._body, pixels, macs=macs)

    @property
    def tiles_per_row(self) -> int:
        """The register tiles of an output row; the last two may share pixels."""
        return -(-self.geometry.output_columns // self.mr)

    @property
    def prefetched_k(self) -> int:
        """The distance of the weights that a GEMV prefetches, in k; 0 for none.

        A GEMV of 3264 x 128 takes 81 us instead of 98 where its weights are not in the L2 cache
        (Intel Xeon with AMX).
        """
        distance = self.target.prefetch_bytes_float
        return -(-distance * 8 // (self.tiles.nr * F32.bits))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        geometry, number = self.geometry, scalar(workgroup)
        count = self.tiles_per_row * geometry.output_rows * geometry.images
        tile, share = quotient(number, self.workgroups), remainder(number, self.workgroups)
        first, end = workgroup_range(share, self.workgroups, count)

        def multiply(index: Value) -> None:
            row = quotient(scalar(index), self.tiles_per_row)
            pixel = remainder(scalar(index), self.tiles_per_row) * self.mr
            if geometry.output_columns % self.mr:
                pixel = np.minimum(pixel, geometry.output_columns - self.mr)
            _RegisterTile(self, memories, tile, row, pixel).emit()

        loop(first.value, end.value, 1, multiply)


@dataclass(frozen=True)
class _RegisterTile:
    """MR output pixels of a row, from `pixel` on, times a weight tile."""

    conv: F32Conv
    memories: Sequence[Value]
    tile: ArrayLike
    row: ArrayLike
    pixel: ArrayLike
    is_backwards: ArrayLike | None = None

    def emit(self) -> None:
        """Emit the K loop, the epilogue and the stores."""
        conv, tiles = self.conv, self.conv.tiles
        loops = [(count, distance * conv.channels) for count, distance in conv.geometry.taps]
        group_channels = conv.channels // conv.groups
        loops.append((group_channels, 1))
        while len(loops) > 1 and loops[-2][1] == loops[-1][0]:  # consecutive in memory
            loops[-2:] = [(loops[-2][0] * loops[-1][0], 1)]
        zero = scalar(constant_index(0))
        start = conv.geometry.first_tap(self.row, self.pixel) * conv.channels
        if conv.groups > 1:
            start = start + quotient(self.tile, tiles.count // conv.groups) * group_channels
        total = math.prod(count for count, _ in loops)
        accumulators = [Vectors(tiles.lanes).known(0.0, F32)] * (conv.mr * tiles.vectors)
        nest = KLoopNest(self, loops, scalar(constant_index(loops[0][0])), _MAX_UNROLL, total, None)
        self._store(nest.emit(0, zero, zero, start, accumulators))

    def add_k_pack(
        self, number: ArrayLike, position: ArrayLike, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add the products of a k of the weight with the activations at a position."""
        conv, lanes, vectors = self.conv, self.conv.tiles.lanes, self.conv.tiles.vectors
        weight, activations, *_ = self.memories
        tile = self.tile if conv.batches == 1 else self.row * conv.tiles.count + self.tile
        index, step = [tile.value, number.value], conv.geometry.column_stride * conv.channels
        weights = [load(weight, [*index, vector * lanes], lanes, F32) for vector in range(vectors)]
        # A GEMV reads each weight once.
        if conv.geometry.output_pixels == 1 and conv.prefetched_k:
            prefetched_index = (number + conv.prefetched_k).value
            for vector in range(vectors):
                prefetch(weight, [index[0], prefetched_index, vector * lanes])
        results = []
        for pixel in range(conv.mr):
            element = load_element(activations, [(position + pixel * step).value])
            activation = broadcast(element, lanes)
            for vector, each in enumerate(weights):
                accumulator = accumulators[pixel * vectors + vector]
                results.append(conv.target.fma(activation, each, accumulator))
        return results

    def _store(self, accumulators: Sequence[ArrayLike]) -> None:
        """Apply the epilogue to the accumulators, and store them."""
        conv, tiles, epilogue = self.conv, self.conv.tiles, self.conv.epilogue
        _, _, *tables, result = self.memories
        columns = [self.tile * tiles.nr + vector * tiles.lanes for vector in range(tiles.vectors)]
        if epilogue is not None:
            accumulators = [
                epilogue.emit(tables, accumulator, columns[number % tiles.vectors])
                for number, accumulator in enumerate(accumulators)
            ]
        for pixel in range(conv.mr):
            own = accumulators[pixel * tiles.vectors : (pixel + 1) * tiles.vectors]
            index = [self.row.value, (self.pixel + pixel).value]
            store_vectors_with_tail(own, result, index, tiles.n, columns[0])


def register_blocking(
    target: InstructionSet, columns: int, n: int, pixel_bytes: int
) -> tuple[int, int]:
    """Return MR, and NR in vectors: the choice that takes the fewest cycles for each k.

    MR x NR accumulators, NR weights and one activation are in registers.

    Args:
        columns: output pixels of a row.
        n: N.
        pixel_bytes: the distance of output pixels in the activations.
    """
    different_sets = _CACHE_SET_PERIOD // math.gcd(pixel_bytes, _CACHE_SET_PERIOD)
    registers, count = target.vector_registers, -(-n // target.lanes)

    def cycles(choice: tuple[int, int]) -> tuple[float, int]:
        mr, vectors = choice
        register_tiles = -(-columns // mr) * -(-count // vectors)
        loads = (mr + vectors) * _LOAD_CYCLES
        each = max(_FMA_LATENCY, mr * vectors / 2, loads) + vectors * _WEIGHT_CYCLES
        if -(-mr // different_sets) > _MAX_PIXELS_PER_SET:
            each *= _EVICTION_FACTOR
        return register_tiles * each, -mr * vectors

    choices = [
        (mr, vectors)
        for vectors in range(1, min(_MAX_VECTORS, count) + 1)
        for mr in range(1, min(columns, (registers - 1) // vectors - 1) + 1)
    ]
    return min(choices, key=cycles)
