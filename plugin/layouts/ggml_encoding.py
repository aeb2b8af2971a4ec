"""Blocks of GGML's types, made of integers and scales: the inverse of `ggml` for five types.

A block of 32 integers ``q`` has the scale ``d``, and Q4_1 and Q5_1 the offset ``m``, float16 both:
the values are ``d (q - 8)`` (Q4_0), ``d (q - 16)`` (Q5_0), ``d q + m`` (Q4_1, Q5_1) and ``d q``
(Q8_0). The low 4 bits of the first 16 integers are the low halves of 16 bytes, those of the others
the high halves; the fifth bits of Q5_0 and Q5_1 are a word.

Source: ggml-common.h of llama.cpp, ``block_q4_0`` to ``block_q8_0``.
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..numerics.element_types import Array
from .ggml import BLOCK_TYPES, GgmlTensor

_ZEROS = {"Q4_0": 8, "Q5_0": 16}
"""The integer that stands for 0, of the types without offsets and of 4 or 5 bits."""

ENCODED_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""The types that `encode` writes."""

BLOCK_SIZE = 32
"""Elements of a block."""


def encode(
    ggml_type: str, integers: Array, scales: Array, offsets: Array | None, name: str = ""
) -> GgmlTensor:
    """Return a tensor in GGML's blocks.

    Args:
        ggml_type: one of `ENCODED_TYPES`.
        integers: ``[..., K]``: -8 to 7 for Q4_0, -16 to 15 for Q5_0, 0 to 15 for Q4_1, 0 to 31 for
            Q5_1, -128 to 127 for Q8_0.
        scales: ``[..., K / 32]``, values of float16.
        offsets: like `scales`, for Q4_1 and Q5_1 only.

    Raises:
        InputError: blocks of 32 do not divide ``K``.
    """
    if integers.shape[-1] % BLOCK_SIZE:
        raise InputError(
            f"tensor '{name}' has rows of {integers.shape[-1]} elements, expected a multiple of "
            f"{BLOCK_SIZE}, which blocks of {ggml_type} have"
        )
    blocks = np.zeros(integers.size // BLOCK_SIZE, BLOCK_TYPES[ggml_type].block)
    rows = integers.reshape((-1, BLOCK_SIZE))
    blocks["d"] = scales.reshape(-1)
    if offsets is not None:
        blocks["m"] = offsets.reshape(-1)
    if ggml_type == "Q8_0":
        blocks["qs"] = rows
    else:
        unsigned = (rows.astype(np.int16) + _ZEROS.get(ggml_type, 0)).astype(np.uint8)
        low = unsigned & 15
        blocks["qs"] = low[:, :16] | (low[:, 16:] << np.uint8(4))
        if "qh" in (blocks.dtype.names or ()):
            bits = np.packbits(unsigned >> np.uint8(4), axis=1, bitorder="little")
            blocks["qh"] = bits.reshape(blocks["qh"].shape)
    return GgmlTensor(blocks.view(np.uint8).reshape(-1), ggml_type, integers.shape, name)
