"""GGML's types: blocks as they lie in GGUF files, and their layouts.

A block is a C structure, written here as a NumPy structure in the order of its fields. A tensor
keeps the bytes of its blocks (of a memory-mapped file, usually); `GgmlTensor.unpack` sorts them
into the planes of a layout, some blocks at a time.

In GGML a run of bytes holds the low bits of as many elements, then the next bits of the elements
after them, and so on; planes have the elements in order. `_elements` does that.

Source: ggml's block formats, as PyPI's ``gguf`` reads them; dequantization equals ``gguf``'s in
every bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ..numerics.element_types import Array
from ..numerics.packed_integers import pack_bits
from .base import QuantizedLayout
from .lookup import (
    LEVELS,
    TWICE_E2M1,
    LookupBlockScaledLayout,
    SuperBlockLookupScaled_4_6_Layout,
    codebook,
    even_signs,
)
from .packed import BlockScaledPackedLayout
from .scaled import BlockScaledI4Layout, BlockScaledLayout
from .super_blocks import (
    SuperBlockLayout,
    SuperBlockOffsetScaled_2_4_Layout,
    SuperBlockOffsetScaled_4_6_Layout,
    SuperBlockOffsetScaled_5_6_Layout,
    SuperBlockScaled_3_6_Layout,
    SuperBlockScaled_6_8_Layout,
)

_CHUNK_ELEMENTS = 2**20
"""Elements that are unpacked in one step: a few megabytes of temporary arrays."""

IQ4_NL_LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
"""The numbers of the indices of IQ4_NL and IQ4_XS."""

PRIMITIVE_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype("<f8"), "I8": np.dtype("i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}  # fmt: skip
"""The types without blocks, by GGML's name."""


@dataclass(frozen=True)
class GgmlBlockType:
    """A type with blocks.

    Attributes:
        size: elements of a block.
        block: its fields, as they lie in memory.
        planes: the planes (without the axes before the blocks) of some blocks; one number for each
            block may lack its axis of 1.
        in_place: whether the planes are views of the blocks.
        layout_blocks: blocks of the layout in a block; with more than one, the planes have an axis
            of them after that of the blocks.
    """

    size: int
    block: np.dtype[Any]
    layout: type[QuantizedLayout]
    planes: Callable[[Array], dict[str, Array]]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    in_place: bool = False
    layout_blocks: int = 1

    def unpack(self, blocks: Array) -> dict[str, Array]:
        """The planes of blocks ``[n]``, with the blocks as first axis."""
        if self.in_place:
            return self._columns(blocks)
        step = max(1, _CHUNK_ELEMENTS // self.size)
        planes = {
            name: np.empty((len(blocks), *part.shape[1:]), part.dtype)
            for name, part in self._columns(blocks[:0]).items()
        }
        for start in range(0, len(blocks), step):
            for name, part in self._columns(blocks[start : start + step]).items():
                planes[name][start : start + step] = part
        return planes

    def _columns(self, blocks: Array) -> dict[str, Array]:
        planes = self.planes(blocks).items()
        return {name: part[:, None] if part.ndim == 1 else part for name, part in planes}


def _elements(packed: Array, bits: int, run: int) -> Array:
    """The values of 1, 2 or 4 bits in ``[n, bytes]``, in the order of the elements."""
    count, size = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    values = (packed.reshape((count, size // run, 1, run)) >> shifts) & np.uint8(2**bits - 1)
    return values.reshape((count, size * 8 // bits))


def _less(values: Array, zero: int) -> Array:
    """Unsigned integers of a few bits, less a zero point."""
    difference: Array = values.astype(np.int8) - np.int8(zero)
    return difference


def _sub_blocks(values: Array, count: int) -> Array:
    return values.reshape((len(values), count, values.shape[1] // count))


def _q4_0(blocks: Array) -> dict[str, Array]:
    # d * (q - 8): q - 8 in two's complement is q with its highest bit turned.
    qs = pack_bits(_elements(blocks["qs"], 4, 16) ^ 8, 4)
    return {"d": blocks["d"], "qs": qs}


def _nibbles(blocks: Array) -> dict[str, Array]:
    """Planes of Q4_1 and IQ4_NL, with or without offsets."""
    scales = {name: blocks[name] for name in blocks.dtype.names or () if name != "qs"}
    return {**scales, "qs": pack_bits(_elements(blocks["qs"], 4, 16), 4)}


def _five_bits(blocks: Array) -> Array:
    qs: Array = _elements(blocks["qs"], 4, 16) | (_elements(blocks["qh"], 1, 1) << np.uint8(4))
    return qs


def _q5_0(blocks: Array) -> dict[str, Array]:
    planes = BlockScaledPackedLayout.pack(_less(_five_bits(blocks), 16), 5, signed=True)
    return {"d": blocks["d"], **planes}


def _q5_1(blocks: Array) -> dict[str, Array]:
    planes = BlockScaledPackedLayout.pack(_five_bits(blocks), 5, signed=False)
    return {"d": blocks["d"], "m": blocks["m"], **planes}


def _iq4_xs(blocks: Array) -> dict[str, Array]:
    # 8 scales of 6 bits: 4 bytes with the low 4 bits of two each, 2 with the high 2 of four.
    low, high = _elements(blocks["scales_l"], 4, 1), _elements(blocks["scales_h"], 2, 1)
    scales = low | (high << np.uint8(4))
    return SuperBlockLookupScaled_4_6_Layout.pack(
        blocks["d"], _less(scales, 32), _sub_blocks(_elements(blocks["qs"], 4, 16), 8)
    )


def _mxfp4(blocks: Array) -> dict[str, Array]:
    # Half of 2**(e - 127), for elements that are twice theirs.
    scales = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)
    return {"d": scales, "qs": pack_bits(_elements(blocks["qs"], 4, 16), 4)}


def _nvfp4(blocks: Array) -> dict[str, Array]:
    # Half of an e4m3 without sign, for elements that are twice theirs: 0, or 2**-10 to 240, which
    # f16 has. 127 is NaN, which GGML takes as 0.
    bits = blocks["scales"]
    exponents, mantissas = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.int32)
    normal = np.ldexp((8 + mantissas).astype(np.float16), exponents - 11)
    scales = np.where(exponents == 0, np.ldexp(mantissas.astype(np.float16), -10), normal)
    qs = _elements(blocks["qs"], 4, 8).reshape((len(blocks), 4, 16))
    return {
        "d": np.where(bits == 127, np.float16(0), scales)[..., None],
        "qs": pack_bits(qs, 4),
    }


def _trits(packed: Array, run: int, count: int) -> Array:
    """The digits 0 to 2 of bytes, in the order of the elements.

    A byte is a fraction of 256 with `count` digits in base 3, which times 3 has the first before
    the point and times a power of 3 before has the next ones there.
    """
    powers = (3 ** np.arange(count)).astype(np.uint8)[:, None]
    shifted = packed.reshape((len(packed), packed.shape[1] // run, 1, run)) * powers
    digits = (shifted.astype(np.uint16) * 3) >> 8
    return digits.astype(np.uint8).reshape((len(packed), packed.shape[1] * count))


def _ternary(blocks: Array, qs: Array) -> dict[str, Array]:
    planes = BlockScaledPackedLayout.pack(_less(qs, 1), 2, True, 1)
    return {"d": blocks["d"], **planes}


def _tq1_0(blocks: Array) -> dict[str, Array]:
    first, second = blocks["qs"][:, :32], blocks["qs"][:, 32:]
    trits = [_trits(first, 32, 5), _trits(second, 16, 5), _trits(blocks["qh"], 4, 4)]
    return _ternary(blocks, np.concatenate(trits, axis=1))


def _signed_table(name: str) -> list[int]:
    """The levels of a codebook of magnitudes, and from half of the table on, their negatives."""
    levels = [*LEVELS[name], *(0,) * (8 - len(LEVELS[name]))]
    return [*levels, *(-level for level in levels)]


def _of_codebook(
    d: Array, divisor: int, scales: Array, magnitudes: Array, signs: Array
) -> dict[str, Array]:
    """Planes of ``d / divisor * (2 * scales + 1)`` times what `_signed_table` says.

    Args:
        d: f16 ``[n]``; its quotient is kept in f32, where a subnormal f16 has one, too.
        divisor: a power of two.
        scales: 3 or 4 bits ``[n, SUB]``.
        magnitudes, signs: of 256 elements in order, in any shape ``[n, ...]``.
    """
    count = scales.shape[1]
    indices = magnitudes.reshape((len(d), 256)) | (signs.reshape((len(d), 256)) << np.uint8(3))
    with np.errstate(invalid="ignore"):  # of a signaling NaN
        scale = d if divisor == 1 else d.astype(np.float32) / np.float32(divisor)
    return SuperBlockLookupScaled_4_6_Layout.pack(
        scale, scales.astype(np.int8) * np.int8(2) + np.int8(1), _sub_blocks(indices, count)
    )


def _iq2_xxs(blocks: Array) -> dict[str, Array]:
    pairs = blocks["qs"].reshape((len(blocks), 8, 2))
    numbers, words = np.ascontiguousarray(pairs[..., 0]).view(np.uint8), pairs[..., 1]
    magnitudes = codebook("IQ2_XXS")[numbers]
    return _of_codebook(blocks["d"], 8, words >> 28, magnitudes, _signs_of_words(words))


def _signs_of_words(words: Array) -> Array:
    """The signs of 32 elements in the lowest 28 bits of each word."""
    return even_signs(words[..., None] >> (7 * np.arange(4, dtype=np.uint32)))


def _iq2_xs(blocks: Array) -> dict[str, Array]:
    qs, scales = blocks["qs"], _elements(blocks["scales"], 4, 1)
    return _of_codebook(blocks["d"], 8, scales, codebook("IQ2_XS")[qs & 511], even_signs(qs >> 9))


def _with_high_bits(name: str, bits: int, divisor: int, blocks: Array) -> dict[str, Array]:
    """Planes of IQ2_S and IQ3_S: numbers with their high bits in ``qh``, and all signs."""
    numbers = blocks["qs"] | (_elements(blocks["qh"], bits, 1).astype(np.uint16) << 8)
    scales, signs = _elements(blocks["scales"], 4, 1), _elements(blocks["signs"], 1, 1)
    return _of_codebook(blocks["d"], divisor, scales, codebook(name)[numbers], signs)


def _iq3_xxs(blocks: Array) -> dict[str, Array]:
    words = blocks["scales"]
    magnitudes = codebook("IQ3_XXS")[blocks["qs"]]
    return _of_codebook(blocks["d"], 4, words >> 28, magnitudes, _signs_of_words(words))


_IQ1 = [8 * level + delta for delta in (1, -1) for level in (*LEVELS["IQ1_S"], 0, 0, 0, 0, 0)]
"""Eight times a level and a delta of 1/8, or of -1/8 from half of the table on."""


def _iq1_s(blocks: Array) -> dict[str, Array]:
    qh = blocks["qh"]
    high = (qh[..., None] >> (3 * np.arange(4, dtype=np.uint16))) & 7
    numbers = blocks["qs"] | (high.reshape((len(blocks), 32)) << 8)
    signs = np.repeat((qh >> 15).astype(np.uint8), 32, axis=1)
    return _of_codebook(blocks["d"], 8, (qh >> 12) & 7, codebook("IQ1_S")[numbers], signs)


def _iq1_m(blocks: Array) -> dict[str, Array]:
    # Words of 16 bits: three scales of 3 bits and a fourth, and 4 bits of `d`, the lowest first.
    words, qh = blocks["scales"], _elements(blocks["qh"], 4, 1)
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1)
    scales = (words[..., None] >> (3 * np.arange(4, dtype=np.uint16))) & 7
    numbers = blocks["qs"] | ((qh & 7).astype(np.uint16) << 8)
    magnitudes, signs = codebook("IQ1_M")[numbers], np.repeat(qh >> 3, 8, axis=1)
    d, scales = d.astype("<u2").view("<f2"), scales.reshape((len(blocks), 16))
    return _of_codebook(d, 8, scales, magnitudes, signs)


def _q2_k(blocks: Array) -> dict[str, Array]:
    scales, qs = blocks["scales"], _sub_blocks(_elements(blocks["qs"], 2, 32), 16)
    return SuperBlockOffsetScaled_2_4_Layout.pack(
        blocks["d"], scales & 15, qs, blocks["dmin"], scales >> 4
    )


def _q3_k(blocks: Array) -> dict[str, Array]:
    # 16 scales of 6 bits: 8 bytes with the low 4 bits of two each, 4 with the high 2 of four.
    low, high = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    scales = _elements(low, 4, 8) | (_elements(high, 2, 4) << np.uint8(4))
    qs = _elements(blocks["qs"], 2, 32) | (_elements(blocks["hmask"], 1, 32) << np.uint8(2))
    return SuperBlockScaled_3_6_Layout.pack(
        blocks["d"], _less(scales, 32), _sub_blocks(_less(qs, 4), 16)
    )


def _with_minimums(layout: type[SuperBlockLayout], blocks: Array, qs: Array) -> dict[str, Array]:
    """Planes of Q4_K and Q5_K, with 8 scales and 8 minimums of 6 bits in 12 bytes.

    Bytes 0 to 3 and 4 to 7 hold scales and minimums of the sub-blocks 0 to 3 in their low 6 bits.
    Of the sub-blocks 4 to 7, bytes 8 to 11 hold the low 4 bits, a scale below a minimum, and the
    high 2 bits are above those of the scale and the minimum four before.
    """
    scales, minimums, low = np.split(blocks["scales"], 3, axis=1)
    scales = np.concatenate([scales & 63, (low & 15) | ((scales >> 6) << np.uint8(4))], axis=1)
    minimums = np.concatenate(
        [minimums & 63, (low >> 4) | ((minimums >> 6) << np.uint8(4))], axis=1
    )
    return layout.pack(blocks["d"], scales, _sub_blocks(qs, 8), blocks["dmin"], minimums)


def _q4_k(blocks: Array) -> dict[str, Array]:
    return _with_minimums(SuperBlockOffsetScaled_4_6_Layout, blocks, _elements(blocks["qs"], 4, 32))


def _q5_k(blocks: Array) -> dict[str, Array]:
    qs = _elements(blocks["qs"], 4, 32) | (_elements(blocks["qh"], 1, 32) << np.uint8(4))
    return _with_minimums(SuperBlockOffsetScaled_5_6_Layout, blocks, qs)


def _q6_k(blocks: Array) -> dict[str, Array]:
    qs = _elements(blocks["ql"], 4, 64) | (_elements(blocks["qh"], 2, 32) << np.uint8(4))
    return SuperBlockScaled_6_8_Layout.pack(
        blocks["d"], blocks["scales"], _sub_blocks(_less(qs, 32), 16)
    )


def _type(
    size: int,
    fields: str,
    layout: type[QuantizedLayout],
    planes: Callable[[Array], dict[str, Array]],
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> GgmlBlockType:
    """A type of blocks with fields ``name:type``: NumPy's types, with a count before them."""
    block = np.dtype([tuple(field.split(":")) for field in fields.split()])
    return GgmlBlockType(size, block, layout, planes, metadata or {}, **options)


_TERNARY = {"bits": 2, "signed": True, "zero": 1}

BLOCK_TYPES: dict[str, GgmlBlockType] = {
    "Q4_0": _type(32, "d:<f2 qs:16u1", BlockScaledI4Layout, _q4_0, {"signed": True}),
    "Q4_1": _type(32, "d:<f2 m:<f2 qs:16u1", BlockScaledI4Layout, _nibbles, {"signed": False}),
    "Q5_0": _type(
        32, "d:<f2 qh:4u1 qs:16u1", BlockScaledPackedLayout, _q5_0, {"bits": 5, "signed": True}
    ),
    "Q5_1": _type(
        32, "d:<f2 m:<f2 qh:4u1 qs:16u1", BlockScaledPackedLayout, _q5_1,
        {"bits": 5, "signed": False},
    ),
    "Q8_0": _type(32, "d:<f2 qs:32i1", BlockScaledLayout, lambda b: {"d": b["d"], "qs": b["qs"]},
                  in_place=True),
    "Q2_K": _type(
        256, "scales:16u1 qs:64u1 d:<f2 dmin:<f2", SuperBlockOffsetScaled_2_4_Layout, _q2_k
    ),
    "Q3_K": _type(
        256, "hmask:32u1 qs:64u1 scales:12u1 d:<f2", SuperBlockScaled_3_6_Layout, _q3_k
    ),
    "Q4_K": _type(
        256, "d:<f2 dmin:<f2 scales:12u1 qs:128u1", SuperBlockOffsetScaled_4_6_Layout, _q4_k
    ),
    "Q5_K": _type(
        256, "d:<f2 dmin:<f2 scales:12u1 qh:32u1 qs:128u1", SuperBlockOffsetScaled_5_6_Layout,
        _q5_k,
    ),
    "Q6_K": _type(256, "ql:128u1 qh:64u1 scales:16i1 d:<f2", SuperBlockScaled_6_8_Layout, _q6_k),
    "IQ4_NL": _type(
        32, "d:<f2 qs:16u1", LookupBlockScaledLayout, _nibbles, {"table": IQ4_NL_LEVELS}
    ),
    "IQ4_XS": _type(
        256, "d:<f2 scales_h:2u1 scales_l:4u1 qs:128u1", SuperBlockLookupScaled_4_6_Layout,
        _iq4_xs, {"table": IQ4_NL_LEVELS},
    ),
    "MXFP4": _type(32, "e:u1 qs:16u1", LookupBlockScaledLayout, _mxfp4, {"table": TWICE_E2M1}),
    "NVFP4": _type(
        64, "scales:4u1 qs:32u1", LookupBlockScaledLayout, _nvfp4, {"table": TWICE_E2M1},
        layout_blocks=4,
    ),
    "TQ1_0": _type(256, "qs:48u1 qh:4u1 d:<f2", BlockScaledPackedLayout, _tq1_0, _TERNARY),
    "TQ2_0": _type(256, "qs:64u1 d:<f2", BlockScaledPackedLayout,
                   lambda b: _ternary(b, _elements(b["qs"], 2, 32)), _TERNARY),
    **{
        name: _type(256, fields, SuperBlockLookupScaled_4_6_Layout, planes, {"table": table})
        for name, fields, planes, table in (
            ("IQ1_S", "d:<f2 qs:32u1 qh:8<u2", _iq1_s, _IQ1),
            ("IQ1_M", "qs:32u1 qh:16u1 scales:4<u2", _iq1_m, _IQ1),
            ("IQ2_XXS", "d:<f2 qs:16<u4", _iq2_xxs, _signed_table("IQ2_XXS")),
            ("IQ2_XS", "d:<f2 qs:32<u2 scales:8u1", _iq2_xs, _signed_table("IQ2_XS")),
            ("IQ2_S", "d:<f2 qs:32u1 signs:32u1 qh:8u1 scales:8u1",
             functools.partial(_with_high_bits, "IQ2_S", 2, 8), _signed_table("IQ2_S")),
            ("IQ3_XXS", "d:<f2 qs:64u1 scales:8<u4", _iq3_xxs, _signed_table("IQ3_XXS")),
            ("IQ3_S", "d:<f2 qs:64u1 qh:8u1 signs:32u1 scales:4u1",
             functools.partial(_with_high_bits, "IQ3_S", 1, 1), _signed_table("IQ3_S")),
        )
    },
}  # fmt: skip
"""The types with blocks, by GGML's name."""
