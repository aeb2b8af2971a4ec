"""Tile configuration of this thread, by machine code."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import numpy as np

# ldtilecfg [rdi]; ret; and sttilecfg [rdi]; ret
_LOAD, _STORE = bytes.fromhex("c4e2784907c3"), bytes.fromhex("c4e2794907c3")
OTHER = np.zeros(64, np.uint8)
"""A configuration that no kernel has: one row of 4 bytes for tile 0, and none for others."""
OTHER[[0, 16, 48]] = 1, 4, 1


def configurations_around(call: Callable[[], object]) -> list[np.ndarray]:
    """Load `OTHER`, call a function, and return the configurations before and after the call."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=protection)
    code.write(_LOAD + _STORE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    load, store = function(start), function(start + len(_LOAD))
    before, after = np.empty((2, 64), np.uint8)
    load(OTHER.ctypes.data)
    store(before.ctypes.data)
    call()
    store(after.ctypes.data)
    load(np.zeros(64, np.uint8).ctypes.data)
    return [before, after]
