"""Block grids, identity, and refused parameters.

The expected shapes are written out by hand from the RFC's "Type Constraints" and its notes.
"""

import dataclasses

import numpy as np
import pytest

from subquant.errors import UsageError
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

I8, F32 = StorageType(8), ExpressedType.F32


def parameters(axes=(), blocks=(), scales_shape=(), **changes):
    return QuantizationParameters(I8, F32, axes, blocks, np.ones(scales_shape), **changes)


@pytest.mark.parametrize(
    ("axes", "blocks", "shape", "block_shape", "grid"),
    [
        ((), (), (), (), ()),
        ((), (), (3, 5), (3, 5), (1, 1)),
        ((1,), (1,), (3, 5), (3, 1), (1, 5)),
        ((0, 1), (1, 2), (6, 4), (1, 2), (6, 2)),
        ((1, 0), (2, 1), (6, 4), (1, 2), (6, 2)),  # the order in which axes are written
        ((1, 3), (2, 2), (6, 4, 6, 4), (6, 2, 6, 2), (1, 2, 1, 2)),
        ((1,), (2,), (4, 5), (4, 2), (1, 3)),  # ragged: ceil
        ((0,), (4,), (1, 2), (4, 2), (1, 1)),  # block larger than the dimension
        ((0,), (2,), (0,), (2,), (0,)),
    ],
)
def test_block_and_grid_shape(axes, blocks, shape, block_shape, grid):
    subject = parameters(axes, blocks, grid)
    assert subject.block_shape(shape) == block_shape
    assert subject.grid_shape(shape) == grid
    assert subject.min_rank == max(axes, default=-1) + 1
    assert [subject.block_size_of(a) for a in axes] == list(blocks)
    assert subject.block_size_of(9) is None


@pytest.mark.parametrize(
    ("axes", "written", "rank", "full"),
    [
        ((1, 3), (1, 2, 1, 2), 4, (1, 2, 1, 2)),
        ((1, 3), (2, 1, 2), 4, (1, 2, 1, 2)),  # RFC, Case 1 as written
        ((1, 3), (2, 2), 4, (1, 2, 1, 2)),  # RFC, Case 2: collapsed
        ((1, 3), (2, 2), 6, (1, 2, 1, 2, 1, 1)),
        ((1, 3), (2, 1, 2), 5, (1, 2, 1, 2, 1)),
        ((1, 3), (2, 2, 1), 4, None),  # no axis after 3
        ((1, 3), (2, 2), 3, None),  # less than the least rank
        ((1, 3), (2,), 4, None),
        ((1, 3), (2, 2, 1), 5, (1, 2, 1, 2, 1)),
        ((1, 3), (1, 2, 1), 5, (1, 1, 1, 2, 1)),  # ambiguous: the leading ones are left out
        ((0,), (3,), 3, (3, 1, 1)),
        ((2,), (3,), 3, (1, 1, 3)),
        ((0,), (3, 2), 2, None),  # axis 1 is not quantized
        ((0,), (3, 1, 1), 2, None),
        ((), (), 0, ()),
        ((), (), 3, (1, 1, 1)),
        ((), (1,), 3, (1, 1, 1)),
        ((), (1, 1, 1, 1), 2, (1, 1)),
        ((), (2,), 1, None),
    ],
)
def test_full_grid_shape(axes, written, rank, full):
    subject = parameters(axes, (2,) * len(axes), written, granularity="sub-channel")
    assert subject.full_grid_shape(rank) == full
    if full is None:
        with pytest.raises(UsageError, match=f"do not belong to a tensor of rank {rank}$"):
            subject.grids(rank)
    else:
        scales, zero_points = subject.grids(rank)
        assert scales.shape == zero_points.shape == full


@pytest.mark.parametrize(
    ("axes", "blocks", "scales", "granularity"),
    [
        ((), (), (), "per-tensor"),
        ((), (), (1, 1), "sub-channel"),
        ((2,), (1,), (4,), "per-axis"),
        ((2,), (1,), (1, 1, 4), "sub-channel"),
        ((0,), (2,), (4,), "sub-channel"),
        ((0, 1), (1, 1), (4, 3), "sub-channel"),
    ],
)
def test_granularity_is_the_simplest(axes, blocks, scales, granularity):
    assert parameters(axes, blocks, scales).granularity == granularity


def test_equality_and_hash():
    subject = parameters((0,), (2,), (3,))
    same = parameters([0], np.array([2]), (3,), zero_points=np.zeros(3, np.int8))
    assert subject == same
    assert hash(subject) == hash(same)
    assert len({subject, same}) == 1
    changes = [
        {"storage": StorageType(8, True, -127, 127)},
        {"storage": StorageType(8, False)},
        {"expressed": ExpressedType.F64},
        {"axes": (1,)},
        {"block_sizes": (3,)},
        {"scales": np.array([1.0, 1.0, 2.0])},
        {"scales": np.ones((3, 1)), "zero_points": np.zeros((3, 1))},
        {"zero_points": np.array([0, 0, 1])},
        {"granularity": "per-axis"},
    ]
    variants = [dataclasses.replace(subject, **change) for change in changes]
    assert len({subject, *variants}) == len(changes) + 1
    assert all(variant != subject for variant in variants)
    assert subject != "tensor"
    assert subject is not None
    # NaN is not equal to itself, but a type with a NaN scale is.
    first, second = (QuantizationParameters(I8, F32, scales=np.nan) for _ in range(2))
    assert first == second


def test_arrays_are_copied_and_frozen():
    scales, zero_points = np.ones(3), np.zeros(3, np.int64)
    subject = QuantizationParameters(I8, F32, (0,), (1,), scales, zero_points)
    scales[0], zero_points[0] = 9, 9
    for array, first in ((subject.scales, 1), (subject.zero_points, 0)):
        assert array[0] == first
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2


def test_scales_are_rounded_to_the_expressed_type():
    subject = QuantizationParameters(I8, ExpressedType.F16, scales=[0.1, 1e-9, 1e9])
    assert subject.scales.dtype == np.float16
    assert subject.scales.tolist() == [float(np.float16(0.1)), 0.0, np.inf]


@pytest.mark.parametrize(
    ("width", "signed", "low", "high", "dtype", "text"),
    [
        (2, True, -2, 1, "i1", "i2"),
        (4, False, 0, 15, "u1", "u4"),
        (8, True, -128, 127, "i1", "i8"),
        (9, False, 0, 511, "u2", "u9"),
        (17, True, -65536, 65535, "i4", "i17"),
        (32, True, -(2**31), 2**31 - 1, "i4", "i32"),
        (32, False, 0, 2**32 - 1, "u4", "u32"),
    ],
)
def test_storage_type(width, signed, low, high, dtype, text):
    storage = StorageType(width, signed)
    assert (storage.minimum, storage.maximum) == storage.type_range == (low, high)
    assert storage.dtype == np.dtype(dtype)
    assert storage.container_width == 8 * int(dtype[1])
    assert str(storage) == text
    assert not storage.is_narrowed
    narrow = StorageType(width, signed, low + 1, high)
    assert narrow.is_narrowed
    assert str(narrow) == f"{text}<{low + 1}:{high}>"
    assert narrow != storage
    assert StorageType(width, signed, low, high) == storage


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StorageType(1), "expected a storage type of 2 to 32 bits, got 1 bits"),
        (lambda: StorageType(33), "expected a storage type of 2 to 32 bits, got 33 bits"),
        (
            lambda: StorageType(4, True, -9, 7),
            "expected a storage range inside -8:7 with min < max, got <-9:7>",
        ),
        (
            lambda: StorageType(4, False, 3, 3),
            "expected a storage range inside 0:15 with min < max, got <3:3>",
        ),
        (
            lambda: parameters(zero_points=[1]),
            "expected scales and zero points of one shape, got () and (1,)",
        ),
        (
            lambda: parameters((0, 1), (2,), (3,)),
            "expected one block size for each axis, got axes (0, 1) and block sizes (2,)",
        ),
        (
            lambda: ExpressedType.of_dtype(np.int8),
            (
                "expected an expressed type among ('f16', 'bf16', 'f32', 'f64'), got "
                "<class 'numpy.int8'>"
            ),
        ),
        (
            lambda: quantize(np.ones(5), parameters((0,), (2,), (2,))),
            "a tensor of shape (5,) has (3,) blocks, got scales of shape (2,)",
        ),
        (
            lambda: dequantize(np.ones((2, 2), int), parameters((0,), (1,), (3,))),
            "a tensor of shape (2, 2) has (2, 1) blocks, got scales of shape (3, 1)",
        ),
        (
            lambda: quantize(np.ones(5), parameters((1,), (2,), (2,))),
            "scales of shape (2,) with quantized axes (1,) do not belong to a tensor of rank 1",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(UsageError) as caught:
        build()
    assert caught.value.message == message
    assert caught.value.exit_status == 2


def test_bits_per_element():
    symmetric = parameters((0,), (32,), (2,))
    assert symmetric.is_symmetric
    assert symmetric.bits_per_element((64,)) == 8 + 1
    assert symmetric.bits_per_element((64,), scale_bits=16) == 8.5
    shifted = parameters((0,), (32,), (2,), zero_points=[0, 1])
    assert not shifted.is_symmetric
    assert shifted.bits_per_element((64,)) == 8 + 1 + 0.25
    assert shifted.bits_per_element((64,), 16, 4) == 8 + 0.5 + 0.125
    assert symmetric.bits_per_element((0, 4)) == 8


def test_text():
    assert str(parameters((1, 0), (2, 4), (3, 3))) == "!quant.uniform<i8:f32:{1:2, 0:4}, {...}>"
    assert str(parameters((0,), (1,), (2,))) == "!quant.uniform<i8:f32:0, {...}>"
    assert str(parameters()) == "!quant.uniform<i8:f32, 1>"


def test_rfc_introduction():
    """A 6x4 tensor with {0:1, 1:2} has 6x2 scales."""
    parameters = QuantizationParameters(I8, F32, (0, 1), (1, 2), np.ones((6, 2)))
    assert parameters.grid_shape((6, 4)) == (6, 2)
    assert parameters.bits_per_element((6, 4)) == 8 + 32 / 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i4", StorageType(4)),
        ("u4", StorageType(4, signed=False)),
        ("i8<-127:127>", StorageType(8, True, -127, 127)),
        ("u8<1:254>", StorageType(8, False, 1, 254)),
    ],
)
def test_storage_types_are_read_as_they_are_written(text: str, expected: StorageType) -> None:
    assert StorageType.parse(text) == expected
    assert str(expected) == text
