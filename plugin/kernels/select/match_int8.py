"""Contractions of 8-bit integers, of matrices and of windows, as calls of a kernel."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.windows import window_padding, window_steps
from ...emit import ArrayLike, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import mlir_type, tensor_type
from ...emit.trace import traced
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray, Array, ElementType
from ...numerics.requantization import Requantization
from ..constant_values import constant_elements, is_invariant
from ..conv_geometry import ConvAxis, ConvGeometry
from ..cpu.amx_gemm import AmxGemm
from ..cpu.depthwise_conv import DepthwiseConv
from ..cpu.int8_conv import Int8Conv
from ..cpu.pad_copy import PadCopyKernel
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..isa.base import InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..kernel_table import KernelTable
from ..pack.k_runs import KRuns
from ..pack.packed_weight import Tiles
from ..workgroups import MAX_LARGE_WORKGROUPS, workgroups_per_tile
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure
from .operands import LEAST_PRODUCTS, array_of, has_elements, laid_out, matrix_axes

__all__ = ["IntegerContraction"]

_MOST_GROUPS = 8
"""Of channels, that are computed as one with zeros."""
_LANES, _TAPS = 16, 4
"""Columns of a vector, and integers of a lane, at most."""
_FASTER_TILES = 8
"""How much faster tiles are than vectors: both take as long for eight groups of 16 channels."""
_LEAST_BESIDE_OTHERS = 1 << 8
"""Of integers, where a contraction may be done in the call of another."""
_ENOUGH_ROWS = 16
"""From which on it pays to lay out a weight at every call."""
_PRODUCTS_WITH_TILES, _PRODUCTS_OF_A_SUM = 1 << 24, 1 << 8
"""Of a workgroup with tiles, and how many take as long as it takes to finish a sum."""
_SMALL_WEIGHT = 1 << 18
"""Bytes of one that stays in the cache."""
_COST_OF_A_POSITION = 4
"""Products, of which so many take as long as to write a byte of what is around pictures."""
_MOST_WRITTEN_AGAIN = 2
"""Tiles of the weight for each of which lines are written with what is around them."""
_BYTES_OF_A_WORKGROUP = 1 << 15
_MOST_WIDENED = 8
"""Times that a kernel widens activations at most, where factors are no bytes.

With AVX2 a 1x1 convolution of 28x28x128 with as many columns, which are eight tiles, takes 0.217 ms
so and 0.210 if they are widened before, by one thread, and 0.110 and 0.123 by two; of 14x14x256,
sixteen tiles, 0.206 and 0.196, and 0.105 and 0.110 (code for Haswell on Emerald Rapids). A copy of
few activations is part of the same dispatch.
"""
_LEAST_WINDOWS = 8
"""From which on tiles are faster than vectors."""


@dataclass(frozen=True)
class IntegerContraction:
    """A product of matrices or a convolution of i8, summed in i32.

    Attributes:
        activations, weight: i8.
        of_activations, of_weight: the order of axes that makes them
            ``images x spatial... x channels`` and ``columns x spatial... x channels``.
        padding: before and after each spatial axis of the activations.
        strides, dilations: along these.
        groups: of channels; each has columns of its own, and the weight has the channels of one.
        of_result: the order of axes that makes the result of ``images x spatial... x columns``.
        outside: what the padding has.
        summands: how many integers of 8 bits one of the weight is the sum of, 1 or 2.

    Of matrices, rows are images, and there are no spatial axes.
    """

    activations: Value
    weight: Value
    of_activations: list[int]
    of_weight: list[int]
    padding: list[tuple[int, int]]
    strides: list[int]
    dilations: list[int]
    of_result: list[int]
    groups: int = 1
    outside: int = 0
    summands: int = 1

    @classmethod
    def of(cls, op: Operation, *, is_alone: bool = True) -> IntegerContraction | MatchFailure:
        """Read a ``stablehlo.dot_general`` or ``stablehlo.convolution``.

        Args:
            op: the operation.
            is_alone: no kernel computes another of the program.
        """
        if "convolution" in op.name and has_elements(op, "i16", "i16", "i32"):
            return cls._of_two_summands(op, is_alone=is_alone)
        if not has_elements(op, "i8", "i8", "i32"):
            return NOT_INT8
        found = cls.of_shape(op, is_alone=is_alone)
        if isinstance(found, MatchFailure):
            return found
        rows = math.prod(op.results[0].type.shape) // found._shape(1)[0]
        if not is_invariant(found.weight) and rows < _ENOUGH_ROWS and not found.is_depthwise:
            return MatchFailure("its weight is not known, and it has few rows")
        return found._with_its_pad()

    @classmethod
    def _of_two_summands(
        cls, op: Operation, *, is_alone: bool
    ) -> IntegerContraction | MatchFailure:
        """Read a convolution of widened i8 with a known weight, the sum of two of i8."""
        found = cls.of_shape(op, is_alone=is_alone)
        if isinstance(found, MatchFailure):
            return found
        found, weight = found._with_its_pad(), constant_elements(found.weight)
        if weight is None or weight.min(initial=0) < -256 or weight.max(initial=0) > 254:
            return MatchFailure("its weight is not known to be a sum of two of i8")
        owner = found.activations.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.convert":
            return MatchFailure("its activations have 16 bits")
        [narrow] = owner.operation.operands
        if str(narrow.type.element_type) != "i8" or not -128 <= found.outside <= 127:
            return MatchFailure("its activations have 16 bits")
        if found.is_depthwise:
            return MatchFailure("it is depthwise, with a weight that is no i8")
        return replace(found, activations=narrow, summands=2)

    @classmethod
    def of_shape(cls, op: Operation, *, is_alone: bool = True) -> IntegerContraction | MatchFailure:
        """Read a contraction whose operands may become i8; otherwise as `of`."""
        types = [value.type for value in (*op.operands, *op.results)]
        if not all(
            isinstance(each, ir.RankedTensorType) and each.has_static_shape for each in types
        ):
            return MatchFailure("it has a dynamic shape")
        found = cls._of_windows(op) if "convolution" in op.name else cls._of_dot(op)
        if isinstance(found, MatchFailure):
            return found
        products = math.prod(types[2].shape) * math.prod(found._shape(1)[1:])
        least = LEAST_PRODUCTS if is_alone else _LEAST_BESIDE_OTHERS
        return found if products >= least else IS_SMALL

    @classmethod
    def _of_dot(cls, op: Operation) -> IntegerContraction | MatchFailure:
        axes = matrix_axes(op)
        if isinstance(axes, MatchFailure):
            return axes
        return cls(op.operands[0], op.operands[1], *axes, [], [], [], [0, 1])

    @classmethod
    def _of_windows(cls, op: Operation) -> IntegerContraction | MatchFailure:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        spatial = list(numbers.input_spatial_dimensions)
        count = len(spatial)
        groups, of_batch = (
            int(op.attributes[f"{kind}_group_count"].value) for kind in ("feature", "batch")
        )
        channels = int(op.operands[0].type.shape[numbers.input_feature_dimension])
        if of_batch != 1:
            return MatchFailure("it has groups of images")
        columns = int(op.operands[1].type.shape[numbers.kernel_output_feature_dimension])
        is_simple = groups in (1, channels) or groups <= _MOST_GROUPS
        if not is_simple and not _has_slices(channels // groups, columns // groups, columns):
            return MatchFailure("it has many groups, which do not fill vectors")
        if window_steps(op, "lhs_dilation", count) != [1] * count:
            return MatchFailure("it dilates its left operand")
        if "window_reversal" in op.attributes and "true" in str(op.attributes["window_reversal"]):
            return MatchFailure("it reverses its window")
        if count not in (1, 2):
            return MatchFailure(f"it has {count} spatial axes")
        padding = [(int(low), int(high)) for low, high in window_padding(op, count)]
        if any(low < 0 or high < 0 for low, high in padding):
            return MatchFailure("its padding is negative")
        made = [numbers.output_batch_dimension, *numbers.output_spatial_dimensions]
        made.append(numbers.output_feature_dimension)
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
            window_steps(op, "window_strides", count),
            window_steps(op, "rhs_dilation", count),
            [made.index(axis) for axis in range(len(made))],
            groups,
        )

    def _with_its_pad(self) -> IntegerContraction:
        """The same of the operand of a ``stablehlo.pad`` of activations along spatial axes."""
        owner = self.activations.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.pad":
            return self
        pad = owner.operation
        outside = constant_elements(pad.operands[1])
        low, high, between = (
            np.array(pad.attributes[name])[self.of_activations]
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        is_elsewhere = low[0] or low[-1] or high[0] or high[-1]
        if outside is None or (low < 0).any() or (high < 0).any() or between.any() or is_elsewhere:
            return self
        if np.any(self.padding) and outside.item() != self.outside:
            return self
        added = zip(self.padding, low[1:-1], high[1:-1], strict=True)
        padding = [(int(n + before), int(m + after)) for (n, m), before, after in added]
        return replace(
            self, activations=pad.operands[0], padding=padding, outside=int(outside.item())
        )

    def _shape(self, side: int) -> list[int]:
        """The extents of the activations (0) or of the weight (1), in order, without padding."""
        value, order = ((self.activations, self.of_activations), (self.weight, self.of_weight))[
            side
        ]
        return [int(value.type.shape[axis]) for axis in order]

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is a group."""
        return 1 < self.groups == self._shape(0)[-1]

    def has_tiles(self, instructions: str) -> bool:
        """True if it is computed with AMX's tiles."""
        if not INSTRUCTION_SETS[instructions].has_amx_tiles or self.is_depthwise:
            return False
        windows = self._windows()
        every = windows.output_pixels
        # With tiles all channels are read for each column.
        return every >= _LEAST_WINDOWS and self._slices(instructions)[1] <= _FASTER_TILES

    def _slices(self, instructions: str) -> tuple[int, int]:
        """The vectors of columns of a tile, and how many slices of the channels there are."""
        target, columns = INSTRUCTION_SETS[instructions], self._shape(1)[0]
        parts = target.vectors_per_tile(columns, target.max_vectors_int8)
        of_group, channels = columns // self.groups, self._shape(1)[-1]
        if self.groups == 1 or not _has_slices(channels, of_group, columns):
            return parts, 1
        parts = min(parts, max(1, of_group // target.lanes))
        while of_group % (target.lanes * parts) and parts > 1:
            parts -= 1
        return parts, min(self.groups, columns // (target.lanes * parts))

    def fused_epilogue(
        self, result: Value, how: Requantization, instructions: str, *, integer_only: bool
    ) -> FusedEpilogue | None:
        """What follows the contraction, as far as its kernel computes it.

        Args:
            result: of the contraction.
            how: sums are requantized.
            instructions: a name in `INSTRUCTION_SETS`.
            integer_only: no floats are computed with.
        """
        axis = self.of_result.index(len(self.of_result) - 1)
        is_begun = constant_elements(self.weight) is not None and not self.has_tiles(instructions)
        match = EpilogueMatch.of(
            result,
            axis,
            how,
            integer_only=integer_only,
            accumulator_bounds=self._greatest_sums,
            folds_bias=is_begun,
        )
        if match is None:
            return None
        # A kernel of channels, or of tiles, writes one vector as another.
        is_of_parts = not self.is_depthwise and not self.has_tiles(instructions)
        return FusedEpilogue.of(
            match, instructions, self._slices(instructions)[0] if is_of_parts else 1
        )

    def _greatest_sums(self) -> Array:
        """The greatest magnitude of the sums of each column."""
        columns, *others = self._shape(1)
        weight = constant_elements(self.weight)
        if weight is None:
            return np.full(columns, math.prod(others) << 14, np.int64)
        in_order = weight.transpose(self.of_weight).reshape((columns, -1))
        sums: Array = np.abs(in_order, dtype=np.int32).sum(1, dtype=np.int64)
        return sums << 7

    def emit(
        self,
        kernels: KernelTable,
        result: ir.Type,
        instructions: str,
        epilogue: FusedEpilogue | None,
    ) -> Value | MatchFailure:
        """Write the call, and return its result.

        Args:
            kernels: the kernels of the module.
            result: the type of the sums.
            instructions: a name in `INSTRUCTION_SETS`.
            epilogue: what is done with the sums.
        """
        made = (
            self._depthwise(kernels, instructions, epilogue)
            if self.is_depthwise
            else self._dense(kernels, instructions, epilogue)
        )
        if isinstance(made, MatchFailure):
            return made
        shape = [int(result.shape[axis]) for axis in np.argsort(self.of_result)]
        made = emit_stablehlo.reshape(made, shape)
        return emit_stablehlo.transpose(made, self.of_result)

    def _dense(
        self, kernels: KernelTable, instructions: str, epilogue: FusedEpilogue | None
    ) -> Value:
        if self.has_tiles(instructions):
            return self._with_tiles(kernels, instructions, epilogue)
        target = INSTRUCTION_SETS[instructions]
        columns, channels = self._shape(1)[0], self._shape(0)[-1]
        windows, missing = self._windows(), -channels % target.k_pack
        parts, slices = self._slices(instructions)
        depth = windows.tap_count * (channels + missing) // slices
        tiles = Tiles(8, target.k_pack, columns, depth, target.lanes, parts, target.k_pack)
        share = self._shares(windows, depth * columns, tiles.count)
        product = Int8Conv(
            tiles,
            instructions,
            windows,
            channels + missing,
            share,
            epilogue,
            slices=slices,
            converts_activations=self._is_widened_inside(windows, target, tiles.count, missing),
        )
        if not product.can_convert_activations:
            product = replace(product, converts_activations=False)
        if windows.output_rows > 1 and self._is_copied(missing):
            product = self._with_pad_copy(product, instructions, missing)
        lines, _ = self._axes()
        if is_invariant(self.weight) and product.can_skip_padding(lines):
            product = replace(product, skipped_padding=lines)
        rows = self._columns(missing, slices)
        operands = [
            self._laid_out(kernels, (tiles, missing), lambda: tiles.pack(rows), I8),
            self._laid_out(
                kernels,
                (
                    tiles,
                    missing,
                    target.sign_offset,
                    *self._left_out(product),
                    *_begin_of(epilogue),
                ),
                lambda: self._begins(rows, product),
                I32,
            ),
            self._in_order(self.activations)
            if product.converts_activations or product.pad_copy is not None
            else self._activations(kernels, instructions, missing, is_widened=True),
            *(epilogue.operands(tiles.count * tiles.nr) if epilogue else ()),
        ]
        return self._call(kernels, product, operands)

    def _with_pad_copy(self, product: Int8Conv, instructions: str, missing: int) -> Int8Conv:
        """The same with what is around pictures written in the kernel, if that takes less."""
        pad_copy, windows = self._pad_copy(instructions, missing, is_widened=True), product.geometry
        lines, (_, _, positions, channels) = pad_copy.vertical, pad_copy.padded_shape
        products = windows.output_pixels * product.tiles.k
        again = (
            max(0, lines.receptive_field - lines.stride)
            * positions
            * channels
            * _COST_OF_A_POSITION
        )
        share = workgroups_per_tile(products * product.tiles.n, product.tiles.count, again)
        inside = replace(product, pad_copy=pad_copy, workgroups=share)
        if missing or product.tiles.count > _MOST_WRITTEN_AGAIN or not inside.fits_scratch:
            return product
        blocks = windows.images * windows.output_rows // inside.rows_per_block
        return replace(inside, workgroups=blocks) if blocks < 2 * share else inside

    def _left_out(self, product: Int8Conv) -> list[object]:
        """What says of `_begins` what is left out; nothing where that is nothing."""
        return [] if product.skipped_padding is None else [product.skipped_padding, self.outside]

    def _begins(self, rows: AnyArray, product: Int8Conv) -> AnyArray:
        """What the sums of a product begin with, in rows of the columns of a tile.

        Where lines of taps are left out, that is what they would add, too.

        Args:
            rows: the weight, ``columns x depth``.
            product: the kernel.
        """
        tiles, target, integers = product.tiles, product.target, convert(rows, I32)
        first = self._first(integers.sum(1, dtype=np.int32), product.instructions, product.epilogue)
        missing = tiles.count * tiles.nr - tiles.n
        if product.skipped_padding is not None:
            taps = product.skipped_padding.taps
            of_lines = integers.reshape((1, tiles.n, taps, -1)).sum(3, dtype=np.int32)
            tap = np.arange(taps)
            is_left_out = np.array([(tap < n) | (tap >= taps - m) for n, m in product.skipped_taps])
            factors = is_left_out[:, None].astype(np.int32) * (self.outside + target.sign_offset)
            first = first + (of_lines * factors).sum(2, dtype=np.int32)
        first = first.reshape((len(product.skipped_taps), tiles.n))
        if missing:
            first = np.pad(first, [(0, 0), (0, missing)])
        return first.reshape((-1, tiles.nr))

    @staticmethod
    def _first(sums: AnyArray, instructions: str, epilogue: FusedEpilogue | None) -> AnyArray:
        """What the sums of columns begin with, of the sums of the weight."""
        first = sums * np.int32(-INSTRUCTION_SETS[instructions].sign_offset)
        begin = () if epilogue is None else epilogue.initial_accumulators
        if not np.any(begin):
            return first
        return first + np.pad(begin, [(0, sums.shape[0] - len(begin))])

    def _is_widened_inside(
        self, windows: ConvGeometry, target: InstructionSet, tiles: int, missing: int
    ) -> bool:
        """True if the kernel reads each activation so few times that it makes the factors itself.

        Nothing else is to write them: what makes the activations may, if factors are bytes.
        """
        every = windows.output_pixels * windows.tap_count
        is_of_bytes, size = target.multiplicand_type == I8, math.prod(self.activations.type.shape)
        most = 1 if is_of_bytes or size <= _BYTES_OF_A_WORKGROUP else _MOST_WIDENED
        return (
            every * tiles <= windows.input_pixels * most
            and not self._is_copied(missing)
            and not (is_of_bytes and _is_made_for_one(self.activations))
        )

    def _with_tiles(
        self, kernels: KernelTable, instructions: str, epilogue: FusedEpilogue | None
    ) -> Value:
        target = INSTRUCTION_SETS[instructions]
        columns, channels = self._shape(1)[0], self._shape(0)[-1]
        windows = self._windows()
        missing = -channels % 4 if KRuns(windows, channels).length % 4 else 0
        runs = KRuns(windows, channels + missing)
        parts = target.vectors_per_tile(columns, target.max_vectors_blockwise)
        tiles = Tiles(8, 4, columns, runs.depth, target.lanes, parts)
        every = windows.output_pixels
        products = every * columns * (runs.depth + _PRODUCTS_OF_A_SUM)
        share = max(1, min(MAX_LARGE_WORKGROUPS, products // _PRODUCTS_WITH_TILES))
        product = AmxGemm(tiles, instructions, windows, channels + missing, share, epilogue)
        weight = self._laid_out(
            kernels,
            (tiles, runs, missing),
            lambda: tiles.pack(runs.pack(self._columns(missing))),
            I8,
        )
        # Each tile of the weight is read with each block of lines.
        if (
            runs.depth * columns <= _SMALL_WEIGHT
            and windows.output_rows > 1
            and self._is_copied(missing)
        ):
            pad_copy = self._pad_copy(instructions, missing, is_widened=False)
            inside = replace(product, pad_copy=pad_copy)
            product = inside if inside.fits_scratch else product
        if product.pad_copy is None:
            given = self._activations(kernels, instructions, missing, is_widened=False)
        else:
            given = self._in_order(self.activations)
        width = tiles.count * tiles.nr
        operands = [weight, given, *(epilogue.operands(width) if epilogue else ())]
        return self._call(kernels, product, operands)

    def _laid_out(
        self,
        kernels: KernelTable,
        layout: tuple[object, ...],
        compute: Callable[[], AnyArray],
        element: ElementType,
    ) -> Value:
        """What a kernel reads of the weight."""
        how = (self.of_weight, self.groups, *layout)
        return laid_out(kernels, [self.weight], "i8", how, compute, element)

    def _columns(self, missing: int, slices: int = 1) -> AnyArray:
        """The weight as ``columns x depth`` of uint8, with some channels more.

        That of a group is 0 for the channels of others in its slice: with few groups that costs
        less than what IREE makes of them.
        """
        weight = array_of(self.weight).transpose(self.of_weight)
        if self.summands > 1:  # a window has its positions twice
            low = np.clip(weight, -128, 127)
            weight = np.stack([low, weight - low], axis=1).astype(np.int8)
        if self.groups > 1:
            columns, channels = weight.shape[0] // self.groups, weight.shape[-1]
            parts = []
            of_slice = self.groups // slices
            for group in range(self.groups):
                part = weight[group * columns : (group + 1) * columns]
                before = group % of_slice
                others = before * channels, (of_slice - 1 - before) * channels
                parts.append(np.pad(part, [(0, 0)] * (weight.ndim - 1) + [others]))
            weight = np.concatenate(parts, axis=0)
        if missing:
            weight = np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, missing)])
        return weight.reshape((weight.shape[0], math.prod(weight.shape[1:])))

    @staticmethod
    def _call(kernels: KernelTable, product: Int8Conv | AmxGemm, operands: list[Value]) -> Value:
        result = tensor_type(
            product.result_shape, mlir_type(product.epilogue.element if product.epilogue else I32)
        )
        [made] = kernels.call(product, product.kernel(), operands, [result], 0)
        return made

    def _depthwise(
        self, kernels: KernelTable, instructions: str, epilogue: FusedEpilogue | None
    ) -> Value | MatchFailure:
        target = INSTRUCTION_SETS[instructions]
        product, missing = self._depthwise_product(instructions)
        if not product.fits_scratch:
            return MatchFailure("its windows are large")
        product = replace(product, epilogue=epilogue)
        weight = array_of(self.weight).transpose([*self.of_weight[1:], self.of_weight[0]])
        shape = [product.vertical.taps, product.horizontal.taps, product.channels]
        weight = weight.reshape((*shape[:2], product.channels - missing))
        if missing:
            weight = np.pad(weight, [(0, 0), (0, 0), (0, missing)])
        sums = convert(weight, I32).sum((0, 1), dtype=np.int32)
        given = emit_stablehlo.transpose(self.activations, self.of_activations)
        rank, several = len(self.of_activations), (product.channels - missing) // self.groups
        if several > 1:  # columns of each channel
            repeated: ArrayLike = np.repeat(traced(given), several, axis=rank - 1)
            given = repeated.value
        if missing:
            given = emit_stablehlo.pad(given, [0] * rank, [0] * (rank - 1) + [missing])
        positions = product.images * product.vertical.size * product.horizontal.size
        operands = [
            self._laid_out(
                kernels, (product.groups, missing), lambda: product.groups.pack(weight), I8
            ),
            self._laid_out(
                kernels,
                (product.groups, missing, target.sign_offset, *_begin_of(epilogue)),
                lambda: self._first(sums, instructions, epilogue),
                I32,
            ),
            emit_stablehlo.reshape(given, [positions, product.channels]),
            *(epilogue.operands(product.channels) if epilogue else ()),
        ]
        shape = [
            product.images * product.vertical.outputs,
            product.horizontal.outputs,
            product.channels,
        ]
        result = tensor_type(shape, mlir_type(epilogue.element if epilogue else I32))
        [made] = kernels.call(product, product.kernel(), operands, [result], 0)
        if missing:
            made = emit_stablehlo.slice_(
                made, [0, 0, 0], [*shape[:2], shape[2] - missing], [1, 1, 1]
            )
        return made

    def _depthwise_product(self, instructions: str) -> tuple[DepthwiseConv, int]:
        """The kernel of this convolution, and how many channels are missing to those it has."""
        lines, windows = self._axes()
        channels, *_ = self._shape(1)
        missing = max(0, INSTRUCTION_SETS[instructions].lanes - channels)
        images, *_ = self._shape(0)
        product = DepthwiseConv(
            images, lines, windows, channels + missing, self.outside, instructions, 1
        )
        workgroups = workgroups_per_tile(product.equivalent_macs, halo_macs=product.halo_macs)
        return replace(product, workgroups=workgroups), missing

    def _activations(
        self, kernels: KernelTable, instructions: str, missing: int, *, is_widened: bool
    ) -> Value:
        """The activations in order, as one row, with their padding and some channels more.

        Args:
            kernels: the kernels of the module.
            instructions: a name in `INSTRUCTION_SETS`.
            missing: channels that are added.
            is_widened: they are to be what the instructions multiply.
        """
        given, is_copied = self.activations, self._is_copied(missing)
        factor, size = INSTRUCTION_SETS[instructions].multiplicand_type, math.prod(given.type.shape)
        if is_widened:
            # A kernel that makes them alone may write factors, if these are bytes. Else a copy is
            # part of the same dispatch, where the contraction is small. What IREE widens takes as
            # long as the products of 30 columns, where AVX2 has no masked loads of bytes and the
            # number of activations is no multiple of 4096: for 28x28x128 0.07 ms.
            is_small, is_alone = size <= _BYTES_OF_A_WORKGROUP, not _is_made_for_one(given)
            is_copied |= factor.bits > I8.bits or (is_small and is_alone)
        if is_widened and not is_copied:
            given = INSTRUCTION_SETS[instructions].multiplicands(tensor(given)).value
        given = self._in_order(given)
        if not is_copied:
            return given
        pad_copy = self._pad_copy(instructions, missing, is_widened=is_widened)
        size = math.prod(pad_copy.padded_shape)
        workgroups = max(1, min(MAX_LARGE_WORKGROUPS, size // _BYTES_OF_A_WORKGROUP))
        pad_copy = replace(pad_copy, workgroups=workgroups)
        element = factor if is_widened else I8
        [made] = kernels.call(
            pad_copy, pad_copy.kernel(), [given], [tensor_type([size], mlir_type(element))], 0
        )
        return made

    def _is_copied(self, missing: int) -> bool:
        """True if activations are read with what is around them, or with more channels."""
        return bool(missing or np.any(self.padding))

    def _in_order(self, activations: Value) -> Value:
        """Activations as one row."""
        given = emit_stablehlo.transpose(activations, self.of_activations)
        return emit_stablehlo.reshape(given, [math.prod(given.type.shape)])

    def _pad_copy(self, instructions: str, missing: int, *, is_widened: bool) -> PadCopyKernel:
        images, *_, channels = self._shape(0)
        lines, windows = self._axes()
        return PadCopyKernel(
            images, lines, windows, channels, missing, self.outside, instructions, is_widened, 1
        )

    @staticmethod
    def _shares(windows: ConvGeometry, products: int, tiles: int) -> int:
        """How many share the windows, of so many products each, of each tile."""
        every = windows.output_pixels
        return min(every, workgroups_per_tile(every * products, tiles))

    def _axes(self) -> list[ConvAxis]:
        """The two axes of a picture: it has one line where there is one spatial axis."""
        _, *taps, _ = self._shape(1)
        _, *extents, _ = self._shape(0)
        found = [
            ConvAxis(extent, tap, stride, dilation, before, after)
            for extent, tap, stride, dilation, (before, after) in zip(
                extents, taps, self.strides, self.dilations, self.padding, strict=True
            )
        ]
        return [ConvAxis(1, 1, 1, 1, 0, 0)] * (2 - len(found)) + found

    def _windows(self) -> ConvGeometry:
        _, *taps, _ = self._shape(1)
        images, *extents, _ = self._shape(0)
        padding, strides, dilations = self.padding, self.strides, self.dilations
        while len(taps) < 2:  # one line of an image; of matrices rows are its positions
            if not taps:
                images, extents = 1, [images]
            else:
                extents = [1, *extents]
            taps, padding = [1, *taps], [(0, 0), *padding]
            strides, dilations = [1, *strides], [1, *dilations]
        whole = [n + sum(pair) for n, pair in zip(extents, padding, strict=True)]
        if taps == [1, 1] and strides == [1, 1]:
            # Positions of all images follow one another.
            images, whole = 1, [1, images * math.prod(whole)]
        lines, count = (
            (n - (tap - 1) * dilation - 1) // stride + 1
            for n, tap, dilation, stride in zip(whole, taps, dilations, strides, strict=True)
        )
        image, apart = math.prod(whole), [dilations[0] * whole[1], dilations[1]]
        taps, apart = [self.summands, *taps], [0, *apart]
        return ConvGeometry(
            images,
            lines,
            count,
            images * image,
            image,
            strides[0] * whole[1],
            strides[1],
            tuple((tap, step) for tap, step in zip(taps, apart, strict=True) if tap > 1),
        )


_CASTS_OF_STORAGE = ("quant.scast", "subquant.scast")
"""Operations that write nothing."""


def _begin_of(epilogue: FusedEpilogue | None) -> list[str]:
    """What says which numbers sums begin with for what follows; nothing where that is 0."""
    if epilogue is None or not epilogue.initial_accumulators.any():
        return []
    return [hashlib.sha256(epilogue.initial_accumulators.tobytes()).hexdigest()]


def _has_slices(channels: int, of_group: int, columns: int) -> bool:
    """True if vectors of columns are of whole groups, or of one, whose channels are whole lanes.

    Args:
        channels, of_group: of each group: channels, and columns.
        columns: of all.
    """
    is_power = of_group & (of_group - 1) == 0
    least = channels * max(1, _TAPS // of_group)  # of a vector of four lanes
    return is_power and columns % _LANES == 0 and least % _TAPS == 0


def _is_made_for_one(value: Value) -> bool:
    """True for what an operation computes, and one reads: a kernel may do more before it writes."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name == "stablehlo.reshape":
        return False
    if value.owner.operation.name in _CASTS_OF_STORAGE:
        return _is_made_for_one(value.owner.operation.operands[0])
    return len(list(value.uses)) == 1
