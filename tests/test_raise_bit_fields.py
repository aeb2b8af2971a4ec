"""Bit fields against arithmetic modulo powers of two, and exact products against fractions."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import examples
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.numerics.parameters import ExpressedType
from subquant.transforms.raising.binary_format import BinaryFormat
from subquant.transforms.raising.bit_fields import Field, Shifts, concatenated
from subquant.transforms.raising.views import View

TYPES = ("i8", "ui8", "i16", "ui16", "i32", "ui32")
WORDS = 3


@functools.cache
def arguments() -> dict[str, Any]:
    """A tensor of each type; the module stays alive with them."""
    text = ", ".join(f"%{name}: tensor<{WORDS}x{name}>" for name in TYPES)
    module = ir.Module.parse(f"func.func @f({text}) {{ return }}", create_context())
    block = module.body.operations[0].regions[0].blocks[0]
    return dict(zip(TYPES, block.arguments, strict=True)) | {"": module}


def bits_of(type_: str) -> int:
    return int(type_.lstrip("ui"))


def number_of(pattern: int, type_: str) -> int:
    """The number that bits are in a type."""
    count = bits_of(type_)
    pattern &= (1 << count) - 1
    return pattern - (1 << count) if type_[0] == "i" and pattern >> (count - 1) else pattern


@dataclass(frozen=True)
class Step:
    """An operation of a program on integers."""

    kind: str
    number: int = 0  # the shift count, the mask, or the bit that it flips
    type: str = ""  # that it converts to

    def of_field(self, field: Field, type_: str) -> Field | None:
        """The field after the step."""
        by = Shifts.of(np.array([self.number]), View(()).broadcast((), (WORDS,)))
        assert by is not None
        match self.kind:
            case "left":
                return field.shifted_left(by)
            case "right" | "logical right":
                keeps_sign = self.kind == "right" and type_[0] == "i"
                return field.shifted_right(by, keeps_sign=keeps_sign)
            case "mask":
                return field.masked(self.number)
            case "sign":
                return field.with_other_sign()
        with arguments()[""].context:
            return field.converted(ir.Type.parse(self.type))

    def of_number(self, number: int, type_: str, field: Field) -> int | None:
        """The number after the step; None where StableHLO leaves it open."""
        if self.kind == "convert":
            result = number_of(number, self.type)
            return result if result == number or bits_of(type_) == bits_of(self.type) else None
        results = {
            "left": number << self.number,
            "right": number >> self.number,
            "logical right": (number & ((1 << bits_of(type_)) - 1)) >> self.number,
            "mask": number & self.number,
            "sign": number ^ (1 << (field.width - 1)),
        }
        return number_of(results[self.kind], type_)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["left", "right", "logical right", "mask", "sign", "convert"]))
    if kind == "mask":
        ones, low = draw(st.integers(1, 32)), draw(st.sampled_from([0, 0, 4, 8]))
        return Step(kind, ((1 << ones) - 1) << low)
    if kind == "convert":
        return Step(kind, 0, draw(st.sampled_from(TYPES)))
    return Step(kind, draw(st.sampled_from([0, 2, 3, 4, 4, 8, 12, 24, 28])))


def extracted(field: Field, words: list[int]) -> list[int]:
    """The numbers that a field says."""
    positions = field.start + field.view.indices()
    stream = sum((word & ((1 << field.word) - 1)) << (n * field.word)
                 for n, word in enumerate(words))  # fmt: skip
    result = [(stream >> int(position)) & ((1 << field.width) - 1) for position in positions]
    signed = f"{'' if field.signed else 'u'}i{field.width}"
    return [number_of(number, signed) + field.bias for number in result]


@settings(max_examples=examples(40))
@given(st.sampled_from(TYPES), st.lists(steps(), max_size=6), st.integers(0, 2**32 - 1))
def test_a_field_is_what_its_steps_compute(type_: str, chain: list[Step], seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = [number_of(int(n), type_) for n in rng.integers(0, 2**32, WORDS)]
    field, numbers = Field.of(arguments()[type_], View.of([WORDS])), list(words)
    for step in chain:
        assert field is not None
        result = step.of_field(field, type_)
        if result is None:
            return
        if step.number < bits_of(type_) or step.kind in ("mask", "convert", "sign"):
            changed = [step.of_number(number, type_, field) for number in numbers]
        else:
            return  # a shift by all bits is 0 or a sign
        assert None not in changed
        numbers, field = [number for number in changed if number is not None], result
        type_ = step.type or type_
        assert field.container == bits_of(type_)
        if field.is_number:
            low, high = field.range
            assert extracted(field, words) == numbers
            assert all(low <= number <= high for number in numbers)


def test_the_usual_steps_give_numbers() -> None:
    """The test above is of something."""
    for type_, chain, width, signed in [
        ("ui8", [Step("mask", 15)], 4, False),
        ("ui8", [Step("logical right", 4)], 4, False),
        ("ui8", [Step("mask", 240), Step("logical right", 4)], 4, False),
        ("i8", [Step("right", 4)], 4, True),
        ("i8", [Step("left", 4), Step("right", 4)], 4, True),
        ("i8", [Step("mask", -16), Step("right", 4)], 4, True),
        ("ui8", [Step("left", 4), Step("convert", 0, "i8"), Step("right", 4)], 4, True),
        ("ui8", [Step("mask", 15), Step("convert", 0, "i8"), Step("sign", 8)], 4, True),
        ("i32", [Step("left", 8), Step("right", 28)], 4, True),
        ("ui32", [Step("logical right", 20), Step("mask", 255)], 8, False),
        ("i16", [Step("convert", 0, "i32"), Step("right", 8), Step("mask", 3)], 2, False),
    ]:
        field = Field.of(arguments()[type_], View.of([WORDS]))
        now = type_
        for step in chain:
            assert field is not None
            field, now = step.of_field(field, now), step.type or now
        assert field is not None
        assert (field.is_narrow, field.width, field.signed) == (True, width, signed)


def test_what_stands_for_no_number_is_none() -> None:
    field = Field.of(arguments()["i8"], View.of([WORDS]))
    assert field is not None
    nibble = field.masked(15)
    assert nibble is not None
    assert field.masked(0b101) is None
    assert field.masked(0) is None
    assert nibble.with_other_sign() is not None
    assert field.with_other_sign() is None  # it has one
    across = Step("logical right", 2).of_field(field, "i8")
    assert across is not None
    part = across.masked(15)
    assert part is not None
    assert part.is_narrow
    assert part.packed() is None  # its words hold no other at bit 6
    assert concatenated([nibble, part], 0) is not None  # from bits 0 and 2
    assert concatenated([nibble, nibble], 0) is None
    assert concatenated([nibble, field], 0) is None


@given(st.data())
def test_shifts_are_sums_over_axes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axes = [data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)) for n in shape]
    total = sum(np.ix_(*(np.array(axis) for axis in axes)))
    result = Shifts.of(np.asarray(total).reshape(-1), View.of(shape))
    for axis in axes:
        differences = {later - each for each, later in itertools.pairwise(axis)}
        if len(axis) in (2, 3) and len(differences) > 1:
            assert result is None
    if result is not None:
        assert (result.first + result.view.indices() == total).all()
        assert (result.low, result.high) == (total.min(), total.max())


def test_shifts_that_are_interleaved_have_two_strides() -> None:
    numbers = np.array([0, 16, 4, 20, 8, 24, 12, 28])
    result = Shifts.of(numbers, View.of([8]))
    assert result is not None
    assert result.view.axes == (((4, 4), (2, 16)),)
    assert Shifts.of(np.array([0, 4, 12, 8]), View.of([4])) is None


FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@given(st.data())
def test_products_that_fit_are_exact(data: st.DataObject) -> None:
    """Fractions are the reference; the formats of constants are within those of their types."""
    name = data.draw(st.sampled_from(["f16", "bf16", "f32"]))
    count = data.draw(st.integers(1, 4))
    numbers = [data.draw(st.floats(width=16, allow_nan=False, allow_infinity=False))
               for _ in range(count)]  # fmt: skip
    array = np.array(numbers, np.float16)
    q = data.draw(st.integers(-300, 300))
    grain = BinaryFormat.of_numbers(array)
    assert grain is not None
    assert grain.fits(ExpressedType.F16)
    for each in numbers:
        fraction = Fraction(each)
        assert (fraction / Fraction(2) ** grain.smallest).denominator == 1
        assert abs(fraction) < Fraction(2) ** grain.largest or not fraction
    product = (
        BinaryFormat.of_integers(min(q, 0), max(q, 0))
        * grain
        * BinaryFormat.of_type(ExpressedType.F16)
    )
    if product.fits(ExpressedType(name)):
        other = data.draw(st.floats(width=16, allow_nan=False, allow_infinity=False))
        for each in array:
            exact = q * Fraction(float(each)) * Fraction(other)
            assert Fraction(float(FLOATS[name](float(exact)))) == exact


def test_grains_of_constants() -> None:
    assert BinaryFormat.of_numbers(np.array([1.0, np.inf])) is None
    assert BinaryFormat.of_numbers(np.array([np.nan])) is None
    assert BinaryFormat.of_numbers(np.array([0.0, -0.0])) == BinaryFormat(0, 0, 0)
    assert BinaryFormat.of_numbers(np.array([6.0, -0.25])) == BinaryFormat(2, -2, 3)
    assert BinaryFormat.of_integers(-128, 127) == BinaryFormat(8, 0, 8)
    for expressed in ExpressedType:
        assert BinaryFormat.of_type(expressed).fits(expressed)
    assert BinaryFormat.of_type(ExpressedType.F16).fits(ExpressedType.F32)
    assert BinaryFormat.of_type(ExpressedType.BF16).fits(ExpressedType.F32)
    assert not BinaryFormat.of_type(ExpressedType.F16).fits(ExpressedType.BF16)
    assert not BinaryFormat.of_type(ExpressedType.BF16).fits(ExpressedType.F16)
