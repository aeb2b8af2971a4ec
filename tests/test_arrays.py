"""Arrays on the command line: literals, .npy files, formatting and comparison."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from subquant.commands.arrays import difference, format_array, parse_input, read_npy, to_npy
from subquant.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32=1.5", np.float32(1.5)),
        ("4xf32=1,2,3,4", np.array([1, 2, 3, 4], np.float32)),
        ("2x2xf64=1 2 3 4", np.array([[1, 2], [3, 4]], np.float64)),
        ("2x2xi32=[1 2][3 4]", np.array([[1, 2], [3, 4]], np.int32)),
        ("2x3xi8=7", np.full((2, 3), 7, np.int8)),
        (" 1xi64=-9223372036854775808 ", np.array([-(1 << 63)], np.int64)),
        ("u64=18446744073709551615", np.uint64((1 << 64) - 1)),
        ("ui8=255", np.uint8(255)),
        ("si16=-1", np.int16(-1)),
        ("i8=0x7f", np.int8(127)),
        ("3xi4=-8,0,7", np.array([-8, 0, 7], np.int8)),
        ("u12=4095", np.uint16(4095)),
        ("i33=4294967296", np.int64(1 << 32)),
        ("2xi1=1,0", np.array([True, False])),
        ("2xbf16=1.5,-2", np.array([1.5, -2], ml_dtypes.bfloat16)),
        ("2xf16=inf,-0.0", np.array([np.inf, -0.0], np.float16)),
        ("0xf32=", np.zeros(0, np.float32)),
        ("2x0xi8=", np.zeros((2, 0), np.int8)),
    ],
)
def test_literal(text: str, expected: Any) -> None:
    got = parse_input(text)
    np.testing.assert_array_equal(got, np.asarray(expected), strict=True)
    assert got.flags.writeable


def test_literal_nan() -> None:
    assert np.isnan(parse_input("3xf32=nan,-nan,1")).tolist() == [True, True, False]


@pytest.mark.parametrize("text", ["f16=1e9", "f32=1e300", "f64=1e999", "bf16=1e300"])
def test_literal_beyond_its_type_is_infinite_without_a_warning(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isposinf(parse_input(text).astype(np.float64))


ELEMENTS = "expected one of: f32, f16, bf16, f64, i1, i4, i8, i16, i32, i64, ui8, ui16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got ''"),
        ("hello", "expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got 'hello'"),
        ("4x=1", "expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got '4x=1'"),
        ("?xf32=1", "expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got '?xf32=1'"),
        ("4xf32", "expected '=' and numbers after '4xf32'"),
        ("4xq8=1", "element type 'q8' in '4xq8=1' is not known; " + ELEMENTS),
        ("4xf8=1", "element type 'f8' in '4xf8=1' is not known; " + ELEMENTS),
        ("4xi65=1", "element type 'i65' in '4xi65=1' is not known; did you mean 'i64' or 'i16'?"),
        ("4xf32=a", "expected numbers of type f32 in '4xf32=a'"),
        ("4xi32=1.5", "expected numbers of type i32 in '4xi32=1.5'"),
        ("4xf32=1,2,3", "expected 4 numbers (or one for all), got 3 in '4xf32=1,2,3'"),
        ("4xf32=", "expected 4 numbers (or one for all), got 0 in '4xf32='"),
        ("f32=1,2", "expected 1 numbers (or one for all), got 2 in 'f32=1,2'"),
        ("2xi8=1,128", "128 does not fit i8 in '2xi8=1,128'"),
        ("u8=-1", "-1 does not fit u8 in 'u8=-1'"),
        (f"i64={1 << 63}", f"{1 << 63} does not fit i64 in 'i64={1 << 63}'"),
    ],
)
def test_invalid_literal(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert caught.value.message == message
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "dims", ["1000000000000000", "99999999999x99999999999", "99999999999999999999999"]
)
def test_literal_beyond_memory(dims: str) -> None:
    with pytest.raises(UsageError, match=r"^error: \d+ elements of type f32 do not fit in memory$"):
        parse_input(f"{dims}xf32=1")
    with pytest.raises(UsageError, match=r"expected \d+ numbers \(or one for all\), got 0"):
        parse_input(f"{dims}xf32=")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.float64(0.1),
        np.zeros((0, 4), np.float16),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.array([True, False]),
        np.array([1.5, np.inf], ml_dtypes.bfloat16),
    ],
    ids=str,
)
def test_npy_keeps_an_array(array: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(to_npy(np.asarray(array)))
    got = parse_input(f"@{path}")
    assert got.dtype == np.asarray(array).dtype
    np.testing.assert_array_equal(got.astype(np.float64), np.asarray(array).astype(np.float64))
    assert got.shape == np.asarray(array).shape


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.npy", "No such file or directory"), ("", "Is a directory, expected a file")],
)
def test_npy_that_is_no_file(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        read_npy(path)
    assert caught.value.message == f"cannot read '{path}': {message}"
    assert caught.value.exit_status == 1


@pytest.mark.parametrize("kind", ["empty", "text", "archive", "pickle"])
def test_invalid_npy(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    if kind == "archive":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(3))
    else:
        path.write_bytes({"empty": b"", "text": b"module {}\n", "pickle": b"\x80\x04N."}[kind])
    with pytest.raises(InputError) as caught:
        read_npy(path)
    assert caught.value.message == (
        f"cannot read '{path}': not a .npy file (one array); write it with numpy.save"
    )


def test_truncated_npy_and_npy_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    whole = to_npy(np.arange(4))
    for length in (7, 9, 60, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cannot read '.*x\.npy': "):
            read_npy(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="an array of Python objects, expected numbers"):
        read_npy(path)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.float32(0.1), "f32=0.1"),
        (np.array([1.0, -0.5], np.float32), "2xf32=1 -0.5"),
        (np.array([[1, 2], [3, 4]], np.int8), "2x2xi8=[1 2][3 4]"),
        (np.array([[[1], [2]]], np.uint8), "1x2x1xu8=[[1][2]]"),
        (np.array([True, False]), "2xi1=1 0"),
        (np.array([0.1], np.float16), "1xf16=0.1"),
        (np.array([0.1], ml_dtypes.bfloat16), "1xbf16=0.100097656"),
        (np.array([0.1], np.float64), "1xf64=0.1"),
        (np.array([1e30, 1e-30, 0.0], np.float32), "3xf32=1e+30 1e-30 0"),
        (np.array([np.nan, np.inf, -np.inf], np.float32), "3xf32=nan inf -inf"),
        (np.zeros(0, np.int32), "0xi32="),
    ],
)
def test_format(array: Any, expected: str) -> None:
    assert format_array(np.asarray(array)) == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_format_reads_back(dtype: Any) -> None:
    values = np.array([[1 / 3, 1e-3], [12345.0, -7e-7]], np.float64).astype(dtype)
    np.testing.assert_array_equal(parse_input(format_array(values)), values, strict=True)


def test_format_is_truncated() -> None:
    assert format_array(np.arange(5, dtype=np.int8), limit=3) == "5xi8=0 1 2 ..."
    assert format_array(np.zeros((3, 2), np.int8), limit=3) == "3x2xi8=[0 0][0 ...][...]"


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_equal_arrays_do_not_differ() -> None:
    assert difference(f32(1, np.nan, np.inf), f32(1, np.nan, np.inf)) is None
    assert difference(np.int8([1, 2]), np.int8([1, 2])) is None
    assert difference(f32(), f32()) is None
    assert difference(np.float32(2), np.float32(2)) is None


def test_any_nan_equals_any_nan() -> None:
    quiet, other = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert difference(f32(quiet), np.array([other])) is None
    assert difference(f32(quiet), np.array([other]), atol=1.0) is None


def test_the_first_difference_is_named() -> None:
    got = difference(np.int8([[1, 2], [3, 4]]), np.int8([[1, 2], [5, 6]]))
    assert got == "2 of 4 elements differ, the first at [1, 0]: expected 5, got 3"
    assert difference(np.float32(1), np.float32(2)) == (
        "1 of 1 elements differ, the first at []: expected 2.0, got 1.0"
    )


def test_shape_and_dtype_must_be_the_same() -> None:
    assert difference(f32(1), f32(1, 1)) == ("expected shape (2,) of float32, got (1,) of float32")
    assert difference(f32(1), np.array([1.0])) == (
        "expected shape (1,) of float64, got (1,) of float32"
    )


def test_without_a_tolerance_bits_must_be_equal() -> None:
    assert difference(f32(0.0), f32(-0.0)) is not None
    assert difference(f32(1), np.nextafter(f32(1), f32(2))) is not None
    one = np.array([1], ml_dtypes.bfloat16)
    assert difference(one, one) is None
    assert difference(one, one + one) is not None
    strided = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]
    assert difference(strided, strided.copy()) is None


def test_tolerances() -> None:
    assert difference(f32(1.0), f32(1.5), atol=0.5) is None
    assert difference(f32(1.0), f32(1.5), atol=0.25) is not None
    assert difference(f32(90), f32(100), rtol=0.125) is None
    assert difference(f32(80), f32(100), rtol=0.125) is not None
    assert difference(f32(0.0), f32(-0.0), atol=1e-9) is None


def test_special_values_have_no_tolerance() -> None:
    assert difference(f32(np.nan), f32(1), atol=1e9) is not None
    assert difference(f32(np.inf), f32(-np.inf), atol=1e9) is not None
    assert difference(f32(np.inf), f32(1), rtol=1e9) is not None
    assert difference(f32(np.nan, np.inf), f32(np.nan, np.inf), atol=1e-9) is None


def test_integers_have_no_tolerance() -> None:
    assert difference(np.int8([1]), np.int8([2]), atol=5, rtol=5) is not None
