"""Blocks of 4-bit indices into a table: GGML's IQ4_NL, and whatever has 16 levels of its own.

Source: ggml's block formats, as PyPI's ``gguf`` reads them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..errors import InputError
from ..numerics.array_functions import lookup
from ..numerics.packed_integers import unpack_planes
from ..numerics.parameters import StorageType
from .scaled import BlockScaledLayout

__all__ = ["LookupBlockScaledLayout"]

_LEVELS = 16


class LookupBlockScaledLayout(BlockScaledLayout):
    """``d * table[qs] + m`` for blocks of the last axis.

    Planes, for a tensor of shape ``[..., K]`` and blocks of ``B``:
        d: scales ``[..., K / B, 1]``.
        qs: indices ``[..., K / B, B / 2]``, two in a byte (uint8), the even one in the low bits.
        m: offsets in units of the reals, of the shape of ``d``; 0 if left out.

    Metadata:
        table: 16 integers from -128 to 127.
    """

    PLANES: ClassVar = ("d", "qs", "m?")

    @property
    def block_size(self) -> int:
        """The number of elements that share a scale."""
        return 2 * int(self.planes["qs"].shape[-1])

    def check(self) -> None:
        """Check the blocks of the last axis, and the table."""
        super().check()
        self.expect("qs", tuple(self.planes["qs"].shape), "uint8")
        table = self.metadata.get("table")
        is_table = isinstance(table, list) and len(table) == _LEVELS
        if not is_table or not all(type(n) is int and -128 <= n <= 127 for n in table or ()):
            raise InputError(
                f"'table' of {self.name} must be a list of {_LEVELS} integers from -128 to 127, "
                f"got {table!r}"
            )

    @property
    def storage(self) -> StorageType:
        """That of the entries."""
        return StorageType(8, True)

    def values(self) -> Any:
        """The entries of the table ``[..., K / B, B]`` as int8."""
        table = np.array(self.metadata["table"], np.int8)
        return lookup(table, unpack_planes(self.planes["qs"], [4]))
