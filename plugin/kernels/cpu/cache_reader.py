"""Reading of keys and values by the attention kernel: floats, or integers with scales.

Integers of a cache (`subquant.numerics.cache_formats`) are decoded in registers. Before a block of
keys is computed, its bf16 scales become f32 in scratch memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, linalg, scalar
from ...emit.vectors import (
    bitcast,
    broadcast,
    load,
    load_element,
    loop,
    prefetch,
    quotient,
    scratch,
    store,
)
from ...numerics.array_functions import convert
from ...numerics.cache_formats import CacheFormat
from ...numerics.element_types import BF16, F32, I8, I32

KEYS_PER_TILE = 4
"""A register tile of scores has this many keys."""
_CACHE_LINE_BYTES = 64
"""The bytes of a cache line, which one prefetch loads."""


def vectors_per_load(storage: CacheFormat, lanes: int) -> int:
    """The vectors of a key or value that are loaded together: the group of 4-bit integers."""
    return storage.group // lanes if storage.bits == 4 else 1


@dataclass(frozen=True)
class CacheReader:
    """Code that reads and decodes the keys or the values.

    Attributes:
        storage: the format of the cache.
        cache: the binding.
        kv_head: the head of a workgroup.
        lanes: the lanes of a vector of a head.
        head_size: the elements of a head.
        scales: of each key of a block and each group, in scratch memory; None for floats.
    """

    storage: CacheFormat
    cache: Value
    kv_head: ArrayLike
    lanes: int
    head_size: int
    scales: Value | None

    @classmethod
    def of(
        cls,
        storage: CacheFormat,
        cache: Value,
        kv_head: ArrayLike,
        *,
        lanes: int,
        head_size: int,
        keys_per_block: int,
    ) -> CacheReader:
        """Return a reader, with scratch memory for the scales of a block of keys."""
        groups = storage.groups(head_size)
        scales = scratch([keys_per_block, groups], F32) if groups else None
        return cls(storage, cache, kv_head, lanes, head_size, scales)

    @property
    def vectors_per_load(self) -> int:
        """The number of vectors that `load` returns."""
        return vectors_per_load(self.storage, self.lanes)

    def decode_scales(self, block: ArrayLike, count: ArrayLike) -> None:
        """Write the scales of a block of keys to scratch memory."""
        scales, size = self.scales, self.head_size
        if scales is None:
            return
        groups, start = self.storage.groups(size), self.storage.value_length(size)

        def decode(number: Value) -> None:
            index = [(block + scalar(number)).value, self.kv_head.value, start]
            loaded = bitcast(load(self.cache, index, 2 * groups, I8), BF16)
            store(convert(loaded, F32), scales, [number, 0])

        loop(0, count.value, 1, decode)

    def load(self, block: ArrayLike, key: ArrayLike, offset: Value) -> list[ArrayLike]:
        """Load some vectors of a key of a block, from an element on, as f32."""
        lanes, storage = self.lanes, self.storage
        if storage.bits == 4:
            vectors = self._load_int4(key, offset)
        else:
            index = [key.value, self.kv_head.value, offset]
            vectors = [convert(load(self.cache, index, lanes, storage.element), F32)]
        if self.scales is None:
            return vectors
        group = quotient(scalar(offset), storage.group_size(self.head_size))
        scale = broadcast(load_element(self.scales, [(key - block).value, group.value]), lanes)
        return [each * scale for each in vectors]

    def _load_int4(self, key: ArrayLike, offset: Value) -> list[ArrayLike]:
        """Load a group of 4-bit integers: the low halves of its bytes, then the high ones."""
        lanes, low, high = self.lanes, [], []
        first = quotient(scalar(offset), 2)
        for start in range(0, self.storage.group // 2, lanes):
            index = [key.value, self.kv_head.value, (first + start).value]
            pairs = convert(load(self.cache, index, lanes, I8), I32)
            low.append(convert((pairs << 28) >> 28, F32))
            high.append(convert(pairs >> 4, F32))
        return low + high

    def prefetch(self, first: ArrayLike) -> None:
        """Prefetch the rows of a tile of keys."""
        elements = _CACHE_LINE_BYTES * 8 // self.storage.element.bits
        for number in range(KEYS_PER_TILE):
            key = (first + number).value
            for offset in range(0, self.storage.row_length(self.head_size), elements):
                prefetch(self.cache, [key, self.kv_head.value, linalg.constant_index(offset)])
