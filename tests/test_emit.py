"""Formulas that are written as operations give what NumPy gives, in both forms.

Tensors are evaluated by StableHLO's interpreter, a module a formula. The bodies of loops are all in
one module, which is compiled once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import subquant
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.emit import (
    TracedValue,
    linalg,
    operation,
    scalar,
    stablehlo,
    tensor,
)
from subquant.emit.functions import write_function
from subquant.emit.operation import create, element_of, mlir_type, recorded, tensor_type
from subquant.errors import UnsupportedError
from subquant.interpreter.interpreter_client import evaluate_in_child
from subquant.numerics.array_functions import bits_of, convert, is_known, is_zero, truncate
from subquant.numerics.element_types import BOOL, I32, I64, ElementType
from subquant.runtime import Device, Executable

Function = Callable[..., Any]

# -- values on edges ------------------------------------------------------------------------------

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


# -- formulas -------------------------------------------------------------------------------------

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FLOATS = ("f16", "f32", "f64")
COMPARISONS: dict[str, Function] = {
    "equal": lambda x, y: x == y,
    "not equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less or equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater or equal": lambda x, y: x >= y,
}
OF_TWO: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "maximum": np.maximum,
    "minimum": np.minimum,
    **COMPARISONS,
}
OF_TWO_INTEGERS: dict[str, Function] = {
    "subtract": lambda x, y: x - y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}
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
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "invert": lambda x, y: ~x & y,
    "absolute": lambda x, y: abs(x) ^ y,
    "choice": lambda x, y: np.where(x, y, True),
}
MIXED: dict[str, tuple[Function, tuple[str, ...]]] = {
    "a truth value counts": (lambda x, y: x + (y < 0) - (x > y), ("i32", "i32")),
    "a truth value and a number": (
        lambda x, y: convert(((x < y) + 3) * x, I32),
        ("i32", "i32"),
    ),
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
    for source, target in CONVERSIONS:
        element = ElementType.parse(target)
        add(f"{source} to {target}", lambda x, e=element: convert(x, e), edges(source))
    for target in ("f32", "f64"):
        element = ElementType.parse(target)
        add(f"u64 to {target}", lambda x, e=element: convert(x, e), LARGE)
    for source, target in TRUNCATIONS:
        element = ElementType.parse(target)
        add(f"{source} to {target}", lambda x, e=element: truncate(x, e), inside(source, target))
    for source, target in BITS:
        element = ElementType.parse(target)
        add(f"bits of {source} as {target}", lambda x, e=element: bits_of(x, e), edges(source))
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


@pytest.fixture(scope="module")
def on_tensors() -> dict[str, np.ndarray]:
    """The result of every formula on tensors."""
    return dict(zip(CASES, interpreted(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_tensors(name: str, on_tensors: dict[str, np.ndarray]) -> None:
    CASES[name].check(on_tensors[name])


# -- bodies of loops ------------------------------------------------------------------------------


def loop(cases: list[Case], values: Sequence[Any]) -> list[Any]:
    """A loop nest over all elements, with the formulas in its body."""
    shape = [int(n) for n in values[0].type.shape]
    elements = [ElementType.of_dtype(case.expected().dtype) for case in cases]
    outputs = [linalg.empty(shape, mlir_type(element)) for element in elements]
    count = len(values) + len(outputs)
    attributes = {
        "indexing_maps": linalg.affine_maps([linalg.identity_map(1)] * count),
        "iterator_types": ir.Attribute.parse("[#linalg.iterator_type<parallel>]"),
        "operandSegmentSizes": linalg.segments(len(values), len(outputs)),
    }
    types = [output.type for output in outputs]
    nest = create("linalg.generic", [*values, *outputs], types, attributes, regions=1)
    scalars = [value.type.element_type for value in (*values, *outputs)]
    locations = [ir.Location.current] * count
    block = nest.regions[0].blocks.append(*scalars, arg_locs=locations)
    with ir.InsertionPoint(block), recorded():
        results = []
        for case in cases:
            pairs = zip(block.arguments, case.elements, strict=False)
            formula = case.function(*(scalar(value, element) for value, element in pairs))
            results.append(formula.value)
        create("linalg.yield", results)
    return list(nest.results)


def _split(x: Any) -> Any:
    return linalg.expand(x, [[0], [1, 2]], [3, 2, 4])


def _split_dynamic(x: Any) -> Any:
    """Through a type of unknown extents and back."""
    unknown = linalg.cast(x, tensor_type([None, 8], x.type.element_type))
    rows = linalg.dim(unknown, 0)
    pieces = linalg.expand(unknown, [[0], [1, 2]], [rows, 2, 4])
    linalg.check((scalar(rows) == 3).value, "three rows")
    linalg.check((scalar(rows) * 8 >= 24).value, "or more")
    return linalg.cast(pieces, tensor_type([3, 2, 4], x.type.element_type))


def _row_sums(x: Any) -> Any:
    zero = linalg.extract(linalg.constant(operation.dense(np.zeros(1), x.type.element_type)), [
        linalg.constant_index(0)
    ])  # fmt: skip
    both, row = linalg.identity_map(2), ir.AffineMap.get(2, 0, [ir.AffineExpr.get_dim(0)])
    return linalg.generic(
        [x],
        linalg.filled([3], zero),
        [both, row],
        lambda element, total: (scalar(element) + scalar(total)).value,
        ["parallel", "reduction"],
    )


def _positions(x: Any) -> Any:
    """Each element plus the number of its column."""

    def body(element: Any, _: Any) -> Any:
        column = scalar(linalg.loop_index(1))
        return (scalar(element) + convert(column + 1, I32) - 1).value

    output = linalg.empty([3, 8], x.type.element_type)
    return linalg.generic([x], output, [linalg.identity_map(2)] * 2, body)


def _total(x: Any) -> Any:
    """The sum of a row's elements, one after the other, in a tensor of one element."""

    def body(position: Any, total: Any) -> Any:
        element = linalg.extract(x, [linalg.constant_index(1), position])
        return [(scalar(element) + scalar(total)).value]

    first, end = linalg.constant_index(2), linalg.dim(x, 1)
    zero = linalg.extract(x, [linalg.constant_index(0)] * 2)
    return linalg.from_elements(linalg.fold(first, end, [zero], body))


TABLE = np.arange(24, dtype=np.int32).reshape(3, 8)
AROUND_LOOPS: dict[str, tuple[Function, list[np.ndarray], np.ndarray]] = {
    "expand": (_split, [TABLE], TABLE.reshape(3, 2, 4)),
    "expand nothing": (lambda x: linalg.expand(x, [[0], [1]], [3, 8]), [TABLE], TABLE),
    "expand dynamic": (_split_dynamic, [TABLE], TABLE.reshape(3, 2, 4)),
    "collapse": (lambda x: linalg.collapse(x, [[0, 1]]), [TABLE], TABLE.reshape(24)),
    "collapse nothing": (lambda x: linalg.collapse(x, [[0], [1]]), [TABLE], TABLE),
    "reduce in a loop": (_row_sums, [TABLE], TABLE.sum(1, np.int32)),
    "a loop over a row": (_total, [TABLE], TABLE[1, 2:].sum(keepdims=True, dtype=np.int32)),
    "concatenate": (
        lambda x, y: linalg.concatenate([x, y], 0, tensor_type([5, 8], x.type.element_type)),
        [TABLE, TABLE[:2].copy()],
        np.concatenate([TABLE, TABLE[:2]]),
    ),
    "positions": (_positions, [TABLE], TABLE + np.arange(8, dtype=np.int32)),
}


@pytest.mark.parametrize("name", AROUND_LOOPS)
def test_around_loops(name: str, compiled: Executable) -> None:
    _, arguments, expected = AROUND_LOOPS[name]
    np.testing.assert_array_equal(compiled[name.replace(" ", "_")](*arguments), expected)


@pytest.fixture(scope="module")
def compiled(cpu: Device) -> Executable:
    """Every formula as the body of a loop, and the operations around loops: one executable."""
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for number, cases in enumerate(LOOPS):
                inputs = [CASES[name] for name in cases]
                write_function(f"f{number}", types_of(inputs[0]), lambda v, c=inputs: loop(c, v))
            for name, (function, arguments, _) in AROUND_LOOPS.items():
                case = Case(function, tuple(arguments))
                symbol = name.replace(" ", "_")
                write_function(symbol, types_of(case), lambda v, c=case: [c.function(*v)])
        module.operation.verify()
    return subquant.compile(module, device=cpu)


def _loops() -> list[list[str]]:
    """Formulas of the same arguments, eight to a loop: IREE takes its time for each loop."""
    of_equal: dict[Any, list[str]] = {}
    for name, case in CASES.items():
        key = tuple((argument.dtype.str, argument.tobytes()) for argument in case.arguments)
        of_equal.setdefault(key, []).append(name)
    return [names[i : i + 8] for names in of_equal.values() for i in range(0, len(names), 8)]


LOOPS = _loops()


@functools.cache
def results_of_loop(number: int, compiled: Executable) -> list[np.ndarray]:
    results = compiled[f"f{number}"](*map(stored, CASES[LOOPS[number][0]].arguments))
    return [results] if len(LOOPS[number]) == 1 else list(results)


@pytest.mark.parametrize("name", CASES)
def test_scalars(name: str, compiled: Executable) -> None:
    number = next(i for i, names in enumerate(LOOPS) if name in names)
    CASES[name].check(results_of_loop(number, compiled)[LOOPS[number].index(name)])


# -- numbers that differ, dynamic shapes ----------------------------------------------------------

ROWS = np.arange(-12, 12, dtype=np.int32).reshape(4, 6)
BY_COLUMN = np.array([[1, 2, 3, 4, 5, 6]])
BY_ROW = np.array([[1], [-1], [2], [-2]])
GRIDS: dict[str, Function] = {
    "by column": lambda x: x * BY_COLUMN,
    "by row": lambda x: BY_ROW - x,
    "by element": lambda x: x + BY_ROW * BY_COLUMN,
    "one number": lambda x: x + np.array([[7]]),
    "choice": lambda x: np.where(BY_COLUMN > 3, x, -x),
    "choice of numbers": lambda x: np.where(x > 0, BY_ROW, BY_COLUMN) + x,
    "shifts": lambda x: (x << (BY_COLUMN & 3)) + (x >> (BY_ROW & 1)),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_known_arrays(dynamic: bool) -> None:
    cases = [Case(function, (ROWS,)) for function in GRIDS.values()]
    for case, actual in zip(cases, interpreted(cases, dynamic), strict=True):
        case.check(actual)


def test_look_up() -> None:
    table = np.array([5, 7, -1, 2], np.int8)
    i8 = ElementType.parse("i8")

    def function(x: Any) -> Any:
        return table[x] if is_known(x) else x.form.look_up(table, x, i8)

    case = Case(function, (np.array([[3, 0, 1], [2, 2, 3]], np.int32),))
    case.check(*interpreted([case]))


# -- constants ------------------------------------------------------------------------------------


def written(
    function: Callable[[TracedValue], Any], form: Function = tensor
) -> tuple[Any, list[str]]:
    """Return the result of a formula of one i32, and the operations that it writes."""
    with create_context(), ir.Location.unknown():
        block = ir.Module.create().body
        with ir.InsertionPoint(block):
            type_ = mlir_type(I32)
            if form is tensor:
                type_ = tensor_type([4], type_)
            argument = create("test.argument", results=[type_]).results[0]
            with recorded() as operations:
                result = function(form(argument))
            return result, [op.name for op in operations]


@pytest.mark.parametrize("form", [scalar, tensor])
def test_what_is_known_writes_nothing(form: Function) -> None:
    for function in (
        lambda x: np.where(True, x, x + 1 if is_known(x) else x),
        lambda x: np.where(np.array([True, True]), x, 3),
        lambda x: convert(x, I32),
        lambda x: convert(x, ElementType.parse("u32")),
        lambda x: bits_of(x, ElementType.parse("u32")),
    ):
        result, names = written(function, form)
        assert isinstance(result, TracedValue)
        assert names == []
    result, names = written(lambda x: np.where(False, x, np.clip(300, 0, 255)), form)
    assert (result, names) == (255, [])


def test_a_number_is_written_once() -> None:
    _, names = written(lambda x: (x + 5) * 5 - np.int64(5) + 6)
    assert names.count("stablehlo.constant") == 2
    assert len(names) == 6


def test_scalars_of_operations() -> None:
    """Predicates by name, signed and unsigned."""
    unsigned = ElementType.parse("u32")
    _, names = written(lambda x: np.maximum(convert(x, unsigned), 3) >> 1, scalar)
    assert names == ["arith.constant", "arith.maxui", "arith.constant", "arith.shrui"]


def test_questions() -> None:
    assert is_zero(0)
    assert is_zero(np.zeros(3))
    assert not is_zero(np.array([0, 1]))
    answers, names = written(lambda x: (is_known(x), is_zero(x), is_known(3)))
    assert answers == (False, False, True)
    assert names == []


# -- refusals -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[TracedValue], Any], type[Exception], str]] = {
    "truth of a value": (bool, TypeError, "neither true nor false"),
    "elements of a value": (np.asarray, TypeError, "has no elements yet"),
    "a function": (np.arctan, UnsupportedError, "np.arctan cannot be written"),
    "a function of arrays": (np.cumsum, UnsupportedError, "np.cumsum cannot be written"),
    "a reduction": (np.add.reduce, UnsupportedError, "np.add with these options"),
    "an output": (lambda x: np.add(x, 1, out=None, casting="no"), UnsupportedError, "options"),
    "a quotient of integers": (lambda x: x / 2, UnsupportedError, "np.divide of i32"),
    "a root of an integer": (np.sqrt, UnsupportedError, "np.sqrt of i32"),
    "a difference of truth values": (lambda x: (x > 0) - (x > 1), UnsupportedError, "of i1"),
    "a shifted truth value": (lambda x: (x > 0) << (x > 1), UnsupportedError, "of i1"),
    "two element types": (lambda x: x + convert(x, I64), TypeError, "got i64, i32"),
    "a fraction": (lambda x: x + 0.5, TypeError, "integers are needed among values of i32"),
    "NaN among integers": (lambda x: x + np.nan, TypeError, "integers are needed"),
    "a large number": (lambda x: x + (1 << 32), OverflowError, "no bits of i32"),
    "a small number": (lambda x: x + (-(1 << 31) - 1), OverflowError, "no bits of i32"),
    "a dtype": (lambda x: x.astype(np.complex64), UnsupportedError, "got the dtype complex64"),
}  # fmt: skip


@pytest.mark.parametrize("form", [scalar, tensor])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, form: Function) -> None:
    function, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        written(function, form)


def test_refused_by_one_form() -> None:
    with pytest.raises(TypeError, match="one number is needed in the body of a loop, got 2"):
        written(lambda x: x + np.array([1, 2]), scalar)


# -- StableHLO's other operations -----------------------------------------------------------------

BOX = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def _padded(x: np.ndarray) -> np.ndarray:
    wide = np.full((2, 6, 4), 9, x.dtype)
    wide[:, 1::2] = x
    return wide[:, :, 1:]


OPERATIONS: dict[str, tuple[Function, list[np.ndarray], np.ndarray]] = {
    "transpose": (lambda x: stablehlo.transpose(x, [2, 0, 1]), [BOX], BOX.transpose(2, 0, 1)),
    "reshape": (lambda x: stablehlo.reshape(x, [6, 4]), [BOX], BOX.reshape(6, 4)),
    "slice": (
        lambda x: stablehlo.slice_(x, [0, 1, 0], [2, 3, 4], [1, 1, 3]), [BOX], BOX[:, 1:, ::3],
    ),
    "pad": (
        lambda x: stablehlo.pad(
            x, [0, 1, -1], [0, 0, 0], [0, 1, 0],
            stablehlo.constant(np.int32(9), x.type.element_type),
        ),
        [BOX], _padded(BOX),
    ),
    "pad with zeros": (
        lambda x: stablehlo.pad(x, [0, 0, 2], [1, 0, 0]), [BOX],
        np.pad(BOX, [(0, 1), (0, 0), (2, 0)]),
    ),
    "concatenate": (
        lambda x, y: stablehlo.concatenate([x, y], 1), [BOX, BOX[:, :1].copy()],
        np.concatenate([BOX, BOX[:, :1]], 1),
    ),
    "take": (
        lambda x, n: stablehlo.take(x, n, 1), [BOX, np.array([[2, 0], [1, 1]], np.int32)],
        np.take(BOX, np.array([[2, 0], [1, 1]]), 1),
    ),
    "reduce": (lambda x: stablehlo.reduce(x, [0, 2]), [BOX], BOX.sum((0, 2), np.int32)),
    "greatest": (
        lambda x: stablehlo.reduce(
            x, [1], "maximum", stablehlo.constant(np.int32(-1), x.type.element_type)
        ),
        [BOX], BOX.max(1),
    ),
    "iota": (lambda x: stablehlo.iota(x.type, 1), [BOX], BOX * 0 + np.arange(3)[:, None]),
    "extents": (stablehlo.extents, [BOX], np.array([2, 3, 4])),
    "broadcast": (
        lambda x: stablehlo.broadcast(x, tensor_type([4, 2], x.type.element_type), [1]),
        [np.array([3, 5], np.int32)], np.array([[3, 5]] * 4),
    ),
    "contract": (
        lambda x, y: stablehlo.dot_general(
            x, y, tensor_type([2, 3, 5], x.type.element_type), [[2], [1]], [[0], [0]]
        ),
        [BOX, np.arange(40, dtype=np.int32).reshape(2, 4, 5)],
        BOX @ np.arange(40).reshape(2, 4, 5),
    ),
    "convolve": (
        lambda x, y: stablehlo.convolution(
            x, y, tensor_type([1, 2, 3], x.type.element_type), "[b, f, 0]x[o, i, 0]->[b, f, 0]",
            {"window_strides": operation.integers([1])}, groups=2,
        ),
        [BOX[:1, :2].copy(), np.array([[[1, 2]], [[3, -1]]], np.int32)],
        np.array([[[2, 5, 8], [7, 9, 11]]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    function, arguments, expected = OPERATIONS[name]
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = types_of(Case(function, tuple(arguments)))
        with ir.InsertionPoint(module.body):
            write_function("main", types, lambda values: [function(*values)])
        (actual,) = evaluated(module, arguments, types)
    np.testing.assert_array_equal(actual, expected)


def test_like() -> None:
    """`like` copies an operation with its body and replaces some properties."""
    with create_context(), ir.Location.unknown():
        module = ir.Module.parse("""
            func.func @f(%x: tensor<2x3xi32>, %y: tensor<i32>) -> tensor<2xi32> {
              %0 = stablehlo.reduce(%x init: %y) applies stablehlo.add across dimensions = [1]
                  : (tensor<2x3xi32>, tensor<i32>) -> tensor<2xi32>
              return %0 : tensor<2xi32>
            }""")
        body = module.body.operations[0].regions[0].blocks[0]
        old = body.operations[0].operation
        with ir.InsertionPoint(old):
            three = tensor_type([3], mlir_type(I32))
            new = operation.like(
                old, results=[three], attributes={"dimensions": operation.integers([0])},
                take_bodies=True,
            )  # fmt: skip
        assert [block.operations[0].operation.name for block in new.regions[0]] == ["stablehlo.add"]
        assert not list(old.regions[0].blocks)
        assert str(new.results[0].type) == "tensor<3xi32>"
        assert list(new.operands) == list(old.operands)
        assert element_of(new.results[0].type) == I32
