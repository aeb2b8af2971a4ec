"""Operations of `subquant.emit` beside formulas: constants, refusals, and StableHLO's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emit_formulas import Case, Function, evaluated, types_of
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.emit import TracedValue, operation, scalar, stablehlo, tensor
from subquant.emit.functions import write_function
from subquant.emit.operation import create, element_of, mlir_type, recorded, tensor_type
from subquant.errors import UnsupportedError
from subquant.numerics.array_functions import bits_of, convert, is_known, is_zero
from subquant.numerics.element_types import I32, I64, ElementType


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
    _, names = written(lambda x: np.maximum(convert(x, ElementType.parse("u32")), 3) >> 1, scalar)
    assert names == ["arith.constant", "arith.maxui", "arith.constant", "arith.shrui"]


def test_questions() -> None:
    assert is_zero(0)
    assert is_zero(np.zeros(3))
    assert not is_zero(np.array([0, 1]))
    answers, names = written(lambda x: (is_known(x), is_zero(x), is_known(3)))
    assert answers == (False, False, True)
    assert names == []


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
    "dimension sizes": (stablehlo.dim_sizes, [BOX], np.array([2, 3, 4])),
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
        old = module.body.operations[0].regions[0].blocks[0].operations[0].operation
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
