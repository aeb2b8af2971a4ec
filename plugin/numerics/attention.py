"""The meaning of ``subquant.attention``: weighted sums of values, by how keys agree with queries.

`subquant.dialects.attention` has the formulas.
"""

from __future__ import annotations

import numpy as np

from .array_functions import dispatched
from .element_types import AnyArray

__all__ = ["attend"]


@dispatched
def attend(
    query: AnyArray,
    keys: AnyArray,
    values: AnyArray,
    position: AnyArray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> AnyArray:
    """Attend the keys and values of a cache.

    Args:
        query: ``[T, heads, D]``, float32.
        keys, values: ``[context, kv_heads, D]``, float16 or float32, where ``T <= context`` and
            ``kv_heads`` divides ``heads``.
        position: of the first query, an integer.
        scale: what scores are multiplied by.
        window: how many keys a query attends at most; 0 for no such limit.
        softcap: what scores are bounded by; 0 for no bound.

    Returns:
        ``[T, heads, D]``, float32.
    """
    count, heads, depth = query.shape
    context, groups, _ = keys.shape
    start = int(np.clip(position, 0, context - count))
    first = max(0, start - window + 1) if window else 0
    attended = slice(first, start + count)
    key, value = (array[attended].astype(np.float32) for array in (keys, values))
    grouped = query.reshape((count, groups, heads // groups, depth))
    scores = np.einsum("tkgd,jkd->kgtj", grouped, key, optimize=True) * np.float32(scale)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    at, of = np.arange(first, start + count), np.arange(start, start + count)[:, None]
    is_attended = (at <= of) & (at > of - window) if window else at <= of
    scores = np.where(is_attended, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("kgtj,jkd->tkgd", weights, value, optimize=True).reshape(query.shape)
