"""Convolutions along three axes: as convolutions of images, with kernels, equal to NumPy's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from devices import main_of
from integer_programs import drawn
from onnx_models import model, node, text_of
from programs import lowered_text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Volume:
    """Images of N x C x D x H x W, and the attributes of the convolution."""

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1, 1)
    dilations: tuple[int, ...] = (1, 1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0), (0, 0))

    def attributes(self) -> dict[str, Any]:
        """ONNX's attributes."""
        pads = [pair[side] for side in (0, 1) for pair in self.padding]
        return {"strides": self.strides, "dilations": self.dilations, "pads": pads}

    def expected(self, x: Array, w: Array) -> Array:
        """The convolution, by NumPy."""
        x = np.pad(x, [(0, 0), (0, 0), *self.padding])
        fields = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], self.dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(x, fields, (2, 3, 4))
        windows = windows[(..., *(slice(None, None, step) for step in self.dilations))]
        steps = (slice(None, None, step) for step in self.strides)
        return np.einsum("ncdhwijk,ocijk->nodhw", windows[(slice(None), slice(None), *steps)], w)


CASES = {
    "padded": Volume((2, 8, 5, 9, 7), (16, 8, 3, 3, 3), padding=((1, 1),) * 3),
    "strides": Volume(
        (1, 5, 7, 9, 8), (16, 5, 2, 3, 1), (2, 2, 3), padding=((0, 1), (1, 0), (0, 0))
    ),
    "dilations": Volume(
        (1, 4, 9, 9, 9), (18, 4, 3, 2, 3), (1, 1, 2), (3, 2, 1), ((2, 0), (0, 3), (1, 1))
    ),
    "one tap": Volume((1, 16, 4, 6, 6), (20, 16, 1, 3, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_floats(case: str) -> None:
    volume, rng = CASES[case], np.random.default_rng(0)
    x = rng.integers(-9, 10, volume.shape).astype(np.float32)  # sums are exact
    w = rng.integers(-9, 10, volume.weight).astype(np.float32)
    convolution = node("Conv", ["x", "w"], ["y"], **volume.attributes())
    expected = volume.expected(x, w)
    proto = model([convolution], {"x": x}, {"y": expected}, {"w": w})
    assert "stablehlo.convolution" not in lowered_text(text_of(proto), kernels="avx2")
    np.testing.assert_array_equal(main_of(text_of(proto))(x), expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "zero_points"), [(np.int8, (-7, 0)), (np.uint8, (201, 3))])
@pytest.mark.share(4)
def test_integers(case: str, dtype: Any, zero_points: tuple[int, int]) -> None:
    volume = CASES[case]
    x, w = drawn(*volume.shape).view(dtype), drawn(*volume.weight, seed=1).view(dtype)
    zeros = {name: np.array(zero, dtype) for name, zero in zip("ab", zero_points, strict=True)}
    convolution = node("ConvInteger", ["x", "w", *zeros], ["y"], **volume.attributes())
    left, right = (
        each.astype(np.int64) - zero for each, zero in zip((x, w), zero_points, strict=True)
    )
    expected = volume.expected(left, right).astype(np.int32)
    text = text_of(model([convolution], {"x": x}, {"y": expected}, {"w": w, **zeros}))
    assert "stablehlo.convolution" not in lowered_text(text, kernels="avx2")
    np.testing.assert_array_equal(main_of(text)(x), expected)


@pytest.mark.parametrize("element", ["complex<f32>", "f64"])
def test_other_elements_are_left_to_iree(element: str) -> None:
    """A convolution of x - ix and w + iw is 2 xw; of reals, the parts are summed."""
    types = {name: f"tensor<1x{shape}x" for name, shape in (("x", "2x4x5x6"), ("w", "2x3x3x3"))}
    types["y"] = "tensor<1x1x2x3x4x"
    is_complex = element != "f64"
    code = [f"%i = stablehlo.negate %x : {types['x']}f32>"]
    for name, imaginary in (("x", "i"), ("w", "w")):
        read, own = f"{types[name]}f32>", f"{types[name]}{element}>"
        if is_complex:
            code.append(f"%{name}c = stablehlo.complex %{name}, %{imaginary} : {own}")
        else:
            code.append(f"%{name}c = stablehlo.convert %{name} : ({read}) -> {own}")
    numbers = "[b, f, 0, 1, 2]x[o, i, 0, 1, 2]->[b, f, 0, 1, 2]"
    code.append(
        f"%yc = stablehlo.convolution(%xc, %wc) dim_numbers = {numbers}, window = {{}} "
        "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        f"({types['x']}{element}>, {types['w']}{element}>) -> {types['y']}{element}>"
    )
    last = "real" if is_complex else "convert"
    code.append(f"%y = stablehlo.{last} %yc : ({types['y']}{element}>) -> {types['y']}f32>")
    body = "\n  ".join([*code, f"return %y : {types['y']}f32>"])
    text = (
        f"func.func @main(%x: {types['x']}f32>, %w: {types['w']}f32>) -> {types['y']}f32> "
        f"{{\n  {body}\n}}\n"
    )
    x, w = (np.random.default_rng(n).integers(-9, 10, shape).astype(np.float32)
            for n, shape in enumerate(((1, 2, 4, 5, 6), (1, 2, 3, 3, 3))))  # fmt: skip
    expected = Volume(x.shape, w.shape).expected(x, w) * (2 if is_complex else 1)
    np.testing.assert_array_equal(main_of(text)(x, w), expected)


def test_computed_weights() -> None:
    volume = CASES["strides"]
    x, w = (np.random.default_rng(n).integers(-9, 10, shape).astype(np.float32)
            for n, shape in enumerate((volume.shape, volume.weight)))  # fmt: skip
    expected = volume.expected(x, w)
    convolution = node("Conv", ["x", "w"], ["y"], **volume.attributes())
    text = text_of(model([convolution], {"x": x, "w": w}, {"y": expected}, {}))
    np.testing.assert_array_equal(main_of(text)(x, w), expected)
