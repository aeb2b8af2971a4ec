"""Elements that are moved where they are computed, on Vulkan, without data races between threads.

`tests/test_cross_thread_reads.py` says how executables are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from bare_iree import FIXED, compile_without_barriers
from block_programs import tensor
from devices import ON_VULKAN, run
from programs import share_of
from spirv import races
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device
from together import Together

pytestmark = pytest.mark.vulkan

NAMES = {"i4": np.int8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "ui8": np.uint8}


class Program:
    """Bytes that are widened once, and of which several operations make others.

    Each of the `number` parts is half of ``((x & 255) - 9 * n) * (2 * n + 3)``, rounded half to
    even, as an element type: as unsigned storage is requantized.
    """

    def __init__(self, shape: Sequence[int], element: str, number: int) -> None:
        self.shape, self.element = tuple(shape), element
        half, wide = tensor(shape, "i16"), tensor(shape, "i32")
        self.lines = [
            f"%h = stablehlo.convert %x : ({tensor(shape, 'i8')}) -> {half}",
            f"%c = stablehlo.constant dense<255> : {half}",
            f"%u = stablehlo.and %h, %c : {half}",
        ]
        for n in range(number):
            self.lines += [
                f"%z{n} = stablehlo.constant dense<{9 * n}> : {half}",
                f"%d{n} = stablehlo.subtract %u, %z{n} : {half}",
                f"%w{n} = stablehlo.convert %d{n} : ({half}) -> {wide}",
                f"%f{n} = stablehlo.constant dense<{2 * n + 3}> : {wide}",
                f"%m{n} = stablehlo.multiply %w{n}, %f{n} : {wide}",
                f"%one{n} = stablehlo.constant dense<1> : {wide}",
                f"%s{n} = stablehlo.shift_right_arithmetic %m{n}, %one{n} : {wide}",
                f"%e{n} = stablehlo.and %s{n}, %one{n} : {wide}",
                f"%l{n} = stablehlo.and %m{n}, %one{n} : {wide}",
                f"%t{n} = stablehlo.and %e{n}, %l{n} : {wide}",
                f"%q{n} = stablehlo.add %s{n}, %t{n} : {wide}",
                f"%p{n} = stablehlo.convert %q{n} : ({wide}) -> {self.type(shape)}",
            ]

    def type(self, shape: Sequence[int]) -> str:
        return tensor(shape, self.element)

    def text(self, results: Sequence[tuple[str, Sequence[int]]], more: Sequence[str]) -> str:
        types = ", ".join(self.type(shape) for _, shape in results)
        names = ", ".join(name for name, _ in results)
        body = "\n  ".join((*self.lines, *more))
        return f"""
func.func @main(%x: {tensor(self.shape, "i8")}) -> ({types}) {{
  {body}
  return {names} : {types}
}}"""

    def part(self, x: np.ndarray, n: int) -> np.ndarray:
        products = ((x.astype(np.int64) & 255) - 9 * n) * (2 * n + 3)
        values = (products >> 1) + (products >> 1 & products & 1)
        bits = int(self.element.lstrip("ui"))
        if not self.element.startswith("u"):
            values = (values + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        return values.astype(NAMES[self.element])


@dataclass(frozen=True)
class Join:
    """Parts joined along an axis; ragged ones without their first position, but for the first."""

    program: Program
    axis: int
    number: int
    is_ragged: bool = False

    def text(self) -> str:
        whole = list(self.program.shape)
        cut = [extent - (axis == self.axis) for axis, extent in enumerate(whole)]
        limits = ", ".join(f"{int(axis == self.axis)}:{n}" for axis, n in enumerate(whole))
        wide, narrow = self.program.type(whole), self.program.type(cut)
        names = [f"%p{n}" for n in range(self.number)]
        types, statements = [wide] * self.number, []
        for n in range(1, self.number if self.is_ragged else 0):
            names[n], types[n] = f"%k{n}", narrow
            statements.append(f"%k{n} = stablehlo.slice %p{n} [{limits}] : ({wide}) -> {narrow}")
        result = list(whole)
        result[self.axis] *= self.number
        result[self.axis] -= (self.number - 1) * self.is_ragged
        statements.append(
            f"%r = stablehlo.concatenate {', '.join(names)}, dim = {self.axis}"
            f" : ({', '.join(types)}) -> {self.program.type(result)}"
        )
        return self.program.text([("%r", result)], statements)

    def expected(self, x: np.ndarray) -> np.ndarray:
        computed = [self.program.part(x, n) for n in range(self.number)]
        cut = computed[0].shape[self.axis]
        rest = [part.take(range(int(self.is_ragged), cut), self.axis) for part in computed[1:]]
        return np.concatenate([computed[0], *rest], self.axis)


def joins() -> dict[str, Join]:
    actual = {}
    for element in NAMES:
        for shape in ((2, 4, 7, 6), (3, 5, 7), (9, 5)):
            for axis in range(len(shape)):
                number = 2 + (axis + len(shape)) % 3
                program = Program(shape, element, number)
                name = f"{element}-{'x'.join(map(str, shape))}-axis{axis}-of{number}"
                actual[name] = Join(program, axis, number)
                if element == "i8":
                    actual[f"{name}-ragged"] = Join(program, axis, number, is_ragged=True)
    return actual


JOINS = joins()
CHOSEN = share_of(JOINS, 6)
JOINED = Together({name: JOINS[name].text() for name in CHOSEN})


def bytes_of(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)


@ON_VULKAN
@pytest.mark.parametrize("name", CHOSEN)
def test_bytes_that_are_joined_where_they_are_computed(device: Device, name: str) -> None:
    x = bytes_of(JOINS[name].program.shape)
    np.testing.assert_array_equal(JOINED.function(name, device)(x), JOINS[name].expected(x))


MOVES = {
    "transpose": ("transpose %p{n}, dims = [2, 0, 1]", (7, 3, 5), lambda x: x.transpose(2, 0, 1)),
    "transpose of the last": (
        "transpose %p{n}, dims = [0, 2, 1]", (3, 7, 5), lambda x: x.transpose(0, 2, 1),
    ),
    "broadcast": (
        "broadcast_in_dim %p{n}, dims = [0, 1, 3]", (3, 5, 2, 7),
        lambda x: np.broadcast_to(x[:, :, None], (3, 5, 2, 7)),
    ),
    "pad": (
        "pad %p{n}, %fill, low = [1, 0, 3], high = [0, 2, 0], interior = [0, 0, 0]"
        " : ({whole}, tensor<i8>) -> {result}",
        (4, 7, 10), lambda x: np.pad(x, ((1, 0), (0, 2), (3, 0)), constant_values=1),
    ),
    "slice": ("slice %p{n} [1:3, 0:4, 2:7]", (2, 4, 5), lambda x: x[1:3, 0:4, 2:7]),
    "reverse": ("reverse %p{n}, dims = [1, 2]", (3, 5, 7), lambda x: x[:, ::-1, ::-1]),
    "update": (
        "dynamic_update_slice %y, %p{n}, %one, %zero, %one"
        " : ({result}, {whole}, tensor<i32>, tensor<i32>, tensor<i32>) -> {result}",
        (4, 6, 9), lambda x: np.pad(x, ((1, 0), (0, 1), (1, 1)), constant_values=2),
    ),
}  # fmt: skip
"""An operation, of one operand where it says no types; its result's shape, and its meaning."""
MOVED = Program((3, 5, 7), "i8", 2)


def moved_text(name: str) -> str:
    text, shape, _ = MOVES[name]
    text += "" if " : " in text else " : ({whole}) -> {result}"
    types = {"whole": MOVED.type(MOVED.shape), "result": MOVED.type(shape)}
    more = [
        "%fill = stablehlo.constant dense<1> : tensor<i8>",
        "%zero = stablehlo.constant dense<0> : tensor<i32>",
        "%one = stablehlo.constant dense<1> : tensor<i32>",
        "%two = stablehlo.constant dense<2> : tensor<i8>",
        f"%y = stablehlo.broadcast_in_dim %two, dims = [] : (tensor<i8>) -> {types['result']}",
        *(f"%r{n} = stablehlo." + text.format(n=n, **types) for n in range(2)),
    ]
    return MOVED.text([("%r0", shape), ("%r1", shape)], more)


MOVED_TOGETHER = Together({name: moved_text(name) for name in MOVES})


@ON_VULKAN
@pytest.mark.parametrize("name", MOVES)
def test_bytes_that_are_moved_where_they_are_computed(device: Device, name: str) -> None:
    x = bytes_of(MOVED.shape)
    for n, actual in enumerate(MOVED_TOGETHER.function(name, device)(x)):
        np.testing.assert_array_equal(actual, MOVES[name][2](MOVED.part(x, n)))


@ON_VULKAN
def test_no_thread_reads_what_another_writes(device: Device) -> None:
    """Whatever a device does by chance: from the executables."""
    for programs in (JOINED, MOVED_TOGETHER):
        assert races(programs.executable(device)) == []
    options = CompileOptions(target="vulkan", vulkan_target=device.vulkan_target)
    for text in (TWO_WAYS, BROADCAST_SUMS):
        assert races(compile_to_bytes(text, options)) == []


TWO_WAYS = """
func.func @main(%x: tensor<12x9xi8>) -> (tensor<9x12xi32>, tensor<12x9xi32>) {
  %w = stablehlo.convert %x : (tensor<12x9xi8>) -> tensor<12x9xi32>
  %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<12x9xi32>) -> tensor<9x12xi32>
  %r = stablehlo.negate %t : tensor<9x12xi32>
  %s = stablehlo.negate %w : tensor<12x9xi32>
  return %r, %s : tensor<9x12xi32>, tensor<12x9xi32>
}
"""


@ON_VULKAN
def test_bytes_that_are_read_in_two_orders(device: Device) -> None:
    x = bytes_of((12, 9))
    transposed, same = run(TWO_WAYS, device, x)
    np.testing.assert_array_equal(transposed, -x.T.astype(np.int32))
    np.testing.assert_array_equal(same, -x.astype(np.int32))


TRANSPOSING = (
    "--iree-opt-outer-dim-concat",
    "--iree-global-opt-propagate-transposes",
    "--iree-opt-aggressively-propagate-transposes",
)


@pytest.mark.parametrize("name", ["i8-2x4x7x6-axis1-of4", "i8-9x5-axis1-of2"])
def test_joins_are_still_transposed_by_default(name: str) -> None:
    assert races(compile_without_barriers(JOINS[name].text(), *TRANSPOSING)), (
        FIXED + "the flags of Vulkan about transpositions from compiler/options.py"
    )


def test_bytes_are_still_read_in_two_orders_without_barriers() -> None:
    assert races(compile_without_barriers(TWO_WAYS)), (
        FIXED + "operands_of_other_threads from cross_thread_reads.py"
    )


BROADCAST_SUMS = """
func.func @main(%x: tensor<3x7x7x4xi8>) -> tensor<7x4xi32> {
  %b = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3, 4]
      : (tensor<3x7x7x4xi8>) -> tensor<3x7x4x7x4xi8>
  %w = stablehlo.convert %b : (tensor<3x7x4x7x4xi8>) -> tensor<3x7x4x7x4xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %s = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0, 2, 3]
      : (tensor<3x7x4x7x4xi32>, tensor<i32>) -> tensor<7x4xi32>
  return %s : tensor<7x4xi32>
}
"""


@ON_VULKAN
def test_sums_of_a_broadcast_that_is_widened(device: Device) -> None:
    x = bytes_of((3, 7, 7, 4))
    actual = run(BROADCAST_SUMS, device, x)
    np.testing.assert_array_equal(actual, 4 * x.astype(np.int64).sum((0, 2)))


WIDENED_BY_TWO = """
func.func @main(%x: tensor<3xi32>) -> (tensor<3xi32>, tensor<3xi64>) {
  %w = stablehlo.convert %x : (tensor<3xi32>) -> tensor<3xi64>
  %k = stablehlo.constant dense<65536> : tensor<3xi64>
  %c = stablehlo.compare LT, %w, %k, SIGNED
      : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
  %d = stablehlo.convert %c : (tensor<3xi1>) -> tensor<3xi32>
  %b = stablehlo.optimization_barrier %d : tensor<3xi32>
  %e = stablehlo.convert %b : (tensor<3xi32>) -> tensor<3xi64>
  %q = stablehlo.add %w, %e : tensor<3xi64>
  return %d, %q : tensor<3xi32>, tensor<3xi64>
}
"""


def test_integers_that_several_dispatches_widen(vulkan: Device) -> None:
    """Mesa 22.3 compares 40000, as 64 bits, with 65536 as greater; see `narrow_comparisons`."""
    is_less, totals = run(WIDENED_BY_TWO, vulkan, np.int32([40_000, -5, 80_000]))
    assert (is_less.tolist(), totals.tolist()) == ([1, 1, 0], [40_001, -4, 80_000])
