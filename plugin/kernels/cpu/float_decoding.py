"""Decoding of the floats of a weight to f32, in registers and exactly.

* A bf16 is the high half of an f32: LLVM extends and shifts it. An f16 is converted (F16C, AVX-512,
  NEON: one instruction).
* An f8E5M2 is the high half of an f16. An f8E4M3FN has four bits of exponent and three of fraction:
  with the bits after its sign shifted right by one, its byte is the high half of an f16 that is
  ``2**8`` times smaller. Subnormal numbers are exact, as the conversion from f16 normalizes them,
  and the code of NaN gets the exponent of an f16's NaN.
* An index selects one of 16 levels by permutations of registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...emit import ArrayLike
from ...emit.vectors import bitcast, shuffle_lanes, slice_lanes
from ...numerics.array_functions import convert
from ...numerics.element_types import BF16, F16, F32, I16, U32
from ..isa.base import InstructionSet
from ..pack.float_codes import FloatCodes

_F16_OF_E4M3 = 0xBF80 - (1 << 16)
"""The bits of an f16 that an f8E4M3FN has: the sign, and seven bits from the second one on."""
_F16_OF_E4M3_NAN = 0x3F80
"""The bits of the magnitude of an f8E4M3FN's NaN as f16."""
_F16_MAGNITUDE, _F16_INFINITY = 0x7FFF, 0x7C00


def decode_floats(
    floats: FloatCodes, target: InstructionSet | None, k_packs: Sequence[ArrayLike]
) -> list[list[ArrayLike]]:
    """Decode k-packs of vectors of columns, u8, to f32, divided by `floats.factor`.

    Args:
        floats: the format.
        target: the instruction set; only levels need it.
        k_packs: a k-pack of each lane of some vectors.

    Returns:
        For each element of a k-pack, a vector of each of the vectors.
    """
    if floats.levels:
        assert target is not None
        words = [bitcast(each, U32) for each in k_packs]
        return [
            [target.f32_lookup(floats.levels, word >> (8 * member)) for word in words]
            for member in range(floats.k_pack)
        ]
    if floats.bits == 16:
        element = F16 if floats.name == "f16" else BF16
        return [[convert(bitcast(each, element), F32) for each in k_packs]]
    return _decode_bytes(floats, k_packs)


def _decode_bytes(floats: FloatCodes, k_packs: Sequence[ArrayLike]) -> list[list[ArrayLike]]:
    """Decode pairs of 8-bit floats; pairs of vectors together, as far as they are bits of f16."""
    members: list[list[ArrayLike]] = [[], []]
    for first in range(0, len(k_packs), 2):
        pair = k_packs[first : first + 2]
        lanes = int(pair[0].value.type.shape[0]) // 2
        joined = pair[0]
        if len(pair) == 2:
            joined = shuffle_lanes(pair[0], pair[1], range(4 * lanes))
        words = bitcast(joined, I16)
        for member, high in enumerate((words << 8, words)):
            if floats.name == "f8E5M2":
                bits = high & -256
            else:
                bits = (high >> 1) & _F16_OF_E4M3
                is_nan = (bits & _F16_MAGNITUDE) == _F16_OF_E4M3_NAN
                bits = np.where(is_nan, bits | _F16_INFINITY, bits)
            halves = bitcast(bits, F16)
            for index in range(len(pair)):
                real = convert(slice_lanes(halves, index * lanes, lanes), F32)
                members[member].append(real)
    return members
