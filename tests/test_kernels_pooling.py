"""Pooling between kernels: maxima and sums of windows, compared with NumPy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from devices import main_of
from instruction_sets import SOME
from integer_programs import drawn
from onnx_models import model, node, text_of
from programs import lowered_text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pooling:
    """Windows of images of N x spatial... x C.

    Attributes:
        element: the type of the images: f32, i8, or u8, which is stored as i8.
        reduction: maximum or add.
        zero_point: it is subtracted from bytes before they are reduced.
        is_channels_first: the program has images as N x C x spatial....
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    element: str = "f32"
    reduction: str = "maximum"
    zero_point: int = 0
    is_channels_first: bool = False

    @property
    def reduced(self) -> str:
        """The element type of the reduction."""
        return "f32" if self.element == "f32" else "i32"

    @property
    def least(self) -> float | int:
        """The initial value of the reduction, and the padding."""
        if self.reduction == "add":
            return 0
        if self.element == "f32":
            return float("-inf")
        return (0 if self.element == "u8" else -128) - self.zero_point

    def images(self) -> Array:
        """Random images, f32 or i8."""
        shape = self.shape
        if self.element == "f32":
            return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return drawn(*shape)

    def expected(self, images: Array) -> Array:
        """The reductions, by NumPy."""
        x = images.astype(np.float64 if self.element == "f32" else np.int64)
        x = x & 255 if self.element == "u8" else x
        x = x - self.zero_point
        x = np.pad(x, [(0, 0), *self.padding, (0, 0)], constant_values=self.least)
        axes = tuple(range(1, x.ndim - 1))
        windows = np.lib.stride_tricks.sliding_window_view(x, self.window, axes)
        windows = windows[(slice(None), *(slice(None, None, step) for step in self.strides))]
        return getattr(np, "max" if self.reduction == "maximum" else "sum")(
            windows, axis=tuple(range(windows.ndim - len(axes), windows.ndim))
        )

    def text(self) -> str:
        """The program, which pools, and multiplies matrices of bytes: else it has no kernels."""
        order = list(range(len(self.shape)))
        if self.is_channels_first:
            order = [0, order[-1], *order[1:-1]]
        back = [order.index(axis) for axis in range(len(order))]
        result = self.expected(np.zeros(self.shape, np.int8)).shape

        def type_(shape: Any, element: str) -> str:
            return f"tensor<{'x'.join(map(str, shape))}x{element}>"

        def moved(values: Any) -> list[Any]:
            return [values[axis] for axis in order]

        stored, reduced = "f32" if self.element == "f32" else "i8", self.reduced
        padded = [
            size + sum(pair)
            for size, pair in zip(self.shape, [(0, 0), *self.padding, (0, 0)], strict=True)
        ]
        low, high = (moved([0, *(pair[side] for pair in self.padding), 0]) for side in (0, 1))
        least = "0xFF800000" if self.least == float("-inf") else self.least
        if self.element == "f32" and least == 0:
            least = "0.0"
        own = type_(moved(self.shape), reduced)
        code = [
            f"%t = stablehlo.transpose %x, dims = {order} : ({type_(self.shape, stored)}) -> "
            f"{type_(moved(self.shape), stored)}"
        ]
        value = "%t"
        if stored == "i8":
            code.append(f"%w = stablehlo.convert %t : ({type_(moved(self.shape), 'i8')}) -> {own}")
            value = "%w"
            if self.element == "u8":
                code += [
                    f"%mask = stablehlo.constant dense<255> : {own}",
                    f"%u = stablehlo.and %w, %mask : {own}",
                ]
                value = "%u"
            if self.zero_point:
                code += [
                    f"%zero = stablehlo.constant dense<{self.zero_point}> : {own}",
                    f"%d = stablehlo.subtract {value}, %zero : {own}",
                ]
                value = "%d"
        windows, strides = moved([1, *self.window, 1]), moved([1, *self.strides, 1])
        pooled = type_(moved(result), reduced)
        code += [
            f"%least = stablehlo.constant dense<{least}> : tensor<{reduced}>",
            f"%p = stablehlo.pad {value}, %least, low = {low}, high = {high}, "
            f"interior = {[0] * len(order)} : ({own}, tensor<{reduced}>) -> "
            f"{type_(moved(padded), reduced)}",
            '%y = "stablehlo.reduce_window"(%p, %least) ({',
            f"^bb0(%a: tensor<{reduced}>, %b: tensor<{reduced}>):",
            f"  %r = stablehlo.{self.reduction} %a, %b : tensor<{reduced}>",
            f"  stablehlo.return %r : tensor<{reduced}>",
            f"}}) {{window_dimensions = array<i64: {', '.join(map(str, windows))}>, "
            f"window_strides = array<i64: {', '.join(map(str, strides))}>}} : "
            f"({type_(moved(padded), reduced)}, tensor<{reduced}>) -> {pooled}",
            f"%z = stablehlo.transpose %y, dims = {back} : ({pooled}) -> {type_(result, reduced)}",
            "%product = stablehlo.dot_general %m, %m, contracting_dims = [1] x [0] : "
            "(tensor<32x32xi8>, tensor<32x32xi8>) -> tensor<32x32xi32>",
            f"return %z, %product : {type_(result, reduced)}, tensor<32x32xi32>",
        ]
        body = "\n  ".join(code)
        return (
            f"func.func @main(%x: {type_(self.shape, stored)}, %m: tensor<32x32xi8>) -> "
            f"({type_(result, reduced)}, tensor<32x32xi32>) {{\n  {body}\n}}\n"
        )


_SQUARE = ((2, 9, 11, 24), (3, 3), (2, 2), ((1, 1), (1, 1)))
_WIDE = ((1, 8, 7, 100), (5, 5), (1, 1), ((2, 2), (2, 2)))
CASES = {
    "maxima": Pooling(*_SQUARE),
    "maxima of many channels": Pooling(*_WIDE, is_channels_first=True),
    "sums": Pooling(*_SQUARE, reduction="add"),
    "maxima of i8": Pooling(*_SQUARE, element="i8", is_channels_first=True),
    "maxima of u8": Pooling(*_WIDE, element="u8", zero_point=77, is_channels_first=True),
    "sums of i8": Pooling(*_WIDE, element="i8", reduction="add", zero_point=-3),
    "sums of u8": Pooling(*_SQUARE, element="u8", reduction="add", zero_point=128),
    "one axis": Pooling((1, 50, 37), (4,), (3,), ((0, 2),), element="u8"),
    "no padding": Pooling((1, 6, 6, 7), (2, 3), (2, 3), ((0, 0), (0, 0)), reduction="add"),
    "unlike padding": Pooling((1, 5, 9, 16), (4, 2), (1, 2), ((3, 0), (0, 1)), element="i8"),
}


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.share(10)
def test_windows_are_reduced_as_by_numpy(case: str, instructions: str) -> None:
    pooling = CASES[case]
    images = pooling.images()
    actual, _ = main_of(pooling.text(), kernels=instructions)(images, drawn(32, 32))
    expected = pooling.expected(images)
    if pooling.element == "f32" and pooling.reduction == "add":
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_a_kernel(case: str) -> None:
    lowered = lowered_text(CASES[case].text(), fuse_below_macs=0)
    assert "@pooling::@pooling" in lowered
    assert "reduce_window" not in lowered


OTHERS = {
    "windows of padding alone": Pooling((1, 4, 5, 8), (2, 2), (1, 1), ((2, 0), (0, 0))),
    "two channels": Pooling((1, 6, 6, 2), (2, 2), (2, 2), ((0, 0), (0, 0))),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.share(2)
def test_other_windows_are_left_to_iree(case: str) -> None:
    pooling = OTHERS[case]
    assert "@pooling" not in lowered_text(pooling.text(), fuse_below_macs=0)
    images = pooling.images()
    actual, _ = main_of(pooling.text())(images, drawn(32, 32))
    np.testing.assert_array_equal(actual, pooling.expected(images))


def test_padding_that_is_a_maximum_counts() -> None:
    """Padding by 0 is above negative bytes: a kernel that leaves it out would be wrong."""
    pooling = Pooling(*_SQUARE, element="i8")
    text = pooling.text().replace("%p = stablehlo.pad %w, %least", "%p = stablehlo.pad %w, %none")
    none = "%none = stablehlo.constant dense<0> : tensor<i32>\n  %p ="
    actual, _ = main_of(text.replace("%p =", none))(
        np.full(pooling.shape, -5, np.int8), drawn(32, 32)
    )
    assert set(np.unique(actual)) == {-5, 0}


def test_sums_from_a_negative_zero() -> None:
    """The sum of negative zeros alone is one."""
    pooling = CASES["no padding"]
    text = pooling.text().replace("dense<0.0> : tensor<f32>", "dense<-0.0> : tensor<f32>")
    actual, _ = main_of(text)(np.full(pooling.shape, -0.0, np.float32), drawn(32, 32))
    assert np.signbit(actual).all()


def test_nan_is_a_maximum() -> None:
    pooling = CASES["maxima"]
    images = pooling.images()
    images[0, 4, 4, 3] = np.nan
    actual, _ = main_of(pooling.text())(images, drawn(32, 32))
    np.testing.assert_array_equal(actual, pooling.expected(images))


def test_chained_pooling_of_quantized_images_has_no_arithmetic() -> None:
    """Casts between two maxima with one scale are the identity."""
    constants = {"s": np.array(0.1, np.float32), "z": np.array(12, np.uint8)}
    constants |= {"w": 10 * np.eye(16, dtype=np.int8)[:, :, None, None]}
    constants |= {"wz": np.array(0, np.int8)}
    nodes, value = [node("DequantizeLinear", ["w", "s", "wz"], ["v"])], "first"
    nodes += [
        node("DequantizeLinear", ["x", "s", "z"], ["x real"]),
        node("Conv", ["x real", "v"], ["first real"]),
        node("QuantizeLinear", ["first real", "s", "z"], ["first"]),
    ]
    for name in ("a", "b"):
        nodes += [
            node("DequantizeLinear", [value, "s", "z"], [f"{name} real"]),
            node(
                "MaxPool", [f"{name} real"], [f"{name} pooled"], kernel_shape=[5, 5], pads=[2] * 4
            ),
            node("QuantizeLinear", [f"{name} pooled", "s", "z"], [name]),
        ]
        value = name
    nodes += [
        node("DequantizeLinear", ["b", "s", "z"], ["real"]),
        node("Conv", ["real", "v"], ["y"]),
    ]
    inputs = {"x": ("UINT8", (1, 16, 20, 20))}
    outputs = {"b": ("UINT8", (1, 16, 20, 20)), "y": ("FLOAT", (1, 16, 20, 20))}
    text = text_of(model(nodes, inputs, outputs, constants))
    lowered = lowered_text(text, fuse_below_macs=0)
    calls = re.findall(r'(%\d+) = "flow.dispatch"\((%\d+)\) .*@pooling::@pooling', lowered)
    [(first, _), (_, second)] = calls
    assert second == first
    x = drawn(1, 16, 20, 20).view(np.uint8)
    actual, _ = main_of(text)(x)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), (4, 4), (4, 4)]), (9, 9), (2, 3)
    )
    np.testing.assert_array_equal(actual, windows.max((-2, -1)))
