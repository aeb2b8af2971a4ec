"""Layouts: GGML's blocks against PyPI's ``gguf`` bit by bit, planes, and refusals.

``gguf`` is the reference for each type. The error that both could share, the 6-bit
scales and minimums of Q4_K, is compared with loops over the bytes as well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from subquant.errors import InputError, UsageError
from subquant.layouts import (
    LAYOUTS,
    BlockAffineLayout,
    BlockScaledI4Layout,
    BlockScaledLayout,
    BlockScaledPackedLayout,
    GgmlTensor,
    LookupBlockScaledLayout,
    PlanarQuantizedTensor,
    SuperBlockLayout,
    SuperBlockOffsetScaled_4_6_Layout,
    SuperBlockScaled_3_6_Layout,
    SuperBlockScaled_6_8_Layout,
    TensorScaledLayout,
    tensor_from_record,
)
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.layouts.lookup import LEVELS
from subquant.numerics.array_functions import take, unpack_bits
from subquant.numerics.casts import dequantize
from subquant.numerics.packed_integers import PackedIntegers, pack_bits
from subquant.numerics.parameters import ExpressedType, StorageType

TYPES = list(BLOCK_TYPES)
SUPER = [name for name in TYPES if issubclass(BLOCK_TYPES[name].layout, SuperBlockLayout)]
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


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of random bytes: each pattern of bits is as likely as any."""
    raw = np.random.default_rng(seed).bytes(count * BLOCK_TYPES[name].block.itemsize)
    return np.frombuffer(raw, np.uint8).copy().view(BLOCK_TYPES[name].block)


def tensor_of(name: str, blocks: np.ndarray) -> GgmlTensor:
    """One row of blocks."""
    shape = (1, len(blocks) * BLOCK_TYPES[name].size)
    return GgmlTensor(np.ascontiguousarray(blocks).view(np.uint8), name, shape, "w")


def super_blocks(name: str, blocks: np.ndarray) -> SuperBlockLayout:
    layout = tensor_of(name, blocks).unpack()
    assert isinstance(layout, SuperBlockLayout)
    return layout


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    """Return the blocks dequantized by ``gguf``."""
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape((1, -1))
    with np.errstate(all="ignore"):
        return gguf.dequantize(raw, gguf.GGMLQuantizationType[name])


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal in each bit; any NaN equals any other."""
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    same = got.view(np.uint32) == expected.view(np.uint32)
    wrong = np.flatnonzero(~(same | (np.isnan(got) & np.isnan(expected))))
    assert not wrong.size, (wrong[:5], got.flat[wrong[:5]], expected.flat[wrong[:5]])


def assert_equals_gguf(name: str, blocks: np.ndarray) -> None:
    """The layout's values are ``gguf``'s."""
    with np.errstate(all="ignore"):
        got = tensor_of(name, blocks).unpack().dequant()
    assert_same_bits(got, reference(name, blocks))


# -- GGML's types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_block_sizes_are_those_of_gguf(name: str) -> None:
    sizes = BLOCK_TYPES[name].size, BLOCK_TYPES[name].block.itemsize
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == sizes


@pytest.mark.parametrize("name", TYPES)
def test_random_blocks(name: str) -> None:
    assert_equals_gguf(name, random_blocks(name, 2**19 // BLOCK_TYPES[name].size))


@pytest.mark.parametrize("name", TYPES)
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


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rest", [0, 255, None], ids=["zeros", "ones", "random"])
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
@given(data=st.data(), name=st.sampled_from(TYPES))
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


@pytest.mark.parametrize("name", TYPES)
def test_axes_and_rows(name: str) -> None:
    size = BLOCK_TYPES[name].size
    blocks = random_blocks(name, 24, seed=5)
    if "d" in BLOCK_TYPES[name].block.names:
        blocks["d"] = 0.25
    tensor = GgmlTensor(blocks.view(np.uint8), name, (3, 4, 2 * size), "a.b")
    with np.errstate(all="ignore"):
        values = tensor.unpack().dequant()
        assert_same_bits(values, reference(name, blocks).reshape((3, 4, 2 * size)))
        assert_same_bits(tensor.rows(1, 3).unpack().dequant(), values[1:3])
        assert tensor.rows(2, 1).unpack().dequant().shape == (0, 4, 2 * size)
    assert tensor.with_name("c").name == "c"
    assert tensor.size_in_bytes == blocks.nbytes


@pytest.mark.parametrize("name", TYPES)
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
        assert_same_bits(repeated.unpack().dequant(), reference(name, blocks))
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


# -- layouts --------------------------------------------------------------------------------------


def test_super_blocks_of_other_sizes() -> None:
    """The planes determine blocks and sub-blocks; scales may have another type."""
    rng = np.random.default_rng(7)
    d, dmin = (rng.normal(size=(3, 2, 1)).astype(ml_dtypes.bfloat16) for _ in range(2))
    scales, minimums = (rng.integers(0, 64, (3, 2, 4)) for _ in range(2))
    qs = rng.integers(0, 16, (3, 2, 4, 8))
    planes = SuperBlockOffsetScaled_4_6_Layout.pack(d, scales, qs, dmin, minimums)
    layout = SuperBlockOffsetScaled_4_6_Layout((3, 64), planes)
    assert (layout.sub_blocks, layout.block_size) == (4, 8)
    single = np.float32
    expected = (d.astype(single) * scales.astype(single))[..., None] * qs.astype(single)
    expected = expected - (dmin.astype(single) * minimums.astype(single))[..., None]
    assert_same_bits(layout.dequant(), expected.reshape((3, 64)))
    assert layout.dequant(np.float16).dtype == np.float16
    np.testing.assert_array_equal(layout.dequant(np.float16), layout.dequant().astype(np.float16))


def test_super_blocks_in_float64() -> None:
    planes = SuperBlockScaled_6_8_Layout.pack(
        np.full((1, 1, 1), 0.1), np.full((1, 1, 2), 3, np.int8), np.full((1, 1, 2, 8), -32, np.int8)
    )
    layout = SuperBlockScaled_6_8_Layout((1, 16), planes)
    assert layout.block_form().offsets is None
    assert (layout.dequant(np.float64) == 0.1 * 3 * -32).all()


@pytest.mark.parametrize(
    ("name", "shape"), [("Q3_K", (2, 3, 512)), ("Q6_K", (2, 3, 512)), ("Q6_K", (256,))]
)
def test_super_blocks_without_minimums_are_a_quantized_type(
    name: str, shape: tuple[int, ...]
) -> None:
    blocks = random_blocks(name, math.prod(shape) // 256)
    layout = GgmlTensor(blocks.view(np.uint8), name, shape).unpack()
    assert isinstance(layout, SuperBlockLayout)
    with np.errstate(all="ignore"):
        parameters = layout.parameters()
        expected = layout.dequant()
    assert parameters.axes == tuple(range(len(shape)))
    assert parameters.block_sizes == (*[1] * (len(shape) - 1), 16)
    assert str(parameters.storage) == {"Q3_K": "i3", "Q6_K": "i6"}[name]
    assert_same_bits(dequantize(layout.values().reshape(layout.shape), parameters), expected)


def test_super_blocks_with_minimums_are_none() -> None:
    layout = SuperBlockOffsetScaled_4_6_Layout((1, 512), q4_k_planes())
    with pytest.raises(UsageError, match="subtracts minimums, which no quantized type does"):
        layout.parameters()


@pytest.mark.parametrize("name", SUPER)
def test_only_the_difference_is_rounded(name: str) -> None:
    """Products are exact in float32, so a fused multiply-add would give the same bits."""
    blocks = random_blocks(name, 2048, seed=11)
    for field in {"d", "dmin"} & set(blocks.dtype.names):
        blocks[field] = np.arange(0, 0x7C00, 15, np.uint16)[:2048].view(np.float16)
    layout = tensor_of(name, blocks).unpack()
    exact = layout.with_planes(
        {key: p.astype(np.float64) if key[0] == "d" else p for key, p in layout.planes.items()}
    )
    wide = exact.dequant(np.float64)
    if "dmin" not in layout.planes:
        np.testing.assert_array_equal(layout.dequant().astype(np.float64), wide)
    assert_same_bits(layout.dequant(), wide.astype(np.float32))


def q4_k_planes() -> dict[str, np.ndarray]:
    return dict(tensor_of("Q4_K", random_blocks("Q4_K", 2)).unpack().planes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qs": np.zeros((1, 2, 8, 15), np.uint8)}, "no multiple of 8 sub-blocks of 30"),
        ({"qs": np.zeros((1, 2, 0, 16), np.uint8)}, "no multiple of 0 sub-blocks of 32"),
        ({"qs": np.zeros((8, 16), np.uint8)}, "have no super-blocks and sub-blocks"),
        ({"qs": np.zeros((1, 2, 8, 16), np.int8)}, "plane 'qs' .* elements of int8, expected uin"),
        ({"qs": np.zeros((2, 2, 8, 16), np.uint8)}, r"'qs' .* shape \(2, 2, 8, 16\), expected \(1"),
        ({"d": np.zeros((1, 2), np.float16)}, r"plane 'd' .* \(1, 2\), expected \(1, 2, 1\)"),
        ({"dmin": np.zeros((1, 2, 1), np.int8)}, "plane 'dmin' .* elements of int8, expected floa"),
        ({"sb_mins_high": np.zeros((1, 2, 4), np.uint8)}, r"'sb_mins_high' .* expected \(1, 2, 2"),
        ({}, "have no super-blocks"),  # without an axis
        ({"sb_scales_low": None}, "has the planes .* expected"),
        ({"more": np.zeros(1)}, "has the planes .* expected"),
    ],
)
def test_super_blocks_that_do_not_fit(change: dict[str, np.ndarray], message: str) -> None:
    shape = () if change == {} else (1, 512)
    with pytest.raises(InputError, match=message):
        SuperBlockOffsetScaled_4_6_Layout(shape, {**q4_k_planes(), **change})


def test_packed_scales_of_q3_k_are_no_int8() -> None:
    planes = dict(tensor_of("Q3_K", random_blocks("Q3_K", 1)).unpack().planes)
    planes["sb_scales_low"] = planes["sb_scales_low"].astype(np.int8)
    with pytest.raises(InputError, match=r"'sb_scales_low' .* elements of int8, expected uint8"):
        SuperBlockScaled_3_6_Layout((1, 256), planes)


@pytest.mark.parametrize(
    "table", [None, [0] * 15, [*range(15), 128], [*range(15), 0.5], [*range(15), True], "0" * 16]
)
def test_tables_that_are_none(table: object) -> None:
    planes = {"d": np.ones((2, 1), np.float32), "qs": np.zeros((2, 4), np.uint8)}
    with pytest.raises(InputError, match="'table' of LookupBlockScaledLayout must be a list of 16"):
        LookupBlockScaledLayout((16,), planes, {"table": table})


def test_lookup_blocks() -> None:
    table = [7 - 3 * index for index in range(16)]
    planes = {"d": np.array([[0.5], [2]], np.float32), "qs": np.array([[0x10], [0xF2]], np.uint8)}
    layout = LookupBlockScaledLayout((4,), planes, {"table": table})
    assert layout.dequant().tolist() == [3.5, 2, 2, -76]
    shifted = LookupBlockScaledLayout((4,), {**planes, "m": planes["d"]}, {"table": table})
    assert shifted.dequant().tolist() == [4, 2.5, 4, -74]


def test_signed_and_unsigned_nibbles() -> None:
    planes = {"d": np.ones((1, 1), np.float16), "qs": np.array([[0x70, 0x98]], np.uint8)}
    for signed, expected in ((True, [0, 7, -8, -7]), (False, [0, 7, 8, 9])):
        layout = BlockScaledI4Layout((4,), planes, {"signed": signed})
        assert layout.dequant().tolist() == expected
        assert layout.block_size == 4


def test_scales_along_an_axis_are_a_quantized_type() -> None:
    planes = {
        "d": np.array([[0.5], [0.25]], np.float32),
        "qs": np.array([[1, -2, 3], [4, 5, -6]], np.int8),
        "m": np.array([[1], [-1]], np.int8),
    }
    layout = TensorScaledLayout((2, 3), planes)
    assert layout.dequant().tolist() == [[0, -1.5, 1], [1.25, 1.5, -1.25]]
    np.testing.assert_array_equal(dequantize(planes["qs"], layout.parameters()), layout.dequant())


def test_ragged_blocks_are_a_quantized_type() -> None:
    rng = np.random.default_rng(8)
    planes = {
        "d": rng.uniform(0.1, 1, (2, 3)).astype(np.float32),
        "qs": rng.integers(-8, 8, (3, 5), np.int8),
        "z": rng.integers(-8, 8, (2, 3)).astype(np.int32),
    }
    layout = BlockAffineLayout((3, 5), planes, {"block_shape": [2, 2], "storage": "i4"})
    for row, column in np.ndindex(3, 5):
        scale, zero = planes["d"][row // 2, column // 2], planes["z"][row // 2, column // 2]
        expected = np.float32(int(planes["qs"][row, column]) - int(zero)) * scale
        assert layout.dequant()[row, column] == expected
    np.testing.assert_array_equal(dequantize(planes["qs"], layout.parameters()), layout.dequant())


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("asymmetric", [True, False])
def test_packed_storage_of_blocks_along_any_axes(bits: int, signed: bool, asymmetric: bool) -> None:
    """Written out element by element; a byte holds no more than its bits."""
    rng, storage = np.random.default_rng(bits), StorageType(bits, signed)
    q = rng.integers(storage.minimum, storage.maximum + 1, (4, 24)).astype(storage.dtype)
    scales = rng.uniform(0.1, 1, (2, 4)).astype(np.float32)
    z = rng.integers(storage.minimum, storage.maximum + 1, (2, 4)) if asymmetric else None
    layout = BlockAffineLayout.of(q, scales, z, [2, 7], storage)
    assert layout.is_packed == (bits != 8)
    assert sum(p.nbytes for n, p in layout.planes.items() if n[0] == "q") == q.size * bits // 8
    np.testing.assert_array_equal(layout.stored(), q)
    for row, column in np.ndindex(4, 24):
        block = row // 2, column // 7
        expected = np.float32(int(q[row, column]) - (0 if z is None else int(z[block])))
        assert layout.dequant()[row, column] == expected * scales[block]
    np.testing.assert_array_equal(dequantize(q, layout.parameters()), layout.dequant())


@pytest.mark.parametrize(
    ("planes", "metadata", "message"),
    [
        ({"qs": np.zeros((2, 8), np.uint8)}, {}, "plane 'qs' .* has the shape .2, 8., .* .2, 4."),
        ({"qs": np.zeros((2, 4), np.int8)}, {}, "elements of int8, expected uint8"),
        ({"qs_low": np.zeros((2, 4), np.uint8)}, {}, r"has the planes .'qs_low'., expected .'qs'."),
        ({}, {}, r"has the planes \[\], expected .'qs'."),
        ({"qs": np.zeros((2, 4), np.uint8)}, {"packed": 1}, "'packed' .* must be true or false"),
        ({"qs": np.zeros((2, 8), np.uint8)}, {"storage": "u8"}, "u8, which cannot be packed"),
        (
            {"qs_low": np.zeros((2, 4), np.uint8)},
            {"storage": "i6"},
            r"storage i6 has the planes .'qs_low'., expected .'qs_low', 'qs_high'.",
        ),
    ],
)
def test_packed_planes_that_do_not_fit(
    planes: dict[str, np.ndarray], metadata: dict[str, Any], message: str
) -> None:
    arguments = {"block_shape": [1, 4], "storage": "i4", "packed": True, **metadata}
    with pytest.raises(InputError, match=message):
        BlockAffineLayout((2, 8), {"d": np.ones((2, 2), np.float32), **planes}, arguments)


def test_layouts_by_name() -> None:
    assert {BLOCK_TYPES[name].layout.__name__ for name in TYPES} <= LAYOUTS.keys()
    assert "SuperBlockLayout" not in LAYOUTS
    assert LAYOUTS["BlockScaledLayout"] is BlockScaledLayout


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0"])
def test_blocks_are_a_sub_channel_type(name: str) -> None:
    """Storage values and parameters convert to a layout and back without change."""
    blocks = random_blocks(name, 6)
    blocks["d"] = np.random.default_rng(1).uniform(0.001, 2, 6)
    layout = tensor_of(name, blocks).unpack()
    assert isinstance(layout, BlockScaledLayout)
    parameters = layout.parameters()
    assert parameters.granularity == "sub-channel"
    assert parameters.block_sizes == (1, 32)
    assert str(parameters.storage) == {"Q4_0": "i4", "Q5_0": "i5", "Q8_0": "i8"}[name]
    stored = layout.stored()
    wide = dequantize(stored, replace(parameters, expressed=ExpressedType.F32))
    np.testing.assert_array_equal(wide, layout.dequant())
    repeated = BlockAffineLayout.of_quantized(stored, parameters)
    np.testing.assert_array_equal(repeated.dequant(), layout.dequant())
    expected = dequantize(stored, parameters)
    np.testing.assert_array_equal(dequantize(stored, repeated.parameters()), expected)


def test_offsets_in_units_of_the_reals_are_no_type() -> None:
    with pytest.raises(UsageError, match="is no quantized type"):
        tensor_of("Q4_1", random_blocks("Q4_1", 2)).unpack().parameters()  # type: ignore[attr-defined]


# -- blocks of integers of few bits ---------------------------------------------------------------


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_packed_blocks(bits: int, signed: bool) -> None:
    """All integers of a width, packed without spare bits."""
    low = -(2 ** (bits - 1)) if signed else 0
    values = np.tile(np.arange(low, low + 2**bits), 16).reshape((2, -1, 16))
    d = np.random.default_rng(3).uniform(0.1, 2, (*values.shape[:2], 1)).astype(np.float16)
    planes = BlockScaledPackedLayout.pack(values, bits, signed)
    shape = (2, values.size // 2)
    layout = BlockScaledPackedLayout(
        shape, {"d": d, "m": -d, **planes}, {"bits": bits, "signed": signed}
    )
    assert sum(plane.nbytes for plane in planes.values()) == values.size * bits // 8
    assert (layout.block_size, str(layout.storage)) == (16, f"{'i' if signed else 'u'}{bits}")
    np.testing.assert_array_equal(layout.values(), values)
    expected = d.astype(np.float32) * values.astype(np.float32) - d.astype(np.float32)
    np.testing.assert_array_equal(layout.dequant(), expected.reshape(shape))


def test_packed_blocks_with_another_zero() -> None:
    """GGML's TQ2_0 has 3, which nothing writes, and it is 2; zeros have the sign of the scale."""
    values = np.array([[[-1, 0, 1, 2]]], np.int8)
    planes = BlockScaledPackedLayout.pack(values, 2, True, 1)
    d, metadata = np.full((1, 1, 1), -0.5, np.float16), {"bits": 2, "signed": True, "zero": 1}
    layout = BlockScaledPackedLayout((1, 4), {"d": d, **planes}, metadata)
    assert planes["qs"].tolist() == [[[0b11100100]]]
    assert str(layout.storage) == "i8<-1:2>"
    np.testing.assert_array_equal(layout.values(), values)
    assert_same_bits(layout.dequant(), np.array([[0.5, -0.0, -0.5, -1]], np.float32))
    repeated = dequantize(layout.values().reshape((1, 4)), layout.parameters())
    assert_same_bits(repeated.astype(np.float32), layout.dequant())


@pytest.mark.parametrize(
    ("planes", "metadata", "message"),
    [
        ({}, {"bits": 4, "signed": True}, "'bits' of BlockScaledPackedLayout must be 2, 3, 5 or 6"),
        ({}, {"bits": True, "signed": True}, "must be 2, 3, 5 or 6, got True"),
        ({}, {"bits": 5}, "'signed' of BlockScaledPackedLayout must be true or false, got None"),
        ({"qs": (1, 8)}, {"bits": 5, "signed": True}, r"of 5 bits has the planes \['qs'\], expect"),
        ({"qs_low": (1, 8)}, {"bits": 3, "signed": True}, r"expected \['qs_low', 'qs_high'\]"),
        ({"qs_low": (1, 8), "qs_high": (1, 4)}, {"bits": 5, "signed": True},
         r"plane 'qs_high' .* has the shape \(1, 4\), expected \(1, 2\)"),
        ({"qs": (1, 0)}, {"bits": 2, "signed": True}, "plane 'qs' .* has no blocks"),
        *(({"qs": (1, 8)}, {"bits": 2, "signed": signed, "zero": zero},
           f"'zero' of .* an integer from 1 to 3, with 'signed' being true, got {zero!r} with")
          for signed, zero in [(True, 0), (True, 4), (True, True), (True, "1"), (False, 1)]),
        ({"qs": (1, 3)}, {"bits": 2, "signed": True}, "no multiple of its block size 12"),
    ],
)  # fmt: skip
def test_packed_blocks_that_do_not_fit(
    planes: dict[str, tuple[int, ...]], metadata: dict[str, Any], message: str
) -> None:
    arrays = {name: np.zeros(shape, np.uint8) for name, shape in planes.items()}
    with pytest.raises(InputError, match=message):
        BlockScaledPackedLayout((16,), {"d": np.ones((1, 1), np.float16), **arrays}, metadata)
