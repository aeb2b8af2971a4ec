"""Layouts with one level of scales: for a tensor, along an axis, or for blocks of the last axis.

Source: "Direct quantization with sharktank", ``TensorScaledLayout`` and ``BlockScaledI4Layout``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.array_functions import is_known, scatter, unpack_bits
from ..numerics.block_form import BlockForm
from ..numerics.element_types import AnyArray, Array
from ..numerics.packed_integers import PLANE_BITS, PackedIntegers, plane_shapes
from ..numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from .base import FLOAT_DTYPES, BlockLayout, QuantizedLayout, integers_of, packed_form


class TensorScaledLayout(QuantizedLayout):
    """``(qs - m) * d``, times a factor.

    Planes:
        d: scales, of a shape that broadcasts to the tensor's.
        qs: storage values, of the tensor's shape.
        m: offsets in units of the storage, of the shape of ``d``; 0 if left out.

    Metadata:
        factor: a number of f32 that multiplies the product after it is rounded; 1 if left out.
    """

    PLANES: ClassVar = ("d", "qs", "m?")
    METADATA: ClassVar = ("dtype", "factor")  # 'dtype' is sharktank's, of `dequant`

    def check(self) -> None:
        """Check that the planes broadcast to the shape, and the factor."""
        factor = self.factor
        if (
            type(factor) is not float
            or not 0 < factor < np.inf
            or float(np.float32(factor)) != factor
        ):
            raise InputError(
                f"'factor' of {self.name} must be a number of f32 above 0, got {factor!r}"
            )
        self.expect("qs", self.shape)
        scales = tuple(self.planes["d"].shape)
        try:
            fits = np.broadcast_shapes(scales, self.shape) == self.shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(
                f"plane 'd' of {self.name} has the shape {scales}, which does not broadcast to "
                f"{self.shape}"
            )
        self.expect("d", scales, *FLOAT_DTYPES)
        self.expect("m", scales)

    @property
    def factor(self) -> float:
        """The factor of all values."""
        factor: float = self.metadata.get("factor", 1.0)
        return factor

    def with_factor_in_scales(self) -> TensorScaledLayout:
        """The layout with the factor as part of the scales: values may differ by a rounding."""
        if self.factor == 1.0:
            return self
        scales = self.planes["d"].astype(self.compute_dtype())
        metadata = {key: value for key, value in self.metadata.items() if key != "factor"}
        planes = {**self.planes, "d": scales * scales.dtype.type(self.factor)}
        return type(self)(self.shape, planes, metadata)

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> AnyArray:
        """The values, of the layout's shape."""
        if self.factor != 1.0:
            metadata = {key: value for key, value in self.metadata.items() if key != "factor"}
            products = type(self)(self.shape, self.planes, metadata).dequant(self.compute_dtype())
            return (products * products.dtype.type(self.factor)).astype(dtype)
        form = self._form()
        if form is not None:
            return form.dequantize(self.expressed()).astype(dtype)
        compute = self.compute_dtype()
        values = self.planes["qs"].astype(compute)
        if "m" in self.planes:
            values = values - self.planes["m"].astype(compute)
        return (values * self.planes["d"].astype(compute)).astype(dtype)

    def _form(self) -> BlockForm | None:
        """Integers less integers of their range, in blocks as long as the axes or of one element.

        None for floats, for offsets that may be out of range, and where there is no element.
        """
        stored, scales, offsets = self.planes["qs"], self.planes["d"], self.planes.get("m")
        dtype = np.dtype(stored.dtype)
        if dtype.kind not in "iu" or dtype.itemsize > 4 or 0 in self.shape:
            return None
        if offsets is not None and np.dtype(offsets.dtype) != dtype:
            if np.dtype(offsets.dtype).kind not in "iu" or not is_known(offsets):
                return None
            range_ = np.iinfo(dtype)
            if offsets.min() < range_.min or offsets.max() > range_.max:
                return None
            offsets = offsets.astype(dtype)
        grid = (*(1,) * (len(self.shape) - len(scales.shape)), *scales.shape)
        return BlockForm(
            stored,
            integers_of(stored),
            tuple(1 if count == extent else extent
                  for count, extent in zip(grid, self.shape, strict=True)),
            scales.reshape(grid),
            None if offsets is None else offsets.reshape(grid),
        )  # fmt: skip

    def parameters(self) -> QuantizationParameters:
        """The same as a quantized type.

        Raises:
            UsageError: the offsets are no integers, scales differ along several axes, or there is
                a factor.
        """
        if self.factor != 1.0:
            raise UsageError("a layout with a factor is no quantized type")
        scales, offsets = self.planes["d"], self.planes.get("m")
        zero_points = np.zeros(scales.shape) if offsets is None else np.asarray(offsets, np.float64)
        if (zero_points != np.rint(zero_points)).any():
            raise UsageError("a layout with offsets that are no integers is no quantized type")
        axes = [axis for axis, extent in enumerate(scales.shape) if extent != 1]
        rank = len(self.shape) - len(scales.shape)
        if len(axes) > 1:
            raise UsageError("a layout with scales along several axes is no per-axis type")
        shape = (scales.shape[axes[0]],) if axes else ()
        return QuantizationParameters(
            StorageType.of_dtype(self.planes["qs"].dtype),
            ExpressedType.of_dtype(scales.dtype),
            tuple(axis + rank for axis in axes),
            (1,) * len(axes),
            np.asarray(scales).reshape(shape),
            zero_points.reshape(shape).astype(np.int64),
        )


class BlockAffineLayout(BlockLayout):
    """``(q - z) * d`` for blocks along any axes: the sub-channel type as planes.

    Packed storage lies as `subquant.numerics.packed_integers` says, signed values plus half their
    range. With `order`, the planes hold the columns of a matrix in another order, so that columns
    of one block are consecutive: `dequant` restores the order, and `subquant.ops.linear` gathers
    the other operand instead.

    Planes:
        d: scales, of shape ``ceil(shape / block_shape)``.
        qs: storage values, of the tensor's shape; packed ones of 2 or 4 bits are bytes (uint8).
        qs_low, qs_high: in place of ``qs`` the two planes of packed ones of 3, 5 or 6 bits.
        z: integer zero points, of the shape of ``d``; 0 if left out.
        order: the column of the matrix that each stored column is, ``[..., K]`` (int32), with the
            axes before those of the matrix; ascending if left out.

    Metadata:
        block_shape: the extents of a block, one an axis.
        storage: ``i4``, ``u8`` and so on, with the range if it is narrower: ``i8<-127:127>``.
        packed: whether the storage is; false if left out.
    """

    PLANES: ClassVar = ("d", "qs?", "qs_low?", "qs_high?", "z?", "order?")
    METADATA: ClassVar = ("block_shape", "storage", "packed")

    @classmethod
    def of(
        cls,
        stored: Array,
        scales: Array,
        zero_points: Array | None,
        block_shape: Sequence[int],
        storage: StorageType,
        order: Array | None = None,
    ) -> BlockAffineLayout:
        """The layout of storage values, packed where they have 2 to 6 bits and rows fill bytes.

        Scales and zero points have the shape ``ceil(shape / block_shape)``; storage values and
        blocks are in the order of the plane `order`.
        """
        bits = PLANE_BITS.get(storage.width)
        packed = bits is not None and plane_shapes(stored.shape, bits) is not None
        planes = {"qs": stored}
        metadata: dict[str, object] = {
            "block_shape": [int(n) for n in block_shape],
            "storage": str(storage),
        }
        if packed:
            planes = _integers(storage).pack(stored)
            metadata["packed"] = True
        arrays = {"d": scales, **planes, "z": zero_points, "order": order}
        return cls(stored.shape, arrays, metadata)

    @classmethod
    def of_quantized(
        cls, stored: npt.ArrayLike, parameters: QuantizationParameters
    ) -> BlockAffineLayout:
        """The layout of storage values with parameters of any granularity."""
        stored = np.asarray(stored)
        scales, zero_points = parameters.grids(stored.ndim)
        return cls.of(
            stored,
            scales,
            None if parameters.is_symmetric else zero_points.astype(np.int32),
            [
                b or n
                for b, n in zip(parameters.block_shape(stored.shape), stored.shape, strict=True)
            ],
            parameters.storage,
        )

    def check(self) -> None:
        """Check the grid of blocks, and the planes of packed storage."""
        block = self.metadata.get("block_shape")
        is_list = isinstance(block, list) and len(block) == len(self.shape)
        if not is_list or not all(isinstance(n, int) and n >= 1 for n in block or ()):
            raise InputError(
                f"'block_shape' of {self.name} must be a list of {len(self.shape)} positive "
                f"integers, got {block!r}"
            )
        grid = tuple(-(-n // b) for n, b in zip(self.shape, block or (), strict=True))
        self.expect("d", grid, *FLOAT_DTYPES)
        self.expect("z", grid)
        try:
            StorageType.parse(self.metadata.get("storage", ""))
        except UsageError as error:
            raise InputError(f"'storage' of {self.name}: {error.message}") from None
        self._check_storage()
        self._check_order()

    def _check_order(self) -> None:
        order = self.planes.get("order")
        if order is None:
            return
        if len(self.shape) < 2:
            raise InputError(f"{self.name} of shape {self.shape} has an order, expected a matrix")
        self.expect("order", (*self.shape[:-2], self.shape[-1]), "int32")
        if is_known(order) and (np.sort(order, axis=-1) != np.arange(self.shape[-1])).any():
            raise InputError(
                f"plane 'order' of {self.name} must have each column of {self.shape[-1]} once"
            )

    def in_stored_order(self) -> BlockAffineLayout:
        """The matrix with its columns as the planes hold them: column ``i`` is ``order[i]``."""
        planes = {name: plane for name, plane in self.planes.items() if name != "order"}
        return type(self)(self.shape, planes, self.metadata)

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, with the columns in the order of the matrix."""
        order = self.planes.get("order")
        if order is None:
            return super().dequant(dtype)
        *leading, rows, columns = self.shape
        axes = (*range(len(leading)), len(leading) + 1, len(leading))
        stored = self.in_stored_order().dequant(dtype).transpose(axes).reshape((-1, rows))
        ordered = scatter(stored, flat_columns(order), stored, "set")
        return ordered.reshape((*leading, columns, rows)).transpose(axes)

    def _check_storage(self) -> None:
        names = [name for name in self.planes if name[0] == "q"]
        expected: dict[str, tuple[int, ...]] = {"qs": self.shape}
        if packed := self.expect_boolean("packed", False):
            bits = PLANE_BITS.get(self.storage.width)
            shapes = None if bits is None else plane_shapes(self.shape, bits)
            if shapes is None:
                raise InputError(
                    f"{self.name} of shape {self.shape} has storage {self.storage}, which cannot "
                    "be packed"
                )
            expected = dict(zip(_integers(self.storage).bits, shapes, strict=True))
        if sorted(names) != sorted(expected):
            raise InputError(
                f"{self.name} with storage {self.storage} has the planes {sorted(names)}, expected "
                f"{list(expected)}"
            )
        for name, shape in expected.items():
            self.expect(name, shape, *(["uint8"] if packed else []))

    @property
    def storage(self) -> StorageType:
        """The storage type."""
        return StorageType.parse(self.metadata["storage"])

    @property
    def is_packed(self) -> bool:
        """True if the storage is packed into bytes."""
        return bool(self.metadata.get("packed", False))

    def stored(self) -> AnyArray:
        """The storage values in the shape of the tensor."""
        return _integers(self.storage).unpack(self.planes) if self.is_packed else self.planes["qs"]

    @property
    def row_block(self) -> int | None:
        """The block size along the last axis, if it divides it and is 1 along the others."""
        *leading, last = self.metadata["block_shape"]
        divides = last <= self.shape[-1] and self.shape[-1] % last == 0
        return last if divides and all(size == 1 for size in leading) else None

    @property
    def has_block_form(self) -> bool:
        """False if the planes have the columns in another order."""
        return "order" not in self.planes

    def block_form(self) -> BlockForm:
        """The integers; zero points in the type of the storage, in whose range they are.

        Raises:
            UsageError: the planes have the columns in another order: see `in_stored_order`.
        """
        self._expect_no_order()
        zero_points = self.planes.get("z")
        if self.is_packed:
            integers = _integers(self.storage)
            stored = integers.packed(self.planes, self.shape)
            if integers.zero:
                there = np.int32(0) if zero_points is None else zero_points
                zero_points = np.zeros(self.planes["d"].shape, np.int32) + there + integers.zero
        else:
            stored = self.planes["qs"]
        return BlockForm(
            stored,
            integers_of(stored, self.storage.width),
            tuple(min(b, n) for b, n in zip(self.metadata["block_shape"], self.shape, strict=True)),
            self.planes["d"],
            None if zero_points is None else zero_points.astype(stored.dtype),
        )

    def _expect_no_order(self) -> None:
        if not self.has_block_form:
            raise UsageError(f"{self.name} with an order of columns has no blocks of the matrix")

    def parameters(self) -> QuantizationParameters:
        """The same as a quantized type.

        Raises:
            UsageError: the planes have the columns in another order.
        """
        self._expect_no_order()
        scales, block = np.asarray(self.planes["d"]), self.metadata["block_shape"]
        axes = tuple(a for a, (n, b) in enumerate(zip(self.shape, block, strict=True)) if b != n)
        zero_points = np.asarray(self.planes.get("z", np.zeros(scales.shape, np.int64)))
        shape = scales.shape if axes else ()
        return QuantizationParameters(
            self.storage,
            ExpressedType.of_dtype(scales.dtype),
            axes,
            tuple(block[axis] for axis in axes),
            scales.reshape(shape),
            zero_points.reshape(shape),
            "sub-channel" if axes else "per-tensor",
        )


def flat_columns(order: AnyArray) -> AnyArray:
    """Return the plane `order` ``[..., K]`` as positions in ``[... * K]``, of one axis."""
    columns = order.shape[-1]
    matrices = order.reshape((-1, columns))
    if matrices.shape[0] == 1:
        return matrices.reshape((-1,))
    first = np.arange(matrices.shape[0], dtype=np.int32) * np.int32(columns)
    return (matrices + first[:, None]).reshape((-1,))


def _integers(storage: StorageType) -> PackedIntegers:
    """Packing of storage in the planes of a `BlockAffineLayout`."""
    return PackedIntegers.of("qs", storage.width, 2 ** (storage.width - 1) * storage.signed)


class BlockScaledLayout(BlockLayout):
    """``d * qs + m`` for blocks of the last axis.

    Planes, for a tensor of shape ``[..., K]`` and blocks of ``B``:
        d: scales ``[..., K / B, 1]``.
        qs: storage values ``[..., K / B, B]``.
        m: offsets in units of the reals, of the shape of ``d``; 0 if left out.
    """

    PLANES: ClassVar[tuple[str, ...]] = ("d", "qs", "m?")
    ELEMENTS_PER_BYTE: ClassVar[int | None] = None
    """The number of elements in a byte of ``qs``; None where they are not packed."""

    @property
    def row_block(self) -> int:
        """The number of elements that share a scale."""
        return int(self.planes["qs"].shape[-1]) * (self.ELEMENTS_PER_BYTE or 1)

    def _grid(self) -> tuple[int, ...]:
        if not self.shape or self.shape[-1] % self.block_size:
            raise InputError(
                f"{self.name} of shape {self.shape} has a last axis that is no multiple of its "
                f"block size {self.block_size}"
            )
        return (*self.shape[:-1], self.shape[-1] // self.block_size)

    def check(self) -> None:
        """Check the blocks of the last axis."""
        if not self.planes["qs"].ndim or not self.block_size:
            raise InputError(f"plane 'qs' of {self.name} has no blocks")
        grid = self._grid()
        dtypes = () if self.ELEMENTS_PER_BYTE is None else ("uint8",)
        self.expect("qs", (*grid, self.planes["qs"].shape[-1]), *dtypes)
        self._check_scales(grid)

    def _check_scales(self, grid: tuple[int, ...]) -> None:
        self.expect("d", (*grid, 1), *FLOAT_DTYPES)
        self.expect("m", (*grid, 1), *FLOAT_DTYPES)

    def values(self) -> Any:
        """The storage values ``[..., K / B, B]``."""
        return self.planes["qs"]

    @property
    def storage(self) -> StorageType:
        """The storage type of the values."""
        return StorageType.of_dtype(self.values().dtype)

    def parameters(self) -> QuantizationParameters:
        """The same as a sub-channel type; `stored` are its storage values.

        Raises:
            UsageError: there are offsets: they are reals, and no zero points.
        """
        if "m" in self.planes:
            raise UsageError(f"{self.name} with offsets in units of the reals is no quantized type")
        return self._sub_channel(self.storage, np.asarray(self.planes["d"])[..., 0])

    def stored(self) -> Any:
        """The storage values in the shape of the tensor."""
        return self.values().reshape(self.shape)

    def block_form(self) -> BlockForm:
        """The integers in the shape of the tensor, scales and offsets."""
        scales, offsets = self._scales_and_offsets()
        stored = self.stored()
        return BlockForm(
            stored,
            integers_of(stored, self.storage.width),
            (*(1,) * (len(self.shape) - 1), self.block_size),
            scales,
            None,
            offsets,
        )

    def _scales_and_offsets(self) -> tuple[Any, Any]:
        """One for each block; the offsets may be None."""
        grid = (*self.shape[:-1], self.shape[-1] // self.block_size)
        offsets = self.planes.get("m")
        return self.planes["d"].reshape(grid), None if offsets is None else offsets.reshape(grid)

    def dequant_blocked(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values ``[..., K / B, B]``."""
        blocks = self.shape[-1] // self.block_size
        return self.dequant(dtype).reshape((*self.shape[:-1], blocks, self.block_size))


class BlockScaledI4Layout(BlockScaledLayout):
    """`BlockScaledLayout` with two 4-bit values in a byte, the even one in the low bits.

    Planes: as there, with ``qs`` of shape ``[..., K / B, B / 2]`` and uint8.

    Metadata:
        signed: whether values are -8 to 7, or 0 to 15.
    """

    METADATA: ClassVar = ("signed",)
    ELEMENTS_PER_BYTE: ClassVar = 2

    def check(self) -> None:
        """Check the blocks of the last axis, and the metadata."""
        super().check()
        self.expect_boolean("signed")

    @property
    def storage(self) -> StorageType:
        """Signed or unsigned, of 4 bits."""
        return StorageType(4, self.metadata["signed"])

    def values(self) -> Any:
        """The storage values ``[..., K / B, B]`` as int8 or uint8."""
        nibbles = unpack_bits(self.planes["qs"], 4)
        if not self.metadata["signed"]:
            return nibbles
        return ((nibbles ^ 8) - 8).astype(np.int8)

    def block_form(self) -> BlockForm:
        """The integers in the shape of the tensor, scales and offsets.

        The sign bit the other way round, a signed integer is one between 0 and 15, less 8.
        """
        planes, signed = dict(self.planes), self.metadata["signed"]
        if signed:
            planes["qs"] = planes["qs"] ^ 0x88
        integers = PackedIntegers("qs", 4, zero=8 if signed else 0)
        scales, offsets = self._scales_and_offsets()
        return packed_form(integers, planes, self.shape, self.block_size, scales, offsets)
