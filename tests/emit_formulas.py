"""Formulas of array functions, their arguments on edges, and their results in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.emit import tensor
from subquant.emit.functions import write_function
from subquant.emit.operation import mlir_type, tensor_type
from subquant.interpreter.interpreter_client import evaluate_in_child
from subquant.numerics.array_functions import bits_of, convert, truncate
from subquant.numerics.element_types import BOOL, I32, ElementType

Function = Callable[..., Any]
_REALS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.25, 1e4, -1e4, np.inf, -np.inf, np.nan]


def edges(name: str) -> np.ndarray:
    """Values of an element type where formulas may go wrong."""
    element = ElementType.parse(name)
    if element == BOOL:
        return np.array([False, True])
    if element.is_float:
        # No quotient is subnormal: IREE's threads flush subnormals to zero.
        large = float(ml_dtypes.finfo(element.dtype).max) / 16
        return np.array([*_REALS, large]).astype(element.dtype)
    info = np.iinfo(element.dtype)
    middle = (info.min + info.max + 1) // 2
    numbers = [info.min, info.min + 1, middle - 1, middle, middle + 1, info.max - 1, info.max]
    small = [n for n in (-3, -1, 0, 1, 2, 3) if n >= info.min]
    return np.array(sorted({*numbers, *small}), element.dtype)


def grid(*names: str) -> list[np.ndarray]:
    """Every combination of edges of some types."""
    axes = np.meshgrid(*(edges(name) for name in names), indexing="ij")
    return [np.ascontiguousarray(axis.reshape(-1)) for axis in axes]


@dataclass(frozen=True)
class Case:
    """A formula and its arguments, of NumPy's dtypes.

    `ulps` are of the result's type. NumPy does not say which of two zeros is the greater one.
    """

    function: Function
    arguments: tuple[np.ndarray, ...]
    ulps: int = 0
    signed_zeros: bool = True

    @property
    def elements(self) -> list[ElementType]:
        return [ElementType.of_dtype(argument.dtype) for argument in self.arguments]

    def expected(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(self.function(*self.arguments))

    def check(self, actual: np.ndarray) -> None:
        expected = self.expected()
        assert actual.shape == expected.shape
        if expected.dtype.kind == "u":
            actual = actual.astype(f"i{expected.itemsize}").view(expected.dtype)
        if not self.ulps:
            actual = actual.astype(expected.dtype)  # the interpreter's integers are of 64 bits
            if not self.signed_zeros:
                actual, expected = actual + 0, expected + 0
            both_nan = (actual != actual) & (expected != expected)
            np.testing.assert_array_equal(bits(actual)[~both_nan], bits(expected)[~both_nan])
            return
        step = float(np.finfo(expected.dtype).eps)
        np.testing.assert_allclose(actual, expected, rtol=self.ulps * step, atol=0)


def bits(array: np.ndarray) -> np.ndarray:
    """The bits, so that zeros of two signs differ."""
    return array if array.dtype == np.bool_ else array.view(f"i{array.dtype.itemsize}")


INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FLOATS = ("f16", "f32", "f64")
OF_TWO: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda x, y: x == y,
    "not equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less or equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater or equal": lambda x, y: x >= y,
}
BITWISE: dict[str, Function] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}
OF_TWO_INTEGERS: dict[str, Function] = {"subtract": lambda x, y: x - y, **BITWISE}
OF_ONE_INTEGER: dict[str, Function] = {
    "absolute": abs,
    "invert": lambda x: ~x,
    "negative": lambda x: -x,
    "number on the left": lambda x: 7 - x,
    "number on the right": lambda x: (x + 3) * 2,
    "shift left": lambda x: x << 2,
    "shift right": lambda x: x >> 3,
    "is not zero": lambda x: convert(x, BOOL),
    "zeros": lambda x: np.zeros_like(x) + x,
}
OF_ONE_FLOAT: dict[str, Function] = {
    "absolute": np.abs,
    "floor": np.floor,
    "negative": lambda x: -x,
    "round": np.rint,
    "clip": lambda x: np.clip(x, -2, 2.5),
    "choice of numbers": lambda x: np.where(x > 1, x, 0.25),
    "is not zero": lambda x: convert(x, BOOL),
}
TRUTH: dict[str, Function] = {
    **OF_TWO,
    **BITWISE,
    "invert": lambda x, y: ~x & y,
    "absolute": lambda x, y: abs(x) ^ y,
    "choice": lambda x, y: np.where(x, y, True),
}
MIXED: dict[str, tuple[Function, tuple[str, ...]]] = {
    "a truth value counts": (lambda x, y: x + (y < 0) - (x > y), ("i32", "i32")),
    "a truth value and a number": (lambda x, y: convert(((x < y) + 3) * x, I32), ("i32", "i32")),
    "a truth value first": (lambda x, y: (x < y) * x, ("i32", "i32")),
    "numbers by a comparison": (lambda x, y: np.where(x < y, 3, -4) * y, ("i64", "i64")),
    "numbers or a value": (lambda x, y: np.where(x < y, x, 5), ("i8", "i8")),
    "values by a comparison": (lambda x, y: np.where(x == y, x, -y), ("f32", "f32")),
    "truth by a comparison": (lambda x, y: np.where(x < y, x == 0, y == 0), ("i16", "i16")),
    "between values": (lambda x, y: np.clip(x, y, 100), ("i32", "i32")),
    "half away from zero": (
        lambda x, y: np.where(x < 0, -((abs(x) + 4) >> 3), (abs(x) + 4) >> 3) + (y & 1),
        ("i64", "i64"),
    ),
    "shift by a value": (lambda x, y: (x << (y & 7)) ^ (x >> (y & 7)), ("i32", "i32")),
    "unsigned shift by a value": (lambda x, y: x >> (y & 7), ("u8", "u8")),
}
APPROXIMATE: dict[str, Function] = {
    "exp": np.exp,
    "log": lambda x: np.log(np.abs(x) + 1),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "tanh": lambda x: np.tanh(x / 8),
}
CONVERSIONS = (
    ("i8", "i32"), ("u8", "i32"), ("u8", "i16"), ("i8", "u8"), ("u8", "i8"), ("i32", "u8"),
    ("i32", "i8"), ("u16", "u32"), ("u32", "i64"), ("i64", "i32"), ("i1", "i32"), ("i1", "f32"),
    ("i8", "f32"), ("u8", "f32"), ("u16", "f16"), ("i16", "f32"), ("u32", "f64"), ("u32", "f32"),
    ("i64", "f32"), ("f16", "f32"), ("f32", "f16"), ("f64", "f32"), ("f32", "f64"),
)  # fmt: skip
TRUNCATIONS = (
    ("f32", "i32"), ("f32", "i8"), ("f32", "u8"), ("f32", "u32"), ("f64", "i64"), ("f64", "u64"),
    ("f32", "u16"), ("f64", "u32"), ("f16", "i32"),
)  # fmt: skip
_GAPS = [1 << 39, (1 << 39) + 1, 3 << 39, 1024, 1025, 2048, 3072, 0, 1]
LARGE = np.array(
    [*((1 << 63) + gap for gap in _GAPS), *((1 << 64) - 1 - gap for gap in _GAPS), (1 << 63) - 1,
     *((1 << bits) + rest for bits in (24, 53) for rest in (-1, 1, 3)), 0, 1],
    np.uint64,
)  # fmt: skip
"""Integers beside ties of f32 and f64, below and above half of the range of u64."""
BITS = (("f32", "i32"), ("i32", "f32"), ("f64", "i64"), ("f16", "i16"), ("u8", "i8"))


def inside(source: str, target: str) -> np.ndarray:
    """Reals that are integers of a type when they are truncated, from every part of its range."""
    info = np.iinfo(ElementType.parse(target).dtype)
    dtype = ElementType.parse(source).dtype
    largest = float(ml_dtypes.finfo(dtype).max)
    fractions = np.array([0, 0.001, 0.25, 0.499, 0.5, 0.501, 0.75, 0.99])
    expected = info.min + fractions * (float(info.max) - info.min) + 0.75
    values = np.clip(expected, -largest, largest).astype(dtype)
    wide = values.astype(np.float64)
    return values[(wide >= float(info.min)) & (wide < float(info.max + 1))]


def _cases() -> dict[str, Case]:
    cases = {}

    def add(name: str, function: Function, *arguments: np.ndarray, ulps: int = 0) -> None:
        assert name not in cases
        chooses = function in (np.maximum, np.minimum) and arguments[0].dtype.kind == "f"
        cases[name] = Case(function, tuple(arguments), ulps, not chooses)

    for kind in INTEGERS:
        for name, function in {**OF_TWO, **OF_TWO_INTEGERS}.items():
            add(f"{name} {kind}", function, *grid(kind, kind))
        for name, function in OF_ONE_INTEGER.items():
            add(f"{name} of {kind}", function, edges(kind))
    for kind in FLOATS:
        divide = {"subtract": np.subtract, "divide": lambda x, y: x / y}
        for name, function in {**OF_TWO, **divide}.items():
            add(f"{name} {kind}", function, *grid(kind, kind))
        for name, function in OF_ONE_FLOAT.items():
            add(f"{name} of {kind}", function, edges(kind))
    for name, function in TRUTH.items():
        add(f"truth: {name}", function, *grid("i1", "i1"))
    for name, (function, kinds) in MIXED.items():
        add(name, function, *grid(*kinds))
    for name, function in APPROXIMATE.items():
        add(name, function, np.linspace(-20, 20, 64).astype(np.float32), ulps=8)
    casts = [(f"{s} to {t}", convert, edges(s), t) for s, t in CONVERSIONS]
    casts += [(f"u64 to {t}", convert, LARGE, t) for t in ("f32", "f64")]
    casts += [(f"{s} to {t}", truncate, inside(s, t), t) for s, t in TRUNCATIONS]
    casts += [(f"bits of {s} as {t}", bits_of, edges(s), t) for s, t in BITS]
    for name, cast, values, target in casts:
        element = ElementType.parse(target)
        add(name, lambda x, f=cast, e=element: f(x, e), values)
    return cases


CASES = _cases()


def stored(array: np.ndarray) -> np.ndarray:
    """Unsigned integers as the module has them."""
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array


def types_of(case: Case) -> list[ir.Type]:
    return [
        tensor_type(argument.shape, mlir_type(element))
        for argument, element in zip(case.arguments, case.elements, strict=True)
    ]


def interpreted(cases: list[Case], dynamic: bool = False) -> list[np.ndarray]:
    """Formulas on tensors, all in one function, by StableHLO's interpreter."""
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [type_ for case in cases for type_ in types_of(case)]
        if dynamic:
            types = [tensor_type([None] * type_.rank, type_.element_type) for type_ in types]

        def body(values: Any) -> list[Any]:
            left = iter(values)
            return [
                case.function(*(tensor(next(left), element) for element in case.elements)).value
                for case in cases
            ]

        with ir.InsertionPoint(module.body):
            write_function("main", types, body)
        return evaluated(module, [a for case in cases for a in case.arguments], types, dynamic)


def evaluated(module: Any, arguments: Any, types: Any, dynamic: bool = False) -> list[np.ndarray]:
    module.operation.verify()
    elements = tuple(str(type_.element_type) for type_ in types)
    inputs = tuple(stored(argument) for argument in arguments)
    return evaluate_in_child(str(module), "main", inputs, elements, is_dynamic=dynamic)
