"""Layouts with one level of scales: for a tensor, along an axis, or for blocks of the last axis.

Source: "Direct quantization with sharktank", ``TensorScaledLayout`` and ``BlockScaledI4Layout``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.array_functions import is_known, unpack_bits
from ..numerics.block_form import BlockForm
from ..numerics.element_types import AnyArray
from ..numerics.packed_integers import PackedIntegers
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
        pairs = zip(reversed(scales), reversed(self.shape), strict=False)
        if len(scales) > len(self.shape) or any(n not in (size, 1) for n, size in pairs):
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
        form = self.integer_form()
        if form is not None:
            return form.dequantize(self.expressed()).astype(dtype)
        compute = self.compute_dtype()
        values = self.planes["qs"].astype(compute)
        if "m" in self.planes:
            values = values - self.planes["m"].astype(compute)
        return (values * self.planes["d"].astype(compute)).astype(dtype)

    def integer_form(self) -> BlockForm | None:
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
            tuple(1 if count == size else size
                  for count, size in zip(grid, self.shape, strict=True)),
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
        axes = [axis for axis, size in enumerate(scales.shape) if size != 1]
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
