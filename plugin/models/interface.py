"""What a program is written for, and what it keeps between calls.

It takes no MLIR to know: a model that was compiled before runs without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..numerics.element_types import AnyArray
from .configuration import Configuration

__all__ = ["SCOPE", "Cache", "Shape", "empty_caches"]

SCOPE = "model"
"""The scope of the parameters."""


@dataclass(frozen=True)
class Shape:
    """The sizes that are chosen when a program is written.

    Attributes:
        context: for how many tokens there is room in the caches.
        pieces: how many tokens are read together, descending.
    """

    context: int
    pieces: tuple[int, ...] = (128, 16)

    @property
    def rows(self) -> int:
        """The rows of a cache: the last piece of a prompt may be filled up."""
        return self.context + self.pieces[0]


class Cache(NamedTuple):
    """What a block keeps of the tokens so far, ``[context, kv_heads, size]`` each."""

    keys: AnyArray
    values: AnyArray


def empty_caches(configuration: Configuration, context: int) -> list[Cache]:
    """The caches of all blocks before the first token, in NumPy."""
    c = configuration
    shape = (context, c.kv_heads, c.size)
    return [Cache(np.zeros(shape, np.float16), np.zeros(shape, np.float16))
            for _ in range(c.blocks)]  # fmt: skip
