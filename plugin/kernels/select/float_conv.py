"""F32 convolutions and matrix products: matcher and call.

The operation is a ``stablehlo.convolution`` or ``stablehlo.dot_general`` of f32 (or of f16 or bf16:
operands are converted to f32, and the sum is rounded once). IREE 3.13 compiles float convolutions
to code that is 5 to 40 times slower than the kernel (docs/performance/float-networks.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import ArrayLike
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import array_of, constant_elements, is_constant
from ...emit.kernel import MAX_WORKGROUPS, KernelTable, workgroups_per_tile
from ...emit.operation import mlir_type, tensor_type
from ...emit.parameters import ModuleGlobals
from ...emit.trace import traced
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, AnyArray, Array
from ...numerics.requantization import EXACT
from ..cpu.f32_conv import INT8_MACS_PER_MAC, F32Conv, register_blocking
from ..cpu.f32_depthwise import F32Depthwise
from ..cpu.pad_copy import PadCopyKernel
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .conv_match import MIN_MACS, ConvMatch
from .match_failure import MatchFailure

_ELEMENTS_PER_COPY_WORKGROUP = 1 << 13
"""A workgroup copies at least this many activations."""
_MAX_FUSED_OPERATIONS = 8
"""Operations of an epilogue that is applied to each vector of accumulators in its register."""
_FLOATS = ("f16", "bf16", "f32")
_MIN_ROWS_OF_COMPUTED_WEIGHT = 8
"""Rows of activations, at least, for which packing a computed weight pays."""


@dataclass(frozen=True)
class FloatConvMatch(ConvMatch):
    """A float convolution or matrix product that a kernel computes."""

    @classmethod
    def of(
        cls,
        op: Operation,
        target: InstructionSet,
        module_globals: ModuleGlobals,
        min_macs: int = MIN_MACS,
    ) -> FloatConvMatch | MatchFailure:
        """Match a ``dot_general`` or ``convolution`` of StableHLO with at least `min_macs`."""
        elements = [str(each.type.element_type) for each in (*op.operands, *op.results)]
        if any(each not in _FLOATS for each in elements):
            return MatchFailure("it is not of f16, bf16 or f32")
        if not target.has_fma:
            return MatchFailure("the target has no fused multiply-add")
        match = cls.of_shape(op, min_macs)
        if isinstance(match, MatchFailure):
            return match
        if not (match.groups == 1 or match.has_vector_groups(target) or match.is_by_lanes(target)):
            return MatchFailure(f"its {match.groups} groups do not fill whole vectors")
        if not is_constant(match.weight, module_globals):
            geometry = match.geometry()
            rows = geometry.output_pixels // match.batches
            if rows < _MIN_ROWS_OF_COMPUTED_WEIGHT:
                return MatchFailure(f"its weight is computed, and read for {rows} rows only")
        if match.is_by_lanes(target):  # padding is skipped, whose products with infinities are NaN
            weight = constant_elements(match.weight, module_globals)
            if weight is None or not np.isfinite(weight.astype(np.float32)).all():
                return MatchFailure("its weight has infinities or NaN")
        return match.with_pad_operation(module_globals)

    def has_vector_groups(self, target: InstructionSet) -> bool:
        """True if each group has whole vectors of output channels."""
        return self.weight_shape[0] // self.groups % target.lanes == 0

    def is_by_lanes(self, target: InstructionSet) -> bool:
        """True if a lane has an output channel, and its group is in the same vector.

        That is a depthwise convolution, or one whose groups have as many input as output channels,
        a part of a vector.
        """
        if self.is_depthwise:
            return True
        n, *_, channels = self.weight_shape
        is_square = self.groups > 1 and n == self.groups * channels
        return is_square and target.lanes % channels == 0 and n % target.lanes == 0

    def fused_epilogue(
        self, result: Value, target: InstructionSet, module_globals: ModuleGlobals
    ) -> FusedEpilogue | None:
        """Return the operations after the contraction that its kernel computes; None for none."""
        if result.type.element_type != mlir_type(F32):
            return None
        axis = self.result_axes.index(len(self.result_axes) - 1)
        match = EpilogueMatch.of(result, axis, EXACT, module_globals, integer_only=False)
        if match is None or len(match.operations) > _MAX_FUSED_OPERATIONS:
            return None
        return FusedEpilogue.of(match, target)


def call_float_conv(
    match: FloatConvMatch,
    kernels: KernelTable,
    result: ir.Type,
    target: InstructionSet,
    epilogue: FusedEpilogue | None,
) -> Value:
    """Emit the call of a kernel, and return its result."""
    is_dense = match.has_vector_groups(target) and not match.is_depthwise
    call = _call_dense if match.groups == 1 or is_dense else _call_depthwise
    value = call(match, kernels, target, epilogue)
    shape = [int(result.shape[axis]) for axis in np.argsort(match.result_axes)]
    value = emit_stablehlo.transpose(emit_stablehlo.reshape(value, shape), match.result_axes)
    return emit_stablehlo.convert(value, result.element_type)


def _call_dense(
    match: FloatConvMatch,
    kernels: KernelTable,
    target: InstructionSet,
    epilogue: FusedEpilogue | None,
) -> Value:
    """Emit the call of the implicit GEMM."""
    n, geometry = match.weight_shape[0], match.geometry()
    channels = match.activation_shape[-1]
    pixel_bytes = geometry.column_stride * channels * F32.bits // 8
    group_n = n // match.groups
    mr, vectors = register_blocking(target, geometry.output_columns, group_n, pixel_bytes)
    while match.groups > 1 and group_n % (vectors * target.lanes):
        vectors -= 1
    k = geometry.tap_count * channels // match.groups
    tiles = Tiles(8, 1, n, k, target.lanes, vectors, k_pack=1)
    macs = INT8_MACS_PER_MAC * geometry.output_pixels * k * n
    kernel = F32Conv(
        *(tiles, target, geometry, channels, 1, epilogue),
        mr=mr,
        groups=match.groups,
        batches=match.batches,
    )
    register_tiles = kernel.tiles_per_row * geometry.output_rows * geometry.images
    workgroups = min(register_tiles, workgroups_per_tile(macs, tiles.count))
    kernel = replace(kernel, workgroups=workgroups)
    weight = kernels.prepacked(
        [match.weight],
        "f32",
        (match.weight_axes, tiles),
        lambda: _packed(match, kernels.module_globals, tiles),
        F32,
    )
    operands = [weight, _activations(match, kernels, target, is_padded=match.has_padding)]
    if epilogue is not None:
        operands += epilogue.operands(tiles.count * tiles.nr)
    type_ = tensor_type(kernel.result_shape, mlir_type(F32))
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], 0)
    return value


def _call_depthwise(
    match: FloatConvMatch,
    kernels: KernelTable,
    target: InstructionSet,
    epilogue: FusedEpilogue | None,
) -> Value:
    """Emit the call of the kernel of depthwise convolutions."""
    n, images = match.weight_shape[0], match.activation_shape[0]
    vertical, horizontal = match.axes()
    channel_padding = max(0, target.lanes - n)
    is_padded = bool(vertical.dilation > 1 and (vertical.pad_low or vertical.pad_high))
    activations = _activations(match, kernels, target, is_padded=is_padded)
    if is_padded:
        vertical, horizontal = (
            replace(axis, size=axis.pad_low + axis.size + axis.pad_high, pad_low=0, pad_high=0)
            for axis in (vertical, horizontal)
        )
    pixels, channels = images * vertical.size * horizontal.size, n + channel_padding
    group_channels = match.weight_shape[-1]
    activations = emit_stablehlo.reshape(activations, [pixels, match.groups * group_channels])
    if n > match.groups * group_channels:  # several output channels read one input channel
        repeated: ArrayLike = np.repeat(traced(activations), n // match.groups, axis=1)
        activations = repeated.value
    if channel_padding:
        activations = emit_stablehlo.pad(activations, [0, 0], [0, channel_padding])
    kernel = F32Depthwise(
        images, vertical, horizontal, channels, target, 1, 1, epilogue, group_channels
    )
    rows, workgroups = images * vertical.outputs, workgroups_per_tile(kernel.equivalent_macs)
    row_blocks = min(rows, -(-workgroups // kernel.vectors))
    workgroups = min(workgroups, row_blocks * kernel.vectors)
    kernel = replace(kernel, row_blocks=row_blocks, workgroups=workgroups)

    def packed() -> Array:
        elements = constant_elements(match.weight, kernels.module_globals)
        assert elements is not None  # `FloatConvMatch.of`
        taps = convert(elements.transpose(match.weight_axes), F32).reshape((n, -1)).transpose()
        return np.pad(taps, [(0, 0), (0, channel_padding)])

    key = match.weight_axes, channel_padding, "depthwise"
    weight = kernels.prepacked([match.weight], "f32", key, packed, F32)
    operands = [weight, activations]
    if epilogue is not None:
        operands += epilogue.operands(channels)
    shape = [rows, horizontal.outputs, channels]
    type_ = tensor_type(shape, mlir_type(F32))
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], 0)
    if channel_padding:
        value = emit_stablehlo.slice_(value, [0, 0, 0], [*shape[:2], n], [1, 1, 1])
    return value


def _packed(match: FloatConvMatch, module_globals: ModuleGlobals, tiles: Tiles) -> AnyArray:
    """Return the weight as ``(batches * tiles) x K x NR``, with zeros for columns after N."""
    *batch, columns = match.weight_axes[: match.batch_rank + 1]
    k_by_n = [*batch, *match.weight_axes[match.batch_rank + 1 :], columns]
    weight = convert(array_of(match.weight, module_globals), F32).transpose(k_by_n)
    weight = weight.reshape((match.batches, tiles.k, tiles.n))
    padding = tiles.count * tiles.nr - tiles.n
    if padding:
        weight = np.pad(weight, [(0, 0), (0, 0), (0, padding)])
    by_tile = weight.reshape((match.batches, tiles.k, tiles.count, tiles.nr))
    packed = by_tile.transpose((0, 2, 1, 3))
    return packed.reshape((match.batches * tiles.count, tiles.k, tiles.nr))


def _activations(
    match: FloatConvMatch, kernels: KernelTable, target: InstructionSet, *, is_padded: bool
) -> Value:
    """Return the flattened activations in f32, in the order ``N, spatial..., C``.

    They have their padding if `is_padded`.
    """
    images, *_, channels = match.activation_shape
    nhwc = emit_stablehlo.transpose(
        emit_stablehlo.convert(match.activations, mlir_type(F32)), match.activation_axes
    )
    flat = emit_stablehlo.reshape(nhwc, [math.prod(nhwc.type.shape)])
    if not is_padded:
        return flat
    copy = PadCopyKernel(
        images, *match.axes(), channels, 0, match.padding_value, target, False, 1, element=F32
    )
    size = math.prod(copy.padded_shape)
    workgroups = max(1, min(MAX_WORKGROUPS, size // _ELEMENTS_PER_COPY_WORKGROUP))
    copy = replace(copy, workgroups=workgroups)
    result = tensor_type([size], mlir_type(F32))
    [value] = kernels.call(copy.key, copy.kernel(), [flat], [result], 0)
    return value
