"""Blocks of integers of 2, 3, 5 or 6 bits that take no more: GGML's Q5_0, Q5_1 and TQ2_0 as planes.

Source: ggml's block formats, as PyPI's ``gguf`` reads them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..errors import InputError
from ..numerics.block_form import BlockForm
from ..numerics.element_types import Array
from ..numerics.packed_integers import PackedIntegers
from ..numerics.parameters import StorageType
from .base import packed_form
from .scaled import BlockScaledLayout

_WIDTHS = (2, 3, 5, 6)
"""Bits of an integer; `BlockScaledI4Layout` has those of 4."""


class BlockScaledPackedLayout(BlockScaledLayout):
    """`BlockScaledLayout` with integers packed as in `subquant.numerics.packed_integers`.

    Planes, for a tensor of shape ``[..., K]`` and blocks of ``B``:
        d: scales ``[..., K / B, 1]``.
        qs (2 bits): ``[..., K / B, B / 4]`` (uint8).
        qs_low (3, 5 or 6 bits): low 2, 4 or 4 bits, ``[..., K / B, B * low / 8]`` (uint8).
        qs_high (3, 5 or 6 bits): high 1, 1 or 2 bits, ``[..., K / B, B * high / 8]`` (uint8).
        m: offsets in units of the reals, of the shape of ``d``; 0 if left out.

    Metadata:
        bits: 2, 3, 5 or 6.
        signed: True to subtract half of the range from the packed integers.
        zero: the number to subtract instead, from 1 to ``2**bits - 1``; only with ``signed``.
    """

    PLANES: ClassVar = ("d", "qs?", "qs_low?", "qs_high?", "m?")
    METADATA: ClassVar = ("bits", "signed", "zero")

    @classmethod
    def pack(
        cls, values: Array, bits: int, signed: bool, zero: int | None = None
    ) -> dict[str, Array]:
        """The planes of integers ``[..., B]``, beside scales and offsets."""
        return _field(bits, signed, zero).pack(values)

    @property
    def _integers(self) -> PackedIntegers:
        return _field(self.metadata["bits"], self.metadata["signed"], self.metadata.get("zero"))

    @property
    def row_block(self) -> int:
        """The number of elements that share a scale."""
        name, bits = next(iter(self._integers.bits.items()))
        return int(self.planes[name].shape[-1]) * 8 // bits

    def check(self) -> None:
        """Check the metadata, and the blocks of the last axis."""
        bits = self.metadata.get("bits")
        if bits not in _WIDTHS or type(bits) is not int:
            raise InputError(f"'bits' of {self.name} must be 2, 3, 5 or 6, got {bits!r}")
        signed, zero = self.expect_boolean("signed"), self.metadata.get("zero")
        if zero is not None and not (signed and type(zero) is int and 0 < zero < 2**bits):
            raise InputError(
                f"'zero' of {self.name} must be an integer from 1 to {2**bits - 1}, with 'signed' "
                f"being true, got {zero!r} with {signed}"
            )
        names = [name for name in self.planes if name.startswith("qs")]
        if sorted(names) != sorted(self._integers.bits):
            raise InputError(
                f"{self.name} of {bits} bits has the planes {sorted(names)}, expected "
                f"{list(self._integers.bits)}"
            )
        if not all(self.planes[name].ndim for name in names) or not self.block_size:
            raise InputError(f"plane '{names[0]}' of {self.name} has no blocks")
        grid = self._grid()
        for name, of_plane in self._integers.bits.items():
            self.expect(name, (*grid, self.block_size * of_plane // 8), "uint8")
        self._check_scales(grid)

    @property
    def storage(self) -> StorageType:
        """The integers' type: of `bits` bits, or of 8 bits with another zero."""
        zero, bits = self.metadata.get("zero"), self.metadata["bits"]
        if zero is not None:
            return StorageType(8, True, -zero, 2**bits - 1 - zero)
        return StorageType(bits, self.metadata["signed"])

    def values(self) -> Any:
        """The storage values ``[..., K / B, B]`` as int8 or uint8."""
        return self._integers.unpack(self.planes)

    def block_form(self) -> BlockForm:
        """The integers in the shape of the tensor, scales and offsets."""
        scales, offsets = self._scales_and_offsets()
        return packed_form(
            self._integers, self.planes, self.shape, self.block_size, scales, offsets
        )


def _field(bits: int, signed: bool, zero: int | None) -> PackedIntegers:
    half = 2 ** (bits - 1) if signed else 0
    return PackedIntegers.of("qs", bits, zero=half if zero is None else zero)
