"""Register blocking, scratch memory and tasks of the depthwise convolution kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ..conv_geometry import ConvAxis
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.tap_packs import TapPacks

_CHANNELS_PER_CHUNK = 64
"""Channels of a task, at most: those of a pixel are one cache line."""
_MAX_MR = 8
"""Output pixels of a register tile, at most."""
_MAX_GATHERED_BYTES = 24 << 10
"""Scratch memory of gathered k-packs, at most, which stay in the L1 cache."""
_MACS_PER_TAP, _MACS_PER_GATHERED_BYTE = 4, 5
"""A tap, and a gathered byte, take about as long as this many int8 MACs of a GEMM."""


@dataclass(frozen=True)
class DepthwisePlan:
    """A depthwise convolution of N `images` with C `channels`, at least the lanes of a vector."""

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    padding_value: int
    target: InstructionSet
    workgroups: int
    epilogue: FusedEpilogue | None = None

    @cached_property
    def tap_packs(self) -> TapPacks:
        """The k-packs of the horizontal taps."""
        return TapPacks(self.horizontal, self.target.k_pack, self.vertical.taps)

    @property
    def fits_scratch(self) -> bool:
        """True if the image rows that an output row reads fit scratch memory."""
        return self.gather_plan is not None

    @property
    def equivalent_macs(self) -> int:
        """The int8 MACs of a GEMM that take about as long."""
        pixels = self.images * self.vertical.outputs * self.horizontal.outputs
        taps = self.vertical.taps * self.horizontal.taps
        return _MACS_PER_TAP * pixels * self.channels * taps

    @property
    def halo_macs(self) -> int:
        """The int8 MACs that take about as long as the image rows that two blocks both gather."""
        rows = max(0, self.vertical.receptive_field - self.vertical.stride)
        return _MACS_PER_GATHERED_BYTE * rows * self.horizontal.size * self.channels

    @cached_property
    def gather_plan(self) -> GatherPlan | None:
        """The largest plan that fits scratch memory; None if none does."""
        target, outputs = self.target, self.horizontal.outputs
        vectors = -(-self.channels // target.lanes)
        period = self.tap_packs.period
        limit = max(1, min(_MAX_MR, target.max_accumulators // 2) // period)
        choices = [period * n for n in range(limit, limit // 2, -1)]
        mr = next((n for n in choices if outputs % n == 0), choices[0])
        chunk_vectors = min(vectors, max(1, _CHANNELS_PER_CHUNK // target.lanes))
        plan = GatherPlan(self, mr, chunk_vectors, outputs)
        bits = target.multiplicand_type.bits
        while math.prod(plan.scratch_shape) * bits // 8 > _MAX_GATHERED_BYTES:
            tiles = -(-plan.strip // plan.mr)
            if tiles > 4 or (tiles > 1 and plan.chunk_vectors == 1):
                plan = replace(plan, strip=-(-tiles // 2) * plan.mr)
            elif plan.chunk_vectors > 1:
                plan = replace(plan, chunk_vectors=plan.chunk_vectors // 2)
            elif plan.mr > period:
                plan = replace(plan, mr=period, strip=min(outputs, plan.mr))
            else:
                return None
        return plan


@dataclass(frozen=True)
class GatherPlan:
    """Tasks, and the k-packs that a task gathers.

    A task has a block of output rows, a strip of output columns, and a chunk of channels.

    Args:
        mr: MR, the output pixels of a register tile: whole periods of the tap packs.
        strip: the output columns of a strip; a multiple of MR where there are several strips.
    """

    conv: DepthwisePlan
    mr: int
    chunk_vectors: int
    strip: int

    @property
    def ring_rows(self) -> int:
        """The gathered image rows, in a ring: those that an output row reads."""
        axis = self.conv.vertical
        return axis.receptive_field if axis.dilation == 1 else axis.taps

    @property
    def strip_packs(self) -> int:
        """The k-packs that the output pixels of a strip read."""
        return self.conv.tap_packs.count(min(self.strip, self.conv.horizontal.outputs))

    @property
    def scratch_shape(self) -> tuple[int, ...]:
        """The shape of the gathered k-packs."""
        target = self.conv.target
        lanes = target.lanes * target.k_pack
        return self.ring_rows, self.chunk_vectors, self.strip_packs, lanes

    @property
    def strips(self) -> int:
        """The strips of an output row."""
        return -(-self.conv.horizontal.outputs // self.strip)

    @property
    def vectors(self) -> int:
        """The vectors of channels."""
        return -(-self.conv.channels // self.conv.target.lanes)

    @property
    def chunks(self) -> int:
        """The chunks of channels."""
        return -(-self.vectors // self.chunk_vectors)

    @property
    def blocks(self) -> int:
        """The blocks of output rows of an image, so that each workgroup has a task."""
        tasks = self.chunks * self.strips * self.conv.images
        return min(self.conv.vertical.outputs, -(-self.conv.workgroups // tasks))

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.chunks * self.strips * self.conv.images * self.blocks
