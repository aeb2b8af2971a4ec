"""A decoder's forward pass, over arrays: in NumPy, or traced into a program.

::

    x = table[tokens] * embedding_scale
    for each block:
        x = x + norm(attention(norm(x)))
        x = x + norm(feed_forward(norm(x)))
    logits = norm(x) @ output.T

The second norm of each line is in models that have it. Weights are taken from a tree of tensors
(`subquant.weights.Theta`, or what gives its parts) by the names that they have in GGUF files, and
are computed with by `subquant.ops`, as their layouts say.

``T`` tokens stand at the positions ``position`` to ``position + T - 1``. The caches hold keys and
values of ``[context, kv_heads, size]``, and are given back with those of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..numerics.array_functions import concatenate, put_slice, stack
from ..numerics.attention import attend
from ..numerics.element_types import AnyArray
from ..ops.layers import Embedding, Linear, RmsNorm
from ..ops.others import silu
from .configuration import Configuration, Rotation

__all__ = ["Cache", "Weights", "embed", "empty_caches", "logits", "run_blocks"]

Weights = Callable[[str], Any]
"""A tree of tensors, or what else gives the part of a name: ``weights("blk.0")``."""


class Cache(NamedTuple):
    """What a block keeps of the tokens so far, ``[context, kv_heads, size]`` each."""

    keys: AnyArray
    values: AnyArray


def empty_caches(configuration: Configuration, context: int) -> list[Cache]:
    """The caches of all blocks before the first token, in NumPy."""
    c = configuration
    shape = (context, c.kv_heads, c.size)
    return [Cache(np.zeros(shape, np.float16), np.zeros(shape, np.float16))
            for _ in range(c.blocks)]  # fmt: skip


def embed(configuration: Configuration, weights: Weights, tokens: AnyArray) -> AnyArray:
    """What goes into the first block, ``[T, width]``, of tokens ``[T]``."""
    found = Embedding(weights("token_embd"))(tokens)
    return found * np.float32(configuration.embedding_scale)


def logits(configuration: Configuration, weights: Weights, x: AnyArray) -> AnyArray:
    """``[T, vocabulary]`` of what the last block gives."""
    normed = RmsNorm(weights("output_norm"), configuration.epsilon)(x)
    return Linear(weights("token_embd" if configuration.tied else "output"))(normed)


def run_blocks(
    configuration: Configuration,
    weights: Weights,
    x: AnyArray,
    position: AnyArray,
    caches: Sequence[Cache],
) -> tuple[AnyArray, list[Cache]]:
    """Run all blocks.

    Args:
        configuration: of the model.
        weights: its tensors.
        x: what `embed` gives.
        position: of the first token, an integer without axes.
        caches: of each block; there must be room for the tokens.

    Returns:
        What goes to `logits`, and the caches with the tokens.
    """
    rotations = {
        rotation: _angles(configuration, weights, rotation, position, x.shape[0])
        for rotation in (configuration.rotation, configuration.window_rotation)
    }
    written = []
    for number, cache in enumerate(caches):
        rotation = configuration.rotation
        if configuration.has_window(number):
            rotation = configuration.window_rotation
        block = _Block(configuration, weights(f"blk.{number}"), configuration.has_window(number))
        x, cache = block(x, position, rotations[rotation], cache)
        written.append(cache)
    return x, written


class _Block:
    """One block.

    Args:
        configuration: of the model.
        theta: the tensors of the block.
        has_window: whether it attends to the last tokens only.
    """

    def __init__(self, configuration: Configuration, theta: Any, has_window: bool) -> None:
        self.configuration = configuration
        self.theta = theta
        self.window = configuration.window if has_window else 0

    def __call__(
        self, x: AnyArray, position: AnyArray, turns: tuple[AnyArray, AnyArray], cache: Cache
    ) -> tuple[AnyArray, Cache]:
        """Run the block on ``[T, width]``."""
        attended, cache = self._attention(self._norm("attn_norm", x), position, turns, cache)
        x = x + self._post_norm("post_attention_norm", attended)
        x = x + self._post_norm("post_ffw_norm", self._feed_forward(self._norm("ffn_norm", x)))
        return x, cache

    def _norm(self, name: str, x: AnyArray) -> AnyArray:
        return RmsNorm(self.theta(name), self.configuration.epsilon)(x)

    def _post_norm(self, name: str, x: AnyArray) -> AnyArray:
        return self._norm(name, x) if self.configuration.post_norms else x

    def _linear(self, name: str, x: AnyArray) -> AnyArray:
        return Linear(self.theta(name))(x)

    def _feed_forward(self, x: AnyArray) -> AnyArray:
        gate = self._linear("ffn_gate", x)
        gate = gelu(gate) if self.configuration.activation == "gelu" else silu(gate)
        return self._linear("ffn_down", gate * self._linear("ffn_up", x))

    def _attention(
        self, x: AnyArray, position: AnyArray, turns: tuple[AnyArray, AnyArray], cache: Cache
    ) -> tuple[AnyArray, Cache]:
        c, count = self.configuration, x.shape[0]
        queries = self._linear("attn_q", x).reshape((count, c.heads, c.size))
        keys = self._linear("attn_k", x).reshape((count, c.kv_heads, c.size))
        values = self._linear("attn_v", x).reshape((count, c.kv_heads, c.size))
        if c.qk_norms:
            queries, keys = self._norm("attn_q_norm", queries), self._norm("attn_k_norm", keys)
        queries, keys = (rotate(each, turns, c.rotation) for each in (queries, keys))
        cache = Cache(
            _written(cache.keys, keys, position), _written(cache.values, values, position)
        )
        window = self.window if self.window < cache.keys.shape[0] else 0
        attended = attend(queries, *cache, position, c.attention_scale, window)
        return self._linear("attn_output", attended.reshape((count, -1))), cache


def _written(cache: AnyArray, rows: AnyArray, position: AnyArray) -> AnyArray:
    starts = stack([position, *[position * np.int32(0)] * 2], 0)
    return put_slice(cache, rows.astype(cache.dtype), starts)


# -- formulas --------------------------------------------------------------------------------------


def _angles(
    configuration: Configuration,
    weights: Weights,
    rotation: Rotation,
    position: AnyArray,
    count: int,
) -> tuple[AnyArray, AnyArray]:
    """Cosines and sines of the angles of `count` tokens, ``[T, size / 2]`` each."""
    pairs = rotation.size // 2
    exponents = np.arange(pairs, dtype=np.float64) / pairs
    frequencies = (rotation.scale * rotation.base**-exponents).astype(np.float32)
    if rotation.has_factors:
        frequencies = frequencies / weights("rope_freqs").tensor("weight").array
    positions = np.arange(count, dtype=np.int32) + position
    angles = positions.astype(np.float32)[:, None] * frequencies[None]
    return np.cos(angles), np.sin(angles)


def rotate(x: AnyArray, turns: tuple[AnyArray, AnyArray], rotation: Rotation) -> AnyArray:
    """Turn pairs of the first elements of each head by the angles of its token.

    Args:
        x: ``[T, heads, size]``.
        turns: cosines and sines of the angles.
        rotation: says which elements are pairs.
    """
    cosine, sine = (each[:, None, :] for each in turns)
    size, half = rotation.size, rotation.size // 2
    if rotation.pairs == "halves":
        first, second = x[..., :half], x[..., half:size]
    else:
        pairs = x[..., :size].reshape((*x.shape[:2], half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    if rotation.pairs == "neighbors":
        turned = [stack(turned, -1).reshape((*x.shape[:2], size))]
    return concatenate([*turned, x[..., size:]] if size < x.shape[2] else turned, -1)


def gelu(x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
