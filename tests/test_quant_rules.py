"""Rules of ``legalize-quant-to-math``, and documentation and checks of each operation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from subquant.dialects import subquant
from subquant.dialects.stablehlo import OPERATIONS, of_category
from subquant.numerics.function_tables import (
    BINARY_FUNCTIONS,
    UNARY_FUNCTIONS,
    binary_table,
    unary_table,
)
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.transforms.quantization.math.rules import NO_RULE, rules
from subquant.transforms.quantization.verify_quantization import OPERATION_CHECKS

TESTS = Path(__file__).parent
DIALECT = Path(subquant.__file__).read_text()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_row_has_a_rule_or_a_reason(name: str) -> None:
    assert (name in rules()) != (name in NO_RULE)


def test_reasons_are_for_operations_of_the_table() -> None:
    assert NO_RULE.keys() <= OPERATIONS.keys()
    assert all(NO_RULE.values())


@pytest.mark.parametrize("name", sorted(rules()))
def test_every_rule_says_its_formula(name: str) -> None:
    assert rules()[name].__doc__


def test_a_rule_is_taken_for_what_it_is_registered_for() -> None:
    """Operations of one category have a rule of one purpose, whatever list they stand in."""
    movement = {rules()[n].__name__ for n in of_category("data-movement") if n in rules()}
    contraction = {rules()[n].__name__ for n in of_category("contraction")}
    assert (movement, contraction) == ({"move"}, {"contract"})


def test_whole_turns_are_taken_off_for_every_periodic_function() -> None:
    """A device computes garbage for angles of 10**9, which only wide storage reaches."""
    x = np.linspace(-1.5, 1.5, 9)
    with np.errstate(invalid="ignore", divide="ignore"):
        periodic = {n for n, f in UNARY_FUNCTIONS.items() if np.allclose(f(x), f(x + 2 * np.pi))}
    assert periodic == {n.partition(".")[2] for n, op in OPERATIONS.items() if op.is_periodic}


@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_functions_that_jump_are_tabulated_from_the_expressed_type(scale: float) -> None:
    """In f32 ``10 * 0.1`` is 1; with the f64 product of the f32 scale, its ceiling would be 2.

    0 is no such point: the f64 product is exact there.
    """
    halves = np.array([n / 2 for n in range(-6, 7) if n])

    def jumps(function: Callable[..., np.ndarray], *operands: float) -> bool:
        with np.errstate(all="ignore"):
            left, right = (function(halves + step, *operands) for step in (-1e-9, 1e-9))
        return bool(np.any(np.abs(right - left) > 0.5))

    int8, int16 = StorageType(8, True), StorageType(16, True)
    operand = QuantizationParameters(int8, ExpressedType.F32, scales=np.array(scale))
    divisor = QuantizationParameters(StorageType(2, True), ExpressedType.F32)  # -2, -1, 0 and 1
    result = QuantizationParameters(int16, ExpressedType.F32, scales=np.array(1 / 16))
    reals = (np.arange(-128, 128) * np.float32(scale)).astype(np.float32).astype(np.float64)
    unary = [name for name, function in UNARY_FUNCTIONS.items() if jumps(function)]
    assert {"ceil", "floor", "round_nearest_afz", "round_nearest_even"} <= {*unary}
    for name in unary:
        expected = UNARY_FUNCTIONS[name](reals) * 16
        np.testing.assert_array_equal(unary_table(name, operand, result), expected, err_msg=name)
    binary = [name for name, function in BINARY_FUNCTIONS.items() if jumps(function, 1.0)]
    assert "remainder" in binary
    for name in binary:
        table = binary_table(name, operand, divisor, result).reshape(256, 4)
        expected = np.rint(BINARY_FUNCTIONS[name](reals, 1.0) * 16)
        np.testing.assert_array_equal(table[:, 3], expected, err_msg=name)


@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_functions_that_jump_to_nan_are_tabulated_from_the_expressed_type(scale: float) -> None:
    """``(-12.8) ** (10 * 0.1)`` is -12.8 in f32, and NaN with the f64 product of the f32 scale."""
    int8, int16 = StorageType(8, True), StorageType(16, True)
    operand = QuantizationParameters(int8, ExpressedType.F32, scales=np.array(scale))
    result = QuantizationParameters(int16, ExpressedType.F32, scales=np.array(1 / 16))
    dequantized = np.arange(-128, 128).astype(np.float32) * np.float32(scale)
    reals = dequantized.astype(np.float64)
    with np.errstate(all="ignore"):
        powers = np.power(reals[:, np.newaxis], reals).reshape(-1)
        logarithms = np.log1p(reals)
    assert np.isnan(powers).any()
    assert np.isfinite(powers[dequantized.repeat(256) < 0]).any()
    for table, exact in (
        (binary_table("power", operand, operand, result), powers),
        (unary_table("log_plus_one", operand, result), logarithms),
    ):
        expected = np.rint(np.clip(np.nan_to_num(exact, nan=0), -2048, 2047.9375) * 16)
        np.testing.assert_array_equal(table, expected)


OPERATION_NAMES = sorted(
    {
        operation.OPERATION_NAME
        for operation in vars(subquant).values()
        if hasattr(operation, "OPERATION_NAME") and operation.OPERATION_NAME.startswith("subquant.")
    }
    | set(subquant.REQUANTIZE)
    | set(subquant.REDUCTIONS)
)


@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_every_operation_of_the_dialect_is_documented_checked_and_tried_invalid(name: str) -> None:
    """Its text, its check in ``verify-quantization``, and inputs: one refused, one lowered."""
    family = re.sub(r"_\d$", "", name)
    assert f"``{family}``" in DIALECT
    assert name in OPERATION_CHECKS
    files = (*TESTS.glob("invalid/*.mlir"), *TESTS.glob("filecheck/*/invalid.mlir"))
    invalid = "".join(path.read_text() for path in files)
    assert f'"{family}"' in invalid or f'"{name}"' in invalid
    lowered = "".join(
        path.read_text()
        for path in TESTS.glob("filecheck/*/*.mlir")
        if path.stem not in ("invalid", "no-op")
    )
    assert re.search(rf'"{family}(_\d)?"', lowered), "no FileCheck test of a pass has it"
