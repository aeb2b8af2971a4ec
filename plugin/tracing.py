"""Array functions for code that runs in NumPy and is traced to MLIR alike.

Layouts and ops use the operators and methods that NumPy arrays have (``+``, ``astype``,
``reshape``, ...), and for what has no method the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["concatenate", "lookup", "stack", "unpack_bits", "unpack_nibbles"]


def concatenate(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along an axis."""
    return np.concatenate(list(arrays), axis=axis)


def stack(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along a new axis."""
    return np.stack(list(arrays), axis=axis)


def lookup(table: Any, indices: Any) -> Any:
    """The entry of a table (an array of one axis, of constants) for each index."""
    return np.take(table, indices)


def unpack_bits(packed: Any, bits: int) -> Any:
    """The values of 1, 2 or 4 bits in each byte of the last axis, the lowest first, as uint8."""
    count = 8 // bits
    values = stack([(packed >> (bits * place)) & (2**bits - 1) for place in range(count)])
    return values.reshape((*packed.shape[:-1], count * packed.shape[-1]))


def unpack_nibbles(packed: Any) -> Any:
    """Two 4-bit values for each byte of the last axis, the low one first, as uint8."""
    return unpack_bits(packed, 4)
