"""A block contraction as calls of kernels, where it is one of those that they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...dialects.quant import described_type
from ...dialects.subquant import DEQUANTIZE, operands_of
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.linalg import Extent
from ...emit.operation import element_of, is_dynamic, mlir_type, tensor_type
from ...numerics.element_types import F16, F32, I8, I32, U8, AnyArray, Array, ElementType
from ...numerics.packed_integers import unpack_planes
from ...numerics.parameters import ExpressedType
from ...numerics.requantization import EXACT
from ..constant_values import constant_elements, is_constant, is_invariant
from ..cpu.blockwise_gemm import BlockwiseGemm
from ..cpu.quantize_rows import QuantizeRows
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..gpu.blockwise_gemm import GpuBlockwiseGemm
from ..isa.registry import INSTRUCTION_SETS
from ..kernel_table import KernelTable
from ..pack.codebook import Codebook
from ..pack.packed_weight import PackedWeight, ScaleEncoding, Tiles
from ..workgroups import items_per_workgroup
from .match_failure import MatchFailure
from .operands import array_of, bytes_of, laid_out, stored_array

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Product", "Weight"]

_MOST_FINISHED = 8
"""Operations that are done with each vector of sums in its register."""
_LEAST_PRODUCTS = 1 << 14
"""Of integers, for each row of activations: a smaller contraction is not worth calls of kernels."""


@dataclass(frozen=True)
class Product:
    """A contraction as a product of rows of activations with columns of a weight.

    Attributes:
        contraction: what it is of.
        instructions: a name in `INSTRUCTION_SETS`.
        batch: the loops of activations, storage and result.
        outer, columns, inner: the loops of activations alone, of the storage alone, of both.
        tiles: the layout of the weight, of each batch.
        rows: how many there are in all; None where that is known at run time only.
        epilogue: what the kernel does with the sums.
        entries: the table that the integers are entries of, if there is one.
        looks_up: the kernel reads the numbers of these entries.
    """

    contraction: BlockContraction
    instructions: str
    batch: list[int]
    outer: list[int]
    columns: list[int]
    inner: list[int]
    tiles: Tiles
    rows: int | None
    epilogue: FusedEpilogue | None = None
    entries: Codebook | None = None
    looks_up: bool = False

    @classmethod
    def of(cls, contraction: BlockContraction, instructions: str) -> Self | MatchFailure:
        """Plan a contraction, or say why kernels do not compute it."""
        if contraction.activation_type != "int8":
            if contraction.expressed is not ExpressedType.F32:
                return MatchFailure(
                    "its activations are not rounded to 8 bits, nor its reals of f32"
                )
            if not all(map(is_invariant, contraction.planes)):
                # It would be laid out at each call, which takes longer than IREE's loops.
                return MatchFailure(
                    "its activations are not rounded to 8 bits, nor its weight constant"
                )
        target = INSTRUCTION_SETS[instructions]

        def parts(columns: int) -> int:
            return target.vectors_per_tile(columns, target.max_vectors_blockwise)

        return cls.planned(
            contraction,
            instructions,
            target.lanes,
            parts,
            has_shuffle=bool(target.shuffle_intrinsic),
        )

    @classmethod
    def planned(
        cls,
        contraction: BlockContraction,
        instructions: str,
        lanes: int,
        parts: Callable[[int], int],
        *,
        has_shuffle: bool = False,
    ) -> Self | MatchFailure:
        """Plan a contraction for tiles of so many lanes.

        Args:
            contraction: what is computed.
            instructions: what with.
            lanes: of a vector of columns.
            parts: how many such vectors a tile has, of the number of columns.
            has_shuffle: it can look integers up.
        """
        activations, storage, result = contraction.indices
        if contraction.expressed is ExpressedType.F64:
            return MatchFailure("it is computed in f64")
        if any(len(terms) > 1 for terms in activations):
            return MatchFailure("it has a window")
        of_rows, of_weight = ([loop for [(loop, _)] in axes] for axes in (activations, storage))
        kept = [loop for [(loop, _)] in result]
        outer = [loop for loop in of_rows if loop not in of_weight]
        batch = [loop for loop in of_weight if loop in kept and loop in of_rows]
        columns = [loop for loop in of_weight if loop in kept and loop not in of_rows]
        inner = [loop for loop in of_weight if loop not in kept]
        if not set(inner) <= set(of_rows):
            return MatchFailure("it sums over its weight alone")
        shape = dict(zip(of_weight, contraction.storage_shape, strict=True))
        sizes = dict(zip(of_weight, contraction.block_sizes, strict=True))
        block = _block([shape[loop] for loop in inner], [sizes[loop] for loop in inner])
        if block is None:
            return MatchFailure("its blocks are not consecutive")
        bits = sum(contraction.plane_bits or (contraction.storage_type.width,))
        count = math.prod(shape[loop] for loop in columns)
        depth = math.prod(shape[loop] for loop in inner)
        batches = math.prod(shape[loop] for loop in batch)
        if batches * count * depth < _LEAST_PRODUCTS:
            return MatchFailure("it is small")
        extents = dict(zip(of_rows, contraction.activations.type.shape, strict=True))
        of_outer = [int(extents[loop]) for loop in outer]
        dynamic = any(is_dynamic(extent) for extent in of_outer)
        rows = None if dynamic else batches * math.prod(of_outer)
        if rows == 0:
            return MatchFailure("it has no rows")
        if not columns:
            return MatchFailure("it has no columns")
        entries = Codebook.of(contraction.storage) if contraction.plane_bits is None else None
        looks_up = has_shuffle and entries is not None
        stored_bits = Codebook.BITS if looks_up else bits
        tiles = Tiles(
            stored_bits if stored_bits < 7 else 8, block, count, depth, lanes, parts(count)
        )
        if not tiles.is_valid:
            return MatchFailure(
                f"its block size {block} does not nest in packing steps of {tiles.k_per_step}"
            )
        zeros = contraction.zero_points
        if zeros is not None and contraction.storage_type.width != bits and not _fit(zeros, bits):
            return MatchFailure("its zero points have more bits than its integers")
        return cls(
            contraction,
            instructions,
            batch,
            outer,
            columns,
            inner,
            tiles,
            rows,
            entries=entries,
            looks_up=looks_up,
        )

    def with_what_follows(self, result: Value) -> Self:
        """The same with what follows the contraction, as far as its kernel computes it.

        Args:
            result: of the contraction, of which the kernel writes rows and columns.
        """
        loops = [loop for [(loop, _)] in self.contraction.indices[2]]
        is_written = loops == [*self.outer, *self.columns] and element_of(result.type) == F32
        if self.batch or len(self.columns) != 1 or not is_written:
            return self
        match = EpilogueMatch.of(result, len(loops) - 1, EXACT, integer_only=False)
        if match is None or len(match.operations) > _MOST_FINISHED:
            return self
        return replace(self, epilogue=FusedEpilogue.of(match, self.instructions))

    def emit(self, kernels: KernelTable, result: ir.Type) -> Value:
        """Write the calls, and return the result, that of what follows if there is something."""
        tiles, batches = self.tiles, self.batches
        weight = self.weight(kernels)
        most = self._most_rows
        rows_of_batch = 0 if self.rows is None else self.rows // batches
        at_once = min(most, rows_of_batch or most)
        product = BlockwiseGemm(
            weight.stored,
            self.instructions,
            self.rows,
            at_once,
            1,
            self._of_floats,
            batches,
            self.epilogue,
        )
        together = product.tiles_per_iteration
        parts = -(-tiles.count // together)
        products = (rows_of_batch or 1) * together * tiles.nr * tiles.k
        product = replace(
            product, tiles_per_workgroup=items_per_workgroup(parts, products, batches) * together
        )
        activations, extents = self._rows()
        rows: Extent = self.rows if self.rows is not None else linalg.dim(activations, 0)
        given = [activations]
        if not self._of_floats:
            given = self._integer_rows(activations, product.row_sum_factor, kernels, rows)
        epilogue = self.epilogue
        tables = epilogue.operands(tiles.count * tiles.nr) if epilogue else []
        sums = self._called(kernels, product, [*weight.operands, *given, *tables], rows)
        return self._result(sums, extents, result)

    def _called(
        self,
        kernels: KernelTable,
        product: BlockwiseGemm | GpuBlockwiseGemm,
        operands: Sequence[Value],
        rows: Extent,
        shares: Sequence[int] = (),
    ) -> Value:
        """Call the kernel, and return its sums ``rows x columns``, or those of shares of these."""
        type_ = tensor_type([self.rows, *shares, self.tiles.n], mlir_type(F32))
        [sums] = kernels.call(product, product.kernel(), operands, [type_], rows)
        return sums

    @property
    def batches(self) -> int:
        """How many weights there are, each with rows of its own."""
        shape = self._storage_extents
        return math.prod(shape[loop] for loop in self.batch)

    @property
    def _storage_extents(self) -> dict[int, int]:
        """The extents of the loops of the weight."""
        contraction = self.contraction
        loops = [loop for [(loop, _)] in contraction.indices[1]]
        return dict(zip(loops, contraction.storage_shape, strict=True))

    @property
    def _all_tiles(self) -> Tiles:
        """The tiles of all batches, which follow one another."""
        tiles = self.tiles
        if not self.batch:
            return tiles
        return replace(tiles, n=self.batches * tiles.count * tiles.nr)

    @property
    def _of_floats(self) -> bool:
        return self.contraction.activation_type != "int8"

    @property
    def _most_rows(self) -> int:
        """How many rows are computed together: of floats, registers hold two sums of each."""
        most = INSTRUCTION_SETS[self.instructions].mr
        return max(1, most * 3 // 4) if self._of_floats else most

    def _integer_rows(
        self, activations: Value, factor: int, kernels: KernelTable, rows: Extent
    ) -> list[Value]:
        """Activations of 8 bits; and of their blocks scales, and sums times a factor."""
        tiles = self.tiles
        blocks, lanes = tiles.k // tiles.block_size, INSTRUCTION_SETS[self.instructions].lanes
        rounding = QuantizeRows(self.rows, tiles.k, tiles.block_size, lanes, factor)
        types = [
            tensor_type([self.rows, tiles.k], mlir_type(I8)),
            tensor_type([self.rows, 2 * blocks], mlir_type(I32)),
        ]
        return kernels.call(rounding, rounding.kernel(), [activations], types, rows)

    def weight(self, kernels: KernelTable) -> Weight:
        """The weight, laid out where operations are written: together, if it is known."""
        contraction, middle = self.contraction, self._middle
        entries, planes = self.entries, contraction.planes
        how: tuple[object, ...] = (middle,)
        if entries is not None:
            planes, how = [entries.plane], (middle, entries.table)
        integers = _Part(planes, I8, how, lambda: self._integers(middle))
        scale, parts = self._scales(contraction.scales)
        zero: int | None = middle
        zeros = contraction.zero_points
        if zeros is not None:
            same, width = _same(zeros), contraction.storage_type.width
            zero = None if same is None else int(_codes(same, width, middle))
            if zero is None:
                given = zeros

                def codes() -> AnyArray:
                    return self._laid_out(_codes(bytes_of(given), width, middle))

                parts.append(_Part([given], U8, (middle, "zero points"), codes))
        offset = None
        if contraction.offsets is not None:
            offset, of_offsets = self._scales(contraction.offsets)
            parts += of_offsets
        sources = [source for part in (integers, *parts) for source in part.sources]
        is_apart = self.is_apart or not all(map(is_constant, sources))
        table = entries.moved(middle) if entries is not None and self.looks_up else None
        stored = PackedWeight(self.tiles, scale, zero, offset, is_apart, table)
        every = self._all_tiles
        if is_apart:
            tensors = [replace(integers, compute=lambda: every.pack(integers.compute())), *parts]
        else:

            def together() -> AnyArray:
                computed = integers.compute()
                fields = [stored_array(part.compute(), part.element) for part in parts]
                return replace(stored, tiles=every).pack(computed, fields)

            how = stored, *[part.how for part in (integers, *parts)]
            tensors = [_Part(sources, U8, how, together)]
        operands = [
            laid_out(
                kernels,
                part.sources,
                str(self.tiles),
                self._how(*part.how),
                part.compute,
                part.element,
            )
            for part in tensors
        ]
        return Weight(operands, stored)

    @property
    def is_apart(self) -> bool:
        """True if scales and all else that blocks have are always apart from integers."""
        return False

    def _how(self, *besides: object) -> tuple[object, ...]:
        """What says how a weight is laid out: the tiles, the order of axes, and the blocks."""
        order = [loop for [(loop, _)] in self.contraction.indices[1]]
        axes = [
            [order.index(loop) for loop in loops]
            for loops in (self.batch, self.columns, self.inner)
        ]
        return Tiles.VERSION, self.tiles, axes, self.contraction.block_sizes, *besides

    def _rows(self) -> tuple[Value, list[Extent]]:
        """Activations as ``rows x depth`` of f32, and the extents of the loops of rows."""
        contraction = self.contraction
        order = [loop for [(loop, _)] in contraction.indices[0]]
        of_rows = [*self.batch, *self.outer]
        wanted = [*of_rows, *self.inner]
        tensor = emit_stablehlo.convert(contraction.activations, mlir_type(F32))
        tensor = emit_stablehlo.transpose(tensor, [order.index(loop) for loop in wanted])
        shape = [int(extent) for extent in tensor.type.shape]
        extents: list[Extent] = [
            linalg.dim(tensor, axis) if is_dynamic(shape[axis]) else shape[axis]
            for axis in range(len(of_rows))
        ]
        count = len(of_rows)
        if not count:
            return emit_stablehlo.reshape(tensor, [1, self.tiles.k]), extents
        groups = [list(range(count)), list(range(count, len(wanted)))]
        return linalg.collapse(tensor, groups), extents

    def _result(self, sums: Value, extents: Sequence[Extent], type_: ir.Type) -> Value:
        contraction, shape = self.contraction, self._storage_extents
        of_columns: list[Extent] = [shape[loop] for loop in self.columns]
        if extents:
            count, total = len(extents), len(extents) + len(self.columns)
            groups = [list(range(count)), list(range(count, total))]
            sums = linalg.expand(sums, groups, [*extents, *of_columns])
        else:
            sums = emit_stablehlo.reshape(sums, [shape[loop] for loop in self.columns])
        loops = [*self.batch, *self.outer, *self.columns]
        order = [loops.index(loop) for [(loop, _)] in contraction.indices[2]]
        result = emit_stablehlo.transpose(sums, order)
        return linalg.cast(emit_stablehlo.convert(result, type_.element_type), type_)

    @property
    def _middle(self) -> int:
        """What is 0 among the integers of a weight that kernels read."""
        contraction = self.contraction
        width = sum(contraction.plane_bits or (contraction.storage_type.width,))
        storage = contraction.storage_type
        return 1 << (width - 1) if storage.signed and storage.width == width else 0

    def _integers(self, zero: int) -> AnyArray:
        """The weight as ``columns x depth`` of uint8, `zero` more, or what the kernel looks up."""
        contraction, entries = self.contraction, self.entries
        if entries is not None:
            return self._as_columns(entries.numbers() if self.looks_up else entries.integers(zero))
        bits, storage = contraction.plane_bits, contraction.storage_type
        if bits is None:
            integers = bytes_of(contraction.storage)
        else:
            planes = [bytes_of(plane) for plane in contraction.planes]
            integers = unpack_planes(planes[0], bits, *planes[1:])
        return self._as_columns(_codes(integers, sum(bits or (storage.width,)), zero))

    def _as_columns(self, array: AnyArray) -> AnyArray:
        """What a weight has, or its blocks, as ``columns x depth``: whole tiles of each batch."""
        order = [loop for [(loop, _)] in self.contraction.indices[1]]
        wanted = [*self.batch, *self.columns, *self.inner]
        moved = array.transpose([order.index(loop) for loop in wanted])
        depth = math.prod(moved.shape[len(self.batch) + len(self.columns) :])
        if not self.batch:
            return moved.reshape((self.tiles.n, depth))
        whole = self.tiles.count * self.tiles.nr
        moved = moved.reshape((self.batches, self.tiles.n, depth))
        if whole > self.tiles.n:
            moved = np.pad(moved, ((0, 0), (0, whole - self.tiles.n), (0, 0)))
        return moved.reshape((self.batches * whole, depth))

    def _scales(self, given: Value) -> tuple[ScaleEncoding, list[_Part]]:
        """Scales or offsets as the kernel reads them: two parts where they are quantized."""
        inner = self._quantized(given)
        if inner is None:
            element = _float_of(given)
            return ScaleEncoding(element), [self._reals(given, element)]
        codes, outer, blocks = inner
        element = _float_of(outer)
        how = "scales", codes.element, codes.mask, codes.zero
        integers = _Part([codes.given], codes.element, how, lambda: self._laid_out(codes.bytes))
        return ScaleEncoding(codes.element, element, blocks), [
            integers,
            self._reals(outer, element, blocks),
        ]

    def _reals(self, given: Value, element: ElementType, blocks: int = 1) -> _Part:
        """Floats of so many blocks each as the kernel reads them."""
        how = "reals", element, blocks
        return _Part([given], element, how, lambda: self._laid_out(array_of(given), blocks))

    def _quantized(self, given: Value) -> tuple[_Codes, Value, int] | None:
        """The integers of scales that are quantized, the scales of these, and of how many each."""
        owner = given.owner
        if isinstance(owner, ir.Block) or owner.operation.name != DEQUANTIZE:
            return None
        op = owner.operation
        operands = operands_of(op)
        if not {"input", "scales"} <= set(operands) <= {"input", "scales", "zero_points"}:
            return None
        storage, expressed = described_type(op)
        blocks = [int(size) for size in op.attributes["block_sizes"]]
        shape = [int(n) for n in operands["input"].type.shape]
        order = [loop for [(loop, _)] in self.contraction.indices[1]]
        of_columns = [order.index(loop) for loop in (*self.batch, *self.columns)]
        inner = [order.index(loop) for loop in self.inner]
        if storage.width > 8 or expressed is not ExpressedType.F32:
            return None
        if any(n % size for n, size in zip(shape, blocks, strict=True)):
            return None
        if any(blocks[axis] != 1 for axis in of_columns):
            return None
        count = _block([shape[axis] for axis in inner], [blocks[axis] for axis in inner])
        if count is None:
            return None
        element = I8 if storage.signed else U8
        mask = 255 if storage.signed else 2**storage.width - 1
        zero = 0
        if "zero_points" in operands:
            same = _same(operands["zero_points"])
            if same is None:
                return None
            zero = int(same.view(element.dtype))
            least, most = storage.minimum - zero, storage.maximum - zero
            element = I8 if least < 0 else U8
            info = np.iinfo(element.dtype)
            if not info.min <= least <= most <= info.max:
                return None
        return _Codes(operands["input"], element, mask, zero), operands["scales"], count

    def _laid_out(self, array: AnyArray, blocks: int = 1) -> AnyArray:
        """Scales, zero points or offsets of so many blocks each as the kernel reads them."""
        for axis, (terms, size) in enumerate(
            zip(self.contraction.indices[1], self.contraction.block_sizes, strict=True)
        ):
            if terms[0][0] not in self.inner and size > 1:
                array = np.repeat(array, size, axis)
        return self._all_tiles.pack_block_parameters(self._as_columns(array), blocks)


@dataclass(frozen=True)
class Weight:
    """A weight as kernels read it.

    Attributes:
        operands: its integers, scales, zero points and offsets, or all that together.
        stored: how they are stored.
    """

    operands: list[Value]
    stored: PackedWeight


@dataclass(frozen=True)
class _Part:
    """What is laid out for a kernel.

    Attributes:
        sources: what it follows from.
        element: its elements.
        how: what it follows from besides.
        compute: returns it.
    """

    sources: Sequence[Value]
    element: ElementType
    how: tuple[object, ...]
    compute: Callable[[], AnyArray]


@dataclass(frozen=True)
class _Codes:
    """Integers of scales, as bytes that are read as an element type.

    Attributes:
        given: the integers, of 8 bits at most.
        element: what bytes are read as.
        mask: the bits that count.
        zero: subtracted from them.
    """

    given: Value
    element: ElementType
    mask: int
    zero: int

    @property
    def bytes(self) -> AnyArray:
        """The integers."""
        integers = bytes_of(self.given)
        integers = integers if self.mask == 255 else integers & np.uint8(self.mask)
        return integers - np.uint8(self.zero & 255) if self.zero else integers


def _block(shape: Sequence[int], sizes: Sequence[int]) -> int | None:
    """How many consecutive integers of flattened axes share a scale; None if they are apart."""
    is_whole = True
    for extent, size in zip(reversed(shape), reversed(sizes), strict=True):
        if not is_whole and size > 1:
            return None
        is_whole &= size == extent
    return math.prod(sizes)


def _fit(zeros: Value, bits: int) -> bool:
    """Whether zero points are known, and are codes of so many bits."""
    array = constant_elements(zeros)
    return array is not None and bool(((array >= 0) & (array < 1 << bits)).all())


def _same(zeros: Value) -> Array | None:
    """The zero point of all blocks, if it is known and the same, as a byte."""
    array = constant_elements(zeros)
    if array is None or (array != array.flat[0]).any():
        return None
    return np.asarray(array.flat[0]).astype(np.uint8)


def _codes(integers: AnyArray, width: int, zero: int) -> AnyArray:
    """Integers of a width more `zero`, which makes none of them negative."""
    codes = integers ^ np.uint8(zero) if zero else integers
    return codes if width == 8 else codes & np.uint8(2**width - 1)


def _float_of(scales: Value) -> ElementType:
    """What scales are stored as: f16 as they are, others in f32."""
    return F16 if isinstance(scales.type.element_type, ir.F16Type) else F32
