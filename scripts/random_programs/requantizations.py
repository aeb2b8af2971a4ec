"""Random requantizations, as LiteRT, TOSA and ONNX write them, and mutations of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .draft import Draft, random_step
from .integers import COMPARISONS, range_of
from .steps import Constant, Step


@dataclass(frozen=True)
class Scale:
    """Scales ``multiplier / 2**shift``, one or one for each N, and the clamp of results."""

    multipliers: list[int]
    shifts: list[int]
    zero_point: int
    limits: tuple[int, int]
    result: str


def _scale(draft: Draft, bits: int, reach: float, extremes: bool) -> Scale:
    """Draw multipliers of some bits; mostly, accumulators up to `reach` fill the result's range."""
    rng = draft.rng
    count = draft.n if rng.random() < 0.6 else 1
    top = 1 << bits
    multipliers, shifts = [], []
    for _ in range(count):
        kind = rng.random()
        normal = rng.choice((top // 2, top - 1, top // 2 + 1, 3 * top // 4)) if kind < 0.2 else (
            rng.randrange(top // 2, top))  # fmt: skip
        multiplier = rng.choice((0, 1, 2, 3, rng.randrange(top))) if (
            extremes and rng.random() < 0.15) else normal  # fmt: skip
        fits = np.log2(max(reach, 1.0) * max(multiplier, 1) / rng.choice((3, 60, 250, 250, 2000)))
        shift = int(min(max(round(fits), 2), 62))
        multipliers.append(multiplier)
        shifts.append(rng.randint(2, 62) if extremes and rng.random() < 0.1 else shift)
    if rng.random() < 0.3:
        shifts = [shifts[0]] * count
    result = rng.choice(("i8", "i8", "i8", "ui8", "i16"))
    low, high = range_of(result)
    zero_point = rng.choice((0, 0, low, high, rng.randint(low, high)))
    if rng.random() < 0.7 and result != "i16":
        zero_point = min(max(rng.randint(-20, 20), low), high)
    limits = (low, high)
    if result == "i8" and rng.random() < 0.15:  # unsigned bytes, stored as signed ones
        limits, zero_point = (0, 255), rng.randint(0, 255)
    elif rng.random() < 0.3:
        limits = tuple(sorted((rng.randint(low, high), rng.randint(low, high))))  # type: ignore[assignment]
    return Scale(multipliers, shifts, zero_point, limits, result)


def _collapsed(numbers: list[int], function: Callable[[int], int] = int) -> list[int]:
    results = [function(number) for number in numbers]
    return results[:1] if len(set(results)) == 1 else results


def _clamp_and_narrow(draft: Draft, value: int, scale: Scale) -> None:
    """Add the zero point, clamp, and narrow."""
    if scale.zero_point or draft.rng.random() < 0.5:
        value = draft.with_number("add", value, scale.zero_point)
    low, high = scale.limits
    element = draft.elements[value]
    if draft.rng.random() < 0.5:
        value = draft.add(
            "clamp", draft.constant(low, element), value, draft.constant(high, element)
        )
    else:
        bounds = [("maximum", low), ("minimum", high)]
        for op, bound in bounds if draft.rng.random() < 0.8 else bounds[::-1]:
            value = draft.with_number(op, value, bound)
    draft.convert(value, scale.result)


def _product(draft: Draft, scale: Scale, element: str = "i64") -> int:
    return draft.with_number("multiply", draft.convert(0, element), _collapsed(scale.multipliers))


def single_rounding(draft: Draft, scale: Scale) -> int:
    """Round half up: gemmlowp's single rounding, TOSA's apply_scale_32 and 16."""
    halves = _collapsed(scale.shifts, lambda n: 1 << (n - 1))
    value = draft.with_number("add", _product(draft, scale), halves)
    return draft.with_number("shift_right_arithmetic", value, _collapsed(scale.shifts))


def tosa_double_rounding(draft: Draft, scale: Scale) -> int:
    """TOSA's apply_scale_32 with double rounding."""
    value = _product(draft, scale)
    halves = _collapsed(scale.shifts, lambda n: 1 << (n - 1))
    more, less = (
        draft.constant([half + by for half in halves], "i64") for by in (1 << 30, -(1 << 30))
    )
    condition = draft.is_negative(draft.convert(0, "i64"))
    rounding = draft.add("select", condition, less, more, element="i64")
    value = draft.add("add", value, rounding)
    return draft.with_number("shift_right_arithmetic", value, _collapsed(scale.shifts))


def gemmlowp_double_rounding(draft: Draft, scale: Scale) -> int:
    """Saturating rounding doubling high product, and rounding division by a power of two."""
    rng = draft.rng
    shifts = _collapsed(scale.shifts, lambda n: max(n - 31, 0))
    value = _product(draft, scale)
    if rng.random() < 0.5:
        value = draft.with_number("add", value, 1 << 30)
        high = draft.with_number("shift_right_arithmetic", value, 31)
    else:  # as gemmlowp writes it: a nudge, and a division toward 0
        nudge = draft.add(
            "select", draft.is_negative(value), draft.constant(1 - (1 << 30), "i64"),
            draft.constant(1 << 30, "i64"), element="i64",
        )  # fmt: skip
        high = draft.with_number("divide", draft.add("add", value, nudge), 1 << 31)
    high = draft.convert(high, "i32")
    if rng.random() < 0.3:  # by a halving addition
        nudged = draft.add("add", high, draft.with_number("shift_right_arithmetic", high, 31))
        halves = draft.with_number(
            "shift_right_arithmetic", nudged, _collapsed(shifts, lambda n: max(n - 1, 0))
        )
        return draft.with_number("shift_right_arithmetic", draft.with_number("add", halves, 1), 1)
    mask = _collapsed(shifts, lambda n: (1 << n) - 1)
    rest = draft.with_number("and", high, mask)
    sign = draft.convert(draft.is_negative(high), "i32")
    least = draft.with_number("add", sign, _collapsed(mask, lambda n: n >> 1))
    more = draft.add("compare GT", rest, least, element="i1")
    value = draft.with_number("shift_right_arithmetic", high, shifts)
    return draft.add("add", value, draft.convert(more, "i32"))


def half_away_from_zero(draft: Draft, scale: Scale) -> int:
    """Round the magnitude half up."""
    wide = draft.convert(0, "i64")
    condition = draft.is_negative(wide)
    magnitude = draft.add("select", condition, draft.add("negate", wide), wide)
    value = draft.with_number("multiply", magnitude, _collapsed(scale.multipliers))
    value = draft.with_number("add", value, _collapsed(scale.shifts, lambda n: 1 << (n - 1)))
    value = draft.with_number("shift_right_arithmetic", value, _collapsed(scale.shifts))
    return draft.add("select", condition, draft.add("negate", value), value)


def half_to_even(draft: Draft, scale: Scale) -> int:
    """Round half to even, by the remainder."""
    value, rng = _product(draft, scale), draft.rng
    quotient = draft.with_number("shift_right_arithmetic", value, _collapsed(scale.shifts))
    rest = draft.with_number("and", value, _collapsed(scale.shifts, lambda n: (1 << n) - 1))
    half = _collapsed(scale.shifts, lambda n: 1 << (n - 1))
    odd = draft.with_number("and", quotient, 1)
    if rng.random() < 0.5:
        is_odd = draft.add("compare NE", odd, draft.constant(0, "i64"), element="i1")
        is_tie = draft.add("compare EQ", rest, draft.constant(half, "i64"), element="i1")
        beyond = draft.add("compare GT", rest, draft.constant(half, "i64"), element="i1")
        more = draft.add("or", beyond, draft.add("and", is_tie, is_odd))
    else:
        is_even = draft.add("compare EQ", odd, draft.constant(0, "i64"), element="i1")
        stays = draft.add("compare LE", rest, draft.constant(half, "i64"), element="i1")
        stays = draft.add("and", stays, is_even)
        more = draft.add("compare GE", rest, draft.constant(half, "i64"), element="i1")
        more = draft.add("and", more, draft.add("not", stays))
    return draft.add("add", quotient, draft.convert(more, "i64"))


def f32_rounding(draft: Draft, scale: Scale) -> int:
    """ONNX's rounding: an f32 product, and half to even."""
    factors = [m * 2.0**-n for m, n in zip(scale.multipliers, scale.shifts, strict=True)]
    value = draft.with_number("multiply", draft.convert(0, "f32"), factors)
    value = draft.add("round_nearest_even", value)
    value = draft.add("clamp", draft.constant(-1e6, "f32"), value, draft.constant(1e6, "f32"))
    return draft.convert(value, "i32")


_ROUNDINGS = (
    *(single_rounding, tosa_double_rounding, gemmlowp_double_rounding),
    *(half_away_from_zero, half_to_even, f32_rounding),
)


def rounding(draft: Draft, reach: float, *, floats: bool, extremes: bool) -> None:
    """Append a rounding of the last value and its clamp; a third of them get mutations."""
    rng, source = draft.rng, len(draft.steps)
    function = rng.choice(_ROUNDINGS if floats else _ROUNDINGS[:-1])
    bits = 15 if function is single_rounding and rng.random() < 0.3 else 31
    scale = _scale(draft, bits, reach, extremes)
    if rng.random() < 0.6:  # a bias
        draft.with_number("add", source, draft.per_n(lambda: rng.randint(-int(reach), int(reach))))
    start = len(draft.steps)
    _clamp_and_narrow(draft, function(draft, scale), scale)
    for n in range(start, len(draft.steps)):  # the rounding reads the biased accumulators
        step = draft.steps[n]
        operands = tuple(
            start if each == 0 and isinstance(each, int) else each for each in step.operands
        )
        draft.steps[n] = replace(step, operands=operands)
    while rng.random() < 0.35:
        mutate(draft)


def rescale(draft: Draft, reach: float) -> None:
    """Append a ``tosa.rescale`` of the last value, and a clamp."""
    rng, source = draft.rng, len(draft.steps)
    scale = _scale(draft, 31, reach, extremes=True)
    element = "i16" if scale.result == "i16" else "i8"
    low, high = range_of(element)
    zero = min(max(scale.zero_point, low), high) if element == "i8" else 0
    if rng.random() < 0.6:
        bias = draft.per_n(lambda: rng.randint(-int(reach), int(reach)))
        source = draft.with_number("add", source, bias)
    table = (rng.random() < 0.5, zero, *scale.multipliers, *scale.shifts)
    value = draft.add("rescale", source, element=element, table=map(int, table))
    if rng.random() < 0.5:
        value = draft.with_number("maximum", value, rng.randint(low, high))
        draft.with_number("minimum", value, rng.randint(low, high))


def mutate(draft: Draft) -> None:
    """Change the constants or the operation of a step, or add a step."""
    rng = draft.rng
    kind = rng.randrange(4)
    index = rng.choice([n for n, step in enumerate(draft.steps) if step.element != "f32"])
    step = draft.steps[index]
    if kind == 0:  # constants
        operands = list(step.operands)
        for n, each in enumerate(operands):
            if isinstance(each, Constant) and each.element not in ("f32", "i1"):
                low, high = range_of(each.element)
                by = rng.choice((-1, 1, 2, 64, -64))
                if not step.op.startswith(("divide", "remainder")):
                    numbers = (min(max(int(m) + by, low), high) for m in each.numbers)
                    operands[n] = Constant(tuple(numbers), each.element)
        draft.steps[index] = replace(step, operands=tuple(operands))
    elif kind == 1:  # an operation
        groups = (
            ("minimum", "maximum"), ("add", "subtract"), ("and", "or", "xor"),
            tuple(f"compare {each}" for each in COMPARISONS),
            ("shift_right_arithmetic", "shift_right_logical"),
        )  # fmt: skip
        for group in groups:
            if step.op in group:
                draft.steps[index] = replace(step, op=rng.choice(group))
    elif kind == 2 and step.element != "i1":  # one more step after it
        more = Draft(rng, draft.n)
        element = step.element
        op = rng.choice(("add", "multiply", "minimum", "maximum", "shift_right_arithmetic",
                         "negate", "abs", "xor", "and"))  # fmt: skip
        if element[0] == "u" and op in ("negate", "abs"):
            op = "add"
        operands = (index + 1,)
        if op not in ("negate", "abs"):
            numbers = more.per_n(lambda: rng.choice((more.number(element), rng.randint(-3, 3))))
            if op == "shift_right_arithmetic":
                numbers = more.per_n(lambda: rng.randrange(3))
            low, high = range_of(element)
            clamped = tuple(min(max(n, low), high) for n in numbers)
            operands = (index + 1, Constant(clamped, element))  # type: ignore[assignment]
        later = [
            _renumbered(each, index + 1, index + 2, index + 2) for each in draft.steps[index + 1 :]
        ]
        draft.steps[index + 1 :] = [Step(op, operands, element), *later]
        draft.elements.insert(index + 2, element)
    else:
        for _ in range(rng.randint(1, 3)):
            random_step(draft)


def _renumbered(step: Step, at: int, new: int, first: int) -> Step:
    """Replace the operand `at` by `new`, and add 1 to operands from `first` on."""
    operands = tuple(
        each if not isinstance(each, int) else new if each == at else each + (each >= first)
        for each in step.operands
    )
    return replace(step, operands=operands)
