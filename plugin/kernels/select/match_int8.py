"""Matcher of int8 contractions: i8 x i8 -> i32 matrix products and convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value
from ...emit.constant_values import constant_elements, is_constant, is_invariant
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import Array
from ...numerics.requantization import Requantization
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..isa.base import InstructionSet
from ..pack.int8_weight import Int8Weight
from .addends import Addends
from .conv_match import MIN_MACS, ConvMatch, has_slices
from .match_failure import NOT_INT8, MatchFailure

_MAX_AMX_CHANNEL_SLICES = 8
"""AMX multiplies all groups of a slice; it is faster than vectors up to this number of slices.

Both take as long for eight groups of 16 channels.
"""
_MIN_AMX_ROWS = 8
"""AMX tiles are faster than vectors from this M on."""
_MIN_ROWS_TO_PACK = 16
"""Packing a weight at each call pays from this M on."""
_MIN_MACS_TO_PACK_BATCHES = 1 << 14
"""Packing a batch of weights at each call pays from this number of MACs of a product on."""


@dataclass(frozen=True)
class Int8Match(ConvMatch):
    """An int8 contraction that a kernel computes, of activations and a weight of i8."""

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
        m = math.prod(op.results[0].type.shape) // match.weight_shape[0] // match.batches
        packs_once = is_invariant(match.weight, module_globals)
        if not packs_once and m < _MIN_ROWS_TO_PACK and not match.is_depthwise:
            return MatchFailure(f"its weight is not constant, and M = {m} is too small to pack it")
        if not packs_once and match.batch_rank:
            macs = m * math.prod(match.weight_shape)
            if macs < _MIN_MACS_TO_PACK_BATCHES:
                return MatchFailure(f"each product of its batch has only {macs} multiplications")
        return match.with_pad_operation(module_globals)

    @classmethod
    def _of_two_summands(
        cls, op: Operation, module_globals: ModuleGlobals, min_macs: int
    ) -> Int8Match | MatchFailure:
        """Match a convolution of widened i8 with a constant weight that is the sum of two i8."""
        match = cls.of_shape(op, min_macs)
        if isinstance(match, MatchFailure):
            return match
        match = match.with_pad_operation(module_globals)
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

    def packed_source(self) -> Int8Weight:
        """The weight, for its packing."""
        return Int8Weight(
            self.weight, self.weight_axes, self.groups, self.summands, self.batch_rank
        )

    # -- kernel ------------------------------------------------------------------------------------

    def uses_amx(self, target: InstructionSet) -> bool:
        """True if AMX tiles compute it; they read all channels for each output channel."""
        if not target.has_amx_tiles or self.is_depthwise or self.batch_rank:
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
        if self.groups == 1 or not has_slices(channels, n_per_group, n):
            return vectors, 1
        vectors = min(vectors, max(1, n_per_group // target.lanes))
        while n_per_group % (target.lanes * vectors) and vectors > 1:
            vectors -= 1
        return vectors, min(self.groups, n // (target.lanes * vectors))

    def computed_addends(
        self, product: Value, target: InstructionSet, module_globals: ModuleGlobals
    ) -> Addends | None:
        """Return the computed numbers that are added to a matrix product; None for none.

        Initial accumulators of a constant weight are constant.
        """
        if self.strides or self.uses_amx(target):
            return None
        takes_columns = not is_constant(self.weight, module_globals)
        return Addends.of(product, self.batch_rank, module_globals, takes_columns=takes_columns)

    def fused_epilogue(
        self,
        result: Value,
        how: Requantization,
        target: InstructionSet,
        module_globals: ModuleGlobals,
        *,
        integer_only: bool,
        addend_bound: int = 0,
    ) -> FusedEpilogue | None:
        """Return the operations after the contraction that its kernel computes; None for none.

        `result` are the sums of products, and of addends of at most `addend_bound`.
        """
        uses_amx = self.uses_amx(target)
        match = EpilogueMatch.of(
            result,
            self.result_axes.index(len(self.result_axes) - 1),
            how,
            module_globals,
            integer_only=integer_only,
            accumulator_bounds=lambda: np.minimum(
                self._max_accumulators(module_globals) + addend_bound, 1 << 31
            ),
            folds_bias=constant_elements(self.weight, module_globals) is not None
            and not uses_amx
            and not self.batch_rank,
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
        matrices = weight.transpose(self.weight_axes).reshape((self.batches, n, -1))
        magnitudes: Array = np.abs(matrices, dtype=np.int32).sum(2, dtype=np.int64).max(0)
        return magnitudes << 7


def has_elements(op: Operation, *elements: str) -> bool:
    """True if the operands and the result of a contraction have these element types."""
    types = [value.type for value in (*op.operands, *op.results)]
    return tuple(str(type_.element_type) for type_ in types) == elements
