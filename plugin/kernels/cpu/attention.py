"""The kernel of attention to a cache, in a time that grows with the keys that are attended.

A workgroup has some queries of the heads that share a head of the caches: *rows*, a query of a head
each. It goes through the keys that one of them attends, from the first to the last, a block of them
at a time::

    score[r, j]  = scale * sum_d query[r, d] * keys[j, d]        (bounded by the softcap)
    greatest'[r] = max(greatest[r], max_j score[r, j])
    factor[r]    = exp(greatest[r] - greatest'[r])
    weight[r, j] = exp(score[r, j] - greatest'[r])               (0 where r does not attend j)
    total[r]     = total[r] * factor[r] + sum_j weight[r, j]
    result[r, d] = result[r, d] * factor[r] + sum_j weight[r, j] * values[j, d]

and divides by the totals at the end. So a softmax needs no memory of the length of the context, and
blocks after the last position, or before the window, are not read. Scores are vectors of ``d`` that
are summed for several rows and keys at once, results are summed for several rows and vectors of
``d``: what is loaded, and widened from f16, is multiplied several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars, linalg, scalar
from ...emit.linalg import Extent
from ...emit.operation import INDEX
from ...emit.vectors import (
    Vectors,
    broadcast,
    constant_vector,
    element_at,
    load,
    load_element,
    loop,
    prefetch,
    quotient,
    reduce_lanes,
    remainder,
    scratch,
    shuffle_lanes,
    store,
    store_element,
    when,
)
from ...numerics.array_functions import convert
from ...numerics.attention import bounded, exponential
from ...numerics.element_types import F32, I32, ElementType
from ..isa.base import InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..kernel import Binding, Kernel

__all__ = ["AttentionKernel"]

_BLOCKS = (64, 32, 16)
"""Keys of a block: of 256 elements of f16, 64 are 32 KiB, which caches of the first level hold."""
_BLOCK_OF_ONE = 32
"""The same of one query, whose next block is read ahead."""
_STACK = 28 << 10
"""Bytes that a workgroup has for scores and totals, of the 32 KiB that IREE allows."""
_ROWS = 64
"""Rows of a workgroup at most."""
_WORKGROUPS = 8
"""As many at least, where there are enough queries."""
_KEYS = 4
"""Keys whose scores are computed together."""
_LINE = 64
"""Bytes that memory is read in."""
_LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class AttentionKernel:
    """What is computed, and with what.

    Args:
        instructions: a name in `INSTRUCTION_SETS`.
        count: of queries; None where that is known at run time only.
        heads, groups: of queries, and of the caches.
        depth: how many elements a row has.
        context: how many keys the caches have.
        element: of the caches, f16 or f32.
        scale, window, softcap: as of `Attention`.
    """

    instructions: str
    count: int | None
    heads: int
    groups: int
    depth: int
    context: int
    element: ElementType
    scale: float
    window: int
    softcap: float

    @staticmethod
    def fits_scratch(rows: int, lanes: int) -> bool:
        """True if the smallest block of keys fits the workgroup memory."""
        return _block(rows, lanes) is not None

    @property
    def target(self) -> InstructionSet:
        """The instruction set."""
        return INSTRUCTION_SETS[self.instructions]

    @property
    def lanes(self) -> int:
        """How many elements of a row are multiplied together."""
        return math.gcd(self.target.lanes, self.depth)

    @property
    def shared(self) -> int:
        """How many heads of a query attend the same head of the caches."""
        return self.heads // self.groups

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        most = max(1, _ROWS // self.shared)
        if self.count is None:
            return most
        return max(1, min(most, -(-self.count * self.groups // _WORKGROUPS)))

    @property
    def block(self) -> int:
        """How many keys a workgroup attends at once."""
        if self.count == 1:
            return min(_BLOCK_OF_ONE, _block(self.shared, self.lanes) or _BLOCK_OF_ONE)
        found = _block(self.queries * self.shared, self.lanes)
        assert found is not None  # or there is no kernel
        return found

    @property
    def tile(self) -> tuple[int, int]:
        """How many rows, and how many vectors of each, are summed together."""
        return (4, 4) if self.target.lanes == 16 else (2, 4)

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are the query, keys, values and the position, and the result.
        """
        rows = (None, self.heads, self.depth)
        cache = (self.context, self.groups, self.depth)
        bindings = [
            Binding(rows, F32),
            Binding(cache, self.element),
            Binding(cache, self.element),
            Binding((), I32),
            Binding(rows, F32),
        ]
        parts = 1 if self.count is None else -(-self.count // self.queries)
        return Kernel("attention", bindings, self.groups * parts, self._body, self.count)

    def _body(self, memories: Sequence[Value], number: Value, rows: Extent) -> None:
        query, keys, values, position, result = memories
        group = remainder(scalar(number), self.groups)
        count = _index(rows)
        inside = np.minimum(convert(load_element(position, []), INDEX), self.context - count)
        place = np.maximum(inside, 0)
        room = self.queries * self.shared
        memory = _Memory(
            query,
            keys,
            values,
            result,
            scratch([room, self.block], F32),
            scratch([room], F32),
            scratch([room], F32),
            scratch([room, self.lanes], F32),
        )

        def of_part(part: Value) -> None:
            first = scalar(part) * self.queries
            _Rows(self, memory, group, first, count, place).write()

        if self.count is None:
            parts = quotient(count + (self.queries - 1), self.queries)
            loop(0, parts.value, 1, of_part)
        else:
            of_part(quotient(scalar(number), self.groups).value)


@dataclass(frozen=True)
class _Memory:
    """What a workgroup reads and writes.

    Attributes:
        query, keys, values, result: bindings.
        scores: of the rows of a workgroup and the keys of a block; then weights.
        greatest, factors: of each row.
        totals: of each row, in as many parts as a vector has lanes.
    """

    query: Value
    keys: Value
    values: Value
    result: Value
    scores: Value
    greatest: Value
    factors: Value
    totals: Value


@dataclass(frozen=True)
class _Rows:
    """Writes the code of some rows.

    Args:
        kernel: what is computed.
        memory: what is read and written.
        group: the head of the caches.
        first: the first query.
        count: of all queries.
        position: of query 0.
    """

    kernel: AttentionKernel
    memory: _Memory
    group: ArrayLike
    first: ArrayLike
    count: ArrayLike
    position: ArrayLike

    def write(self) -> None:
        """Write the loops over blocks of keys, and what is before and after."""
        kernel = self.kernel
        queries = np.minimum(self.count - self.first, kernel.queries)
        is_whole = kernel.count is not None and kernel.count % kernel.queries == 0
        rows: Extent = (
            kernel.queries * kernel.shared if is_whole else (queries * kernel.shared).value
        )
        begin = self.position + self.first
        end = begin + queries
        start = np.maximum(begin - (kernel.window - 1), 0) if kernel.window else begin * 0
        loop(0, rows, 1, self._clear)

        def of_block(place: Value) -> None:
            block = scalar(place)
            count = np.minimum(end - block, kernel.block)
            self._in_tiles(rows, kernel.tile[0], lambda row, n: self._score(row, n, block, count))
            loop(0, rows, 1, lambda row: self._weigh(scalar(row), block))
            self._in_tiles(rows, kernel.tile[0], lambda row, n: self._add(row, n, block, count))

        loop(start.value, end.value, kernel.block, of_block)
        loop(0, rows, 1, self._divide)

    def _in_tiles(self, rows: Extent, size: int, body: Callable[[ArrayLike, int], None]) -> None:
        """Write what is done for several rows at once, of the first and how many they are."""
        if isinstance(rows, int):
            whole = rows - rows % size
            loop(0, whole, size, lambda row: body(scalar(row), size))
            if whole < rows:
                body(scalar(linalg.constant_index(whole)), rows - whole)
            return
        whole = (scalar(rows) - remainder(scalar(rows), size)).value
        loop(0, whole, size, lambda row: body(scalar(row), size))
        loop(whole, rows, 1, lambda row: body(scalar(row), 1))

    def _of_row(self, row: ArrayLike) -> list[Value]:
        """The query and the head of a row."""
        shared = self.kernel.shared
        query = self.first + quotient(row, shared)
        head = self.group * shared + remainder(row, shared)
        return [query.value, head.value]

    def _chunks(self, body: Callable[[Value], None]) -> None:
        loop(0, self.kernel.depth, self.kernel.lanes, body)

    def _clear(self, row: Value) -> None:
        """No keys are attended yet."""
        lanes, place = self.kernel.lanes, self._of_row(scalar(row))
        zeros = Vectors(lanes).known(0.0, F32)
        self._chunks(lambda chunk: store(zeros, self.memory.result, [*place, chunk]))
        store(zeros, self.memory.totals, [row, 0])
        store_element(Scalars().known(_LEAST, F32), self.memory.greatest, [row])

    def _score(self, row: ArrayLike, rows: int, block: ArrayLike, count: ArrayLike) -> None:
        """Write the scores of some rows and the keys of a block; of the last key, where it ends."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        places = [self._of_row(row + number) for number in range(rows)]
        last = block + count - 1

        def of_keys(key: Value) -> None:
            first = block + scalar(key)
            keys = [np.minimum(first + number, last) for number in range(_KEYS)]
            if kernel.count == 1:
                when(row == 0, lambda: self._ask_for(first))

            def of_chunk(chunk: Value, *sums: ArrayLike) -> list[ArrayLike]:
                key_parts = [
                    convert(load(memory.keys, [k.value, self.group.value, chunk], lanes,
                                 kernel.element), F32)
                    for k in keys
                ]  # fmt: skip
                found = []
                for number, place in enumerate(places):
                    query = load(memory.query, [*place, chunk], lanes, F32)
                    for key_part, total in zip(key_parts, sums[number * _KEYS :], strict=False):
                        found.append(kernel.target.fma(query, key_part, total))
                return found

            zeros = [Vectors(lanes).known(0.0, F32)] * (rows * _KEYS)
            sums = loop(0, kernel.depth, lanes, of_chunk, zeros)
            for number in range(rows):
                scores = _summed(sums[number * _KEYS : (number + 1) * _KEYS])
                store(scores, memory.scores, [(row + number).value, key])

        loop(0, count.value, _KEYS, of_keys)

    def _ask_for(self, first: ArrayLike) -> None:
        """Ask for the values of some keys, and for the keys of the next block.

        One query reads all it attends once, and in parts of a row: memory is not read ahead by
        itself.
        """
        kernel, memory = self.kernel, self.memory
        elements = _LINE * 8 // kernel.element.bits
        for cache, ahead in ((memory.values, 0), (memory.keys, kernel.block)):
            for number in range(_KEYS):
                place = (first + (number + ahead)).value
                for chunk in range(0, kernel.depth, elements):
                    where = linalg.constant_index(chunk)
                    prefetch(cache, [place, self.group.value, where])

    def _weigh(self, row: ArrayLike, block: ArrayLike) -> None:
        """Replace the scores of a row by weights, and count these."""
        kernel, memory = self.kernel, self.memory
        lanes = kernel.lanes
        own = self.position + self.first + quotient(row, kernel.shared)
        at = convert(own - block, I32)
        own_place = broadcast(at, lanes)
        before = broadcast(at - kernel.window, lanes) if kernel.window else None
        scores, attended = [], []
        for place in range(0, kernel.block, lanes):
            score = load(memory.scores, [row.value, place], lanes, F32) * kernel.scale
            if kernel.softcap:
                score = bounded(score, kernel.softcap)
            number = constant_vector([place + lane for lane in range(lanes)], I32)
            is_attended = number <= own_place
            if before is not None:
                is_attended = is_attended & (number > before)
            attended.append(is_attended)
            scores.append(np.where(is_attended, score, _LEAST))
        most = scores[0]
        for score in scores[1:]:
            most = np.maximum(most, score)
        old = load_element(memory.greatest, [row.value])
        new = np.maximum(old, reduce_lanes("maximumf", most))
        store_element(new, memory.greatest, [row.value])
        greatest = broadcast(new, lanes)
        factor = exponential(broadcast(old, lanes) - greatest)
        store_element(element_at(factor, 0), memory.factors, [row.value])
        total = load(memory.totals, [row.value, 0], lanes, F32) * factor
        for place, score, is_attended in zip(
            range(0, kernel.block, lanes), scores, attended, strict=True
        ):
            weight = np.where(is_attended, exponential(score - greatest), 0.0)
            total = total + weight
            store(weight, memory.scores, [row.value, place])
        store(total, memory.totals, [row.value, 0])

    def _add(self, row: ArrayLike, rows: int, block: ArrayLike, count: ArrayLike) -> None:
        """Add the values of a block to the results of some rows, by weights."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        places = [self._of_row(row + number) for number in range(rows)]
        numbers_ = [(row + number).value for number in range(rows)]
        factors = [broadcast(load_element(memory.factors, [n]), lanes) for n in numbers_]

        def of_chunks(first: ArrayLike, chunks: int) -> None:
            at = [(first + lanes * chunk).value for chunk in range(chunks)]
            start = [
                load(memory.result, [*place, chunk], lanes, F32) * factor
                for place, factor in zip(places, factors, strict=True)
                for chunk in at
            ]

            def of_key(key: Value, *sums: ArrayLike) -> list[ArrayLike]:
                position = (block + scalar(key)).value
                values = [
                    convert(load(memory.values, [position, self.group.value, chunk], lanes,
                                 kernel.element), F32)
                    for chunk in at
                ]  # fmt: skip
                weights = [
                    broadcast(load_element(memory.scores, [n, key]), lanes) for n in numbers_
                ]
                return [
                    kernel.target.fma(weight, value, sums[number * chunks + chunk])
                    for number, weight in enumerate(weights)
                    for chunk, value in enumerate(values)
                ]

            sums = loop(0, count.value, 1, of_key, start)
            for number, place in enumerate(places):
                for chunk, where in enumerate(at):
                    store(sums[number * chunks + chunk], memory.result, [*place, where])

        together = kernel.tile[1] * lanes
        whole = kernel.depth - kernel.depth % together
        loop(0, whole, together, lambda first: of_chunks(scalar(first), kernel.tile[1]))
        if whole < kernel.depth:
            first = scalar(linalg.constant_index(whole))
            of_chunks(first, (kernel.depth - whole) // lanes)

    def _divide(self, row: Value) -> None:
        lanes, place = self.kernel.lanes, self._of_row(scalar(row))
        total = reduce_lanes("add", load(self.memory.totals, [row, 0], lanes, F32))
        totals = broadcast(total, lanes)

        def of_chunk(chunk: Value) -> None:
            where = [*place, chunk]
            store(load(self.memory.result, where, lanes, F32) / totals, self.memory.result, where)

        self._chunks(of_chunk)


def _summed(given: Sequence[ArrayLike]) -> ArrayLike:
    """The sum of the elements of each of four vectors, as one of four elements."""
    lanes = int(given[0].value.type.shape[0])
    parts, size = list(given), lanes
    # Each part has as many sums as it is made of vectors, in `size` elements each.
    while len(parts) > 1:
        parts = [_folded(*pair, size) for pair in zip(parts[::2], parts[1::2], strict=True)]
        size //= 2
    [sums] = parts
    while size > 1:
        sums, size = _folded(sums, sums, size, once=True), size // 2
    return sums


def _folded(left: ArrayLike, right: ArrayLike, size: int, *, once: bool = False) -> ArrayLike:
    """The halves of each run of `size` elements added: of the left vector, then of the right."""
    lanes = int(left.value.type.shape[0])
    half = size // 2
    runs = range(0, lanes if once else 2 * lanes, size)
    low, high = (
        shuffle_lanes(left, right, [run + offset + n for run in runs for n in range(half)])
        for offset in (0, half)
    )
    return low + high


def _block(rows: int, lanes: int) -> int | None:
    """The keys of a block, for so many rows; None if there is not the memory for few."""
    for block in _BLOCKS:
        if rows * (block + lanes + 2) * F32.bits // 8 <= _STACK:
            return block
    return None


def _index(extent: Extent) -> ArrayLike:
    return scalar(linalg.constant_index(extent) if isinstance(extent, int) else extent)
