"""Blocks of GGML's types: of random bytes, and with scales of a moderate size to compute with."""

from __future__ import annotations

import numpy as np

from programs import LONG
from subquant.layouts import GgmlTensor, SuperBlockLayout
from subquant.layouts.ggml import BLOCK_TYPES


def _computed() -> list[str]:
    """One type for each form of planes; the long suite has all types."""
    kinds: dict[tuple[object, ...], str] = {}
    for name, kind in BLOCK_TYPES.items():
        planes = kind.unpack(np.zeros(0, kind.block))
        shapes = ((plane, array.dtype.str, array.shape[1:]) for plane, array in planes.items())
        kinds.setdefault((name,) if LONG else (kind.layout, *shapes), name)
    return list(kinds.values())


COMPUTED = _computed()
"""The types that programs compute with in tests."""


def moderate_blocks(
    name: str, shape: tuple[int, int], random: np.random.Generator, tensor: str = "w"
) -> GgmlTensor:
    """A weight of a type, of random blocks with scales and offsets from 0.001 to 0.02."""
    kind = BLOCK_TYPES[name]
    count = shape[0] * shape[1] // kind.size
    raw = random.integers(0, 256, count * kind.block.itemsize, np.uint8)
    if name == "IQ1_M":  # 4 bits of an f16 in each word
        bits = random.uniform(0.001, 0.02, count).astype("<f2").view("<u2")
        words = raw.view(kind.block)["scales"]
        words &= 0xFFF
        words |= (bits[:, None] >> np.array([0, 4, 8, 12], np.uint16)) << np.uint16(12)
        return GgmlTensor(raw, name, shape, tensor)
    if name == "NVFP4":  # scales from 1/256 to 1/64
        raw.view(kind.block)["scales"] = random.integers(1 << 3, 2 << 3, (count, 4))
        return GgmlTensor(raw, name, shape, tensor)
    fields = [field for field in ("d", "dmin", "m", "e") if field in (kind.block.names or ())]
    assert fields, f"{name} has no scale that is known here"
    for field in fields:
        scales = random.uniform(0.001, 0.02, count)
        if field == "e":  # half of 2**(e - 127)
            scales = np.rint(np.log2(scales)) + 128
        raw.view(kind.block)[field] = scales
    return GgmlTensor(raw, name, shape, tensor)


def activation_block(weight: GgmlTensor) -> int | None:
    """The int8 activations that share a scale: those of a superblock, or of a block, if any."""
    layout = weight.unpack()
    block: int | None = getattr(layout, "row_block", None)
    return block if block is None else block * (getattr(layout, "sub_blocks", None) or 1)


SUPER = [name for name in BLOCK_TYPES if issubclass(BLOCK_TYPES[name].layout, SuperBlockLayout)]
"""The types with super-blocks."""


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of random bytes: each pattern of bits is as likely as any."""
    raw = np.random.default_rng(seed).bytes(count * BLOCK_TYPES[name].block.itemsize)
    return np.frombuffer(raw, np.uint8).copy().view(BLOCK_TYPES[name].block)


def tensor_of(name: str, blocks: np.ndarray) -> GgmlTensor:
    """One row of blocks."""
    shape = (1, len(blocks) * BLOCK_TYPES[name].size)
    return GgmlTensor(np.ascontiguousarray(blocks).view(np.uint8), name, shape, "w")
