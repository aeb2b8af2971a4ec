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
  each rounds, which no dequantization does; but where ``(q - z) * s`` has few bits and ``s * t``
  too (`Grain`), neither is rounded, and ``((q - z) * s) * t`` is ``(q - z) * (s * t)``.
* A division by a power of two is the multiplication by its inverse.
* A conversion of ``(q - z) * s`` to a narrower float rounds once if the product was not rounded
  before; then it is the dequantization in the narrower type, if that has every ``s``. One to a
  wider type is exact, and may follow.
* An addition after it rounds once, as that of an offset; a subtraction adds the negative.
* Shifts and masks of words give integers of fewer bits, which are stored packed (`Field`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit.stablehlo_semantics import comparison_direction
from ...numerics.parameters import ExpressedType, StorageType
from ...numerics.views import View
from ..base import NoMatch
from .binary_format import PRECISION, Grain
from .bit_fields import Field, Shifts, joined
from .tensor_views import VIEWS, Part, is_static, moved, part_of, viewed

__all__ = ["BITS", "SHIFTS", "STEPS", "Arithmetic", "Fact", "Integers", "Reals"]

_COMPUTATIONS = ("stablehlo.add", "stablehlo.divide", "stablehlo.multiply", "stablehlo.subtract")
SHIFTS = {
    "stablehlo.shift_left": None,
    "stablehlo.shift_right_arithmetic": True,
    "stablehlo.shift_right_logical": False,
}
"""Shifts of bits, and whether they keep the sign."""
BITS = (
    *SHIFTS,
    *("stablehlo.and", "stablehlo.bitcast_convert", "stablehlo.compare", "stablehlo.concatenate"),
    *("stablehlo.remainder", "stablehlo.select", "stablehlo.xor"),
)
"""Operations that take integers out of wider ones."""
STEPS = (*VIEWS, *_COMPUTATIONS, *BITS, "stablehlo.convert")
"""The operations that a dequantization is written with."""

_WIDEST = 16
"""Bits of storage: wider integers are sums, positions and the like."""


@dataclass(frozen=True)
class Integers:
    """``q - z``, in an integer type that holds it.

    Attributes:
        storage: ``q``; None where no tensor of the program has them.
        type: of ``q``.
        low, high: between which ``q - z`` is.
        zero_points: ``z``, or None.
        field: ``q`` as bits of wider integers, or None.
        zero_field: ``z`` as such.
    """

    storage: Part | None
    type: StorageType
    low: int
    high: int
    zero_points: Part | None = None
    field: Field | None = None
    zero_field: Field | None = None

    @property
    def is_shifted(self) -> bool:
        """True if there are zero points."""
        return self.zero_points is not None or self.zero_field is not None

    @property
    def grain(self) -> Grain:
        """Of ``q - z``."""
        return Grain.of_integers(self.low, self.high)


@dataclass(frozen=True)
class Reals:
    """``(q - z) * s + o``.

    Attributes:
        integers: ``q - z``.
        expressed: the type that it is computed in.
        scales: ``s``; of several the product counts, which is exact; of none it is 1.
        offsets: ``o``, or None; what is added, or with `subtracts` subtracted.
        widened: the type that the sum is converted to, which has all its numbers; or None.
    """

    integers: Integers
    expressed: ExpressedType
    scales: tuple[Part, ...] = ()
    offsets: Part | None = None
    subtracts: bool = False
    widened: ExpressedType | None = None

    @property
    def is_exact(self) -> bool:
        """True if every integer between the bounds is a number of the type."""
        largest = max(abs(self.integers.low), abs(self.integers.high))
        return largest <= 1 << PRECISION[self.expressed.value]


Fact = Integers | Reals


class Arithmetic:
    """What is known of the values of a program."""

    def __init__(self) -> None:
        self._facts: dict[Value, Fact] = {}
        self._fields: dict[Value, Field] = {}

    def of(self, value: Value) -> Fact | None:
        """What is known of a value."""
        return self._facts.get(value)

    def follow(self, op: Operation) -> NoMatch | None:
        """Learn what an operation of `STEPS` computes, after those that its operands come from.

        Returns:
            Why it is none of a dequantization, if its operands are.
        """
        result = op.results[0]
        if not is_static(result.type):
            if any(self._facts.get(operand) for operand in op.operands):
                return NoMatch("has a dynamic shape")
            return None
        is_integer = isinstance(result.type.element_type, ir.IntegerType)
        if is_integer:
            self._follow_field(op)
        if op.name in VIEWS:
            found = self._viewed(op)
        elif op.name == "stablehlo.convert":
            found = self._converted(op)
        elif op.name == "stablehlo.concatenate":
            found = self._joined(op)
        elif op.name == "stablehlo.select":
            found = self._signed_by_choice(op)
        elif op.name in _COMPUTATIONS:
            found = self._of_integers(op) if is_integer else self._computed(op)
        else:
            found = None
        if isinstance(found, NoMatch):
            return found
        field = self._fields.get(result)
        if found is None and field is not None and field.is_narrow:
            found = self._integers_of(field, result)
        if found is not None:
            self._facts[result] = found
        return None

    # -- bits of words ----------------------------------------------------------------------------

    def _field(self, value: Value) -> Field | None:
        """A value as bits of words."""
        if value in self._fields:
            return self._fields[value]
        if not is_static(value.type) or not Field.has_words(value.type):
            return None
        fact = self._facts.get(value)
        if fact is not None and (isinstance(fact, Reals) or fact.is_shifted or fact.field):
            return None
        part = part_of(value)
        return None if part.numbers is not None else Field.of(part.root, part.view)

    def _follow_field(self, op: Operation) -> None:
        """Learn which bits of words a result has."""
        field = self._field_after(op)
        if field is not None:
            self._fields[op.results[0]] = field

    def _field_after(self, op: Operation) -> Field | None:
        operand, name = op.operands[0], op.name
        if name in VIEWS:
            field = self._fields.get(operand)
            view = None if field is None else viewed(field.view, op)
            return replace(field, view=view) if field and isinstance(view, View) else None
        if name == "stablehlo.convert":
            field = self._field(operand) if is_static(operand.type) else None
            return field and field.converted(op.results[0].type.element_type)
        if name == "stablehlo.bitcast_convert":
            return self._split(op)
        if name not in (*SHIFTS, "stablehlo.and", "stablehlo.divide", "stablehlo.remainder",
                        "stablehlo.xor"):  # fmt: skip
            return None
        given = part_of(op.operands[1])
        if given.numbers is None and name in ("stablehlo.and", "stablehlo.xor"):
            operand, given = op.operands[1], part_of(operand)
        if given.numbers is None or given.numbers.size == 0:
            return None
        field = self._field(operand)
        if field is None:
            return None
        if name in SHIFTS:
            shifts = Shifts.of(given.numbers, given.view)
            keeps_sign = SHIFTS[name]
            is_unsigned = op.results[0].type.element_type.is_unsigned
            if shifts is None or (keeps_sign and is_unsigned):
                return None
            if keeps_sign is None:
                return field.shifted_left(shifts)
            return field.shifted_right(shifts, keeps_sign=keeps_sign)
        if given.numbers.size != 1:
            return None
        number = int(given.numbers.reshape(-1)[0])
        if name == "stablehlo.and":
            return field.masked(number)
        if name == "stablehlo.xor":
            is_sign = number & ((1 << field.container) - 1) == 1 << (field.width - 1)
            return field.with_other_sign() if is_sign else None
        if number <= 0 or number & (number - 1) or field.signed or not field.is_number:
            return None
        if name == "stablehlo.remainder":
            return field.masked(number - 1)
        bits = number.bit_length() - 1
        by_power = Shifts.of(np.array([bits]), View(()).broadcast((), field.view.shape))
        return None if by_power is None else field.shifted_right(by_power, keeps_sign=False)

    def _split(self, op: Operation) -> Field | None:
        """The parts of words that their bits are cut to, along a last axis."""
        source, target = op.operands[0].type, op.results[0].type
        field = self._field(op.operands[0]) if is_static(source) else None
        if field is None or not field.is_number or field.bias or field.width != field.container:
            return None
        if target.rank == source.rank:
            return field.converted(target.element_type)
        if target.rank < source.rank:
            return None
        width = target.element_type.width
        view = View((*field.view.axes, ((field.width // width, width),)))
        signed = not target.element_type.is_unsigned
        return replace(field, view=view, width=width, signed=signed, container=width)

    def _integers_of(self, field: Field, result: Value) -> Integers:
        """What is known of a result that is bits of words."""
        storage = _storage_type(result.type)
        whole = None if storage is None else part_of(result)
        return Integers(whole, storage or StorageType(32, True), *field.range, field=field)

    def _signed_by_choice(self, op: Operation) -> Integers | None:
        """``where(q < 8, q, q - 16)``, which is the number of the bits with a sign."""
        chosen, *cases = op.operands
        if isinstance(chosen.owner, ir.Block) or chosen.owner.operation.name != "stablehlo.compare":
            return None
        comparison = chosen.owner.operation
        compared, bound = comparison.operands[0], part_of(comparison.operands[1])
        field = self._fields.get(compared)
        if field is None or not field.is_narrow or field.signed or field.bias:
            return None
        direction = comparison_direction(comparison)
        half, numbers = 1 << (field.width - 1), bound.numbers
        if numbers is None or numbers.size != 1 or direction not in _LEAST_ABOVE:
            return None
        above = int(numbers.reshape(-1)[0]) + _LEAST_ABOVE[direction]
        high, low = cases if direction in ("GE", "GT") else reversed(cases)
        shifted = self._facts.get(high)
        is_below = (
            isinstance(shifted, Integers)
            and shifted.field == field
            and shifted.zero_points is not None
            and shifted.zero_points.numbers is not None
            and (shifted.zero_points.numbers == 2 * half).all()
        )
        if above != half or low != compared or not is_below:
            return None
        signed = replace(field, signed=True)
        self._fields[op.results[0]] = signed
        return self._integers_of(signed, op.results[0])

    def _joined(self, op: Operation) -> Fact | None:
        """Fields that are one after another along an axis."""
        facts = [self._facts.get(operand) for operand in op.operands]
        integers = [fact.integers if isinstance(fact, Reals) else fact for fact in facts]
        shapes = {tuple(operand.type.shape) for operand in op.operands}
        axis = int(op.attributes["dimension"])
        first = facts[0]
        fields = [each.field for each in integers if each is not None and each.field is not None]
        if first is None or len(fields) != len(facts) or len(shapes) != 1 or len(facts) < 2:
            return None
        field = joined(fields, axis)
        if field is None or len({_kind(fact) for fact in facts}) != 1:
            return None
        known = [each for each in integers if each is not None]
        others = [_other_parts(fact) for fact in facts if fact is not None]
        if any(each.zero_field for each in known):
            return None
        if not all(_same(each, others[0]) for each in others):
            return None
        if isinstance(first, Integers) and not others[0]:
            self._fields[op.results[0]] = field
            return self._integers_of(field, op.results[0])
        if not field.is_complete:
            return None
        spread = {name: _spread(part, axis, len(facts)) for name, part in others[0].items()}
        low, high = min(each.low for each in known), max(each.high for each in known)
        whole = Integers(None, known[0].type, low, high, spread.get("zero_points"), field)
        if isinstance(first, Integers):
            return whole
        scales = tuple(part for name, part in spread.items() if name.startswith("scales"))
        return replace(first, integers=whole, scales=scales, offsets=spread.get("offsets"))

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

    def _converted(self, op: Operation) -> Fact | NoMatch | None:
        source, target = op.operands[0], op.results[0].type.element_type
        if isinstance(target, ir.IntegerType):
            integers = self._integers(source)
            if integers is None or not _holds(target, integers):
                return None
            field = None if integers.is_shifted else self._fields.get(op.results[0])
            return replace(integers, field=field) if integers.field and field else integers
        expressed = _expressed(target)
        fact = self._facts.get(source)
        if expressed is None:
            return None
        if isinstance(fact, Reals):
            return self._rounded(fact, expressed)
        found = self._integers(source)
        return None if found is None else Reals(found, expressed)

    def _rounded(self, fact: Reals, expressed: ExpressedType) -> Reals | NoMatch | None:
        """Reals in another float type."""
        other, was = replace(fact, expressed=expressed), fact.expressed
        if fact.widened is not None:
            return replace(fact, widened=None) if expressed == was else None
        widened = replace(fact, widened=expressed) if Grain.of_type(was).fits(expressed) else None
        if not fact.is_exact or not other.is_exact or fact.offsets is not None:
            return widened
        if not fact.scales:
            return other
        product = _product(fact.integers.grain, fact.scales)
        if widened is not None:
            return other if product is not None and product.fits(was) else widened
        # What is too large for the type before is so for a narrower one.
        reaches = Grain.of_type(expressed).largest <= Grain.of_type(was).largest
        if product is None or not reaches or not product.is_fine_in(was):
            return NoMatch(f"rounds to {expressed.value} what {was.value} has rounded before")
        scales = [_narrowed(part, expressed) for part in fact.scales]
        together = _product(Grain(0, 0, 0), fact.scales)
        if any(part is None for part in scales) or together is None or not together.fits(expressed):
            return NoMatch(f"has scales that are no numbers of {expressed.value}")
        return replace(other, scales=tuple(part for part in scales if part is not None))

    # -- shapes -----------------------------------------------------------------------------------

    def _viewed(self, op: Operation) -> Fact | NoMatch | None:
        fact = self._facts.get(op.operands[0])
        if fact is None and isinstance(op.operands[0].type.element_type, ir.IntegerType):
            fact = self._integers(op.operands[0])
        if fact is None:
            return None
        integers = fact if isinstance(fact, Integers) else fact.integers
        named = _other_parts(fact) | {"storage": integers.storage}
        parts: dict[str, Part] = {}
        for name, part in named.items():
            found = None if part is None else moved(part, op)
            if isinstance(found, NoMatch):
                return found
            if found is not None:
                parts[name] = found
        fields: dict[str, Field] = {}
        for name, field in (("field", integers.field), ("zero_field", integers.zero_field)):
            view = None if field is None else viewed(field.view, op)
            if field is not None and isinstance(view, View):
                fields[name] = replace(field, view=view)
        integers = replace(
            integers,
            storage=parts.get("storage"),
            zero_points=parts.get("zero_points"),
            field=fields.get("field"),
            zero_field=fields.get("zero_field"),
        )
        if isinstance(fact, Integers):
            return integers
        scales = tuple(parts[name] for name in named if name.startswith("scales"))
        return replace(fact, integers=integers, scales=scales, offsets=parts.get("offsets"))

    # -- arithmetic -------------------------------------------------------------------------------

    def _computed(self, op: Operation) -> Fact | NoMatch | None:
        left, right = op.operands
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
        if fact.widened is not None:
            was, is_ = fact.expressed.value, fact.widened.value
            return NoMatch(f"computes in {is_} with what {was} has rounded")
        if name in ("stablehlo.divide", "stablehlo.multiply"):
            part = part_of(other) if name == "stablehlo.multiply" else _inverse(other, fact)
            return part if isinstance(part, NoMatch) else self._scaled(fact, part)
        if fact.offsets is not None:
            return NoMatch("adds for the second time, and each sum is rounded")
        if fact.scales:
            return replace(fact, offsets=part_of(other), subtracts=name == "stablehlo.subtract")
        return self._with_zero_point(fact, other, negative=name == "stablehlo.add")

    def _scaled(self, fact: Reals, part: Part) -> Reals | NoMatch:
        """Reals that are multiplied."""
        if fact.offsets is not None:
            return NoMatch("multiplies what is added to, and each step is rounded")
        storage = fact.integers.storage
        if storage is not None and storage.view.repeats:
            return NoMatch("has integers that are broadcast")
        scaled = replace(fact, scales=(*fact.scales, part))
        if not fact.scales:
            return scaled
        before = _product(fact.integers.grain, fact.scales)
        product = _product(Grain(0, 0, 0), scaled.scales)
        if before is None or product is None or not fact.is_exact:
            return NoMatch("multiplies for the second time, and each product is rounded")
        if not before.fits(fact.expressed) or not product.fits(fact.expressed):
            which = "of the scales" if before.fits(fact.expressed) else "before"
            return NoMatch(f"multiplies for the second time, and the product {which} is rounded")
        return scaled

    def _with_zero_point(self, fact: Reals, other: Value, *, negative: bool) -> Reals | NoMatch:
        """Reals of integers less a zero point, which is another float."""
        if fact.integers.is_shifted:
            return NoMatch("subtracts for the second time")
        integers: Integers | NoMatch
        converted = self._facts.get(other)
        if isinstance(converted, Reals) and not negative:
            if converted.scales or converted.integers.is_shifted or converted.widened:
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
        if integers is None or integers.is_shifted:
            return None
        element, part = op.results[0].type.element_type, part_of(right)
        found: Integers | NoMatch | None = None
        if part.numbers is not None:
            found = _less_constant(integers, part, negative=op.name == "stablehlo.add")
        elif op.name == "stablehlo.subtract":
            others = self._integers(right)
            if others is None or others.is_shifted:
                return None if fact is None else NoMatch("has a zero point of more than 16 bits")
            found = _less(integers, others)
        if isinstance(found, Integers) and not _holds(element, found):
            return NoMatch(f"subtracts in {element}, which wraps; convert to a wider type first")
        return found


_ORDERED = ("stablehlo.divide", "stablehlo.subtract")
_LEAST_ABOVE = {"GE": 0, "GT": 1, "LE": 1, "LT": 0}
"""What is added to a bound for the least integer on its upper side."""


def _other_parts(fact: Fact) -> dict[str, Part]:
    """Zero points, scales and offsets, as far as there are any."""
    integers = fact if isinstance(fact, Integers) else fact.integers
    named = {"zero_points": integers.zero_points}
    if isinstance(fact, Reals):
        named |= {f"scales {number}": part for number, part in enumerate(fact.scales)}
        named["offsets"] = fact.offsets
    return {name: part for name, part in named.items() if part is not None}


def _kind(fact: Fact | None) -> tuple[object, ...]:
    """What facts that are joined have in common beside their parts."""
    if isinstance(fact, Reals):
        return fact.expressed, fact.widened, fact.subtracts
    return (type(fact),)


def _same(parts: dict[str, Part], others: dict[str, Part]) -> bool:
    """True if parts are the same tensors, or constants of the same numbers."""

    def same(part: Part, other: Part) -> bool:
        if part.numbers is None or other.numbers is None:
            return part.root == other.root and part.numbers is other.numbers
        return np.array_equal(part.numbers, other.numbers)

    return parts.keys() == others.keys() and all(
        part.view == others[name].view and same(part, others[name]) for name, part in parts.items()
    )


def _spread(part: Part, axis: int, count: int) -> Part:
    """A part as often along an axis."""
    axes = list(part.view.axes)
    axes[axis] = ((count, 0), *axes[axis])
    return replace(part, view=View(tuple(axes)))


# -- products -------------------------------------------------------------------------------------


def _product(grain: Grain, parts: Iterable[Part]) -> Grain | None:
    """Of the products with parts, or None if that of one is not known."""
    for part in parts:
        own = _grain(part)
        if own is None:
            return None
        grain = grain * own
    return grain


def _grain(part: Part) -> Grain | None:
    """Of the numbers of a part, as far as they are known."""
    if part.numbers is not None:
        return Grain.of_numbers(part.numbers)
    source = _converted_from(part)
    if source is None:
        return None
    element = source.type.element_type
    if isinstance(element, ir.IntegerType):
        storage = _storage_type(source.type)
        return None if storage is None else Grain.of_integers(*storage.type_range)
    expressed = _expressed(element)
    return None if expressed is None else Grain.of_type(expressed)


def _converted_from(part: Part) -> Value | None:
    """The narrower tensor that the tensor of a part is converted from."""
    owner = part.root.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.convert":
        return None
    source, target = owner.operation.operands[0], part.root.type.element_type
    expressed, wider = _expressed(source.type.element_type), _expressed(target)
    if wider is None:
        return None
    if expressed is not None:
        return source if Grain.of_type(expressed).fits(wider) else None
    storage = _storage_type(source.type)
    is_exact = storage is not None and Grain.of_integers(*storage.type_range).fits(wider)
    return source if is_exact else None


def _narrowed(part: Part, expressed: ExpressedType) -> Part | None:
    """The same numbers in a float type that has them, or None."""
    if part.numbers is not None:
        grain = Grain.of_numbers(part.numbers)
        return part if grain is not None and grain.fits(expressed) else None
    source = _converted_from(part)
    if source is None or str(source.type.element_type) != expressed.value:
        return None
    return replace(part, root=source)


def _inverse(other: Value, fact: Reals) -> Part | NoMatch:
    """What is to be multiplied by in place of a division."""
    part = part_of(other)
    if part.numbers is None:
        return NoMatch("divides, which rounds otherwise than a multiplication by the inverse")
    numbers = part.numbers.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / numbers
    grain = Grain.of_numbers(inverse)
    is_power = bool((np.abs(np.frexp(numbers)[0]) == 0.5).all())
    if grain is None or not is_power or not grain.fits(fact.expressed):
        return NoMatch("divides by what is no power of two: its inverse is rounded")
    return replace(part, numbers=inverse)


# -- types and ranges -----------------------------------------------------------------------------


def _expressed(element: ir.Type) -> ExpressedType | None:
    name = str(element)
    return ExpressedType(name) if name in PRECISION else None


def _storage_type(type_: ir.Type) -> StorageType | None:
    if not is_static(type_) or not isinstance(type_.element_type, ir.IntegerType):
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
    return replace(
        integers,
        zero_points=other.storage,
        zero_field=other.field,
        low=bounds[0],
        high=bounds[1],
    )


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
