"""Interface of a model's program: sizes, and the key-value cache. Needs no MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..numerics.element_types import AnyArray
from .configuration import Configuration

SCOPE = "model"
"""The scope of the parameters."""


MOST_CONTEXT = 1 << 30
"""The greatest context in tokens: positions, and those after them, fit 32 bits."""


@dataclass(frozen=True)
class Shape:
    """The sizes that are chosen when a program is written.

    Attributes:
        context: the maximum number of tokens in the caches.
        pieces: batch sizes of prompt evaluation, descending.
    """

    context: int
    pieces: tuple[int, ...] = (128, 16)

    @classmethod
    def of_context(cls, context: int) -> Shape:
        """Return the default batch sizes, without those that no prompt fills by half."""
        longest, *shorter = cls.pieces
        return cls(context, (longest, *shorter) if longest < 2 * context else tuple(shorter))

    @property
    def rows(self) -> int:
        """Rows of a cache: the context, and padding of a prompt's last batch."""
        return self.context + self.pieces[0]


class Cache(NamedTuple):
    """Key-value cache of a block, ``[context, kv_heads, size]`` each."""

    keys: AnyArray
    values: AnyArray


def empty_caches(configuration: Configuration, context: int) -> list[Cache]:
    """Return the caches of all blocks before the first token: NumPy broadcasts of one zero."""
    c = configuration
    zeros = np.broadcast_to(np.float16(0), (context, c.kv_heads, c.size))
    return [Cache(zeros, zeros)] * c.blocks
