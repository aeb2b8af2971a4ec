"""Blocks of GGML's types from integers and scales: the inverse of `ggml`.

A block of 32 integers ``q`` has the scale ``d``, and Q4_1 and Q5_1 the offset ``m``, float16 both:
the values are ``d (q - 8)`` (Q4_0), ``d (q - 16)`` (Q5_0), ``d q + m`` (Q4_1, Q5_1) and ``d q``
(Q8_0). Blocks of the other types have 256 elements, and two levels of scales.

Source: ggml-common.h of llama.cpp, ``block_q4_0`` to ``block_iq4_xs``.
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..numerics.element_types import Array
from .ggml import BLOCK_TYPES
from .ggml_tensor import GgmlTensor

_ZEROS = {"Q4_0": 8, "Q5_0": 16}
"""The integer that stands for 0, of the types without offsets and of 4 or 5 bits."""

ENCODED_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""The types that `encode` writes."""

BLOCK_SIZE = 32
"""Elements of a block of the types that `encode` writes."""

_INTEGER_FIELDS = {
    "Q4_0": (("qs", 4, 16),),
    "Q4_1": (("qs", 4, 16),),
    "Q5_0": (("qs", 4, 16), ("qh", 1, 1)),
    "Q5_1": (("qs", 4, 16), ("qh", 1, 1)),
    "Q3_K": (("qs", 2, 32), ("hmask", 1, 32)),
    "Q4_K": (("qs", 4, 32),),
    "Q5_K": (("qs", 4, 32), ("qh", 1, 32)),
    "Q6_K": (("ql", 4, 64), ("qh", 2, 32)),
    "IQ4_NL": (("qs", 4, 16),),
    "IQ4_XS": (("qs", 4, 16),),
}
"""Fields with the bits of integers, the lowest first: name, bits, bytes of a run.

A run of bytes has the elements in its low bits, then as many in the next bits.
"""


def check_k(k: int, ggml_type: str, name: str) -> None:
    """Refuse rows that are no whole number of blocks; InputError."""
    size = BLOCK_TYPES[ggml_type].size
    if k % size:
        raise InputError(
            f"tensor '{name}' has rows of {k} elements, expected a multiple of {size}, which "
            f"blocks of {ggml_type} have"
        )


def pack_runs(values: Array, bits: int, run: int) -> Array:
    """Pack integers ``[n, count]`` into bytes: each `run` of bytes has the low elements first."""
    count = len(values)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    groups = (values & np.uint8(2**bits - 1)).reshape((count, -1, len(shifts), run)) << shifts
    packed: Array = np.bitwise_or.reduce(groups, axis=2).reshape((count, -1))
    return packed


def set_integers(blocks: Array, ggml_type: str, integers: Array) -> None:
    """Write the integers of blocks ``[n]``.

    Args:
        integers: as stored, uint8 ``[n, size]``; int8 for Q8_0.
    """
    if ggml_type == "Q8_0":
        blocks["qs"] = integers
        return
    shift = 0
    for name, bits, run in _INTEGER_FIELDS[ggml_type]:
        blocks[name] = pack_runs(integers >> np.uint8(shift), bits, run)
        shift += bits


def set_six_bit_scales(blocks: Array, scales: Array, minimums: Array) -> None:
    """Write the 8 scales and 8 minimums of Q4_K or Q5_K, uint8 ``[n, 8]``, into 12 bytes.

    Bytes 0 to 3 and 4 to 7 hold scales and minimums of the sub-blocks 0 to 3 in their low 6 bits.
    Of the sub-blocks 4 to 7, bytes 8 to 11 hold the low 4 bits, a scale below a minimum, and the
    high 2 bits are above those of the scale and the minimum four before.
    """
    high = [
        each[:, :4] | (each[:, 4:] >> np.uint8(4) << np.uint8(6)) for each in (scales, minimums)
    ]
    low = (scales[:, 4:] & np.uint8(15)) | (minimums[:, 4:] << np.uint8(4))
    blocks["scales"] = np.concatenate([*high, low], axis=1)


def encode(
    ggml_type: str, integers: Array, scales: Array, offsets: Array | None, name: str = ""
) -> GgmlTensor:
    """Return a tensor in GGML's blocks of 32.

    Args:
        ggml_type: one of `ENCODED_TYPES`.
        integers: ``[..., K]``: -8 to 7 for Q4_0, -16 to 15 for Q5_0, 0 to 15 for Q4_1, 0 to 31 for
            Q5_1, -128 to 127 for Q8_0.
        scales: ``[..., K / 32]``, values of float16.
        offsets: like `scales`, for Q4_1 and Q5_1 only.

    Raises:
        InputError: blocks of 32 do not divide ``K``.
    """
    check_k(integers.shape[-1], ggml_type, name)
    blocks = np.zeros(integers.size // BLOCK_SIZE, BLOCK_TYPES[ggml_type].block)
    rows = integers.reshape((-1, BLOCK_SIZE))
    blocks["d"] = scales.reshape(-1)
    if offsets is not None:
        blocks["m"] = offsets.reshape(-1)
    if ggml_type != "Q8_0":
        rows = (rows.astype(np.int16) + _ZEROS.get(ggml_type, 0)).astype(np.uint8)
    set_integers(blocks, ggml_type, rows)
    return GgmlTensor(blocks.view(np.uint8).reshape(-1), ggml_type, integers.shape, name)
