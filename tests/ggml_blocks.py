"""Blocks of GGML's types with scales of a moderate size, for tests that compute with them."""

from __future__ import annotations

import numpy as np

from subquant.layouts import GgmlTensor
from subquant.layouts.ggml import BLOCK_TYPES

__all__ = ["moderate_blocks"]


def moderate_blocks(
    name: str, shape: tuple[int, int], random: np.random.Generator, tensor: str = "w"
) -> GgmlTensor:
    """A weight of a type, of random blocks with scales and offsets from 0.001 to 0.02."""
    kind = BLOCK_TYPES[name]
    count = shape[0] * shape[1] // kind.size
    raw = random.integers(0, 256, count * kind.block.itemsize, np.uint8)
    fields = [field for field in ("d", "dmin", "m", "e") if field in (kind.block.names or ())]
    assert fields, f"{name} has no scale that is known here"
    for field in fields:
        scales = random.uniform(0.001, 0.02, count)
        if field == "e":  # half of 2**(e - 127)
            scales = np.rint(np.log2(scales)) + 128
        raw.view(kind.block)[field] = scales
    return GgmlTensor(raw, name, shape, tensor)
