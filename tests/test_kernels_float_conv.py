"""Float convolutions and matrix products, by the kernel of `F32Conv`.

Operands are small integers, so that each sum is exact in f32 whatever its order: results are those
of NumPy in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from devices import main_of
from instruction_sets import SOME as SOME_OF_ALL
from programs import lowered_text
from subquant.kernels.cpu.f32_conv import register_blocking
from subquant.kernels.isa.registry import INSTRUCTION_SETS

SOME = [each for each in SOME_OF_ALL if each.id != "portable"]
"""Without fused multiply-add there is no kernel of floats."""


@dataclass(frozen=True)
class Conv:
    """A convolution of NHWC or NCHW images with a constant weight, in one or two spatial axes."""

    x: tuple[int, ...]  # N, spatial..., C
    taps: tuple[int, ...]
    n: int
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    channels_first: bool = False
    element: str = "f32"
    has_epilogue: bool = False
    multiplier: int = 0
    """Output channels of each input channel, for a depthwise convolution; 0 for others."""
    groups: int = 1
    """Groups of several channels."""

    @property
    def axes(self) -> int:
        return len(self.taps)

    def operands(self):
        """Activations, weight ``spatial..., C, OC`` and bias of small integers."""
        rng = np.random.default_rng(0)
        channels = 1 if self.multiplier else self.x[-1] // self.groups
        shapes = self.x, (*self.taps, channels, self.n), (self.n,)
        return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)

    def arguments(self):
        x = self.operands()[0].astype({"f32": np.float32, "f16": np.float16}[self.element])
        return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if self.channels_first else x

    def expected(self):
        """Sums of shifted products in float64."""
        x, w, bias = (each.astype(np.float64) for each in self.operands())
        pairs = self.padding[: self.axes]
        x = np.pad(x, [(0, 0), *pairs, (0, 0)])
        strides, dilations = self.strides[: self.axes], self.dilations[: self.axes]
        sizes = [
            (size - (tap - 1) * dilation - 1) // stride + 1
            for size, tap, stride, dilation in zip(
                x.shape[1:-1], self.taps, strides, dilations, strict=True
            )
        ]
        result = np.zeros((x.shape[0], *sizes, self.n))
        for tap in np.ndindex(*self.taps):
            window = tuple(
                slice(t * d, t * d + (size - 1) * s + 1, s)
                for t, d, s, size in zip(tap, dilations, strides, sizes, strict=True)
            )
            part = x[(slice(None), *window)]
            if self.multiplier:
                result += np.repeat(part, self.multiplier, axis=-1) * w[tap][0]
            else:
                in_groups = np.split(part, self.groups, axis=-1)
                weights = np.split(w[tap], self.groups, axis=-1)
                products = [x @ y for x, y in zip(in_groups, weights, strict=True)]
                result += np.concatenate(products, axis=-1)
        if self.has_epilogue:
            result = np.maximum(result + bias, 0)
        return np.moveaxis(result, -1, 1) if self.channels_first else result

    def program(self):
        spatial = ", ".join(map(str, range(self.axes)))
        images = f"[b, f, {spatial}]" if self.channels_first else f"[b, {spatial}, f]"
        _, w, bias = self.operands()
        shape = self.expected().shape
        x, y, weight = (
            f"tensor<{'x'.join(map(str, each))}x{self.element}>"
            for each in (self.arguments().shape, shape, w.shape)
        )
        pads = ", ".join(f"[{low}, {high}]" for low, high in self.padding[: self.axes])
        lists = (", ".join(map(str, each[: self.axes])) for each in (self.strides, self.dilations))
        strides, dilations = lists
        data = w.astype({"f32": np.float32, "f16": np.float16}[self.element])
        groups = self.x[-1] if self.multiplier else self.groups
        axis, epilogue = 1 if self.channels_first else self.axes + 1, ""
        if self.has_epilogue:
            epilogue = f"""
  %c = stablehlo.constant dense<{bias.astype(int).tolist()}.0> : tensor<{self.n}x{self.element}>
  %b = stablehlo.broadcast_in_dim %c, dims = [{axis}] : (tensor<{self.n}x{self.element}>) -> {y}
  %s = stablehlo.add %r, %b : {y}
  %z = stablehlo.constant dense<0.0> : {y}
  %m = stablehlo.maximum %s, %z : {y}""".replace(
                f"{bias.astype(int).tolist()}.0", str(bias.tolist())
            )
        result = "%m" if epilogue else "%r"
        return f"""
func.func @main(%x: {x}) -> {y} {{
  %w = stablehlo.constant dense<"0x{data.tobytes().hex().upper()}"> : {weight}
  %r = stablehlo.convolution(%x, %w)
    dim_numbers = {images}x[{spatial}, i, o]->{images},
    window = {{stride = [{strides}], pad = [{pads}], rhs_dilate = [{dilations}]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
    : ({x}, {weight}) -> {y}{epilogue}
  return {result} : {y}
}}"""


CASES = {
    "groups of vectors": Conv(
        (2, 7, 9, 64), (3, 3), 128, padding=((1, 1), (1, 0)), channels_first=True, groups=4
    ),
    "groups in a vector": Conv(
        (1, 9, 8, 32), (3, 3), 32, (2, 1), padding=((1, 1), (1, 1)), has_epilogue=True, groups=8
    ),
    "pairs of channels": Conv((1, 30, 64), (5,), 64, dilations=(2,), groups=32),
    "1-D": Conv((1, 45, 12), (5,), 40, has_epilogue=True),
    "1-D NCW, padding": Conv((2, 31, 3), (3,), 20, (2,), (1,), ((1, 2),), channels_first=True),
    "3x3, padding": Conv((2, 9, 11, 16), (3, 3), 33, padding=((1, 1), (1, 1)), has_epilogue=True),
    "3x3 NCHW": Conv((1, 12, 10, 5), (3, 3), 130, (2, 1), padding=((1, 0), (0, 1)),
                     channels_first=True, has_epilogue=True),
    "dilation": Conv((1, 14, 13, 7), (3, 2), 17, (1, 2), (2, 3), ((2, 2), (0, 3))),
    "1x1": Conv((2, 7, 7, 24), (1, 1), 100),
    "1x1, stride": Conv((2, 9, 7, 24), (1, 1), 16, (2, 2), padding=((0, 1), (1, 0))),
    "f16": Conv((1, 10, 10, 8), (3, 3), 32, element="f16", channels_first=True),
    "depthwise": Conv((1, 9, 30, 40), (3, 3), 40, padding=((1, 1), (1, 1)), has_epilogue=True,
                      multiplier=1),
    "depthwise NCHW": Conv((2, 13, 11, 19), (5, 4), 38, (2, 2), padding=((2, 1), (1, 2)),
                           channels_first=True, multiplier=2),
    "depthwise, dilation": Conv((1, 15, 14, 6), (3, 2), 6, (1, 1), (3, 2), ((3, 1), (1, 1)),
                                multiplier=1),
    "depthwise 1-D": Conv((1, 40, 33), (7,), 33, (1,), (2,), channels_first=True, multiplier=1),
    "mostly padding": Conv((1, 2, 3, 32), (3, 5), 32, padding=((9, 9), (9, 9)), multiplier=1),
    "one pixel": Conv((1, 3, 3, 64), (3, 3), 150, has_epilogue=True),
}  # fmt: skip


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.share(12)
def test_convolutions_are_exact_sums(case, instructions):
    conv = CASES[case]
    text = conv.program()
    lowered = lowered_text(text, kernels=instructions)
    assert '"flow.dispatch"' in lowered
    assert "stablehlo.convolution" not in lowered
    actual = main_of(text, kernels=instructions)(conv.arguments())
    np.testing.assert_array_equal(actual, conv.expected())


def matrix_product(m, k, n):
    """A program of f32 ``M x K`` and its constant weight ``K x N``."""
    weight = np.random.default_rng(1).integers(-4, 5, (k, n)).astype(np.float32)
    x, y = f"tensor<{m}x{k}xf32>", f"tensor<{m}x{n}xf32>"
    return (
        weight,
        f"""
func.func @main(%x: {x}) -> {y} {{
  %w = stablehlo.constant dense<"0x{weight.tobytes().hex().upper()}"> : tensor<{k}x{n}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : ({x}, tensor<{k}x{n}xf32>) -> {y}
  return %y : {y}
}}""",
    )


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("shape", [(1, 96, 200), (3, 64, 70), (37, 33, 100)], ids=str)
def test_matrix_products_are_exact_sums(shape, instructions):
    weight, text = matrix_product(*shape)
    assert '"flow.dispatch"' in lowered_text(text, kernels=instructions)
    x = np.random.default_rng(0).integers(-4, 5, shape[:2]).astype(np.float32)
    actual = main_of(text, kernels=instructions)(x)
    np.testing.assert_array_equal(actual, x.astype(np.float64) @ weight)


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("sizes", [(3, 20, 33, 70), (1, 8, 16, 48), (6, 9, 50, 5)], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.share(6)
def test_batches_of_two_computed_operands_are_exact_sums(sizes, is_transposed, instructions):
    """The products of attention: each has a weight of its own, which the program packs."""
    batches, m, k, n = sizes
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (batches, m, k)).astype(np.float32)
    w = rng.integers(-4, 5, (batches, n, k) if is_transposed else (batches, k, n))
    w = w.astype(np.float32)
    left, right, result = (f"tensor<{'x'.join(map(str, shape))}xf32>"
                           for shape in (x.shape, w.shape, (batches, m, n)))  # fmt: skip
    text = f"""
func.func @main(%x: {left}, %w: {right}) -> {result} {{
  %a = stablehlo.add %w, %w : {right}
  %y = stablehlo.dot_general %x, %a, batching_dims = [0] x [0],
    contracting_dims = [2] x [{2 if is_transposed else 1}] : ({left}, {right}) -> {result}
  return %y : {result}
}}"""
    assert "@f32_conv" in lowered_text(text, kernels=instructions)
    expected = 2 * x.astype(np.float64) @ (w.swapaxes(1, 2) if is_transposed else w)
    np.testing.assert_array_equal(main_of(text, kernels=instructions)(x, w), expected)


def test_a_computed_weight_of_few_rows_is_not_packed():
    """Packing reads and writes the weight, and the product reads it once."""
    text = """
func.func @main(%x: tensor<4x64xf32>, %w: tensor<64x64xf32>) -> tensor<4x64xf32> {
  %a = stablehlo.add %w, %w : tensor<64x64xf32>
  %y = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
    : (tensor<4x64xf32>, tensor<64x64xf32>) -> tensor<4x64xf32>
  return %y : tensor<4x64xf32>
}"""
    assert "@f32_conv" not in lowered_text(text, kernels="avx2")


def test_padding_of_another_value_than_zero_stays_an_operation():
    """A ``pad`` of 0.5 is no padding of the kernel, whose padding is 0."""
    weight = np.ones((3, 8, 16), np.float32)
    text = f"""
func.func @main(%x: tensor<1x20x8xf32>) -> tensor<1x20x16xf32> {{
  %w = stablehlo.constant dense<"0x{weight.tobytes().hex().upper()}"> : tensor<3x8x16xf32>
  %v = stablehlo.constant dense<0.5> : tensor<f32>
  %p = stablehlo.pad %x, %v, low = [0, 1, 0], high = [0, 1, 0], interior = [0, 0, 0]
    : (tensor<1x20x8xf32>, tensor<f32>) -> tensor<1x22x8xf32>
  %r = stablehlo.convolution(%p, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
    window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<1x22x8xf32>, tensor<3x8x16xf32>) -> tensor<1x20x16xf32>
  return %r : tensor<1x20x16xf32>
}}"""
    actual = main_of(text)(np.ones((1, 20, 8), np.float32))
    expected = np.full((1, 20, 16), 24.0)
    expected[:, [0, -1]] = 20.0
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_register_tiles_fit_the_registers(name):
    target = INSTRUCTION_SETS[name]
    for columns in (1, 2, 7, 13, 56, 1000):
        for n in (1, 16, 24, 64, 100, 512):
            mr, vectors = register_blocking(target, columns, n, pixel_bytes=4096)
            assert 1 <= mr <= columns
            assert (mr + 1) * vectors + 1 <= target.vector_registers
