"""What a program is written for, and what it keeps between calls.

It takes no MLIR to know: a model that was compiled before runs without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..numerics.element_types import AnyArray
from .configuration import Configuration

__all__ = ["MOST_CONTEXT", "SCOPE", "Cache", "Shape", "empty_caches"]

SCOPE = "model"
"""The scope of the parameters."""


MOST_CONTEXT = 1 << 30
"""Tokens: their positions, and those of a piece after them, are integers of 32 bits."""


@dataclass(frozen=True)
class Shape:
    """The sizes that are chosen when a program is written.

    Attributes:
        context: for how many tokens there is room in the caches.
        pieces: how many tokens are read together, descending.
    """

    context: int
    pieces: tuple[int, ...] = (128, 16)

    @classmethod
    def of_context(cls, context: int) -> Shape:
        """The usual pieces, without those of which no prompt fills more than a half."""
        longest, *others = cls.pieces
        return cls(context, (longest, *others) if longest < 2 * context else tuple(others))

    @property
    def rows(self) -> int:
        """The rows of a cache: the last piece of a prompt may be filled up."""
        return self.context + self.pieces[0]


class Cache(NamedTuple):
    """What a block keeps of the tokens so far, ``[context, kv_heads, size]`` each."""

    keys: AnyArray
    values: AnyArray


def empty_caches(configuration: Configuration, context: int) -> list[Cache]:
    """The caches of all blocks before the first token, in NumPy: a zero that is repeated."""
    c = configuration
    zeros = np.broadcast_to(np.float16(0), (context, c.kv_heads, c.size))
    return [Cache(zeros, zeros)] * c.blocks
