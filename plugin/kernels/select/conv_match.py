"""Shapes of contractions that are implicit GEMMs: matrix products and convolutions.

Activations are ``N x spatial... x C`` and weights ``OC x spatial... x C`` up to a permutation. A
matrix product is a convolution without spatial axes, whose rows M are images. Those of a batch of
products follow the batch axes, which the weight has, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.windows import (
    dot_axes,
    free_axes,
    has_reversal,
    pad_amounts,
    window_padding,
    window_steps,
)
from ...emit.constant_values import constant_elements
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ..conv_geometry import ConvAxis, ConvGeometry
from .match_failure import IS_SMALL, MatchFailure

MIN_MACS = 1 << 12
"""A call of a kernel pays from this number of MACs on."""
MIN_MACS_FUSED = 1 << 6
"""A call pays from this number of MACs on where it may join the dispatch of another contraction.

microWakeWord's networks, whose depthwise filters have 128 and 160 MACs, take 20 to 30 % less time
than with 256.
"""
_MAX_DENSE_GROUPS = 8
"""Up to this number of groups, a weight with zeros for the other groups costs the least."""
_MIN_SLICE_LANES, _MAX_K_PACK = 16, 4
"""A slice has whole vectors of any instruction set, and whole k-packs."""

_Match = TypeVar("_Match", bound="ConvMatch")


@dataclass(frozen=True)
class ConvMatch:
    """A contraction whose shape a kernel of implicit GEMMs computes.

    Attributes:
        activations, weight: tensors.
        activation_axes, weight_axes: permutations to ``N x spatial... x C`` and ``OC x spatial... x
            C``.
        padding: low and high padding of each spatial axis.
        strides, dilations: of each spatial axis.
        result_axes: permutation of ``N x spatial... x OC`` to the result.
        groups: groups of channels; each has output channels of its own.
        summands: number of weights that the weight is the sum of, 1 or 2.
    """

    activations: Value
    weight: Value
    activation_axes: list[int]
    weight_axes: list[int]
    padding: list[tuple[int, int]]
    strides: list[int]
    dilations: list[int]
    result_axes: list[int]
    groups: int = 1
    padding_value: int = 0
    summands: int = 1

    @classmethod
    def of_shape(
        cls: type[_Match], op: Operation, min_macs: int = MIN_MACS
    ) -> _Match | MatchFailure:
        """Match a contraction by all but its element types, which later passes may narrow to i8."""
        types = [value.type for value in (*op.operands, *op.results)]
        if not all(
            isinstance(type_, ir.RankedTensorType) and type_.has_static_shape for type_ in types
        ):
            return MatchFailure("it has a dynamic shape")
        if "convolution" in op.name:
            match = cls._of_convolution(op)
        elif isinstance(axes := matrix_axes(op), MatchFailure):
            return axes
        else:
            order = list(range(types[2].rank))
            match = cls(op.operands[0], op.operands[1], *axes, [], [], [], order)
        if isinstance(match, MatchFailure):
            return match
        macs = math.prod(types[2].shape) * math.prod(match.weight_shape[1:])
        return match if macs >= min_macs else IS_SMALL

    @classmethod
    def _of_convolution(cls: type[_Match], op: Operation) -> _Match | MatchFailure:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        spatial = list(numbers.input_spatial_dimensions)
        rank = len(spatial)
        groups, batch_groups = (
            int(op.attributes[f"{kind}_group_count"].value) for kind in ("feature", "batch")
        )
        channels = int(op.operands[0].type.shape[numbers.input_feature_dimension])
        if batch_groups != 1:
            return MatchFailure(f"its batch_group_count is {batch_groups}, not 1")
        n = int(op.operands[1].type.shape[numbers.kernel_output_feature_dimension])
        is_dense_or_depthwise = groups in (1, channels) or groups <= _MAX_DENSE_GROUPS
        if not is_dense_or_depthwise and not has_slices(channels // groups, n // groups, n):
            return MatchFailure(f"its {groups} groups do not fill whole vectors")
        if window_steps(op, "lhs_dilation", rank) != [1] * rank:
            return MatchFailure("it has an lhs_dilation")
        if has_reversal(op):
            return MatchFailure("it has a window_reversal")
        if rank not in (1, 2):
            return MatchFailure(f"it has {rank} spatial dimensions, not 1 or 2")
        padding = [(int(low), int(high)) for low, high in window_padding(op, rank)]
        if any(low < 0 or high < 0 for low, high in padding):
            return MatchFailure("its padding is negative")
        result = [numbers.output_batch_dimension, *numbers.output_spatial_dimensions]
        result.append(numbers.output_feature_dimension)
        return cls(
            op.operands[0],
            op.operands[1],
            [numbers.input_batch_dimension, *spatial, numbers.input_feature_dimension],
            [
                numbers.kernel_output_feature_dimension,
                *numbers.kernel_spatial_dimensions,
                numbers.kernel_input_feature_dimension,
            ],
            padding,
            window_steps(op, "window_strides", rank),
            window_steps(op, "rhs_dilation", rank),
            [result.index(axis) for axis in range(len(result))],
            groups,
        )

    def with_pad_operation(self: _Match, module_globals: ModuleGlobals) -> _Match:
        """Absorb a ``stablehlo.pad`` of the activations' spatial axes into the padding."""
        pad = producer_named(self.activations, "stablehlo.pad")
        if pad is None or not self.strides:
            return self
        value = constant_elements(pad.operands[1], module_globals)
        low, high, interior = (each[self.activation_axes] for each in pad_amounts(pad))
        pads_others = low[0] or low[-1] or high[0] or high[-1]
        if value is None or (low < 0).any() or (high < 0).any() or interior.any() or pads_others:
            return self
        if value.dtype.kind not in "iu" and value.item() != 0:
            return self
        if np.any(self.padding) and value.item() != self.padding_value:
            return self
        pairs = zip(self.padding, low[1:-1], high[1:-1], strict=True)
        padding = [(int(n + before), int(m + after)) for (n, m), before, after in pairs]
        return replace(
            self, activations=pad.operands[0], padding=padding, padding_value=int(value.item())
        )

    # -- shapes ------------------------------------------------------------------------------------

    @property
    def activation_shape(self) -> list[int]:
        """``N, spatial..., C`` of the activations without padding; ``M, K`` of a product.

        M is that of all products of a batch.
        """
        shape = [int(self.activations.type.shape[axis]) for axis in self.activation_axes]
        is_product = not self.strides
        return [math.prod(shape[:-1]), shape[-1]] if is_product else shape

    @property
    def weight_shape(self) -> list[int]:
        """``OC, spatial..., C`` of the weight; ``N, K`` of one product of a batch."""
        return [int(self.weight.type.shape[axis]) for axis in self.weight_axes[self.batch_rank :]]

    @property
    def batch_rank(self) -> int:
        """The number of batch axes, the first ones of a product's activations and weight."""
        return 0 if self.strides else len(self.weight_axes) - 2  # N and K follow

    @property
    def batches(self) -> int:
        """The number of products of a batch, each with a weight of its own."""
        axes = self.weight_axes[: self.batch_rank]
        return math.prod(int(self.weight.type.shape[axis]) for axis in axes)

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is a group."""
        return 1 < self.groups == self.activation_shape[-1]

    @property
    def has_padding(self) -> bool:
        """True if a spatial axis is padded."""
        return bool(np.any(self.padding))

    def axes(self) -> tuple[ConvAxis, ConvAxis]:
        """The vertical and the horizontal axis; a missing one has size 1.

        An image of one column has its pixels in one row: register tiles are parts of a row.
        """
        one = ConvAxis(1, 1, 1, 1, 0, 0)
        _, *taps, _ = self.weight_shape
        _, *sizes, _ = self.activation_shape
        axes = [
            ConvAxis(size, tap, stride, dilation, low, high)
            for size, tap, stride, dilation, (low, high) in zip(
                sizes, taps, self.strides, self.dilations, self.padding, strict=True
            )
        ]
        vertical, horizontal = [one] * (2 - len(axes)) + axes
        return (one, vertical) if horizontal == one else (vertical, horizontal)

    def geometry(self) -> ConvGeometry:
        """Input pixels of output pixels, on activations that contain their padding."""
        axes, images = self.axes(), self.activation_shape[0]
        taps, strides, dilations = (
            [getattr(axis, name) for axis in axes] for name in ("taps", "stride", "dilation")
        )
        padded = [axis.pad_low + axis.size + axis.pad_high for axis in axes]
        if taps == [1, 1] and strides == [1, 1]:  # the pixels of all images are one output row
            images, padded = self.batches, [1, images * math.prod(padded) // self.batches]
        rows, columns = (
            (size - (tap - 1) * dilation - 1) // stride + 1
            for size, tap, dilation, stride in zip(padded, taps, dilations, strides, strict=True)
        )
        pixels = math.prod(padded)
        distances = [0, dilations[0] * padded[1], dilations[1]]
        return ConvGeometry(
            images,
            rows,
            columns,
            images * pixels,
            pixels,
            strides[0] * padded[1],
            strides[1],
            tuple(
                (count, distance)
                for count, distance in zip([self.summands, *taps], distances, strict=True)
                if count > 1
            ),
        )


def matrix_axes(op: Operation) -> tuple[list[int], list[int]] | MatchFailure:
    """Return the permutations of a product's operands to ``M... x K`` and ``N x K``.

    Those of a batch of products begin with the batch axes.
    """
    (contracted, batch), free = dot_axes(op), free_axes(op)
    if len(contracted[0]) != 1 or len(free[1]) != 1:
        return MatchFailure("its weight is not a matrix")
    left, right = (
        [*shared, *own, *inner] for shared, own, inner in zip(batch, free, contracted, strict=True)
    )
    return left, right


def has_slices(channels: int, n_per_group: int, n: int) -> bool:
    """True if a vector has output channels of whole groups or of one, and whole k-packs of inputs.

    A group has `channels` input and `n_per_group` output channels, all groups have `n`.
    """
    is_power = n_per_group & (n_per_group - 1) == 0
    min_channels = channels * max(1, _MAX_K_PACK // n_per_group)  # of a vector of four lanes
    return is_power and n % _MIN_SLICE_LANES == 0 and min_channels % _MAX_K_PACK == 0
