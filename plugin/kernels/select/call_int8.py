"""Calls of the kernels of int8 contractions: vector GEMM, AMX GEMM, and depthwise convolution.

Each call plans the kernel (NR, workgroups, in-kernel padding), prepacks the weight and the initial
accumulators, and brings the activations into the kernel's order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.quant import SCASTS
from ...emit import ArrayLike, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import is_invariant
from ...emit.kernel import MAX_WORKGROUPS, KernelTable, workgroups_per_tile
from ...emit.operation import mlir_type, tensor_type
from ...emit.trace import traced
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray, Array
from ..cpu.amx_gemm import AmxGemm
from ..cpu.depthwise_conv import DepthwiseConv
from ..cpu.int8_conv import Int8Conv
from ..cpu.pad_copy import PadCopyKernel
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.int8_weight import SkippedTaps, bias_key, initial_accumulators, sums_with_bias
from ..pack.k_runs import KRuns
from ..pack.packed_weight import Tiles
from .addends import Addends
from .match_failure import MatchFailure
from .match_int8 import Int8Match

_MACS_PER_AMX_WORKGROUP_START = 1 << 19
"""The start and the last epilogue of an AMX workgroup take as long as this many MACs."""
_AMX_EPILOGUE_MACS = 1 << 8
"""The epilogue of an accumulator takes AMX kernels as long as this number of MACs."""
_MAX_CACHED_WEIGHT_BYTES = 1 << 18
"""A weight of this size stays in the cache."""
_MACS_PER_PADDED_BYTE = 4
"""Writing a byte of padded activations takes as long as this number of MACs."""
_MAX_TILES_WITH_PAD_COPY = 2
"""Workgroups of each tile copy the image rows that they read; more tiles copy them too often."""
_BYTES_PER_COPY_WORKGROUP = 1 << 15
"""A workgroup copies at least this many activations; fewer activations are a small copy."""
_MAX_CONVERSIONS = 8
"""Times that a kernel converts each activation at most, if multiplicands are wider than bytes.

With AVX2, a 1x1 convolution of 28x28x128 to 128 channels (eight tiles) takes 0.217 ms with
conversion in the kernel and 0.210 with a converted copy, with two threads 0.110 and 0.123; of
14x14x256 (sixteen tiles) 0.206 and 0.196, with two threads 0.105 and 0.110. (Code for Haswell on
Emerald Rapids. A copy of few activations is part of the same dispatch.)
"""
_MOVEMENTS = ("stablehlo.concatenate", "stablehlo.reshape", "stablehlo.slice")
"""Operations that copy or view the result of a kernel."""


def call_int8(
    match: Int8Match,
    kernels: KernelTable,
    result: ir.Type,
    target: InstructionSet,
    epilogue: FusedEpilogue | None,
    addends: Addends | None = None,
) -> Value | MatchFailure:
    """Emit the call of a kernel, and return its result."""
    call = _Int8Call(match, kernels, target, epilogue, addends)
    if match.is_depthwise:
        value = call.depthwise()
    else:
        value = call.amx() if match.uses_amx(target) else call.dense()
    if isinstance(value, MatchFailure):
        return value
    shape = [int(result.shape[axis]) for axis in np.argsort(match.result_axes)]
    return emit_stablehlo.transpose(emit_stablehlo.reshape(value, shape), match.result_axes)


@dataclass(frozen=True)
class _Int8Call:
    match: Int8Match
    kernels: KernelTable
    target: InstructionSet
    epilogue: FusedEpilogue | None
    addends: Addends | None

    @property
    def bias(self) -> Array | None:
        """Numbers that the epilogue adds to initial accumulators."""
        return self.epilogue.initial_accumulators if self.epilogue else None

    def dense(self) -> Value:
        """Call the vector kernel of an implicit GEMM."""
        match, kernels, target = self.match, self.kernels, self.target
        n, channels = match.weight_shape[0], match.activation_shape[-1]
        geometry, channel_padding = match.geometry(), -channels % target.k_pack
        vectors, channel_slices = match.vectors_and_channel_slices(self.target)
        k = geometry.tap_count * (channels + channel_padding) // channel_slices
        tiles = Tiles(8, target.k_pack, n, k, target.lanes, vectors, target.k_pack)
        m, batches = geometry.output_pixels, match.batches
        kernel = Int8Conv(
            tiles,
            self.target,
            geometry,
            channels + channel_padding,
            min(m // batches, workgroups_per_tile(m * k * n, batches * tiles.count)),
            self.epilogue,
            channel_slices=channel_slices,
            batches=batches,
            converts_activations=self._converts_in_kernel(tiles.count, channel_padding),
        )
        if not kernel.can_convert_activations:
            kernel = replace(kernel, converts_activations=False)
        if geometry.output_rows > 1 and self._needs_copy(channel_padding):
            kernel = self._with_fused_padding(kernel, channel_padding)
        vertical, _ = match.axes()
        skipped = None
        if is_invariant(match.weight, kernels.module_globals) and kernel.can_skip_padding(vertical):
            kernel = replace(kernel, skipped_padding=vertical)
            skipped = SkippedTaps(vertical, kernel.skipped_taps, match.padding_value)
        weight = match.packed_source()
        all_tiles = tiles
        if match.batch_rank:
            all_tiles = replace(tiles, n=batches * tiles.count * tiles.nr)
            matrix = weight.matrices(kernels.module_globals, tiles, channel_padding)
        else:
            matrix = weight.matrix(kernels.module_globals, channel_padding, channel_slices)

        def pack() -> AnyArray:
            return all_tiles.pack(matrix)

        skipped_key = [] if skipped is None else [skipped.axis, skipped.padding]
        initial_key = (
            *(tiles, channel_padding, target.sign_offset),
            *(*skipped_key, *bias_key(self.bias)),
        )
        bias: AnyArray | None = self.bias
        rows = None
        if self.addends is not None:
            rows, columns = self.addends.rows(), self.addends.columns()
            kernel = replace(kernel, has_row_addends=rows is not None)
            if columns is not None:
                bias = _padded_columns(columns, tiles, batches)
        operands = [
            weight.prepacked(kernels, (tiles, channel_padding), pack, I8),
            weight.prepacked(
                kernels,
                initial_key,
                lambda: initial_accumulators(matrix, all_tiles, target, bias, skipped),
                I32,
            ),
            self._flat(self.match.activations)
            if kernel.converts_activations or kernel.pad_copy is not None
            else self._copied_activations(channel_padding, is_converted=True),
            *([] if rows is None else [emit_stablehlo.reshape(rows, [m])]),
        ]
        return self._call(kernel, operands)

    def amx(self) -> Value:
        """Call the AMX kernel of an implicit GEMM."""
        match, target, geometry = self.match, self.target, self.match.geometry()
        n, channels = match.weight_shape[0], match.activation_shape[-1]
        channel_padding = -channels % 4 if KRuns(geometry, channels).length % 4 else 0
        runs = KRuns(geometry, channels + channel_padding)
        vectors = target.vectors_per_tile(n, target.max_vectors_blockwise)
        tiles = Tiles(8, 4, n, runs.padded_k, target.lanes, vectors)
        macs = geometry.output_pixels * n * (runs.padded_k + _AMX_EPILOGUE_MACS)
        workgroups = workgroups_per_tile(macs, start_macs=_MACS_PER_AMX_WORKGROUP_START)
        kernel = AmxGemm(
            tiles,
            self.target,
            geometry,
            channels + channel_padding,
            workgroups,
            self.epilogue,
        )
        weight, module_globals = match.packed_source(), self.kernels.module_globals
        packed = weight.prepacked(
            self.kernels,
            (tiles, runs, channel_padding),
            lambda: tiles.pack(runs.pack(weight.matrix(module_globals, channel_padding))),
            I8,
        )
        # Each tile of the weight is read once for each block of output rows.
        is_cached = runs.padded_k * n <= _MAX_CACHED_WEIGHT_BYTES
        if is_cached and geometry.output_rows > 1 and self._needs_copy(channel_padding):
            fused = replace(kernel, pad_copy=self._pad_copy(channel_padding, is_converted=False))
            kernel = fused if fused.fits_scratch else kernel
        if kernel.pad_copy is None:
            activations = self._copied_activations(channel_padding, is_converted=False)
        else:
            activations = self._flat(self.match.activations)
        return self._call(kernel, [packed, activations])

    def depthwise(self) -> Value | MatchFailure:
        """Call the kernel of a depthwise convolution."""
        match, kernels, target = self.match, self.kernels, self.target
        vertical, horizontal = match.axes()
        n, images = match.weight_shape[0], match.activation_shape[0]
        channel_padding = max(0, target.lanes - n)
        kernel = DepthwiseConv(
            *(images, vertical, horizontal, n + channel_padding),
            *(match.padding_value, self.target, 1),
        )
        workgroups = workgroups_per_tile(kernel.equivalent_macs, halo_macs=kernel.halo_macs)
        kernel = replace(kernel, workgroups=workgroups)
        if not kernel.fits_scratch:
            return MatchFailure("its image rows do not fit scratch memory")
        kernel = replace(kernel, epilogue=self.epilogue)
        weight = match.packed_source()
        taps = weight.depthwise(
            kernels.module_globals, (vertical.taps, horizontal.taps), channel_padding
        )
        weight_sums = convert(taps, I32).sum((0, 1), dtype=np.int32)
        activations = emit_stablehlo.transpose(match.activations, match.activation_axes)
        rank, multiplier = len(match.activation_axes), n // match.groups
        if multiplier > 1:
            repeated: ArrayLike = np.repeat(traced(activations), multiplier, axis=rank - 1)
            activations = repeated.value
        if channel_padding:
            high = [0] * (rank - 1) + [channel_padding]
            activations = emit_stablehlo.pad(activations, [0] * rank, high)
        pixels = images * vertical.size * horizontal.size
        operands = [
            weight.prepacked(
                kernels,
                (kernel.tap_packs, channel_padding),
                lambda: kernel.tap_packs.pack(taps),
                I8,
            ),
            weight.prepacked(
                kernels,
                (kernel.tap_packs, channel_padding, target.sign_offset, *bias_key(self.bias)),
                lambda: sums_with_bias(weight_sums, target, self.bias),
                I32,
            ),
            emit_stablehlo.reshape(activations, [pixels, kernel.channels]),
            *(self.epilogue.operands(kernel.channels) if self.epilogue else ()),
        ]
        shape = [images * vertical.outputs, horizontal.outputs, kernel.channels]
        result = tensor_type(shape, mlir_type(self.epilogue.element if self.epilogue else I32))
        [value] = kernels.call(kernel, kernel.kernel(), operands, [result], 0)
        if channel_padding:
            value = emit_stablehlo.slice_(value, [0, 0, 0], [*shape[:2], n], [1, 1, 1])
        return value

    def _call(self, kernel: Int8Conv | AmxGemm, operands: list[Value]) -> Value:
        if self.epilogue:
            operands += self.epilogue.operands(kernel.tiles.count * kernel.tiles.nr)
        element = self.epilogue.element if self.epilogue else I32
        result = tensor_type(kernel.result_shape, mlir_type(element))
        [value] = self.kernels.call(kernel, kernel.kernel(), operands, [result], 0)
        return value

    # -- activations -------------------------------------------------------------------------------

    def _with_fused_padding(self, kernel: Int8Conv, channel_padding: int) -> Int8Conv:
        """Let the kernel pad the image rows that it reads, if that takes less time than a copy."""
        pad_copy = self._pad_copy(channel_padding, is_converted=True)
        geometry, vertical = kernel.geometry, pad_copy.vertical
        _, _, pixels, channels = pad_copy.padded_shape
        macs = geometry.output_pixels * kernel.tiles.k
        halo_rows = max(0, vertical.receptive_field - vertical.stride)
        halo_macs = halo_rows * pixels * channels * _MACS_PER_PADDED_BYTE
        workgroups = workgroups_per_tile(macs * kernel.tiles.n, kernel.tiles.count, halo_macs)
        fused = replace(kernel, pad_copy=pad_copy, workgroups=workgroups)
        is_copied_often = kernel.tiles.count > _MAX_TILES_WITH_PAD_COPY
        if channel_padding or is_copied_often or not fused.fits_scratch:
            return kernel
        blocks = geometry.images * geometry.output_rows // fused.rows_per_block
        return replace(fused, workgroups=blocks) if blocks < 2 * workgroups else fused

    def _converts_in_kernel(self, tiles: int, channel_padding: int) -> bool:
        """True if the kernel converts activations to multiplicands, as it reads each few times.

        If multiplicands are bytes, the kernel that computes the activations may write them instead.
        """
        geometry, is_bytes = self.match.geometry(), self.target.multiplicand_type == I8
        size = math.prod(self.match.activations.type.shape)
        reads = geometry.output_pixels * geometry.tap_count * tiles
        limit = 1 if is_bytes or size <= _BYTES_PER_COPY_WORKGROUP else _MAX_CONVERSIONS
        return (
            reads <= geometry.input_pixels * limit
            and not self._needs_copy(channel_padding)
            and not (is_bytes and _has_one_use(self.match.activations))
        )

    def _copied_activations(self, channel_padding: int, *, is_converted: bool) -> Value:
        """Return the flattened activations with their padding, and with further channels.

        With `is_converted` they are multiplicands. If multiplicands are bytes, the kernel that
        computes the activations, if they have no other use, may write multiplicands. Else a small
        copy becomes part of the same dispatch. A conversion by IREE takes as long as the MACs of 30
        output channels where AVX2 has no masked loads of bytes and the number of activations is no
        multiple of 4096: 0.07 ms for 28x28x128.
        """
        activations, needs_copy = self.match.activations, self._needs_copy(channel_padding)
        element, size = self.target.multiplicand_type, math.prod(activations.type.shape)
        if is_converted:
            is_small = size <= _BYTES_PER_COPY_WORKGROUP
            is_shared = not _has_one_use(activations)
            needs_copy |= element.bits > I8.bits or (is_small and is_shared)
        if is_converted and not needs_copy:
            activations = self.target.multiplicands(tensor(activations)).value
        activations = self._flat(activations)
        if not needs_copy:
            return activations
        kernel = self._pad_copy(channel_padding, is_converted=is_converted)
        size = math.prod(kernel.padded_shape)
        workgroups = max(1, min(MAX_WORKGROUPS, size // _BYTES_PER_COPY_WORKGROUP))
        kernel = replace(kernel, workgroups=workgroups)
        result = tensor_type([size], mlir_type(element if is_converted else I8))
        [value] = self.kernels.call(kernel.key, kernel.kernel(), [activations], [result], 0)
        return value

    def _needs_copy(self, channel_padding: int) -> bool:
        """True if activations need padding or further channels."""
        return bool(channel_padding) or self.match.has_padding

    def _flat(self, activations: Value) -> Value:
        """Flatten activations in the order ``N, spatial..., C``."""
        nhwc = emit_stablehlo.transpose(activations, self.match.activation_axes)
        return emit_stablehlo.reshape(nhwc, [math.prod(nhwc.type.shape)])

    def _pad_copy(self, channel_padding: int, *, is_converted: bool) -> PadCopyKernel:
        images, *_, channels = self.match.activation_shape
        return PadCopyKernel(
            *(images, *self.match.axes(), channels, channel_padding),
            *(self.match.padding_value, self.target, is_converted, 1),
        )


def _padded_columns(columns: Value, tiles: Tiles, batches: int) -> AnyArray:
    """Return the numbers of the columns of each product, with zeros up to whole tiles."""
    numbers: AnyArray = traced(columns).reshape((batches, tiles.n))
    if batches > 1:
        numbers = np.pad(numbers, [(0, 0), (0, tiles.count * tiles.nr - tiles.n)])
    return numbers.reshape((-1,))


def _has_one_use(value: Value) -> bool:
    """True if a computed value has one reader, whose operand the producing kernel may write."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name in _MOVEMENTS:
        return False
    if value.owner.operation.name in SCASTS:
        return _has_one_use(value.owner.operation.operands[0])
    return len(list(value.uses)) == 1
