"""Attention kernel: online (blockwise) softmax over a KV cache, as in FlashAttention.

A workgroup has some queries of the query heads that share a KV head: its *rows*, a query of a head
each. It goes through the attended keys, a block of them at a time, with a running maximum and a
running denominator for each row::

    score[r, j]   = scale * sum_d query[r, d] * keys[j, d]       (bounded by the softcap)
    max'[r]       = max(max[r], max_j score[r, j])
    rescale[r]    = exp(max[r] - max'[r])
    weight[r, j]  = exp(score[r, j] - max'[r])                   (0 where r does not attend j)
    total[r]      = total[r] * rescale[r] + sum_j weight[r, j]
    result[r, d]  = result[r, d] * rescale[r] + sum_j weight[r, j] * values[j, d]

A row attends the keys up to its position, or all of them (`causal`). At the end, results are
divided by the totals. So a softmax needs no memory of the length of the context, and blocks after
the last position or before the window are not read. Scores are accumulated over ``d`` for several
rows and keys at once, results for several rows and vectors of ``d``: each load is used several
times, and so is its conversion from f16.

A workgroup of many rows transposes the keys of a block first, to scratch memory: then the lanes of
a vector are keys, and scores need no sums over lanes. After the scores, this memory has f32 values.

Integers of a cache (`subquant.numerics.cache_formats`) are decoded in registers. A workgroup of
many rows decodes them once instead, to f32 in scratch memory: a tile of keys, which all rows are
multiplied with, and some elements of the values of a block (as BLIS packs panels).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars, linalg, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.operation import INDEX
from ...emit.vectors import (
    Vectors,
    broadcast,
    constant_vector,
    element_at,
    lane_sums,
    load,
    load_element,
    loop,
    quotient,
    reduce_lanes,
    remainder,
    scratch,
    store,
    store_element,
    transpose_lanes,
)
from ...numerics.array_functions import convert
from ...numerics.attention import bounded, exponential
from ...numerics.element_types import F32, I32
from .attention_plan import DECODED_ELEMENTS, AttentionPlan
from .cache_reader import KEYS_PER_TILE, CacheReader

_SCORE_VECTORS = 4
"""The vectors of keys of a register tile of scores, if keys are transposed."""
_ELEMENTS_PER_STEP = 4
"""The elements of transposed keys in a step of a loop: head sizes are multiples of it."""
_MIN_F32 = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class AttentionKernel(AttentionPlan):
    """The kernel of an attention to a KV cache."""

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the query, keys, values, the position, and the result."""
        rows = (None, self.heads, self.head_size)
        keys, values = (
            Binding((self.context, self.kv_heads, each.row_length(self.head_size)), each.element)
            for each in (self.key_format, self.value_format)
        )
        bindings = [Binding(rows, F32), keys, values, Binding((), I32), Binding(rows, F32)]
        groups = 1 if self.queries is None else -(-self.queries // self.queries_per_workgroup)
        workgroups = self.kv_heads * groups
        return Kernel("attention", bindings, workgroups, self._body, self.queries)

    def _body(self, memories: Sequence[Value], workgroup: Value, queries: DimSize) -> None:
        query, keys, values, position, result = memories
        kv_head = remainder(scalar(workgroup), self.kv_heads)
        count = scalar(linalg.constant_index(queries) if isinstance(queries, int) else queries)
        first = convert(load_element(position, []), INDEX)
        first = np.maximum(np.minimum(first, self.context - count), 0)
        rows = self.rows_per_workgroup
        decoded = scratch([DECODED_ELEMENTS], F32) if self.decodes_once else None
        keys_size = self.head_size * self.keys_per_block
        transposed = scratch([keys_size], F32) if self.transposes_keys else None
        decoded_values = decoded or (None if self.value_format.element == F32 else transposed)
        sizes = kv_head, self.lanes, self.head_size
        memory = _Memory(
            query,
            CacheReader(self.key_format, keys, *sizes, decoded),
            CacheReader(self.value_format, values, *sizes, decoded_values),
            result,
            scratch([rows, self.keys_per_block], F32),
            scratch([rows], F32),
            scratch([rows], F32),
            scratch([rows, self.lanes], F32),
            transposed,
        )

        def emit_group(group: Value) -> None:
            first_query = scalar(group) * self.queries_per_workgroup
            _Rows(self, memory, kv_head, first_query, count, first).emit()

        if self.queries is None:
            groups = quotient(count + (self.queries_per_workgroup - 1), self.queries_per_workgroup)
            loop(0, groups.value, 1, emit_group)
        else:
            emit_group(quotient(scalar(workgroup), self.kv_heads).value)


@dataclass(frozen=True)
class _Memory:
    """The memory of a workgroup.

    Attributes:
        query, result: the bindings.
        keys, values: the readers of the caches.
        scores: of each row and key of a block; then the softmax weights.
        maxima: the running maximum of each row.
        rescales: the factor of each row's previous totals and results.
        totals: the running denominator of each row, in the lanes of a vector.
        transposed_keys: the keys of a block, ``[head_size * keys]``; None if rows read the cache.
    """

    query: Value
    keys: CacheReader
    values: CacheReader
    result: Value
    scores: Value
    maxima: Value
    rescales: Value
    totals: Value
    transposed_keys: Value | None


@dataclass(frozen=True)
class _Rows:
    """The rows of a workgroup from `first_query` on; `position` is query 0's in the context."""

    kernel: AttentionKernel
    memory: _Memory
    kv_head: ArrayLike
    first_query: ArrayLike
    queries: ArrayLike
    position: ArrayLike

    def emit(self) -> None:
        """Emit the loops over blocks of keys, the initialization, and the division."""
        kernel = self.kernel
        queries = np.minimum(self.queries - self.first_query, kernel.queries_per_workgroup)
        rows: DimSize = kernel.rows_per_workgroup
        if kernel.queries is None or kernel.queries % kernel.queries_per_workgroup:
            rows = (queries * kernel.heads_per_kv_head).value
        first = self.position + self.first_query
        end = first + queries if kernel.causal else first * 0 + kernel.context
        start = np.maximum(first - (kernel.window - 1), 0) if kernel.window else first * 0
        loop(0, rows, 1, self._initialize)

        def add_block(key: Value) -> None:
            block = scalar(key)
            count = np.minimum(end - block, kernel.keys_per_block)
            self._write_scores(block, count, rows)
            loop(0, rows, 1, lambda row: self._write_weights(scalar(row), block))
            self._add_values(block, count, rows)

        loop(start.value, end.value, kernel.keys_per_block, add_block)
        loop(0, rows, 1, self._divide)

    def _in_row_tiles(
        self, rows: DimSize, size: int, body: Callable[[list[ArrayLike]], None]
    ) -> None:
        """Call a body with the rows of each register tile.

        The last row is repeated in a tile that has fewer: the tile computes it twice alike. One row
        of a dynamic number is a tile of its own, because a call may have only one.
        """
        if isinstance(rows, int):
            whole = rows - rows % size
            loop(0, whole, size, lambda row: body([scalar(row) + n for n in range(size)]))
            if whole < rows:
                body([scalar(linalg.constant_index(row)) for row in range(whole, rows)])
            return
        count = scalar(rows)
        if self.kernel.queries is not None:

            def repeat_last(row: Value) -> None:
                body([np.minimum(scalar(row) + number, count - 1) for number in range(size)])

            loop(0, rows, size, repeat_last)
            return
        whole_tiles = (count - remainder(count, size)).value
        loop(0, whole_tiles, size, lambda row: body([scalar(row) + n for n in range(size)]))
        loop(whole_tiles, rows, 1, lambda row: body([scalar(row)]))

    def _query_and_head(self, row: ArrayLike) -> list[Value]:
        """The query and the query head of a row."""
        heads = self.kernel.heads_per_kv_head
        query = self.first_query + quotient(row, heads)
        head = self.kv_head * heads + remainder(row, heads)
        return [query.value, head.value]

    def _initialize(self, row: Value) -> None:
        """Clear the result and the total of a row, and set its maximum to the least f32."""
        kernel, memory = self.kernel, self.memory
        position = self._query_and_head(scalar(row))
        zeros = Vectors(kernel.lanes).known(0.0, F32)
        size, lanes = kernel.head_size, kernel.lanes
        loop(0, size, lanes, lambda offset: store(zeros, memory.result, [*position, offset]))
        store(zeros, memory.totals, [row, 0])
        store_element(Scalars().known(_MIN_F32, F32), memory.maxima, [row])

    # -- scores -----------------------------------------------------------------------------------

    def _write_scores(self, block: ArrayLike, count: ArrayLike, rows: DimSize) -> None:
        """Write the scores of all rows and a block of keys; the last key may be repeated."""
        last = block + count - 1
        if self.memory.transposed_keys is not None:
            self._transpose_keys(self.memory.transposed_keys, block, count)
            self._write_transposed_scores(self.memory.transposed_keys, count, rows)
            return

        def write_keys(offset: Value) -> None:
            first = block + scalar(offset)
            if self.kernel.separates_queries:  # parts of a row, which hardware does not prefetch
                self.memory.values.prefetch(first)
                self.memory.keys.prefetch(first + self.kernel.keys_per_block)
            keys = [np.minimum(first + number, last) for number in range(KEYS_PER_TILE)]
            write = functools.partial(self._write_tile, offset, self.memory.keys.keys(keys))
            self._in_row_tiles(rows, self.kernel.rows_per_score_tile, write)

        loop(0, count.value, KEYS_PER_TILE, write_keys)

    def _write_tile(
        self,
        key: Value,
        load_keys: Callable[[int, Value], list[ArrayLike]],
        rows: Sequence[ArrayLike],
    ) -> None:
        """Write the scores of some rows and a tile of keys, from the key `key` of the block on."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        positions = [self._query_and_head(row) for row in rows]
        vectors = memory.keys.vectors_per_load

        def accumulate(offset: Value, *carried: ArrayLike) -> list[ArrayLike]:
            loaded = [load_keys(number, offset) for number in range(KEYS_PER_TILE)]
            accumulators = list(carried)
            for vector in range(vectors):
                start = (scalar(offset) + lanes * vector).value if vector else offset
                for number, position in enumerate(positions):
                    query = load(memory.query, [*position, start], lanes, F32)
                    for index, key_vectors in enumerate(loaded, number * KEYS_PER_TILE):
                        accumulators[index] = kernel.target.fma(
                            query, key_vectors[vector], accumulators[index]
                        )
            return accumulators

        zeros = [Vectors(lanes).known(0.0, F32)] * (len(rows) * KEYS_PER_TILE)
        accumulators = loop(0, kernel.head_size, lanes * vectors, accumulate, zeros)
        for number, row in enumerate(rows):
            own = accumulators[number * KEYS_PER_TILE : (number + 1) * KEYS_PER_TILE]
            store(lane_sums(own), memory.scores, [row.value, key])

    def _transpose_keys(self, transposed: Value, block: ArrayLike, count: ArrayLike) -> None:
        """Transpose the keys of a block; the last key may be repeated."""
        lanes, last = self.kernel.lanes, block + count - 1

        def transpose(offset: Value) -> None:
            first = block + scalar(offset)
            keys = [np.minimum(first + number, last) for number in range(lanes)]
            load_key = self.memory.keys.keys(keys)

            def transpose_elements(start: Value) -> None:
                columns = transpose_lanes([load_key(n, start)[0] for n in range(lanes)])
                for number, column in enumerate(columns):
                    index = (scalar(start) + number) * self.kernel.keys_per_block + scalar(offset)
                    store(column, transposed, [index.value])

            loop(0, self.kernel.head_size, lanes, transpose_elements)

        loop(0, count.value, lanes, transpose)

    def _write_transposed_scores(self, transposed: Value, count: ArrayLike, rows: DimSize) -> None:
        """Write the scores of all rows and the transposed keys of a block."""
        kernel, lanes = self.kernel, self.kernel.lanes
        vectors = min(_SCORE_VECTORS, kernel.keys_per_block // lanes)
        size = 4 * kernel.rows_per_score_tile // vectors

        def write_keys(offset: Value) -> None:
            offsets = [(scalar(offset) + lanes * number).value for number in range(vectors)]
            write = functools.partial(self._write_transposed_tile, transposed, offsets)
            self._in_row_tiles(rows, size, write)

        loop(0, count.value, lanes * vectors, write_keys)

    def _write_transposed_tile(
        self, transposed: Value, offsets: Sequence[Value], rows: Sequence[ArrayLike]
    ) -> None:
        """Write the scores of some rows and some vectors of keys, which begin at `offsets`."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        positions = [self._query_and_head(row) for row in rows]

        def accumulate(first: Value, *carried: ArrayLike) -> list[ArrayLike]:
            accumulators = list(carried)
            for number in range(_ELEMENTS_PER_STEP):
                element = scalar(first) + number
                indices = [element * kernel.keys_per_block + scalar(each) for each in offsets]
                keys = [load(transposed, [each.value], lanes, F32) for each in indices]
                index = 0
                for position in positions:
                    query = broadcast(load_element(memory.query, [*position, element.value]), lanes)
                    for key in keys:
                        accumulators[index] = kernel.target.fma(query, key, accumulators[index])
                        index += 1
            return accumulators

        zeros = [Vectors(lanes).known(0.0, F32)] * (len(rows) * len(offsets))
        accumulators = iter(loop(0, kernel.head_size, _ELEMENTS_PER_STEP, accumulate, zeros))
        for row in rows:
            for offset in offsets:
                store(next(accumulators), memory.scores, [row.value, offset])

    # -- softmax ----------------------------------------------------------------------------------

    def _write_weights(self, row: ArrayLike, block: ArrayLike) -> None:
        """Replace the scores of a row by softmax weights, and update its maximum and total."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        offsets = range(0, kernel.keys_per_block, lanes)
        masks, scores = self._masks(row, block), []
        for offset, is_attended in zip(offsets, masks, strict=True):
            score = load(memory.scores, [row.value, offset], lanes, F32) * kernel.scale
            if kernel.softcap:
                score = bounded(score, kernel.softcap)
            scores.append(_where(is_attended, score, _MIN_F32))
        block_maximum = functools.reduce(np.maximum, scores)
        old = load_element(memory.maxima, [row.value])
        new = np.maximum(old, reduce_lanes("maximumf", block_maximum))
        store_element(new, memory.maxima, [row.value])
        maximum = broadcast(new, lanes)
        rescale = exponential(broadcast(old, lanes) - maximum)
        store_element(element_at(rescale, 0), memory.rescales, [row.value])
        total = load(memory.totals, [row.value, 0], lanes, F32) * rescale
        for offset, score, is_attended in zip(offsets, scores, masks, strict=True):
            weight = _where(is_attended, exponential(score - maximum), 0.0)
            total = total + weight
            store(weight, memory.scores, [row.value, offset])
        store(total, memory.totals, [row.value, 0])

    def _masks(self, row: ArrayLike, block: ArrayLike) -> list[ArrayLike | None]:
        """The keys of a block that a row attends, as booleans of vectors; None for all."""
        kernel, lanes = self.kernel, self.kernel.lanes
        offsets = range(0, kernel.keys_per_block, lanes)
        if kernel.causal:
            last = self.position + self.first_query + quotient(row, kernel.heads_per_kv_head)
        elif kernel.context % kernel.keys_per_block:
            last = scalar(linalg.constant_index(kernel.context - 1))
        else:
            return [None for _ in offsets]
        own = convert(last - block, I32)
        before = broadcast(own - kernel.window, lanes) if kernel.window else None
        own, masks = broadcast(own, lanes), list[ArrayLike | None]()
        for offset in offsets:
            key = constant_vector([offset + lane for lane in range(lanes)], I32)
            is_attended = key <= own
            masks.append(is_attended if before is None else is_attended & (key > before))
        return masks

    # -- values -----------------------------------------------------------------------------------

    def _add_values(self, block: ArrayLike, count: ArrayLike, rows: DimSize) -> None:
        """Rescale the results of all rows, and add the weighted values of a block."""
        size, lanes = self.kernel.head_size, self.kernel.lanes
        rows_per_tile, vectors_per_tile = self.kernel.value_tile

        def add_vectors(first: ArrayLike, vectors: int) -> None:
            load_values = self.memory.values.values(block, count, first, vectors)
            add = functools.partial(self._add_tile, count, first, vectors, load_values)
            self._in_row_tiles(rows, rows_per_tile, add)

        width = vectors_per_tile * lanes
        whole = size - size % width
        loop(0, whole, width, lambda first: add_vectors(scalar(first), vectors_per_tile))
        if whole < size:
            add_vectors(scalar(linalg.constant_index(whole)), (size - whole) // lanes)

    def _add_tile(
        self,
        count: ArrayLike,
        first: ArrayLike,
        vectors: int,
        load_values: Callable[[Value], list[ArrayLike]],
        rows: Sequence[ArrayLike],
    ) -> None:
        """Rescale some vectors of the results of some rows, and add weighted values."""
        kernel, memory, lanes = self.kernel, self.memory, self.kernel.lanes
        positions = [self._query_and_head(row) for row in rows]
        own_rows = [row.value for row in rows]
        rescales = [broadcast(load_element(memory.rescales, [each]), lanes) for each in own_rows]
        offsets = [(first + lanes * number).value for number in range(vectors)]
        initial = [
            load(memory.result, [*position, offset], lanes, F32) * rescale
            for position, rescale in zip(positions, rescales, strict=True)
            for offset in offsets
        ]

        def add_key(number: Value, *carried: ArrayLike) -> list[ArrayLike]:
            values = load_values(number)
            weights = [
                broadcast(load_element(memory.scores, [each, number]), lanes) for each in own_rows
            ]
            return [
                kernel.target.fma(weight, value, carried[index * vectors + vector])
                for index, weight in enumerate(weights)
                for vector, value in enumerate(values)
            ]

        results = loop(0, count.value, 1, add_key, initial)
        for index, position in enumerate(positions):
            for vector, offset in enumerate(offsets):
                store(results[index * vectors + vector], memory.result, [*position, offset])

    def _divide(self, row: Value) -> None:
        """Divide the results of a row by its total."""
        lanes, position = self.kernel.lanes, self._query_and_head(scalar(row))
        total = reduce_lanes("add", load(self.memory.totals, [row, 0], lanes, F32))
        totals = broadcast(total, lanes)

        def divide(offset: Value) -> None:
            index = [*position, offset]
            share = load(self.memory.result, index, lanes, F32) / totals
            if not self.kernel.causal:  # a total of 0 is that of scores that are all -inf
                share = np.where(totals == 0.0, 0.0, share)
            store(share, self.memory.result, index)

        loop(0, self.kernel.head_size, lanes, divide)


def _where(condition: ArrayLike | None, yes: ArrayLike, no: float) -> ArrayLike:
    return yes if condition is None else np.where(condition, yes, no)
