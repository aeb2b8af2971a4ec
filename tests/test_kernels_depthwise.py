"""Grouped and depthwise convolutions: every instruction set gives the same integers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import subquant
from devices import main_of
from instruction_sets import EVERY, SOME
from integer_programs import convolution, convolved, drawn
from programs import lowered_text
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.kernels.conv_geometry import ConvAxis
from subquant.kernels.pack.tap_packs import TapPacks


def grouped(x, w, groups, strides=(1, 1), dilations=(1, 1), padding=(0, 0)):
    """Return a program like `convolution`, with groups, and its result."""
    padded = np.pad(x, [(0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)])
    operands = zip(np.split(padded, groups, axis=3), np.split(w, groups, axis=3), strict=True)
    expected = np.concatenate([convolved(*each, strides, dilations) for each in operands], axis=3)
    text, _ = convolution(
        x, np.zeros((*w.shape[:2], x.shape[3], w.shape[3])), strides, dilations, padding
    )
    text = text.replace("feature_group_count = 1 : i64", f"feature_group_count = {groups} : i64")
    full = "x".join(map(str, (*w.shape[:2], x.shape[3], w.shape[3])))
    return text.replace(f"tensor<{full}xi8>", f"tensor<{'x'.join(map(str, w.shape))}xi8>"), expected


def depthwise(x, w, **options):
    """A group for each channel."""
    return grouped(x, w, x.shape[3], **options)


def check(text, x, w, expected, instructions):
    """A kernel computes the expected integers."""
    main = main_of(text, kernels=instructions)
    assert '"flow.dispatch"' in lowered_text(text, kernels=instructions)
    np.testing.assert_array_equal(main(x, w), expected)


DEPTHWISE = {
    "3x3": ((1, 14, 15, 64), (3, 3, 1, 64), {"padding": (1, 1)}),
    "5x5": ((1, 13, 17, 24), (5, 5, 1, 24), {"padding": (2, 2)}),
    "steps": ((2, 15, 17, 20), (5, 3, 1, 20), {"strides": (2, 1)}),
    "steps and padding": ((2, 17, 18, 37), (3, 3, 1, 37), {"strides": (2, 2), "padding": (1, 1)}),
    "long steps": ((2, 43, 45, 40), (3, 2, 1, 40), {"strides": (4, 5), "padding": (2, 1)}),
    "few channels": ((1, 40, 41, 3), (3, 3, 1, 3), {"padding": (1, 0)}),
    "groups that overlap": ((1, 12, 47, 32), (2, 7, 1, 32), {"strides": (1, 3)}),
    "one window": ((1, 9, 9, 480), (9, 9, 1, 480), {}),
    "one row of taps": ((1, 9, 40, 16), (1, 7, 1, 16), {"padding": (0, 3)}),
    "one column of taps": ((1, 40, 9, 16), (7, 1, 1, 16), {"padding": (3, 0)}),
    "one column of pixels": ((2, 40, 1, 32), (5, 1, 1, 32), {"padding": (2, 0), "strides": (2, 1)}),
    "one position": ((1, 29, 40, 96), (1, 1, 1, 96), {"strides": (2, 1)}),
    "apart": ((1, 16, 18, 32), (3, 2, 1, 32), {"dilations": (2, 3), "padding": (0, 2)}),
    "apart and steps": ((1, 25, 29, 40), (3, 3, 1, 40),
                        {"dilations": (2, 2), "strides": (2, 2), "padding": (2, 2)}),
    "long lines": ((1, 3, 2001, 16), (3, 3, 1, 16), {"padding": (1, 1)}),
    "long lines apart": ((1, 1, 2001, 70), (1, 5, 1, 70), {"dilations": (1, 4), "padding": (0, 8)}),
    "mostly padding": ((1, 2, 3, 32), (3, 5, 1, 32), {"padding": (9, 9)}),
}  # fmt: skip


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("case", DEPTHWISE)
@pytest.mark.share(34)
def test_depthwise_convolutions_are_exact(case, instructions):
    x_shape, w_shape, options = DEPTHWISE[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = depthwise(x, w, **options)
    check(text, x, w, expected, instructions)


GROUPS = {
    "several columns of each channel": ((1, 13, 14, 20), (3, 3, 1, 60), 20, {"padding": (1, 1)}),
    "few columns": ((1, 29, 25, 5), (3, 2, 1, 10), 5, {"strides": (1, 2)}),
    "two groups": ((2, 9, 8, 24), (3, 3, 12, 34), 2, {"padding": (1, 2)}),
    "many groups": ((1, 9, 8, 64), (3, 3, 4, 64), 16, {"padding": (1, 1)}),
    "many groups of a column": ((1, 7, 9, 48), (3, 2, 3, 16), 16, {}),
    "many groups of many columns": ((1, 6, 5, 36), (2, 2, 4, 288), 9, {"strides": (1, 2)}),
    "eight groups": ((1, 9, 8, 24), (3, 3, 3, 64), 8, {"strides": (1, 2)}),
}


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.share(4)
def test_convolutions_of_groups_are_exact(case, instructions):
    x_shape, w_shape, groups, options = GROUPS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = grouped(x, w, groups, **options)
    check(text, x, w, expected, instructions)


@pytest.mark.parametrize(
    ("channels", "columns", "groups"), [(30, 30, 10), (27, 36, 9), (36, 18, 9)]
)
def test_groups_that_do_not_fill_vectors_have_no_kernel(channels, columns, groups):
    x, w = drawn(1, 9, 9, channels), drawn(3, 3, channels // groups, columns, seed=1)
    text, _ = grouped(x, w, groups)
    assert '"flow.dispatch"' not in lowered_text(text)


@pytest.mark.parametrize(("size", "workgroups"), [(8, 1), (28, 2), (56, 4), (112, 8)])
def test_threads_share_small_depthwise_convolutions(size, workgroups):
    """A tap counts as four MACs; more workgroups gather more image rows twice."""
    text, _ = depthwise(drawn(1, size, size, 32), drawn(3, 3, 1, 32, seed=1), padding=(1, 1))
    lowered = lowered_text(text, kernels="avx2", target_cpu="haswell")
    counts = re.findall(r'"stream.return"\(%c(\d+)(?:_\d+)?, .*\n.*@(\w+), sym_name', lowered)
    result = {int(count) for count, name in counts if name == "depthwise_conv"}
    assert result == {workgroups}


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(14)
def test_depthwise_accumulators_of_extremes_are_exact(instructions):
    text, _ = depthwise(drawn(1, 12, 9, 40), drawn(3, 3, 1, 40), padding=(1, 1))
    main = main_of(text, kernels=instructions)
    for left, right in itertools.product((-128, 127), repeat=2):
        x, w = np.full((1, 12, 9, 40), left, np.int8), np.full((3, 3, 1, 40), right, np.int8)
        _, expected = depthwise(x, w, padding=(1, 1))
        np.testing.assert_array_equal(main(x, w), expected)


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("written", [convolution, depthwise])
@pytest.mark.share(10)
def test_quantized_images_are_padded_with_zero_points(written, instructions):
    inputs = 24 if written is convolution else 1
    x, w = drawn(1, 9, 17, 24), np.maximum(drawn(3, 3, inputs, 24, seed=1), -127)
    text, expected = written(x.astype(np.int32) + 5, w, padding=(1, 1))
    quantized = r"\1x!quant.uniform<i8:f32, 1.0:-5>>\2"
    text = re.sub(r"(tensor<[0-9x]+)xi8>(, %w)", quantized, text)
    text = re.sub(r"(: \(tensor<[0-9x]+)xi8>()", quantized, text)
    text = text.replace("xi8>", "x!quant.uniform<i8<-127:127>:f32, 1.0>>")
    text = text.replace("xi32>", "x!quant.uniform<i32:f32, 1.0>>")
    calls = lowered_text(text, kernels=instructions)
    assert '"flow.dispatch"' in calls
    assert "tensor<1x11x19x24xi8>" not in calls  # no padded copy beside the kernels
    executable = subquant.compile(text, kernels=instructions)
    np.testing.assert_array_equal(executable.main(x, w), expected)


def test_large_filters_have_no_kernel():
    x, w = drawn(1, 70, 71, 3), drawn(67, 69, 1, 3, seed=1)
    text, expected = depthwise(x, w)
    assert '"flow.dispatch"' not in lowered_text(text)
    np.testing.assert_array_equal(subquant.compile(text).main(x, w), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_packs_have_each_tap_of_each_output_once(size):
    random = np.random.default_rng(size)
    for taps, step, apart in itertools.product(range(1, 8), range(1, 6), range(1, 4)):
        groups = TapPacks(ConvAxis(100, taps, step, apart, 0, 0), size, 2)
        weight = random.integers(-9, 9, (2, taps, 3))
        x = random.integers(-9, 9, (100, 3))
        packed = groups.pack(weight).reshape((-1, 2, 3, size))
        firsts = np.cumsum([0, *(len(groups.of_output(n)) for n in range(groups.period))])
        for window in range(8):
            expected = sum(x[window * step + tap * apart] * weight[:, tap] for tap in range(taps))
            result, phase = 0, window % groups.period
            for number, (group, *_) in enumerate(groups.of_output(window)):
                read = x[group * groups.spacing + np.arange(size) * apart]
                result = result + (packed[firsts[phase] + number] * read.T).sum(-1)
            np.testing.assert_array_equal(result, expected)


def test_adjacent_outputs_share_packs():
    of_three = TapPacks(ConvAxis(56, 3, 1, 1, 1, 1), 4, 3)
    assert (of_three.spacing, of_three.period) == (2, 2)
    assert of_three.of_output(0) == [(0, 0, range(3))]
    assert of_three.of_output(1) == [(0, 1, range(3))]
    assert of_three.of_output(2) == [(1, 0, range(3))]


ASSEMBLY = {
    "avx512vnni": ("x86_64-linux-gnu", "znver4", r"vpdpbusd\s.*zmm"),
    "avx2": ("x86_64-linux-gnu", "znver3", r"vpmaddwd\s.*ymm"),
    "neon-dotprod": ("aarch64-linux-gnu", "cortex-a76", r"\bsdot\b"),
}


@pytest.mark.parametrize("instructions", ASSEMBLY)
@pytest.mark.share(6)
def test_taps_are_multiplied_in_k_packs(instructions, tmp_path):
    triple, cpu, instruction = ASSEMBLY[instructions]
    flags = (
        f"--iree-llvmcpu-target-triple={triple}",
        f"--iree-llvmcpu-target-cpu={cpu}",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
    )
    x, w = np.zeros((1, 24, 24, 64), np.int8), np.ones((3, 3, 1, 64), np.int8)
    text, _ = depthwise(x, w, padding=(1, 1))
    text = text.replace(", %w: tensor<3x3x1x64xi8>", "")
    constant = "  %w = stablehlo.constant dense<1> : tensor<3x3x1x64xi8>\n  %y ="
    compile_to_bytes(text.replace("  %y =", constant), CompileOptions(iree_flags=flags))
    [file] = tmp_path.glob("*.s")
    assembly = file.read_text()
    kernel = assembly[assembly.index("depthwise_conv") :]
    assert len(re.findall(instruction, kernel)) >= 12  # four output pixels, a row of taps each
    assert not re.search(r"vpmull|\bmul\b.*\.4s|\bmla\b", kernel)
