"""Layouts of planes: super-blocks, tables, affine blocks, integers of few bits, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ggml_blocks import SUPER, random_blocks, tensor_of
from programs import same_bits
from subquant.errors import InputError, UsageError
from subquant.layouts import (
    LAYOUTS,
    BlockAffineLayout,
    BlockScaledI4Layout,
    BlockScaledLayout,
    BlockScaledPackedLayout,
    GgmlTensor,
    LookupBlockScaledLayout,
    SuperBlockLayout,
    SuperBlockOffsetScaled_4_6_Layout,
    SuperBlockScaled_3_6_Layout,
    SuperBlockScaled_6_8_Layout,
    TensorScaledLayout,
)
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.numerics.casts import dequantize
from subquant.numerics.parameters import ExpressedType, StorageType


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
    assert same_bits(layout.dequant(), expected.reshape((3, 64)))
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
    assert same_bits(dequantize(layout.values().reshape(layout.shape), parameters), expected)


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
    assert same_bits(layout.dequant(), wide.astype(np.float32))


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


def assert_affine(
    layout: BlockAffineLayout, q: np.ndarray, scales: np.ndarray, z: np.ndarray,
    block_shape: tuple[int, int],
) -> None:  # fmt: skip
    """Dequantized as written out element by element, and as MLIR's type."""
    for row, column in np.ndindex(q.shape):
        block = row // block_shape[0], column // block_shape[1]
        expected = np.float32(int(q[row, column]) - int(z[block])) * scales[block]
        assert layout.dequant()[row, column] == expected
    np.testing.assert_array_equal(dequantize(q, layout.parameters()), layout.dequant())


def test_ragged_blocks_are_a_quantized_type() -> None:
    rng = np.random.default_rng(8)
    planes = {
        "d": rng.uniform(0.1, 1, (2, 3)).astype(np.float32),
        "qs": rng.integers(-8, 8, (3, 5), np.int8),
        "z": rng.integers(-8, 8, (2, 3)).astype(np.int32),
    }
    layout = BlockAffineLayout((3, 5), planes, {"block_shape": [2, 2], "storage": "i4"})
    assert_affine(layout, planes["qs"], planes["d"], planes["z"], (2, 2))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("asymmetric", [True, False])
def test_packed_storage_of_blocks_along_any_axes(bits: int, signed: bool, asymmetric: bool) -> None:
    """A byte holds no more than its bits."""
    rng, storage = np.random.default_rng(bits), StorageType(bits, signed)
    q = rng.integers(storage.minimum, storage.maximum + 1, (4, 24)).astype(storage.dtype)
    scales = rng.uniform(0.1, 1, (2, 4)).astype(np.float32)
    z = rng.integers(storage.minimum, storage.maximum + 1, (2, 4)) if asymmetric else None
    layout = BlockAffineLayout.of(q, scales, z, [2, 7], storage)
    assert layout.is_packed == (bits != 8)
    assert sum(p.nbytes for n, p in layout.planes.items() if n[0] == "q") == q.size * bits // 8
    np.testing.assert_array_equal(layout.stored(), q)
    assert_affine(layout, q, scales, np.zeros((2, 4)) if z is None else z, (2, 7))


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
    assert {BLOCK_TYPES[name].layout.__name__ for name in BLOCK_TYPES} <= LAYOUTS.keys()
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
    scales = parameters.scales.reshape(len(stored), -1)
    repeated = BlockAffineLayout.of(stored, scales, None, (1, 32), parameters.storage)
    np.testing.assert_array_equal(repeated.dequant(), layout.dequant())
    expected = dequantize(stored, parameters)
    np.testing.assert_array_equal(dequantize(stored, repeated.parameters()), expected)


def test_offsets_in_units_of_the_reals_are_no_type() -> None:
    with pytest.raises(UsageError, match="is no quantized type"):
        tensor_of("Q4_1", random_blocks("Q4_1", 2)).unpack().parameters()  # type: ignore[attr-defined]


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
    assert same_bits(layout.dequant(), np.array([[0.5, -0.0, -0.5, -1]], np.float32))
    repeated = dequantize(layout.values().reshape((1, 4)), layout.parameters())
    assert same_bits(repeated.astype(np.float32), layout.dequant())


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
