"""Layouts of GGML's blocks against PyPI's ``gguf`` bit by bit, and packed integers.

``gguf`` is the reference for each type. The error that both could share, the 6-bit
scales and minimums of Q4_K, is compared with loops over the bytes as well.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggml_blocks import SUPER, random_blocks, tensor_of
from programs import same_bits
from subquant.errors import InputError
from subquant.layouts import (
    GgmlTensor,
    PlanarQuantizedTensor,
    SuperBlockLayout,
    tensor_from_record,
)
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.layouts.lookup import LEVELS
from subquant.numerics.array_functions import take, unpack_bits
from subquant.numerics.packed_integers import PackedIntegers, pack_bits
from subquant.numerics.parameters import ExpressedType

SPECIAL = np.array(
    [
        *(0x0000, 0x8000),  # zeros
        *(0x0001, 0x8001, 0x03FF, 0x83FF),  # least and greatest subnormal
        *(0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF),  # least normal, one, largest
        *(0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFDFF),  # infinities, quiet and signaling NaN
    ],
    np.uint16,
)
"""Bits of f16."""


def super_blocks(name: str, blocks: np.ndarray) -> SuperBlockLayout:
    layout = tensor_of(name, blocks).unpack()
    assert isinstance(layout, SuperBlockLayout)
    return layout


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    """Return the blocks dequantized by ``gguf``."""
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape((1, -1))
    with np.errstate(all="ignore"):
        return gguf.dequantize(raw, gguf.GGMLQuantizationType[name])


def assert_equals_gguf(name: str, blocks: np.ndarray) -> None:
    """The layout's values are ``gguf``'s."""
    with np.errstate(all="ignore"):
        got = tensor_of(name, blocks).unpack().dequant()
    assert same_bits(got, reference(name, blocks))


# -- GGML's types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_block_sizes_are_those_of_gguf(name: str) -> None:
    sizes = BLOCK_TYPES[name].size, BLOCK_TYPES[name].block.itemsize
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == sizes


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_random_blocks(name: str) -> None:
    assert_equals_gguf(name, random_blocks(name, 2**19 // BLOCK_TYPES[name].size))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_scales_of_every_kind(name: str) -> None:
    """All pairs of special f16 values in the scale and the minimum, and 2,048 more scales."""
    reals = [field for field in ("d", "m", "dmin") if field in BLOCK_TYPES[name].block.names]
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL), -1).reshape((-1, 2))
    rest = np.arange(0, 2**16, 32, dtype=np.uint16)
    bits = np.concatenate([pairs, np.stack([rest, rest[::-1]], -1)])
    blocks = random_blocks(name, len(bits), seed=1)
    for column, field in enumerate(reals):
        blocks[field] = bits[:, column].view(np.float16)
    assert_equals_gguf(name, blocks)


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("rest", [0, 255, None], ids=["zeros", "ones", "random"])
@pytest.mark.share(18)
def test_every_value_of_every_byte(name: str, rest: int | None) -> None:
    """Each byte of a block has each value, the other ones being zeros, ones or random."""
    size = BLOCK_TYPES[name].block.itemsize
    bytes_ = np.full((size, 256, size), rest or 0, np.uint8)
    if rest is None:
        bytes_[:] = np.random.default_rng(2).integers(0, 256, size, np.uint8)
    bytes_[np.arange(size), :, np.arange(size)] = np.arange(256, dtype=np.uint8)
    assert_equals_gguf(name, bytes_.reshape(-1).view(BLOCK_TYPES[name].block))


@pytest.mark.parametrize("name", SUPER)
def test_all_scales_in_all_sub_blocks(name: str) -> None:
    """The blocks of `test_random_blocks` have each scale and each minimum in each sub-block.

    Types with a codebook have odd scales only.
    """
    odd = dict.fromkeys(LEVELS, 16) | {"IQ1_S": 8, "IQ1_M": 8}
    layout = super_blocks(name, random_blocks(name, 4096))
    for field in (layout.SCALES, layout.MINIMUMS):
        if field is None:
            continue
        integers = field.unpack(layout.planes).reshape((-1, layout.sub_blocks))
        for column in integers.T:
            assert len(np.unique(column)) == odd.get(name, 2 ** (field.low + field.high))


@settings(max_examples=200)
@given(data=st.data(), name=st.sampled_from(list(BLOCK_TYPES)))
def test_any_block(data: st.DataObject, name: str) -> None:
    raw = data.draw(hnp.arrays(np.uint8, BLOCK_TYPES[name].block.itemsize))
    assert_equals_gguf(name, raw.view(BLOCK_TYPES[name].block))


def q4_k_integers(block: np.void) -> tuple[list[int], list[int]]:
    """Scales and minimums of a block of Q4_K or Q5_K, byte by byte."""
    b = [int(value) for value in block["scales"]]
    scales = [b[j] & 63 for j in range(4)]
    minimums = [b[j + 4] & 63 for j in range(4)]
    for j in range(4, 8):
        scales.append((b[j + 4] & 15) + 16 * (b[j - 4] >> 6))
        minimums.append((b[j + 4] >> 4) + 16 * (b[j] >> 6))
    return scales, minimums


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K"])
def test_the_high_bits_of_6_bit_minimums_are_shifted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minimums from 16 on: code that joins their low and high bits unshifted fails here."""
    blocks = random_blocks(name, 1024, seed=3)
    blocks["d"], blocks["dmin"] = 0, 1  # the values are the minimums
    expected = -np.array([q4_k_integers(block)[1] for block in blocks], np.float32)
    assert (expected <= -16).mean() > 0.7
    layout = tensor_of(name, blocks).unpack()
    got = layout.dequant_blocked()
    np.testing.assert_array_equal(got, np.broadcast_to(expected[None, ..., None], got.shape))

    def unshifted(
        self: PackedIntegers, planes: dict[str, np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        pieces = [unpack_bits(planes[name], bits) for name, bits in self.bits.items()]
        return np.bitwise_or.reduce(pieces).reshape(shape)

    monkeypatch.setattr(PackedIntegers, "packed", unshifted)
    wrong = layout.dequant_blocked()[0, ..., 0] != expected
    assert wrong[expected <= -16].all()


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K"])
def test_6_bit_scales(name: str) -> None:
    blocks = random_blocks(name, 1024, seed=4)
    blocks["d"], blocks["dmin"] = 1, 0
    scales = np.array([q4_k_integers(block)[0] for block in blocks], np.float32)
    layout = super_blocks(name, blocks)
    actual = layout.block_form().real_scales(ExpressedType.F32)
    np.testing.assert_array_equal(actual.reshape(scales.shape), scales)
    np.testing.assert_array_equal(
        layout.dequant_blocked()[0], scales[..., None] * layout.values()[0].astype(np.float32)
    )


def test_planes_of_q4_k() -> None:
    """Names and shapes, and the order in bytes: the first element in the low bits."""
    layout = tensor_of("Q4_K", random_blocks("Q4_K", 3)).unpack()
    assert {name: plane.shape for name, plane in layout.planes.items()} == {
        "d": (1, 3, 1), "dmin": (1, 3, 1), "sb_scales_low": (1, 3, 4), "sb_scales_high": (1, 3, 2),
        "sb_mins_low": (1, 3, 4), "sb_mins_high": (1, 3, 2), "qs": (1, 3, 8, 16),
    }  # fmt: skip
    scales, minimums = q4_k_integers(random_blocks("Q4_K", 3)[2])
    planes = {name: plane[0, 2].tolist() for name, plane in layout.planes.items()}
    for name, integers in (("sb_scales", scales), ("sb_mins", minimums)):
        assert planes[f"{name}_low"] == [
            integers[i] % 16 + 16 * (integers[i + 1] % 16) for i in range(0, 8, 2)
        ]
        assert planes[f"{name}_high"] == [
            sum((integers[i + k] // 16) << (2 * k) for k in range(4)) for i in range(0, 8, 4)
        ]


def test_more_blocks_than_are_unpacked_at_once() -> None:
    assert_equals_gguf("Q5_0", random_blocks("Q5_0", 2**15 + 3))


def test_q8_0_is_not_copied() -> None:
    tensor = tensor_of("Q8_0", random_blocks("Q8_0", 4))
    planes = tensor.to_planar().arrays
    assert all(np.shares_memory(plane, tensor.raw) for plane in planes.values())


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_axes_and_rows(name: str) -> None:
    size = BLOCK_TYPES[name].size
    blocks = random_blocks(name, 24, seed=5)
    if "d" in BLOCK_TYPES[name].block.names:
        blocks["d"] = 0.25
    tensor = GgmlTensor(blocks.view(np.uint8), name, (3, 4, 2 * size), "a.b")
    with np.errstate(all="ignore"):
        values = tensor.unpack().dequant()
        assert same_bits(values, reference(name, blocks).reshape((3, 4, 2 * size)))
        assert same_bits(tensor.rows(1, 3).unpack().dequant(), values[1:3])
        assert tensor.rows(2, 1).unpack().dequant().shape == (0, 4, 2 * size)
    assert tensor.with_name("c").name == "c"
    assert tensor.size_in_bytes == blocks.nbytes


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_records(name: str) -> None:
    """A tensor comes back from its record and arrays, in the planar form."""
    blocks = random_blocks(name, 8, seed=6)
    tensor = tensor_of(name, blocks)
    record = tensor.record
    assert record["type_name"] == "PlanarQuantizedTensor"
    assert record["layout_type"] == BLOCK_TYPES[name].layout.__name__
    repeated = tensor_from_record("w", record, tensor.arrays)
    assert isinstance(repeated, PlanarQuantizedTensor)
    with np.errstate(all="ignore"):
        assert same_bits(repeated.unpack().dequant(), reference(name, blocks))
    assert GgmlTensor.from_record("w", record, repeated.unpack().planes).shape == tensor.shape


@pytest.mark.parametrize(
    ("raw", "name", "shape", "message"),
    [
        (np.zeros(18, np.uint8), "Q9_9", (32,), "is of the GGML type Q9_9; expected one of: Q4_0,"),
        (np.zeros(18, np.uint8), "Q4_0", (31,), "shape (31,), expected a last axis that is a mult"),
        (np.zeros(18, np.uint8), "Q4_0", (), "shape (), expected a last axis that is a multiple"),
        (np.zeros(17, np.uint8), "Q4_0", (32,), "has uint8[17] as its blocks, expected 18 bytes"),
        (np.zeros(18, np.int8), "Q4_0", (32,), "has int8[18] as its blocks, expected 18 bytes"),
        (np.zeros(18, np.uint8), "Q4_0", (2**62, 32), f"expected {18 * 2**62} bytes"),
    ],
)
def test_ggml_tensors_that_do_not_fit(
    raw: np.ndarray, name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        GgmlTensor(raw, name, shape, "w")
    assert "tensor 'w' of" in str(raised.value) or "tensor 'w' is of" in str(raised.value)
    assert message in str(raised.value)


def test_rows_of_a_vector() -> None:
    with pytest.raises(InputError, match=r"'w' of shape \(32,\) has no rows"):
        GgmlTensor(np.zeros(18, np.uint8), "Q4_0", (32,), "w").rows(0, 1)


# -- packed integers ------------------------------------------------------------------------------


@given(data=st.data(), bits=st.sampled_from([1, 2, 4]))
def test_packing_is_undone_by_unpacking(data: st.DataObject, bits: int) -> None:
    values = data.draw(
        hnp.arrays(np.uint8, (3, 16), elements=st.integers(0, 2**bits - 1), fill=st.nothing())
    )
    packed = pack_bits(values, bits)
    assert packed.shape == (3, 16 * bits // 8)
    np.testing.assert_array_equal(unpack_bits(packed, bits), values)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_first_value_is_in_the_lowest_bits(bits: int) -> None:
    number = 0b10110010
    digits = [(number >> shift) % 2**bits for shift in range(0, 8, bits)]
    assert unpack_bits(np.array([number], np.uint8), bits).tolist() == digits


@pytest.mark.parametrize(
    ("low", "high", "zero"),
    [(2, 0, 0), (4, 0, 0), (4, 1, 0), (4, 2, 0), (4, 2, 32), (2, 1, 4)],
)
def test_all_integers_of_a_field(low: int, high: int, zero: int) -> None:
    field = PackedIntegers("x", low, high, zero=zero)
    values = np.arange(max(8, 2 ** (low + high))) % 2 ** (low + high) - zero
    got = field.unpack(field.pack(values[None]))
    assert got.dtype == (np.int8 if zero else np.uint8)
    np.testing.assert_array_equal(got[0], values)


def test_lookup_takes_entries() -> None:
    table = np.array([5, -7, 9], np.int8)
    got = take(table, np.array([[2, 0], [1, 1]], np.uint8))
    assert got.dtype == np.int8
    assert got.tolist() == [[9, 5], [-7, -7]]
