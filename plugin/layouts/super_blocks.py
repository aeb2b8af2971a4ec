"""Layouts with two levels of scales: GGML's K-quants as planes.

A super-block holds sub-blocks. It has one scale ``d`` (and one ``dmin``) in floating point; each
sub-block has a small integer that multiplies it, and the elements are small integers in turn:

    (d * scale) * q                         without minimums
    (d * scale) * q - (dmin * minimum)      with minimums

computed in float32, in this order. With ``d`` in f16 all products are exact: they have 23 bits at
most (Q6_K: 11 of ``d``, 7 of the scale, 5 of ``q``) and stay in float32's normal range. Only the
difference is rounded, so it is all the same whether a compiler makes a fused multiply-add of it.
Both parentheses are per sub-block: a contraction can take them out of its inner sum.

Names are ``SuperBlock[Offset]Scaled_<bits of q>_<bits of scales>_Layout``. The planes of
`SuperBlockOffsetScaled_4_6_Layout` are those that sharktank writes; the others continue them.
Integers lie in planes as `subquant.numerics.packed_integers` says: those of 3, 5 or 6 bits in a
plane ``..._low`` and a plane ``..._high``.

Source: "Direct quantization with sharktank", ``SuperBlockOffsetScaled_4_6_Layout``; ggml's block
formats, as PyPI's ``gguf`` reads them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.block_form import BlockForm
from ..numerics.element_types import Array
from ..numerics.packed_integers import PackedIntegers
from ..numerics.parameters import QuantizationParameters, StorageType
from .base import FLOAT_DTYPES, BlockLayout, packed_form


class SuperBlockLayout(BlockLayout):
    """Base of the layouts with superblocks; each defines the packing of its integers."""

    QS: ClassVar[PackedIntegers]
    SCALES: ClassVar[PackedIntegers]
    MINIMUMS: ClassVar[PackedIntegers | None] = None

    @classmethod
    def pack(
        cls, d: Array, scales: Array, qs: Array, dmin: Array | None = None,
        minimums: Array | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """The planes of scales and integers.

        Args:
            d, dmin: scales of super-blocks ``[..., SUP, 1]``, and those of the minimums.
            scales, minimums: integers of sub-blocks ``[..., SUP, SUB]``.
            qs: integers ``[..., SUP, SUB, B]``.
        """
        planes = {"d": d, **cls.SCALES.pack(scales), **cls.QS.pack(qs)}
        if cls.MINIMUMS is not None and dmin is not None and minimums is not None:
            planes |= {"dmin": dmin, **cls.MINIMUMS.pack(minimums)}
        return planes

    @property
    def sub_blocks(self) -> int:
        """The number of sub-blocks in a super-block."""
        return int(self._first().shape[-2])

    @property
    def row_block(self) -> int:
        """The number of elements in a sub-block."""
        return int(self._first().shape[-1]) * 8 // self.QS.low

    def _first(self) -> Any:
        return self.planes[next(iter(self.QS.bits))]

    def check(self) -> None:
        """Check the super-blocks of the last axis."""
        if self._first().ndim < 3 or not self.shape:
            raise InputError(f"the elements of {self.name} have no super-blocks and sub-blocks")
        sub, size = self.sub_blocks, self.block_size
        if not sub * size or self.shape[-1] % (sub * size):
            raise InputError(
                f"{self.name} of shape {self.shape} has a last axis that is no multiple of "
                f"{sub} sub-blocks of {size}"
            )
        grid = (*self.shape[:-1], self.shape[-1] // (sub * size))
        for name in ("d", "dmin"):
            self.expect(name, (*grid, 1), *FLOAT_DTYPES)
        for field in (self.SCALES, self.MINIMUMS):
            for name, bits in field.bits.items() if field else ():
                self.expect(name, (*grid, sub * bits // 8), "int8" if bits == 8 else "uint8")
        for name, bits in self.QS.bits.items():
            self.expect(name, (*grid, sub, size * bits // 8), "uint8")

    def values(self) -> Any:
        """The integers ``[..., SUP, SUB, B]``, int8 or uint8."""
        return self.QS.unpack(self.planes)

    @property
    def storage(self) -> StorageType:
        """The storage type of the integers, where there are no minimums."""
        return StorageType(self.QS.low + self.QS.high)

    def block_form(self) -> BlockForm:
        """The integers in the shape of the tensor; scales, and less the minimums as offsets."""
        minimums = None
        if self.MINIMUMS is not None:
            minus = self.planes["dmin"].astype(self.compute_dtype()) * self.compute_dtype().type(-1)
            minimums = self._of_super_blocks(minus, self.MINIMUMS)
        return self._form(self._of_super_blocks(self.planes["d"], self.SCALES), minimums)

    def _form(self, scales: BlockForm, offsets: BlockForm | None) -> BlockForm:
        """The integers with their scales and offsets."""
        return packed_form(self.QS, self.planes, self.shape, self.block_size, scales, offsets)

    def _of_super_blocks(self, reals: Any, field: PackedIntegers) -> BlockForm:
        """Small integers, one for each sub-block, times a float for each super-block."""
        grid = (*self.shape[:-1], self.shape[-1] // self.block_size)
        scales = reals.reshape((*grid[:-1], grid[-1] // self.sub_blocks))
        return packed_form(field, self.planes, grid, self.sub_blocks, scales)

    def parameters(self) -> QuantizationParameters:
        """The same as a quantized type, of scales that are the products of both levels.

        Raises:
            UsageError: there are minimums, which no quantized type has.
        """
        if self.MINIMUMS is not None:
            raise UsageError(f"{self.name} subtracts minimums, which no quantized type does")
        scales = np.asarray(self.block_form().real_scales(self.expressed()))
        grid = (*self.shape[:-1], self.shape[-1] // self.block_size)
        return self._sub_channel(self.storage, scales.reshape(grid))

    def dequant_blocked(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values ``[..., SUP, SUB, B]``."""
        size = (self.sub_blocks, self.block_size)
        supers = self.shape[-1] // (size[0] * size[1])
        return self.dequant(dtype).reshape((*self.shape[:-1], supers, *size))


class SuperBlockOffsetScaled_4_6_Layout(SuperBlockLayout):  # noqa: N801 (the name in archives)
    """``d * scale * q - dmin * minimum``: GGML's Q4_K with 8 sub-blocks of 32.

    Planes, for a tensor of shape ``[..., K]`` and ``SUP * SUB * B = K``:
        d, dmin: ``[..., SUP, 1]``.
        sb_scales_low, sb_mins_low: low 4 bits, ``[..., SUP, SUB / 2]`` (uint8).
        sb_scales_high, sb_mins_high: high 2 bits, ``[..., SUP, SUB / 4]`` (uint8).
        qs: 4 bits, ``[..., SUP, SUB, B / 2]`` (uint8).
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 4, 2)
    MINIMUMS: ClassVar = PackedIntegers("sb_mins", 4, 2)
    QS: ClassVar = PackedIntegers("qs", 4)
    PLANES: ClassVar = ("d", "dmin", *SCALES.bits, *MINIMUMS.bits, *QS.bits)


class SuperBlockOffsetScaled_5_6_Layout(SuperBlockLayout):  # noqa: N801 (the name in archives)
    """``d * scale * q - dmin * minimum``: GGML's Q5_K with 8 sub-blocks of 32.

    Planes: as `SuperBlockOffsetScaled_4_6_Layout`, but in place of ``qs``
        qs_low: low 4 bits, ``[..., SUP, SUB, B / 2]`` (uint8).
        qs_high: the high bit, ``[..., SUP, SUB, B / 8]`` (uint8).
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 4, 2)
    MINIMUMS: ClassVar = PackedIntegers("sb_mins", 4, 2)
    QS: ClassVar = PackedIntegers("qs", 4, 1)
    PLANES: ClassVar = ("d", "dmin", *SCALES.bits, *MINIMUMS.bits, *QS.bits)


class SuperBlockOffsetScaled_2_4_Layout(SuperBlockLayout):  # noqa: N801 (the name in archives)
    """``d * scale * q - dmin * minimum``: GGML's Q2_K with 16 sub-blocks of 16.

    Planes, for a tensor of shape ``[..., K]`` and ``SUP * SUB * B = K``:
        d, dmin: ``[..., SUP, 1]``.
        sb_scales, sb_mins: 4 bits, ``[..., SUP, SUB / 2]`` (uint8).
        qs: 2 bits, ``[..., SUP, SUB, B / 4]`` (uint8).
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 4)
    MINIMUMS: ClassVar = PackedIntegers("sb_mins", 4)
    QS: ClassVar = PackedIntegers("qs", 2)
    PLANES: ClassVar = ("d", "dmin", *SCALES.bits, *MINIMUMS.bits, *QS.bits)


class SuperBlockScaled_3_6_Layout(SuperBlockLayout):  # noqa: N801 (the name in archives)
    """``d * (scale - 32) * (q - 4)``: GGML's Q3_K with 16 sub-blocks of 16.

    Planes, for a tensor of shape ``[..., K]`` and ``SUP * SUB * B = K``:
        d: ``[..., SUP, 1]``.
        sb_scales_low, sb_scales_high: low 4 and high 2 bits, ``[..., SUP, SUB / 2]`` and
            ``[..., SUP, SUB / 4]`` (uint8).
        qs_low, qs_high: low 2 bits and the high bit, ``[..., SUP, SUB, B / 4]`` and
            ``[..., SUP, SUB, B / 8]`` (uint8).
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 4, 2, zero=32)
    QS: ClassVar = PackedIntegers("qs", 2, 1, zero=4)
    PLANES: ClassVar = ("d", *SCALES.bits, *QS.bits)


class SuperBlockScaled_6_8_Layout(SuperBlockLayout):  # noqa: N801 (the name in archives)
    """``d * scale * (q - 32)``: GGML's Q6_K with 16 sub-blocks of 16.

    Planes, for a tensor of shape ``[..., K]`` and ``SUP * SUB * B = K``:
        d: ``[..., SUP, 1]``.
        sb_scales: ``[..., SUP, SUB]`` (int8).
        qs_low, qs_high: low 4 and high 2 bits, ``[..., SUP, SUB, B / 2]`` and
            ``[..., SUP, SUB, B / 4]`` (uint8).
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 8)
    QS: ClassVar = PackedIntegers("qs", 4, 2, zero=32)
    PLANES: ClassVar = ("d", *SCALES.bits, *QS.bits)
