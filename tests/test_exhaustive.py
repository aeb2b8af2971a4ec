"""Every pair of 8-bit operands of the elementwise operations, exactly and in fixed point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

import subquant
from programs import LONG
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device

BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
UNARY = {"negate": np.negative, "abs": np.abs, "tanh": np.tanh, "logistic": None, "sqrt": np.sqrt}
CHOOSES = ("maximum", "minimum")


@dataclass(frozen=True)
class Type:
    """A per-tensor type of 8 bits; scales are f32 numbers."""

    storage: str
    scale: float
    zero_point: int

    @property
    def range(self) -> tuple[int, int]:
        return {"i8": (-128, 127), "u8": (0, 255), "i8<-127:127>": (-127, 127)}[self.storage]

    @property
    def real_scale(self) -> np.longdouble:
        return np.longdouble(np.float32(self.scale))

    def values(self) -> np.ndarray:
        low, high = self.range
        return np.arange(low, high + 1).astype(np.uint8 if self.storage == "u8" else np.int8)

    def reals(self, values: np.ndarray) -> np.ndarray:
        """The reals, exactly: a long double has 64 bits."""
        return (values.astype(np.int64) - self.zero_point) * self.real_scale

    def __str__(self) -> str:
        return f"!quant.uniform<{self.storage}:f32, {self.scale!r}:{self.zero_point}>"


SETS = {
    "ratio": (Type("i8", 0.025, -1), Type("i8", 0.075, -2), Type("i8", 0.15, -3)),
    "equal": (Type("i8", 0.5, 0), Type("i8", 0.5, 0), Type("i8", 0.5, 0)),
    "far": (Type("i8", 3.1e-05, 127), Type("i8", 0.9, -128), Type("i8", 0.0041, 5)),
    "unsigned": (Type("u8", 0.031, 128), Type("u8", 0.7, 0), Type("u8", 0.02, 255)),
    "narrow": (
        Type("i8<-127:127>", 0.3, 1),
        Type("i8<-127:127>", 0.011, 90),
        Type("i8<-127:127>", 0.2, -20),
    ),
}
"""Types of the left and right operand and of the result."""


def program(left: Type, right: Type, result: Type, count: int) -> str:
    """All operations of one set; the unary ones of the left operand."""
    x, y, z = (f"tensor<{count}x{type_}>" for type_ in (left, right, result))
    text_lines = [f"%{name} = stablehlo.{name} %x, %y : ({x}, {y}) -> {z}" for name in BINARY]
    text_lines += [f"%{name} = stablehlo.{name} %x : ({x}) -> {z}" for name in UNARY]
    names = [*BINARY, *UNARY]
    returned = ", ".join(f"%{name}" for name in names)
    types = ", ".join([z] * len(names))
    body = "\n  ".join(text_lines)
    return (
        f"func.func @main(%x: {x}, %y: {y}) -> ({types}) {{\n  {body}\n"
        f"  return {returned} : {types}\n}}\n"
    )


def steps_of(real: np.ndarray, result: Type) -> np.ndarray:
    """Round half to even with the tie tolerance 2**-20; saturate. NaN gives 0."""
    low, high = result.range
    with np.errstate(all="ignore"):
        steps = real / result.real_scale + result.zero_point
    undefined = np.isnan(steps)
    steps = np.clip(np.where(undefined, 0, steps), low - 4, high + 4)
    below = np.floor(steps)
    part = steps - below
    tie = np.abs(part - 0.5) <= 2.0**-20
    rounded = np.where(tie, below + below % 2, np.rint(steps))
    return np.clip(np.where(undefined, 0, rounded), low, high).astype(np.int64)


def logistic(real: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-real))


def expected_of(name: str, reals: list[np.ndarray], types: tuple[Type, Type, Type]) -> np.ndarray:
    """Return the nearest storage values of the real result, or of the selected operand."""
    result = types[2]
    if name in CHOOSES:
        requantized = [steps_of(real, result) for real in reals]
        chosen: np.ndarray = BINARY[name](*requantized)
        return chosen
    with np.errstate(all="ignore"):
        if name in BINARY:
            return steps_of(BINARY[name](*reals), result)
        function = UNARY[name] or logistic
        return steps_of(function(reals[0]), result)


def pairs(left: Type, right: Type, step: int = 1) -> list[np.ndarray]:
    """Left and right operands, every `step`-th pair of them."""
    grid = np.meshgrid(left.values(), right.values(), indexing="ij")
    return [np.ascontiguousarray(array.reshape(-1)[::step]) for array in grid]


@pytest.mark.long
@pytest.mark.parametrize(
    ("set_", "device"),
    [
        *((name, "cpu") for name in SETS),
        *(
            pytest.param(name, "vulkan", marks=pytest.mark.vulkan)
            for name in (("ratio", "unsigned") if LONG else ("unsigned",))
        ),
    ],
)
def test_all_pairs(set_: str, device: str, request: pytest.FixtureRequest) -> None:
    """65,536 pairs of 11 operations: exactly, and at most one step from that in fixed point."""
    found_on: Device = request.getfixturevalue(device)
    types = SETS[set_]
    x, y = pairs(*types[:2])
    reals = [types[0].reals(x), types[1].reals(y)]
    text = program(*types, x.size)
    target = "vulkan" if found_on.is_vulkan else "llvm-cpu"
    tolerances = {"exact": 0, "fixed-point": 1}
    if not LONG and set_ not in ("far", "unsigned"):
        del tolerances["fixed-point"]
    for requantization, tolerance in tolerances.items():
        executable = subquant.compile(
            text, target=target, device=found_on, requantization=requantization
        )
        results = executable.main(x, y)
        del executable  # no device is open while the next is compiled
        for name, got in zip([*BINARY, *UNARY], results, strict=True):
            expected = expected_of(name, reals, types)
            difference = np.abs(got.astype(np.int64) - expected)
            position = int(difference.argmax())
            assert difference.max() <= tolerance, (
                f"{name}, {requantization}: {x[position]}, {y[position]} gave {got[position]}, "
                f"expected {expected[position]}"
            )


@pytest.mark.skipif(not LONG, reason="3 s; devices compute the same pairs")
def test_the_interpreter_agrees() -> None:
    """The same programs of the exact mode on StableHLO's reference interpreter, every 17th pair."""
    for types in SETS.values():
        x, y = pairs(*types[:2], 17)
        reals = [types[0].reals(x), types[1].reals(y)]
        results = InterpretedModule(program(*types, x.size))["main"].invoke([x, y])
        for name, got in zip([*BINARY, *UNARY], results, strict=True):
            np.testing.assert_array_equal(got, expected_of(name, reals, types), err_msg=name)


def test_the_oracle_breaks_ties_to_even() -> None:
    unit = Type("i8", 1.0, 1)
    halves = np.array([0.5, 1.5, 2.5, -0.5, math.nan, math.inf, -math.inf, 200.0])
    # The zero point is added before rounding: 1.5, 2.5, 3.5, 0.5.
    assert steps_of(halves, unit).tolist() == [2, 2, 4, 0, 0, 127, -128, 127]
