"""Facts about values of dequantizing arithmetic: ``q - z``, and ``(q - z) * s + o``.

Each operand of a fact is a view of a tensor of the program (`TensorView`). `BinaryFormat` bounds
the bits of products, so that a fact tells where multiplications are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...numerics.parameters import ExpressedType, StorageType
from ..base import NoMatch, producer_named
from .binary_format import PRECISION, BinaryFormat
from .bit_fields import Field
from .tensor_views import TensorView, is_static, tensor_view
from .views import View

MAX_STORAGE_BITS = 16
"""Bits of storage values, at most; wider integers count as accumulators, positions and the like."""


@dataclass(frozen=True)
class IntegerFact:
    """Integers ``q - z``, in a type that holds them.

    Attributes:
        storage: ``q``; None where it is no tensor of the program.
        type: the type of ``q``.
        low, high: the range of ``q - z``.
        zero_points: ``z``, or None.
        field: ``q`` as a bit field of words, or None.
        zero_field: ``z`` as a bit field, or None.
    """

    storage: TensorView | None
    type: StorageType
    low: int
    high: int
    zero_points: TensorView | None = None
    field: Field | None = None
    zero_field: Field | None = None

    @property
    def is_shifted(self) -> bool:
        """True if there are zero points."""
        return self.zero_points is not None or self.zero_field is not None

    @property
    def binary_format(self) -> BinaryFormat:
        """The format of ``q - z``."""
        return BinaryFormat.of_integers(self.low, self.high)


@dataclass(frozen=True)
class ExpressedFact:
    """Expressed values ``(q - z) * s + o``.

    Attributes:
        integers: ``q - z``.
        expressed: the float type of the computation.
        scales: factors of ``s``, whose product is exact; 1 without any.
        offsets: ``o``, or None; subtracted with `subtracts`.
        widened: the wider type that the sum is converted to, or None.
        real_zero_points: floats that are subtracted from the integers, and may be no integers.
    """

    integers: IntegerFact
    expressed: ExpressedType
    scales: tuple[TensorView, ...] = ()
    offsets: TensorView | None = None
    subtracts: bool = False
    widened: ExpressedType | None = None
    real_zero_points: TensorView | None = None

    @property
    def is_exact(self) -> bool:
        """True if the float type represents every integer of the range."""
        largest = max(abs(self.integers.low), abs(self.integers.high))
        return largest <= 1 << PRECISION[self.expressed.value]


Fact = IntegerFact | ExpressedFact


def parameters_of_fact(fact: Fact) -> dict[str, TensorView]:
    """The zero points, scales and offsets of a fact, by name."""
    integers = fact if isinstance(fact, IntegerFact) else fact.integers
    named = {"zero_points": integers.zero_points}
    if isinstance(fact, ExpressedFact):
        named |= {f"scales {number}": view for number, view in enumerate(fact.scales)}
        named |= {"offsets": fact.offsets, "real_zero_points": fact.real_zero_points}
    return {name: view for name, view in named.items() if view is not None}


def kind_of(fact: Fact | None) -> tuple[object, ...]:
    """The types of a fact, which concatenated facts share."""
    if isinstance(fact, ExpressedFact):
        return fact.expressed, fact.widened, fact.subtracts
    return (type(fact),)


def are_equal(left: dict[str, TensorView], right: dict[str, TensorView]) -> bool:
    """True if parameters are views of the same tensors, or of equal constants."""

    def is_equal(one: TensorView, other: TensorView) -> bool:
        if one.numbers is None or other.numbers is None:
            return one.root == other.root and one.numbers is other.numbers
        return np.array_equal(one.numbers, other.numbers)

    return left.keys() == right.keys() and all(
        each.view == right[name].view and is_equal(each, right[name]) for name, each in left.items()
    )


def repeated(view: TensorView, axis: int, count: int) -> TensorView:
    """A view repeated along an axis."""
    axes = list(view.view.axes)
    axes[axis] = ((count, 0), *axes[axis])
    return replace(view, view=View(tuple(axes)))


# -- products -------------------------------------------------------------------------------------


def product_format(
    binary_format: BinaryFormat, factors: Iterable[TensorView]
) -> BinaryFormat | None:
    """The format of products with some factors; None if a factor's format is unknown."""
    for factor in factors:
        own = _format_of(factor)
        if own is None:
            return None
        binary_format = binary_format * own
    return binary_format


def _format_of(view: TensorView) -> BinaryFormat | None:
    """The format of a view's elements; None for computed floats, and for integers over 16 bits."""
    if view.numbers is not None:
        return BinaryFormat.of_numbers(view.numbers)
    source = _converted_from(view)
    if source is None:
        return None
    element = source.type.element_type
    if isinstance(element, ir.IntegerType):
        storage = storage_type(source.type)
        return None if storage is None else BinaryFormat.of_integers(*storage.type_range)
    expressed = expressed_type(element)
    return None if expressed is None else BinaryFormat.of_type(expressed)


def _converted_from(view: TensorView) -> Value | None:
    """The narrower tensor that a view's tensor is exactly converted from; None for any other."""
    conversion = producer_named(view.root, "stablehlo.convert")
    if conversion is None:
        return None
    source, target = conversion.operands[0], view.root.type.element_type
    expressed, wider = expressed_type(source.type.element_type), expressed_type(target)
    if wider is None:
        return None
    if expressed is not None:
        return source if BinaryFormat.of_type(expressed).fits(wider) else None
    storage = storage_type(source.type)
    is_exact = storage is not None and BinaryFormat.of_integers(*storage.type_range).fits(wider)
    return source if is_exact else None


def narrowed(view: TensorView, expressed: ExpressedType) -> TensorView | None:
    """The view in a float type that represents its elements; None if there is none."""
    if view.numbers is not None:
        binary_format = BinaryFormat.of_numbers(view.numbers)
        return view if binary_format is not None and binary_format.fits(expressed) else None
    source = _converted_from(view)
    if source is None or str(source.type.element_type) != expressed.value:
        return None
    return replace(view, root=source)


def inverse_of(other: Value, fact: ExpressedFact) -> TensorView | NoMatch:
    """The exact inverse of a divisor, or why there is none."""
    view = tensor_view(other)
    if view.numbers is None:
        return NoMatch("divides, which rounds otherwise than a multiplication by the inverse")
    numbers = view.numbers.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / numbers
    binary_format = BinaryFormat.of_numbers(inverse)
    is_power = bool((np.abs(np.frexp(numbers)[0]) == 0.5).all())
    if binary_format is None or not is_power or not binary_format.fits(fact.expressed):
        return NoMatch("divides by what is no power of two: its inverse is rounded")
    return replace(view, numbers=inverse)


# -- types and ranges -----------------------------------------------------------------------------


def expressed_type(element: ir.Type) -> ExpressedType | None:
    """The float type of expressed values; None for other types."""
    name = str(element)
    return ExpressedType(name) if name in PRECISION else None


def storage_type(type_: ir.Type) -> StorageType | None:
    """The storage type of a tensor of narrow integers; None for other types."""
    if not is_static(type_) or not isinstance(type_.element_type, ir.IntegerType):
        return None
    element = type_.element_type
    if not 2 <= element.width <= MAX_STORAGE_BITS:
        return None
    return StorageType(element.width, not element.is_unsigned)


def range_of(view: TensorView, storage: StorageType) -> tuple[int, int]:
    """The least and the greatest element of a view of integers."""
    if view.numbers is None:
        return storage.type_range
    numbers = view.numbers if storage.signed else view.numbers & storage.maximum
    return int(numbers.min()), int(numbers.max())


def holds(element: ir.IntegerType, integers: IntegerFact) -> bool:
    """True if an integer type represents the range of a fact."""
    if element.is_unsigned:
        return integers.low >= 0 and integers.high < 1 << element.width
    half = 1 << (element.width - 1)
    return bool(element.width > 1 and -half <= integers.low and integers.high < half)


def minus(integers: IntegerFact, other: IntegerFact) -> IntegerFact | NoMatch:
    """Integers minus zero points of the program."""
    storage = integers.type
    if other.type.signed != storage.signed or other.type.width > storage.width:
        return NoMatch(f"has zero points of {other.type}, and storage of {storage}")
    return replace(
        integers,
        zero_points=other.storage,
        zero_field=other.field,
        low=integers.low - other.high,
        high=integers.high - other.low,
    )


def minus_constant(
    integers: IntegerFact, view: TensorView, *, negative: bool
) -> IntegerFact | NoMatch:
    """Integers minus a constant, or plus it with `negative`."""
    assert view.numbers is not None
    low, high = integers.type.type_range
    numbers = view.numbers.astype(np.float64) * (-1 if negative else 1)
    if not np.isfinite(numbers).all() or numbers.min() < low or numbers.max() > high:
        return NoMatch(f"has a zero point that is no number of {integers.type}")
    zero_points = replace(view, numbers=numbers.astype(np.int64))
    bounds = integers.low - int(numbers.max()), integers.high - int(numbers.min())
    return replace(integers, zero_points=zero_points, low=bounds[0], high=bounds[1])
