"""Integers of few bits in the bytes of planes: how weights lie in archives and in programs.

Integers of 1, 2 or 4 bits lie in the bytes of one plane, along its last axis, the first in the
lowest bits of a byte. Integers of 3, 5 or 6 bits are split: their low 2 or 4 bits are a plane, the
bits above them another one. An integer of ``b`` bits then takes ``b`` bits, and any of them is at
hand with a shift and a mask for each plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_functions import unpack_bits
from .element_types import Array

__all__ = ["PackedIntegers", "pack_bits"]


def pack_bits(values: Array, bits: int) -> Array:
    """Pack values of 1, 2 or 4 bits into the bytes of the last axis: undo `unpack_bits`."""
    count = 8 // bits
    groups = values.astype(np.uint8).reshape((*values.shape[:-1], values.shape[-1] // count, count))
    packed = np.zeros(groups.shape[:-1], np.uint8)
    for place in range(count):
        packed |= groups[..., place] << np.uint8(bits * place)
    return packed


@dataclass(frozen=True)
class PackedIntegers:
    """How integers of few bits lie in planes.

    Attributes:
        name: of the plane, or what ``_low`` and ``_high`` are appended to if there are two.
        low: bits in the first plane; 8 for a plane of int8 that is not packed.
        high: bits in the second plane; 0 if there is none.
        zero: subtracted from the packed value, which makes it signed.
    """

    name: str
    low: int
    high: int = 0
    zero: int = 0

    @property
    def bits(self) -> dict[str, int]:
        """Bits of an integer by name of the plane."""
        if not self.high:
            return {self.name: self.low}
        return {f"{self.name}_low": self.low, f"{self.name}_high": self.high}

    def unpack(self, planes: Mapping[str, Any]) -> Any:
        """The integers, int8 if they are signed, else uint8."""
        low, *high = (planes[name] for name in self.bits)
        if self.low == 8:
            return low
        values = unpack_bits(low, self.low)
        if high:
            values = values | (unpack_bits(high[0], self.high) << self.low)
        return values.astype(np.int8) - self.zero if self.zero else values

    def pack(self, values: Array) -> dict[str, Array]:
        """The planes of integers; undo `unpack`."""
        if self.low == 8:
            return {self.name: values.astype(np.int8)}
        raw = (values.astype(np.int8) + np.int8(self.zero)).astype(np.uint8)
        parts = (raw & (2**self.low - 1), raw >> self.low)
        return {
            name: pack_bits(part, bits)
            for (name, bits), part in zip(self.bits.items(), parts, strict=False)
        }
