"""Formulas that are written as operations give what NumPy gives, in both forms.

Tensors are evaluated by StableHLO's interpreter, a module a formula. The bodies of loops are all in
one module, which is compiled once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import subquant
from emit_formulas import CASES, Case, Function, interpreted, stored, types_of
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.emit import linalg, operation, scalar
from subquant.emit.functions import write_function
from subquant.emit.operation import create, mlir_type, recorded, tensor_type
from subquant.numerics.array_functions import convert, is_known
from subquant.numerics.element_types import I32, ElementType
from subquant.runtime import Device, Executable


@pytest.fixture(scope="module")
def on_tensors() -> dict[str, np.ndarray]:
    """The result of every formula on tensors."""
    return dict(zip(CASES, interpreted(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_tensors(name: str, on_tensors: dict[str, np.ndarray]) -> None:
    CASES[name].check(on_tensors[name])


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


def _split_dynamic(x: Any) -> Any:
    """Through a type of unknown extents and back."""
    unknown = linalg.cast(x, tensor_type([None, 8], x.type.element_type))
    rows = linalg.dim(unknown, 0)
    pieces = linalg.expand(unknown, [[0], [1, 2]], [rows, 2, 4])
    linalg.check((scalar(rows) == 3).value, "three rows")
    linalg.check((scalar(rows) * 8 >= 24).value, "or more")
    return linalg.cast(pieces, tensor_type([3, 2, 4], x.type.element_type))


def _row_sums(x: Any) -> Any:
    zeros = linalg.constant(operation.dense(np.zeros(1), x.type.element_type))
    output = linalg.filled([3], linalg.extract(zeros, [linalg.constant_index(0)]))
    maps = [linalg.identity_map(2), ir.AffineMap.get(2, 0, [ir.AffineExpr.get_dim(0)])]

    def body(element: Any, total: Any) -> Any:
        return (scalar(element) + scalar(total)).value

    return linalg.generic([x], output, maps, body, ["parallel", "reduction"])


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
SPLIT_TABLE = TABLE.reshape(3, 2, 4)
AROUND_LOOPS: dict[str, tuple[Function, list[np.ndarray], np.ndarray]] = {
    "expand": (lambda x: linalg.expand(x, [[0], [1, 2]], [3, 2, 4]), [TABLE], SPLIT_TABLE),
    "expand nothing": (lambda x: linalg.expand(x, [[0], [1]], [3, 8]), [TABLE], TABLE),
    "expand dynamic": (_split_dynamic, [TABLE], SPLIT_TABLE),
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


@pytest.mark.long
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
