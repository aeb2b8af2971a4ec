"""Interface of a model's program: sizes, and the key-value cache. Needs no MLIR."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from ..core.option_fields import KvCache
from ..numerics.cache_formats import formats_of
from ..numerics.element_types import AnyArray
from .configuration import Configuration

SCOPE = "model"
"""The scope of the parameters."""


MAX_CONTEXT = 1 << 30
"""The greatest context in tokens: positions, and those after them, fit 32 bits."""


Steps = Literal["single", "draft", "batch"]
"""Functions of a program beside those of one token: ``verify`` with draft, ``batch`` with batch."""

STEP_TOKENS = 8
"""Tokens of a call of ``verify`` or ``batch``, each with the bits that it has alone."""


_Count = TypeVar("_Count", int, Any)


def batches_of_size(
    tokens: _Count,
    size: int,
    sizes: Sequence[int],
    divide: Callable[[_Count, int], _Count] = operator.floordiv,
) -> _Count:
    """Return how many batches of a size are read of the tokens that no larger batch takes.

    The last one is at least 3/4 full. Batches of the least size take all tokens.

    Args:
        tokens: an integer, or a traced value of ``prompt`` (`subquant.models.module`).
        sizes: all batch sizes, descending.
        divide: returns the quotient of a count and a number.
    """
    if size == sizes[-1]:
        return divide(tokens + (size - 1), size)
    return divide(tokens * 4 + size, 4 * size)


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
        sizes = cls.pieces
        pieces = tuple(size for size in sizes if batches_of_size(context, size, sizes))
        return cls(context, pieces, kv_cache, rounds_activations, steps)

    @property
    def rows(self) -> int:
        """Rows of a cache: the context, and padding of a prompt's last batch."""
        return self.context + self.pieces[0]

    def cache_bytes_per_token(self, configuration: Configuration) -> int:
        """Return the memory of a token's keys and values in the caches of all blocks."""
        c = configuration
        rows = [each.row_bytes(c.head_size) for each in formats_of(self.kv_cache)]
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
        np.broadcast_to(
            each.element.dtype.type(0), (context, c.kv_heads, each.row_length(c.head_size))
        )
        for each in formats_of(kv_cache)
    ]
    return [Cache(*zeros)] * c.blocks
