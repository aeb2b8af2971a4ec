"""Blocks of 4-bit indices into a table of 16 levels: GGML's IQ4_NL, MXFP4, NVFP4, NF4.

The types IQ1, IQ2 and IQ3 have codebooks: a number of 8 to 11 bits selects a short row of integers
for 4 or 8 elements at once; their signs are bits of their own, or a delta is added. As layouts hold
one number for each element, an element becomes the index of its integer among the few that a
codebook has, which are `LEVELS`. The rows are those of PyPI's ``gguf``, which the extra ``gguf``
brings: they follow no rule, so they are not written again here.

Source: ggml's block formats, as PyPI's ``gguf`` reads them.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.requirements import require
from ..errors import InputError, UsageError
from ..numerics.array_functions import take
from ..numerics.block_form import BlockForm
from ..numerics.element_types import Array
from ..numerics.packed_integers import PackedIntegers, unpack_planes
from ..numerics.parameters import QuantizationParameters, StorageType
from .base import QuantizedLayout, integers_of
from .scaled import BlockScaledLayout
from .super_blocks import SuperBlockLayout

_LEVELS = 16
"""The entries of a codebook: indices have 4 bits."""


class _TableLayout(QuantizedLayout):
    """Base of layouts of indices into a table; another base says where the indices lie."""

    METADATA: ClassVar[tuple[str, ...]] = ("table",)
    HAS_FLOATS: ClassVar = False
    """True if the entries of a table may be floats."""

    def check(self) -> None:
        """Check the blocks, and that ``table`` is 16 integers of 8 bits, or 16 floats of f32."""
        super().check()  # type: ignore[safe-super]  # the other base
        table = self.metadata.get("table")
        is_table = isinstance(table, list) and len(table) == _LEVELS
        is_valid = is_table and all(type(n) is int and -128 <= n <= 127 for n in table or ())
        if self.HAS_FLOATS and is_table and not is_valid:
            is_valid = all(type(n) is float and float(np.float32(n)) == n for n in table or ())
        if not is_valid:
            floats = ", or of floats of f32" if self.HAS_FLOATS else ""
            raise InputError(
                f"'table' of {self.name} must be a list of {_LEVELS} integers from -128 to 127"
                f"{floats}, got {table!r}"
            )

    @property
    def has_float_table(self) -> bool:
        """True if the entries of the table are floats."""
        return type(self.metadata["table"][0]) is float

    @property
    def storage(self) -> StorageType:
        """The storage type of the entries."""
        return StorageType(8, True)

    def entries(self, indices: Any) -> Any:
        """The entries of the table as int8, or f32."""
        dtype = np.float32 if self.has_float_table else np.int8
        return take(np.array(self.metadata["table"], dtype), indices)


class LookupBlockScaledLayout(_TableLayout, BlockScaledLayout):
    """``d / divisor * table[qs] + m`` for blocks of the last axis.

    Planes, for a tensor of shape ``[..., K]`` and blocks of ``B``:
        d: scales ``[..., K / B, 1]``.
        qs: indices ``[..., K / B, B / 2]``, two in a byte (uint8), the even one in the low bits.
        m: offsets in units of the reals, of the shape of ``d``; 0 if left out. Not with floats.
        divisor: of all scales of a matrix, of the shape of the axes before it (f32): the global
            scale of NVFP4, whose quotients are rounded to f32. 1 if left out.

    Metadata:
        table: 16 integers from -128 to 127, or 16 floats of f32 (NF4).
    """

    PLANES: ClassVar = ("d", "qs", "m?", "divisor?")
    ELEMENTS_PER_BYTE: ClassVar = 2
    HAS_FLOATS: ClassVar = True

    def check(self) -> None:
        """Check the blocks, the table and the divisor."""
        super().check()
        self.expect("divisor", self.shape[:-2], "float32")
        if "m" in self.planes and self.has_float_table:
            raise InputError(f"{self.name} has offsets and a table of floats, expected one of them")

    @property
    def has_block_form(self) -> bool:
        """False with a table of floats: a block form has integers."""
        return not self.has_float_table

    def values(self) -> Any:
        """The entries of the table ``[..., K / B, B]`` as int8, or f32."""
        return self.entries(unpack_planes(self.planes["qs"], [4]))

    def block_form(self) -> BlockForm:
        """The integers in the shape of the tensor, scales and offsets.

        Raises:
            UsageError: the table has floats.
        """
        if self.has_float_table:
            raise UsageError(f"{self.name} with a table of floats has no block form of integers")
        return super().block_form()

    def _scales_and_offsets(self) -> tuple[Any, Any]:
        scales, offsets = super()._scales_and_offsets()
        if "divisor" in self.planes:
            divisor = self.planes["divisor"].reshape((*self.shape[:-2], 1, 1))
            with np.errstate(all="ignore"):
                scales = scales.astype(np.float32) / divisor
        return scales, offsets

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, of the layout's shape."""
        if not self.has_float_table:
            return super().dequant(dtype)
        compute = self.compute_dtype()
        scales = self._scales_and_offsets()[0].astype(compute)
        with np.errstate(all="ignore"):
            values = self.values().astype(compute) * scales.reshape((*scales.shape, 1))
        return values.reshape(self.shape).astype(dtype)

    def parameters(self) -> QuantizationParameters:
        """The same as a sub-channel type.

        Raises:
            UsageError: there are offsets, a divisor, or a table of floats.
        """
        if "divisor" in self.planes or self.has_float_table:
            raise UsageError(
                f"{self.name} with a divisor or a table of floats is no quantized type"
            )
        return super().parameters()


class SuperBlockLookupScaled_4_6_Layout(_TableLayout, SuperBlockLayout):  # noqa: N801 (archives')
    """``d * (scale - 32) * table[q]``: GGML's IQ4_XS, and its types with codebooks.

    They have 8 sub-blocks of 32, or 16 of 16. Products are exact: ``d`` has 11 bits, the scale 6,
    and an entry 7 in IQ4_XS; 5 and 6 at most where there is a codebook.

    Planes, for a tensor of shape ``[..., K]`` and ``SUP * SUB * B = K``:
        d: ``[..., SUP, 1]``.
        sb_scales_low, sb_scales_high: low 4 and high 2 bits, ``[..., SUP, SUB / 2]`` and
            ``[..., SUP, SUB / 4]`` (uint8).
        qs: indices, 4 bits, ``[..., SUP, SUB, B / 2]`` (uint8).

    Metadata:
        table: 16 integers from -128 to 127.
    """

    SCALES: ClassVar = PackedIntegers("sb_scales", 4, 2, zero=32)
    QS: ClassVar = PackedIntegers("qs", 4)
    PLANES: ClassVar = ("d", *SCALES.bits, *QS.bits)

    def values(self) -> Any:
        """The entries of the table ``[..., SUP, SUB, B]`` as int8."""
        return self.entries(super().values())

    def _form(self, scales: BlockForm, offsets: BlockForm | None) -> BlockForm:
        entries = self.values().reshape(self.shape)
        sizes = (*(1,) * (len(self.shape) - 1), self.block_size)
        return BlockForm(entries, integers_of(entries), sizes, scales, None, offsets)


# -- codebooks ------------------------------------------------------------------------------------

_IQ1, _IQ2 = (-1, 0, 1), (8, 25, 43)
"""Magnitudes of the codebooks of IQ1 and IQ2, as in ggml: `LEVELS` has them by type."""
TWICE_E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
"""Twice the value of each 4-bit float with two bits of exponent: MXFP4, NVFP4."""
LEVELS: dict[str, tuple[int, ...]] = {
    "IQ1_S": _IQ1,
    "IQ1_M": _IQ1,
    "IQ2_XXS": _IQ2,
    "IQ2_XS": _IQ2,
    "IQ2_S": _IQ2,
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""The integers in each codebook, in ascending order."""


@functools.cache
def codebook(name: str) -> Array:
    """Rows of indices into `LEVELS` (uint8): ``[2**bits, 4]``, or 8 elements in a row.

    Raises:
        EnvironmentProblem: the package ``gguf`` is not installed.
    """
    require("gguf", f"a tensor of the GGML type {name}", "gguf")
    import gguf.quants

    of_type = getattr(gguf.quants, name)
    of_type.init_grid()
    rows = of_type.grid[0, 0]
    levels = np.array(LEVELS[name], np.float32)
    indices: Array = np.searchsorted(levels, rows).astype(np.uint8)
    assert (levels[indices] == rows).all(), name
    return indices


def even_signs(words: Array) -> Array:
    """The signs of 8 elements, an even number of which is negative: ``[...]`` to ``[..., 8]``.

    Args:
        words: unsigned, with the signs of the first seven in the lowest 7 bits.
    """
    first = (words[..., None] >> np.arange(7, dtype=words.dtype)).astype(np.uint8) & np.uint8(1)
    last = np.bitwise_xor.reduce(first, axis=-1, keepdims=True)
    return np.concatenate([first, last], axis=-1)
