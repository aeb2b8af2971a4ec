"""Decoding of the floats of a weight to f32, in registers and exactly.

The bits of a bf16 are the high half of those of an f32: LLVM extends and shifts them. An f16 is
converted (F16C, AVX-512, NEON: one instruction).
"""

from __future__ import annotations

from ...emit import ArrayLike
from ...emit.vectors import bitcast
from ...numerics.array_functions import convert
from ...numerics.element_types import F32
from ..pack.float_codes import FloatCodes


def decode_floats(floats: FloatCodes, k_pack: ArrayLike) -> list[ArrayLike]:
    """Decode a k-pack of each lane, from u8 to a vector of f32 for each of its elements."""
    return [convert(bitcast(k_pack, floats.element), F32)]
