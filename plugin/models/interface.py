"""Interface of a model's program: sizes, and the key-value cache. Needs no MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..core.option_fields import KvCache
from ..numerics.cache_formats import formats_of
from ..numerics.element_types import AnyArray
from .configuration import Configuration

SCOPE = "model"
"""The scope of the parameters."""


MOST_CONTEXT = 1 << 30
"""The greatest context in tokens: positions, and those after them, fit 32 bits."""


Steps = Literal["single", "draft", "batch"]
"""Functions of a program beside those of one token: ``verify`` with draft, ``batch`` with batch."""

STEP_TOKENS = 8
"""Tokens of a call of ``verify`` or ``batch``, each with the bits that it has alone."""


def filled_batches(tokens: int, size: int) -> int:
    """Return how many batches of a size are read of some tokens: the last one is 3/4 full or more.

    This is the rule of ``prompt`` in `subquant.models.module`.
    """
    return (4 * tokens + size) // (4 * size)


@dataclass(frozen=True)
class Shape:
    """The sizes, and the storage of caches, that are chosen when a program is written.

    Attributes:
        context: the maximum number of tokens in the caches.
        pieces: batch sizes of prompt evaluation, descending.
        kv_cache: the storage of keys and values.
        rounds_activations: inputs of linear layers are rounded as the checkpoint asks for.
        steps: further functions of the program.
    """

    context: int
    pieces: tuple[int, ...] = (128, 64, 16)
    kv_cache: KvCache = "f16"
    rounds_activations: bool = False
    steps: Steps = "single"

    @classmethod
    def of_context(
        cls,
        context: int,
        kv_cache: KvCache = "f16",
        rounds_activations: bool = False,
        steps: Steps = "single",
    ) -> Shape:
        """Return the default batch sizes, without those that no prompt fills enough."""
        *longer, shortest = cls.pieces
        pieces = (*(size for size in longer if filled_batches(context, size)), shortest)
        return cls(context, pieces, kv_cache, rounds_activations, steps)

    @property
    def rows(self) -> int:
        """Rows of a cache: the context, and padding of a prompt's last batch."""
        return self.context + self.pieces[0]

    def cache_bytes_per_token(self, configuration: Configuration) -> int:
        """Return the memory of a token's keys and values in the caches of all blocks."""
        c = configuration
        rows = [each.row_bytes(c.size) for each in formats_of(self.kv_cache)]
        return c.blocks * c.kv_heads * sum(rows)


class Cache(NamedTuple):
    """Key-value cache of a block: ``[context, kv_heads, row]``, see `numerics.cache_formats`."""

    keys: AnyArray
    values: AnyArray


def empty_caches(
    configuration: Configuration, context: int, kv_cache: KvCache = "f16"
) -> list[Cache]:
    """Return the caches of all blocks before the first token: NumPy broadcasts of one zero."""
    c = configuration
    zeros = [
        np.broadcast_to(each.element.dtype.type(0), (context, c.kv_heads, each.row_length(c.size)))
        for each in formats_of(kv_cache)
    ]
    return [Cache(*zeros)] * c.blocks
