"""Byte layout of packed weights: tiles of integers, and block records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from subquant.kernels.pack.packed_weight import PackedWeight, ScaleEncoding, Tiles
from subquant.numerics.element_types import F16, F32, U8


def vectors_in_load_order(tiles):
    """The vectors of a step as a product reads them first: their numbers, parts and planes."""
    every = [
        (vector, part, plane)
        for plane, count in enumerate(tiles.plane_vectors)
        for vector in range(count)
        for part in range(tiles.vectors)
    ]
    return sorted(every)


@pytest.mark.parametrize(
    ("bits", "block", "parts"), [*itertools.product([2, 3, 4, 5, 6, 8], [16, 32, 128], [1, 2])]
)
def test_tiles_have_the_documented_layout(bits, block, parts):
    tiles = Tiles(bits, block, n=20, k=256, lanes=8, vectors=parts)
    random = np.random.default_rng(bits * block + parts)
    integers = random.integers(0, 1 << bits, (20, 256)).astype(np.uint8)
    packed = tiles.pack(integers)
    assert packed.shape == (tiles.count, tiles.steps, tiles.step_bytes)
    assert packed.nbytes == tiles.count * tiles.nr * 256 * bits // 8
    for column, k in random.integers((0, 0), (20, 256), (100, 2)):
        tile, lane = divmod(column, tiles.nr)
        part, lane = divmod(lane, tiles.lanes)
        step, place = divmod(k, tiles.k_per_step)
        found, low = 0, 0
        vectors = vectors_in_load_order(tiles)
        for plane, (bits, count) in enumerate(
            zip(tiles.plane_bits, tiles.plane_vectors, strict=True)
        ):
            field, vector = divmod(place // 4, count)
            first = vectors.index((vector, part, plane))
            byte = packed[tile, step, (first * tiles.lanes + lane) * 4 + place % 4]
            found |= (int(byte) >> (bits * field) & ((1 << bits) - 1)) << low
            low += bits
        assert found == integers[column, k]


@pytest.mark.parametrize("block", [8, 32, 128])
@pytest.mark.parametrize("outer", [(1, 1), (4, 4), (2, 4), (64, 8)])
def test_block_records_have_the_documented_layout(block, outer):
    """A turn after another, and before the first what several blocks have; nothing between."""
    tiles = Tiles(4, block, n=20, k=64 * block, lanes=8, vectors=2)
    kinds = [ScaleEncoding(U8, F16, n) if n > 1 else ScaleEncoding(F32) for n in outer]
    stored = PackedWeight(tiles, kinds[0], None, kinds[1], is_planar=False)
    random = np.random.default_rng(block)
    integers = random.integers(0, 16, (20, tiles.k)).astype(np.uint8)
    given, counts = [], []
    for element, several in [*kinds[0].fields, (U8, 1), *kinds[1].fields]:
        of_columns = random.integers(0, 256, (20, 64 // several)).astype(element.dtype)
        given.append(of_columns)
        counts.append(several)
    fields = [tiles.pack_block_parameters(each, n) for each, n in zip(given, counts, strict=True)]
    packed = stored.pack(integers, fields)
    turn = max(block, tiles.k_per_step)
    unit = max(turn, block * max(counts))
    steps = tiles.pack(integers).reshape((2, tiles.k // turn, -1))
    for tile in range(2):
        expected = b""
        for start in range(0, tiles.k, unit):
            for field, several in zip(fields, counts, strict=True):
                if several > 1:
                    size = block * several
                    expected += field[tile, start // size : (start + unit) // size].tobytes()
            for place in range(start, start + unit, turn):
                expected += steps[tile, place // turn].tobytes()
                for number in range(place // block, (place + turn) // block):
                    for field, several in zip(fields, counts, strict=True):
                        expected += field[tile, number].tobytes() if several == 1 else b""
        assert packed[tile].tobytes() == expected
