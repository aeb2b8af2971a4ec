"""GGML's types dequantized by compiled programs: the same bits as in NumPy.

NumPy's are ``gguf``'s (`test_layouts`). Planes are arguments, so that nothing is folded.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES
from ggml_blocks import COMPUTED
from subquant.emit.trace import trace
from subquant.layouts import GgmlTensor, QuantizedLayout
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.runtime import Device
from together import Together

REALS = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00],
    np.uint16,
).view(np.float16)
"""Zeros, subnormal, normal and largest numbers, infinities, NaN."""


def layout_of(name: str) -> QuantizedLayout:
    """Random blocks, with pairs of the reals above in the first ones."""
    kind = BLOCK_TYPES[name]
    raw = np.random.default_rng(10).integers(0, 256, 256 * kind.block.itemsize, np.uint8)
    blocks = raw.view(kind.block)
    pairs = np.stack(np.meshgrid(REALS, REALS), -1).reshape((-1, 2))
    for field, column in (("d", 0), ("m", 1), ("dmin", 1)):
        if field in blocks.dtype.names:
            blocks[field][: len(pairs)] = pairs[:, column]
    if "e" in blocks.dtype.names:  # devices flush subnormal numbers
        blocks["e"] = np.clip(blocks["e"], 2, 254)
    return GgmlTensor(raw, name, (2, 128 * kind.size)).unpack()


def dequantization(name: str) -> str:
    """A program of the planes."""
    layout = layout_of(name)

    def dequantize(*arrays: Any) -> Any:
        return layout.with_planes(dict(zip(layout.planes, arrays, strict=True))).dequant()

    types = [(plane.shape, plane.dtype) for plane in layout.planes.values()]
    return str(trace(dequantize, types))


@functools.cache
def dequantizations() -> Together:
    return Together({name: dequantization(name) for name in COMPUTED})


@ON_DEVICES
@pytest.mark.parametrize("name", COMPUTED)
def test_values_are_those_of_numpy(name: str, device: Device) -> None:
    layout = layout_of(name)
    planes = [np.ascontiguousarray(plane) for plane in layout.planes.values()]
    got = dequantizations().function(name, device)(*planes)
    with np.errstate(all="ignore"):
        expected = layout.dequant()
    same = got.view(np.uint32) == expected.view(np.uint32)
    assert got.shape == expected.shape
    assert (same | (np.isnan(got) & np.isnan(expected))).all()
    assert np.isfinite(expected).any()
    assert np.isnan(expected).any() or "d" not in BLOCK_TYPES[name].block.names
