#!/usr/bin/env python3
"""Run programs that are drawn at random, and compare their numbers with Python's integers.

    scripts/fuzz numbers                               200 programs of all kinds
    scripts/fuzz numbers --count 20000 --seed 7        the long run
    scripts/fuzz numbers --kinds staircases            some kinds
    scripts/fuzz numbers --replay chains:123 --seed 7  one program again

Kinds:

* ``chains``: operations on integers, element by element, behind a contraction: shifts by all
  counts, narrowings and widenings, choices, look-ups, 64 bits;
* ``requantizations``: the roundings of TensorFlow Lite, TOSA and ONNX behind a contraction, with
  the extremes of multipliers, shifts and zero points, some of them changed at one place;
* ``rescales``: TOSA's own operation for that;
* ``staircases``: roundings as `subquant.kernels.epilogue.requant_analysis` sees them: what it
  proves is compared with every sum of a range. Nothing is compiled.

The others are compiled some together, with kernels and without (``--kernels spirv``: on Vulkan),
and called from several threads at once; what they give must be what Python's integers give. A
program that is wrong is made smaller, and written with its numbers to ``build/fuzz/KIND-NUMBER``.
Each follows from its kind, the seed and its number. Exit status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

_KEPT = Path(__file__).resolve().parent.parent / "build/fuzz"
_TOGETHER = 24
"""Programs of a module: IREE's compiler takes longer to start than to compile a few."""
_THREADS = 4
"""That call programs at once, each twice."""
_MOST_SUMS = 2500
"""On each side of 0, where all are looked at."""
_TRIES = 60
"""To make a program smaller."""

Numbers = np.ndarray[Any, Any]
"""Python's integers, or f32."""


# -- programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A number, or one for each column; with the axis 0 one for each row, or picture."""

    numbers: tuple[float, ...]
    element: str
    axis: int = -1


@dataclass(frozen=True)
class Given:
    """An argument of the function, of the shape of the sums."""

    number: int
    element: str


Operand = int | Known | Given
"""A number is a step's; 0 are the sums, and step ``n`` gives ``n + 1``."""


@dataclass(frozen=True)
class Step:
    """An operation.

    Attributes:
        op: StableHLO's name, with the direction of a comparison behind it.
        element: of the result.
        table: of a look-up; of a ``dot`` with a square matrix its elements; of TOSA's ``rescale``
            whether it rounds twice, the zero point, and as many multipliers as shifts.
    """

    op: str
    operands: tuple[Operand, ...]
    element: str
    table: tuple[int, ...] = ()


@dataclass(frozen=True)
class Window:
    """How a convolution reads pictures, along both axes.

    Attributes:
        steps: from a window to the next.
        apart: of its positions.
        around: what is added before and after a picture; less than nothing takes some away.
        groups: of channels.
    """

    steps: tuple[int, int] = (1, 1)
    apart: tuple[int, int] = (1, 1)
    around: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    groups: int = 1


@dataclass(frozen=True)
class Contraction:
    """Integers, multiplied and summed.

    Attributes:
        kind: dot, transposed (a dot with a weight of rows), or convolution.
        x, w: the operands.
        is_given: the weight is an argument.
        window: of a convolution.
    """

    kind: str
    x: Numbers
    w: Numbers
    is_given: bool
    window: Window = Window()

    def sums(self) -> Numbers:
        """What the sums are."""
        x, w = self.x.astype(np.int64), self.w.astype(np.int64)
        if self.kind == "dot":
            return x @ w
        if self.kind == "transposed":
            return x @ w.T
        window, columns = self.window, self.w.shape[3]
        padded = np.pad(x, [(0, 0), *((max(0, n), max(0, m)) for n, m in window.around), (0, 0)])
        for axis, (before, after) in enumerate(window.around, 1):
            kept = np.arange(max(0, -before), padded.shape[axis] - max(0, -after))
            padded = padded.take(kept, axis)
        counts = [
            (extent - (size - 1) * apart - 1) // step + 1
            for extent, size, apart, step in zip(
                padded.shape[1:3], w.shape, window.apart, window.steps, strict=False
            )
        ]
        sums = np.zeros((x.shape[0], *counts, columns), np.int64)
        depth, of_group = self.w.shape[2], columns // window.groups
        for tap in np.ndindex(*w.shape[:2]):
            at = [
                np.arange(count) * step + n * apart
                for count, step, n, apart in zip(
                    counts, window.steps, tap, window.apart, strict=True
                )
            ]
            part = padded[:, at[0]][:, :, at[1]]
            for group in range(window.groups):
                own = slice(group * of_group, (group + 1) * of_group)
                channels = part[..., group * depth : (group + 1) * depth]
                sums[..., own] += channels @ w[tap][:, own]
        return sums

    def text(self, shape: str) -> str:
        """The operation; its operands are ``%x`` and ``%w``."""
        types = f"({_type(self.x)}, {_type(self.w)}) -> tensor<{shape}xi32>"
        if self.kind in ("dot", "transposed"):
            axis = int(self.kind == "transposed")
            return f"stablehlo.dot_general %x, %w, contracting_dims = [1] x [{axis}] : {types}"
        window = self.window
        around = ", ".join(f"[{before}, {after}]" for before, after in window.around)
        return (
            "stablehlo.convolution(%x, %w) "
            "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            f"window = {{stride = {[*window.steps]}, pad = [{around}], "
            f"rhs_dilate = {[*window.apart]}}} {{batch_group_count = 1 : i64, "
            f"feature_group_count = {window.groups} : i64}} : {types}"
        )


@dataclass(frozen=True)
class Program:
    """A contraction, and what follows.

    Attributes:
        results: the steps whose values are returned.
        given: arguments beside the contraction's.
    """

    contraction: Contraction
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    given: tuple[Numbers, ...] = ()

    def arguments(self) -> list[Numbers]:
        """What it is called with."""
        weight = [self.contraction.w] if self.contraction.is_given else []
        return [self.contraction.x, *weight, *self.given]

    def wanted(self) -> list[Numbers]:
        """What it gives."""
        values = evaluated(self.steps, self.contraction.sums().astype(object), self.given)
        elements = ["i32", *(step.element for step in self.steps)]
        return [_held(values[n], elements[n]) for n in self.results]

    def text(self, name: str) -> str:
        """The function."""
        sums = self.contraction.sums()
        shape = "x".join(map(str, sums.shape))
        w = self.contraction.w
        arguments = [f"%x: {_type(self.contraction.x)}"]
        arguments += [f"%w: {_type(w)}"] if self.contraction.is_given else []
        arguments += [f"%g{n}: {_type(array)}" for n, array in enumerate(self.given)]
        lines = []
        if not self.contraction.is_given:
            lines.append(f"%w = stablehlo.constant dense<{w.tolist()}> : {_type(w)}")
        lines += [f"%v0 = {self.contraction.text(shape)}", *_lines(self.steps, shape)]
        elements = ["i32", *(step.element for step in self.steps)]
        values = ", ".join(f"%v{n}" for n in self.results)
        types = ", ".join(f"tensor<{shape}x{elements[n]}>" for n in self.results)
        body = "\n  ".join([*lines, f"return {values} : {types}"])
        return f"func.func @{name}({', '.join(arguments)}) -> ({types}) {{\n  {body}\n}}\n"


def _type(array: Numbers) -> str:
    kinds = {"i": "i", "u": "ui", "b": "i", "f": "f"}
    bits = 1 if array.dtype == np.bool_ else 8 * array.dtype.itemsize
    return f"tensor<{'x'.join(map(str, array.shape))}x{kinds[array.dtype.kind]}{bits}>"


def _lines(steps: Sequence[Step], shape: str) -> list[str]:
    """The text of steps; ``%v0`` are the sums."""
    lines: list[str] = []
    elements = ["i32", *(step.element for step in steps)]

    def type_(element: str) -> str:
        return f"tensor<{shape}x{element}>"

    def operand(given: Operand, place: str) -> tuple[str, str]:
        if isinstance(given, int):
            return f"%v{given}", elements[given]
        if isinstance(given, Given):
            return f"%g{given.number}", given.element
        texts = [_number_text(number, given.element) for number in given.numbers]
        if len(texts) == 1:
            lines.append(
                f"%{place} = stablehlo.constant dense<{texts[0]}> : {type_(given.element)}"
            )
            return f"%{place}", given.element
        row = f"tensor<{len(texts)}x{given.element}>"
        lines.append(f"%{place}r = stablehlo.constant dense<[{', '.join(texts)}]> : {row}")
        axis = shape.count("x") if given.axis else 0
        lines.append(
            f"%{place} = stablehlo.broadcast_in_dim %{place}r, dims = [{axis}] : "
            f"({row}) -> {type_(given.element)}"
        )
        return f"%{place}", given.element

    for number, step in enumerate(steps, 1):
        made = [operand(each, f"c{number}_{n}") for n, each in enumerate(step.operands)]
        names = ", ".join(name for name, _ in made)
        types = f"({', '.join(type_(element) for _, element in made)}) -> {type_(step.element)}"
        op, _, direction = step.op.partition(" ")
        if op == "lookup":
            table = f"tensor<{len(step.table)}x{step.element}>"
            lines.append(f"%t{number} = stablehlo.constant dense<{[*step.table]}> : {table}")
            rank = shape.count("x") + 1
            lines.append(
                f'%v{number} = "stablehlo.gather"(%t{number}, {names}) <{{dimension_numbers = '
                f"#stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], "
                f"index_vector_dim = {rank}>, slice_sizes = array<i64: 1>}}> : "
                f"({table}, {type_(made[0][1])}) -> {type_(step.element)}"
            )
            continue
        if op == "rescale":
            lines += _rescale_lines(number, step, names, type_)
            continue
        if op == "dot":
            columns, rank = int(shape.rpartition("x")[2]), shape.count("x") + 1
            table = f"tensor<{columns}x{columns}xi8>"
            rows = np.array(step.table).reshape(columns, columns).tolist()
            lines.append(f"%t{number} = stablehlo.constant dense<{rows}> : {table}")
            lines.append(
                f"%v{number} = stablehlo.dot_general {names}, %t{number}, "
                f"contracting_dims = [{rank - 1}] x [0] : ({type_('i8')}, {table}) -> "
                f"{type_('i32')}"
            )
            continue
        direction = f"{direction}, " if direction else ""
        lines.append(f'%v{number} = "stablehlo.{op}"({names}) : {types}' if op not in _PRETTY else
                     f"%v{number} = stablehlo.{op} {direction}{names} : {types}")  # fmt: skip
    return lines


def _rescale_lines(number: int, step: Step, given: str, type_: Callable[[str], str]) -> list[str]:
    """The text of a ``tosa.rescale`` of i32."""
    is_double, zero, multipliers, shifts = _rescaling(step)
    lines = []

    def constant(name: str, numbers: Sequence[int], element: str) -> str:
        type_ = f"tensor<{len(numbers)}x{element}>"
        lines.append(
            f'%{name}{number} = "tosa.const"() <{{values = dense<{[*numbers]}> : {type_}}}> '
            f": () -> {type_}"
        )
        return type_

    types = [constant("m", multipliers, "i32"), constant("k", shifts, "i8")]
    types += [constant("xz", [0], "i32"), constant("rz", [zero], step.element)]
    flags = (
        f"input_unsigned = false, output_unsigned = false, per_channel = "
        f"{str(len(shifts) > 1).lower()}, scale32 = true, rounding_mode = "
        f"{'DOUBLE_ROUND' if is_double else 'SINGLE_ROUND'}"
    )
    lines.append(
        f"%v{number} = tosa.rescale {given}, %m{number}, %k{number}, %xz{number}, %rz{number} "
        f"{{{flags}}} : ({', '.join([type_('i32'), *types])}) -> {type_(step.element)}"
    )
    return lines


def _rescaling(step: Step) -> tuple[bool, int, tuple[int, ...], tuple[int, ...]]:
    is_double, zero, *rest = step.table
    count = len(rest) // 2
    return bool(is_double), zero, tuple(rest[:count]), tuple(rest[count:])


def _rescaled(step: Step, given: Numbers) -> Numbers:
    """TOSA's pseudocode of RESCALE, saturating."""
    is_double, zero, multipliers, shifts = _rescaling(step)
    multiplier, shift = (np.array(each, object) for each in (multipliers, shifts))
    half = np.array([1 << (n - 1) for n in shifts], object)
    if is_double:
        half = half + np.where(shift > 31, np.where(given >= 0, 1 << 30, -(1 << 30)), 0)
    low, high = _ends(step.element)
    found = ((given * multiplier + half) >> shift) + zero
    return np.minimum(np.maximum(found, low), high)


_PRETTY = ("compare",)


def _number_text(number: float, element: str) -> str:
    if element == "f32":
        return f"0x{np.float32(number).view(np.uint32):08X}"
    if element == "i1":
        return str(bool(number)).lower()
    return str(int(number))


# -- what they give -------------------------------------------------------------------------------


def _bits(element: str) -> int:
    return int(element.lstrip("uif"))


def _ends(element: str) -> tuple[int, int]:
    bits = _bits(element)
    return (0, (1 << bits) - 1) if element[0] == "u" or bits == 1 else (
        -(1 << (bits - 1)), (1 << (bits - 1)) - 1)  # fmt: skip


def _wrapped(numbers: Numbers, element: str) -> Numbers:
    low, numbers = _ends(element)[0], np.asarray(numbers).astype(object)
    return np.asarray((numbers - low) % (1 << _bits(element)) + low, object)


def _held(numbers: Numbers, element: str) -> Numbers:
    """As a program returns them."""
    if element == "i1":
        return numbers.astype(np.bool_)
    if element == "f32":
        return numbers
    return numbers.astype(f"{'u' if element[0] == 'u' else ''}int{max(8, _bits(element))}")


def _truth(numbers: Numbers) -> Numbers:
    return numbers.astype(bool).astype(int).astype(object)


def _convert(given: Numbers, source: str, target: str) -> Numbers:
    if target == "f32":
        kind = np.uint64 if source[0] == "u" else np.int64
        return given.astype(kind).astype(np.float32)
    if source == "f32":
        given = np.trunc(given).astype(np.int64).astype(object)
    return _truth(given != 0) if target == "i1" else _wrapped(given, target)


def _shift(op: str, given: Numbers, counts: Numbers, element: str) -> Numbers:
    bits = _bits(element)
    counts = counts % (1 << bits)  # they have no sign
    if op == "shift_left":
        return np.where(counts < bits, given << np.minimum(counts, bits), 0)
    if op == "shift_right_logical":
        return (given % (1 << bits)) >> np.minimum(counts, bits)
    signed = "i" + element.lstrip("ui")
    return _wrapped(given, signed) >> np.minimum(counts, bits - 1)


_DIRECTIONS: dict[str, Callable[[Any, Any], Any]] = {
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
    "divide": lambda a, b: np.where(a < 0, -(abs(a) // b), a // b),  # of positive ones
    "remainder": lambda a, b: np.where(a < 0, -(abs(a) % b), a % b),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "negate": lambda a: -a,
    "abs": abs,
    "not": lambda a: ~a,
    "sign": lambda a: (a > 0) * 1 - (a < 0) * 1,
}


def evaluated(steps: Sequence[Step], sums: Numbers, given: Sequence[Numbers] = ()) -> list[Numbers]:
    """What steps give, after the sums; columns are along the last axis."""
    values, elements = [_wrapped(sums, "i32")], ["i32"]
    for step in steps:
        operands, types = [], []
        for each in step.operands:
            if isinstance(each, int):
                operands.append(values[each])
                types.append(elements[each])
                continue
            types.append(each.element)
            numbers = given[each.number] if isinstance(each, Given) else np.array(each.numbers)
            of_floats = each.element == "f32"
            operands.append(numbers.astype(np.float32 if of_floats else object))
            if isinstance(each, Known) and not of_floats:
                operands[-1] = np.array([int(n) for n in each.numbers], object)
            if isinstance(each, Known) and each.axis == 0:
                operands[-1] = operands[-1].reshape(-1, *[1] * (values[0].ndim - 1))
        found = np.asarray(_step(step, operands, types))
        found = np.broadcast_to(found, values[0].shape)
        of_floats = step.element == "f32"
        values.append(found.astype(np.float32) if of_floats else _wrapped(found, step.element))
        elements.append(step.element)
    return values


def _step(step: Step, operands: list[Numbers], types: list[str]) -> Numbers:
    op, _, direction = step.op.partition(" ")
    if op == "convert":
        return _convert(operands[0], types[0], step.element)
    if op == "compare":
        return _truth(np.asarray(_DIRECTIONS[direction](*operands)))
    if op == "select":
        return np.where(operands[0].astype(bool), operands[1], operands[2])
    if op == "clamp":
        return np.minimum(np.maximum(operands[1], operands[0]), operands[2])
    if op == "rescale":
        return _rescaled(step, operands[0])
    if op == "dot":
        columns = operands[0].shape[-1]
        weight = np.array(step.table, np.int64).reshape(columns, columns)
        return operands[0].astype(np.int64) @ weight
    if op == "lookup":
        places = np.clip(operands[0].astype(np.int64), 0, len(step.table) - 1)
        return np.array(step.table, object)[places]
    if op == "round_nearest_even":
        return np.rint(operands[0])
    if op.startswith("shift"):
        return _shift(op, *operands, step.element)
    if step.element == "i1" and op in ("add", "multiply", "maximum", "minimum"):
        op = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}[op]
    if op in _UNARY:
        return np.asarray(_UNARY[op](operands[0]))
    return np.asarray(_BINARY[op](*operands))


# -- drawing --------------------------------------------------------------------------------------

_ELEMENTS = ("i8", "ui8", "i16", "ui16", "i32", "i32", "ui32", "i64", "i64", "ui64")


class Draft:
    """Steps as they are drawn.

    Args:
        rng: draws.
        columns: how many numbers a known operand may have.
        shape: of given operands; none for none.
    """

    def __init__(self, rng: random.Random, columns: int, shape: Sequence[int] = ()) -> None:
        self.rng, self.columns, self.shape = rng, columns, shape
        self.steps: list[Step] = []
        self.elements = ["i32"]
        self.given: list[Numbers] = []

    def add(self, op: str, *operands: Operand, element: str = "", table: Any = ()) -> int:
        """Append a step, of the element of its first operand, and return its number."""
        first = operands[1 if op in ("select", "clamp") else 0]
        found = element or (self.elements[first] if isinstance(first, int) else first.element)
        self.steps.append(Step(op, operands, found, tuple(table)))
        self.elements.append(found)
        return len(self.steps)

    def with_number(self, op: str, value: int, number: Any) -> int:
        """A step of a value and a number, or one for each column."""
        return self.add(op, value, self.known(number, self.elements[value]))

    def convert(self, value: int, element: str) -> int:
        """A step that converts a value."""
        return self.add("convert", value, element=element)

    def is_negative(self, value: int) -> int:
        """A step that says whether a value is."""
        zero = self.known(0, self.elements[value])
        return self.add("compare LT", value, zero, element="i1")

    @staticmethod
    def known(numbers: Any, element: str) -> Known:
        """A number, or one for each column."""
        listed = numbers if isinstance(numbers, list | tuple) else [numbers]
        return Known(tuple(listed), element)

    def some(self, draw: Callable[[], int]) -> list[int]:
        """A number, or one for each column."""
        return [draw() for _ in range(self.columns if self.rng.random() < 0.4 else 1)]

    def number(self, element: str) -> int:
        """One of an element type."""
        low, high = _ends(element)
        kind = self.rng.randrange(6)
        if kind == 0:
            return self.rng.choice((low, low + 1, high, high - 1, 0, 1))
        if kind == 1:
            near = (1 << self.rng.randrange(_bits(element))) + self.rng.randint(-1, 1)
            return min(max(near, low), high)
        if kind == 2:
            return self.rng.randint(low, high)
        return min(max(self.rng.randint(-300, 300), low), high)

    def count(self, element: str) -> int:
        """Of a shift."""
        bits = _bits(element)
        _, high = _ends(element)
        odd = self.rng.choice((0, 1, bits - 1, bits, bits + 1, 2 * bits, high, _ends(element)[0]))
        return min(odd, high) if self.rng.random() < 0.3 else self.rng.randrange(bits)

    def other(self, element: str, draw: Callable[[], int] | None = None) -> Operand:
        """An operand of an element type: an earlier value, a number or numbers, or an argument."""
        values = [n for n, each in enumerate(self.elements) if each == element]
        chance = self.rng.random()
        if draw is None and values and chance < 0.2:
            return self.rng.choice(values)
        if chance > 0.97 and self.shape and element not in ("i1", "f32"):
            drawn = [
                (draw or (lambda: self.number(element)))() for _ in range(int(np.prod(self.shape)))
            ]
            array = _held(np.array(drawn, object), element).reshape(self.shape)
            self.given.append(array)
            return Given(len(self.given) - 1, element)
        if chance > 0.92 and self.shape and self.shape[0] > 1:  # which differs from row to row
            drawn = [(draw or (lambda: self.number(element)))() for _ in range(self.shape[0])]
            return Known(tuple(drawn), element, 0)
        return self.known(self.some(draw or (lambda: self.number(element))), element)


def random_step(draft: Draft) -> None:
    """Append an operation on what came last, or on something before."""
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
            draft.add(rng.choice(("and", "or", "xor")), value, draft.other("i1"))
        elif kind == 2:
            draft.convert(value, rng.choice(_ELEMENTS))
        else:
            other = rng.choice(_ELEMENTS)
            draft.add("select", value, draft.other(other), draft.other(other), element=other)
        return
    kind = rng.randrange(60) / 4
    if kind < 3:
        op = rng.choice(("add", "subtract", "multiply", "minimum", "maximum", "and", "or", "xor"))
        draft.add(op, value, draft.other(element))
    elif kind < 6:
        op = rng.choice(("shift_left", "shift_left", *["shift_right_arithmetic"] * 6,
                         "shift_right_logical"))  # fmt: skip
        draft.add(op, value, draft.other(element, lambda: draft.count(element)))
    elif kind < 8.5:
        draft.convert(value, rng.choice(_ELEMENTS))
    elif kind < 9.5:
        unsigned = element[0] == "u"
        draft.add(rng.choice(("not",) if unsigned else ("not", "negate", "abs")), value)
    elif kind < 10.5:
        low, high = sorted((draft.number(element), draft.number(element)))
        if rng.random() < 0.1:
            low, high = high, low
        draft.add("clamp", draft.known(low, element), value, draft.known(high, element))
    elif kind < 14:
        direction = rng.choice(tuple(_DIRECTIONS))
        found = draft.add(f"compare {direction}", value, draft.other(element), element="i1")
        if rng.random() < 0.8:
            draft.add("select", found, value, draft.other(element), element=element)
    elif kind < 14.25:
        by = max(1, abs(draft.number(element)))
        by = min(by, _ends(element)[1])
        draft.with_number(rng.choice(("divide", "remainder")), value, by)
    elif kind < 14.5 and element[0] != "u":
        draft.add("sign", value)
    else:
        look_up(draft, value)


def look_up(draft: Draft, value: int) -> None:
    """Append a look-up in a table of bytes."""
    byte = value if draft.elements[value] == "ui8" else draft.convert(value, "ui8")
    table = [draft.rng.randint(-128, 127) for _ in range(256)]
    draft.add("lookup", draft.convert(byte, "i32"), element="i8", table=table)


def chain(draft: Draft) -> None:
    """Operations of any kind."""
    for _ in range(draft.rng.randint(1, 12)):
        random_step(draft)
    if draft.rng.random() < 0.8:
        narrow = draft.rng.choice((*["i8"] * 6, "ui8", "i16", "i32"))
        draft.convert(len(draft.steps), narrow)


def multiply_again(draft: Draft) -> float:
    """Append a product of bytes with a matrix, if those are last; return how great it may be."""
    value, numpy = len(draft.steps), np.random.default_rng(draft.rng.getrandbits(63))
    if draft.elements[value] != "i8" or draft.rng.random() < 0.6 or draft.columns > 33:
        return 0.0
    weight = numpy.integers(-128, 128, draft.columns**2) >> draft.rng.randrange(8)
    draft.add("dot", value, element="i32", table=weight.tolist())
    return float(np.abs(weight.reshape(draft.columns, -1)).sum(0).max()) * 64


# -- roundings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """``multiplier / 2**shift``, one or one for each column; and what results are.

    Attributes:
        steps: how many, about, a result has in the range of sums.
    """

    multipliers: list[int]
    shifts: list[int]
    zero_point: int
    limits: tuple[int, int]
    result: str


def _scale(draft: Draft, bits: int, reach: float, extremes: bool) -> Scale:
    """A multiplier of so many bits; mostly sums up to `reach` become some hundred results."""
    rng = draft.rng
    count = draft.columns if rng.random() < 0.6 else 1
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
    low, high = _ends(result)
    zero_point = rng.choice((0, 0, low, high, rng.randint(low, high)))
    if rng.random() < 0.7 and result != "i16":
        zero_point = min(max(rng.randint(-20, 20), low), high)
    limits = (low, high)
    if result == "i8" and rng.random() < 0.15:  # bytes without a sign, held as such with one
        limits, zero_point = (0, 255), rng.randint(0, 255)
    elif rng.random() < 0.3:
        limits = tuple(sorted((rng.randint(low, high), rng.randint(low, high))))  # type: ignore[assignment]
    return Scale(multipliers, shifts, zero_point, limits, result)


def _one(numbers: list[int], function: Callable[[int], int] = int) -> list[int]:
    found = [function(number) for number in numbers]
    return found[:1] if len(set(found)) == 1 else found


def _finished(draft: Draft, value: int, scale: Scale) -> None:
    """Add the zero point, clamp, and narrow."""
    if scale.zero_point or draft.rng.random() < 0.5:
        value = draft.with_number("add", value, scale.zero_point)
    low, high = scale.limits
    element = draft.elements[value]
    if draft.rng.random() < 0.5:
        value = draft.add("clamp", draft.known(low, element), value, draft.known(high, element))
    else:
        bounds = [("maximum", low), ("minimum", high)]
        for op, bound in bounds if draft.rng.random() < 0.8 else bounds[::-1]:
            value = draft.with_number(op, value, bound)
    draft.convert(value, scale.result)


def _product(draft: Draft, scale: Scale, element: str = "i64") -> int:
    return draft.with_number("multiply", draft.convert(0, element), _one(scale.multipliers))


def once(draft: Draft, scale: Scale) -> int:
    """Half up: gemmlowp's single rounding, TOSA's apply_scale_32 and 16."""
    halves = _one(scale.shifts, lambda n: 1 << (n - 1))
    value = draft.with_number("add", _product(draft, scale), halves)
    return draft.with_number("shift_right_arithmetic", value, _one(scale.shifts))


def twice_of_tosa(draft: Draft, scale: Scale) -> int:
    """TOSA's apply_scale_32 with double rounding."""
    value = _product(draft, scale)
    halves = _one(scale.shifts, lambda n: 1 << (n - 1))
    more, less = (
        draft.known([half + by for half in halves], "i64") for by in (1 << 30, -(1 << 30))
    )
    condition = draft.is_negative(draft.convert(0, "i64"))
    rounding = draft.add("select", condition, less, more, element="i64")
    value = draft.add("add", value, rounding)
    return draft.with_number("shift_right_arithmetic", value, _one(scale.shifts))


def twice_of_gemmlowp(draft: Draft, scale: Scale) -> int:
    """A doubling high product, and a rounding division by a power of two."""
    rng = draft.rng
    shifts = _one(scale.shifts, lambda n: max(n - 31, 0))
    value = _product(draft, scale)
    if rng.random() < 0.5:
        value = draft.with_number("add", value, 1 << 30)
        high = draft.with_number("shift_right_arithmetic", value, 31)
    else:  # as it is written: a nudge, and a division towards 0
        nudge = draft.add(
            "select", draft.is_negative(value), draft.known(1 - (1 << 30), "i64"),
            draft.known(1 << 30, "i64"), element="i64",
        )  # fmt: skip
        high = draft.with_number("divide", draft.add("add", value, nudge), 1 << 31)
    high = draft.convert(high, "i32")
    if rng.random() < 0.3:  # by half of the sum
        nudged = draft.add("add", high, draft.with_number("shift_right_arithmetic", high, 31))
        halves = draft.with_number(
            "shift_right_arithmetic", nudged, _one(shifts, lambda n: max(n - 1, 0))
        )
        return draft.with_number("shift_right_arithmetic", draft.with_number("add", halves, 1), 1)
    mask = _one(shifts, lambda n: (1 << n) - 1)
    rest = draft.with_number("and", high, mask)
    sign = draft.convert(draft.is_negative(high), "i32")
    least = draft.with_number("add", sign, _one(mask, lambda n: n >> 1))
    more = draft.add("compare GT", rest, least, element="i1")
    value = draft.with_number("shift_right_arithmetic", high, shifts)
    return draft.add("add", value, draft.convert(more, "i32"))


def away(draft: Draft, scale: Scale) -> int:
    """The magnitude half up."""
    wide = draft.convert(0, "i64")
    condition = draft.is_negative(wide)
    magnitude = draft.add("select", condition, draft.add("negate", wide), wide)
    value = draft.with_number("multiply", magnitude, _one(scale.multipliers))
    value = draft.with_number("add", value, _one(scale.shifts, lambda n: 1 << (n - 1)))
    value = draft.with_number("shift_right_arithmetic", value, _one(scale.shifts))
    return draft.add("select", condition, draft.add("negate", value), value)


def to_even(draft: Draft, scale: Scale) -> int:
    """Halves to even, by the rest."""
    value, rng = _product(draft, scale), draft.rng
    quotient = draft.with_number("shift_right_arithmetic", value, _one(scale.shifts))
    rest = draft.with_number("and", value, _one(scale.shifts, lambda n: (1 << n) - 1))
    half = _one(scale.shifts, lambda n: 1 << (n - 1))
    odd = draft.with_number("and", quotient, 1)
    if rng.random() < 0.5:
        is_odd = draft.add("compare NE", odd, draft.known(0, "i64"), element="i1")
        at = draft.add("compare EQ", rest, draft.known(half, "i64"), element="i1")
        beyond = draft.add("compare GT", rest, draft.known(half, "i64"), element="i1")
        more = draft.add("or", beyond, draft.add("and", at, is_odd))
    else:
        is_even = draft.add("compare EQ", odd, draft.known(0, "i64"), element="i1")
        stays = draft.add("compare LE", rest, draft.known(half, "i64"), element="i1")
        stays = draft.add("and", stays, is_even)
        more = draft.add("compare GE", rest, draft.known(half, "i64"), element="i1")
        more = draft.add("and", more, draft.add("not", stays))
    return draft.add("add", quotient, draft.convert(more, "i64"))


def by_floats(draft: Draft, scale: Scale) -> int:
    """ONNX's: a product of f32, and halves to even."""
    factors = [m * 2.0**-n for m, n in zip(scale.multipliers, scale.shifts, strict=True)]
    value = draft.with_number("multiply", draft.convert(0, "f32"), factors)
    value = draft.add("round_nearest_even", value)
    value = draft.add("clamp", draft.known(-1e6, "f32"), value, draft.known(1e6, "f32"))
    return draft.convert(value, "i32")


_ROUNDINGS = (once, twice_of_tosa, twice_of_gemmlowp, away, to_even, by_floats)


def rounding(draft: Draft, reach: float, *, floats: bool, extremes: bool) -> None:
    """One of them of what is last, and what follows; in one of three it is changed.

    Somewhere, and in one of eight once more.
    """
    rng, source = draft.rng, len(draft.steps)
    function = rng.choice(_ROUNDINGS if floats else _ROUNDINGS[:-1])
    bits = 15 if function is once and rng.random() < 0.3 else 31
    scale = _scale(draft, bits, reach, extremes)
    if rng.random() < 0.6:  # a bias, in the place of the sums
        draft.with_number("add", source, draft.some(lambda: rng.randint(-int(reach), int(reach))))
    start = len(draft.steps)
    _finished(draft, function(draft, scale), scale)
    for n in range(start, len(draft.steps)):  # in the place of the sums
        step = draft.steps[n]
        operands = tuple(
            start if each == 0 and isinstance(each, int) else each for each in step.operands
        )
        draft.steps[n] = replace(step, operands=operands)
    while rng.random() < 0.35:
        changed(draft)


def rescale(draft: Draft, reach: float) -> None:
    """TOSA's own operation of what is last, and a clamp."""
    rng, source = draft.rng, len(draft.steps)
    scale = _scale(draft, 31, reach, extremes=True)
    element = "i16" if scale.result == "i16" else "i8"
    low, high = _ends(element)
    zero = min(max(scale.zero_point, low), high) if element == "i8" else 0
    if rng.random() < 0.6:
        bias = draft.some(lambda: rng.randint(-int(reach), int(reach)))
        source = draft.with_number("add", source, bias)
    table = (rng.random() < 0.5, zero, *scale.multipliers, *scale.shifts)
    value = draft.add("rescale", source, element=element, table=map(int, table))
    if rng.random() < 0.5:
        value = draft.with_number("maximum", value, rng.randint(low, high))
        draft.with_number("minimum", value, rng.randint(low, high))


def changed(draft: Draft) -> None:
    """Change one thing of a chain: a number, an operation, or one more."""
    rng = draft.rng
    kind = rng.randrange(4)
    places = [n for n, step in enumerate(draft.steps) if step.element != "f32"]
    place = rng.choice(places)
    step = draft.steps[place]
    if kind == 0:  # numbers
        operands = list(step.operands)
        for n, each in enumerate(operands):
            if isinstance(each, Known) and each.element not in ("f32", "i1"):
                low, high = _ends(each.element)
                by = rng.choice((-1, 1, 2, 64, -64))
                if not step.op.startswith(("divide", "remainder")):
                    numbers = (min(max(int(m) + by, low), high) for m in each.numbers)
                    operands[n] = Known(tuple(numbers), each.element)
        draft.steps[place] = replace(step, operands=tuple(operands))
    elif kind == 1:  # an operation
        groups = (
            ("minimum", "maximum"), ("add", "subtract"), ("and", "or", "xor"),
            tuple(f"compare {each}" for each in _DIRECTIONS),
            ("shift_right_arithmetic", "shift_right_logical"),
        )  # fmt: skip
        for group in groups:
            if step.op in group:
                draft.steps[place] = replace(step, op=rng.choice(group))
    elif kind == 2 and step.element != "i1":  # one more, behind
        more = Draft(rng, draft.columns)
        element = step.element
        op = rng.choice(("add", "multiply", "minimum", "maximum", "shift_right_arithmetic",
                         "negate", "abs", "xor", "and"))  # fmt: skip
        if element[0] == "u" and op in ("negate", "abs"):
            op = "add"
        operands = (place + 1,)
        if op not in ("negate", "abs"):
            known = more.some(lambda: rng.choice((more.number(element), rng.randint(-3, 3))))
            if op == "shift_right_arithmetic":
                known = more.some(lambda: rng.randrange(3))
            low, high = _ends(element)
            known = [min(max(n, low), high) for n in known]
            operands = (place + 1, Known(tuple(known), element))  # type: ignore[assignment]
        later = [
            _renumbered(each, place + 1, place + 2, place + 2) for each in draft.steps[place + 1 :]
        ]
        draft.steps[place + 1 :] = [Step(op, operands, element), *later]
        draft.elements.insert(place + 2, element)
    else:
        for _ in range(rng.randint(1, 3)):
            random_step(draft)


def _renumbered(step: Step, at: int, new: int, first: int) -> Step:
    """Operands that were `at` are `new`, and those from `first` on are one further."""
    operands = tuple(
        each if not isinstance(each, int) else new if each == at else each + (each >= first)
        for each in step.operands
    )
    return replace(step, operands=operands)


# -- contractions ---------------------------------------------------------------------------------


def draw_contraction(rng: random.Random) -> Contraction:
    """Bytes whose sums are small or large, with the extremes among them."""
    numpy = np.random.default_rng(rng.getrandbits(63))
    kind = rng.choice(("dot", "transposed", "transposed", "convolution", "depthwise"))
    columns = rng.choice((1, 3, 8, 16, 17, 20, 32, 33, 48, 64))
    depth = rng.choice((1, 4, 8, 13, 16, 32, 64))
    is_given, window = kind in ("dot", "transposed") and rng.random() < 0.2, Window()
    if kind in ("dot", "transposed"):
        rows = rng.choice((1, 1, 2, 5, 16, 33, 64))
        shapes = [(rows, depth), (depth, columns) if kind == "dot" else (columns, depth)]
    else:
        picture = (rng.choice((1, 2)), rng.choice((1, 5, 9)), rng.choice((3, 8, 16)))
        taps, window = (3, 3), Window(groups=columns if kind == "depthwise" else 1)
        if rng.random() < 0.5:
            taps, picture, window = _draw_window(rng, window)
        shapes = [(*picture, columns), (*taps, 1, columns)]
        if kind == "convolution":
            depth = min(depth, 16)
            if rng.random() < 0.3:
                window = replace(window, groups=rng.choice((2, 3, 4, 8)))
                depth, columns = rng.randint(1, 5), window.groups * rng.choice((1, 2, 5, 8, 16))
            shapes = [(*picture, depth * window.groups), (*taps, depth, columns)]
    x, w = (numpy.integers(-128, 128, shape).astype(np.int8) for shape in shapes)
    style = rng.randrange(4)
    if style == 0:  # sums of every size
        w = np.where(numpy.random(w.shape) < 0.3, w, 0).astype(np.int8)
        x = (x >> numpy.integers(0, 8, x.shape)).astype(np.int8)
    elif style == 1:
        w = numpy.choice(np.array([-128, -127, 127], np.int8), w.shape)
        x = numpy.choice(np.array([-128, 127, 127], np.int8), x.shape)
    elif style == 2:
        w = numpy.integers(-1, 2, w.shape).astype(np.int8)
    return Contraction(kind, x, w, is_given, window)


def _draw_window(
    rng: random.Random, window: Window
) -> tuple[tuple[int, int], tuple[int, int, int], Window]:
    """The positions of a window, pictures that have some windows, and how it reads them."""
    axes = []
    for _ in range(2):
        size, apart, step = (
            rng.choice((1, 2, 3, 5)),
            rng.choice((1, 1, 2, 3)),
            rng.choice((1, 2, 3)),
        )
        around = rng.choice(((0, 0), (1, 1), (0, 1), (2, 0), (3, 4), (-1, 0), (0, -1)))
        least = max(1, (size - 1) * apart + 1 - sum(around), 2)
        extent = rng.choice((least, least + 1, least + 5, 14, 17, 33))
        axes.append((size, apart, step, around, max(extent, least)))
    (h, v), aparts, steps, arounds, extents = zip(*axes, strict=True)
    return (
        (h, v),
        (rng.choice((1, 2)), *extents),
        replace(window, apart=aparts, steps=steps, around=arounds),
    )


def _columns(contraction: Contraction) -> int:
    return int(contraction.w.shape[0 if contraction.kind == "transposed" else -1])


def _program(rng: random.Random, follow: Callable[[Draft, float], None]) -> Program:
    contraction = draw_contraction(rng)
    sums = contraction.sums()
    draft = Draft(rng, _columns(contraction), sums.shape)
    follow(draft, float(max(1, np.abs(sums).max())))
    results = [len(draft.steps)]
    if rng.random() < 0.1:
        results.insert(0, rng.randrange(len(draft.steps)))
    return Program(contraction, tuple(draft.steps), tuple(results), tuple(draft.given))


def chains(rng: random.Random) -> Program:
    """Operations of any kind behind a contraction, and behind another one of what they give."""

    def follow(draft: Draft, reach: float) -> None:
        chain(draft)
        if multiply_again(draft):
            chain(draft)

    return _program(rng, follow)


def requantizations(rng: random.Random) -> Program:
    """A rounding behind a contraction, and another one behind a second."""

    def follow(draft: Draft, reach: float) -> None:
        rounding(draft, reach, floats=True, extremes=True)
        reach = multiply_again(draft)
        if reach:
            rounding(draft, reach, floats=True, extremes=True)

    return _program(rng, follow)


def rescales(rng: random.Random) -> Program:
    """TOSA's rescale behind a contraction, and another one behind a second."""

    def follow(draft: Draft, reach: float) -> None:
        rescale(draft, reach)
        reach = multiply_again(draft)
        if reach:
            rescale(draft, reach)

    return _program(rng, follow)


# -- staircases -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stairs:
    """A rounding of all sums of some ranges, one for each column."""

    steps: tuple[Step, ...]
    bounds: tuple[int, ...]


def staircases(rng: random.Random) -> Stairs:
    """A rounding of small sums, or any operations on such."""
    columns = rng.choice((1, 2, 3))
    draft = Draft(rng, columns)
    reach = rng.choice((40, 500, _MOST_SUMS))
    if rng.random() < 0.3:
        chain(draft)
    else:
        rounding(draft, float(reach), floats=False, extremes=rng.random() < 0.3)
    if draft.elements[-1] not in ("i8", "ui8"):
        draft.convert(len(draft.steps), "i8")
    bounds = tuple(rng.choice((reach, rng.randint(1, reach), 0)) if n else reach
                   for n in range(columns))  # fmt: skip
    return Stairs(tuple(draft.steps), bounds)


def check_stairs(stairs: Stairs) -> tuple[str, bool]:
    """What is wrong with what is proved, and whether anything is."""
    from subquant.compiler.reading import parse_text
    from subquant.dialects import create_context
    from subquant.emit.operation import element_of
    from subquant.kernels.epilogue.requant_analysis import monotone_requant

    if any(step.op == "lookup" for step in stairs.steps):
        return "", False  # which no kernel computes behind its sums
    columns = len(stairs.bounds)
    shape = f"1x{columns}"
    lines = "\n  ".join(_lines(stairs.steps, shape))
    last = stairs.steps[-1].element
    text = (
        f"func.func @f(%v0: tensor<{shape}xi32>) -> tensor<{shape}x{last}> {{\n  {lines}\n"
        f"  return %v{len(stairs.steps)} : tensor<{shape}x{last}>\n}}"
    )
    module = parse_text(text, create_context())
    [function] = module.body.operations
    block = function.regions[0].blocks[0]
    operations, known = [], {}
    every = iter(op.operation for op in block.operations)
    for step in stairs.steps:
        for each in step.operands:
            if isinstance(each, Known):
                op = next(every)
                if len(each.numbers) > 1:
                    op = next(every)
                numbers = np.array([int(n) for n in each.numbers], object)
                known[op.results[0]] = numbers.reshape(1, -1).astype(
                    np.uint64 if each.element == "ui64" else np.int64
                )
        operations.append(next(every))
    bounds = np.array([stairs.bounds], np.int64)

    def exact(sums: Numbers) -> Numbers:
        return evaluated(stairs.steps, sums.astype(object))[-1]

    with module.context:
        found = monotone_requant(
            operations, block.arguments[0], known, bounds,
            lambda value: element_of(value.type), exact,
        )  # fmt: skip
    if found is None:
        return "", False
    reach = max(stairs.bounds)
    sums = np.arange(-reach, reach + 1).reshape(-1, 1, 1)
    inside = np.broadcast_to(np.abs(sums) <= bounds, (2 * reach + 1, 1, columns))
    steps = exact(np.broadcast_to(sums, inside.shape)).astype(np.int64)
    x = (sums + found.added).astype(np.float64)
    line = found.slope * x + found.offset + np.where(x < 0, -found.sign_offset, found.sign_offset)
    wanted = np.clip(np.rint(line), found.low, found.high).astype(np.int64)
    far = np.abs(line - np.floor(line) - 0.5) > found.tie_tolerance * (1 + 2.0**-20)
    wrong = (((steps - wanted) % 256) != 0) & far & inside
    if not wrong.any():
        return "", True
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    return (
        f"of {sums[at[0]].item()} in column {at[2]} it gives {steps[at]}, and the line "
        f"{wanted[at]} ({line[at]}, {int(wrong.sum())} are wrong)\n{text}\n{found}"
    ), True


KINDS: dict[str, Callable[[random.Random], Any]] = {
    each.__name__: each for each in (chains, requantizations, rescales, staircases)
}


# -- running --------------------------------------------------------------------------------------


@dataclass
class Wrong:
    """A program that is wrong."""

    kind: str
    number: int
    why: str
    program: Any = field(repr=False)


def instructions_here() -> list[str]:
    """The kernels that this CPU has."""
    from subquant.compiler.compile_options import CompileOptions
    from subquant.compiler.target_features import recorded_features
    from subquant.kernels.isa.registry import supported_instruction_sets

    return supported_instruction_sets(recorded_features(CompileOptions()).split(","))


def _compared(programs: dict[str, Program], kernels: str) -> dict[str, str]:
    """What is wrong with each of some programs that is wrong."""
    import subquant

    text = "".join(program.text(name) for name, program in programs.items())
    target = "vulkan" if kernels in ("spirv", "spirv-cpu") else "llvm-cpu"
    try:
        executable = subquant.compile(text, kernels=kernels, target=target, cache="")
    except Exception as error:  # a refusal, or a traceback, is as wrong as a number
        if len(programs) == 1:
            return dict.fromkeys(programs, f"kernels {kernels}: {str(error)[-2000:]}")
        return {
            name: why
            for name in programs
            for why in _compared({name: programs[name]}, kernels).values()
        }

    def call(name: str) -> list[Any]:
        program, function = programs[name], executable[name]
        arguments = program.arguments()
        if (
            program.contraction.is_given and program.contraction.w.sum() % 2
        ):  # laid out for the kernel
            arguments[1] = function.put(1, arguments[1])
        found = function(*arguments)
        return [*found] if isinstance(found, tuple | list) else [found]

    wrong: dict[str, str] = {}
    names = [*programs] * 2
    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [*zip(names, pool.map(call, names), strict=True)]
    for name, found in calls:
        program = programs[name]
        for place, (each, wanted) in enumerate(zip(found, program.wanted(), strict=True)):
            each = np.asarray(each)
            differs = each.astype(wanted.dtype) != wanted
            if differs.any():
                at = tuple(np.argwhere(differs)[0])
                sums = program.contraction.sums()
                wrong[name] = (
                    f"kernels {kernels}: result {place} at {[int(n) for n in at]} of the sum "
                    f"{sums[at]} is {each[at]}, not {wanted[at]} ({int(differs.sum())} of "
                    f"{differs.size} are wrong)"
                )
    return wrong


def _smaller(program: Program) -> Iterator[Program]:
    """The program with less in it."""
    elements = ["i32", *(step.element for step in program.steps)]
    if len(program.results) > 1:
        for each in program.results:
            yield replace(program, results=(each,))
    for cut in range(1, len(program.steps)):  # what is last is left out
        if len(program.results) == 1 and elements[cut] != "f32":
            yield replace(program, steps=program.steps[:cut], results=(cut,))
    for place, step in enumerate(program.steps):
        for operand in step.operands:  # an operation is one of its operands
            if isinstance(operand, int) and elements[operand] == step.element:
                yield _without(program, place, operand)
        numbers = {each for each in step.operands if isinstance(each, Known)}
        for each in numbers:
            if len(each.numbers) > 1:
                alike = tuple(
                    replace(each, numbers=each.numbers[:1]) if one == each else one
                    for one in step.operands
                )
                changed = replace(step, operands=alike)
                steps = (*program.steps[:place], changed, *program.steps[place + 1 :])
                yield replace(program, steps=steps)


def _without(program: Program, place: int, operand: int) -> Program:
    def moved(given: Operand) -> Operand:
        if not isinstance(given, int) or given <= place:
            return given
        return operand if given == place + 1 else given - 1

    steps = [
        replace(step, operands=tuple(moved(each) for each in step.operands))
        for n, step in enumerate(program.steps)
        if n != place
    ]
    results = tuple(int(moved(each)) for each in program.results)  # type: ignore[arg-type]
    return replace(program, steps=tuple(steps), results=results)


def _minimized(program: Program, kernels: str, why: str) -> tuple[Program, str]:
    """A smaller program that is wrong, too."""
    is_refused, tries = "result" not in why.partition(":")[2][:8], 0
    smaller = _smaller(program)
    while tries < _TRIES and (candidate := next(smaller, None)) is not None:
        tries += 1
        again = _compared({"main": candidate}, kernels).get("main")
        if again and ("result" not in again.partition(":")[2][:8]) == is_refused:
            program, why, smaller = candidate, again, _smaller(candidate)
    return program, why


def _keep(wrong: Wrong, seed: int) -> Path:
    folder = _KEPT / f"{wrong.kind}-{wrong.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    replay = f"scripts/fuzz numbers --replay {wrong.kind}:{wrong.number} --seed {seed}"
    (folder / "wrong").write_text(f"{wrong.why}\n{replay}\n")
    if isinstance(wrong.program, Program):
        (folder / "program.mlir").write_text(wrong.program.text("main"))
        for n, array in enumerate(wrong.program.arguments()):
            np.save(folder / f"argument_{n}.npy", array)
        for n, array in enumerate(wrong.program.wanted()):
            np.save(folder / f"wanted_{n}.npy", array)
    return folder


def drawn(seed: int, kind: str, number: int) -> Any:
    """The program of a kind, a seed and a number."""
    return KINDS[kind](random.Random(f"{seed} {kind} {number}"))


def run(seed: int, kind: str, numbers: Sequence[int], choice: Sequence[str]) -> list[Wrong]:
    """Run programs of a kind, and return those that are wrong, made smaller.

    Args:
        seed, kind: of the programs.
        numbers: which.
        choice: instructions; one is drawn for all of them, beside none.
    """
    programs = {f"p{number}": drawn(seed, kind, number) for number in numbers}
    found: list[Wrong] = []
    if kind == "staircases":
        for number in numbers:
            why, _ = check_stairs(programs[f"p{number}"])
            if why:
                found.append(Wrong(kind, number, why, programs[f"p{number}"]))
        return found
    rng = random.Random(f"{seed} {kind} {numbers[0]} kernels")
    for kernels in (rng.choice(choice), "none"):
        for name, why in _compared(programs, kernels).items():
            smaller, said = _minimized(programs[name], kernels, why)
            found.append(Wrong(kind, int(re.sub("^p", "", name)), said, smaller))
    return found


def main() -> None:
    """Run programs, and show what is wrong."""
    parser = argparse.ArgumentParser(
        prog="fuzz numbers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=200, help="how many programs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of all programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument(
        "--kernels", help="with these instructions  [default: any of those that the CPU has]"
    )
    parser.add_argument("--replay", metavar="KIND:NUMBER", help="run one program, and show it")
    given = parser.parse_args()
    kinds = given.replay.split(":")[:1] if given.replay else given.kinds.split(",")
    unknown = set(kinds) - KINDS.keys()
    if unknown:
        parser.error(
            f"no kinds are named {', '.join(unknown)}; expected some of {', '.join(KINDS)}"
        )
    numbers = range(given.first, given.first + given.count)
    if given.replay:
        number = int(given.replay.split(":")[1])
        numbers = range(number, number + 1)
        program = drawn(given.seed, kinds[0], number)
        print(program.text("main") if isinstance(program, Program) else program)
    choice = [given.kernels] if given.kernels else instructions_here()
    started, wrong, count = time.monotonic(), Counter[str](), 0
    for kind in kinds:
        for first in range(0, len(numbers), _TOGETHER):
            some = numbers[first : first + _TOGETHER]
            count += len(some)
            for each in run(given.seed, kind, some, choice):
                wrong[kind] += 1
                kept = _keep(each, given.seed)
                print(f"{kind}:{each.number}: {each.why[:600]}\n  {kept}", flush=True)
    by_kind = "".join(f", {kind}: {many}" for kind, many in wrong.most_common())
    print(
        f"{count:,} programs, {wrong.total():,} wrong{by_kind} (seed {given.seed}; "
        f"{time.monotonic() - started:.0f} s)"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
