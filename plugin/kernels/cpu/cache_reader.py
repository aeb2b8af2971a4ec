"""Reading of keys and values by the attention kernel: floats, or integers with scales.

Integers of a cache (`subquant.numerics.cache_formats`) are decoded in registers, or once for many
rows to scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, linalg, scalar
from ...emit.vectors import (
    CACHE_LINE_BYTES,
    bitcast,
    broadcast,
    element_at,
    load,
    loop,
    prefetch,
    quotient,
    store,
)
from ...numerics.array_functions import convert
from ...numerics.cache_formats import CacheFormat
from ...numerics.element_types import BF16, F32, I8, I32

KEYS_PER_TILE = 4
"""A register tile of scores has this many keys."""


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
        decoded: f32 scratch memory for the tile that is read; None where loads decode it.
    """

    storage: CacheFormat
    cache: Value
    kv_head: ArrayLike
    lanes: int
    head_size: int
    decoded: Value | None

    @property
    def vectors_per_load(self) -> int:
        """The number of vectors of a key that a load returns."""
        return vectors_per_load(self.storage, self.lanes) if self.decoded is None else 1

    def keys(self, keys: Sequence[ArrayLike]) -> Callable[[int, Value], list[ArrayLike]]:
        """Decode a tile of keys, and return its loads: of vectors of a key, from an element on."""
        decoded, size = self.decoded, self.head_size
        if decoded is None:
            return lambda number, offset: self._load(keys[number], offset)
        zero = scalar(linalg.constant_index(0))
        for number, key in enumerate(keys):
            self._decode(key, zero, size, decoded, zero + number * size)

        def load_decoded(number: int, offset: Value) -> list[ArrayLike]:
            return [load(decoded, [(scalar(offset) + number * size).value], self.lanes, F32)]

        return load_decoded

    def values(
        self, block: ArrayLike, count: ArrayLike, first: ArrayLike, vectors: int
    ) -> Callable[[Value], list[ArrayLike]]:
        """Decode some vectors, from `first` on, of the values of a block; return their loads.

        A load takes the number of a value in the block.
        """
        decoded, lanes, width = self.decoded, self.lanes, vectors * self.lanes

        def load_vectors(number: Value) -> list[ArrayLike]:
            value = block + scalar(number)
            starts = range(0, width, lanes * self.vectors_per_load)
            loads = [self._load(value, (first + start).value) for start in starts]
            return [vector for each in loads for vector in each]

        if decoded is None:
            return load_vectors

        def decode(number: Value) -> None:
            self._decode(block + scalar(number), first, width, decoded, scalar(number) * width)

        def load_decoded(number: Value) -> list[ArrayLike]:
            starts = [scalar(number) * width + lanes * vector for vector in range(vectors)]
            return [load(decoded, [start.value], lanes, F32) for start in starts]

        loop(0, count.value, 1, decode)
        return load_decoded

    def _load(self, key: ArrayLike, offset: Value) -> list[ArrayLike]:
        """Load some vectors of a key, from an element on, as f32."""
        lanes, storage = self.lanes, self.storage
        if storage.bits == 4:
            vectors = self._load_int4(key, offset)
        else:
            index = [key.value, self.kv_head.value, offset]
            vectors = [convert(load(self.cache, index, lanes, storage.element), F32)]
        if not storage.is_quantized:
            return vectors
        group = quotient(scalar(offset), storage.group_size(self.head_size))
        start = (group * 2 + storage.value_length(self.head_size)).value
        bits = bitcast(load(self.cache, [key.value, self.kv_head.value, start], 2, I8), BF16)
        scale = broadcast(element_at(convert(bits, F32), 0), lanes)
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

    def _decode(
        self, key: ArrayLike, first: ArrayLike, count: int, decoded: Value, start: ArrayLike
    ) -> None:
        """Write some elements of a key, from `first` on, to f32 scratch memory from `start` on."""

        def write(offset: Value) -> None:
            vectors = self._load(key, (first + scalar(offset)).value)
            for number, each in enumerate(vectors):
                store(each, decoded, [(start + scalar(offset) + self.lanes * number).value])

        loop(0, count, self.lanes * vectors_per_load(self.storage, self.lanes), write)

    def prefetch(self, first: ArrayLike) -> None:
        """Prefetch the rows of a tile of keys."""
        elements = CACHE_LINE_BYTES * 8 // self.storage.element.bits
        for number in range(KEYS_PER_TILE):
            key = (first + number).value
            for offset in range(0, self.storage.row_length(self.head_size), elements):
                prefetch(self.cache, [key, self.kv_head.value, linalg.constant_index(offset)])
