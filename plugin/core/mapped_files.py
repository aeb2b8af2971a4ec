"""Files that are mapped into memory: the mapping of an array, and the release of its pages."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np


def mappings_of(arrays: Iterable[Any]) -> list[mmap.mmap]:
    """Return the mapped files that NumPy arrays are views of, each once."""
    mappings = (_mapping_of(array) for array in arrays)
    return list({id(each): each for each in mappings if each is not None}.values())


def _mapping_of(array: Any) -> mmap.mmap | None:
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def release_pages(mappings: Iterable[mmap.mmap]) -> None:
    """Return the pages of mapped files to the system; they are read again at the next access.

    Pages that were read count as memory of the process until then.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in mappings:
            each.madvise(mmap.MADV_DONTNEED)
