"""Bit fields of the values of a program: the effect of shifts, masks and conversions on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core._mlir import Operation, Value
from .bit_fields import Field, Shifts
from .facts import ExpressedFact, Fact
from .tensor_views import VIEWS, is_static, moved_strides, tensor_view
from .views import View

SHIFTS = {
    "stablehlo.shift_left": None,
    "stablehlo.shift_right_arithmetic": True,
    "stablehlo.shift_right_logical": False,
}
"""Shifts: True for those that keep the sign, None for left shifts."""
BITS = (
    *SHIFTS,
    *("stablehlo.and", "stablehlo.bitcast_convert", "stablehlo.compare", "stablehlo.concatenate"),
    *("stablehlo.remainder", "stablehlo.select", "stablehlo.xor"),
)
"""Operations that extract integers from words."""


class FieldArithmetic:
    """Bit fields of values, beside the facts about them.

    Args:
        has_constant_words: words may be small constants, which are numbers otherwise.
    """

    def __init__(self, *, has_constant_words: bool = False) -> None:
        self._facts: dict[Value, Fact] = {}
        self._fields: dict[Value, Field] = {}
        self._has_constant_words = has_constant_words

    def field_of(self, value: Value) -> Field | None:
        """The bit field that was recorded for a value."""
        return self._fields.get(value)

    def _field(self, value: Value) -> Field | None:
        """A value as a bit field of words; None for floats, constants, dynamic sizes, offsets."""
        if value in self._fields:
            return self._fields[value]
        if not is_static(value.type) or not Field.has_words(value.type):
            return None
        fact = self._facts.get(value)
        if fact is not None and (isinstance(fact, ExpressedFact) or fact.is_shifted or fact.field):
            return None
        part = tensor_view(value)
        if part.numbers is not None and not self._has_constant_words:
            return None
        return Field.of(part.root, part.view)

    def _field_after(self, op: Operation) -> Field | None:
        """The bit field of a result; None if it has none."""
        operand, name = op.operands[0], op.name
        if name in VIEWS:
            field = self._fields.get(operand)
            view = None if field is None else moved_strides(field.view, op)
            return replace(field, view=view) if field and isinstance(view, View) else None
        if name == "stablehlo.convert":
            field = self._field(operand) if is_static(operand.type) else None
            return field and field.converted(op.results[0].type.element_type)
        if name == "stablehlo.bitcast_convert":
            return self._split(op)
        if name not in (*SHIFTS, "stablehlo.and", "stablehlo.divide", "stablehlo.remainder",
                        "stablehlo.xor"):  # fmt: skip
            return None
        constant = tensor_view(op.operands[1])
        if constant.numbers is None and name in ("stablehlo.and", "stablehlo.xor"):
            operand, constant = op.operands[1], tensor_view(operand)
        if constant.numbers is None or constant.numbers.size == 0:
            return None
        field = self._field(operand)
        if field is None:
            return None
        if name in SHIFTS:
            shifts = Shifts.of(constant.numbers, constant.view)
            keeps_sign = SHIFTS[name]
            is_unsigned = op.results[0].type.element_type.is_unsigned
            if shifts is None or (keeps_sign and is_unsigned):
                return None
            if keeps_sign is None:
                return field.shifted_left(shifts)
            return field.shifted_right(shifts, keeps_sign=keeps_sign)
        if constant.numbers.size != 1:
            return None
        number = int(constant.numbers.reshape(-1)[0])
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
        """The narrower words of a ``bitcast_convert``; None for wider words, partial fields."""
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
