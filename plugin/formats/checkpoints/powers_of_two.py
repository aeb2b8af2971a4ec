"""Scales that are powers of two, stored as a byte with the exponent (E8M0)."""

from __future__ import annotations

import numpy as np

from ...numerics.element_types import BF16, Array

EXPONENT_DTYPES = ("uint8", "float8_e8m0fnu")
"""The names of the dtypes of the bytes."""


def powers_of_two(exponents: Array, times: float = 1.0) -> Array:
    """Return ``2**(e - 127) * times`` of each byte as bf16, which has them all; 255 is infinite.

    Args:
        times: a power of two.
    """
    powers = np.full(256, np.inf, np.float32)
    powers[:255] = np.ldexp(np.float32(times), np.arange(255, dtype=np.int32) - 127)
    return powers.astype(BF16.dtype)[exponents.view(np.uint8)]
