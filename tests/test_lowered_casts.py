"""Lowered casts, evaluated in NumPy, against the reference.

`test_execution` runs them on devices; here nothing is compiled, and the division may be as inexact
as Vulkan allows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.mixins import NDArrayOperatorsMixin

from numpy_evaluation import evaluate
from programs import Cast, casts, examples, module_text, same_bits
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.numerics.array_functions import Symbolic, convert
from subquant.numerics.casts import Cast as Formulas
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.element_types import ElementType
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType


def nudged(steps: int) -> Any:
    """A division whose f32 results are some units in the last place off."""

    def divide(value: np.ndarray, by: np.ndarray) -> np.ndarray:
        quotient = np.asarray(value / by)
        if quotient.dtype != np.float32:
            return quotient
        moved = quotient
        for _ in range(abs(steps)):
            moved = np.nextafter(moved, np.float32(np.copysign(np.inf, steps)))
        normal = np.isfinite(quotient) & (np.abs(quotient) >= np.finfo(np.float32).tiny)
        return np.where(normal, moved, quotient)

    return divide


def lowered(generated: list[Cast], rounding: str, division: str) -> ir.Module:
    module = parse_text(module_text(generated), create_context())
    passes = f"lower-quant-casts{{rounding={rounding} division={division}}}"
    run_pipeline(module, parse_pipeline(passes))
    return module


def check(generated: list[Cast], rounding: str, division: str, divide: Any = np.divide) -> None:
    generated = [cast for cast in generated if not cast.unranked]
    module = lowered(generated, rounding, division)
    rng = np.random.default_rng(len(generated))
    for number, cast in enumerate(generated):
        storage = cast.parameters.storage
        reals = cast.reals(rng) if rounding == "nearest-even" else cast.tame_reals(rng)
        (got,) = evaluate(module, f"q{number}", [reals], divide)
        expected = quantize(reals, cast.parameters, rounding)
        stored_bits = got & ((1 << storage.width) - 1) if not storage.signed else got
        np.testing.assert_array_equal(stored_bits, expected, err_msg=f"quantize {cast}")
        stored = cast.stored(rng)
        if not storage.signed:  # the same bits as a signed number
            half = 1 << (storage.width - 1)
            stored = ((stored.astype(np.int64) + half) & (2 * half - 1)) - half
        (real,) = evaluate(module, f"d{number}", [stored])
        unsigned = stored & ((1 << storage.width) - 1) if not storage.signed else stored
        assert same_bits(real, dequantize(unsigned, cast.parameters)), f"dequantize {cast}"


@settings(max_examples=examples(12))
@given(generated=st.lists(casts(), min_size=8, max_size=12))
def test_casts_equal_the_reference(generated: list[Cast]) -> None:
    check(generated, "nearest-even", "native")


@pytest.mark.long
@settings(max_examples=examples(24))
@given(cast=casts(), seed=st.integers(0, 1 << 32))
def test_casts_that_differ_in_numbers_alone(cast: Cast, seed: int) -> None:
    """In one module, where later ones may be copies of the first with other constants."""
    rng, parameters = np.random.default_rng(seed), cast.parameters
    storage, shape = parameters.storage, parameters.scales.shape
    largest = int(min(parameters.expressed.largest, 1 << 31))  # greater zero points are refused
    low, high = max(storage.minimum, -largest), min(storage.maximum, largest)
    variants = [
        dataclasses.replace(
            parameters,
            scales=rng.permutation(parameters.scales.reshape(-1)).reshape(shape),
            zero_points=rng.integers(low, high, shape, endpoint=True),
        )
        for _ in range(3)
    ]
    generated = [dataclasses.replace(cast, parameters=other) for other in (parameters, *variants)]
    check(generated, "nearest-even", "native")


@settings(max_examples=examples(6))
@given(
    generated=st.lists(
        casts(expressed=[ExpressedType.F32, ExpressedType.F64]), min_size=8, max_size=12
    )
)
def test_casts_equal_the_reference_toward_zero(generated: list[Cast]) -> None:
    narrow = [cast for cast in generated if cast.parameters.storage.width < 20]
    check(narrow, "toward-zero", "native")


@pytest.mark.parametrize("steps", [-2, -1, 0, 1, 2])
@settings(max_examples=examples(4))
@given(generated=st.lists(casts(), min_size=8, max_size=12))
@pytest.mark.share(10)
def test_an_exact_division_needs_no_exact_device(steps: int, generated: list[Cast]) -> None:
    check(generated, "nearest-even", "exact", nudged(steps))


class OnDevice(Symbolic, NDArrayOperatorsMixin):
    """An array whose quotients are a device's, for formulas over arrays."""

    def __init__(self, data: np.ndarray, divide: Any) -> None:
        self.data, self.divide = data, divide
        self.element = ElementType.of_dtype(data.dtype)

    def convert(self, element: ElementType) -> OnDevice:
        return OnDevice(convert(self.data, element), self.divide)

    def bits_of(self, element: ElementType) -> OnDevice:
        return OnDevice(self.data.view(element.dtype), self.divide)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> OnDevice:
        function = self.divide if ufunc is np.true_divide else ufunc
        return self.__array_function__(function, (), inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> OnDevice:
        values = [arg.data if isinstance(arg, OnDevice) else arg for arg in args]
        return OnDevice(np.asarray(function(*values)), self.divide)


def quantized_on(reals: np.ndarray, scales: np.ndarray, divide: Any) -> np.ndarray:
    """The formula with an exact division, to i32."""
    cast = Formulas(StorageType(32), ExpressedType.F32, division="exact")
    with np.errstate(all="ignore"):
        return cast.quantize(OnDevice(reals, divide), OnDevice(scales, divide)).data


def test_quotients_next_to_a_tie() -> None:
    """The remainder is the integer next to half the divisor: nothing is nearer to a tie."""
    rng = np.random.default_rng(6)
    pairs, above = [], []
    for s in (rng.integers(1 << 22, 1 << 23, 400) * 2 + 1).tolist():
        for half, is_above in (((s + 1) // 2, True), ((s - 1) // 2, False)):
            x = s + half * pow(1 << 23, -1, s) % s  # x * 2**23 is half, modulo s
            if x < 1 << 24 or x % 2 == 0:
                pairs.append((x, s))
                above.append(is_above)
    x, s = np.array(pairs, np.float64).T
    reals, scales = (x * 2.0**23).astype(np.float32)[None], s.astype(np.float32)
    below = np.array([(int(a) << 23) // int(b) for a, b in pairs])
    parameters = QuantizationParameters(
        StorageType(32), ExpressedType.F32, (1,), (1,), scales, 0 * below, "per-axis"
    )
    module = lowered([Cast(parameters, reals.shape)], "nearest-even", "exact")
    for steps in range(-2, 3):
        (got,) = evaluate(module, "q0", [reals], nudged(steps))
        np.testing.assert_array_equal(got[0], below + above)
        np.testing.assert_array_equal(quantized_on(reals, scales, nudged(steps))[0], below + above)
    assert len(pairs) > 300
    assert {0, 1} == set(below % 2)


def test_the_last_bit_of_a_quotient_is_right_on_an_inexact_device() -> None:
    """Quotients of 2**23 and more are integers: i32 storage shows every bit of them."""
    rng = np.random.default_rng(4)
    scales = rng.uniform(0.5, 2, 40).astype(np.float32)
    scales[:4] = [1, 0.5, 1.5, np.nextafter(np.float32(2), np.float32(0))]
    quotients = rng.integers(1 << 23, 1 << 24, (400, 40)) * np.exp2(rng.integers(0, 8, (400, 40)))
    with np.errstate(all="ignore"):
        x = (quotients * rng.choice([1, -1], quotients.shape) * scales).astype(np.float32)
    whole = (rng.integers(1 << 11, 1 << 12, (200, 40)) << 12).astype(np.float32)
    scales_of_12_bits = (np.ceil(scales * 2048) / 2048).astype(np.float32)
    x = np.concatenate([x, whole * scales_of_12_bits])  # quotients that are exact
    scales = np.where(np.arange(40) % 2, scales, scales_of_12_bits)
    parameters = QuantizationParameters(
        StorageType(32), ExpressedType.F32, (1,), (1,), scales, np.zeros(40, int), "per-axis"
    )
    module = lowered([Cast(parameters, x.shape)], "nearest-even", "exact")
    expected = np.rint(x / scales).astype(np.int64)
    for steps in range(-2, 3):
        np.testing.assert_array_equal(evaluate(module, "q0", [x], nudged(steps))[0], expected)
        np.testing.assert_array_equal(quantized_on(x, scales, nudged(steps)), expected)

    def scattered(value: np.ndarray, by: np.ndarray) -> np.ndarray:
        quotient = value / by
        return quotient + np.spacing(quotient) * rng.integers(-2, 3, quotient.shape, np.int8)

    np.testing.assert_array_equal(evaluate(module, "q0", [x], scattered)[0], expected)
