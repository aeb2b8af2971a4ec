"""Random weights in GGML's blocks, and as separate planes for peers that need planes.

All bits of a block but its f16 scales may be random. The minimum of a ``Q4_1`` block is a multiple
of the scale, so that it equals a zero point: peers with minima and peers with zero points get the
same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """One of GGML's types.

    Args:
        size: values in a block.
        bytes: the bytes of a block.
        scales: byte offsets of the f16 scales in a block.
        magnitude: the typical magnitude of a value, in scales.
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
    for offset in form.scales:
        _floats(blocks, offset)[...] = scales
    if name == "Q4_K":
        _floats(blocks, 2)[...] = scales * np.float16(7.5)  # minima in the middle of the range
    if name == "Q4_1":
        # 6 bits of precision, and a zero point of 4: the product is exact
        short = (scales.view(np.uint16) & 0xFFE0).view(np.float16)
        zero_points = rng.integers(0, 16, blocks.shape[:2])
        _floats(blocks, 0)[...] = short
        _floats(blocks, 2)[...] = -short * zero_points.astype(np.float16)
    return blocks.reshape(count, -1)


def _floats(blocks: Array, offset: int) -> Array:
    """Return a view of the f16 values at a byte offset of each block."""
    whole = np.lib.stride_tricks.as_strided(
        blocks[..., offset : offset + 2].view(np.float16), blocks.shape[:-1], blocks.strides[:-1]
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
        bits: the bits of an unsigned storage value.
        storage: ``[N, K]``.
        scales: ``[N, K / 32]``.
        zero_points: ``[N, K / 32]``; None if each is half of the range.
    """

    bits: int
    storage: Array
    scales: Array
    zero_points: Array | None = None


def planes_of(name: str, weights: Array) -> Planes | None:
    """Return blocks of 32 as planes, or None for types with other blocks."""
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
