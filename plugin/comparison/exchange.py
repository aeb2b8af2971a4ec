"""Arrays as what a child process is handed, and hands back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..numerics.element_types import Array

__all__ = ["arrays_of", "described"]


def described(arrays: Iterable[Array]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The dtypes and shapes of arrays as JSON, and their elements."""
    whole = [np.ascontiguousarray(array) for array in arrays]
    types = [{"dtype": array.dtype.name, "shape": array.shape} for array in whole]
    return types, [array.tobytes() for array in whole]


def arrays_of(types: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> list[Array]:
    """The arrays of `described`."""
    return [
        np.frombuffer(blob, each["dtype"]).reshape(each["shape"])
        for each, blob in zip(types, blobs, strict=True)
    ]
