"""Quantized types and dense attributes to NumPy and back, over every storage width.

Three trips must end where they began: parameters to type to parameters, text to type to text, and
array to dense attribute to array. Attributes of more than 100 elements are printed as hexadecimal,
splats as one element; both are read from text for the widths that the bindings give no buffer for.
"""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.dense import array_of_dense, dense_of_array
from subquant.dialects.quant import (
    element_type,
    is_quantized,
    parameters_of,
    raw_scales,
    storage_of_any,
    type_of,
)
from subquant.errors import UnsupportedError
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

STORAGES = [
    *(StorageType(width) for width in (2, 3, 4, 5, 8, 12, 16, 24, 31, 32)),
    *(StorageType(width, False) for width in (2, 4, 8, 16, 31, 32)),
    StorageType(4, True, -7, 7),
    StorageType(8, True, -127, 127),
    StorageType(8, False, 1, 200),
    StorageType(16, True, 100, 3000),
    StorageType(32, True, -(2**31) + 1, 2**31 - 1),
    StorageType(32, False, 5, 2**32 - 2),
]
GRIDS = {
    "per-tensor": ((), (), ()),
    "per-axis": ((1,), (1,), (6,)),
    "per-axis-large": ((0,), (1,), (130,)),
    "sub-channel": ((0, 1), (1, 2), (3, 2)),
    "sub-channel-collapsed": ((3, 1), (2, 2), (2, 2)),
    "sub-channel-one-block": ((), (), (1, 1)),
    "sub-channel-scalar-axis": ((0,), (4,), (1,)),
    "sub-channel-large": ((2, 0), (3, 2), (11, 1, 13)),
}
GRANULARITIES = ("per-tensor", "per-axis", "sub-channel")


@pytest.fixture(autouse=True, scope="module")
def context():
    with create_context() as context, ir.Location.unknown():
        yield context


def granularity(grid):
    return next(name for name in GRANULARITIES if grid.startswith(name))


def random_parameters(storage, expressed, grid, splat=False):
    axes, blocks, shape = GRIDS[grid]
    rng = np.random.default_rng(storage.width)
    scales = rng.uniform(2**-8, 8, shape)
    zero_points = rng.integers(storage.minimum, storage.maximum, shape, endpoint=True)
    if splat:
        scales, zero_points = np.full(shape, 0.375), np.full(shape, storage.maximum)
    elif shape:  # both ends of the range, so that the highest unsigned value is there
        zero_points.flat[0], zero_points.flat[-1] = storage.minimum, storage.maximum
    kind = granularity(grid)
    return QuantizationParameters(storage, expressed, axes, blocks, scales, zero_points, kind)


# -- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("expressed", ExpressedType)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_parameters_to_type_and_back(storage, expressed, grid):
    for splat in (False, True):
        parameters = random_parameters(storage, expressed, grid, splat)
        type_ = type_of(parameters)
        assert parameters_of(type_) == parameters
        assert type_of(parameters_of(type_)) == type_
        assert parameters_of(ir.RankedTensorType.get([4, 4], type_)) == parameters
        assert np.array_equal(raw_scales(type_), parameters.scales.astype(np.float64))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_type_to_text_and_back(storage, grid):
    """The text keeps six digits of a scale, so the scales here are powers of two."""
    original = random_parameters(storage, ExpressedType.F32, grid)
    scales = 2.0 ** np.round(np.log2(original.scales)).clip(-4, 4)
    parameters = dataclasses.replace(original, scales=scales)
    text = str(type_of(parameters))
    assert text.startswith(f"!quant.uniform<{storage}:f32")
    assert parameters_of(ir.Type.parse(text)) == parameters


I4, U8, I8 = StorageType(4), StorageType(8, False), StorageType(8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i4:f32, 0.5", (I4, "f32", (), (), 0.5, 0)),
        ("i4<-7:7>:f16, 0.5:-3", (StorageType(4, True, -7, 7), "f16", (), (), 0.5, -3)),
        ("u8:bf16, 2.0:200", (U8, "bf16", (), (), 2.0, 200)),
        ("u32:f64, 1.0:4294967295", (StorageType(32, False), "f64", (), (), 1.0, 4294967295)),
        ("i8:f32:1, {1.0:3, 2.0}", (I8, "f32", (1,), (1,), [1.0, 2.0], [3, 0])),
        ("u8:f32:0, {1.0:255, 2.0}", (U8, "f32", (0,), (1,), [1.0, 2.0], [255, 0])),
        ("u8:f32:{0:4}, {1.0:255, 2.0}", (U8, "f32", (0,), (4,), [1.0, 2.0], [255, 0])),
        ("u8:f32:{0:4}, {1.0:-1, 2.0}", (U8, "f32", (0,), (4,), [1.0, 2.0], [255, 0])),
        ("i8:f32:{1:2,0:1}, {{1.0:3,2.0}}", (I8, "f32", (1, 0), (2, 1), [[1.0, 2.0]], [[3, 0]])),
        ("i8:f32:{}, {{{0.5:9}}}", (I8, "f32", (), (), [[[0.5]]], [[[9]]])),
        ("si8:f32:{0:4}, {1.0:-5, 2.0}", (I8, "f32", (0,), (4,), [1.0, 2.0], [-5, 0])),
        ("ui8:f32:{0:4}, {1.0:255, 2.0}", (U8, "f32", (0,), (4,), [1.0, 2.0], [255, 0])),
    ],
)
def test_text_to_parameters(text, expected):
    storage, expressed, axes, blocks, scales, zero_points = expected
    parameters = parameters_of(ir.Type.parse(f"!quant.uniform<{text}>"))
    kind = "sub-channel" if "{" in text.split(",")[0] else None
    arrays = np.array(scales), np.array(zero_points)
    assert parameters == QuantizationParameters(
        storage, ExpressedType(expressed), axes, blocks, *arrays, kind
    )


def test_the_rfc_cases_as_text():
    ranked = "!quant.uniform<i8<-128:127>:f32:{1:2, 3:2}, {{{1.0:1, 2.0:2}},{{3.0:3, 4.0:4}}}>"
    parameters = parameters_of(ir.Type.parse(ranked))
    assert parameters.scales.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert parameters.full_grid_shape(4) == (1, 2, 1, 2)
    unranked = "!quant.uniform<i8<-128:127>:f32:{1:2, 3:2}, {{1.0:1, 2.0:2}, {3.0:3, 4.0:4}}>"
    parameters = parameters_of(ir.Type.parse(f"tensor<*x{unranked}>"))
    assert parameters.zero_points.tolist() == [[1, 2], [3, 4]]
    assert (parameters.axes, parameters.block_sizes) == ((1, 3), (2, 2))


def test_what_is_not_quantized():
    for text in ("f32", "tensor<4xi8>", "tensor<*xf16>", "index"):
        type_ = ir.Type.parse(text)
        assert parameters_of(type_) is None
        assert not is_quantized(type_)
    quantized = ir.Type.parse("tensor<4x!quant.uniform<i8:f32, 1.0>>")
    assert is_quantized(quantized)
    assert is_quantized(element_type(quantized))


NOT_UNIFORM = "quantized type must have uniform parameters, got '{}'; expected !quant.uniform<...>"
NO_INTEGER = "quantized storage type must be an integer of 2 to 32 bits, got '{}'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!quant.any<i8:f32>", NOT_UNIFORM.format("!quant.any<i8:f32>")),
        (
            "!quant.calibrated<f32<-1.0:1.0>>",
            NOT_UNIFORM.format("!quant.calibrated<f32<-1.000000e+00:1.000000e+00>>"),
        ),
        (
            "!quant.uniform<f8E4M3FN:f32, 1.0>",
            NO_INTEGER.format("f8E4M3FN") + "; write for example i4, u4 or i8",
        ),
        ("!quant.uniform<i1:f32, 1.0>", NO_INTEGER.format("i1")),
        (
            "!quant.uniform<i8:f8E5M2, 1.0>",
            "expressed type must be f16, bf16, f32 or f64, got 'f8E5M2'",
        ),
        (
            f"!quant.uniform<i8:f32:{{0:2}}, {'{' * 33}1.0{'}' * 33}>",
            "scales of a quantized type have rank 33; expected at most 32",
        ),
    ],
)
def test_types_without_parameters(text, message):
    with pytest.raises(UnsupportedError) as caught:
        parameters_of(ir.Type.parse(text))
    assert caught.value.message == message


def test_storage_of_any():
    read = storage_of_any(ir.Type.parse("!quant.any<i4<-8:6>:f16>"))
    assert read == (StorageType(4, True, -8, 6), ExpressedType.F16)
    read = storage_of_any(ir.Type.parse("!quant.any<u32:f64>"))
    assert read == (StorageType(32, False), ExpressedType.F64)
    assert storage_of_any(ir.Type.parse("!quant.uniform<i8:f32, 1.0>")) is None
    for text in ("!quant.any<i8>", "!quant.any<i8<-8:7>>"):  # its expressed type is a null pointer
        with pytest.raises(UnsupportedError) as caught:
            storage_of_any(ir.Type.parse(text))
        assert caught.value.message == (
            f"quantized type must name an expressed type, got '{text}'; "
            "write for example !quant.any<i8:f32>"
        )


# -- dense attributes -----------------------------------------------------------------------------

SHAPES = [(), (1,), (7,), (3, 4), (11, 13), (2, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("width", range(2, 33))
def test_integers_to_dense_and_back(width, shape):
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    array = np.random.default_rng(width).integers(low, high, shape, endpoint=True)
    if array.size > 1:
        array.flat[:2] = low, high
    element = ir.IntegerType.get_signless(width)
    attribute = dense_of_array(array, element)
    assert str(attribute.type) == f"tensor<{''.join(f'{n}x' for n in shape)}i{width}>"
    repeated = array_of_dense(attribute)
    assert repeated.dtype == np.int64
    assert repeated.shape == shape
    np.testing.assert_array_equal(repeated, array)
    np.testing.assert_array_equal(array_of_dense(ir.Attribute.parse(str(attribute))), array)
    # Unsigned values keep their bits.
    assert dense_of_array(array & ((1 << width) - 1), element) == attribute


@pytest.mark.parametrize("value", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (200,), (12, 12)], ids=str)
@pytest.mark.parametrize("width", [2, 4, 8, 12, 16, 24, 31, 32])
def test_integer_splats(width, shape, value):
    attribute = dense_of_array(np.full(shape, value), ir.IntegerType.get_signless(width))
    assert attribute.is_splat
    np.testing.assert_array_equal(array_of_dense(attribute), np.full(shape, value))
    assert array_of_dense(attribute).shape == shape


SPECIAL = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, 6e-8, 3e38]


@pytest.mark.parametrize("count", [1, 10, 150])
@pytest.mark.parametrize("expressed", ExpressedType)
def test_floats_to_dense_and_back(expressed, count):
    with np.errstate(over="ignore"):
        values = np.resize(np.array(SPECIAL), count).astype(expressed.dtype)
        values[len(SPECIAL) :] = np.random.default_rng(3).normal(size=count)[len(SPECIAL) :]
    attribute = dense_of_array(values, ir.Type.parse(expressed.value))
    for read in (attribute, ir.Attribute.parse(str(attribute))):
        repeated = array_of_dense(read)
        assert repeated.dtype == expressed.dtype
        assert repeated.shape == (count,)
        np.testing.assert_array_equal(repeated.astype(np.float64), values.astype(np.float64))
        np.testing.assert_array_equal(np.signbit(repeated), np.signbit(values))


def test_every_finite_bfloat16_survives():
    values = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    values = values[np.isfinite(values.astype(np.float32))]
    repeated = array_of_dense(dense_of_array(values, ir.BF16Type.get()))
    np.testing.assert_array_equal(repeated.view(np.uint16), values.view(np.uint16))
    few = values[::797]  # fewer than 100: printed as decimals
    assert few.size < 100
    repeated = array_of_dense(dense_of_array(few, ir.BF16Type.get()))
    np.testing.assert_array_equal(repeated.view(np.uint16), few.view(np.uint16))


@pytest.mark.parametrize("value", [0.375, -0.0, np.inf, np.nan, 1e-40])
@pytest.mark.parametrize("expressed", ExpressedType)
def test_float_splats(expressed, value):
    values = np.full((130,), value).astype(expressed.dtype)
    repeated = array_of_dense(dense_of_array(values, ir.Type.parse(expressed.value)))
    np.testing.assert_array_equal(repeated.astype(np.float64), values.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(repeated), np.signbit(values))


def test_zeros_of_both_signs_are_not_a_splat():
    values = np.array([0.0, -0.0], np.float32)
    repeated = array_of_dense(dense_of_array(values, ir.F32Type.get()))
    assert np.signbit(repeated).tolist() == [False, True]


@pytest.mark.parametrize("element", ["i8", "i4", "f32", "bf16"])
def test_an_empty_array(element):
    assert array_of_dense(dense_of_array(np.empty((0, 3)), ir.Type.parse(element))).shape == (0, 3)


def test_si_and_ui_elements():
    for text in ("dense<[-56, 7]> : tensor<2xsi8>", "dense<[-5, 7]> : tensor<2xsi4>"):
        assert array_of_dense(ir.Attribute.parse(text)).tolist() == [int(text[7:].split(",")[0]), 7]
    # Unsigned elements come back as the signed number of the same bits.
    assert array_of_dense(ir.Attribute.parse("dense<[15, 7]> : tensor<2xui4>")).tolist() == [-1, 7]
