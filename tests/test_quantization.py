"""The NumPy reference against exact rational arithmetic and loops over the elements.

Rational arithmetic with a rounding function of our own shares nothing with NumPy: it says what
each operation must round to, to the last bit, in f16, bf16, f32 and f64. Which block an element is
in is computed with plain loops.
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import casts, elementwise
from subquant.numerics.casts import Cast, dequantize, dequantize_blocks, quantize, quantize_blocks
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

F16, BF16, F32, F64 = ExpressedType
I8, U8, I32, U32 = StorageType(8), StorageType(8, False), StorageType(32), StorageType(32, False)
PROPERTY = settings(max_examples=120, deadline=None, derandomize=True, database=None)

# -- exact arithmetic -----------------------------------------------------------------------------

FORMATS = {F16: (11, -14, 15), BF16: (8, -126, 127), F32: (24, -126, 127), F64: (53, -1022, 1023)}
"""Bits of precision, least and greatest exponent."""


def rounded(value, expressed):
    """Round a Fraction (or an infinity or NaN, as a float) to nearest even in a format."""
    if isinstance(value, float):
        return value
    precision, least, greatest = FORMATS[expressed]
    if value == 0:
        return Fraction(0)
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    result = round(value / unit) * unit  # Python rounds a Fraction half to even
    if abs(result) >= Fraction(2) ** (greatest + 1):
        return math.copysign(math.inf, value)
    return result


def rounded_as_computed(value, expressed):
    """Round as the contract says: f16 and bf16 are computed in f32 and rounded once more."""
    compute = F64 if expressed is F64 else F32
    return rounded(rounded(value, compute), expressed)


def exact(value):
    value = float(value)
    return Fraction(value) if math.isfinite(value) else value


def exact_sum(left, right):
    if not (isinstance(left, float) or isinstance(right, float)):
        return left + right
    finite_as_zero = [v if isinstance(v, float) else 0.0 for v in (left, right)]
    return sum(finite_as_zero)


def exact_quantize(value, scale, zero_point, storage, expressed, rounding):
    real = exact(value)
    quotient = real if isinstance(real, float) else real / exact(scale)
    quotient = rounded_as_computed(quotient, expressed)
    zero = rounded_as_computed(Fraction(int(zero_point)), expressed)
    total = rounded_as_computed(exact_sum(quotient, zero), expressed)
    if isinstance(total, float):
        if math.isnan(total):
            total = 0
        else:
            return storage.maximum if total > 0 else storage.minimum
    integral = round(total) if rounding == "nearest-even" else math.trunc(total)
    return min(max(integral, storage.minimum), storage.maximum)


def exact_dequantize(stored, scale, zero_point, expressed):
    difference = rounded_as_computed(Fraction(int(stored) - int(zero_point)), expressed)
    product = difference if isinstance(difference, float) else difference * exact(scale)
    return rounded_as_computed(product, expressed)


# -- random cases ---------------------------------------------------------------------------------

CASTS = casts(widths=range(2, 33))
SEEDS = st.integers(0, 2**32)


@PROPERTY
@given(CASTS, SEEDS, st.sampled_from(["nearest-even", "toward-zero"]))
def test_quantize_rounds_every_operation_exactly(cast, seed, rounding):
    parameters = cast.parameters
    scale, zero = elementwise(cast)
    values = cast.reals(np.random.default_rng(seed))
    result = quantize(values, parameters, rounding)
    assert result.dtype == parameters.storage.dtype
    assert result.shape == cast.shape
    for index in np.ndindex(*cast.shape):
        of_element = values[index], scale[index], zero[index]
        expected = exact_quantize(*of_element, parameters.storage, parameters.expressed, rounding)
        assert int(result[index]) == expected, (index, of_element)


@PROPERTY
@given(CASTS, SEEDS)
def test_dequantize_rounds_every_operation_exactly(cast, seed):
    scale, zero = elementwise(cast)
    stored = cast.stored(np.random.default_rng(seed))
    result = dequantize(stored, cast.parameters)
    assert result.dtype == cast.parameters.expressed.dtype
    assert result.shape == cast.shape
    for index in np.ndindex(*cast.shape):
        of_element = stored[index], scale[index], zero[index]
        expected = exact_dequantize(*of_element, cast.parameters.expressed)
        assert exact(result[index]) == expected, (index, of_element)


@PROPERTY
@given(CASTS, SEEDS)
def test_quantize_undoes_dequantize_in_f64(cast, seed):
    parameters = cast.parameters
    exact_enough = replace(parameters, expressed=F64, scales=parameters.scales.astype(np.float64))
    stored = cast.stored(np.random.default_rng(seed))
    np.testing.assert_array_equal(quantize(dequantize(stored, exact_enough), exact_enough), stored)


# -- the corners, each written out ----------------------------------------------------------------


def quantize_one(value, storage, expressed=F32, scale=1.0, zero_point=0, rounding="nearest-even"):
    parameters = QuantizationParameters(storage, expressed, scales=scale, zero_points=zero_point)
    return int(quantize(value, parameters, rounding))


@pytest.mark.parametrize("expressed", ExpressedType)
@pytest.mark.parametrize(
    ("value", "storage", "zero_point", "expected"),
    [
        (np.nan, I8, 0, 0),
        (np.nan, I8, 7, 0),  # NaN ignores the zero point
        (np.nan, StorageType(8, True, 5, 100), 7, 5),  # 0 is clamped to the range
        (np.nan, StorageType(8, True, -100, -5), -7, -5),
        (np.inf, I8, 0, 127),
        (-np.inf, I8, 0, -128),
        (np.inf, U8, 3, 255),
        (-np.inf, StorageType(4, True, -7, 7), 0, -7),
        (-0.0, I8, 0, 0),
        (-0.0, U8, 200, 200),
    ],
)
def test_special_values(expressed, value, storage, zero_point, expected):
    assert quantize_one(value, storage, expressed, zero_point=zero_point) == expected


@pytest.mark.parametrize("expressed", ExpressedType)
def test_subnormal_values_are_not_flushed(expressed):
    tiny = expressed.smallest_normal / 4
    assert quantize_one(tiny * 3, I8, expressed, scale=tiny) == 3
    assert float(dequantize(3, QuantizationParameters(I8, expressed, scales=tiny))) == tiny * 3 > 0


@pytest.mark.parametrize(
    ("value", "zero_point", "nearest", "truncated"),
    [
        (0.5, 0, 0, 0),
        (1.5, 0, 2, 1),
        (2.5, 0, 2, 2),
        (-0.5, 0, 0, 0),
        (-1.5, 0, -2, -1),
        (0.5, 1, 2, 1),  # rounding first would give 1
        (-0.5, 1, 0, 0),
        (2.5, 3, 6, 5),  # rounding first would give 5
        (-2.5, 1, -2, -1),
    ],
)
def test_ties_are_decided_after_the_zero_point_is_added(value, zero_point, nearest, truncated):
    assert quantize_one(value, I8, zero_point=zero_point) == nearest
    assert quantize_one(value, I8, zero_point=zero_point, rounding="toward-zero") == truncated


@pytest.mark.parametrize(
    ("value", "storage", "expected"),
    [
        (2147483648.0, I32, 2147483647),  # f32 has no 2147483647: saturate before converting
        (2147483520.0, I32, 2147483520),
        (-2147483648.0, I32, -2147483648),
        (-3e9, I32, -2147483648),
        (4294967296.0, U32, 4294967295),
        (4294967040.0, U32, 4294967040),
        (-1.0, U32, 0),
        (3e38, U32, 4294967295),
        (3e9, StorageType(31), 1073741823),
        (3e9, StorageType(31, False), 2147483647),
    ],
)
def test_saturation_of_wide_storage_in_f32(value, storage, expected):
    assert quantize_one(value, storage) == expected


def test_the_zero_point_is_rounded_to_the_expressed_type():
    assert quantize_one(0.0, StorageType(16), F16, zero_point=2049) == 2048
    assert quantize_one(0.0, StorageType(16), BF16, zero_point=257) == 256
    assert quantize_one(0.0, I32, F32, zero_point=16777217) == 16777216
    assert quantize_one(0.0, I32, F64, zero_point=16777217) == 16777217
    # 2**31 overflows f16: an infinite zero point saturates.
    assert quantize_one(0.0, U32, F16, zero_point=2**31) == 4294967295


def test_dequantize_subtracts_exactly():
    parameters = QuantizationParameters(I32, F64, zero_points=-(2**31))
    assert float(dequantize(2**31 - 1, parameters)) == 2.0**32 - 1
    parameters = QuantizationParameters(U8, F32, scales=0.5, zero_points=255)
    assert float(dequantize(np.uint8(0), parameters)) == -127.5


def test_division_is_not_a_multiplication_by_the_reciprocal():
    # 10.5 / 7 is exactly 1.5, and with the zero point 1 a tie; 10.5 * f32(1 / 7) lies above it.
    assert np.float32(10.5) * (np.float32(1) / np.float32(7)) > 1.5
    assert quantize_one(10.5, I8, scale=7.0, zero_point=1) == 2


@pytest.mark.parametrize("expressed", [F16, BF16, F32])
def test_the_exact_division_is_the_division(expressed):
    """Quotients of 2**23 and more are integers, of which i32 storage shows every bit."""
    rng = np.random.default_rng(7)
    bits = np.concatenate([rng.integers(0, 1 << 32, 4000), np.arange(0x4A000000, 0x4A000400)])
    values = bits.astype(np.uint32).view(np.float32)
    scales = np.exp2(rng.uniform(-3, 3, values.size)).astype(np.float32)
    scales[::5] = float(expressed.smallest_normal)  # quotients beyond the range
    with np.errstate(all="ignore"):
        large = (scales * np.exp2(rng.uniform(23, 31, values.size))).astype(np.float32)
        reals = np.where(np.arange(values.size) % 2, values, large).astype(expressed.dtype)
        scales = scales.astype(expressed.dtype)
        for index in range(0, values.size, 7):  # quotients that are exact, and ties of storage
            reals[index] = scales[index] * expressed.dtype.type(index % 41 / 2)
        actual = Cast(I32, expressed, division="exact").quantize(reals, scales, 3)
    for index in range(0, values.size, 3):
        expected = exact_quantize(reals[index], scales[index], 3, I32, expressed, "nearest-even")
        assert int(actual[index]) == expected, (reals[index], scales[index])


def test_scales_of_a_narrower_type_are_widened():
    scales, values = np.array([0.1, 3.0], np.float16), np.array([1.0, 1.0, 2.0, 4.5], np.float32)
    result = quantize_blocks(values, scales, None, (2,), I8, F32)
    assert result.tolist() == [10, 10, 1, 2]  # 0.0999756 gives 10.002; 4.5 / 3 is a tie
    real = dequantize_blocks(result, scales, np.array([0, 1], np.int8), (2,), F32)
    assert real.tolist() == [10 * float(scales[0])] * 2 + [0.0, 3.0]
    assert real.dtype == np.float32


def test_an_empty_tensor_stays_empty():
    parameters = QuantizationParameters(I8, F32)
    assert quantize(np.empty((0, 4)), parameters).shape == (0, 4)
    assert dequantize(np.empty((3, 0), np.int8), parameters).shape == (3, 0)
