"""Branches that are short are computed, and their results selected; NumPy's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from devices import main_of
from programs import lowered_text

WIDTH = 32


def program(yes: str, no: str, *, width: int = WIDTH) -> str:
    """A product, and a branch that reads it: each side defines ``%r``."""
    row, matrix = f"tensor<1x{width}xf32>", f"tensor<{width}x{width}xf32>"
    integers = f"tensor<1x{width}xi32>"
    names = {"ROW": row, "MATRIX": matrix, "INTEGERS": integers}
    text = f"""
func.func @main(%x: {row}, %w: {matrix}, %q: {integers}, %p: tensor<i1>) -> {row} {{
  %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : ({row}, {matrix}) -> {row}
  %y = "stablehlo.if"(%p) ({{
    {yes}
    stablehlo.return %r : {row}
  }}, {{
    {no}
    stablehlo.return %r : {row}
  }}) : (tensor<i1>) -> {row}
  return %y : {row}
}}"""
    for name, type_ in names.items():
        text = text.replace(name, type_)
    return text


NEGATION = "%r = stablehlo.negate %c : ROW"
PRODUCT = "%r = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (ROW, MATRIX) -> ROW"
NESTED = f"""%r = "stablehlo.if"(%p) ({{
      {PRODUCT.replace("%r", "%n")}
      stablehlo.return %n : ROW
    }}, {{
      stablehlo.return %x : ROW
    }}) : (tensor<i1>) -> ROW"""
DIVISION = """%d = stablehlo.divide %q, %q : INTEGERS
    %r = stablehlo.convert %d : (INTEGERS) -> ROW"""


def arguments(width: int = WIDTH) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    numbers = [rng.integers(-4, 5, shape) for shape in ((1, width), (width, width))]
    return [*(each.astype(np.float32) for each in numbers), np.ones((1, width), np.int32)]


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("sides", [(PRODUCT, NEGATION), (NEGATION, PRODUCT), (NEGATION, NESTED)])
def test_the_result_is_that_of_the_condition(sides: tuple[str, str], condition: bool) -> None:
    text = program(*sides)
    assert "stablehlo.if" not in lowered_text(text)
    x, w, q = arguments()
    first = x.astype(np.float64) @ w
    expected = {NEGATION: -first, PRODUCT: first @ w, NESTED: x}[sides[0 if condition else 1]]
    np.testing.assert_array_equal(main_of(text)(x, w, q, np.array(condition)), expected)


def test_a_division_by_zero_is_not_computed() -> None:
    text = program(DIVISION, NEGATION)
    assert "stablehlo.if" in lowered_text(text)
    x, w, q = arguments()
    main = main_of(text)
    np.testing.assert_array_equal(main(x, w, q * 0, np.array(False)), -(x @ w))
    np.testing.assert_array_equal(main(x, w, q, np.array(True)), np.ones_like(x))


def test_a_long_branch_stays() -> None:
    assert "stablehlo.if" in lowered_text(program(PRODUCT, NEGATION, width=1024))
