"""Quantized operations through TOSA's rescales, beside the exact reals, and there and back.

Two ways of running what ``quant-legalize-to-tosa-rescale`` writes share no arithmetic: StableHLO's
interpreter on what ``tosa-rescale-legalize-to-stablehlo`` makes of it, and IREE on the rescales.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import subquant
from bare_iree import assert_refused, compile_bare
from programs import LONG, examples, one_operation, run_passes
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.numerics.parameters import StorageType
from subquant.runtime import Device, Executable
from together import Together
from tosa_rescales import BACK

FORTH = "quant-legalize-to-tosa-rescale"

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
PAIR_OPERATIONS = (*BINARY, "abs")
DIRECTIONS = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less,
}  # fmt: skip


class Quantized:
    """A per-tensor quantized type, by storage (as in the type's text), scale and zero point."""

    def __init__(self, storage: str, scale: float, zero_point: int) -> None:
        self.scale, self.zero_point = float(np.float32(scale)), zero_point
        self.text = f"!quant.uniform<{storage}:f32, {self.scale!r}:{zero_point}>"
        self.storage = StorageType.parse(storage)

    def values(self, most: int = 256) -> np.ndarray:
        """Every storage value, or some of more than `most`, extremes among them."""
        low, high = self.storage.minimum, self.storage.maximum
        if high - low < most:
            return np.arange(low, high + 1)
        drawn = np.random.default_rng(2).integers(low, high + 1, most - 16)
        ends = [low, low + 1, high - 1, high]
        middle = self.zero_point + np.arange(-6, 6)
        return np.array([*ends, *middle[(middle >= low) & (middle <= high)], *drawn])

    def reals(self, stored: np.ndarray) -> np.ndarray:
        return (stored.astype(np.int64) - self.zero_point) * np.longdouble(self.scale)


def elementwise(name: str, operands: list[Quantized], result: Quantized, size: int) -> str:
    names = ", ".join(f"%{number}" for number in range(len(operands)))
    types = [f"{size}x{side.text}" for side in (*operands, result)]
    return one_operation(f'"stablehlo.{name}"({names})', types[:-1], types[-1])


def comparisons(operands: list[Quantized], size: int) -> str:
    each = [f"tensor<{size}x{side.text}>" for side in operands]
    types, parameters = ", ".join(each), ", ".join(f"%a{n}: {t}" for n, t in enumerate(each))
    bits = ", ".join([f"tensor<{size}xi1>"] * len(DIRECTIONS))
    body = "".join(
        f"  %{name} = stablehlo.compare {name}, %a0, %a1 : ({types}) -> tensor<{size}xi1>\n"
        for name in DIRECTIONS
    )
    returned = ", ".join(f"%{name}" for name in DIRECTIONS)
    return f"func.func @main({parameters}) -> ({bits}) {{\n{body}  return {returned} : {bits}\n}}"


def pairs(operands: list[Quantized], most: int = 256) -> list[np.ndarray]:
    grids = np.meshgrid(*[side.values(most) for side in operands], indexing="ij")
    return [
        grid.reshape(-1).astype(side.storage.dtype)
        for grid, side in zip(grids, operands, strict=True)
    ]


def exact_steps(name: str, operands: list[Quantized], result: Quantized, values: Any) -> Any:
    """The exact result in steps of the result's type, before rounding and clamping.

    Differences have up to 32 bits and scales 24: sums and products are exact in long doubles of 64
    bits but for a relative 2**-63, which no comparison here can see.
    """
    reals = [side.reals(array) for array, side in zip(values, operands, strict=True)]
    with np.errstate(all="ignore"):
        real = np.abs(reals[0]) if name == "abs" else getattr(np, name)(*reals)
    return real / np.longdouble(result.scale) + result.zero_point


def check_close(
    got: np.ndarray, steps: np.ndarray, result: Quantized, bound: float | None = None
) -> None:
    """At most one step from the rounded exact value, or closer to the exact one than a bound."""
    storage = result.storage
    low, high = storage.minimum, storage.maximum
    actual = got.astype(np.int64)
    assert actual.min() >= low
    assert actual.max() <= high
    undefined = np.isnan(steps)
    assert (actual[undefined] == min(max(0, low), high)).all()
    infinite = np.isinf(steps)
    np.testing.assert_array_equal(actual[infinite], np.where(steps[infinite] > 0, high, low))
    finite = ~(undefined | infinite)
    clipped = np.clip(steps[finite], low, high)
    if bound is None:
        assert np.abs(actual[finite] - np.rint(clipped)).max(initial=0) <= 1
    else:
        assert np.abs(actual[finite] - clipped).max(initial=0) <= bound


def run_both(text: str, options: str, values: list[np.ndarray]) -> tuple[Any, list[str]]:
    """Evaluate a program after both passes with the interpreter."""
    module, remarks = run_passes(text, f"{FORTH}{{explain=true {options}}},{BACK}")
    return InterpretedModule(module)["main"].invoke(values), [each.message for each in remarks]


SETS = {
    "ratio": (Quantized("i8", 0.025, -1), Quantized("i8", 0.075, -2), Quantized("i8", 0.15, -3)),
    "equal": (Quantized("i8", 0.5, 0), Quantized("i8", 0.5, 0), Quantized("i8", 0.5, 0)),
    "far": (Quantized("i8", 3e-5, 127), Quantized("i8", 0.9, -128), Quantized("i8", 0.0041, 5)),
    "unsigned": (Quantized("u8", 0.031, 128), Quantized("u8", 0.7, 0), Quantized("u8", 0.02, 255)),
    "narrow": tuple(
        Quantized("i8<-127:127>", scale, zero)
        for scale, zero in ((0.3, 1), (0.011, 90), (0.2, -20))
    ),
}
OPTIONS = [
    *("rounding=single", "rounding=double", "rounding=inexact", "scale32=false", "types=quantized")
]


def operands_of(name: str, set_: str) -> tuple[list[Quantized], Quantized]:
    left, right, result = SETS[set_]
    return ([left] if name == "abs" else [left, right]), result


@functools.cache
def all_pairs(set_: str, options: str, back: bool = False) -> Together:
    """Each operation on every pair of bytes, with the rescales that ``compile`` lowers itself."""
    programs = {}
    for name in PAIR_OPERATIONS:
        operands, result = operands_of(name, set_)
        programs[name] = elementwise(name, operands, result, pairs(operands)[0].size)
    passes = f"{FORTH}{{{options}}}" + (f",{BACK}" if back else "")
    return Together(programs, lambda text: run_passes(text, passes)[0])


def interpreted_pairs(
    name: str, set_: str, options: str
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """There and back in the interpreter: the results, their pairs, and which of all these are.

    A sixteenth of all pairs, the extremes among them, and all in the long suite: the interpreter
    takes seconds for all, and does the same for each.
    """
    operands, result = operands_of(name, set_)
    values = pairs(operands)
    count = values[0].size
    which = np.arange(count)
    if name != "abs" and not LONG:
        side = math.isqrt(count)
        drawn = np.random.default_rng(3).choice(count, count // 16, replace=False)
        which = np.union1d(drawn, [0, side - 1, count - side, count - 1])
    values = [array[which] for array in values]
    (got,), remarks = run_both(elementwise(name, operands, result, which.size), options, values)
    assert not remarks
    return got, values, which


@pytest.mark.parametrize("name", PAIR_OPERATIONS)
@pytest.mark.parametrize(
    ("set_", "options"),
    [*((set_, "") for set_ in SETS), *(("ratio", options) for options in OPTIONS[1:])],
)
@pytest.mark.share(16)
def test_all_pairs_of_bytes(name: str, set_: str, options: str, cpu: Device) -> None:
    """65,536 pairs: near the exact result, and the round trip equals TOSA on IREE."""
    operands, result = operands_of(name, set_)
    values = pairs(operands)
    text = elementwise(name, operands, result, values[0].size)
    assert "tosa.rescale" in str(run_passes(text, f"{FORTH}{{{options}}}")[0])
    (through_tosa,) = all_pairs(set_, options).function(name, cpu).invoke(values)
    check_close(through_tosa, exact_steps(name, operands, result, values), result)
    interpreted, _, which = interpreted_pairs(name, set_, options)
    np.testing.assert_array_equal(interpreted, through_tosa[which], strict=True)


@pytest.mark.vulkan
@pytest.mark.parametrize("back", [True, False])
def test_pairs_on_vulkan(back: bool, vulkan: Device, cpu: Device) -> None:
    for name in ("add", "divide", "maximum"):
        values = pairs(operands_of(name, "ratio")[0])
        (got,) = all_pairs("ratio", "", back).function(name, vulkan).invoke(values)
        (expected,) = all_pairs("ratio", "").function(name, cpu).invoke(values)
        np.testing.assert_array_equal(got, expected, strict=True)
        interpreted, _, which = interpreted_pairs(name, "ratio", "")
        np.testing.assert_array_equal(got[which], interpreted, strict=True)


@pytest.mark.parametrize("set_", SETS)
def test_comparisons(set_: str, cpu: Device) -> None:
    """Right wherever the reals differ by more than the 2**-20 of the greater scale.

    Each operand is off by half of that and, by its multiplier, by 2**-24 of the scale. Equal types
    are always compared rightly.
    """
    operands = list(SETS[set_][:2])
    values = pairs(operands)
    module, remarks = run_passes(comparisons(operands, values[0].size), f"{FORTH}{{explain=true}}")
    assert not remarks
    got = subquant.compile(module, device=cpu)["main"].invoke(values)
    some = [array[:: 7 * 256 + 1] for array in values]
    few, _ = run_both(comparisons(operands, some[0].size), "", some)
    difference = operands[0].reals(values[0]) - operands[1].reals(values[1])
    clear = np.abs(difference) > max(side.scale for side in operands) * 1.2 / (1 << 20)
    if set_ == "equal":
        clear[:] = True
    assert clear.mean() > 0.98
    for name, result, interpreted in zip(DIRECTIONS, got, few, strict=True):
        compared = DIRECTIONS[name](difference, 0)
        np.testing.assert_array_equal(result[clear], compared[clear], err_msg=name)
        np.testing.assert_array_equal(interpreted, result[:: 7 * 256 + 1], err_msg=name)


STORAGES = ("i8", "u8", "i16", "u16", "i4", "u4", "i2", "i8<-100:90>", "u16<7:60000>", "i32")


@st.composite
def quantized(draw: Any, storage: str) -> Quantized:
    plain = Quantized(storage, 1.0, 0).storage
    scale = draw(st.floats(1e-4, 1.0))
    low, high = plain.minimum, plain.maximum
    zero_point = 0 if storage == "i32" else draw(st.integers(low, high))
    return Quantized(storage, scale, zero_point)


@st.composite
def operations(draw: Any) -> tuple[str, list[Quantized], Quantized, str]:
    name = draw(st.sampled_from(PAIR_OPERATIONS))
    storage = draw(st.sampled_from(STORAGES))
    types = [draw(quantized(storage)) for _ in range(2 if name == "abs" else 3)]
    return name, types[:-1], types[-1], draw(st.sampled_from(OPTIONS))


@pytest.mark.long
@settings(max_examples=examples(50))
@given(operations())
def test_generated_types(operation: tuple[str, list[Quantized], Quantized, str]) -> None:
    """Within a step, or within the bound that the pass reports."""
    name, operands, result, options = operation
    values = pairs(operands, 64 if LONG else 32)
    (got,), remarks = run_both(elementwise(name, operands, result, values[0].size), options, values)
    assert all("may differ from the exact result by up to" in remark for remark in remarks)
    bound = None
    if remarks:
        # The number is printed with three digits.
        bound = float(remarks[0].rpartition("by up to ")[2].split()[0]) * 1.005
    check_close(got, exact_steps(name, operands, result, values), result, bound)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero_points", [[0, 0, 0], [3, -100, 7]])
@pytest.mark.parametrize("back", [True, False])
@pytest.mark.share(4)
def test_per_axis_add(axis: int, zero_points: list[int], back: bool, cpu: Device) -> None:
    shape = (3, 500) if axis == 0 else (500, 3)
    scales = [[0.5, 0.01, 3.0], [0.25, 0.7, 0.002], [0.6, 0.5, 2.0]]
    types = []
    for row in scales:
        pairs_ = ",".join(f"{np.float32(s)!s}:{z}" for s, z in zip(row, zero_points, strict=True))
        types.append(f"{shape[0]}x{shape[1]}x!quant.uniform<i8:f32:{axis}, {{{pairs_}}}>")
    text = one_operation("stablehlo.add %0, %1", types[:2], types[2])
    values = [np.random.default_rng(k).integers(-128, 128, shape).astype(np.int8) for k in (1, 2)]
    module, remarks = run_passes(text, f"{FORTH}{{explain=true}}" + (f",{BACK}" if back else ""))
    assert not remarks
    assert ("per_channel = true" in str(module)) != back
    (got,) = subquant.compile(module, device=cpu)["main"].invoke(values)
    grid = (3, 1) if axis == 0 else (1, 3)
    s = [np.float32(row).astype(np.float64).reshape(grid) for row in scales]
    z = np.array(zero_points).reshape(grid)
    real = (values[0] - z) * s[0] + (values[1] - z) * s[1]
    expected = np.clip(np.rint(real / s[2] + z), -128, 127)
    assert np.abs(got - expected).max() <= 1


def test_dynamic_shapes(cpu: Device) -> None:
    operands, result = operands_of("subtract", "ratio")
    expected, values, _ = interpreted_pairs("subtract", "ratio", "")
    dynamic = elementwise("subtract", operands, result, 1).replace("tensor<1x", "tensor<?x")
    module, _ = run_passes(dynamic, f"{FORTH},{BACK}")
    np.testing.assert_array_equal(
        subquant.compile(module, device=cpu)["main"].invoke(values)[0], expected
    )


def test_divide_has_the_right_multiplier() -> None:
    """StableHLO's C++ pass rescales the quotient by ``s1 * s2 / s``, and cuts it off before.

    For 20.0 / 0.5 with steps of 0.25, 0.125 and 0.5 the result is 40.0, 80 steps; the C++ pass's
    numbers (differences 80 and 4, quotient 20, multiplier 0.25 * 0.125 / 0.5) give 1 step, 0.5.
    """
    left, right = Quantized("i8", 0.25, 0), Quantized("i8", 0.125, 0)
    result = Quantized("i8", 0.5, 0)
    text = elementwise("divide", [left, right], result, 1)
    (got,), _ = run_both(text, "", [np.array([80], np.int8), np.array([4], np.int8)])
    assert got.tolist() == [80]
    wrong = Fraction(1, 4) * Fraction(1, 8) / Fraction(1, 2)
    right_one = Fraction(1, 4) / (Fraction(1, 8) * Fraction(1, 2))
    assert round(80 // 4 * wrong) == 1
    assert round(80 // 4 * right_one) == 80
    # Its integer division alone is wrong too: 3.0 / 2.0 becomes 1 and not 1.5.
    one = Quantized("i8", 1.0, 0)
    text = elementwise("divide", [one, one], result, 1)
    (got,), _ = run_both(text, "", [np.array([3], np.int8), np.array([2], np.int8)])
    assert got.tolist() == [3]


def test_a_quotient_of_zeros() -> None:
    """Infinities saturate, NaN is the storage value 0."""
    type_ = Quantized("i8", 0.5, 10)
    text = elementwise("divide", [type_, type_], type_, 3)
    values = [np.array([11, 9, 10], np.int8), np.array([10, 10, 10], np.int8)]
    (got,), _ = run_both(text, "", values)
    assert got.tolist() == [127, -128, 0]


def test_iree_refuses_a_mixture(cpu: Device) -> None:
    """The pass writes StableHLO and TOSA; IREE needs one of the two lowered."""
    operands, result = operands_of("add", "ratio")
    expected, values, _ = interpreted_pairs("add", "ratio", "")
    text = elementwise("add", operands, result, values[0].size)
    stored = f"{FORTH},convert-quantized-to-storage"
    mixed, _ = run_passes(text, stored)
    written = mixed.operation.get_asm(print_generic_op_form=True)
    assert_refused(written, b"mixture of input types", "the lowering of one of the two")
    # StableHLO's own lowering of the rest leaves TOSA that IREE accepts.
    lowered, _ = run_passes(text, f"{stored},stablehlo-legalize-to-linalg")
    data = compile_bare(lowered.operation.get_asm(print_generic_op_form=True))
    np.testing.assert_array_equal(Executable(data, device=cpu)["main"].invoke(values)[0], expected)
