"""Programs of ``subquant.attention``, and the formula in float64 with an error bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from subquant.numerics.cache_formats import CACHE_FORMATS, CacheFormat, stored_as

FORMATS = {each.name: each for each in CACHE_FORMATS}


@dataclass(frozen=True)
class Case:
    """Extents and attributes of an operation; `count` queries, known at run time if `dynamic`.

    Values are stored as keys are, or as `value_element`.
    """

    count: int
    heads: int
    groups: int
    depth: int
    context: int
    element: str = "f16"
    window: int = 0
    softcap: float = 0.0
    scale: float = 0.25
    dynamic: bool = False
    value_element: str | None = None
    causal: bool = True

    @property
    def formats(self) -> tuple[CacheFormat, CacheFormat]:
        """The formats of keys and values."""
        return FORMATS[self.element], FORMATS[self.value_element or self.element]

    @property
    def text(self) -> str:
        """The program."""
        count = "?" if self.dynamic else self.count
        query = f"tensor<{count}x{self.heads}x{self.depth}xf32>"
        keys, values = (
            f"tensor<{self.context}x{self.groups}x{each.row_length(self.depth)}x{each.element}>"
            for each in self.formats
        )
        causal = "" if self.causal else ", causal = false"
        return f"""
            func.func @main(%q: {query}, %k: {keys}, %v: {values}, %p: tensor<i32>) -> {query} {{
              %0 = "subquant.attention"(%q, %k, %v, %p) {{scale = {self.scale} : f32,
                     window = {self.window} : i64, softcap = {self.softcap} : f32{causal}}}
                : ({query}, {keys}, {values}, tensor<i32>) -> {query}
              return %0 : {query}
            }}"""

    def arrays(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A query of some positions, keys and values, of which scores differ by several units."""
        rng = np.random.default_rng(seed)
        query = rng.normal(size=(count, self.heads, self.depth)) * 2 / self.depth**0.5 / self.scale
        shape = (2, self.context, self.groups, self.depth)
        pairs = zip(self.formats, rng.normal(size=shape).astype(np.float32), strict=True)
        keys, values = (storage.encode(heads) for storage, heads in pairs)
        return query.astype(np.float32), keys, values


def expected(
    case: Case, query: np.ndarray, keys: np.ndarray, values: np.ndarray, position: int
) -> np.ndarray:
    """The formula, for one query of one head after the other."""
    keys, values = (decoded(case, cache) for cache in (keys, values))
    result = np.zeros(query.shape)
    for query_number, head in np.ndindex(query.shape[:2]):
        last = position + query_number
        first = max(0, last - case.window + 1) if case.window else 0
        group = head // (case.heads // case.groups)
        attended = slice(first, last + 1) if case.causal else slice(None)
        key, value = (cache[attended, group].astype(np.float64) for cache in (keys, values))
        scores = key @ query[query_number, head].astype(np.float64) * case.scale
        if case.softcap:
            scores = np.tanh(scores / case.softcap) * case.softcap
        weights = np.exp(scores - scores.max())
        result[query_number, head] = weights @ value / weights.sum()
    return result


def decoded(case: Case, cache: np.ndarray) -> np.ndarray:
    """Keys or values in f32."""
    heads: np.ndarray = stored_as(cache, case.depth).decode(cache, case.depth)
    return heads


def bound(case: Case, query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> float:
    """Bound the absolute error of a result.

    A score is a sum of `depth` products. In f32 and any order, its error is up to ``depth *
    2**-24`` times the sum of their magnitudes, plus 8 units for tanh. A weight has the errors of
    its score and of the maximum, plus 4 units for exp; a sum has a unit for each term. Values count
    with the greatest magnitude of all.
    """
    unit = 2.0**-24
    keys, values = (decoded(case, cache) for cache in (keys, values))
    magnitudes = np.abs(query).max(axis=(0, 1)) @ np.abs(keys.astype(np.float64)).max(axis=(0, 1))
    scores = (case.depth + 8) * unit * magnitudes * abs(case.scale)
    weight_error = 2 * scores + (4 + case.context) * unit * 2
    return float(weight_error * np.abs(values.astype(np.float64)).max())
