"""The integer arithmetic of exact requantization, evaluated in NumPy, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import examples
from subquant._mlir import ir
from subquant.dialects import create_context
from subquant.numerics.parameters import StorageType
from subquant.transforms.base import Builder
from subquant.transforms.requantization import Term, requantize


class Number:
    """Integers of one width that wrap as the device's do; `exact` tells when they would."""

    def __init__(self, data: np.ndarray, type_: Any) -> None:
        self.data, self.type = data, type_


class NumPyBuilder(Builder):
    """Evaluates each operation at once, and fails where an addition or product would wrap."""

    def grid(self, values: np.ndarray, element: Any) -> Number:
        return Number(np.asarray(values).astype(object), element)

    def constant(self, value: Any, type_: Any) -> Number:
        return Number(np.array(int(value), object), type_)

    def compare(self, predicate: int, left: Any, right: Any) -> Number:
        functions = {0: "__eq__", 3: "__le__", 5: "__ge__"}
        compare = np.frompyfunc(lambda a, b: int(getattr(a, functions[predicate])(b)), 2, 1)
        return Number(compare(left.data, right.data), self.i1)

    def op(self, name: str, operands: Any, result: Any = None, attributes: Any = None) -> Number:
        values = [operand.data for operand in operands]
        type_ = result
        width = type_.width
        operation = {
            "addi": lambda a, b: a + b,
            "subi": lambda a, b: a - b,
            "muli": lambda a, b: a * b,
            "andi": lambda a, b: a & b,
            "xori": lambda a, b: a ^ b,
            "shli": lambda a, b: a << b,
            "shrsi": lambda a, b: a >> b,
            "minsi": min,
            "maxsi": max,
            "select": lambda c, a, b: a if c else b,
            "extsi": lambda a: a,
            "trunci": lambda a: a,
        }[name.removeprefix("arith.")]
        data = np.frompyfunc(lambda *args: int(operation(*(int(a) for a in args))), len(values), 1)(
            *values
        )
        if width > 1:
            low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
            # Unsigned storage keeps its bits.
            high = (1 << width) - 1 if name == "arith.trunci" else high
            flat = np.asarray(data, object).reshape(-1)
            assert all(low <= int(v) <= high for v in flat), f"{name} wraps i{width}"
        return Number(np.asarray(data, object), type_)


def expected(
    terms: list[tuple[list[int], Fraction]], zero_point: int, storage: StorageType
) -> tuple[list[int], list[Fraction]]:
    """The exact results, and the distance of each sum from the nearest tie."""
    results, distances = [], []
    for numbers in zip(*(values for values, _ in terms), strict=True):
        exact = sum((d * m for d, (_, m) in zip(numbers, terms, strict=True)), Fraction(0))
        rounded = round(exact + zero_point)  # Fraction rounds half to even
        results.append(min(max(rounded, storage.minimum), storage.maximum))
        position = exact - math.floor(exact)
        distances.append(abs(position - Fraction(1, 2)))
    return results, distances


def check(
    terms: list[tuple[list[int], int, Fraction]], zero_point: int, storage: StorageType, width: int
) -> None:
    context = create_context()
    with context, ir.Location.unknown():
        b = NumPyBuilder()
        type_ = ir.IntegerType.get_signless(width)
        given_terms = [
            Term(Number(np.array(values, object), type_), bound, np.array(multiplier, object))
            for values, bound, multiplier in terms
        ]
        found = requantize(b, given_terms, np.array(zero_point), storage)
    plain = [(values, multiplier) for values, _, multiplier in terms]
    results, distances = expected(plain, zero_point, storage)
    for got, want, distance, *numbers in zip(
        np.broadcast_to(found.data, len(results)),
        results,
        distances,
        *(v for v, _, _ in terms),
        strict=True,
    ):
        # What is within 2**-20 of a tie counts as one: half of such values go the other way.
        if got != want:
            assert 0 < distance < Fraction(1, 1 << 20) * Fraction(101, 100), (numbers, terms)
            assert abs(int(got) - want) == 1


def real(mantissa: int, exponent: int) -> Fraction:
    return Fraction(mantissa) * Fraction(2) ** exponent


scales = st.builds(real, st.integers(1 << 23, (1 << 24) - 1), st.integers(-40, -10))
simple = st.sampled_from([Fraction(n, d) for n in (1, 2, 3, 5, 10) for d in (1, 2, 3, 6, 7, 20)])
ratios = st.builds(lambda a, b: a / b, scales, scales)
multipliers = st.one_of(simple, ratios, st.builds(lambda a, b: a * b, simple, ratios))
STORAGES = [
    StorageType(4),
    StorageType(4, False),
    StorageType(8),
    StorageType(8, False),
    StorageType(8, True, -127, 127),
    StorageType(16),
    StorageType(16, False),
    StorageType(32),
    StorageType(32, False),
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
        near = round((Fraction(2 * number + 1, 2)) / multiplier)
        values += [min(max(near + d, -bound), bound) for d in (-1, 0, 1)]
    values += [0, bound, -bound]
    check([(values, bound, multiplier)], zero_point, storage, 32 if bits < 32 else 64)


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
        sign = data.draw(st.sampled_from([1, -1]))
        terms.append((values, bound, sign * data.draw(multipliers)))
    check(terms, zero_point, storage, 32 if bits < 31 else 64)


@pytest.mark.parametrize("exponent", [-200, -80, -40, -20, 0, 20, 40, 80, 200])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_extreme_multipliers(storage: StorageType, exponent: int) -> None:
    values = [0, 1, -1, 2, -2, 100, -100, 255, -255]
    for mantissa in (1, 3, 0xFFFFFF):
        check([(values, 255, real(mantissa, exponent))], 3, storage, 32)
        both = [(values, 255, real(mantissa, exponent)), (values[::-1], 255, Fraction(1))]
        check(both, 3, storage, 32)


@pytest.mark.parametrize("zero_point", [0, 1])
@pytest.mark.parametrize("bound", [1, 127, 128, 255, 1 << 20])
def test_a_multiplier_almost_one_changes_ties_only(bound: int, zero_point: int) -> None:
    """``bound * M`` is half a step from `bound`: the parity of its neighbours decides."""
    for multiplier in (1 + Fraction(1, 2 * bound), 1 - Fraction(1, 2 * bound)):
        values = [bound, -bound, bound - 1, 1 - bound, 0]
        check([(values, bound, multiplier)], zero_point, StorageType(32), 32)


@pytest.mark.parametrize(("scale", "target"), [("0.1", "0.6"), ("0.3", "0.2"), ("0.1", "0.2")])
def test_a_tie_of_decimal_scales_is_one_of_their_floats(scale: str, target: str) -> None:
    """As in f32: 9 * 0.1 / 0.6 is 1.5, although the quotient of the two floats is a little less."""
    exact = Fraction(scale) / Fraction(target)
    near = Fraction(float(np.float32(scale))) / Fraction(float(np.float32(target)))
    values = list(range(-9, 10))
    context = create_context()
    with context, ir.Location.unknown():
        b = NumPyBuilder()
        type_ = ir.IntegerType.get_signless(32)
        term = Term(Number(np.array(values, object), type_), 255, np.array(near, object))
        found = requantize(b, [term], np.array(0), StorageType(8))
    results, distances = expected([(values, exact)], 0, StorageType(8))
    assert not all(distances)
    assert list(found.data) == results


def test_a_tie_of_scales_that_are_not_dyadic_is_one() -> None:
    values = [3, 9, 15, 21, -3, -9]  # times 1/6: halves
    for zero_point in (0, 1):
        check([(values, 255, Fraction(1, 6))], zero_point, StorageType(8), 32)
        results, distances = expected([(values, Fraction(1, 6))], zero_point, StorageType(8))
        assert not any(distances)
        assert all(result % 2 == 0 for result in results)
