"""Results of steps by Python's integers, wrapped to their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .steps import Argument, Numbers, Step, rescaling


def bits_of(element: str) -> int:
    """The width of an integer type."""
    return int(element.lstrip("uif"))


def range_of(element: str) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    bits = bits_of(element)
    return (0, (1 << bits) - 1) if element[0] == "u" or bits == 1 else (
        -(1 << (bits - 1)), (1 << (bits - 1)) - 1)  # fmt: skip


def _wrapped(numbers: Numbers, element: str) -> Numbers:
    low, numbers = range_of(element)[0], np.asarray(numbers).astype(object)
    return np.asarray((numbers - low) % (1 << bits_of(element)) + low, object)


def stored(numbers: Numbers, element: str) -> Numbers:
    """Numbers in the type that a program returns."""
    if element == "i1":
        return numbers.astype(np.bool_)
    if element == "f32":
        return numbers
    return numbers.astype(f"{'u' if element[0] == 'u' else ''}int{max(8, bits_of(element))}")


def _as_booleans(numbers: Numbers) -> Numbers:
    return numbers.astype(bool).astype(int).astype(object)


def _shift(op: str, x: Numbers, counts: Numbers, element: str) -> Numbers:
    bits = bits_of(element)
    counts = counts % (1 << bits)  # counts are unsigned
    if op == "shift_left":
        return np.where(counts < bits, x << np.minimum(counts, bits), 0)
    if op == "shift_right_logical":
        return (x % (1 << bits)) >> np.minimum(counts, bits)
    signed = "i" + element.lstrip("ui")
    return _wrapped(x, signed) >> np.minimum(counts, bits - 1)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "divide": lambda a, b: np.where(a < 0, -(abs(a) // b), a // b),  # of positive divisors
    "remainder": lambda a, b: np.where(a < 0, -(abs(a) % b), a % b),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "negate": lambda a: -a,
    "abs": abs,
    "not": lambda a: ~a,
    "sign": lambda a: (a > 0) * 1 - (a < 0) * 1,
}


def evaluated(
    steps: Sequence[Step], accumulators: Numbers, extra_arguments: Sequence[Numbers] = ()
) -> list[Numbers]:
    """The accumulators and the results of steps; N is the last axis."""
    values, elements = [_wrapped(accumulators, "i32")], ["i32"]
    for step in steps:
        operands, types = [], []
        for each in step.operands:
            if isinstance(each, int):
                operands.append(values[each])
                types.append(elements[each])
                continue
            types.append(each.element)
            if isinstance(each, Argument):
                numbers = extra_arguments[each.number]
                operands.append(numbers.astype(np.float32 if each.element == "f32" else object))
                continue
            if each.element == "f32":
                operand = np.array(each.numbers, np.float32)
            else:
                operand = np.array([int(n) for n in each.numbers], object)
            if each.axis == 0:
                operand = operand.reshape(-1, *[1] * (values[0].ndim - 1))
            operands.append(operand)
        result = np.broadcast_to(np.asarray(_step(step, operands, types)), values[0].shape)
        is_f32 = step.element == "f32"
        values.append(result.astype(np.float32) if is_f32 else _wrapped(result, step.element))
        elements.append(step.element)
    return values


def _step(step: Step, operands: list[Numbers], types: list[str]) -> Numbers:
    op, _, direction = step.op.partition(" ")
    if op == "convert":
        x, source, target = operands[0], types[0], step.element
        if target == "f32":
            kind = np.uint64 if source[0] == "u" else np.int64
            return x.astype(kind).astype(np.float32)
        if source == "f32":
            x = np.trunc(x).astype(np.int64).astype(object)
        return _as_booleans(x != 0) if target == "i1" else _wrapped(x, target)
    if op == "compare":
        return _as_booleans(np.asarray(COMPARISONS[direction](*operands)))
    if op == "select":
        return np.where(operands[0].astype(bool), operands[1], operands[2])
    if op == "clamp":
        return np.minimum(np.maximum(operands[1], operands[0]), operands[2])
    if op == "rescale":
        return rescaled(step, operands[0])
    if op == "dot":
        n = operands[0].shape[-1]
        weight = np.array(step.table, np.int64).reshape(n, n)
        return operands[0].astype(np.int64) @ weight
    if op == "lookup":
        indices = np.clip(operands[0].astype(np.int64), 0, len(step.table) - 1)
        return np.array(step.table, object)[indices]
    if op == "round_nearest_even":
        return np.rint(operands[0])
    if op.startswith("shift"):
        return _shift(op, *operands, step.element)
    if step.element == "i1" and op in ("add", "multiply", "maximum", "minimum"):
        op = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}[op]
    if op in _UNARY:
        return np.asarray(_UNARY[op](operands[0]))
    return np.asarray(_BINARY[op](*operands))


def rescaled(step: Step, x: Numbers) -> Numbers:
    """RESCALE by TOSA's pseudocode, saturating."""
    is_double, zero, multipliers, shifts = rescaling(step)
    multiplier, shift = (np.array(each, object) for each in (multipliers, shifts))
    half = np.array([1 << (n - 1) for n in shifts], object)
    if is_double:
        half = half + np.where(shift > 31, np.where(x >= 0, 1 << 30, -(1 << 30)), 0)
    low, high = range_of(step.element)
    results = ((x * multiplier + half) >> shift) + zero
    return np.minimum(np.maximum(results, low), high)
