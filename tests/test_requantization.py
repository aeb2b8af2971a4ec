"""The integer arithmetic of exact requantization, evaluated in NumPy, against exact fractions."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.mixins import NDArrayOperatorsMixin

from programs import examples
from subquant.numerics.array_functions import Symbolic
from subquant.numerics.element_types import BOOL, I32, ElementType
from subquant.numerics.parameters import StorageType
from subquant.numerics.requantization import Term, requantize


class Number(Symbolic, NDArrayOperatorsMixin):
    """Integers of one width, of any size in Python; fails where the device's would wrap."""

    def __init__(self, data: Any, element: ElementType) -> None:
        self.data = np.asarray(data, object)
        self.element = element
        if element.is_integer:
            low, high = -(1 << (element.bits - 1)), (1 << (element.bits - 1)) - 1
            flat = self.data.reshape(-1)
            assert all(low <= int(v) <= high for v in flat), f"wraps {element}"

    def convert(self, element: ElementType) -> Number:
        return Number(self.data, element)

    def bits_of(self, element: ElementType) -> Number:
        raise AssertionError("no formula of integers reads their bits as another type")

    def _numbers(self, value: Any) -> Any:
        if not isinstance(value, Number):
            return np.asarray(value).astype(object)
        assert value.element in (self.element, BOOL), "operands of two widths"
        return value.data

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Number:
        first = max((i for i in inputs if isinstance(i, Number)), key=lambda i: i.element.bits)
        name = ufunc.__name__
        operation = {"maximum": max, "minimum": min}.get(name) or getattr(
            operator, NAMES.get(name, name)
        )
        values = [first._numbers(value) for value in inputs]
        data = np.frompyfunc(lambda *args: int(operation(*map(int, args))), len(values), 1)(*values)
        is_truth = name in COMPARISONS or first.element == BOOL
        return Number(data & 1 if is_truth else data, BOOL if is_truth else first.element)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Number:
        assert function is np.zeros_like
        return Number(0, self.element)


COMPARISONS = {"equal": "eq", "greater_equal": "ge", "less_equal": "le"}
NAMES = COMPARISONS | {
    "bitwise_and": "and_", "left_shift": "lshift", "multiply": "mul", "negative": "neg",
    "right_shift": "rshift",
}  # fmt: skip


def expected(
    terms: list[tuple[list[int], Fraction]],
    zero_point: int,
    storage: StorageType,
    is_last: bool = False,
) -> tuple[list[int], list[Fraction]]:
    """The exact results, and the distance of each sum from the nearest tie.

    `is_last`: the zero point is added after rounding.
    """
    results, distances = [], []
    for numbers in zip(*(values for values, _ in terms), strict=True):
        exact = sum((d * m for d, (_, m) in zip(numbers, terms, strict=True)), Fraction(0))
        # Fraction rounds half to even.
        rounded = round(exact) + zero_point if is_last else round(exact + zero_point)
        results.append(min(max(rounded, storage.minimum), storage.maximum))
        position = exact - math.floor(exact)
        distances.append(abs(position - Fraction(1, 2)))
    return results, distances


def saturated(
    terms: list[Term], zero_point: int | np.ndarray, storage: StorageType, is_last: bool = False
) -> np.ndarray:
    points = np.array(zero_point)
    rounded = requantize(terms, points, storage, zero_points_after_rounding=is_last)
    return np.clip(rounded.value.data, storage.minimum, storage.maximum)


def check(
    terms: list[tuple[list[int], int, Fraction]],
    zero_point: int,
    storage: StorageType,
    width: int,
    is_last: bool = False,
) -> None:
    element = ElementType.parse(f"i{width}")
    numbers = [
        Term(Number(values, element), bound, np.array(multiplier, object))
        for values, bound, multiplier in terms
    ]
    plain = [(values, multiplier) for values, _, multiplier in terms]
    results, distances = expected(plain, zero_point, storage, is_last)
    actual = np.broadcast_to(saturated(numbers, zero_point, storage, is_last), len(results))
    for position, (got, want) in enumerate(zip(actual, results, strict=True)):
        # A value within 2**-20 of a tie counts as a tie: half of them round the other way.
        if got != want:
            tie = Fraction(1, 1 << 20) * Fraction(101, 100)
            assert 0 < distances[position] < tie, (position, terms)
            assert abs(int(got) - want) == 1


def real(mantissa: int, exponent: int) -> Fraction:
    return Fraction(mantissa) * Fraction(2) ** exponent


scales = st.builds(real, st.integers(1 << 23, (1 << 24) - 1), st.integers(-40, -10))
simple = st.sampled_from([Fraction(n, d) for n in (1, 2, 3, 5, 10) for d in (1, 2, 3, 6, 7, 20)])
ratios = st.builds(lambda a, b: a / b, scales, scales)
multipliers = st.one_of(simple, ratios, st.builds(lambda a, b: a * b, simple, ratios))
STORAGES = [
    *(StorageType(width, signed) for width in (4, 8, 16, 32) for signed in (True, False)),
    StorageType(8, True, -127, 127),
]


@settings(max_examples=examples(150))
@given(data=st.data())
def test_one_term(data: st.DataObject) -> None:
    storage = data.draw(st.sampled_from(STORAGES))
    bits = data.draw(st.integers(3, 60))
    multiplier = data.draw(multipliers)
    zero_point = data.draw(st.integers(storage.minimum, storage.maximum))
    bound = (1 << bits) - 1
    values = data.draw(st.lists(st.integers(-bound, bound), min_size=1, max_size=8))
    # Values whose results are ties and their neighbours.
    for number in range(-3, 4):
        is_close = round((Fraction(2 * number + 1, 2)) / multiplier)
        values += [min(max(is_close + d, -bound), bound) for d in (-1, 0, 1)]
    values += [0, bound, -bound]
    width = 32 if bits < 32 else 64
    check([(values, bound, multiplier)], zero_point, storage, width, data.draw(st.booleans()))


@settings(max_examples=examples(150))
@given(data=st.data())
def test_sums(data: st.DataObject) -> None:
    storage = data.draw(st.sampled_from(STORAGES))
    count = data.draw(st.integers(2, 3))
    zero_point = data.draw(st.integers(storage.minimum, storage.maximum))
    bits = data.draw(st.integers(3, 33))
    bound = (1 << bits) - 1
    terms = []
    for _ in range(count):
        values = data.draw(st.lists(st.integers(-bound, bound), min_size=6, max_size=6))
        terms.append((values, bound, data.draw(st.sampled_from([1, -1])) * data.draw(multipliers)))
    check(terms, zero_point, storage, 32 if bits < 31 else 64, data.draw(st.booleans()))


def test_multipliers_along_axes() -> None:
    """Each element by the multipliers and the zero point of its row or column."""
    rows = np.array([[Fraction(1, 6)], [Fraction(-7, 3)]], object)
    columns = np.array([[Fraction(3, 5), Fraction(1, 1000), Fraction(200)]], object)
    zero_points, storage = np.array([[3], [-4]]), StorageType(8)
    left, right = np.array([[3, 9, 100], [-3, 15, 0]]), np.array([[7, 21, 0], [-14, 2, -1]])
    signed = np.where(rows < 0, -left, left)
    terms = [Term(Number(signed, I32), 255, abs(rows)), Term(Number(right, I32), 255, columns)]
    exact = left * rows + right * columns
    want = [
        [min(max(round(real + int(zero_point)), -128), 127) for real in line]
        for line, (zero_point,) in zip(exact, zero_points, strict=True)
    ]
    assert saturated(terms, zero_points, storage).tolist() == want


@pytest.mark.parametrize("exponent", [-200, -80, -40, -20, 0, 20, 40, 80, 200])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_extreme_multipliers(storage: StorageType, exponent: int) -> None:
    values = [0, 1, -1, 2, -2, 100, -100, 255, -255]
    for mantissa in (1, 3, 0xFFFFFF):
        check([(values, 255, real(mantissa, exponent))], 3, storage, 32)
        both = [(values, 255, real(mantissa, exponent)), (values[::-1], 255, Fraction(1))]
        check(both, 3, storage, 32)


@pytest.mark.parametrize("bits", [32, 33, 45, 61, 62, 63])
@pytest.mark.parametrize("ones", [33, 40, 61])
def test_the_greatest_integers_do_not_wrap(bits: int, ones: int) -> None:
    """Multipliers whose digits are all ones make the greatest sums."""
    bound = (1 << bits) - 1
    values = [bound, -bound, bound - 1, 1 << (bits - 1), (1 << 31) - 1, -(1 << 31), 0]
    for multiplier in (
        Fraction((1 << ones) - 1, 1 << 62),
        Fraction(1, bound),
        Fraction(100, bound),
    ):
        for storage in (StorageType(8), StorageType(32), StorageType(32, False)):
            check([(values, bound, multiplier)], 3, storage, 64)
            check([(values, bound, multiplier), (values[::-1], bound, multiplier)], 3, storage, 64)


@pytest.mark.parametrize("zero_point", [0, 1])
@pytest.mark.parametrize("bound", [1, 127, 128, 255, 1 << 20])
def test_a_multiplier_almost_one_changes_ties_only(bound: int, zero_point: int) -> None:
    """``bound * M`` is half a step from `bound`: the parity of its neighbours decides."""
    for multiplier in (1 + Fraction(1, 2 * bound), 1 - Fraction(1, 2 * bound)):
        values = [bound, -bound, bound - 1, 1 - bound, 0]
        check([(values, bound, multiplier)], zero_point, StorageType(32), 32)


@pytest.mark.parametrize(("scale", "target"), [("0.1", "0.6"), ("0.3", "0.2"), ("0.1", "0.2")])
def test_a_tie_of_decimal_scales_is_one_of_their_floats(scale: str, target: str) -> None:
    """9 * 0.1 / 0.6 is 1.5 as in f32, although the quotient of the two floats is a little less."""
    exact = Fraction(scale) / Fraction(target)
    is_close = Fraction(float(np.float32(scale))) / Fraction(float(np.float32(target)))
    values = list(range(-9, 10))
    term = Term(Number(values, I32), 255, np.array(is_close, object))
    actual = saturated([term], 0, StorageType(8))
    results, distances = expected([(values, exact)], 0, StorageType(8))
    assert not all(distances)
    assert list(actual) == results


def test_a_tie_of_scales_that_are_not_dyadic_is_one() -> None:
    values = [3, 9, 15, 21, -3, -9]  # times 1/6: halves
    for zero_point in (0, 1):
        check([(values, 255, Fraction(1, 6))], zero_point, StorageType(8), 32)
        results, distances = expected([(values, Fraction(1, 6))], zero_point, StorageType(8))
        assert not any(distances)
        assert all(result % 2 == 0 for result in results)
