"""Sorts by the merge sort kernel: the order of NumPy's stable sort."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from devices import main_of
from programs import lowered_text

Array = np.ndarray[Any, Any]
DTYPES = {
    "i8": np.int8, "ui8": np.uint8, "i16": np.int16, "ui16": np.uint16, "i32": np.int32,
    "ui32": np.uint32, "i64": np.int64, "ui64": np.uint64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


def sort_of(
    shape: tuple[int, ...], elements: list[str], body: str, axis: int, is_stable: bool = True
) -> str:
    """A sort of some tensors; `body` defines ``%r`` from ``%a0``, ``%b0``, ``%a1``, ..."""
    types = [f"tensor<{'x'.join(map(str, shape))}x{element}>" for element in elements]
    names = [f"%x{number}" for number in range(len(elements))]
    arguments = ", ".join(f"{n}: {type_}" for n, type_ in zip(names, types, strict=True))
    pairs = ", ".join(
        f"%{side}{number}: tensor<{element}>"
        for number, element in enumerate(elements)
        for side in "ab"
    )
    all_types, results = ", ".join(types), ", ".join(f"%s#{n}" for n in range(len(types)))
    return f"""
func.func @main({arguments}) -> ({all_types}) {{
  %s:{len(types)} = "stablehlo.sort"({", ".join(names)}) <{{
      dimension = {axis} : i64, is_stable = {str(is_stable).lower()}}}> ({{
  ^bb0({pairs}):
    {body}
    stablehlo.return %r : tensor<i1>
  }}) : ({all_types}) -> ({all_types})
  return {results} : {all_types}
}}"""


def compare(direction: str, element: str, kind: str, number: int = 0, result: str = "%r") -> str:
    type_ = f"tensor<{element}>"
    operands = f"%a{number}, %b{number}"
    return (
        f"{result} = stablehlo.compare {direction}, {operands}, {kind} : ({type_}, {type_}) -> "
        "tensor<i1>"
    )


def drawn(shape: tuple[int, ...], dtype: Any) -> Array:
    """Random numbers, many of them equal."""
    return np.random.default_rng(1).integers(0, 60, shape).astype(dtype)


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("length", [2, 3, 37, 1000])
@pytest.mark.share(12)
def test_elements_and_their_positions(length: int, element: str) -> None:
    kind = "FLOAT" if "f" in element else "UNSIGNED" if element.startswith("u") else "SIGNED"
    text = sort_of((3, length), [element, "i32"], compare("LT", element, kind), axis=1)
    assert "@merge_sort" in lowered_text(text)
    x = drawn((3, length), DTYPES[element])
    if element.startswith("u"):
        x = x + np.asarray(np.iinfo(x.dtype).max - 80, x.dtype)  # with the bit of a sign
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), x.shape).copy()
    values, order = main_of(text)(x, positions)
    expected = np.argsort(x.astype(np.float64 if "f" in element else x.dtype), 1, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.share(3)
def test_axes(axis: int) -> None:
    x = drawn((4, 5, 6), np.int32)
    text = sort_of(x.shape, ["i32"], compare("GT", "i32", "SIGNED"), axis)
    np.testing.assert_array_equal(main_of(text)(x), -np.sort(-x, axis))


def test_two_keys_behind_another_tensor() -> None:
    """The first tensor moves with the order of the two others."""
    body = "\n    ".join([
        compare("LT", "i32", "SIGNED", 1, "%l"), compare("EQ", "i32", "SIGNED", 1, "%e"),
        compare("GT", "f32", "FLOAT", 2, "%g"), "%t = stablehlo.and %e, %g : tensor<i1>",
        "%r = stablehlo.or %l, %t : tensor<i1>",
    ])  # fmt: skip
    text = sort_of((500,), ["i64", "i32", "f32"], body, axis=0, is_stable=False)
    assert "@merge_sort" in lowered_text(text)
    first, second = drawn((500,), np.int32), np.random.default_rng(3).random(500, np.float32)
    x = np.arange(500, dtype=np.int64)
    order = np.lexsort((-second, first))
    for actual, operand in zip(main_of(text)(x, first, second), (x, first, second), strict=True):
        np.testing.assert_array_equal(actual, operand[order])


def test_the_total_order_of_floats() -> None:
    x = np.array([1, np.nan, -np.inf, -0.0, 0.0, -np.nan, np.inf, -1], np.float32)
    text = sort_of(x.shape, ["f32"], compare("LT", "f32", "TOTALORDER"), axis=0)
    expected = [-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan]
    np.testing.assert_array_equal(
        main_of(text)(x).view(np.int32), np.array(expected, np.float32).view(np.int32)
    )


def test_every_element_stays_where_the_comparator_is_no_order() -> None:
    """NaN is neither less nor greater."""
    x = drawn((300,), np.float32)
    x[::3] = np.nan
    text = sort_of((300,), ["f32", "i32"], compare("LT", "f32", "FLOAT"), axis=0)
    _, order = main_of(text)(x, np.arange(300, dtype=np.int32))
    np.testing.assert_array_equal(np.sort(order), np.arange(300))


def test_rows_that_iree_refuses() -> None:
    """IREE has a row on the stack, of at most 32 KiB."""
    x = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    text = sort_of(x.shape, ["f32"], compare("LT", "f32", "FLOAT"), axis=0)
    np.testing.assert_array_equal(main_of(text)(x), np.sort(x))


def test_other_comparators_are_left_to_iree() -> None:
    body = (
        "%d = stablehlo.subtract %a0, %b0 : tensor<i32>\n    "
        "%z = stablehlo.constant dense<0> : tensor<i32>\n    "
        "%r = stablehlo.compare LT, %d, %z, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>"
    )
    x = drawn((40,), np.int32)
    text = sort_of(x.shape, ["i32"], body, axis=0)
    assert "@merge_sort" not in lowered_text(text)
    np.testing.assert_array_equal(main_of(text)(x), np.sort(x))
