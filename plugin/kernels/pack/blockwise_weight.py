"""Packing of block-quantized weights: integers, scales, zero points and offsets.

A constant weight is packed into block records (`subquant.kernels.pack.packed_weight`); the integers
and the parameters of another are planar tensors, which operations of the program pack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...dialects.quant import described_type
from ...dialects.subquant import DEQUANTIZE, operands_of
from ...emit.constant_values import array_of, bytes_of, constant_elements, is_constant, to_storage
from ...emit.kernel import KernelTable
from ...emit.operation import element_of, producer_named
from ...emit.parameters import ModuleGlobals
from ...numerics.array_pieces import ArrayPieces
from ...numerics.element_types import BF16, F16, F32, I8, U8, AnyArray, Array, ElementType
from ...numerics.packed_integers import unpack_planes
from ...numerics.parameters import ExpressedType
from .codebook import Codebook
from .float_codes import FloatWeight, is_16_bit_float
from .packed_weight import PackedWeight, ScaleEncoding, Tiles

_CONVERT = "stablehlo.convert"


@dataclass(frozen=True)
class PackedOperands:
    """A packed weight as operands of a kernel: one of block records, or the planar tensors."""

    operands: list[Value]
    layout: PackedWeight


@dataclass(frozen=True)
class BlockwiseWeight:
    """The weight of a block contraction as a matrix ``N x K``, or several of them.

    Attributes:
        batch, columns, inner: loops of batches, of N, and of K.
        tiles: layout of the integers of each batch.
        codebook: the codebook, if the integers are its entries.
        uses_shuffle: the kernel looks indices up in the codebook; else the compiler does.
        floats: the weight of floats, if it is one.
    """

    contraction: BlockContraction
    batch: list[int]
    columns: list[int]
    inner: list[int]
    tiles: Tiles
    codebook: Codebook | None = None
    uses_shuffle: bool = False
    floats: FloatWeight | None = None

    @property
    def loops(self) -> list[int]:
        """Loops of the axes of the weight."""
        return [loop for [(loop, _)] in self.contraction.indices[1]]

    @property
    def loop_sizes(self) -> dict[int, int]:
        """Sizes of `loops`."""
        return dict(zip(self.loops, self.contraction.storage_shape, strict=True))

    @property
    def batches(self) -> int:
        """Number of matrices, each of which is multiplied with its own rows of activations."""
        sizes = self.loop_sizes
        return math.prod(sizes[loop] for loop in self.batch)

    @property
    def bits(self) -> int:
        """Bits of an integer of the weight in the program."""
        return sum(self.contraction.plane_bits or (self.contraction.storage_type.width,))

    def packed(self, kernels: KernelTable, *, is_planar: bool = False) -> PackedOperands:
        """Pack the weight; with `is_planar` into planar tensors, even if it is constant."""
        return _Packer(self, kernels).packed(is_planar=is_planar)


@dataclass(frozen=True)
class _Tensor:
    """A tensor that `pack` returns; it depends on the values `sources`, and on `key`."""

    sources: Sequence[Value]
    element: ElementType
    key: tuple[object, ...]
    pack: Callable[[], AnyArray]


@dataclass(frozen=True)
class _Packer:
    """Packing of a weight into operands of a kernel, for a kernel table."""

    weight: BlockwiseWeight
    kernels: KernelTable

    @property
    def contraction(self) -> BlockContraction:
        return self.weight.contraction

    @property
    def module_globals(self) -> ModuleGlobals:
        return self.kernels.module_globals

    @property
    def all_tiles(self) -> Tiles:
        """Layout of the tiles of all batches, which follow one another."""
        tiles = self.weight.tiles
        if not self.weight.batch:
            return tiles
        return replace(tiles, n=self.weight.batches * tiles.count * tiles.nr)

    @property
    def integer_offset(self) -> int:
        """Number that is added to signed integers, as kernels multiply unsigned ones."""
        storage, width = self.contraction.storage_type, self.weight.bits
        return 1 << (width - 1) if storage.signed and storage.width == width else 0

    def packed(self, *, is_planar: bool) -> PackedOperands:
        if self.weight.floats is not None:
            return self._packed_floats(self.weight.floats)
        contraction, codebook = self.contraction, self.weight.codebook
        assert contraction.scales is not None  # integers have them
        offset = self.integer_offset
        planes, key = contraction.planes, [offset]
        if codebook is not None:
            planes, key = [codebook.plane], [offset, *codebook.table]
        integers = _Tensor(planes, I8, (*key,), self._integers)
        parameters = [contraction.scales, contraction.zero_points, contraction.offsets]
        is_planar = is_planar or not all(
            is_constant(each, self.module_globals)
            for each in (*planes, *parameters)
            if each is not None
        )
        scale, fields = self._encoded(contraction.scales, is_planar=is_planar)
        zero_point: int | None = offset
        if contraction.zero_points is not None:
            zero_point, tensors = self._zero_points(contraction.zero_points)
            fields += tensors
        offsets = None
        if contraction.offsets is not None:
            offsets, tensors = self._encoded(contraction.offsets, is_planar=is_planar)
            fields += tensors
        sources = [source for each in (integers, *fields) for source in each.sources]
        table = None
        if codebook is not None and self.weight.uses_shuffle:
            table = codebook.shifted(offset)
        layout = PackedWeight(self.weight.tiles, scale, zero_point, offsets, is_planar, table)
        all_tiles = self.all_tiles
        if is_planar:
            packed = replace(integers, pack=lambda: all_tiles.pack(integers.pack()))
            return PackedOperands([self._operand(each) for each in (packed, *fields)], layout)

        def records() -> ArrayPieces:
            unpacked = integers.pack()
            arrays = [to_storage(each.pack(), each.element) for each in fields]
            return replace(layout, tiles=all_tiles).pack(unpacked, arrays)

        record_key = layout, *[each.key for each in (integers, *fields)]
        return PackedOperands([self._operand(_Tensor(sources, U8, record_key, records))], layout)

    def _packed_floats(self, floats: FloatWeight) -> PackedOperands:
        """Pack floats, and their scales if they have any, which are constant."""
        module_globals, shape = self.module_globals, self.contraction.storage_shape
        scale, fields = None, []
        if floats.scales is not None:
            element = _float_element(floats.scales, is_planar=False)

            def pack_scales() -> AnyArray:
                return self._block_parameters(floats.scale_array(shape, module_globals))

            scale = ScaleEncoding(element)
            key = ("reals", element, 1)
            fields = [_Tensor([floats.scales], element, key, pack_scales)]
        layout = PackedWeight(
            self.weight.tiles, scale, 0, None, is_planar=False, decoding=floats.floats
        )

        def records() -> ArrayPieces:
            codes = self._matrix(floats.code_array(module_globals).reshape(shape))
            arrays = [to_storage(each.pack(), each.element) for each in fields]
            return replace(layout, tiles=self.all_tiles).pack(codes, arrays)

        sources = [floats.codes, *(source for each in fields for source in each.sources)]
        record_key = layout, *[each.key for each in fields]
        return PackedOperands([self._operand(_Tensor(sources, U8, record_key, records))], layout)

    def _operand(self, tensor: _Tensor) -> Value:
        weight = self.weight
        axes = [
            [weight.loops.index(loop) for loop in loops]
            for loops in (weight.batch, weight.columns, weight.inner)
        ]
        return self.kernels.prepacked(
            tensor.sources,
            str(weight.tiles),
            (Tiles.VERSION, weight.tiles, axes, self.contraction.block_sizes, *tensor.key),
            tensor.pack,
            tensor.element,
        )

    def _integers(self) -> AnyArray:
        """Return unsigned integers ``N x K``, or indices that the kernel looks up."""
        contraction, codebook, offset = self.contraction, self.weight.codebook, self.integer_offset
        if codebook is not None:
            if self.weight.uses_shuffle:
                return self._matrix(codebook.indices(self.module_globals))
            return self._matrix(codebook.entries(offset, self.module_globals))
        bits = contraction.plane_bits
        if bits is None:
            integers = bytes_of(contraction.storage, self.module_globals)
        else:
            planes = [bytes_of(plane, self.module_globals) for plane in contraction.planes]
            integers = unpack_planes(planes[0], bits, *planes[1:])
        return self._matrix(_unsigned(integers, self.weight.bits, offset))

    def _matrix(self, array: AnyArray) -> AnyArray:
        """Return a tensor of the weight's axes as ``N x K``, with whole tiles of each batch."""
        weight, tiles = self.weight, self.weight.tiles
        order = [*weight.batch, *weight.columns, *weight.inner]
        moved = array.transpose([weight.loops.index(loop) for loop in order])
        k = math.prod(moved.shape[len(weight.batch) + len(weight.columns) :])
        if not weight.batch:
            return moved.reshape((tiles.n, k))
        n = tiles.count * tiles.nr
        moved = moved.reshape((weight.batches, tiles.n, k))
        if n > tiles.n:
            moved = np.pad(moved, ((0, 0), (0, n - tiles.n), (0, 0)))
        return moved.reshape((weight.batches * n, k))

    def _block_parameters(self, array: AnyArray, blocks: int = 1) -> AnyArray:
        """Return the packed parameters of blocks; `blocks` consecutive ones share a parameter."""
        sizes = zip(self.weight.loops, self.contraction.block_sizes, strict=True)
        for axis, (loop, size) in enumerate(sizes):
            if loop not in self.weight.inner and size > 1:
                array = np.repeat(array, size, axis)
        return self.all_tiles.pack_block_parameters(self._matrix(array), blocks)

    def _zero_points(self, zero_points: Value) -> tuple[int | None, list[_Tensor]]:
        """Return the zero point of all blocks, or the tensor of zero points."""
        width, offset = self.contraction.storage_type.width, self.integer_offset
        uniform = _uniform(zero_points, self.module_globals)
        if uniform is not None:
            return int(_unsigned(uniform, width, offset)), []

        def pack() -> AnyArray:
            bytes_ = bytes_of(zero_points, self.module_globals)
            return self._block_parameters(_unsigned(bytes_, width, offset))

        return None, [_Tensor([zero_points], U8, (offset, "zero points"), pack)]

    # -- scales and offsets ------------------------------------------------------------------------

    def _encoded(self, scales: Value, *, is_planar: bool) -> tuple[ScaleEncoding, list[_Tensor]]:
        """Return the encoding and the tensors of scales or offsets: two if these are quantized."""
        encoded = self._quantized(scales, is_planar=is_planar)
        if encoded is None and not is_planar:
            encoded = self._quotients(scales)
        if encoded is not None:
            return encoded
        element = _float_element(scales, is_planar=is_planar)
        return ScaleEncoding(element), [self._floats(scales, element)]

    def _floats(self, value: Value, element: ElementType, blocks: int = 1) -> _Tensor:
        def pack() -> AnyArray:
            return self._block_parameters(array_of(value, self.module_globals), blocks)

        return _Tensor([value], element, ("reals", element, blocks), pack)

    def _quotients(self, scales: Value) -> tuple[ScaleEncoding, list[_Tensor]] | None:
        """Match quotients of 16-bit floats and a number for each column, the outer scale.

        The kernel divides: quotients are f32, which take twice the memory.
        """
        division = producer_named(scales, "stablehlo.divide")
        widening = None if division is None else producer_named(division.operands[0], _CONVERT)
        if division is None or widening is None or element_of(scales.type) != F32:
            return None
        [floats], divisors = widening.operands, division.operands[1]
        if not is_16_bit_float(floats):
            return None
        array, inner = constant_elements(divisors, self.module_globals), self.weight.inner
        assert array is not None  # scales are constant
        of_column = array[
            tuple(slice(0, 1 if loop in inner else None) for loop in self.weight.loops)
        ]
        if (array != of_column).any():
            return None
        element, blocks = _float_element(floats, is_planar=False), array.size // of_column.size
        outer = _Tensor(
            [divisors], F32, ("divisors",), lambda: self._block_parameters(of_column, blocks)
        )
        return ScaleEncoding(element, F32, blocks), [self._floats(floats, element), outer]

    def _quantized(
        self, scales: Value, *, is_planar: bool
    ) -> tuple[ScaleEncoding, list[_Tensor]] | None:
        """Match quantized scales; return their encoding, and the tensors of integers and scales."""
        op = producer_named(scales, DEQUANTIZE)
        if op is None:
            return None
        operands = operands_of(op)
        if not {"input", "scales"} <= set(operands) <= {"input", "scales", "zero_points"}:
            return None
        storage, expressed = described_type(op)
        sizes = [int(size) for size in op.attributes["block_sizes"]]
        shape = [int(n) for n in operands["input"].type.shape]
        weight = self.weight
        outer_axes = [weight.loops.index(loop) for loop in (*weight.batch, *weight.columns)]
        inner_axes = [weight.loops.index(loop) for loop in weight.inner]
        if storage.width > 8 or expressed is not ExpressedType.F32:
            return None
        if any(n % size for n, size in zip(shape, sizes, strict=True)):
            return None
        if any(sizes[axis] != 1 for axis in outer_axes):
            return None
        blocks = contiguous_block(
            [shape[axis] for axis in inner_axes], [sizes[axis] for axis in inner_axes]
        )
        if blocks is None:
            return None
        element = I8 if storage.signed else U8
        low, high = storage.minimum, storage.maximum
        mask = 255 if storage.signed else 2**storage.width - 1
        zero_point = 0
        if "zero_points" in operands:
            uniform = _uniform(operands["zero_points"], self.module_globals)
            if uniform is None:
                return None
            zero_point = int(uniform.view(element.dtype))
            low, high = low - zero_point, high - zero_point
            element = I8 if low < 0 else U8
            limits = np.iinfo(element.dtype)
            if not limits.min <= low <= high <= limits.max:
                return None

        def pack() -> AnyArray:
            """Pack the integers without their zero point."""
            integers = bytes_of(operands["input"], self.module_globals)
            integers = integers if mask == 255 else integers & np.uint8(mask)
            integers = integers - np.uint8(zero_point & 255) if zero_point else integers
            return self._block_parameters(integers)

        outer, key = operands["scales"], ("scales", element, mask, zero_point)
        outer_element = _float_element(outer, is_planar=is_planar)
        tensor = _Tensor([operands["input"]], element, key, pack)
        outer_tensor = self._floats(outer, outer_element, blocks)
        encoding = ScaleEncoding(element, outer_element, blocks, max(-low, high))
        return encoding, [tensor, outer_tensor]


def contiguous_block(shape: Sequence[int], sizes: Sequence[int]) -> int | None:
    """Return the size of blocks in flattened axes; None if a block is not contiguous there."""
    is_whole = True
    for n, size in zip(reversed(shape), reversed(sizes), strict=True):
        if not is_whole and size > 1:
            return None
        is_whole &= size == n
    return math.prod(sizes)


def _uniform(zero_points: Value, module_globals: ModuleGlobals) -> Array | None:
    """Return the zero point of all blocks as a byte, if they are constant and equal."""
    array = constant_elements(zero_points, module_globals)
    if array is None or (array != array.flat[0]).any():
        return None
    return np.asarray(array.flat[0]).astype(np.uint8)


def _unsigned(integers: AnyArray, width: int, offset: int) -> AnyArray:
    """Return integers of `width` bits plus `offset`, as unsigned bytes."""
    shifted = integers ^ np.uint8(offset) if offset else integers
    return shifted if width == 8 else shifted & np.uint8(2**width - 1)


def _float_element(scales: Value, *, is_planar: bool) -> ElementType:
    """Return the element type of packed scales: 16-bit floats stay, and others become f32.

    A planar bf16 becomes f32, too: kernels for Vulkan do not read it.
    """
    element = scales.type.element_type
    if isinstance(element, ir.BF16Type) and not is_planar:
        return BF16
    return F16 if isinstance(element, ir.F16Type) else F32
