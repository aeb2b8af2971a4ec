"""Sizes of the attention kernel: rows of a workgroup, keys of a block, register tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...emit.vectors import MAX_SCRATCH_BYTES
from ...numerics.cache_formats import CacheFormat
from ...numerics.element_types import F32
from ..isa.base import InstructionSet
from .cache_reader import KEYS_PER_TILE, vectors_per_load

_KEYS_PER_BLOCK = (64, 32, 16)
"""The keys of a block; the largest block that fits is chosen.

64 keys of 256 f16 are 32 KiB, an L1 cache.
"""
_MAX_KEYS_PER_BLOCK_OF_ONE_QUERY = 32
"""Keys of a block, at most, of a workgroup with one query, which prefetches the next block."""
_MAX_SEPARATE_QUERIES = 8
"""Causal queries, at most, that have a workgroup each; their bits are those of one query alone."""
_MAX_ROWS_PER_WORKGROUP = 64
"""Rows (queries of a head) of a workgroup, at most; it has the rows of one query at least."""
_MIN_WORKGROUPS = 8
"""Workgroups of static queries, at least, as far as there are queries of KV heads."""
_MIN_TILES_TO_DECODE_ONCE = 4
"""Register tiles of rows, at least, for which integers are decoded once, to scratch memory."""
_MIN_ROWS_TO_TRANSPOSE_KEYS = 16
"""Rows of a workgroup, at least, for which keys are transposed.

With 128 queries, 12 heads of 32 and 128 keys attention takes 0.6 of the time of scores that are
summed over lanes (Zen 5).
"""
DECODED_ELEMENTS = 2048
"""Elements that are decoded together: 4 keys of up to 512, or 32 elements of each of 64 values."""


@dataclass(frozen=True)
class AttentionPlan:
    """Attention to a KV cache, and the sizes of its kernel.

    Args:
        queries: the number of queries; None where it is dynamic.
        heads, kv_heads: the number of query heads, and of KV heads.
        head_size: elements of a query, key or value.
        context: the keys of the cache.
        key_format, value_format: the storage of keys and values.
        scale, window, softcap, causal: as in `subquant.dialects.attention.Attention`.
    """

    target: InstructionSet
    queries: int | None
    heads: int
    kv_heads: int
    head_size: int
    context: int
    key_format: CacheFormat
    value_format: CacheFormat
    scale: float
    window: int
    softcap: float
    causal: bool = True

    @property
    def fits_scratch(self) -> bool:
        """True if the smallest block of keys of a query fits scratch memory."""
        return self._keys_that_fit(self.heads_per_kv_head) is not None

    def _keys_that_fit(self, rows: int) -> int | None:
        """The largest block of keys whose scratch memory fits; None for none."""
        decoded = DECODED_ELEMENTS if self.decodes_once else 0
        for keys in _KEYS_PER_BLOCK:
            transposed = keys * self.head_size if self.transposes_keys else 0
            elements = self._row_elements(rows, keys) + decoded + transposed
            if elements * F32.bits // 8 <= MAX_SCRATCH_BYTES:
                return keys
        return None

    def _row_elements(self, rows: int, keys: int) -> int:
        """The f32 in scratch memory for rows and a block of keys.

        A row has a score of each key, a denominator in each lane, a maximum and a factor.
        """
        return rows * (keys + self.lanes + 2)

    @property
    def decodes_once(self) -> bool:
        """True if integers are decoded to scratch memory, for all rows of a workgroup."""
        least = _MIN_TILES_TO_DECODE_ONCE * self.rows_per_score_tile
        has_rows = least <= self.rows_per_workgroup <= _MAX_ROWS_PER_WORKGROUP
        fits = KEYS_PER_TILE * self.head_size <= DECODED_ELEMENTS
        return self.key_format.is_quantized and has_rows and fits

    @property
    def transposes_keys(self) -> bool:
        """True if the keys of a block are transposed to scratch memory, for all rows."""
        rows, keys = self.rows_per_workgroup, min(_KEYS_PER_BLOCK)
        has_rows = _MIN_ROWS_TO_TRANSPOSE_KEYS <= rows <= _MAX_ROWS_PER_WORKGROUP
        elements = keys * self.head_size + self._row_elements(rows, keys)
        fits = elements * F32.bits // 8 <= MAX_SCRATCH_BYTES
        return self.queries is not None and not self.key_format.is_quantized and has_rows and fits

    @property
    def lanes(self) -> int:
        """The lanes of a vector of a head."""
        return math.gcd(self.target.lanes, self.head_size)

    @property
    def heads_per_kv_head(self) -> int:
        """The query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def separates_queries(self) -> bool:
        """True if each query has the blocks of keys, and the bits, that it has alone."""
        if self.queries is None:
            return False
        return self.queries <= (_MAX_SEPARATE_QUERIES if self.causal else 1)

    @property
    def queries_per_workgroup(self) -> int:
        """The queries of a workgroup."""
        if self.separates_queries:
            return 1
        limit = max(1, _MAX_ROWS_PER_WORKGROUP // self.heads_per_kv_head)
        if self.queries is None:
            return limit
        return max(1, min(limit, -(-self.queries * self.kv_heads // _MIN_WORKGROUPS)))

    @property
    def rows_per_workgroup(self) -> int:
        """The rows of a workgroup."""
        return self.queries_per_workgroup * self.heads_per_kv_head

    @property
    def keys_per_block(self) -> int:
        """The keys of a block."""
        if self.separates_queries:
            limit = _MAX_KEYS_PER_BLOCK_OF_ONE_QUERY
            return min(limit, self._keys_that_fit(self.heads_per_kv_head) or limit)
        keys = self._keys_that_fit(self.rows_per_workgroup)
        assert keys is not None  # callers test fits_scratch
        return keys

    @property
    def rows_per_score_tile(self) -> int:
        """The rows of a register tile of scores."""
        return 4 if self.target.lanes == 16 else 2

    @property
    def value_tile(self) -> tuple[int, int]:
        """Rows, and vectors of results, of a register tile.

        They take 16 registers of an instruction set with vectors of 16 lanes, else 8, or more
        if a load returns more vectors.
        """
        vectors = vectors_per_load(self.value_format, self.lanes)
        if self.transposes_keys and vectors == 1:
            vectors = min(4, self.head_size // self.lanes)
            return 4 * self.rows_per_score_tile // vectors, vectors
        if self.target.lanes == 16 and self.decodes_once:
            return 8, max(2, vectors)
        return self.rows_per_score_tile, max(4, vectors)
