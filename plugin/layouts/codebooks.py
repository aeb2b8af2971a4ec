"""Codebooks of GGML's types IQ1, IQ2 and IQ3: short rows of integers, selected by an index.

A number of 8 to 11 bits stands for 4 or 8 elements at once; their signs are bits of their own, or
a delta is added. As layouts hold one number for each element, an element becomes the index of its
integer among the few that a codebook has, which are `LEVELS`.

The rows are those of PyPI's ``gguf``, which the extra ``gguf`` brings: they follow no rule, so
they are not written again here.
"""

from __future__ import annotations

import functools

import numpy as np

from ..core.requirements import require
from ..numerics.element_types import Array

_IQ1, _IQ2 = (-1, 0, 1), (8, 25, 43)
LEVELS: dict[str, tuple[int, ...]] = {
    "IQ1_S": _IQ1,
    "IQ1_M": _IQ1,
    "IQ2_XXS": _IQ2,
    "IQ2_XS": _IQ2,
    "IQ2_S": _IQ2,
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""The integers in each codebook, in ascending order."""


@functools.cache
def codebook(name: str) -> Array:
    """Rows of indices into `LEVELS` (uint8): ``[2**bits, 4]``, or 8 elements in a row.

    Raises:
        EnvironmentProblem: the package ``gguf`` is not installed.
    """
    require("gguf", f"a tensor of the GGML type {name}", "gguf")
    import gguf.quants

    of_type = getattr(gguf.quants, name)
    of_type.init_grid()
    rows = of_type.grid[0, 0]
    levels = np.array(LEVELS[name], np.float32)
    indices: Array = np.searchsorted(levels, rows).astype(np.uint8)
    assert (levels[indices] == rows).all(), name
    return indices


def even_signs(words: Array) -> Array:
    """The signs of 8 elements, an even number of which is negative: ``[...]`` to ``[..., 8]``.

    Args:
        words: unsigned, with the signs of the first seven in the lowest 7 bits.
    """
    first = (words[..., None] >> np.arange(7, dtype=words.dtype)).astype(np.uint8) & np.uint8(1)
    last = np.bitwise_xor.reduce(first, axis=-1, keepdims=True)
    return np.concatenate([first, last], axis=-1)
