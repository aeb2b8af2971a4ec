"""A decoder's forward pass, over arrays: in NumPy, or traced into a program.

::

    x = table[tokens] * embedding_scale
    for each block:
        x = x + norm(attention(norm(x)))
        x = x + norm(feed_forward(norm(x)))
    logits = softcap(norm(x) @ output.T)

Some models have the second norm of each line. Weights come from a tree of tensors
(`subquant.weights.Theta`, or a function of names) by their names in GGUF files; `subquant.ops`
computes with them by their layouts.

``T`` tokens stand at the positions ``position`` to ``position + T - 1``. The caches hold keys and
values of ``[context, kv_heads, row]``, in a format of `subquant.numerics.cache_formats`, and are
given back with those of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..layouts import QuantizedTensor
from ..numerics.array_functions import bits_of, put_slice
from ..numerics.attention import attend
from ..numerics.cache_formats import stored_as
from ..numerics.element_types import F32, I32, AnyArray
from ..ops.activations import quantize_activations
from ..ops.layers import Embedding
from ..ops.linear import linear
from ..ops.others import add, multiply, rms_norm, silu
from ..ops.registry import real
from .configuration import Configuration, Experts
from .experts import mix_experts
from .interface import Cache
from .rotary_embedding import Rotation

Weights = Callable[[str], Any]
"""Tree of tensors, or a function from a name to a subtree: ``weights("blk.0")``."""

ObserveInput = Callable[[str, Any], None]
"""Function that sees a linear layer's name in its block, and its input ``[T, K]``."""


_ONE, _EXPONENT, _HALF_MANTISSA = 0x3F800000, 0x7F800000, 0x400000
"""Bits of f32: 1, the exponent, and what rounds to the nearer power of 2 when it is added."""
_MIN_NORM_WEIGHT = 2.0**-20
"""Weights of norms of less magnitude count as this in the scales of keys."""


class RotaryTables(NamedTuple):
    """Cosines and sines of rotary embeddings, ``[T, pairs]`` each."""

    cosine: AnyArray
    sine: AnyArray


def embed(configuration: Configuration, weights: Weights, tokens: AnyArray) -> AnyArray:
    """Return the hidden states ``[T, width]`` of tokens ``[T]`` before the first block."""
    rows = Embedding(weights("token_embd"))(tokens)
    return rows * np.float32(configuration.embedding_scale)


def logits(configuration: Configuration, weights: Weights, x: AnyArray) -> AnyArray:
    """Return the logits ``[T, vocabulary]`` of the last block's results."""
    normed = normalize(configuration, weights("output_norm"), x)
    theta = weights("token_embd" if configuration.tied else "output")
    return project_to_logits(configuration, theta, normed)


def project_to_logits(configuration: Configuration, theta: Any, normed: AnyArray) -> AnyArray:
    """Return the logits of normalized hidden states for the rows of an output layer."""
    result = project(configuration, theta, normed)
    if not configuration.logit_softcap:
        return result
    softcap = np.float32(configuration.logit_softcap)
    return np.tanh(result / softcap) * softcap


def normalize(configuration: Configuration, theta: Any, x: AnyArray) -> AnyArray:
    """Return the RMS norm of the last axis, times the weight plus `norm_offset`."""
    return rms_norm(x, norm_weight(configuration, theta), epsilon=configuration.epsilon)


def norm_weight(configuration: Configuration, theta: Any) -> AnyArray:
    """Return the weight of a norm plus `norm_offset`, float32."""
    tensor = theta.tensor("weight")
    weight = real(tensor.unpack() if isinstance(tensor, QuantizedTensor) else tensor.array)
    offset = configuration.structure.norm_offset
    return weight + np.float32(offset) if offset else weight


def project(configuration: Configuration, theta: Any, x: AnyArray) -> AnyArray:
    """Return ``scale * (x @ weight.T) + bias`` of ``x [T, K]``, with the layer's scale and bias.

    A scale is a number for the whole weight, beside the block scales of NVFP4. The input is rounded
    as the weight's settings say, if the configuration asks for it.
    """
    scale, bias = theta.optional_tensor("scale"), theta.optional_tensor("bias")
    weight = theta.tensor("weight")
    if configuration.quantizes_activations and isinstance(weight, QuantizedTensor):
        settings = weight.activations
        x = x if settings is None else quantize_activations(x, settings)
    if scale is None:
        return linear(x, weight, bias)
    scaled = multiply(linear(x, weight), scale)
    return scaled if bias is None else add(scaled, bias)


def run_blocks(
    configuration: Configuration,
    weights: Weights,
    x: AnyArray,
    position: AnyArray,
    caches: Sequence[Cache],
) -> tuple[AnyArray, list[Cache]]:
    """Run all blocks; return the operand of `logits`, and the updated caches.

    Args:
        x: the result of `embed`.
        position: the position of the first token, a scalar integer.
        caches: the cache of each block; the tokens must fit.
    """
    return _run_blocks(configuration, weights, x, position, caches)


def run_blocks_of_sequences(
    configuration: Configuration,
    weights: Weights,
    x: AnyArray,
    positions: AnyArray,
    caches: Sequence[list[Cache]],
) -> tuple[AnyArray, list[list[Cache]]]:
    """Run all blocks on a token of each of ``T`` sequences; otherwise as `run_blocks`.

    Args:
        positions: the position of each token in its sequence, integers ``[T]``.
        caches: for each block, the cache of each sequence.
    """
    return _run_blocks(configuration, weights, x, positions, caches)


_AnyCache = TypeVar("_AnyCache", Cache, list[Cache])
"""The cache of a block, or one for each token."""


def _run_blocks(
    configuration: Configuration,
    weights: Weights,
    x: AnyArray,
    position: AnyArray,
    caches: Sequence[_AnyCache],
) -> tuple[AnyArray, list[_AnyCache]]:
    tables = block_tables(configuration, weights, position, x.shape[0])
    written = []
    for number, cache in enumerate(caches):
        x, cache = run_block(
            configuration, weights(f"blk.{number}"), number, tables, x, position, cache
        )
        written.append(cache)
    return x, written


class BlockTables(NamedTuple):
    """Rotary tables of blocks that attend to all tokens, and of blocks with a window."""

    full: RotaryTables
    window: RotaryTables


def block_tables(
    configuration: Configuration, weights: Weights, position: AnyArray, count: int
) -> BlockTables:
    """Return the rotary tables of `count` tokens at `position`: the first's, or that of each."""
    factors = None
    if configuration.rotation.has_factors:
        factors = weights("rope_freqs").tensor("weight").array
    full = rotary_tables(configuration.rotation, position, count, factors)
    if not configuration.window:
        return BlockTables(full, full)
    return BlockTables(full, rotary_tables(configuration.window_rotation, position, count))


def run_block(
    configuration: Configuration,
    theta: Any,
    number: int,
    tables: BlockTables,
    x: AnyArray,
    position: AnyArray,
    cache: _AnyCache,
    observe: ObserveInput | None = None,
) -> tuple[AnyArray, _AnyCache]:
    """Run one block on ``[T, width]``; return its result, and the updated cache.

    Args:
        theta: the block's tensors.
        number: the block's number.
        position, cache: as in `run_blocks`, or one for each token.
        observe: called with the name and the input of each linear layer; that of experts'
            layers is a `RoutedInputs`, for NumPy's arrays alone.
    """
    has_window = configuration.has_window(number)
    is_rotated = number not in configuration.unrotated_blocks
    experts = configuration.experts
    mixes = experts is not None and number in experts.blocks
    block = _Block(
        configuration, theta, has_window, is_rotated, experts if mixes else None, observe
    )
    return block(x, position, tables.window if has_window else tables.full, cache)


class _Block:
    """Transformer block, which attends to all tokens or to a window of them."""

    def __init__(
        self,
        configuration: Configuration,
        theta: Any,
        has_window: bool,
        is_rotated: bool,
        experts: Experts | None,
        observe: ObserveInput | None,
    ) -> None:
        self.configuration = configuration
        self.observe = observe
        self.theta = theta
        self.is_rotated = is_rotated
        self.experts = experts
        self.window = configuration.window if has_window else 0

    def __call__(
        self, x: AnyArray, position: AnyArray, tables: RotaryTables, cache: _AnyCache
    ) -> tuple[AnyArray, _AnyCache]:
        """Run the block on ``[T, width]``."""
        attended, cache = self._attention(self._norm("attn_norm", x), position, tables, cache)
        x = x + self._post_norm("post_attention_norm", attended)
        x = x + self._post_norm("post_ffw_norm", self._feed_forward(self._norm("ffn_norm", x)))
        return x, cache

    def _norm(self, name: str, x: AnyArray) -> AnyArray:
        return normalize(self.configuration, self.theta(name), x)

    def _post_norm(self, name: str, x: AnyArray) -> AnyArray:
        return self._norm(name, x) if self.configuration.structure.post_norms else x

    def _linear(self, name: str, x: AnyArray) -> AnyArray:
        if self.observe is not None:
            self.observe(name, x)
        return project(self.configuration, self.theta(name), x)

    def _feed_forward(self, x: AnyArray) -> AnyArray:
        c = self.configuration
        activation = gelu if c.activation == "gelu" else silu
        if self.experts is not None:
            return mix_experts(
                self.experts, self.theta, x, activation, quantizes=c.quantizes_activations,
                observe=self.observe,
            )  # fmt: skip
        if c.structure.fused:
            both = self._linear("ffn_up", x)
            gate, up = both[:, : c.hidden], both[:, c.hidden :]
        else:
            gate, up = self._linear("ffn_gate", x), self._linear("ffn_up", x)
        return self._linear("ffn_down", activation(gate) * up)

    def _attention(
        self, x: AnyArray, position: AnyArray, tables: RotaryTables, cache: _AnyCache
    ) -> tuple[AnyArray, _AnyCache]:
        c, count = self.configuration, x.shape[0]
        if c.structure.fused:
            first, second = c.heads * c.head_size, (c.heads + c.kv_heads) * c.head_size
            fused = self._linear("attn_qkv", x)
            queries, keys, values = fused[:, :first], fused[:, first:second], fused[:, second:]
        else:
            queries, keys, values = (self._linear(f"attn_{name}", x) for name in "qkv")
        queries = queries.reshape((count, c.heads, c.head_size))
        keys, values = (each.reshape((count, c.kv_heads, c.head_size)) for each in (keys, values))
        if c.structure.qk_norms:
            key, query = (norm_weight(c, self.theta(f"attn_{name}_norm")) for name in "kq")
            scales = key_scales(key, query, c.rotation)
            queries = self._norm("attn_q_norm", queries) * scales
            keys = self._norm("attn_k_norm", keys) / scales
        if self.is_rotated:
            queries, keys = (rotate(each, tables, c.rotation) for each in (queries, keys))
        if isinstance(cache, Cache):
            attended, cache = self._attend(queries, keys, values, position, cache)
        else:
            rows = []
            for n, (at, own) in enumerate(zip(_scalars(position), cache, strict=True)):
                row = slice(n, n + 1)
                rows.append(self._attend(queries[row], keys[row], values[row], at, own))
            attended, cache = np.concatenate([row for row, _ in rows]), [own for _, own in rows]
        return self._linear("attn_output", attended.reshape((count, -1))), cache

    def _attend(
        self,
        queries: AnyArray,
        keys: AnyArray,
        values: AnyArray,
        position: AnyArray,
        cache: Cache,
    ) -> tuple[AnyArray, Cache]:
        """Write keys and values to a cache, and attend it; return the result and the cache."""
        cache = Cache(
            _written(cache.keys, keys, position), _written(cache.values, values, position)
        )
        window = self.window if self.window < cache.keys.shape[0] else 0
        scale = self.configuration.attention_scale
        return attend(queries, *cache, position, scale, window), cache


def _scalars(array: AnyArray) -> list[AnyArray]:
    """The elements of ``[T]``, as scalars."""
    return [array[n : n + 1].reshape(()) for n in range(array.shape[0])]


def _written(cache: AnyArray, heads: AnyArray, position: AnyArray) -> AnyArray:
    """Return a cache with the keys or values of tokens, ``[T, kv_heads, size]``, in its format."""
    rows = stored_as(cache, heads.shape[-1]).encode(heads)
    return put_slice(cache, rows, [position, np.int32(0), np.int32(0)])


# -- formulas --------------------------------------------------------------------------------------


def rotary_tables(
    rotation: Rotation, position: AnyArray, count: int, factors: AnyArray = None
) -> RotaryTables:
    """Cosines and sines of the angles of `count` tokens, ``[T, size / 2]`` each.

    `position` is that of the first of consecutive tokens, or has those of all, ``[T]``.

    An angle is an int32 in units of ``2**-32`` turns, which wraps at a full turn: the angle of the
    position ``p`` is wrong by ``p * 2**-33`` turns at most (2.4e-5 at 32768,
    where the product of floats is wrong by 1e-3), and small where its cosine is computed.

    Args:
        factors: divisors of the frequencies, ``[size / 2]``, or None.
    """
    steps: AnyArray = rotation.frequencies() * (2**32 / (2 * np.pi))
    if factors is not None:
        steps = (steps.astype(np.float32) / factors).astype(np.int32)
    else:
        steps = np.rint(steps).astype(np.int64).astype(np.uint32).view(np.int32)
    positions = position if position.ndim else np.arange(count, dtype=np.int32) + position
    fractions = positions[:, None] * steps[None]
    angles = fractions.astype(np.float32) * np.float32(2 * np.pi / 2**32)
    cosine, sine = np.cos(angles), np.sin(angles)
    magnitude = np.float32(rotation.magnitude)
    if magnitude == 1:
        return RotaryTables(cosine, sine)
    return RotaryTables(cosine * magnitude, sine * magnitude)


def rotate(x: AnyArray, tables: RotaryTables, rotation: Rotation) -> AnyArray:
    """Rotate pairs of the first elements of each head by the angles of its token.

    ::

        (a, b) becomes (a cos - b sin, b cos + a sin)

    Args:
        x: ``[T, heads, size]``.
        rotation: says which elements are pairs.
    """
    size, half, signs = rotation.size, rotation.size // 2, np.array([-1, 1], np.float32)
    if rotation.pairs == "neighbors":
        pairs, axis = x[..., :size].reshape((*x.shape[:2], half, 2)), 3
        cosine, sine = (each[:, None, :, None] for each in tables)
    else:
        pairs, axis, signs = x[..., :size].reshape((*x.shape[:2], 2, half)), 2, signs[:, None]
        cosine, sine = (each[:, None, None, :] for each in tables)
    rotated = (pairs * cosine + np.flip(pairs, axis) * (sine * signs)).reshape((*x.shape[:2], size))
    return np.concatenate([rotated, x[..., size:]], -1) if size < x.shape[2] else rotated


def key_scales(key_weight: AnyArray, query_weight: AnyArray, rotation: Rotation) -> AnyArray:
    """Powers of 2 that keys are divided by and queries multiplied by, ``[D]``.

    No product changes. Integers of a group have the error of its greatest element, which counts in
    scores as much as the query is great. For the weights ``k`` and ``q`` of the norms, the scale
    ``sqrt(k / q)`` gives the elements of queries and keys the same magnitude. It is rounded to a
    power of 2, and both elements of a rotated pair have that of the greater weights.

    Source: "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
    Models", equation 4 with the migration strength 0.5.
    """
    key, query = (
        bits_of(np.maximum(_pair_maxima(np.abs(each), rotation), np.float32(_MIN_NORM_WEIGHT)), I32)
        for each in (key_weight, query_weight)
    )
    bits = ((key - query) >> 1) + _ONE  # of the square root, as a mantissa is near a logarithm
    return bits_of((bits + _HALF_MANTISSA) & _EXPONENT, F32)


def _pair_maxima(x: AnyArray, rotation: Rotation) -> AnyArray:
    """Replace the elements of each rotated pair by the greater of them."""
    size, half = rotation.size, rotation.size // 2
    shape, axis = ((half, 2), 1) if rotation.pairs == "neighbors" else ((2, half), 0)
    pairs = x[:size].reshape(shape).max(axis, keepdims=True)
    maxima = np.broadcast_to(pairs, shape).reshape((size,))
    return np.concatenate([maxima, x[size:]]) if size < x.shape[0] else maxima


def gelu(x: AnyArray) -> AnyArray:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
