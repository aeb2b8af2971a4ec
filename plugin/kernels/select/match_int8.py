"""Matcher of int8 contractions: i8 x i8 -> i32 matrix products and convolutions.

Activations are ``N x spatial... x C`` and weights ``OC x spatial... x C`` up to a permutation. A
matrix product is a convolution without spatial axes, whose rows M are images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.windows import dot_axes, window_padding, window_steps
from ...emit.constant_values import constant_elements, is_invariant
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import Array
from ...numerics.requantization import Requantization
from ..conv_geometry import ConvAxis, ConvGeometry
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..isa.base import InstructionSet
from ..pack.int8_weight import Int8Weight
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure

MIN_MACS = 1 << 12
"""A call of a kernel pays from this number of MACs on."""
MIN_MACS_FUSED = 1 << 8
"""The same where the call may be fused with the dispatch of another contraction."""
_MAX_DENSE_GROUPS = 8
"""Up to this number of groups, a weight with zeros for the other groups costs the least."""
_MIN_SLICE_LANES, _MAX_K_PACK = 16, 4
"""A slice has whole vectors of any instruction set, and whole k-packs."""
_MAX_AMX_CHANNEL_SLICES = 8
"""AMX multiplies all groups of a slice; it is faster than vectors up to this number of slices.

Both take as long for eight groups of 16 channels.
"""
_MIN_AMX_ROWS = 8
"""AMX tiles are faster than vectors from this M on."""
_MIN_ROWS_TO_PACK = 16
"""Packing a weight at each call pays from this M on."""


@dataclass(frozen=True)
class Int8Match:
    """An int8 contraction that a kernel computes.

    Attributes:
        activations, weight: tensors of i8.
        activation_axes, weight_axes: permutations to ``N x spatial... x C`` and ``OC x spatial... x
            C``.
        padding: low and high padding of each spatial axis.
        strides, dilations: of each spatial axis.
        result_axes: permutation of ``N x spatial... x OC`` to the result.
        groups: groups of channels; each has output channels of its own.
        summands: number of i8 weights that the weight is the sum of, 1 or 2.
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
    def of(
        cls, op: Operation, module_globals: ModuleGlobals, min_macs: int = MIN_MACS
    ) -> Int8Match | MatchFailure:
        """Match a ``dot_general`` or ``convolution`` of StableHLO with `min_macs` MACs or more."""
        if "convolution" in op.name and has_elements(op, "i16", "i16", "i32"):
            return cls._of_two_summands(op, module_globals, min_macs)
        if not has_elements(op, "i8", "i8", "i32"):
            return NOT_INT8
        match = cls.of_shape(op, min_macs)
        if isinstance(match, MatchFailure):
            return match
        m = math.prod(op.results[0].type.shape) // match.weight_shape[0]
        packs_once = is_invariant(match.weight, module_globals)
        if not packs_once and m < _MIN_ROWS_TO_PACK and not match.is_depthwise:
            return MatchFailure(f"its weight is not constant, and M = {m} is too small to pack it")
        return match._with_pad_operation(module_globals)

    @classmethod
    def _of_two_summands(
        cls, op: Operation, module_globals: ModuleGlobals, min_macs: int
    ) -> Int8Match | MatchFailure:
        """Match a convolution of widened i8 with a constant weight that is the sum of two i8."""
        match = cls.of_shape(op, min_macs)
        if isinstance(match, MatchFailure):
            return match
        match = match._with_pad_operation(module_globals)
        weight = constant_elements(match.weight, module_globals)
        if weight is None or weight.min(initial=0) < -256 or weight.max(initial=0) > 254:
            return MatchFailure("its i16 weight is not a constant in [-256, 254]")
        conversion = producer_named(match.activations, "stablehlo.convert")
        narrow = None if conversion is None else conversion.operands[0]
        is_i8 = narrow is not None and str(narrow.type.element_type) == "i8"
        if not is_i8 or not -128 <= match.padding_value <= 127:
            return MatchFailure("its activations are i16, not converted i8")
        if match.is_depthwise:
            return MatchFailure("it is depthwise with an i16 weight")
        return replace(match, activations=narrow, summands=2)

    @classmethod
    def of_shape(cls, op: Operation, min_macs: int = MIN_MACS) -> Int8Match | MatchFailure:
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
            match = cls(op.operands[0], op.operands[1], *axes, [], [], [], [0, 1])
        if isinstance(match, MatchFailure):
            return match
        macs = math.prod(types[2].shape) * math.prod(match.weight_shape[1:])
        return match if macs >= min_macs else IS_SMALL

    @classmethod
    def _of_convolution(cls, op: Operation) -> Int8Match | MatchFailure:
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
        if not is_dense_or_depthwise and not _has_slices(channels // groups, n // groups, n):
            return MatchFailure(f"its {groups} groups do not fill whole vectors")
        if window_steps(op, "lhs_dilation", rank) != [1] * rank:
            return MatchFailure("it has an lhs_dilation")
        if "window_reversal" in op.attributes and "true" in str(op.attributes["window_reversal"]):
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

    def _with_pad_operation(self, module_globals: ModuleGlobals) -> Int8Match:
        """Absorb a ``stablehlo.pad`` of the activations' spatial axes into the padding."""
        pad = producer_named(self.activations, "stablehlo.pad")
        if pad is None:
            return self
        value = constant_elements(pad.operands[1], module_globals)
        low, high, interior = (
            np.array(pad.attributes[name])[self.activation_axes]
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        pads_others = low[0] or low[-1] or high[0] or high[-1]
        if value is None or (low < 0).any() or (high < 0).any() or interior.any() or pads_others:
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
        """``N, spatial..., C`` of the activations without padding."""
        return [int(self.activations.type.shape[axis]) for axis in self.activation_axes]

    @property
    def weight_shape(self) -> list[int]:
        """``OC, spatial..., C`` of the weight."""
        return [int(self.weight.type.shape[axis]) for axis in self.weight_axes]

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is a group."""
        return 1 < self.groups == self.activation_shape[-1]

    @property
    def has_padding(self) -> bool:
        """True if a spatial axis is padded."""
        return bool(np.any(self.padding))

    def axes(self) -> tuple[ConvAxis, ConvAxis]:
        """The vertical and the horizontal axis; a missing one has size 1."""
        _, *taps, _ = self.weight_shape
        _, *sizes, _ = self.activation_shape
        axes = [
            ConvAxis(size, tap, stride, dilation, low, high)
            for size, tap, stride, dilation, (low, high) in zip(
                sizes, taps, self.strides, self.dilations, self.padding, strict=True
            )
        ]
        vertical, horizontal = [ConvAxis(1, 1, 1, 1, 0, 0)] * (2 - len(axes)) + axes
        return vertical, horizontal

    def geometry(self) -> ConvGeometry:
        """Input pixels of output pixels, on activations that contain their padding."""
        _, *taps, _ = self.weight_shape
        images, *sizes, _ = self.activation_shape
        padding, strides, dilations = self.padding, self.strides, self.dilations
        while len(taps) < 2:
            if not taps:  # the rows of a matrix are the columns of one image
                images, sizes = 1, [images]
            else:
                sizes = [1, *sizes]
            taps, padding = [1, *taps], [(0, 0), *padding]
            strides, dilations = [1, *strides], [1, *dilations]
        padded = [size + sum(pair) for size, pair in zip(sizes, padding, strict=True)]
        if taps == [1, 1] and strides == [1, 1]:  # the pixels of all images are one output row
            images, padded = 1, [1, images * math.prod(padded)]
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

    def packed_source(self) -> Int8Weight:
        """The weight, for its packing."""
        return Int8Weight(self.weight, self.weight_axes, self.groups, self.summands)

    # -- kernel ------------------------------------------------------------------------------------

    def uses_amx(self, target: InstructionSet) -> bool:
        """True if AMX tiles compute it; they read all channels for each output channel."""
        if not target.has_amx_tiles or self.is_depthwise:
            return False
        m = self.geometry().output_pixels
        return (
            m >= _MIN_AMX_ROWS
            and self.vectors_and_channel_slices(target)[1] <= _MAX_AMX_CHANNEL_SLICES
        )

    def vectors_and_channel_slices(self, target: InstructionSet) -> tuple[int, int]:
        """Return NR in vectors, and the number of slices of the channels.

        An output channel multiplies the channels of one slice.
        """
        n = self.weight_shape[0]
        vectors = target.vectors_per_tile(n, target.max_vectors_int8)
        n_per_group, channels = n // self.groups, self.weight_shape[-1]
        if self.groups == 1 or not _has_slices(channels, n_per_group, n):
            return vectors, 1
        vectors = min(vectors, max(1, n_per_group // target.lanes))
        while n_per_group % (target.lanes * vectors) and vectors > 1:
            vectors -= 1
        return vectors, min(self.groups, n // (target.lanes * vectors))

    def fused_epilogue(
        self,
        result: Value,
        how: Requantization,
        target: InstructionSet,
        module_globals: ModuleGlobals,
        *,
        integer_only: bool,
    ) -> FusedEpilogue | None:
        """Return the operations after the contraction that its kernel computes; None for none."""
        uses_amx = self.uses_amx(target)
        match = EpilogueMatch.of(
            result,
            self.result_axes.index(len(self.result_axes) - 1),
            how,
            module_globals,
            integer_only=integer_only,
            accumulator_bounds=lambda: self._max_accumulators(module_globals),
            folds_bias=constant_elements(self.weight, module_globals) is not None and not uses_amx,
        )
        if match is None:
            return None
        # Depthwise and AMX kernels write the vectors of a tile alike.
        if self.is_depthwise or uses_amx:
            return FusedEpilogue.of(match, target)
        return FusedEpilogue.of(match, target, self.vectors_and_channel_slices(target)[0])

    def _max_accumulators(self, module_globals: ModuleGlobals) -> Array:
        """Return the bound ``128 * sum_k |w|`` of each output channel's accumulators."""
        n, *taps_and_channels = self.weight_shape
        weight = constant_elements(self.weight, module_globals)
        if weight is None:
            return np.full(n, math.prod(taps_and_channels) << 14, np.int64)
        matrix = weight.transpose(self.weight_axes).reshape((n, -1))
        magnitudes: Array = np.abs(matrix, dtype=np.int32).sum(1, dtype=np.int64)
        return magnitudes << 7


def has_elements(op: Operation, *elements: str) -> bool:
    """True if the operands and the result of a contraction have these element types."""
    types = [value.type for value in (*op.operands, *op.results)]
    return tuple(str(type_.element_type) for type_ in types) == elements


def matrix_axes(op: Operation) -> tuple[list[int], list[int]] | MatchFailure:
    """Return the permutations of a matrix product's operands to ``M x K`` and ``N x K``."""
    (left, right), (batch, _) = dot_axes(op)
    if batch:
        return MatchFailure("it has batch dimensions")
    if len(left) != 1 or any(value.type.rank != 2 for value in op.operands):
        return MatchFailure("its operands are not matrices")
    return [1 - left[0], left[0]], [1 - right[0], right[0]]


def _has_slices(channels: int, n_per_group: int, n: int) -> bool:
    """True if a vector has output channels of whole groups or of one, and whole k-packs of inputs.

    A group has `channels` input and `n_per_group` output channels, all groups have `n`.
    """
    is_power = n_per_group & (n_per_group - 1) == 0
    min_channels = channels * max(1, _MAX_K_PACK // n_per_group)  # of a vector of four lanes
    return is_power and n % _MIN_SLICE_LANES == 0 and min_channels % _MAX_K_PACK == 0
