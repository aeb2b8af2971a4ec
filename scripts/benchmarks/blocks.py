"""Weights as GGML's blocks, and as planes for peers that take them so.

Random blocks are good ones: what of a block is no 16-bit float may be any bits. The minimum of a
``Q4_1`` block is drawn as a multiple of the scale, so that it is a zero point as well: for peers
that know one of the two only, the weights are still the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

__all__ = ["FORMATS", "Format", "Planes", "dequantized", "drawn", "planes_of"]


@dataclass(frozen=True)
class Format:
    """One of GGML's types.

    Args:
        size: values in a block.
        bytes: of a block.
        scales: where its 16-bit floats are.
        magnitude: about how large a value is, in scales.
    """

    size: int
    bytes: int
    scales: tuple[int, ...]
    magnitude: float


FORMATS = {
    "Q4_0": Format(32, 18, (0,), 4),
    "Q4_1": Format(32, 20, (0, 2), 4),
    "Q5_0": Format(32, 22, (0,), 8),
    "Q8_0": Format(32, 34, (0,), 64),
    "Q4_K": Format(256, 144, (0, 2), 128),
    "Q6_K": Format(256, 210, (208,), 1024),
}


def drawn(name: str, count: int, depth: int, rng: np.random.Generator) -> Array:
    """Draw weights ``[count, bytes]`` for a contraction over `depth` values, of about unit gain."""
    form = FORMATS[name]
    blocks = rng.integers(0, 256, (count, depth // form.size, form.bytes), np.uint8)
    typical = 1 / (form.magnitude * depth**0.5)
    scales = rng.uniform(0.5 * typical, 1.5 * typical, blocks.shape[:2]).astype(np.float16)
    for place in form.scales:
        _floats(blocks, place)[...] = scales
    if name == "Q4_K":
        _floats(blocks, 2)[...] = scales * np.float16(7.5)  # minima in the middle of the range
    if name == "Q4_1":
        # 6 bits of precision, and a zero point of 4: the product is exact
        short = (scales.view(np.uint16) & 0xFFE0).view(np.float16)
        zero_points = rng.integers(0, 16, blocks.shape[:2])
        _floats(blocks, 0)[...] = short
        _floats(blocks, 2)[...] = -short * zero_points.astype(np.float16)
    return blocks.reshape(count, -1)


def _floats(blocks: Array, place: int) -> Array:
    """The 16-bit floats at a place of each block, as a view."""
    whole = np.lib.stride_tricks.as_strided(
        blocks[..., place : place + 2].view(np.float16), blocks.shape[:-1], blocks.strides[:-1]
    )
    return whole


def dequantized(name: str, weights: Array) -> Array:
    """Return the values in 64 bits, by the package ``gguf``."""
    import gguf

    kind = gguf.GGMLQuantizationType[name]
    values: Array = gguf.quants.dequantize(weights, kind).astype(np.float64)
    return values


@dataclass(frozen=True)
class Planes:
    """Weights as separate arrays: ``(storage - zero point) * scale``.

    Args:
        bits: of a storage value, which is unsigned.
        storage: ``[N, K]``.
        scales: ``[N, K / 32]``.
        zero_points: ``[N, K / 32]``; None where it is half of the range.
    """

    bits: int
    storage: Array
    scales: Array
    zero_points: Array | None = None


def planes_of(name: str, weights: Array) -> Planes | None:
    """Return blocks of 32 as planes, or None for types that are no such planes."""
    if name not in ("Q4_0", "Q4_1", "Q8_0"):
        return None
    form, count = FORMATS[name], len(weights)
    blocks = weights.reshape(count, -1, form.bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if name == "Q8_0":
        return Planes(8, (blocks[..., 2:] ^ 128).reshape(count, -1), scales)
    # The low nibbles of the bytes are the first half of a block.
    stored = blocks[..., form.bytes - 16 :]
    storage = np.concatenate([stored & 15, stored >> 4], axis=2).reshape(count, -1)
    if name == "Q4_0":
        return Planes(4, storage, scales)
    minima = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    zero_points = np.rint(-minima.astype(np.float64) / scales).astype(np.uint8)
    return Planes(4, storage, scales, zero_points)
