"""Dequantization in a program's arithmetic: integers, zero points, scales and offsets.

`Arithmetic` visits the operations of a program in order. For a value computed from narrow integers
it records a `Fact`: ``q - z``, or ``(q - z) * s + o``. Reshapes, transpositions and broadcasts
change the views of a fact's operands only.

An operation extends a fact where it is exactly a step of ``subquant.dequantize``. Elsewhere a
remark gives the reason.

* Conversions to a wider integer type, and subtractions that the type holds for every ``q`` and
  ``z``, are exact.
* ``convert(q - z)`` rounds once, as a dequantization does. ``convert(q) - convert(z)`` is the same
  number where the float type has every integer of the range of ``q``, ``z`` and ``q - z``: then
  nothing is rounded. Both give +0 where ``q = z``. The same holds for the subtraction of a constant
  whose elements are integers, and the addition of its negative.
* A multiplication rounds once to its type, and so does that of a dequantization. Of two in a row
  each rounds, which no dequantization does; but where ``(q - z) * s`` has few bits and ``s * t``
  too (`BinaryFormat`), neither is rounded, and ``((q - z) * s) * t`` is ``(q - z) * (s * t)``.
* A division by a power of two is the multiplication by its inverse.
* A conversion of ``(q - z) * s`` to a narrower float rounds once if the product was not rounded
  before; then it is the dequantization in the narrower type, if that has every ``s``. One to a
  wider type is exact, and may follow.
* An addition after it rounds once, as that of an offset; a subtraction adds the negative.
* Shifts and masks of words give integers of fewer bits, which are stored packed (`Field`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit.stablehlo_semantics import comparison_direction
from ...numerics.parameters import ExpressedType, StorageType
from ..base import NoMatch, producer_named
from .binary_format import BinaryFormat
from .bit_fields import Field, concatenated
from .facts import (
    ExpressedFact,
    Fact,
    IntegerFact,
    are_equal,
    expressed_type,
    holds,
    inverse_of,
    kind_of,
    minus,
    minus_constant,
    narrowed,
    parameters_of_fact,
    product_format,
    range_of,
    repeated,
    storage_type,
)
from .field_arithmetic import BITS, FieldArithmetic
from .tensor_views import VIEWS, TensorView, is_static, moved_strides, moved_view, tensor_view
from .views import View

COMPUTATIONS = ("stablehlo.add", "stablehlo.divide", "stablehlo.multiply", "stablehlo.subtract")
STEPS = (*VIEWS, *COMPUTATIONS, *BITS, "stablehlo.convert")
"""Operations of dequantizing arithmetic."""
NO_INTEGER = NoMatch("has a zero point that is not known to be an integer")


class Arithmetic(FieldArithmetic):
    """Facts about the values of a program."""

    def of(self, value: Value) -> Fact | None:
        """The fact about a value."""
        return self._facts.get(value)

    def follow(self, op: Operation) -> NoMatch | None:
        """Record the fact about an operation of `STEPS`, after those about its operands.

        The result is the reason why it ends a dequantization, where its operands have facts.
        """
        result = op.results[0]
        if not is_static(result.type):
            if any(self._facts.get(operand) for operand in op.operands):
                return NoMatch("has a dynamic shape")
            return None
        is_integer = isinstance(result.type.element_type, ir.IntegerType)
        if is_integer and (result_field := self._field_after(op)) is not None:
            self._fields[result] = result_field
        fact: Fact | NoMatch | None = None
        if op.name in VIEWS:
            fact = self._viewed(op)
        elif op.name == "stablehlo.convert":
            fact = self._converted(op)
        elif op.name == "stablehlo.concatenate":
            fact = self._concatenated(op)
        elif op.name == "stablehlo.select":
            fact = self._sign_extended_by_select(op)
        elif op.name in COMPUTATIONS:
            fact = self._of_integers(op) if is_integer else self._computed(op)
        if isinstance(fact, NoMatch):
            return fact
        field = self._fields.get(result)
        if fact is None and field is not None and field.is_narrow:
            fact = self._integers_of(field, result)
        if fact is not None:
            self._facts[result] = fact
        return None

    def _integers_of(self, field: Field, result: Value) -> IntegerFact:
        """The fact about a result that is a bit field."""
        storage = storage_type(result.type)
        whole = None if storage is None else tensor_view(result)
        return IntegerFact(whole, storage or StorageType(32, True), *field.range, field=field)

    def _sign_extended_by_select(self, op: Operation) -> IntegerFact | None:
        """The fact about ``where(q < 8, q, q - 16)``, which extends the sign; None for others."""
        chosen, *cases = op.operands
        comparison = producer_named(chosen, "stablehlo.compare")
        if comparison is None:
            return None
        compared, bound = comparison.operands[0], tensor_view(comparison.operands[1])
        field = self._fields.get(compared)
        if field is None or not field.is_narrow or field.signed or field.bias:
            return None
        direction = comparison_direction(comparison)
        half, numbers = 1 << (field.width - 1), bound.numbers
        if numbers is None or numbers.size != 1 or direction not in _UPPER_OFFSET:
            return None
        above = int(numbers.reshape(-1)[0]) + _UPPER_OFFSET[direction]
        high, low = cases if direction in ("GE", "GT") else reversed(cases)
        shifted = self._facts.get(high)
        is_below = (
            isinstance(shifted, IntegerFact)
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

    def _concatenated(self, op: Operation) -> Fact | None:
        """The fact about concatenated bit fields; None for unlike kinds or parameters, or gaps."""
        facts = [self._facts.get(operand) for operand in op.operands]
        integers = [fact.integers if isinstance(fact, ExpressedFact) else fact for fact in facts]
        shapes = {tuple(operand.type.shape) for operand in op.operands}
        axis = int(op.attributes["dimension"])
        first = facts[0]
        fields = [each.field for each in integers if each is not None and each.field is not None]
        if first is None or len(fields) != len(facts) or len(shapes) != 1 or len(facts) < 2:
            return None
        field = concatenated(fields, axis)
        if field is None or len({kind_of(fact) for fact in facts}) != 1:
            return None
        all_integers = [each for each in integers if each is not None]
        parameters = [parameters_of_fact(fact) for fact in facts if fact is not None]
        is_alike = all(are_equal(each, parameters[0]) for each in parameters)
        if any(each.zero_field for each in all_integers) or not is_alike:
            return None
        if isinstance(first, IntegerFact) and not parameters[0]:
            self._fields[op.results[0]] = field
            return self._integers_of(field, op.results[0])
        if not field.is_complete:
            return None
        spread = {name: repeated(view, axis, len(facts)) for name, view in parameters[0].items()}
        low, high = min(each.low for each in all_integers), max(each.high for each in all_integers)
        whole = IntegerFact(None, all_integers[0].type, low, high, spread.get("zero_points"), field)
        if isinstance(first, IntegerFact):
            return whole
        scales = tuple(part for name, part in spread.items() if name.startswith("scales"))
        offsets, zeros = spread.get("offsets"), spread.get("real_zero_points")
        return replace(
            first, integers=whole, scales=scales, offsets=offsets, real_zero_points=zeros
        )

    # -- integers and conversions -----------------------------------------------------------------

    def _integers(self, value: Value) -> IntegerFact | None:
        """A value as narrow integers; None for floats, and integers of more than 16 bits."""
        fact = self._facts.get(value)
        if fact is not None:
            return fact if isinstance(fact, IntegerFact) else None
        storage = storage_type(value.type)
        if storage is None:
            return None
        return IntegerFact(tensor_view(value), storage, *range_of(tensor_view(value), storage))

    def _converted(self, op: Operation) -> Fact | NoMatch | None:
        """The fact about a conversion; None for unknown floats, or types without all the values."""
        source, target = op.operands[0], op.results[0].type.element_type
        if isinstance(target, ir.IntegerType):
            integers = self._integers(source)
            if integers is None or not holds(target, integers):
                return None
            field = None if integers.is_shifted else self._fields.get(op.results[0])
            return replace(integers, field=field) if integers.field and field else integers
        expressed = expressed_type(target)
        fact = self._facts.get(source)
        if expressed is None:
            return None
        if isinstance(fact, ExpressedFact):
            return self._rounded(fact, expressed)
        integers = self._integers(source)
        return None if integers is None else ExpressedFact(integers, expressed)

    def _rounded(
        self, fact: ExpressedFact, expressed: ExpressedType
    ) -> ExpressedFact | NoMatch | None:
        """Expressed values after a conversion to another float type."""
        other, was = replace(fact, expressed=expressed), fact.expressed
        if fact.widened is not None:
            return replace(fact, widened=None) if expressed == was else None
        widened = (
            replace(fact, widened=expressed) if BinaryFormat.of_type(was).fits(expressed) else None
        )
        has_sum = fact.offsets is not None or fact.real_zero_points is not None
        if not fact.is_exact or not other.is_exact or has_sum:
            return widened
        if not fact.scales:
            return other
        product = product_format(fact.integers.binary_format, fact.scales)
        if widened is not None:
            return other if product is not None and product.fits(was) else widened
        # Numbers too large for the wider type are too large for the narrower one.
        reaches = BinaryFormat.of_type(expressed).largest <= BinaryFormat.of_type(was).largest
        if product is None or not reaches or not product.has_bits_of(was):
            return NoMatch(f"rounds to {expressed.value} what {was.value} has rounded before")
        scales = [narrowed(part, expressed) for part in fact.scales]
        together = product_format(BinaryFormat(0, 0, 0), fact.scales)
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
        integers = fact if isinstance(fact, IntegerFact) else fact.integers
        operands = parameters_of_fact(fact) | {"storage": integers.storage}
        views: dict[str, TensorView] = {}
        for name, operand in operands.items():
            moved = None if operand is None else moved_view(operand, op)
            if isinstance(moved, NoMatch):
                return moved
            if moved is not None:
                views[name] = moved
        fields: dict[str, Field] = {}
        for name, field in (("field", integers.field), ("zero_field", integers.zero_field)):
            view = None if field is None else moved_strides(field.view, op)
            if field is not None and isinstance(view, View):
                fields[name] = replace(field, view=view)
        integers = replace(
            integers,
            storage=views.get("storage"),
            zero_points=views.get("zero_points"),
            field=fields.get("field"),
            zero_field=fields.get("zero_field"),
        )
        if isinstance(fact, IntegerFact):
            return integers
        scales = tuple(views[name] for name in operands if name.startswith("scales"))
        offsets, zeros = views.get("offsets"), views.get("real_zero_points")
        return replace(
            fact, integers=integers, scales=scales, offsets=offsets, real_zero_points=zeros
        )

    # -- arithmetic -------------------------------------------------------------------------------

    def _computed(self, op: Operation) -> Fact | NoMatch | None:
        left, right = op.operands
        pairs = [(left, right)] if op.name in _ORDERED else [(left, right), (right, left)]
        why: NoMatch | None = None
        for value, other in pairs:
            fact = self._facts.get(value)
            if not isinstance(fact, ExpressedFact):
                continue
            extended = self._extended(op.name, fact, other)
            if not isinstance(extended, NoMatch):
                return extended
            why = why or extended
        is_expressed = isinstance(self._facts.get(right), ExpressedFact)
        if why is None and op.name in _ORDERED and is_expressed:
            what = "divides by" if op.name == "stablehlo.divide" else "subtracts"
            return NoMatch(f"{what} integers that are dequantized")
        return why

    def _extended(self, name: str, fact: ExpressedFact, other: Value) -> ExpressedFact | NoMatch:
        """Expressed values after an operation with another operand."""
        if fact.widened is not None:
            was, is_ = fact.expressed.value, fact.widened.value
            return NoMatch(f"computes in {is_} with what {was} has rounded")
        if name in ("stablehlo.divide", "stablehlo.multiply"):
            part = tensor_view(other) if name == "stablehlo.multiply" else inverse_of(other, fact)
            return part if isinstance(part, NoMatch) else self._scaled(fact, part)
        if fact.offsets is not None or fact.real_zero_points is not None:
            return NoMatch("adds for the second time, and each sum is rounded")
        if fact.scales:
            return replace(fact, offsets=tensor_view(other), subtracts=name == "stablehlo.subtract")
        return self._with_zero_point(fact, other, negative=name == "stablehlo.add")

    def _scaled(self, fact: ExpressedFact, part: TensorView) -> ExpressedFact | NoMatch:
        """Expressed values after a multiplication."""
        if fact.offsets is not None:
            return NoMatch("multiplies what is added to, and each step is rounded")
        storage = fact.integers.storage
        if storage is not None and storage.view.repeats:
            return NoMatch("has integers that are broadcast")
        scaled = replace(fact, scales=(*fact.scales, part))
        if not fact.scales:
            return scaled
        if fact.real_zero_points is not None:
            return NoMatch("multiplies for the second time, and each product is rounded")
        before = product_format(fact.integers.binary_format, fact.scales)
        product = product_format(BinaryFormat(0, 0, 0), scaled.scales)
        if before is None or product is None or not fact.is_exact:
            return NoMatch("multiplies for the second time, and each product is rounded")
        if not before.fits(fact.expressed) or not product.fits(fact.expressed):
            which = "of the scales" if before.fits(fact.expressed) else "before"
            return NoMatch(f"multiplies for the second time, and the product {which} is rounded")
        return scaled

    def _with_zero_point(
        self, fact: ExpressedFact, other: Value, *, negative: bool
    ) -> ExpressedFact | NoMatch:
        """Expressed values after the subtraction of a zero point, a float."""
        if fact.integers.is_shifted:
            return NoMatch("subtracts for the second time")
        integers: IntegerFact | NoMatch
        converted = self._facts.get(other)
        if isinstance(converted, ExpressedFact) and not negative:
            if converted.scales or converted.integers.is_shifted or converted.widened:
                return NoMatch("has a zero point that is no integer of the program")
            if not converted.is_exact:
                return NoMatch(f"has zero points that {fact.expressed.value} rounds")
            integers = minus(fact.integers, converted.integers)
        else:
            part = tensor_view(other)
            if part.numbers is None or not (part.numbers == np.rint(part.numbers)).all():
                if negative or not fact.is_exact:
                    return NO_INTEGER
                return replace(fact, real_zero_points=part)
            integers = minus_constant(fact.integers, part, negative=negative)
        if isinstance(integers, NoMatch):
            return integers
        shifted = replace(fact, integers=integers)
        if not fact.is_exact or not shifted.is_exact:
            name = fact.expressed.value
            return NoMatch(f"subtracts integers of {fact.integers.type}, which {name} rounds")
        return shifted

    def _of_integers(self, op: Operation) -> Fact | NoMatch | None:
        """The fact about ``q - z``; None for other operations, NoMatch (a reason) if it wraps."""
        left, right = op.operands
        fact, integers = self._facts.get(left), self._integers(left)
        is_sum = op.name in ("stablehlo.subtract", "stablehlo.add")
        if not is_sum or integers is None or integers.is_shifted:
            return None
        element, part = op.results[0].type.element_type, tensor_view(right)
        difference: IntegerFact | NoMatch | None = None
        if part.numbers is not None:
            difference = minus_constant(integers, part, negative=op.name == "stablehlo.add")
        elif op.name == "stablehlo.subtract":
            zero_points = self._integers(right)
            if zero_points is None or zero_points.is_shifted:
                return None if fact is None else NoMatch("has a zero point of more than 16 bits")
            difference = minus(integers, zero_points)
        if isinstance(difference, IntegerFact) and not holds(element, difference):
            return NoMatch(f"subtracts in {element}, which wraps; convert to a wider type first")
        return difference


_ORDERED = ("stablehlo.divide", "stablehlo.subtract")
_UPPER_OFFSET = {"GE": 0, "GT": 1, "LE": 1, "LT": 0}
"""The offset from a bound to the least integer on its upper side."""
