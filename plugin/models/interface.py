"""Interface of a model's program: sizes, and the key-value cache. Needs no MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.option_fields import KvCache
from ..numerics.cache_formats import CacheFormat
from ..numerics.element_types import AnyArray
from .configuration import Configuration

SCOPE = "model"
"""The scope of the parameters."""


MOST_CONTEXT = 1 << 30
"""The greatest context in tokens: positions, and those after them, fit 32 bits."""


@dataclass(frozen=True)
class Shape:
    """The sizes, and the storage of caches, that are chosen when a program is written.

    Attributes:
        context: the maximum number of tokens in the caches.
        pieces: batch sizes of prompt evaluation, descending.
        kv_cache: the storage of keys and values.
        rounds_activations: inputs of linear layers are rounded as the checkpoint asks for.
    """

    context: int
    pieces: tuple[int, ...] = (128, 16)
    kv_cache: KvCache = "f16"
    rounds_activations: bool = False

    @classmethod
    def of_context(
        cls, context: int, kv_cache: KvCache = "f16", rounds_activations: bool = False
    ) -> Shape:
        """Return the default batch sizes, without those that no prompt fills by half."""
        longest, *shorter = cls.pieces
        pieces = (longest, *shorter) if longest < 2 * context else tuple(shorter)
        return cls(context, pieces, kv_cache, rounds_activations)

    @property
    def rows(self) -> int:
        """Rows of a cache: the context, and padding of a prompt's last batch."""
        return self.context + self.pieces[0]

    @property
    def cache_format(self) -> CacheFormat:
        """The storage of keys and values."""
        return CacheFormat.named(self.kv_cache)


class Cache(NamedTuple):
    """Key-value cache of a block, rows of ``[context, kv_heads]`` in a `CacheFormat` each."""

    keys: AnyArray
    values: AnyArray


def empty_caches(
    configuration: Configuration, context: int, kv_cache: KvCache = "f16"
) -> list[Cache]:
    """Return the caches of all blocks before the first token: NumPy broadcasts of one zero."""
    c, storage = configuration, CacheFormat.named(kv_cache)
    zero = storage.element.dtype.type(0)
    zeros = np.broadcast_to(zero, (context, c.kv_heads, storage.row_length(c.size)))
    return [Cache(zeros, zeros)] * c.blocks
