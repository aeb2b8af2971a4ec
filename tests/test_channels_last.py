"""Pooling between convolutions of NCHW images is computed with the channels last.

See `subquant.transforms.contraction.sink_transposes`. Expected numbers are NumPy's; floats are
small integers, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from devices import main_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions

CHANNELS, HEIGHT, WIDTH = 16, 13, 12
NO_SLOPE, SLOPE = 1.0, 0.25


@dataclass(frozen=True)
class Windows:
    """Windows of the rows and of the columns: sizes, strides, dilations, padding at both ends."""

    sizes: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    function: str = "maximum"

    def pooled(self, x: np.ndarray) -> np.ndarray:
        """The windows of images in NumPy."""
        is_sum = self.function == "add"
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        x = np.pad(x, [(0, 0), (0, 0), *self.padding], constant_values=0 if is_sum else lowest)
        spans = [(n - 1) * d + 1 for n, d in zip(self.sizes, self.dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(x, spans, (2, 3))
        windows = windows[:, :, :: self.strides[0], :: self.strides[1]]
        windows = windows[..., :: self.dilations[0], :: self.dilations[1]]
        return windows.sum((4, 5), dtype=x.dtype) if is_sum else windows.max((4, 5))

    def text(self, name: str, shape: tuple[int, ...], result: tuple[int, ...], element: str) -> str:
        """The operation on `name`, and the constant that it starts from."""
        initial = {"maximum": {"f32": "0xFF800000", "i8": "-128"}[element], "add": "0.0"}
        rows = [
            f"array<i64: 1, 1, {a}, {b}>" for a, b in (self.sizes, self.strides, self.dilations)
        ]
        padding = [[0, 0], [0, 0], *map(list, self.padding)]
        scalar = f"tensor<{element}>"
        return f"""
  %initial = stablehlo.constant dense<{initial[self.function]}> : {scalar}
  %pooled = "stablehlo.reduce_window"({name}, %initial) <{{
      window_dimensions = {rows[0]}, window_strides = {rows[1]}, window_dilations = {rows[2]},
      padding = dense<{padding}> : tensor<4x2xi64>}}> ({{
  ^bb0(%p: {scalar}, %q: {scalar}):
    %r = stablehlo.{self.function} %p, %q : {scalar}
    stablehlo.return %r : {scalar}
  }}) : ({type_of(shape, element)}, {scalar}) -> {type_of(result, element)}"""


def type_of(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def convolution(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A 1x1 convolution of NCHW images."""
    product: np.ndarray = np.einsum("nchw,oc->nohw", x, weight)
    return product


def convolution_text(
    number: int, name: str, shape: tuple[int, ...], weight: np.ndarray, element: str
) -> str:
    result = (shape[0], len(weight), *shape[2:])
    accumulator = "i32" if element == "i8" else element
    types = type_of((*weight.shape, 1, 1), element)
    return f"""
  %w{number} = stablehlo.constant dense<{weight[:, :, None, None].tolist()}> : {types}
  %c{number} = stablehlo.convolution({name}, %w{number})
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({type_of(shape, element)}, {types}) -> {type_of(result, accumulator)}"""


def program(argument: str, body: str, result: str) -> str:
    header = f"func.func @main(%x: {argument}) -> {result} {{"
    return f"{header}{body}\n  return %c1 : {result}\n}}"


CASES = {
    "quarters": Windows((2, 2), (2, 2)),
    "columns": Windows((1, 4), (1, 4)),
    "overlapping": Windows((3, 3), (2, 2), padding=((1, 1), (0, 1))),
    "dilated": Windows((2, 3), (1, 2), (3, 2), ((2, 0), (1, 1))),
    "sums": Windows((3, 2), (2, 1), padding=((0, 1), (1, 0)), function="add"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slope", [NO_SLOPE, SLOPE])
@pytest.mark.share(3)
def test_pooling_of_floats(name: str, slope: float) -> None:
    """With a slope, the first kernel computes a leaky rectifier, too."""
    windows, rng = CASES[name], np.random.default_rng(5)
    weights = [rng.integers(-2, 3, (CHANNELS, CHANNELS)).astype(np.float32) for _ in range(2)]
    x = rng.integers(-3, 4, (2, CHANNELS, HEIGHT, WIDTH)).astype(np.float32)
    first = convolution(x, weights[0])
    active = np.where(first < 0, first * np.float32(slope), first)
    pooled = windows.pooled(active)
    expected = convolution(pooled, weights[1])
    body = convolution_text(0, "%x", x.shape, weights[0], "f32")
    value, type_ = "%c0", type_of(first.shape, "f32")
    if slope != NO_SLOPE:
        value = "%active"
        body += f"""
  %zero = stablehlo.constant dense<0.0> : {type_}
  %slope = stablehlo.constant dense<{slope}> : {type_}
  %scaled = stablehlo.multiply %c0, %slope : {type_}
  %is_negative = stablehlo.compare LT, %c0, %zero, FLOAT
      : ({type_}, {type_}) -> {type_of(first.shape, "i1")}
  %active = stablehlo.select %is_negative, %scaled, %c0 : {type_of(first.shape, "i1")}, {type_}"""
    body += windows.text(value, first.shape, pooled.shape, "f32")
    body += convolution_text(1, "%pooled", pooled.shape, weights[1], "f32")
    text = program(type_of(x.shape, "f32"), body, type_of(expected.shape, "f32"))
    lowered = compile_to_bytes(text, CompileOptions(), emit="mlir").decode()
    main = lowered[lowered.index("func.func @main(") :]
    sizes = ", ".join(map(str, windows.sizes))
    if name == "dilated":
        assert f"window_dimensions = array<i64: 1, {sizes}, 1>" in main
    else:
        assert "reduce_window" not in main  # a kernel reads the channels last
    assert "stablehlo.select" not in main
    np.testing.assert_array_equal(main_of(text)(x), expected)


def test_pooling_of_integers() -> None:
    windows, rng = CASES["overlapping"], np.random.default_rng(6)
    weights = [rng.integers(-2, 3, (CHANNELS, CHANNELS)).astype(np.int8) for _ in range(2)]
    x = rng.integers(-128, 128, (1, CHANNELS, HEIGHT, WIDTH)).astype(np.int8)
    first = convolution(x.astype(np.int32), weights[0].astype(np.int32)) >> 4
    narrow = np.clip(first, -128, 127).astype(np.int8)
    pooled = windows.pooled(narrow)
    expected = convolution(pooled.astype(np.int32), weights[1].astype(np.int32))
    wide = type_of(first.shape, "i32")
    body = (
        convolution_text(0, "%x", x.shape, weights[0], "i8")
        + f"""
  %four = stablehlo.constant dense<4> : {wide}
  %low = stablehlo.constant dense<-128> : {wide}
  %high = stablehlo.constant dense<127> : {wide}
  %shifted = stablehlo.shift_right_arithmetic %c0, %four : {wide}
  %clamped = stablehlo.clamp %low, %shifted, %high : {wide}
  %narrow = stablehlo.convert %clamped : ({wide}) -> {type_of(first.shape, "i8")}"""
    )
    body += windows.text("%narrow", first.shape, pooled.shape, "i8")
    body += convolution_text(1, "%pooled", pooled.shape, weights[1], "i8")
    text = program(type_of(x.shape, "i8"), body, type_of(expected.shape, "i32"))
    lowered = compile_to_bytes(text, CompileOptions(), emit="mlir").decode()
    assert "reduce_window" not in lowered
    np.testing.assert_array_equal(main_of(text)(x), expected)
