"""Byte layout of packed weights: tiles of integers, and block records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from subquant.kernels.pack.packed_weight import PackedWeight, ScaleEncoding, Tiles
from subquant.numerics.element_types import F16, F32, U8


def vectors_in_load_order(tiles):
    """Return the vectors of a step in load order: number, vector of columns, and plane."""
    vectors = [
        (number, columns, plane)
        for plane, count in enumerate(tiles.plane_vectors)
        for number in range(count)
        for columns in range(tiles.vectors)
    ]
    return sorted(vectors)


@pytest.mark.parametrize(
    ("bits", "block", "vectors"), [*itertools.product([2, 3, 4, 5, 6, 8], [16, 32, 128], [1, 2])]
)
def test_tiles_have_the_documented_layout(bits, block, vectors):
    tiles = Tiles(bits, block, n=20, k=256, lanes=8, vectors=vectors)
    random = np.random.default_rng(bits * block + vectors)
    integers = random.integers(0, 1 << bits, (20, 256)).astype(np.uint8)
    packed = tiles.pack(integers)
    assert packed.shape == (tiles.count, tiles.steps, tiles.step_bytes)
    assert packed.nbytes == tiles.count * tiles.nr * 256 * bits // 8
    order = vectors_in_load_order(tiles)
    for n, k in random.integers((0, 0), (20, 256), (100, 2)):
        tile, column = divmod(n, tiles.nr)
        columns, lane = divmod(column, tiles.lanes)
        step, offset = divmod(k, tiles.k_per_step)
        integer, shift = 0, 0
        for plane, width in enumerate(tiles.plane_bits):
            field, number = divmod(offset // 4, tiles.plane_vectors[plane])
            vector = order.index((number, columns, plane))
            byte = packed[tile, step, (vector * tiles.lanes + lane) * 4 + offset % 4]
            integer |= (int(byte) >> (width * field) & ((1 << width) - 1)) << shift
            shift += width
        assert integer == integers[n, k]


@pytest.mark.parametrize("block", [8, 32, 128])
@pytest.mark.parametrize("outer", [(1, 1), (4, 4), (2, 4), (64, 8)])
def test_block_records_have_the_documented_layout(block, outer):
    """Records follow each other, after the outer scales of a superblock, without gaps."""
    tiles = Tiles(4, block, n=20, k=64 * block, lanes=8, vectors=2)
    scale, offset = (ScaleEncoding(U8, F16, n) if n > 1 else ScaleEncoding(F32) for n in outer)
    layout = PackedWeight(tiles, scale, None, offset, is_planar=False)
    random = np.random.default_rng(block)
    integers = random.integers(0, 16, (20, tiles.k)).astype(np.uint8)
    fields, counts = [], []
    for element, blocks in [*scale.fields, (U8, 1), *offset.fields]:
        parameters = random.integers(0, 256, (20, 64 // blocks)).astype(element.dtype)
        fields.append(tiles.pack_block_parameters(parameters, blocks))
        counts.append(blocks)
    packed = layout.pack(integers, fields).whole()
    record_k = max(block, tiles.k_per_step)
    superblock_k = max(record_k, block * max(counts))
    steps = tiles.pack(integers).reshape((2, tiles.k // record_k, -1))
    for tile in range(2):
        expected = b""
        for start in range(0, tiles.k, superblock_k):
            for field, blocks in zip(fields, counts, strict=True):
                if blocks > 1:
                    size = block * blocks
                    end = start + superblock_k
                    expected += field[tile, start // size : end // size].tobytes()
            for k in range(start, start + superblock_k, record_k):
                expected += steps[tile, k // record_k].tobytes()
                for number in range(k // block, (k + record_k) // block):
                    for field, blocks in zip(fields, counts, strict=True):
                        expected += field[tile, number].tobytes() if blocks == 1 else b""
        assert packed[tile].tobytes() == expected
