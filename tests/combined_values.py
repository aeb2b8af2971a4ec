"""Values of programs and their types, rounding to storage, and the text of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Ints = Sequence[int]
Pairs = Sequence[tuple[int, int]]

ULP = 2.0**-24
"""The rounding error of one f32 operation, relative to its result."""


class Ambiguous(Exception):
    """An f32 value so near a tie that its rounding decides which integer is right."""


@dataclass(frozen=True)
class Quantized:
    """A quantized type: per tensor, along one axis, or in blocks (`blocks` has axis and size)."""

    storage: str
    scales: Any
    zeros: Any = 0
    axis: int | None = None
    blocks: tuple[tuple[int, int], ...] = ()
    limits: tuple[int, int] | None = None
    expressed: str = "f32"
    plain: bool = False  # storage as integers without a sign, for `subquant.dequantize`

    @property
    def bits(self) -> int:
        return int(self.storage[1:])

    @property
    def range(self) -> tuple[int, int]:
        if self.limits is not None:
            return self.limits
        if self.storage[0] == "u":
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        width = next(w for w in (8, 16, 32) if w >= self.bits)
        return np.dtype(f"{'uint' if self.storage[0] == 'u' else 'int'}{width}")

    def spread(self, values: Any, shape: Ints) -> np.ndarray:
        """Scales or zero points, one for each element."""
        values = np.asarray(values, np.float64)
        if self.axis is not None and values.ndim:
            values = values.reshape([-1 if d == self.axis else 1 for d in range(len(shape))])
        elif self.blocks:
            for axis, extent in enumerate(shape):
                values = np.repeat(values, dict(self.blocks).get(axis, extent), axis)
        return np.broadcast_to(values, shape)

    def reals(self, storage: np.ndarray) -> np.ndarray:
        zeros = self.spread(self.zeros, storage.shape)
        return (storage - zeros) * self.spread(self.scales, storage.shape)

    def in_storage(self, array: np.ndarray) -> np.ndarray:
        """Storage as the runtime takes and gives it."""
        if self.plain and self.storage[0] == "u":
            return as_signed(array, self.bits).astype(f"int{8 * self.dtype.itemsize}")
        return array.astype(self.dtype)

    def __str__(self) -> str:
        if self.plain:
            return f"i{self.bits}"
        low_high = "<{}:{}>".format(*self.limits) if self.limits else ""
        head = f"{self.storage}{low_high}:{self.expressed}"
        scales = np.asarray(self.scales, np.float64)
        zeros = np.broadcast_to(np.asarray(self.zeros), scales.shape)
        if self.axis is not None:
            head += f":{self.axis}"
        if self.blocks:
            head += ":{" + ", ".join(f"{axis}:{size}" for axis, size in self.blocks) + "}"
        return f"!quant.uniform<{head}, {nested(scales, zeros)}>"


def as_signed(array: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers as the signed ones with the same bits."""
    return np.where(array >= 2 ** (bits - 1), array - 2**bits, array)


def nested(scales: np.ndarray, zeros: np.ndarray) -> str:
    if scales.ndim == 0:
        return f"{float(scales):.17e}:{int(zeros)}"
    return "{" + ", ".join(nested(s, z) for s, z in zip(scales, zeros, strict=True)) + "}"


Element = Quantized | str
"""A quantized type, or the name of an element type: ``f32``, ``i1``, ``i32``."""


@dataclass(frozen=True)
class Value:
    """A value of a program: `array` is storage of int64, a float64, integers, or truth values."""

    name: str
    element: Element
    array: np.ndarray
    bound: np.ndarray | float = 0.0
    dynamic: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element, self.dynamic)

    @property
    def reals(self) -> np.ndarray:
        return self.element.reals(self.array) if isinstance(self.element, Quantized) else self.array


Values = Sequence[Value]


def names_of(values: Values) -> str:
    return ", ".join(v.name for v in values)


def types_of(values: Values) -> str:
    return ", ".join(v.type for v in values)


def declared(values: Values) -> str:
    """The names and types of arguments."""
    return ", ".join(f"{v.name}: {v.type}" for v in values)


def function_text(name: str, arguments: Values, operations: Sequence[str], results: Values) -> str:
    types = types_of(results)
    head = f"func.func {name}({declared(arguments)}) -> ({types}) {{"
    body = "\n".join(f"  {line}" for line in operations)
    return f"{head}\n{body}\n  return {names_of(results)} : {types}\n}}"


def tensor(shape: Ints, element: Element, dynamic: frozenset[int] = frozenset()) -> str:
    dims = "".join("?x" if d in dynamic else f"{n}x" for d, n in enumerate(shape))
    return f"tensor<{dims}{element}>"


def settle(reals: np.ndarray, element: Quantized, error: Any = None) -> np.ndarray:
    """The storage of reals: the nearest, ties to even after the zero point is added, saturated.

    `error` bounds the error of the reals, and `Ambiguous` is raised where it decides. Without it
    they are exact, but for float64's own rounding, and near ties are ties.
    """
    low, high = element.range
    scaled = reals / element.spread(element.scales, reals.shape)
    scaled = scaled + element.spread(element.zeros, reals.shape)
    if error is not None:
        error = error / element.spread(element.scales, reals.shape)
        below, above = (np.clip(np.rint(scaled + e), low, high) for e in (-error, error))
        if (below != above).any():
            raise Ambiguous
    else:
        tie = np.rint(scaled * 2) / 2
        scaled = np.where(abs(scaled - tie) < 2.0**-20, tie, scaled)
    return np.clip(np.rint(scaled), low, high).astype(np.int64)


def settle_f32(reals: np.ndarray, element: Quantized) -> np.ndarray:
    """The storage of f32 values, in f32 as the specification writes it."""
    low, high = element.range
    x = reals.astype(np.float32)
    scales = element.spread(element.scales, x.shape).astype(np.float32)
    scaled = x / scales + element.spread(element.zeros, x.shape).astype(np.float32)
    return np.clip(np.rint(scaled.astype(np.float64)), low, high).astype(np.int64)


def integers(values: Ints) -> str:
    """An array attribute of i64."""
    return f"array<i64: {', '.join(map(str, values))}>" if len(values) else "array<i64>"


def literal(array: np.ndarray, real: bool = False) -> str:
    if array.ndim == 0:
        if array.dtype == bool:
            return str(bool(array)).lower()
        return f"{float(array):.9e}" if real else str(int(array))
    return "[" + ", ".join(literal(each, real) for each in array) + "]"


@dataclass
class Writer:
    """The text of a function: arguments, constants, and operations in their order."""

    rng: np.random.Generator
    name: str = "main"
    program: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    count: int = 0

    # The text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def write(
        self,
        operation: str,
        operands: Sequence[Value],
        element: Element,
        array: np.ndarray,
        attributes: str = "",
        *,
        bound: Any = 0.0,
        dynamic: frozenset[int] | None = None,
        region: str = "",
        pretty: bool = False,
    ) -> Value:
        """Write an operation of one result, in generic form or as TOSA's are written.

        Dynamic axes are, unless they are given, those of the operands of the result's shape.
        """
        if dynamic is None:
            dynamic = frozenset().union(*(v.dynamic for v in operands if v.shape == array.shape))
        value = Value(self.fresh(), element, array, bound, dynamic)
        names = names_of(operands)
        call = f"{operation} {names}" if pretty else f'"{operation}"({names}){region}'
        attributes = f" {{{attributes}}}" if attributes else ""
        types = f"({types_of(operands)}) -> {value.type}"
        self.program.append(f"{value.name} = {call}{attributes} : {types}")
        return value

    def text(self) -> str:
        main = function_text(f"@{self.name}", self.arguments, self.program, self.results)
        return "\n".join([*self.helpers, main])

    # Arguments and constants

    def storage(self, element: Quantized, shape: Ints) -> np.ndarray:
        """Storage values, the ends of the range among them."""
        low, high = element.range
        if high - low > 2**17:
            low, high = -(2**16), 2**16
        array = self.rng.integers(low, high + 1, shape)
        ends = self.rng.integers(0, 16, shape)
        return np.where(ends == 0, low, np.where(ends == 1, high, array))

    def argument(
        self, element: Element, shape: Ints, dynamic: Ints = (), spread: float = 2
    ) -> Value:
        return self.argument_of(element, self.draw(element, shape, spread), dynamic)

    def draw(self, element: Element, shape: Ints, spread: float = 2) -> np.ndarray:
        if isinstance(element, Quantized):
            return self.storage(element, shape)
        if element == "f32":
            return self.rng.normal(0, spread, shape).astype(np.float32).astype(np.float64)
        if element == "i1":
            return self.rng.integers(0, 2, shape).astype(bool)
        return self.rng.integers(0, 100, shape)

    def argument_of(self, element: Element, array: Any, dynamic: Ints = ()) -> Value:
        """An argument with these values."""
        name = f"%arg{len(self.arguments)}"
        value = Value(name, element, np.asarray(array), 0.0, frozenset(dynamic))
        self.arguments.append(value)
        return value

    def constant(self, element: Element, array: Any) -> Value:
        array = np.asarray(array)
        if isinstance(element, Quantized):
            signed = array.astype(np.int64)
            if element.storage[0] == "u":
                signed = as_signed(signed, element.bits)
            name, kind = self.fresh(), tensor(array.shape, f"i{element.bits}")
            self.program.append(f"{name} = arith.constant dense<{literal(signed)}> : {kind}")
            value = Value(self.fresh(), element, array)
            self.program.append(f"{value.name} = quant.scast {name} : {kind} to {value.type}")
            return value
        value = Value(self.fresh(), element, array)
        text = literal(array, element == "f32")
        self.program.append(f"{value.name} = stablehlo.constant dense<{text}> : {value.type}")
        return value

    def weight(self, element: Element, shape: Ints, constant: bool = False) -> Value:
        if constant:
            return self.constant(element, self.draw(element, shape))
        return self.argument(element, shape)
