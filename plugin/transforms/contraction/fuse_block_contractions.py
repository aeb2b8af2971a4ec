"""``fuse-block-contractions``: a contraction of a dequantized weight becomes one operation.

StableHLO's operations do not take sub-channel types, nor scales as operands, so a program has the
weight dequantized in front of them: by ``quant.dcast`` or ``subquant.dcast`` of a sub-channel type,
or by ``subquant.dequantize``, and maybe transposed. These become `subquant.block_contraction`, from
the weight's storage, or from the planes that a ``subquant.unpack`` takes it from; the float weight
goes where nobody else uses it.

Before::

    %w = quant.dcast %q : tensor<64x8x!quant.uniform<i4:f32:{0:32}, ...>> to tensor<64x8xf32>
    %y = stablehlo.dot %x, %w : (tensor<4x64xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>

After::

    %s = "subquant.scast"(%q) : (tensor<64x8x!...>) -> tensor<64x8xi4>
    %y = "subquant.block_contraction"(%x, %s, %scales, %zero_points)
           {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (k, n), (m, n, k) -> (m, n)], ...}
         : (tensor<4x64xf32>, tensor<64x8xi4>, tensor<2x1xf32>, tensor<2x1xi4>) -> tensor<4x8xf32>

Left alone, for the lowering of the cast: activations that the program rounds itself, ragged or
dynamic blocks, blocks or packed integers along a window, groups, dilated inputs and reversed
windows. With ``explain=true`` each contraction of a
dequantized weight that is left alone is reported with its place and the reason.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...core.option_fields import Activations
from ...dialects.block_contraction import Term
from ...dialects.dense import dense_of_array
from ...dialects.quant import DCASTS, SCASTS, any_type_of, parameters_of
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.subquant import UNPACK, operands_of
from ...dialects.windows import dot_loops, edge_padding, has_reversal, window_padding, window_steps
from ...emit import linalg, stored
from ...emit import stablehlo as emit_stablehlo
from ...emit import subquant as emit_subquant
from ...emit.operation import erase_unused
from ...errors import Remark
from ...numerics.element_types import Array
from ..base import UNCHANGED, ModulePass, NoMatch, named, producer_named, producer_of, value_before
from ..quantization.math.operands import check_scales

_DEQUANTIZE = "subquant.dequantize"
_DEQUANTIZING = (*DCASTS, _DEQUANTIZE)
_CONVERT = "stablehlo.convert"
_TRANSPOSE = "stablehlo.transpose"
_MOVEMENTS = (_TRANSPOSE, "stablehlo.bitcast_convert", "stablehlo.reshape", "stablehlo.slice")
_ERASED = (UNPACK, *SCASTS)

_ROUNDED = NoMatch(
    "the program quantizes its dequantized operand itself, as activations, not as a weight"
)

_MAX_SUPERBLOCK = 256
"""The greatest superblock whose activations share a scale: that of llama.cpp's ``Q8_K``."""


@dataclass(frozen=True)
class FuseBlockContractions(ModulePass):
    """Write contractions of dequantized weights as ``subquant.block_contraction``.

    Options:
        explain: return a remark on each contraction of a dequantized weight that is not fused.
        activations: ``int8`` rounds activations to 8 bits, with a scale for each block of K, or for
            each superblock of up to `_MAX_SUPERBLOCK` elements where scales are quantized, too.
    """

    explain: bool = False
    activations: Activations = "float"

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Fuse in `module`; never fails."""
        remarks: list[Remark] = []
        is_changed = False
        for op in named(module, CONTRACTIONS):
            dequantizing = [_dequantizing(operand) for operand in op.operands]
            if not any(dequantizing):
                continue
            casts = [None if cast and _is_rounded(cast) else cast for cast in dequantizing]
            with ir.InsertionPoint(op), op.location:
                result = _fuse(op, casts, self.activations) if any(casts) else _ROUNDED
            if isinstance(result, NoMatch):
                if self.explain:
                    remarks.append(Remark.about(op, f"is left alone: {result.reason}"))
                continue
            is_changed = True
            op.results[0].replace_all_uses_with(result)
            op.erase()
            for cast in {id(cast): cast for cast in casts if cast is not None}.values():
                erase_unused(cast, also=_was_for_cast)
        return remarks if is_changed or remarks else UNCHANGED


def _dequantizing(operand: Value) -> Operation | None:
    """Return the producer that dequantizes a value, through movements and widening, or None."""
    op = producer_of(operand)
    if op is not None and (op.name == _TRANSPOSE or _widens(op)):
        return op if _dequantizing(op.operands[0]) else None
    return op if op is not None and op.name in _DEQUANTIZING else None


def _is_rounded(cast: Operation) -> bool:
    """Return True if a cast dequantizes activations, which the program has rounded just before."""
    while cast.name not in _DEQUANTIZING:
        cast = cast.operands[0].owner.operation
    rounding = producer_of(value_before(cast.operands[0], *_MOVEMENTS))
    if rounding is None or rounding.name not in (_CONVERT, "quant.qcast"):
        return False
    return isinstance(rounding.operands[0].type.element_type, ir.FloatType)


def _was_for_cast(op: Operation) -> bool:
    """Return True for a cast, and for the producers of its parameters."""
    return op.name in _ERASED or _dequantizing(op.results[0]) is not None


def _widens(op: Operation) -> bool:
    """Return True for a conversion to f32, in which products of f16 and bf16 are computed."""
    if op.name != _CONVERT or not isinstance(op.results[0].type.element_type, ir.F32Type):
        return False
    return isinstance(op.operands[0].type.element_type, ir.F16Type | ir.BF16Type)


def _fuse(
    op: Operation, casts: Sequence[Operation | None], activations: Activations
) -> Value | NoMatch:
    """The result of a block contraction that does what `op` does, or why there is none."""
    for number in (1, 0):  # a weight is on the right, as a rule
        if casts[number] is None:
            continue
        weight = _weight(casts[number])
        if weight is None:
            continue
        if isinstance(weight, NoMatch):
            return weight
        loops = _windows(op, number, weight) if "conv" in op.name else _dot(op, number, weight)
        if isinstance(loops, NoMatch):
            return loops
        return emit_subquant.block_contraction(
            loops.activations,
            weight.planes,
            weight.scales(),
            loops.maps(),
            weight.blocks,
            ir.TypeAttr.get(weight.quantized_type),
            op.results[0].type,
            weight.zero_points(),
            weight.offsets,
            weight.plane_bits,
            None if activations == "float" else activations,
            None if activations == "float" else weight.superblocks(),
        )
    return NoMatch("its weight is not of a sub-channel type")


# -- the weight -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Weight:
    """A dequantized operand before it was.

    Attributes:
        storage: a tensor of a static shape.
        quantized_type: ``!quant.any``.
        blocks: sizes that divide the dimension sizes, one for each axis.
        parameters: scales and zero points: values of the program, or arrays.
        offsets: a value, or None.
        order: the axis of the storage for each axis of the operand; None for the same.
    """

    storage: Value
    quantized_type: ir.Type
    blocks: list[int]
    parameters: tuple[Value | Array, Value | Array | None]
    offsets: Value | None = None
    order: Sequence[int] | None = None

    def axis_of(self, axis: int) -> int:
        """Return the axis of the storage for an axis of the operand."""
        return axis if self.order is None else self.order[axis]

    def in_order(self, indices: Sequence[list[Term]]) -> list[list[Term]]:
        """Return the terms of the storage's axes from the terms of the operand's axes."""
        of_storage = list(indices)
        for axis, terms in enumerate(indices):
            of_storage[self.axis_of(axis)] = terms
        return of_storage

    @cached_property
    def _unpacking(self) -> Operation | None:
        """The ``subquant.unpack`` that gives the storage, or None; a block fills bytes there."""
        unpacking = producer_named(self.storage, UNPACK)
        if unpacking is None:
            return None
        smallest, axis = min(int(count) for count in unpacking.attributes["bits"]), -1
        is_in_bytes = not self.has_blocks(axis) or self.blocks[axis] * smallest % 8 == 0
        return unpacking if is_in_bytes else None

    @property
    def planes(self) -> list[Value]:
        """The storage, or the planes that it is unpacked from."""
        return [self.storage] if self._unpacking is None else list(self._unpacking.operands)

    @property
    def plane_bits(self) -> list[int] | None:
        """The bits of an integer in each plane; None where the storage is not packed."""
        if self._unpacking is None:
            return None
        return [int(count) for count in self._unpacking.attributes["bits"]]

    @property
    def shape(self) -> list[int]:
        return [int(n) for n in self.storage.type.shape]

    def has_blocks(self, axis: int) -> bool:
        """True if scales differ along an axis, and not with every element."""
        return 1 < self.blocks[axis] < self.shape[axis]

    def scales(self) -> Value:
        """The scales as a value of the program."""
        scales = self.parameters[0]
        if not isinstance(scales, np.ndarray):
            return scales
        element = self.quantized_type.expressed_type
        # IREE does not compile bf16 constants for Vulkan: widened, they are the same numbers.
        wide = ir.F32Type.get() if element == ir.BF16Type.get() else element
        return linalg.constant(dense_of_array(scales, wide))

    def superblocks(self) -> list[int] | None:
        """The elements that share a scale of the scales, along each axis.

        None where scales are not quantized, differ in other axes than that of blocks, or are shared
        by more than `_MAX_SUPERBLOCK` elements.
        """
        scales = self.parameters[0]
        op = None if isinstance(scales, np.ndarray) else producer_named(scales, _DEQUANTIZE)
        if op is None:
            return None
        sizes = [int(size) for size in op.attributes["block_sizes"]]
        shape = [int(n) for n in op.results[0].type.shape]
        shared = [axis for axis, size in enumerate(sizes) if size > 1]
        if len(shared) != 1:
            return None
        [axis] = shared
        superblocks = [own * size for own, size in zip(self.blocks, sizes, strict=True)]
        is_whole = self.has_blocks(axis) and shape[axis] % sizes[axis] == 0
        return superblocks if is_whole and superblocks[axis] <= _MAX_SUPERBLOCK else None

    def zero_points(self) -> Value | None:
        """The zero points as a value of the program, or None."""
        zero_points = self.parameters[1]
        if not isinstance(zero_points, np.ndarray):
            return zero_points
        if not zero_points.any():
            return None
        element = self.quantized_type.storage_type
        return linalg.constant(dense_of_array(zero_points, element))


def _weight(cast: Operation) -> _Weight | NoMatch | None:
    """Return the weight of a cast; None if it is quantized per tensor or per axis."""
    if cast.name == _TRANSPOSE:
        weight = _weight(cast.operands[0].owner.operation)
        if not isinstance(weight, _Weight):
            return weight
        order = [weight.axis_of(int(axis)) for axis in cast.attributes["permutation"]]
        return replace(weight, order=order)
    if cast.name == _CONVERT:
        return _weight(cast.operands[0].owner.operation)
    if cast.name in DCASTS:
        return _weight_of_type(cast)
    operands = operands_of(cast)
    storage, scales = operands["input"], operands["scales"]
    if not storage.type.has_static_shape or not scales.type.has_static_shape:
        return NoMatch("has a weight of a dynamic shape")
    blocks = _dividing(
        [int(n) for n in storage.type.shape],
        [int(size) for size in cast.attributes["block_sizes"]],
        [int(n) for n in scales.type.shape],
    )
    if blocks is None:
        return NoMatch("has a ragged last block")
    return _Weight(
        storage,
        cast.attributes["quantized_type"].value,
        blocks,
        (scales, operands.get("zero_points")),
        operands.get("offsets"),
    )


def _weight_of_type(cast: Operation) -> _Weight | NoMatch | None:
    """The weight of a sub-channel cast; None for other types, NoMatch with the reason otherwise."""
    type_ = cast.operands[0].type
    parameters = parameters_of(type_, cast)
    if parameters is None or parameters.granularity != "sub-channel":
        return None
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return NoMatch("has a weight of a dynamic shape")
    check_scales(parameters, cast)
    scales, zero_points = parameters.grids(type_.rank)
    shape = [int(n) for n in type_.shape]
    sizes = [parameters.block_size_of(axis) or shape[axis] for axis in range(type_.rank)]
    blocks = _dividing(shape, sizes, scales.shape)
    if blocks is None:
        return NoMatch("has a ragged last block")
    any_type = any_type_of(parameters.storage, parameters.expressed)
    return _Weight(stored(cast.operands[0]), any_type, blocks, (scales, zero_points))


def _dividing(
    shape: Sequence[int], sizes: Sequence[int], counts: Sequence[int]
) -> list[int] | None:
    """Block sizes that divide the dimension sizes, or None if a last block is ragged."""
    blocks = [n if count == 1 else b for n, b, count in zip(shape, sizes, counts, strict=True)]
    return None if any(n % b for n, b in zip(shape, blocks, strict=True)) else blocks


# -- loops ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loops:
    """Loop nest: activations, and the indexing terms of activations, storage and result."""

    activations: Value
    count: int
    indices: tuple[list[list[Term]], list[list[Term]], list[list[Term]]]

    def maps(self) -> list[ir.AffineMap]:
        """The indexing maps."""
        maps = []
        for axes in self.indices:
            expressions = []
            for terms in axes:
                products = [ir.AffineExpr.get_dim(loop) * factor for loop, factor in terms]
                expressions.append(functools.reduce(operator.add, products))
            maps.append(ir.AffineMap.get(self.count, 0, expressions))
        return maps


def _dot(op: Operation, number: int, weight: _Weight) -> _Loops | NoMatch:
    loops, count = dot_loops(op)
    sides: list[list[list[Term]]] = [[[(loop, 1)] for loop in axes] for axes in loops]
    storage, other = weight.in_order(sides[number]), sides[1 - number]
    activations = op.operands[1 - number]
    for axis, [(loop, _)] in enumerate(other):
        own = storage.index([(loop, 1)]) if [(loop, 1)] in storage else None
        if own is not None and weight.has_blocks(own) and activations.type.is_dynamic_dim(axis):
            return NoMatch("has blocks along a dimension that is dynamic in the other operand")
    return _Loops(activations, count, (other, storage, sides[2]))


def _windows(op: Operation, number: int, weight: _Weight) -> _Loops | NoMatch:
    """Loops are the result's axes, then the window's, then the input features."""
    reason = _why_no_windows(op, number, weight)
    if reason is not None:
        return NoMatch(reason)
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    outer = list(numbers.output_spatial_dimensions)
    inner = _window_axes(numbers, weight)
    count = len(spatial)
    strides = window_steps(op, "window_strides", count)
    dilations = window_steps(op, "rhs_dilation", count)
    rank = count + 2
    feature_loop = rank + count
    activations: list[list[Term]] = [[] for _ in range(rank)]
    storage: list[list[Term]] = [[] for _ in range(rank)]
    activations[numbers.input_batch_dimension] = [(numbers.output_batch_dimension, 1)]
    activations[numbers.input_feature_dimension] = [(feature_loop, 1)]
    features = weight.axis_of(numbers.kernel_output_feature_dimension)
    storage[features] = [(numbers.output_feature_dimension, 1)]
    storage[weight.axis_of(numbers.kernel_input_feature_dimension)] = [(feature_loop, 1)]
    for position, axis in enumerate(spatial):
        loop = rank + position
        activations[axis] = [(outer[position], strides[position]), (loop, dilations[position])]
        storage[inner[position]] = [(loop, 1)]
    result: list[list[Term]] = [[(loop, 1)] for loop in range(rank)]
    dilated_sizes = [
        (weight.shape[axis] - 1) * dilation + 1
        for axis, dilation in zip(inner, dilations, strict=True)
    ]
    padded = _padded(op, spatial, outer, dilated_sizes)
    return _Loops(padded, feature_loop + 1, (activations, storage, result))


def _why_no_windows(op: Operation, number: int, weight: _Weight) -> str | None:
    """Return the reason why a convolution is no loop nest over its windows, or None."""
    if op.name != "stablehlo.convolution":
        return "is a convolution whose padding is an operand"
    if number == 0:
        return "has blocks in its left operand"
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    inner = _window_axes(numbers, weight)
    if any(int(op.attributes[f"{kind}_group_count"].value) != 1 for kind in ("feature", "batch")):
        return "has groups"
    if window_steps(op, "lhs_dilation", len(inner)) != [1] * len(inner):
        return "dilates its left operand"
    if has_reversal(op):
        return "reverses its window"
    if any(weight.has_blocks(axis) for axis in inner):
        return "has blocks along its window"
    if weight.plane_bits is not None and len(weight.shape) - 1 in inner:
        return "packs the integers of several taps in a byte"
    if not op.operands[0].type.has_static_shape or not op.results[0].type.has_static_shape:
        return "has a dynamic shape"
    return None


def _window_axes(numbers: stablehlo.ConvDimensionNumbers, weight: _Weight) -> list[int]:
    """Return the axes of the weight's storage that are spatial dimensions of the window."""
    return [weight.axis_of(axis) for axis in numbers.kernel_spatial_dimensions]


def _padded(
    op: Operation, spatial: Sequence[int], outer: Sequence[int], dilated_sizes: Sequence[int]
) -> Value:
    """The left operand with the convolution's padding.

    Where the result has one position, IREE takes elements after its window for wrong: they are cut.
    """
    value = op.operands[0]
    padding = window_padding(op, len(spatial))
    axes = zip(spatial, outer, dilated_sizes, strict=True)
    for number, (axis, out, window_size) in enumerate(axes):
        if int(op.results[0].type.shape[out]) == 1:
            padding[number, 1] = window_size - int(value.type.shape[axis]) - padding[number, 0]
    if not padding.any():
        return value
    low, high = [0] * value.type.rank, [0] * value.type.rank
    for axis, (before, after) in zip(spatial, padding, strict=True):
        size = int(value.type.shape[axis])
        low[axis], high[axis] = edge_padding(size, int(before), int(after))
    return emit_stablehlo.pad(value, low, high)
