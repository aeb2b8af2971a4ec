"""Integers of few bits in the bytes of planes: how weights lie in archives and in programs.

Integers of 1, 2 or 4 bits lie in the bytes of one plane, along its last axis, the first in the
lowest bits of a byte. Integers of 3, 5 or 6 bits are split: their low 2 or 4 bits are a plane, the
bits above them another one. An integer of ``b`` bits then takes ``b`` bits, and any of them is at
hand with a shift and a mask for each plane::

    integer[k] = sum_i (plane_i[k * bits_i / 8] >> (k * bits_i) % 8 & 2**bits_i - 1) << first_i

where ``first_i`` is the sum of the bits of the planes before. The last axis has a multiple of
``8 / min(bits)`` integers.

Where they are one tensor (an argument of a program), two planes follow one another: all bytes of
the low one, then all of the high one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .array_functions import dispatched, is_zero, unpack_bits
from .element_types import I8, AnyArray, Array

PLANE_BITS: dict[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}
"""The bits of an integer in each of its planes, by the bits of the integer."""


def pack_bits(values: Array, bits: int) -> Array:
    """Pack values of 1, 2 or 4 bits into the bytes of the last axis: undo `unpack_bits`."""
    count = 8 // bits
    words = np.ascontiguousarray(values, np.uint8).view(f"<u{count}")
    packed = words.copy()
    for index in range(1, count):  # byte `index` of a word moves to its bits in the lowest byte
        packed |= words >> words.dtype.type(index * (8 - bits))
    return packed.astype(np.uint8)


def pack_planes(values: Array, bits: Sequence[int]) -> list[Array]:
    """The planes (uint8) of 8-bit integers of which only the lowest ``sum(bits)`` bits count.

    An integer has `bits` in each plane; the last axis has a multiple of ``8 / min(bits)``.
    """
    rest, planes = values.view(np.uint8), []
    for count in bits:
        planes.append(pack_bits(rest & np.uint8(2**count - 1), count))
        rest = rest >> np.uint8(count)
    return planes


def wrapped(array: Array, bits: int) -> Array:
    """Integers modulo ``2**bits`` (64 bits at most), as signed integers.

    The array is int64, or int8, which stays int8 for 8 bits and less.
    """
    if array.dtype == np.int8 and bits > I8.bits:
        array = array.astype(np.int64)
    if bits == array.dtype.itemsize * 8:
        return array
    half = 1 << (bits - 1)
    return np.asarray(((array & (2 * half - 1)) ^ half) - half)


@dispatched
def unpack_planes(low: AnyArray, bits: Sequence[int], high: AnyArray | None = None) -> AnyArray:
    """The integers of planes (uint8), as uint8 between 0 and ``2**sum(bits) - 1``."""
    values = unpack_bits(low, bits[0])
    return values if high is None else values | (unpack_bits(high, bits[1]) << bits[0])


def integer_at(
    planes: Sequence[AnyArray], indices: Sequence[AnyArray], bits: Sequence[int]
) -> AnyArray:
    """Return an integer from a byte of each plane and the index of its bits in that byte.

    Args:
        planes, indices: uint8, arrays or values of a program.
        bits: the bits of an integer in each plane.
    """
    integer, first = None, 0
    for byte, index, count in zip(planes, indices, bits, strict=True):
        part = (byte if is_zero(index) else byte >> (index * count)) & (2**count - 1)
        integer = part if integer is None else integer | (part << first)
        first += count
    return integer


def plane_shapes(shape: Sequence[int], bits: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The shape of each plane of integers of a shape, or None if a byte would be left unfilled."""
    if not shape or shape[-1] * min(bits) % 8:
        return None
    return [(*shape[:-1], shape[-1] * count // 8) for count in bits]


def packed_shape(shape: Sequence[int], bits: Sequence[int]) -> tuple[int, ...] | None:
    """The shape of all planes as one tensor of bytes, or None as `plane_shapes`.

    One plane keeps its shape; two are bytes along one axis.
    """
    shapes = plane_shapes(shape, bits)
    if shapes is None:
        return None
    if len(shapes) == 1:
        return shapes[0]
    return (sum(int(np.prod(plane)) for plane in shapes),)


@dataclass(frozen=True)
class PackedIntegers:
    """Packing of integers of few bits into the planes of a layout.

    Attributes:
        name: the plane, or with two planes the prefix of ``_low`` and ``_high``.
        low: bits in the first plane; 8 for a plane of int8 that is not packed.
        high: bits in the second plane; 0 if there is none.
        zero: subtracted from the packed value, which makes it signed.
    """

    name: str
    low: int
    high: int = 0
    zero: int = 0

    @classmethod
    def of(cls, name: str, bits: int, zero: int = 0) -> PackedIntegers:
        """Integers of 2 to 6 bits."""
        low, *high = PLANE_BITS[bits]
        return cls(name, low, high[0] if high else 0, zero)

    @property
    def bits(self) -> dict[str, int]:
        """Bits of an integer by name of the plane."""
        if not self.high:
            return {self.name: self.low}
        return {f"{self.name}_low": self.low, f"{self.name}_high": self.high}

    def packed(
        self, planes: Mapping[str, AnyArray], shape: Sequence[int] | None = None
    ) -> AnyArray:
        """Return the packed values, `zero` more than the integers: uint8, or int8 if not packed.

        Args:
            shape: the shape of the integers; by default the planes' with a longer last axis.
        """
        arrays = [planes[name] for name in self.bits]
        if self.low == 8:
            return arrays[0] if shape is None else arrays[0].reshape(tuple(shape))
        bits = tuple(self.bits.values())
        if shape is not None:
            shapes = plane_shapes(shape, bits)
            assert shapes is not None  # a layout's blocks fill bytes
            arrays = [plane.reshape(own) for plane, own in zip(arrays, shapes, strict=True)]
        return unpack_planes(arrays[0], bits, *arrays[1:])

    def unpack(self, planes: Mapping[str, AnyArray]) -> AnyArray:
        """The integers, int8 if they are signed, else uint8."""
        values = self.packed(planes)
        return values.astype(np.int8) - self.zero if self.zero else values

    def pack(self, values: Array) -> dict[str, Array]:
        """The planes of integers; undo `unpack`."""
        if self.low == 8:
            return {self.name: values.astype(np.int8)}
        raw = (values.astype(np.int8) + np.int8(self.zero)).astype(np.uint8)
        return dict(zip(self.bits, pack_planes(raw, tuple(self.bits.values())), strict=True))
