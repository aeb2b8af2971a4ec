"""Random steps: operations of any kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .integers import COMPARISONS, bits_of, range_of, stored
from .steps import Argument, Constant, Numbers, Operand, Step

ELEMENTS = ("i8", "ui8", "i16", "ui16", "i32", "i32", "ui32", "i64", "i64", "ui64")


class Draft:
    """A list of steps that grows at random.

    Args:
        rng: the random numbers.
        n: the size of N, the numbers of a constant that differs along it.
        shape: the shape of extra arguments; empty for none.
    """

    def __init__(self, rng: random.Random, n: int, shape: Sequence[int] = ()) -> None:
        self.rng, self.n, self.shape = rng, n, shape
        self.steps: list[Step] = []
        self.elements = ["i32"]
        self.extra_arguments: list[Numbers] = []

    def add(self, op: str, *operands: Operand, element: str = "", table: Any = ()) -> int:
        """Append a step of its first operand's element type; return the number of its value."""
        first = operands[1 if op in ("select", "clamp") else 0]
        own = self.elements[first] if isinstance(first, int) else first.element
        self.steps.append(Step(op, operands, element or own, tuple(table)))
        self.elements.append(element or own)
        return len(self.steps)

    def with_number(self, op: str, value: int, number: Any) -> int:
        """Append a step of a value and a constant."""
        return self.add(op, value, self.constant(number, self.elements[value]))

    def convert(self, value: int, element: str) -> int:
        """Append a conversion."""
        return self.add("convert", value, element=element)

    def is_negative(self, value: int) -> int:
        """Append a comparison with 0."""
        zero = self.constant(0, self.elements[value])
        return self.add("compare LT", value, zero, element="i1")

    @staticmethod
    def constant(numbers: Any, element: str) -> Constant:
        """A constant: a number, or a list of one for each N."""
        listed = numbers if isinstance(numbers, list | tuple) else [numbers]
        return Constant(tuple(listed), element)

    def per_n(self, draw: Callable[[], int]) -> list[int]:
        """Draw a number, or one for each N."""
        return [draw() for _ in range(self.n if self.rng.random() < 0.4 else 1)]

    def number(self, element: str) -> int:
        """Draw a number of an element type, often an extreme one."""
        low, high = range_of(element)
        kind = self.rng.randrange(6)
        if kind == 0:
            return self.rng.choice((low, low + 1, high, high - 1, 0, 1))
        if kind == 1:
            power = (1 << self.rng.randrange(bits_of(element))) + self.rng.randint(-1, 1)
            return min(max(power, low), high)
        if kind == 2:
            return self.rng.randint(low, high)
        return min(max(self.rng.randint(-300, 300), low), high)

    def shift_count(self, element: str) -> int:
        """Draw a shift count, sometimes out of range."""
        bits = bits_of(element)
        _, high = range_of(element)
        odd = self.rng.choice(
            (0, 1, bits - 1, bits, bits + 1, 2 * bits, high, range_of(element)[0])
        )
        return min(odd, high) if self.rng.random() < 0.3 else self.rng.randrange(bits)

    def operand(self, element: str, draw: Callable[[], int] | None = None) -> Operand:
        """Draw an operand of an element type: an earlier value, a constant, or an argument."""
        values = [value for value, each in enumerate(self.elements) if each == element]
        chance = self.rng.random()
        if draw is None and values and chance < 0.2:
            return self.rng.choice(values)
        number = draw or (lambda: self.number(element))
        if chance > 0.97 and self.shape and element not in ("i1", "f32"):
            numbers = [number() for _ in range(int(np.prod(self.shape)))]
            array = stored(np.array(numbers, object), element).reshape(self.shape)
            self.extra_arguments.append(array)
            return Argument(len(self.extra_arguments) - 1, element)
        if chance > 0.92 and self.shape and self.shape[0] > 1:
            return Constant(tuple(number() for _ in range(self.shape[0])), element, 0)
        return self.constant(self.per_n(number), element)


def random_step(draft: Draft) -> None:
    """Append an operation on the last value, or on an earlier one."""
    rng = draft.rng
    value = len(draft.steps) if rng.random() < 0.85 else rng.randrange(len(draft.steps) + 1)
    element = draft.elements[value]
    if element == "f32":
        return
    if element == "i1":
        kind = rng.randrange(4)
        if kind == 0:
            draft.add("not", value)
        elif kind == 1:
            draft.add(rng.choice(("and", "or", "xor")), value, draft.operand("i1"))
        elif kind == 2:
            draft.convert(value, rng.choice(ELEMENTS))
        else:
            chosen = rng.choice(ELEMENTS)
            cases = draft.operand(chosen), draft.operand(chosen)
            draft.add("select", value, *cases, element=chosen)
        return
    kind = rng.randrange(60) / 4
    if kind < 3:
        op = rng.choice(("add", "subtract", "multiply", "minimum", "maximum", "and", "or", "xor"))
        draft.add(op, value, draft.operand(element))
    elif kind < 6:
        op = rng.choice(("shift_left", "shift_left", *["shift_right_arithmetic"] * 6,
                         "shift_right_logical"))  # fmt: skip
        draft.add(op, value, draft.operand(element, lambda: draft.shift_count(element)))
    elif kind < 8.5:
        draft.convert(value, rng.choice(ELEMENTS))
    elif kind < 9.5:
        unsigned = element[0] == "u"
        draft.add(rng.choice(("not",) if unsigned else ("not", "negate", "abs")), value)
    elif kind < 10.5:
        low, high = sorted((draft.number(element), draft.number(element)))
        if rng.random() < 0.1:
            low, high = high, low
        draft.add("clamp", draft.constant(low, element), value, draft.constant(high, element))
    elif kind < 14:
        direction = rng.choice(tuple(COMPARISONS))
        condition = draft.add(f"compare {direction}", value, draft.operand(element), element="i1")
        if rng.random() < 0.8:
            draft.add("select", condition, value, draft.operand(element), element=element)
    elif kind < 14.25:
        divisor = min(max(1, abs(draft.number(element))), range_of(element)[1])
        draft.with_number(rng.choice(("divide", "remainder")), value, divisor)
    elif kind < 14.5 and element[0] != "u":
        draft.add("sign", value)
    else:
        look_up(draft, value)


def look_up(draft: Draft, value: int) -> None:
    """Append a lookup in a table of bytes."""
    byte = value if draft.elements[value] == "ui8" else draft.convert(value, "ui8")
    table = [draft.rng.randint(-128, 127) for _ in range(256)]
    draft.add("lookup", draft.convert(byte, "i32"), element="i8", table=table)


def chain(draft: Draft) -> None:
    """Append operations of any kind."""
    for _ in range(draft.rng.randint(1, 12)):
        random_step(draft)
    if draft.rng.random() < 0.8:
        narrow = draft.rng.choice((*["i8"] * 6, "ui8", "i16", "i32"))
        draft.convert(len(draft.steps), narrow)


def second_contraction(draft: Draft) -> float:
    """Perhaps append a contraction of the last bytes; return the reach of its accumulators."""
    value, numpy = len(draft.steps), np.random.default_rng(draft.rng.getrandbits(63))
    if draft.elements[value] != "i8" or draft.rng.random() < 0.6 or draft.n > 33:
        return 0.0
    weight = numpy.integers(-128, 128, draft.n**2) >> draft.rng.randrange(8)
    draft.add("dot", value, element="i32", table=weight.tolist())
    return float(np.abs(weight.reshape(draft.n, -1)).sum(0).max()) * 64
