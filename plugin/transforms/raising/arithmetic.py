"""Dequantization in a program's arithmetic: what of it is integers, zero points, scales, offsets.

`Arithmetic` goes through the operations of a program in their order. Of a value that is computed
from narrow integers it knows a `Fact`: `Integers` for ``q - z`` in a type that holds it, `Reals`
for ``(q - z) * s + o``. Each part is a tensor of the program, and which of its elements goes where
(`subquant.numerics.views`): reshapes, transpositions and broadcasts change the views only.

Each step is taken only where it is exactly a step of ``subquant.dequantize``; for what it is not,
there is a reason:

* Conversions to a wider integer type, and subtractions that the type holds for every ``q`` and
  ``z``, are exact.
* ``convert(q - z)`` rounds once, as a dequantization does. ``convert(q) - convert(z)`` is the same
  number where the float type has every integer of the range of ``q``, ``z`` and ``q - z``: then
  nothing is rounded. Both give +0 where ``q = z``. So does the subtraction of a constant whose
  elements are integers, and the addition of its negative.
* A multiplication rounds once to its type, and so does that of a dequantization. Of two in a row
  each rounds, which no dequantization does.
* An addition after it rounds once, as that of an offset; a subtraction adds the negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...emit.operation import is_dynamic
from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType, StorageType
from ...numerics.views import View
from ..base import NoMatch

__all__ = ["STEPS", "Arithmetic", "Fact", "Integers", "Part", "Reals", "part_of"]

_VIEWS = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim")
_COMPUTATIONS = ("stablehlo.add", "stablehlo.divide", "stablehlo.multiply", "stablehlo.subtract")
STEPS = (*_VIEWS, *_COMPUTATIONS, "stablehlo.convert")
"""The operations that a dequantization is written with."""

_CONSTANTS = ("arith.constant", "stablehlo.constant")
_WIDEST = 16
"""Bits of storage: wider integers are sums, positions and the like."""
_PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_MOST_NUMBERS = 1 << 16
"""Elements of a constant that are looked at."""


@dataclass(frozen=True)
class Part:
    """A tensor in another shape.

    Attributes:
        root: the tensor; None for a number that no operation of the program has.
        view: which of its elements is where.
        numbers: the elements of a constant that is not large, of a splat only one; else None.
    """

    root: Value
    view: View
    numbers: Array | None = None


@dataclass(frozen=True)
class Integers:
    """``q - z``, in an integer type that holds it.

    Attributes:
        storage: ``q``.
        type: of ``q``.
        zero_points: ``z``, or None.
        low, high: between which ``q - z`` is.
    """

    storage: Part
    type: StorageType
    low: int
    high: int
    zero_points: Part | None = None


@dataclass(frozen=True)
class Reals:
    """``(q - z) * s + o``.

    Attributes:
        integers: ``q - z``.
        expressed: the type that it is computed in.
        scales: ``s``, or None for 1.
        offsets: ``o``, or None; what is added, or with `subtracts` subtracted.
    """

    integers: Integers
    expressed: ExpressedType
    scales: Part | None = None
    offsets: Part | None = None
    subtracts: bool = False

    @property
    def is_exact(self) -> bool:
        """True if every integer between the bounds is a number of the type."""
        largest = max(abs(self.integers.low), abs(self.integers.high))
        return largest <= 1 << _PRECISION[self.expressed.value]


Fact = Integers | Reals


class Arithmetic:
    """What is known of the values of a program."""

    def __init__(self) -> None:
        self._facts: dict[Value, Fact] = {}

    def of(self, value: Value) -> Fact | None:
        """What is known of a value."""
        return self._facts.get(value)

    def follow(self, op: Operation) -> NoMatch | None:
        """Learn what an operation of `STEPS` computes, after those that its operands come from.

        Returns:
            Why it is none of a dequantization, if its operands are.
        """
        result = op.results[0]
        if not _is_static(result.type):
            if any(self._facts.get(operand) for operand in op.operands):
                return NoMatch("has a dynamic shape")
            return None
        if op.name in _VIEWS:
            found = self._viewed(op)
        elif op.name == "stablehlo.convert":
            found = self._converted(op)
        else:
            found = self._computed(op)
        if isinstance(found, NoMatch):
            return found
        if found is not None:
            self._facts[result] = found
        return None

    # -- integers and conversions -----------------------------------------------------------------

    def _integers(self, value: Value) -> Integers | None:
        """A value as integers of few bits."""
        fact = self._facts.get(value)
        if fact is not None:
            return fact if isinstance(fact, Integers) else None
        storage = _storage_type(value.type)
        if storage is None:
            return None
        return Integers(part_of(value), storage, *_range_of(part_of(value), storage))

    def _converted(self, op: Operation) -> Fact | None:
        source, target = op.operands[0], op.results[0].type.element_type
        if isinstance(target, ir.IntegerType):
            integers = self._integers(source)
            return integers if integers is not None and _holds(target, integers) else None
        expressed = _expressed(target)
        fact = self._facts.get(source)
        if expressed is None:
            return None
        if isinstance(fact, Reals):
            wider = replace(fact, expressed=expressed)
            exact = fact.scales is None and fact.is_exact and wider.is_exact
            return wider if exact else None
        found = self._integers(source)
        return None if found is None else Reals(found, expressed)

    # -- shapes -----------------------------------------------------------------------------------

    def _viewed(self, op: Operation) -> Fact | NoMatch | None:
        fact = self._facts.get(op.operands[0])
        if fact is None and isinstance(op.operands[0].type.element_type, ir.IntegerType):
            fact = self._integers(op.operands[0])
        if fact is None:
            return None
        integers = fact if isinstance(fact, Integers) else fact.integers
        named = {"storage": integers.storage, "zero_points": integers.zero_points}
        if isinstance(fact, Reals):
            named |= {"scales": fact.scales, "offsets": fact.offsets}
        parts: dict[str, Part] = {}
        for name, part in named.items():
            moved = None if part is None else _moved(part, op)
            if isinstance(moved, NoMatch):
                return moved
            if moved is not None:
                parts[name] = moved
        integers = replace(integers, storage=parts["storage"], zero_points=parts.get("zero_points"))
        if isinstance(fact, Integers):
            return integers
        return replace(
            fact, integers=integers, scales=parts.get("scales"), offsets=parts.get("offsets")
        )

    # -- arithmetic -------------------------------------------------------------------------------

    def _computed(self, op: Operation) -> Fact | NoMatch | None:
        left, right = op.operands
        if isinstance(op.results[0].type.element_type, ir.IntegerType):
            return self._of_integers(op)
        pairs = [(left, right)] if op.name in _ORDERED else [(left, right), (right, left)]
        why: NoMatch | None = None
        for value, other in pairs:
            fact = self._facts.get(value)
            if not isinstance(fact, Reals):
                continue
            found = self._with(op.name, fact, other)
            if not isinstance(found, NoMatch):
                return found
            why = why or found
        if why is None and op.name in _ORDERED and isinstance(self._facts.get(right), Reals):
            what = "divides by" if op.name == "stablehlo.divide" else "subtracts"
            return NoMatch(f"{what} integers that are dequantized")
        return why

    def _with(self, name: str, fact: Reals, other: Value) -> Reals | NoMatch:
        """What a further step makes of reals."""
        if name == "stablehlo.divide":
            return NoMatch("divides, which rounds otherwise than a multiplication by the inverse")
        if name == "stablehlo.multiply":
            if fact.scales is not None:
                return NoMatch("multiplies for the second time, and each product is rounded")
            if fact.integers.storage.view.repeats:
                return NoMatch("has integers that are broadcast")
            return replace(fact, scales=part_of(other))
        if fact.offsets is not None:
            return NoMatch("adds for the second time, and each sum is rounded")
        if fact.scales is not None:
            return replace(fact, offsets=part_of(other), subtracts=name == "stablehlo.subtract")
        return self._with_zero_point(fact, other, negative=name == "stablehlo.add")

    def _with_zero_point(self, fact: Reals, other: Value, *, negative: bool) -> Reals | NoMatch:
        """Reals of integers less a zero point, which is another float."""
        if fact.integers.zero_points is not None:
            return NoMatch("subtracts for the second time")
        integers: Integers | NoMatch
        converted = self._facts.get(other)
        if isinstance(converted, Reals) and not negative:
            if converted.scales is not None or converted.integers.zero_points is not None:
                return NoMatch("has a zero point that is no integer of the program")
            if not converted.is_exact:
                return NoMatch(f"has zero points that {fact.expressed.value} rounds")
            integers = _less(fact.integers, converted.integers)
        else:
            part = part_of(other)
            if part.numbers is None or not (part.numbers == np.rint(part.numbers)).all():
                return NoMatch("has a zero point that is not known to be an integer")
            integers = _less_constant(fact.integers, part, negative=negative)
        if isinstance(integers, NoMatch):
            return integers
        found = replace(fact, integers=integers)
        if not fact.is_exact or not found.is_exact:
            name = fact.expressed.value
            return NoMatch(f"subtracts integers of {fact.integers.type}, which {name} rounds")
        return found

    def _of_integers(self, op: Operation) -> Fact | NoMatch | None:
        left, right = op.operands
        fact = self._facts.get(left)
        if op.name not in ("stablehlo.subtract", "stablehlo.add"):
            return None
        integers = self._integers(left)
        if integers is None or integers.zero_points is not None:
            return None
        element, part = op.results[0].type.element_type, part_of(right)
        found: Integers | NoMatch | None = None
        if part.numbers is not None:
            found = _less_constant(integers, part, negative=op.name == "stablehlo.add")
        elif op.name == "stablehlo.subtract":
            others = self._integers(right)
            if others is None or others.zero_points is not None:
                return None if fact is None else NoMatch("has a zero point of more than 16 bits")
            found = _less(integers, others)
        if isinstance(found, Integers) and not _holds(element, found):
            return NoMatch(f"subtracts in {element}, which wraps; convert to a wider type first")
        return found


_ORDERED = ("stablehlo.divide", "stablehlo.subtract")


def part_of(value: Value) -> Part:
    """A value as what it is a view of, through reshapes, transpositions and broadcasts."""
    steps: list[Operation] = []
    root = value
    while True:
        owner = root.owner
        if isinstance(owner, ir.Block) or owner.operation.name not in _VIEWS:
            break
        if not _is_static(owner.operation.operands[0].type):
            break
        steps.append(owner.operation)
        root = owner.operation.operands[0]
    part = _whole(root)
    for step in reversed(steps):
        moved = _moved(part, step)
        part = moved if isinstance(moved, Part) else _whole(step.results[0])
    return part


def _whole(root: Value) -> Part:
    """A value as it is."""
    shape, owner = [int(n) for n in root.type.shape], root.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in _CONSTANTS:
        return Part(root, View.of(shape))
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return Part(root, View.of(shape))
    if attribute.is_splat:
        return Part(root, View(()).broadcast((), shape), array_of_dense(_single(attribute)))
    numbers = array_of_dense(attribute) if len(attribute) <= _MOST_NUMBERS else None
    return Part(root, View.of(shape), numbers)


def _single(attribute: ir.DenseElementsAttr) -> ir.DenseElementsAttr:
    """The one element of a splat, without axes."""
    type_ = ir.RankedTensorType.get([], attribute.type.element_type)
    return ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())


def _moved(part: Part, op: Operation) -> Part | NoMatch:
    """A part after a reshape, transposition or broadcast."""
    shape = [int(n) for n in op.results[0].type.shape]
    view: View | None
    if op.name == "stablehlo.transpose":
        view = part.view.transposed([int(axis) for axis in op.attributes["permutation"]])
    elif op.name == "stablehlo.broadcast_in_dim":
        places = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
        view = part.view.broadcast(places, shape)
    else:
        view = part.view.reshaped(shape)
    if view is None:
        return NoMatch("reshapes across axes whose extents do not divide each other")
    return replace(part, view=view)


# -- types and ranges -----------------------------------------------------------------------------


def _is_static(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType) or type_.encoding is not None:
        return False
    return not any(is_dynamic(int(n)) or n == 0 for n in type_.shape)


def _expressed(element: ir.Type) -> ExpressedType | None:
    name = str(element)
    return ExpressedType(name) if name in _PRECISION else None


def _storage_type(type_: ir.Type) -> StorageType | None:
    if not _is_static(type_) or not isinstance(type_.element_type, ir.IntegerType):
        return None
    element = type_.element_type
    if not 2 <= element.width <= _WIDEST:
        return None
    return StorageType(element.width, not element.is_unsigned)


def _range_of(part: Part, storage: StorageType) -> tuple[int, int]:
    """Between which integers the elements are."""
    if part.numbers is None:
        return storage.type_range
    numbers = part.numbers if storage.signed else part.numbers & storage.maximum
    return int(numbers.min()), int(numbers.max())


def _holds(element: ir.IntegerType, integers: Integers) -> bool:
    """True if an integer type has every number that there may be."""
    if element.is_unsigned:
        return integers.low >= 0 and integers.high < 1 << element.width
    half = 1 << (element.width - 1)
    return bool(element.width > 1 and -half <= integers.low and integers.high < half)


def _less(integers: Integers, other: Integers) -> Integers | NoMatch:
    """Integers less others of the program."""
    storage = integers.type
    if other.type.signed != storage.signed or other.type.width > storage.width:
        return NoMatch(f"has zero points of {other.type}, and storage of {storage}")
    bounds = integers.low - other.high, integers.high - other.low
    return replace(integers, zero_points=other.storage, low=bounds[0], high=bounds[1])


def _less_constant(integers: Integers, part: Part, *, negative: bool) -> Integers | NoMatch:
    """Integers less the elements of a constant, or with `negative` more by them."""
    assert part.numbers is not None
    low, high = integers.type.type_range
    numbers = part.numbers.astype(np.float64) * (-1 if negative else 1)
    if not np.isfinite(numbers).all() or numbers.min() < low or numbers.max() > high:
        return NoMatch(f"has a zero point that is no number of {integers.type}")
    zero_points = replace(part, numbers=numbers.astype(np.int64))
    bounds = integers.low - int(numbers.max()), integers.high - int(numbers.min())
    return replace(integers, zero_points=zero_points, low=bounds[0], high=bounds[1])
