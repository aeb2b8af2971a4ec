"""Fused epilogues of integer contractions: the same integers as without kernels.

Activations are chosen so that accumulators take every value of a range, ties of their scales among
them; the reference is NumPy's exact requantization, and float64 away from ties.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import subquant
from devices import main_of
from instruction_sets import AUTO, EVERY, HERE, case_of
from programs import lowered_text
from subquant.numerics.fixed_point import ROUNDINGS, saturate
from subquant.numerics.parameters import StorageType
from subquant.numerics.requantization import Requantization, Term, requantize

K, N = 8, 20
FACTORS = np.array([1, 127], np.int64)
"""``x0 + 127 * x1`` takes every value from -16384 to 16256."""


def activations(step):
    """Activations whose accumulators are every `step`-th integer."""
    acc = np.arange(-16384, 16257, step)
    high = np.clip(np.rint(acc / 127), -128, 127).astype(np.int64)
    low = acc - 127 * high
    x = np.zeros((len(acc), K), np.int8)
    x[:, 0], x[:, 1] = low, high
    assert (x.astype(np.int64)[:, :2] @ FACTORS == acc).all()
    return x, acc


def program(count, scales, target, bias, *, negates=False):
    """``x @ w`` with a scale for each N, a bias, a requantization, and maybe a negation."""
    w = np.zeros((N, K), np.int8)
    w[:, :2] = FACTORS
    dense = ", ".join(str(list(map(int, row))) for row in w)
    numbers = ", ".join(repr(float(scale)) for scale in scales)
    biases = ", ".join(str(int(b)) for b in bias)
    return f"""
!x = !quant.uniform<i8:f32, 1.0>
!w = !quant.uniform<i8:f32:0, {{{numbers}}}>
!s = !quant.uniform<i32:f32:1, {{{numbers}}}>
!b = !quant.uniform<i32:f32:0, {{{numbers}}}>
!y = !quant.uniform<{target}>
func.func @main(%x: tensor<{count}x{K}x!x>) -> tensor<{count}x{N}x!y> {{
  %stored = stablehlo.constant dense<[{dense}]> : tensor<{N}x{K}xi8>
  %w = "quant.scast"(%stored) : (tensor<{N}x{K}xi8>) -> tensor<{N}x{K}x!w>
  %acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<{count}x{K}x!x>, tensor<{N}x{K}x!w>) -> tensor<{count}x{N}x!s>
  %integers = stablehlo.constant dense<[{biases}]> : tensor<{N}xi32>
  %b = "quant.scast"(%integers) : (tensor<{N}xi32>) -> tensor<{N}x!b>
  %bias = stablehlo.broadcast_in_dim %b, dims = [1]
      : (tensor<{N}x!b>) -> tensor<{count}x{N}x!s>
  %all = stablehlo.add %acc, %bias : tensor<{count}x{N}x!s>
  %y = stablehlo.uniform_quantize %all
      : (tensor<{count}x{N}x!s>) -> tensor<{count}x{N}x!y>
  %negated = stablehlo.negate %y : tensor<{count}x{N}x!y>
  return {"%negated" if negates else "%y"} : tensor<{count}x{N}x!y>
}}"""


SCALES = np.array(
    [
        *(0.25, 0.5, 1, 0.75, 0.1, 0.6, 0.01, 0.003, 1e-4, 0.033333333, 0.3, 7.5, 0.7, 0.07),
        *(0.0117, 2.0**-7, 3 * 2.0**-9, 0.9, 0.1234567, 5e-3),
    ],
    np.float32,
)
TARGETS = {
    "i8:f32, 6000.0:3": (StorageType(8), 6000.0, 3),
    "i8:f32, 0.5:3": (StorageType(8), 0.5, 3),
    "u8:f32, 0.3:128": (StorageType(8, False), 0.3, 128),
    "i8<-100:90>:f32, 0.1:-7": (StorageType(8, True, -100, 90), 0.1, -7),
    "i4:f32, 2.5:-2": (StorageType(4), 2.5, -2),
    "i16:f32, 0.01:5": (StorageType(16), 0.01, 5),
}


def expected(acc, target, bias, how):
    storage, scale, zero_point = TARGETS[target]
    step = Fraction(float(np.float32(scale)))
    multiplier = np.array([[Fraction(float(each)) / step for each in SCALES]], object)
    accumulators = acc[:, None] + bias
    zero_points = np.array(zero_point)
    term = Term(accumulators, int(np.abs(accumulators).max()), multiplier)
    rounded = requantize([term], zero_points, storage, how)
    result = np.asarray(saturate(rounded.value, storage, rounded.bound)).astype(np.int64)
    if how.kind == "exact":
        real = accumulators * multiplier.astype(np.float64) + zero_point
        limited = np.clip(np.rint(real), storage.minimum, storage.maximum)
        is_far = np.abs(real - np.floor(real) - 0.5) > 2.0**-19
        assert (result == limited)[is_far].all()
        assert (~is_far).sum() > 100  # there are ties
    return result


def check(
    target, instructions, requantization="exact", rounding="half-up", step=1, *, negates=False,
    **options,
):  # fmt: skip
    x, acc = activations(step)
    bias = np.random.default_rng(1).integers(-300, 300, N)
    text = program(len(x), SCALES, target, bias, negates=negates)
    options |= {"requantization": requantization, "fixed_point_rounding": rounding}
    options |= {"kernels": instructions}
    result = main_of(text, **options)(x)
    want = expected(acc, target, bias, Requantization(requantization, rounding))
    if negates:
        storage, _, zero_point = TARGETS[target]
        want = np.clip(2 * zero_point - want, storage.minimum, storage.maximum)
    assert (np.asarray(result).astype(np.int64) == want).all()
    lowered = lowered_text(text, **options)
    return lowered


@pytest.mark.parametrize("target", [*TARGETS][1:])
@pytest.mark.share(4)
def test_each_accumulator_is_requantized_exactly(target):
    lowered = check(target, HERE[0])
    width = TARGETS[target][0].width
    has_estimates = "vector<16xf32>" in lowered or "vector<8xf32>" in lowered
    assert has_estimates == (width == 8)


@pytest.mark.parametrize("instructions", EVERY)
def test_with_all_instructions(instructions):
    """A negation widens the estimates that were narrowed to 8 bits: they keep their sign."""
    lowered = check("i8:f32, 0.5:3", instructions, step=3, negates=True)
    assert f"tensor<{len(activations(3)[0])}x{N}xi8>" in lowered
    assert "stablehlo.shift_right_arithmetic" not in lowered  # the kernel computes all of it


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fixed_point(rounding):
    check("i8:f32, 0.5:3", HERE[0], "fixed-point", rounding, step=3)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fixed_point_of_small_scales(rounding):
    """Shifts are large enough for f32 estimates."""
    lowered = check("i8:f32, 6000.0:3", HERE[0], "fixed-point", rounding)
    assert "xf32>" in lowered


def test_integers_only():
    lowered = check("i8:f32, 0.5:3", HERE[0], step=3, integer_only=True)
    assert "f32" not in lowered.split("sym_name")[0]


def test_an_intermediate_value_with_other_users_is_stored():
    """The epilogue ends at a value that another operation reads."""
    text = """
func.func @main(%x: tensor<32x64xi8>, %w: tensor<48x64xi8>)
    -> (tensor<32x48xi32>, tensor<32x48xi8>) {
  %acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<32x64xi8>, tensor<48x64xi8>) -> tensor<32x48xi32>
  %c = stablehlo.constant dense<7> : tensor<32x48xi32>
  %more = stablehlo.add %acc, %c : tensor<32x48xi32>
  %high = stablehlo.shift_right_arithmetic %more, %c : tensor<32x48xi32>
  %y = stablehlo.convert %high : (tensor<32x48xi32>) -> tensor<32x48xi8>
  return %more, %y : tensor<32x48xi32>, tensor<32x48xi8>
}"""
    random = np.random.default_rng(2)
    x, w = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((32, 64), (48, 64)))
    more, y = subquant.compile(text).main(x, w)
    acc = x.astype(np.int32) @ w.astype(np.int32).T + 7
    assert (more == acc).all()
    assert (y == (acc >> 7).astype(np.int8)).all()


def test_operands_that_vary_along_m_are_not_fused():
    """Tables vary along N only; the rows of the first one become columns."""
    rows = np.tile(np.arange(100, 148), (48, 1))
    text = f"""
func.func @main(%x: tensor<48x64xi8>, %w: tensor<48x64xi8>) -> tensor<48x48xi32> {{
  %acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<48x64xi8>, tensor<48x64xi8>) -> tensor<48x48xi32>
  %t = stablehlo.constant dense<{rows.tolist()}> : tensor<48x48xi32>
  %r = stablehlo.broadcast_in_dim %t, dims = [1, 0] : (tensor<48x48xi32>) -> tensor<48x48xi32>
  %z = stablehlo.subtract %acc, %r : tensor<48x48xi32>
  %c = stablehlo.iota dim = 0 : tensor<48x48xi32>
  %y = stablehlo.multiply %z, %c : tensor<48x48xi32>
  %k = stablehlo.constant dense<{rows[0].tolist()}> : tensor<48xi32>
  %b = stablehlo.broadcast_in_dim %k, dims = [0] : (tensor<48xi32>) -> tensor<48x48xi32>
  %s = stablehlo.subtract %y, %b : tensor<48x48xi32>
  return %s : tensor<48x48xi32>
}}"""
    random = np.random.default_rng(3)
    x, w = (random.integers(-128, 128, (48, 64)).astype(np.int8) for _ in range(2))
    acc = x.astype(np.int32) @ w.astype(np.int32).T
    want = (acc - rows.T) * np.arange(48)[:, None] - rows.T
    assert (subquant.compile(text).main(x, w) == want).all()


def check_convolution(x_shape, w, strides, instructions):
    """Check a padded convolution of N x H x W x C by KH x KW x C / groups x OC, requantized."""
    random = np.random.default_rng(w.shape[-1])
    *taps, of_group, out_channels = w.shape
    images, *extents, channels = x_shape
    scales = random.uniform(1e-3, 5e-3, out_channels).astype(np.float32) / of_group**0.5
    numbers = ", ".join(repr(float(scale)) for scale in scales)
    sizes = [(extent - 1) // step + 1 for extent, step in zip(extents, strides, strict=True)]
    shapes = x_shape, w.shape, (images, *sizes, out_channels)
    types = ["x".join(map(str, shape)) for shape in shapes]
    text = f"""
!x = !quant.uniform<i8:f32, 1.0:-5>
!w = !quant.uniform<i8:f32:3, {{{numbers}}}>
!y = !quant.uniform<i8:f32, 0.5:3>
func.func @main(%x: tensor<{types[0]}x!x>) -> tensor<{types[2]}x!y> {{
  %stored = stablehlo.constant dense<{w.tolist()}> : tensor<{types[1]}xi8>
  %w = "quant.scast"(%stored) : (tensor<{types[1]}xi8>) -> tensor<{types[1]}x!w>
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = {list(strides)}, pad = [[1, 1], [1, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = {channels // of_group} : i64}}
      : (tensor<{types[0]}x!x>, tensor<{types[1]}x!w>) -> tensor<{types[2]}x!y>
  return %y : tensor<{types[2]}x!y>
}}"""
    x = random.integers(-128, 128, x_shape).astype(np.int8)
    padded = np.pad(x.astype(np.float64) + 5, [(0, 0), (1, 1), (1, 1), (0, 0)])
    acc = np.zeros((images, *sizes, out_channels))
    for i, j in np.ndindex(*taps):
        high, wide = ((n - 1) * step + 1 for n, step in zip(sizes, strides, strict=True))
        pixels = padded[:, i : i + high : strides[0], j : j + wide : strides[1]]
        acc += pixels * w[i, j, 0] if of_group == 1 else pixels @ w[i, j].astype(np.float64)
    real = acc * (scales.astype(np.float64) / 0.5) + 3
    is_far = np.abs(real - np.floor(real) - 0.5) > 2.0**-19
    assert is_far.mean() > 0.99
    want = np.clip(np.rint(real), -128, 127).astype(np.int8)
    executable = subquant.compile(text, kernels=instructions)
    assert (executable.main(x) == want)[is_far].all()
    return lowered_text(text, kernels=instructions)


@pytest.mark.parametrize("channels", [3, 20, 64])
@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(14)
def test_depthwise_convolutions(channels, instructions):
    """The last vector of channels overlaps the one before it."""
    w = np.random.default_rng(channels).integers(-127, 128, (3, 3, 1, channels))
    lowered = check_convolution((2, 45, 40, channels), w, (1, 1), instructions)
    assert "depthwise_conv" in lowered or instructions == "portable"


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("instructions", [AUTO, case_of("avx512vnni-amd")])
@pytest.mark.share(4)
def test_padded_convolutions(strides, instructions):
    """The kernel pads images, and the last output pixels of an image row overlap others."""
    w = np.random.default_rng(9).integers(-127, 128, (3, 3, 64, 64))
    lowered = check_convolution((2, 21, 33, 64), w, strides, instructions)
    assert "stablehlo.pad" not in lowered
