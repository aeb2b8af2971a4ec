"""Memory in large pages, for weights that are read from one end to the other.

A page of memory has 4 KiB, and a processor reads ahead within one only. Linux has pages of 2 MiB
for those who ask: one thread of a Zen 4 reads 27 GB/s out of small pages and 33 out of large ones.
"""

from __future__ import annotations

import mmap

import numpy as np

from ..numerics.element_types import Array

__all__ = ["copied_to_large_pages"]

_PAGE = 1 << 21
"""Bytes of a large page of x86-64; of AArch64, with small pages of 4 KiB."""
_LEAST = 2 * _PAGE
"""Bytes of what is worth it: there is less in a large page than in a processor's caches."""


def copied_to_large_pages(data: bytes) -> Array | None:
    """A copy in large pages, as far as the system has some; None where it has none, or for little.

    The last bytes, of less than a page, are in small pages: the copy takes no more memory than the
    bytes. It is aligned to a page.
    """
    if len(data) < _LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    memory = mmap.mmap(-1, len(data) + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _PAGE
    try:
        memory.madvise(mmap.MADV_HUGEPAGE, start, len(data) // _PAGE * _PAGE)
    except OSError:  # a system that was built without them
        return None
    copy: Array = array[start : start + len(data)]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy
