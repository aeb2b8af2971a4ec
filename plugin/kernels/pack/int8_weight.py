"""Packing of int8 weights: the matrix ``N x K`` of an implicit GEMM, and initial accumulators.

VPDPBUSD multiplies u8 by s8: activations get a sign offset of +128, and ``-128 * sum_k(w)`` is
folded into the initial accumulators, with the bias that the epilogue would add. Where a kernel
skips taps in the padding, their products are folded in, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit.constant_values import array_of
from ...emit.kernel import KernelTable
from ...emit.parameters import ModuleGlobals
from ...numerics.array_functions import convert
from ...numerics.element_types import I32, AnyArray, Array, ElementType
from ..conv_geometry import ConvAxis
from ..isa.base import InstructionSet
from .packed_weight import Tiles


@dataclass(frozen=True)
class SkippedTaps:
    """Taps of the vertical `axis` in the padding that a kernel does not multiply.

    `counts` are the skipped taps in the low and in the high padding, for each kind of output row;
    `padding` is the number in the padding.
    """

    axis: ConvAxis
    counts: list[tuple[int, int]]
    padding: int


@dataclass(frozen=True)
class Int8Weight:
    """The weight of an int8 contraction.

    Args:
        axes: permutation to ``OC x spatial... x C``, behind `batch_rank` batch axes.
        groups: groups of channels; the weight has the channels of one.
        summands: number of i8 weights that it is the sum of, 1 or 2.
    """

    value: Value
    axes: list[int]
    groups: int
    summands: int
    batch_rank: int = 0

    def prepacked(
        self,
        kernels: KernelTable,
        layout: tuple[object, ...],
        pack: Callable[[], AnyArray],
        element: ElementType,
    ) -> Value:
        """Return a prepacked operand that is computed from the weight."""
        layout = (self.axes, self.groups, *layout, *([self.batch_rank] if self.batch_rank else []))
        return kernels.prepacked([self.value], "i8", layout, pack, element)

    def matrix(
        self, module_globals: ModuleGlobals, channel_padding: int = 0, channel_slices: int = 1
    ) -> AnyArray:
        """Return the weight as ``N x K``, with zeros for `channel_padding` further channels.

        A column multiplies one of `channel_slices` parts of the channels. A group's weight is zero
        for the channels of the other groups in its slice: with few groups that costs less than
        IREE's grouped convolution.
        """
        weight = array_of(self.value, module_globals).transpose(self.axes)
        if self.summands > 1:  # each tap is multiplied by both summands
            low = np.clip(weight, -128, 127)
            weight = np.stack([low, weight - low], axis=1).astype(np.int8)
        if self.groups > 1:
            n, channels = weight.shape[0] // self.groups, weight.shape[-1]
            groups_per_slice = self.groups // channel_slices
            blocks = []
            for group in range(self.groups):
                previous = group % groups_per_slice
                zeros = previous * channels, (groups_per_slice - 1 - previous) * channels
                padding = [(0, 0)] * (weight.ndim - 1) + [zeros]
                blocks.append(np.pad(weight[group * n : (group + 1) * n], padding))
            weight = np.concatenate(blocks, axis=0)
        if channel_padding:
            weight = np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, channel_padding)])
        return weight.reshape((weight.shape[0], math.prod(weight.shape[1:])))

    def matrices(
        self, module_globals: ModuleGlobals, tiles: Tiles, channel_padding: int
    ) -> AnyArray:
        """Return the weights of a batch one below the other, each ``N x K`` with N in whole tiles.

        K has `channel_padding` further zeros.
        """
        weight = array_of(self.value, module_globals).transpose(self.axes)
        weight = weight.reshape((-1, *weight.shape[self.batch_rank :]))
        padding = [(0, 0), (0, tiles.count * tiles.nr - tiles.n), (0, channel_padding)]
        if any(high for _, high in padding):
            weight = np.pad(weight, padding)
        return weight.reshape((-1, weight.shape[2]))

    def depthwise(
        self, module_globals: ModuleGlobals, taps: tuple[int, int], channel_padding: int
    ) -> AnyArray:
        """Return the weight of a depthwise convolution as ``KH x KW x OC``."""
        axes = [*self.axes[1:], self.axes[0]]
        weight = array_of(self.value, module_globals).transpose(axes)
        weight = weight.reshape((*taps, weight.shape[-1]))
        if channel_padding:
            weight = np.pad(weight, [(0, 0), (0, 0), (0, channel_padding)])
        return weight


def initial_accumulators(
    matrix: AnyArray,
    tiles: Tiles,
    target: InstructionSet,
    bias: AnyArray | None,
    skipped: SkippedTaps | None,
) -> AnyArray:
    """Return the initial accumulators of tiles, ``kinds * count x NR`` of i32.

    The matrix is the weight, ``N x K``. `bias` has numbers that the epilogue would add, or None.
    There is a *kind* of output row for each number of `skipped` taps, which the kernel does not
    multiply, and one kind without them.
    """
    integers = convert(matrix, I32)
    initial = sums_with_bias(integers.sum(1, dtype=np.int32), target, bias)
    kinds = 1
    if skipped is not None:
        kinds, taps = len(skipped.counts), skipped.axis.taps
        by_tap = integers.reshape((1, tiles.n, taps, -1)).sum(3, dtype=np.int32)
        tap = np.arange(taps)
        is_skipped = np.array([(tap < n) | (tap >= taps - m) for n, m in skipped.counts])
        factors = is_skipped[:, None].astype(np.int32) * (skipped.padding + target.sign_offset)
        initial = initial + (by_tap * factors).sum(2, dtype=np.int32)
    initial = initial.reshape((kinds, tiles.n))
    missing = tiles.count * tiles.nr - tiles.n
    if missing:
        initial = np.pad(initial, [(0, 0), (0, missing)])
    return initial.reshape((-1, tiles.nr))


def sums_with_bias(
    weight_sums: AnyArray, target: InstructionSet, bias: AnyArray | None
) -> AnyArray:
    """Return the bias minus the sums of the weight times the sign offset."""
    initial = weight_sums * np.int32(-target.sign_offset)
    if bias is None or (isinstance(bias, np.ndarray) and not bias.any()):
        return initial
    missing = weight_sums.shape[0] - bias.shape[0]
    return initial + (np.pad(bias, [(0, missing)]) if missing else bias)


def bias_key(bias: Array | None) -> list[str]:
    """Return a digest of a bias, for the names of parameters; nothing for zeros."""
    return [] if bias is None or not bias.any() else [hashlib.sha256(bias.tobytes()).hexdigest()]
