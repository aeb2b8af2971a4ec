"""Integers of 2 to 8 bits in words of 32 bits."""

from __future__ import annotations

import numpy as np

from ...numerics.array_functions import unpack_bits
from ...numerics.element_types import Array

_WORD = 32
PLANE_WIDTHS = (2, 4)
"""Bits of integers whose words are the bytes of a plane (`subquant.numerics.packed_integers`)."""


def unpack_stream(words: Array, bits: int) -> Array:
    """Unpack integers that follow one another through the words of the last axis.

    Integer ``i`` has the bits ``bits * i`` to ``bits * i + bits - 1``, from the lowest bit of the
    first word on. Integers of 3 bits cross words: 3 words have 32 of them.

    Returns:
        uint8, of a last axis that is ``32 / bits`` times as long.
    """
    little = np.ascontiguousarray(words.astype("<u4", copy=False))
    if bits == 8:
        return little.view(np.uint8)
    if bits in (2, 4):
        unpacked: Array = unpack_bits(little.view(np.uint8), bits)
        return unpacked
    groups = little.reshape((*words.shape[:-1], -1, bits))
    values = np.empty((*groups.shape[:-1], _WORD), np.uint8)
    for index in range(_WORD):
        word, shift = divmod(bits * index, _WORD)
        value = groups[..., word] >> np.uint32(shift)
        if shift + bits > _WORD:
            value = value | (groups[..., word + 1] << np.uint32(_WORD - shift))
        values[..., index] = value & np.uint32(2**bits - 1)
    return values.reshape((*words.shape[:-1], -1))
