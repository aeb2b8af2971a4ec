"""Weights that are arguments are packed once, and stay packed in device memory."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest

import subquant
from block_programs import arrays, program, reference
from devices import ON_DEVICES, compile_for
from programs import lowered_text, one_operation
from subquant.errors import InputError
from subquant.runtime import Device
from subquant.runtime.prepacked_arguments import PrepackedWeights
from subquant.signature import LAYOUTS_KEY

PRODUCT_BY_ROWS = "stablehlo.dot_general %0, %1, contracting_dims = [1] x [1]"


def product(rows, element="i8"):
    """A product of rows with a weight."""
    types = [f"{rows}x192x{element}", f"40x192x{element}"]
    return one_operation(PRODUCT_BY_ROWS, types, f"{rows}x40xi32")


def drawn(rows):
    """Activations of `product`, and its weight."""
    random = np.random.default_rng(0)
    return [random.integers(-128, 128, (n, 192)).astype(np.int8) for n in (rows, 40)]


def summed(x, w):
    return x.astype(np.int32) @ w.astype(np.int32).T


def functions_of(text, **options):
    """Return the bodies of lowered functions, by name."""
    lowered = lowered_text(text, **options)
    names = re.findall(r"func\.func @(main\S*)\(", lowered)
    return dict(zip(names, re.split(r"func\.func @main\S*\(", lowered)[1:], strict=True))


# -- clones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_int8_functions_are_cloned(rows):
    """IREE's loops multiply few rows in the original, which would pack the weight at each call."""
    functions = functions_of(product(rows))
    assert sorted(functions) == ["main", "main$laid_out", "main$laid_out_1"]
    assert ("flow.dispatch" in functions["main"]) == (rows >= 16)
    assert "flow.dispatch" in functions["main$laid_out"]
    assert "stablehlo.transpose" in functions["main$laid_out_1"]
    assert not re.search(r"transpose|reduce|dot_general", functions["main$laid_out"])


def test_blockwise_functions_are_cloned():
    functions = functions_of(program(3, 512, 64, 32, "i4", zeros=True))
    assert sorted(functions) == ["main", *(f"main$laid_out{end}" for end in ("", "_1", "_2", "_3"))]
    assert "@blockwise_gemm" not in functions["main"]
    assert "@blockwise_gemm" in functions["main$laid_out"]


TWO_LAYERS = """
func.func @main(%x: tensor<20x192xi8>, %u: tensor<192x192xi8>, %v: tensor<40x192xi8>)
    -> tensor<20x40xi32> {
  %s = stablehlo.dot_general %x, %u, contracting_dims = [1] x [1]
      : (tensor<20x192xi8>, tensor<192x192xi8>) -> tensor<20x192xi32>
  %h = stablehlo.convert %s : (tensor<20x192xi32>) -> tensor<20x192xi8>
  %y = stablehlo.dot_general %h, %v, contracting_dims = [1] x [1]
      : (tensor<20x192xi8>, tensor<40x192xi8>) -> tensor<20x40xi32>
  return %y : tensor<20x40xi32>
}
"""


def test_weights_of_each_layer_are_prepacked():
    """The weight of a layer is none of the activations that the next one computes from it."""
    names = ["main", *(f"main$laid_out{end}" for end in ("", "_1", "_2"))]
    assert sorted(functions_of(TWO_LAYERS)) == names
    also_activations = TWO_LAYERS.replace("20x", "192x").replace("%h, %v", "%u, %v")
    assert sorted(functions_of(also_activations)) == [*names[:2], names[3]]


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
        product(40).replace(", %1: tensor<40x192xi8>)", ")").replace("%0, %1,", "%0, %0,"),
        product(20, "i16"),
    ],
    ids=["of two arguments", "also activations", "no kernel"],
)  # fmt: skip
def test_functions_without_packable_weights_are_not_cloned(text):
    assert list(functions_of(text)) == ["main"]


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 20])
def test_prepacked_weights_give_the_same_result(cpu: Device, rows):
    function = subquant.compile(product(rows), device=cpu).main
    x, w = drawn(rows)
    stored = function.put(1, w)
    assert len(stored.prepacked) == 1
    np.testing.assert_array_equal(function(x, stored), summed(x, w))
    np.testing.assert_array_equal(function(x, w), summed(x, w))
    resident = function(function.put("0", x), stored, resident=True)
    np.testing.assert_array_equal(resident, summed(x, w))
    np.testing.assert_array_equal(np.asarray(stored), w)


def test_prepacked_tensors_are_read(cpu: Device):
    """The packed tensors of another array replace the result of the argument."""
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    stored, other = function.put(1, w), function.put(1, -(w // 2))
    stored.prepacked = other.prepacked
    np.testing.assert_array_equal(function(x, stored), summed(x, -(w // 2)))
    on_device = function.put(0, x)
    np.testing.assert_array_equal(function(on_device, stored, resident=True), summed(x, -(w // 2)))


@pytest.mark.parametrize("resident", [False, True])
def test_device_arrays_are_packed_at_the_second_call(cpu: Device, resident):
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    activations, stored = cpu.put(x), cpu.put(w)
    for expected in (0, 2, 2):
        np.testing.assert_array_equal(
            function(activations, stored, resident=resident), summed(x, w)
        )
        assert [len(tensors) for tensors in stored.prepacked.values()] == [expected]
    assert not activations.prepacked


@ON_DEVICES
def test_weights_are_packed_if_all_are_stored(device: Device):
    case = (5, 256, 80, 32, "u5")
    function = compile_for(program(*case, zeros=True), device, activations="int8").main
    x, *weight = arrays(*case, zeros=True)
    expected = reference(x, weight[0], weight[1], 32, weight[2])
    stored = [function.put(number, each) for number, each in enumerate(weight, 1)]
    assert all(len(each.prepacked) == 1 for each in stored)
    for weights in (stored, [*stored[:2], weight[2]], [weight[0], *stored[1:]]):
        assert np.abs(function(x, *weights) - expected).max() <= 2e-6 * np.abs(expected).max()


def test_donated_weights_are_not_packed(cpu: Device):
    function = subquant.compile(product(1), device=cpu).main
    x, w = drawn(1)
    stored = function.put(1, w)
    np.testing.assert_array_equal(function(x, stored, donate=[1]), summed(x, w))
    assert not stored.prepacked


def test_each_function_packs_for_itself(cpu: Device):
    """A weight that one function stores is packed for another function when that is called."""
    first, second = (subquant.compile(product(rows), device=cpu).main for rows in (1, 20))
    x, w = drawn(20)
    stored = first.put(1, w)
    for _ in range(3):
        np.testing.assert_array_equal(second(x, stored), summed(x, w))
        np.testing.assert_array_equal(first(x[:1], stored), summed(x[:1], w))
    assert len(stored.prepacked) == 2


def test_arrays_do_not_keep_executables_alive(cpu: Device):
    executable = subquant.compile(product(1), device=cpu)
    _, w = drawn(1)
    stored = executable.main.put(1, w)
    gone = weakref.ref(executable)
    del executable
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(np.asarray(stored), w)


QUANTIZED = one_operation(
    PRODUCT_BY_ROWS,
    ["ROWSx192x!quant.uniform<i8:f32, 0.5:3>", "40x192x!quant.uniform<i8:f32, 0.25>"],
    "ROWSx40x!quant.uniform<i32:f32, 0.125:0>",
)


@pytest.mark.parametrize("rows", [1, 20])
def test_zero_points_are_corrected_with_prepacked_sums(cpu: Device, rows):
    function = subquant.compile(QUANTIZED.replace("ROWS", str(rows)), device=cpu).main
    x, w = drawn(rows)
    expected = summed(x.astype(np.int32) - 3, w)
    np.testing.assert_array_equal(function(x, function.put(1, w)), expected)
    reals = w.astype(np.float32) * np.float32(0.25)
    np.testing.assert_array_equal(function(x, function.put(1, reals, quantized_io=True)), expected)
    text = functions_of(QUANTIZED.replace("ROWS", str(rows)))["main$laid_out"]
    assert not re.search(r"%arg1\b", text.partition("{")[2]), "the clone reads the weight"


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    ['{"1": 2', '{"7": 2}', '{"one": 2}', "[1]", '{"1": "two"}', '{"1": null}', '{"1": 99}'],
)
def test_invalid_layouts_are_an_error(wrong):
    functions = {"main$laid_out": object(), "main$laid_out_1": object()}
    assert PrepackedWeights.of("main", {LAYOUTS_KEY: '{"1": 2}'}, functions.__getitem__) is not None
    with pytest.raises(InputError, match="its weights have no layouts; compile the module again"):
        PrepackedWeights.of("main", {LAYOUTS_KEY: wrong}, functions.__getitem__)
