"""``lower-attention``: ``subquant.attention`` becomes two contractions with its whole caches.

Scores are computed for all positions of the context and masked: any target can compute this, in a
time that grows with the context. `select-kernels` has replaced the operations that have a kernel.

Before::

    %y = "subquant.attention"(%query, %keys, %values, %position) {scale = 0.5 : f32, ...}
         : (tensor<2x4x8xf32>, tensor<16x1x8xf16>, tensor<16x1x8xf16>, tensor<i32>)
         -> tensor<2x4x8xf32>

After::

    %p = stablehlo.maximum(stablehlo.minimum(%position, 14), 0) : tensor<i32>
    %s = stablehlo.dot_general %q, %k, ... : (...) -> tensor<1x2x4x16xf32>
    %m = linalg.generic ins(%s, %p) { ... the score, or the least f32 ... }
    %g = stablehlo.reduce(%m) applies stablehlo.maximum across dimensions = [3]
    %w = linalg.generic ins(%m, %g, %p) { ... exp(score - greatest), or 0 ... }
    %t = stablehlo.reduce(%w) applies stablehlo.add across dimensions = [3]
    %r = stablehlo.dot_general %w, %v, ... : (...) -> tensor<1x2x4x8xf32>
    %y = linalg.generic ins(%r, %t) { ... a quotient ... }

Values of positions that no query attends count as 0, whatever they are: 0 times infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.attention import Attention
from ...dialects.subquant import ATTENTION
from ...emit import ArrayLike, linalg, scalar, stablehlo, tensor
from ...emit.linalg import DimSize
from ...emit.operation import mlir_type, tensor_type
from ...emit.trace import traced
from ...errors import Remark
from ...numerics.cache_formats import CacheFormat
from ...numerics.element_types import F32, I32
from ..base import UNCHANGED, ModulePass, named

_F32_MIN = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class LowerAttention(ModulePass):
    """Lower every ``subquant.attention``."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Lower in `module`, which `verify-quantization` has accepted."""
        operations = named(module, [ATTENTION])
        for op in operations:
            with ir.InsertionPoint(op), op.location:
                result = _Lowering.of(Attention.of(op)).emit()
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return None if operations else UNCHANGED


@dataclass(frozen=True)
class _Lowering:
    """Lowering of one operation, for `count` queries.

    `position` is the position of the first query, clamped to the context; if the attention is not
    causal, it is not read.
    """

    attention: Attention
    count: DimSize
    position: Value

    @classmethod
    def of(cls, attention: Attention) -> _Lowering:
        """Write the position and the number of queries."""
        query, count = attention.query, attention.count
        queries = tensor(stablehlo.dimension_size(query, 0)) if count is None else count
        extent = linalg.dim(query, 0) if count is None else count
        if not attention.causal:
            return cls(attention, extent, attention.position)
        inside = np.minimum(tensor(attention.position), attention.context - queries)
        return cls(attention, extent, np.maximum(inside, 0).value)

    def emit(self) -> Value:
        """Write the products, and return the result."""
        op, f32 = self.attention, mlir_type(F32)
        groups, shared = op.groups, op.heads // op.groups
        query = linalg.expand(
            op.query, [[0], [1, 2], [3]], [self.count, groups, shared, op.head_size]
        )
        keys = stablehlo.convert(self._decoded(op.keys, op.key_format), f32)
        shape = [groups, op.count, shared, op.context]
        scores = stablehlo.dot_general(query, keys, tensor_type(shape, f32), [[3], [2]], [[1], [1]])
        masked = self._masked(scores)
        least = stablehlo.constant(-np.inf, f32)
        weights = self._weights(masked, stablehlo.reduce(masked, [3], "maximum", least))
        weighted = stablehlo.dot_general(
            weights,
            self._values(),
            tensor_type([*shape[:3], op.head_size], f32),
            [[3], [0]],
            [[0], [1]],
        )
        quotients = self._quotients(weighted, stablehlo.reduce(weights, [3]))
        return linalg.collapse(quotients, [[0], [1, 2], [3]])

    def _masked(self, scores: Value) -> Value:
        """Write the scores, scaled and soft-capped; the f32 minimum for masked keys."""
        op = self.attention

        def body(score: Value, position: Value, _: Value) -> Value:
            scaled = scalar(score) * op.scale
            if op.softcap:
                scaled = np.tanh(scaled / op.softcap) * op.softcap
            return _where(self._is_attended(position), scaled, _F32_MIN)

        maps = [linalg.identity_map(4), _of_loops(4, []), linalg.identity_map(4)]
        return linalg.generic([scores, self.position], self._empty(scores), maps, body)

    def _weights(self, masked: Value, greatest: Value) -> Value:
        def body(score: Value, most: Value, position: Value, _: Value) -> Value:
            weight = np.exp(scalar(score) - scalar(most))
            if not self.attention.causal:
                return _where(scalar(most) != -np.inf, weight, 0.0)
            return _where(self._is_attended(position), weight, 0.0)

        whole = linalg.identity_map(4)
        maps = [whole, _of_loops(4, [0, 1, 2]), _of_loops(4, []), whole]
        return linalg.generic([masked, greatest, self.position], self._empty(masked), maps, body)

    def _values(self) -> Value:
        """Write the values in f32, 0 where no query attends them."""
        values = self._decoded(self.attention.values, self.attention.value_format)
        queries = linalg.dim(self.attention.query, 0) if not isinstance(self.count, int) else None

        def body(element: Value, position: Value, _: Value) -> Value:
            decoded = scalar(element).convert(F32)
            if not self.attention.causal:
                return _where(None, decoded, 0.0)
            index, first = scalar(linalg.loop_index(0)).convert(I32), scalar(position)
            count = self.count if queries is None else scalar(queries).convert(I32)
            is_attended = index < first + count
            if self.attention.window:
                is_attended = is_attended & (index > first - self.attention.window)
            return _where(is_attended, decoded, 0.0)

        output = linalg.empty([int(extent) for extent in values.type.shape], mlir_type(F32))
        whole = linalg.identity_map(3)
        return linalg.generic(
            [values, self.position], output, [whole, _of_loops(3, []), whole], body
        )

    def _decoded(self, cache: Value, storage: CacheFormat) -> Value:
        """Write the f32 of integers; floats are converted where they are used."""
        if storage.is_quantized:
            decoded: Value = storage.decode(traced(cache), self.attention.head_size).value
            return decoded
        return cache

    def _quotients(self, weighted: Value, totals: Value) -> Value:
        """Write weighted values over totals, ``[T, kv_heads, heads / kv_heads, D]``.

        A total of 0 is that of scores that are all -inf, if the attention is not causal.
        """
        groups, _, shared, head_size = (int(size) for size in weighted.type.shape)
        output = linalg.empty([self.count, groups, shared, head_size], mlir_type(F32))
        maps = [_of_loops(4, [1, 0, 2, 3]), _of_loops(4, [1, 0, 2]), linalg.identity_map(4)]

        def body(part: Value, whole: Value, _: Value) -> Value:
            share: ArrayLike = scalar(part) / scalar(whole)
            return _where(None if self.attention.causal else scalar(whole) != 0.0, share, 0.0)

        return linalg.generic([weighted, totals], output, maps, body)

    def _is_attended(self, position: Value) -> ArrayLike | None:
        """Return the mask of a key and query in loops over ``[kv_heads, T, shared, context]``.

        None if each query attends all keys.
        """
        if not self.attention.causal:
            return None
        of_query = scalar(linalg.loop_index(1)).convert(I32) + scalar(position)
        of_key = scalar(linalg.loop_index(3)).convert(I32)
        is_before = of_key <= of_query
        if not self.attention.window:
            return is_before
        return is_before & (of_key > of_query - self.attention.window)

    def _empty(self, like: Value) -> Value:
        shape = [int(extent) for extent in like.type.shape]
        return linalg.empty([shape[0], self.count, *shape[2:]], mlir_type(F32))


def _where(condition: ArrayLike | None, yes: ArrayLike, no: float) -> Value:
    chosen: ArrayLike = yes if condition is None else np.where(condition, yes, no)
    return chosen.value


def _of_loops(rank: int, loops: Sequence[int]) -> ir.AffineMap:
    """Return the indexing map of an operand with some of the loops."""
    return ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(loop) for loop in loops])
