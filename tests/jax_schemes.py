"""Ways to quantize linear layers in JAX, as people write them, and models of such layers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devices import compile_for
from subquant.runtime import Device


class Lazy:
    """A module that is imported at its first use: collecting the tests does not import JAX."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


jax, jnp, export = Lazy("jax"), Lazy("jax.numpy"), Lazy("jax.export")

WIDTH, HIDDEN, HEADS, BLOCK, TOKENS = 64, 128, 4, 32, 8


@dataclass(frozen=True)
class Scheme:
    """A way to quantize linear layers."""

    weight: Callable[[tuple[int, int], np.random.Generator], tuple[Any, ...]]
    """Integers of a shape, and their parameters."""
    linear: Callable[[Any, tuple[Any, ...]], Any]
    raised: str = "subquant.block_contraction"
    """The operation that a weight is raised to."""
    is_packed: bool = False
    bounds: tuple[float, float] = (1e-6, 1e-4)
    """Relative errors against JAX, of a layer and a block."""
    remarks: tuple[str, ...] = ()


def per_channel(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    scales = rng.uniform(0.5, 1, shape[1]) / (74 * np.sqrt(shape[0]))
    return rng.integers(-127, 128, shape).astype(np.int8), scales.astype(np.float32)


def in_blocks(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    scales = rng.uniform(0.5, 1, (rows // BLOCK, columns)) / (4.6 * np.sqrt(rows))
    return jnp.asarray(rng.integers(-8, 8, shape), jnp.int4), scales.astype(np.float32)


def with_zero_points(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    """Blocks as an axis of their own, rows of outputs, unsigned."""
    rows, columns = shape
    grid = (columns, rows // BLOCK, 1)
    q = jnp.asarray(rng.integers(0, 16, (columns, rows // BLOCK, BLOCK)), jnp.uint4)
    scales = rng.uniform(0.5, 1, grid) / (4.6 * np.sqrt(rows))
    return q, scales.astype(np.float32), jnp.asarray(rng.integers(6, 10, grid), jnp.uint4)


def scaled_before(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales = weight
    return x @ (q.astype(np.float32) * scales)


def scaled_after(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales = weight
    return (x @ q.astype(np.float32)) * scales


def scaled_blocks(q: Any, scales: Any) -> Any:
    rows, columns = q.shape
    blocks = q.astype(np.float32).reshape(rows // BLOCK, BLOCK, columns)
    return (blocks * scales.astype(np.float32)[:, None, :]).reshape(rows, columns)


def blocked(x: Any, weight: tuple[Any, ...]) -> Any:
    return x @ scaled_blocks(*weight)


def transposed(x: Any, weight: tuple[Any, ...]) -> Any:
    @jax.jit  # a function of its own in the module
    def dequantized(q: Any, scales: Any, zeros: Any) -> Any:
        reals = (q.astype(np.float32) - zeros.astype(np.float32)) * scales
        return reals.reshape(q.shape[0], -1)

    return x @ dequantized(*weight).T


def of_two_scales(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = in_blocks(shape, rng)
    channels = rng.uniform(1, 2, shape[1])
    return q, scales.astype(np.float16), channels.astype(np.float16)


def scaled_twice(x: Any, weight: tuple[Any, ...]) -> Any:
    """Scales of groups, then of channels: all products have at most 24 bits but the last."""
    q, scales, channels = weight
    return x @ (scaled_blocks(q, scales) * channels.astype(np.float32))


def of_bf16(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = per_channel(shape, rng)
    return q, jnp.asarray(scales, jnp.bfloat16)


def product_of_bf16(x: Any, weight: Any) -> Any:
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    operand = x.astype(jnp.bfloat16)
    return jax.lax.dot_general(operand, weight, numbers, preferred_element_type=np.float32)


def rounded_to_bf16(x: Any, weight: tuple[Any, ...]) -> Any:
    """A weight in bf16, from a product in f32 that is exact."""
    q, scales = weight
    reals = q.astype(np.float32) * scales.astype(np.float32)
    return product_of_bf16(x, reals.astype(jnp.bfloat16))


def bf16_scaled_after(x: Any, weight: tuple[Any, ...]) -> Any:
    """Multiply as AQT multiplies 8-bit weights."""
    q, scales = weight
    return product_of_bf16(x, q.astype(jnp.bfloat16)) * scales.astype(np.float32)


def in_bytes(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    packed = rng.integers(0, 256, (rows // 2, columns)).astype(np.uint8)
    return packed, (rng.uniform(0.5, 1, columns) / (4.6 * np.sqrt(rows))).astype(np.float32)


def of_rows(x: Any, weight: tuple[Any, ...]) -> Any:
    """A byte has two rows, the first in its low bits."""
    packed, scales = weight
    q = jnp.stack([packed & 15, packed >> 4], 1).reshape(-1, packed.shape[1])
    return x @ ((q.astype(np.float32) - 8) * scales)


def of_halves(x: Any, weight: tuple[Any, ...]) -> Any:
    """High bits are the first rows, signed, low bits the others."""
    packed, scales = weight
    signed = packed.astype(np.int8)
    q = jnp.concatenate([signed >> 4, (signed << 4) >> 4])
    return x @ (q.astype(np.float32) * scales)


def in_words(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    """Eight rows in a word, and eight columns in one of zero points, as GPTQ has them."""
    rows, columns = shape
    words = rng.integers(-(2**31), 2**31, (rows // 8, columns)).astype(np.int32)
    zeros = rng.integers(-(2**31), 2**31, (rows // BLOCK, columns // 8)).astype(np.int32)
    scales = rng.uniform(0.5, 1, (rows // BLOCK, columns)) / (6 * np.sqrt(rows))
    return words, zeros, scales.astype(np.float32)


def of_words(x: Any, weight: tuple[Any, ...]) -> Any:
    words, zeros, scales = weight
    shifts = jnp.arange(0, 32, 4, dtype=np.int32)
    q = ((words[:, None, :] >> shifts[:, None]) & 15).reshape(-1, words.shape[1])
    z = ((zeros[:, :, None] >> shifts) & 15).reshape(zeros.shape[0], -1)
    blocks = q.reshape(-1, BLOCK, q.shape[1]) - z[:, None, :]
    return x @ (blocks.astype(np.float32) * scales[:, None, :]).reshape(q.shape)


def in_heads(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    q, scales = per_channel((HEADS * rows, columns // HEADS), rng)
    return q.reshape(HEADS, rows, -1), 2 * np.tile(scales, (HEADS, 1))


def of_heads(x: Any, weight: tuple[Any, ...]) -> Any:
    """A head after the other in memory, one beside the other in the product."""
    q, scales = weight
    reals = q.astype(np.float32) * scales[:, None, :]
    return x @ reals.transpose(1, 0, 2).reshape(q.shape[1], -1)


def with_zero_point(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = per_channel(shape, rng)
    return q, scales, rng.integers(-20, 20, shape[1]).astype(np.int8)


def shifted_after(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales, zeros = weight
    offsets = x.sum(-1, keepdims=True) * zeros.astype(np.float32)
    return (x @ q.astype(np.float32) - offsets) * scales


def in_tiles(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = in_blocks(shape, rng)
    return q.reshape(-1, BLOCK, shape[1]), scales[:, None, :]


def of_tiles(x: Any, weight: tuple[Any, ...]) -> Any:
    """Multiply as Qwix does: blocks are an axis that the product reduces."""
    q, scales = weight
    tiled = x.reshape(*x.shape[:-1], q.shape[0], BLOCK)
    return jnp.einsum("tbk,bko->to", tiled, q.astype(np.float32) * scales)


def integers(x: Any, weight: tuple[Any, ...]) -> Any:
    """Activations with a scale for each row, found as it runs; products of integers."""
    q, scales = weight
    quantized, steps = rounded(x)
    return products(quantized, q).astype(np.float32) * steps * scales


def rounded(x: Any) -> tuple[Any, Any]:
    steps = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
    return jnp.clip(jnp.round(x / steps), -127, 127).astype(jnp.int8), steps


def products(quantized: Any, q: Any) -> Any:
    numbers = (((quantized.ndim - 1,), (0,)), ((), ()))
    return jax.lax.dot_general(quantized, q, numbers, preferred_element_type=np.int32)


SCHEMES = {
    "int8 per channel": Scheme(per_channel, scaled_before),
    "int8 per channel, scaled after": Scheme(per_channel, scaled_after),
    "int4 in blocks": Scheme(in_blocks, blocked, is_packed=True),
    "uint4 in blocks with zero points": Scheme(with_zero_points, transposed, is_packed=True),
    "int8 by int8": Scheme(
        per_channel, integers, "stablehlo.dot_general", bounds=(2e-2, 2e-2)
    ),
    "int8 by a power of two": Scheme(
        lambda shape, rng: (rng.integers(-127, 128, shape).astype(np.int8),),
        lambda x, weight: x @ (weight[0].astype(np.float32) / 1024),
    ),
    "int4 in blocks, by scales of channels": Scheme(of_two_scales, scaled_twice, is_packed=True),
    "int8 rounded to bf16": Scheme(of_bf16, rounded_to_bf16, bounds=(1e-6, 2e-2)),
    "int8 in bf16, scaled after": Scheme(of_bf16, bf16_scaled_after, bounds=(1e-6, 2e-2)),
    "uint4, two rows in a byte": Scheme(in_bytes, of_rows, is_packed=True),
    "int4, two halves in bytes": Scheme(in_bytes, of_halves, is_packed=True),
    "uint4 in words": Scheme(in_words, of_words, is_packed=True),
    "int8 in heads": Scheme(in_heads, of_heads),
    "int8, the zero point after": Scheme(
        with_zero_point, shifted_after, bounds=(1e-5, 1e-3),
        remarks=("is left alone: has integers that are broadcast",),
    ),
    "int4 in tiles": Scheme(in_tiles, of_tiles, is_packed=True),
}  # fmt: skip


def normalized(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def block_of(layers: dict[str, Callable[[Any, Any], Any]]) -> Callable[[Any, dict[str, Any]], Any]:
    """A transformer block: attention with a causal mask, and a gated layer; both residual."""

    def block(x: Any, weights: dict[str, Any]) -> Any:
        def linear(x: Any, name: str) -> Any:
            return layers[name](x, weights[name])

        tokens = x.shape[0]
        h = normalized(x)
        q, k, v = (linear(h, name).reshape(tokens, HEADS, -1) for name in "qkv")
        scores = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(WIDTH // HEADS)
        mask = jnp.tril(jnp.ones((tokens, tokens), bool))
        scores = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
        mixed = jnp.einsum("hts,shd->thd", scores, v).reshape(tokens, WIDTH)
        x = x + linear(mixed, "o")
        h = normalized(x)
        gated = jax.nn.silu(linear(h, "gate")) * linear(h, "up")
        return x + linear(gated, "down")

    return block


SHAPES = {
    **dict.fromkeys("qkvo", (WIDTH, WIDTH)),
    "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH),
}  # fmt: skip


ALL = {
    "q": "uint4, two rows in a byte", "k": "int4, two halves in bytes", "v": "uint4 in words",
    "o": "int8 in heads", "gate": "int8 by a power of two",
    "up": "int4 in blocks, by scales of channels", "down": "int4 in tiles",
}  # fmt: skip
"""One scheme for each weight of a block."""


@dataclass(eq=False)
class Model:
    """A function and its arguments, exported once."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @functools.cached_property
    def exported(self) -> bytes:
        return bytes(exported(self.function, self.arguments).serialize())

    def relative_error(self, device: Device) -> float:
        """The greatest difference from JAX, in units of the greatest result."""
        arguments = [np.asarray(each) for each in jax.tree.leaves(self.arguments)]
        result = compile_for(self.exported, device).main(*arguments)
        expected = np.asarray(jax.jit(self.function)(*self.arguments))
        return float(np.abs(result - expected).max() / np.abs(expected).max())


@functools.cache
def model(scheme: str, kind: str) -> Model:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    if kind == "layer":
        return Model(SCHEMES[scheme].linear, (x, SCHEMES[scheme].weight((WIDTH, WIDTH), rng)))
    chosen = {name: SCHEMES[ALL.get(name, "") if scheme == "all" else scheme] for name in SHAPES}
    weights = {name: chosen[name].weight(shape, rng) for name, shape in SHAPES.items()}
    return Model(block_of({name: each.linear for name, each in chosen.items()}), (x, weights))


def exported(function: Callable[..., Any], arguments: Any) -> Any:
    """Export a function for the shapes of arguments."""
    shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), arguments)
    return export.export(jax.jit(function))(*shapes)
