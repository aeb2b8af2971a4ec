"""Array functions for code that runs in NumPy and is traced to MLIR alike.

Layouts and ops use the operators and methods that NumPy arrays have (``+``, ``astype``,
``reshape``, ...), and for what has no method the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["concatenate", "stack", "unpack_nibbles"]


def concatenate(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along an axis."""
    return np.concatenate(list(arrays), axis=axis)


def stack(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along a new axis."""
    return np.stack(list(arrays), axis=axis)


def unpack_nibbles(packed: Any) -> Any:
    """Two 4-bit values for each byte of the last axis, the low one first, as uint8."""
    pairs = stack([packed & 15, packed >> 4])
    return pairs.reshape((*packed.shape[:-1], 2 * packed.shape[-1]))
