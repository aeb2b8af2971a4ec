"""Weights that are arguments are laid out once, where they stay in the device's memory."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest

import subquant
from block_programs import arrays, program, reference
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import InputError
from subquant.runtime import Device
from subquant.runtime.prepacked_arguments import PrepackedWeights
from subquant.signature import LAYOUTS_KEY


def product(rows, depth=192, columns=40, types=("i8", "i8"), result="i32"):
    """A product of rows with a weight."""
    x, w = (f"tensor<{rows}x{depth}x{types[0]}>", f"tensor<{columns}x{depth}x{types[1]}>")
    y = f"tensor<{rows}x{columns}x{result}>"
    return f"""
func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({x}, {w}) -> {y}
  return %y : {y}
}}
"""


def drawn(rows, depth=192, columns=40, seed=0):
    random = np.random.default_rng(seed)
    return (
        random.integers(-128, 128, (rows, depth)).astype(np.int8),
        random.integers(-128, 128, (columns, depth)).astype(np.int8),
    )


def summed(x, w):
    return x.astype(np.int32) @ w.astype(np.int32).T


def functions_of(text, **options):
    """The texts of functions, by name."""
    lowered = compile_to_bytes(text, CompileOptions(**options), emit="mlir").decode()
    names = re.findall(r"func\.func @(main\S*)\(", lowered)
    parts = re.split(r"func\.func @main\S*\(", lowered)[1:]
    return dict(zip(names, parts, strict=True))


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_row_meets_a_weight_that_is_given(rows):
    """Few rows are multiplied by IREE's loops where the weight would be laid out at each call."""
    found = functions_of(product(rows))
    assert sorted(found) == ["main", "main$laid_out", "main$laid_out_1"]
    assert ("flow.dispatch" in found["main"]) == (rows >= 16)
    assert "flow.dispatch" in found["main$laid_out"]
    assert "stablehlo.transpose" in found["main$laid_out_1"]
    assert not re.search(r"transpose|reduce|dot_general", found["main$laid_out"])


def test_reals_meet_a_weight_that_is_given():
    text = program(3, 512, 64, 32, "i4", zeros=True)
    found = functions_of(text)
    assert sorted(found) == ["main", *(f"main$laid_out{end}" for end in ("", "_1", "_2", "_3"))]
    assert "@block_product" not in found["main"]
    assert "@block_product" in found["main$laid_out"]


OF_TWO_ARGUMENTS = """
func.func @main(%x: tensor<20x192xi8>, %u: tensor<40x192xi8>, %v: tensor<40x192xi8>)
    -> tensor<20x40xi32> {
  %w = stablehlo.xor %u, %v : tensor<40x192xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<20x192xi8>, tensor<40x192xi8>) -> tensor<20x40xi32>
  return %y : tensor<20x40xi32>
}
"""


@pytest.mark.parametrize(
    "text",
    [
        OF_TWO_ARGUMENTS,
        product(40).replace(", %w: tensor<40x192xi8>)", ")").replace("%x, %w,", "%x, %x,"),
        product(20, types=("i16", "i16")),
    ],
    ids=["of two arguments", "also activations", "no kernel"],
)  # fmt: skip
def test_there_is_no_copy(text):
    assert list(functions_of(text)) == ["main"]


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 20])
def test_sums_are_the_same(cpu: Device, rows):
    function = subquant.compile(product(rows), device=cpu).main
    x, w = drawn(rows)
    stored = function.put(1, w)
    assert len(stored.prepacked) == 1
    np.testing.assert_array_equal(function(x, stored), summed(x, w))
    np.testing.assert_array_equal(function(x, w), summed(x, w))
    resident = function(function.put("0", x), stored, resident=True)
    np.testing.assert_array_equal(resident, summed(x, w))
    np.testing.assert_array_equal(np.asarray(stored), w)


def test_what_is_laid_out_is_what_is_read(cpu: Device):
    """The pieces of another array, to see that they are read and the argument is not."""
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    stored, other = function.put(1, w), function.put(1, -(w // 2))
    stored.prepacked = other.prepacked
    np.testing.assert_array_equal(function(x, stored), summed(x, -(w // 2)))
    on_device = function.put(0, x)
    np.testing.assert_array_equal(function(on_device, stored, resident=True), summed(x, -(w // 2)))


@pytest.mark.parametrize("resident", [False, True])
def test_arrays_in_memory_are_laid_out_when_they_are_met_again(cpu: Device, resident):
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    given, stored = cpu.put(x), cpu.put(w)
    for expected in (0, 2, 2):
        np.testing.assert_array_equal(function(given, stored, resident=resident), summed(x, w))
        assert [len(pieces) for pieces in stored.prepacked.values()] == [expected]
    assert not given.prepacked


def test_all_weights_have_to_be_stored(cpu: Device):
    case = (5, 256, 80, 32, "u5")
    function = subquant.compile(program(*case, zeros=True), device=cpu, activations="int8").main
    x, *given = arrays(*case, zeros=True)
    expected = reference(x, given[0], given[1], 32, given[2])
    stored = [function.put(place + 1, each) for place, each in enumerate(given)]
    for weights in (stored, [*stored[:2], given[2]], [given[0], *stored[1:]]):
        found = function(x, *weights)
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_weight_that_is_donated(cpu: Device):
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    stored = function.put(1, w)
    np.testing.assert_array_equal(function(x, stored, donate=[1]), summed(x, w))
    assert not stored.prepacked


def test_functions_have_layouts_of_their_own(cpu: Device):
    """A weight of one is laid out for another function when that meets it."""
    first, second = (subquant.compile(product(rows), device=cpu).main for rows in (1, 20))
    x, w = drawn(20)
    stored = first.put(1, w)
    for _ in range(3):
        np.testing.assert_array_equal(second(x, stored), summed(x, w))
        np.testing.assert_array_equal(first(x[:1], stored), summed(x[:1], w))
    assert len(stored.prepacked) == 2


def test_an_array_does_not_keep_an_executable(cpu: Device):
    executable = subquant.compile(product(1), device=cpu)
    _, w = drawn(1)
    stored = executable.main.put(1, w)
    gone = weakref.ref(executable)
    del executable
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(np.asarray(stored), w)


QUANTIZED = """
!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32, 0.25>
!y = !quant.uniform<i32:f32, 0.125:0>
func.func @main(%x: tensor<ROWSx192x!x>, %w: tensor<40x192x!w>) -> tensor<ROWSx40x!y> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<ROWSx192x!x>, tensor<40x192x!w>) -> tensor<ROWSx40x!y>
  return %y : tensor<ROWSx40x!y>
}
"""


@pytest.mark.parametrize("rows", [1, 20])
def test_zero_points_are_corrected_with_sums_that_are_kept(cpu: Device, rows):
    function = subquant.compile(QUANTIZED.replace("ROWS", str(rows)), device=cpu).main
    x, w = drawn(rows)
    expected = summed(x.astype(np.int32) - 3, w)
    np.testing.assert_array_equal(function(x, function.put(1, w)), expected)
    reals = w.astype(np.float32) * np.float32(0.25)
    stored = function.put(1, reals, quantized_io=True)
    np.testing.assert_array_equal(function(x, stored), expected)
    [(name, text)] = [
        each
        for each in functions_of(QUANTIZED.replace("ROWS", str(rows))).items()
        if each[0] == "main$laid_out"
    ]
    assert not re.search(r"%arg1\b", text.partition("{")[2]), f"{name} reads the weight"


@pytest.mark.vulkan
def test_on_vulkan(vulkan: Device):
    case = (5, 256, 80, 32, "u5")
    text = program(*case, zeros=True)
    executable = subquant.compile(text, target="vulkan", device=vulkan, activations="int8")
    x, *given = arrays(*case, zeros=True)
    expected = reference(x, given[0], given[1], 32, given[2])
    stored = [executable.main.put(place + 1, each) for place, each in enumerate(given)]
    assert all(len(each.prepacked) == 1 for each in stored)
    found = executable.main(x, *stored)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    ['{"1": 2', '{"7": 2}', '{"one": 2}', "[1]", '{"1": "two"}', '{"1": null}', '{"1": 99}'],
)
def test_layouts_that_are_not_there(wrong):
    functions = {"main$laid_out": object(), "main$laid_out_1": object()}
    assert PrepackedWeights.of("main", {LAYOUTS_KEY: '{"1": 2}'}, functions.__getitem__) is not None
    with pytest.raises(InputError, match="its weights have no layouts; compile the module again"):
        PrepackedWeights.of("main", {LAYOUTS_KEY: wrong}, functions.__getitem__)
