"""Arrays in a device's memory, arrays that are lent to a program, and calls by several threads."""

from __future__ import annotations

import gc
import itertools
import mmap
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import subquant
from devices import ON_DEVICES
from subquant import DeviceArray
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import ExecutionError, SignatureError, UsageError
from subquant.formats.irpa_writer import create_archive
from subquant.isolation.limits import available_cores
from subquant.layouts import GgmlTensor
from subquant.numerics.casts import dequantize, quantize
from subquant.ops import linear, trace_function
from subquant.runtime import Device, Executable
from subquant.runtime.marshalling import _MemoryRanges
from subquant.runtime.open_device import OpenDevice
from subquant.signature import Work

LARGE = 1 << 16
PROGRAM = """
!w = !quant.uniform<i4:f32:{0:2}, {{0.5:1}, {0.25:-2}}>
!n = !quant.uniform<i8<-127:127>:f32, 0.5>
func.func @product(%w: tensor<4x8x!w>, %x: tensor<8xf32>) -> tensor<4xf32>
    attributes {subquant.argument_names = ["weights", "x"]} {
  %d = quant.dcast %w : tensor<4x8x!w> to tensor<4x8xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %y = linalg.matvec ins(%d, %x : tensor<4x8xf32>, tensor<8xf32>)
      outs(%i : tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @halve(%q: tensor<6x!n>) -> tensor<6x!n> {
  %x = quant.dcast %q : tensor<6x!n> to tensor<6xf32>
  %c = arith.constant dense<0.5> : tensor<6xf32>
  %h = arith.mulf %x, %c : tensor<6xf32>
  %r = quant.qcast %h : tensor<6xf32> to tensor<6x!n>
  return %r : tensor<6x!n>
}
func.func @twice(%x: tensor<6xi8>) -> (tensor<6xi8>, tensor<6xi8>) {
  %y = arith.addi %x, %x : tensor<6xi8>
  return %y, %y : tensor<6xi8>, tensor<6xi8>
}
func.func @same(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}
func.func @any(%x: tensor<*xf32>) -> tensor<*xf32> {
  return %x : tensor<*xf32>
}
func.func @number(%x: f32) -> f32 {
  return %x : f32
}
"""


def compiled(text: str, device: Device) -> Executable:
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    return subquant.compile(text, target=target, device=device)


# -- device arrays --------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64, np.bool_],
)
def test_what_is_put_is_read(device: Device, device_name: str, dtype: type) -> None:
    array = np.arange(24).reshape(2, 3, 4)[:, ::2].astype(dtype)
    put = device.put(array)
    assert isinstance(put, DeviceArray)
    assert (put.shape, put.ndim, put.size, len(put)) == ((2, 2, 4), 3, 16, 2)
    assert put.dtype == array.dtype
    assert put.nbytes == array.nbytes
    np.testing.assert_array_equal(put.numpy(), array, strict=True)
    np.testing.assert_array_equal(np.asarray(put), array, strict=True)
    array[:] = 0
    assert np.asarray(put).any(), "it is a copy"
    for other in (np.zeros((0, 3), dtype), np.ones((), dtype)):
        np.testing.assert_array_equal(np.asarray(device.put(other)), other, strict=True)


@ON_DEVICES
def test_other_libraries_read_it(device: Device, device_name: str) -> None:
    array = np.arange(6, dtype=np.float32)
    put = device.put(array)
    np.testing.assert_array_equal(np.from_dlpack(put), array)
    old = np.asarray(put).copy()
    np.testing.assert_array_equal(np.add(put, 1), old + 1)
    np.testing.assert_array_equal(np.asarray(put, np.float64), old.astype(np.float64), strict=True)
    assert put.__dlpack_device__() == (1, 0)
    assert put.__dlpack__()  # to what knows no array that is only to be read: of a copy


def test_numpy_reads_the_memory_itself(cpu: Device) -> None:
    """It cannot write there, and the memory lives as long as the array does."""
    put = cpu.put(np.arange(6, dtype=np.float32))
    view = np.asarray(put)
    assert np.shares_memory(view, np.asarray(put))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del put
    np.testing.assert_array_equal(view, np.arange(6))
    packed = cpu.put(np.arange(6, dtype=ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="takes a copy to read"):
        packed.__array__(copy=False)


def test_it_keeps_its_device() -> None:
    device = Device("local-sync")
    opened = weakref.ref(device.open())
    put = device.put(np.ones(1 << 20, np.uint8))
    del device
    assert opened() is not None
    assert np.asarray(put).all()
    del put
    assert opened() is None


@ON_DEVICES
def test_the_garbage_collector_frees_it(device: Device, device_name: str) -> None:
    """Also where it closes the device, in whatever order: a buffer that is freed later crashes."""
    own = Device(device.name)
    for _ in range(3):
        cycle: list[object] = [compiled(PROGRAM, own)]
        cycle += [cycle, cycle[0].twice(np.ones(6, np.int8), resident=True), own.put([1.0])]
        cycle.append(np.asarray(cycle[-1]))
        arrays = [weakref.ref(cycle[-2]), weakref.ref(cycle[2][0])]
        own = Device(device.name)
        del cycle
        gc.collect()
        assert [array() for array in arrays] == [None, None]


@ON_DEVICES
def test_a_quantized_argument_is_packed_once(device: Device, device_name: str) -> None:
    product = compiled(PROGRAM, device).product
    rng = np.random.default_rng(1)
    stored, x = rng.integers(-8, 8, (4, 8)).astype(np.int8), rng.random(8, np.float32)
    parameters = product.signature.inputs[0].parameters
    expected = dequantize(stored, parameters).astype(np.float64) @ x
    weights = product.put(0, stored)
    assert weights.type is product.signature.inputs[0]
    np.testing.assert_allclose(product(weights, x), expected, rtol=1e-6)
    np.testing.assert_array_equal(weights.numpy(), stored, strict=True)
    np.testing.assert_array_equal(
        weights.numpy(quantized_io=True), dequantize(stored, parameters), strict=True
    )
    if product.signature.inputs[0].plane_bits is not None:
        assert weights.nbytes == 16
    reals = dequantize(stored, parameters) + np.float32(0.01)
    again = product.put("weights", reals, quantized_io=True)
    np.testing.assert_array_equal(again.numpy(), quantize(reals, parameters), strict=True)
    np.testing.assert_allclose(product(again, x, quantized_io=True), expected, rtol=1e-6)


@ON_DEVICES
def test_results_stay_on_the_device(device: Device, device_name: str) -> None:
    executable = compiled(PROGRAM, device)
    q = np.array([-127, -3, 0, 5, 8, 126], np.int8)
    parameters = executable.halve.signature.inputs[0].parameters
    expected = q
    result = executable.halve(q, resident=True)
    for _ in range(2):
        expected = quantize(dequantize(expected, parameters) / 2, parameters)
        np.testing.assert_array_equal(result.numpy(), expected, strict=True)
        result = executable.halve(result, resident=True)
    first, second = executable.twice(result, resident=True)  # storage is what plain integers are
    doubled = quantize(dequantize(expected, parameters) / 2, parameters) * 2
    np.testing.assert_array_equal(first.numpy(), doubled)
    np.testing.assert_array_equal(second.numpy(), doubled)
    assert executable.number(1.5, resident=True) == 1.5


@ON_DEVICES
def test_dynamic_and_unranked_arguments(device: Device, device_name: str) -> None:
    executable = compiled(PROGRAM, device)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    put = device.put(array)
    unranked = executable.any(put, resident=True)
    assert unranked.shape == (2, 3)
    np.testing.assert_array_equal(executable.any(unranked), array, strict=True)
    row = executable.same(device.put(array[0]), resident=True)
    np.testing.assert_array_equal(executable.same(row), array[0], strict=True)
    np.testing.assert_array_equal(executable.any(row), array[0], strict=True)
    assert "of shape (3,)" in repr(row)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("twice", np.ones(5, np.int8), "argument 0 of 'twice' must have the shape 6, got 5"),
        (
            "twice",
            np.ones(6, np.int16),
            "tensor<6xi8>, got <DeviceArray tensor<6xi16>",
        ),
        ("twice", np.ones(6, np.float32), "must be stored as tensor<6xi8>"),
        ("halve", np.ones(6, np.int8), "must be stored as tensor<6xquantized<"),
        ("halve", np.ones(6, np.uint8), "f.put(argument, array)"),
        ("same", np.ones((2, 2), np.float32), "must have the shape ?, got 2x2"),
        ("number", np.ones((), np.float32), "must be stored as f32"),
    ],
)
def test_arrays_that_do_not_fit(cpu: Device, name: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(SignatureError) as caught:
        compiled(PROGRAM, cpu)[name](cpu.put(array))
    assert message in str(caught.value)


def test_wrong_uses(cpu: Device) -> None:
    executable = compiled(PROGRAM, cpu)
    assert executable.product.put("weights", np.zeros((4, 8), np.int8)).shape == (4, 8)
    for argument in (2, -1, "none", True):
        with pytest.raises(UsageError, match=f"function 'product' has no argument '{argument}'"):
            executable.product.put(argument, np.zeros((4, 8), np.int8))
    with pytest.raises(SignatureError, match="argument 0 of 'halve' must have storage values in"):
        executable.halve.put(0, np.full(6, -128))
    with pytest.raises(SignatureError, match="argument 0 of 'number' is a number"):
        executable.number.put(0, 1.0)
    with pytest.raises(SignatureError, match="the array is no array that programs take"):
        cpu.put(np.array(["a"]))
    with pytest.raises(TypeError, match="no length"):
        len(cpu.put(1.0))


@pytest.mark.vulkan
def test_an_array_of_another_device(cpu: Device, vulkan: Device) -> None:
    array = np.ones(6, np.int8)
    for here, there in ((cpu, vulkan), (vulkan, cpu)):
        with pytest.raises(SignatureError, match="lies in the memory of another device"):
            compiled(PROGRAM, here).twice(there.put(array))


def test_memory_of_the_cpu_is_that_of_every_cpu_device(cpu: Device) -> None:
    array = np.arange(6, dtype=np.float32)
    put = Device("llvm-cpu", threads=1).put(array)
    result = compiled(PROGRAM, cpu).same(put, resident=True)
    del put
    np.testing.assert_array_equal(result.numpy(), array)


# -- arguments that programs write to -------------------------------------------------------------

UPDATES = """
func.func @update(%c: tensor<16384xf32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<16384xf32>
    attributes {subquant.argument_names = ["cache", "x", "i"]} {
  %0 = stablehlo.dynamic_update_slice %c, %x, %i
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func @through(%c: tensor<128x128xf32>, %x: tensor<4xf32>) -> tensor<16384xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<128x128xf32>
  %i = stablehlo.constant dense<7> : tensor<i32>
  %s = stablehlo.add %c, %z : tensor<128x128xf32>
  %r = stablehlo.reshape %s : (tensor<128x128xf32>) -> tensor<16384xf32>
  %0 = func.call @private(%r, %x, %i)
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func private @private(%c: tensor<16384xf32>, %x: tensor<4xf32>, %i: tensor<i32>)
    -> tensor<16384xf32> {
  %0 = stablehlo.dynamic_update_slice %c, %x, %i
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func @identity(%x: tensor<16384xi32>) -> tensor<16384xi32> {
  %z = stablehlo.constant dense<0> : tensor<16384xi32>
  %0 = stablehlo.add %x, %z : tensor<16384xi32>
  return %0 : tensor<16384xi32>
}
"""
ACCUMULATES = """
func.func @accumulate(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>)
    -> tensor<64x64xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
func.func @insert(%a: tensor<128x64xf32>, %b: tensor<4x64xf32>) -> tensor<128x64xf32> {
  %0 = tensor.insert_slice %b into %a[3, 0][4, 64][1, 1]
      : tensor<4x64xf32> into tensor<128x64xf32>
  return %0 : tensor<128x64xf32>
}
func.func @loop(%c: tensor<16384xf32>, %x: tensor<4xf32>, %n: index) -> tensor<16384xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c) -> tensor<16384xf32> {
    %0 = tensor.insert_slice %x into %a[%i][4][1] : tensor<4xf32> into tensor<16384xf32>
    scf.yield %0 : tensor<16384xf32>
  }
  return %r : tensor<16384xf32>
}
"""


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """The array in memory that begins `offset` bytes after a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def written(arguments: list[np.ndarray], start: int) -> np.ndarray:
    expected = arguments[0].reshape(-1).copy()
    expected[start : start + 4] = arguments[1]
    return expected


@ON_DEVICES
def test_arguments_stay_as_they_are(device: Device, device_name: str, as_users_call: None) -> None:
    """IREE updates arguments of the program in place, those that are folded into one too."""
    rng = np.random.default_rng(2)
    executable, others = compiled(UPDATES, device), compiled(ACCUMULATES, device)
    c, x = aligned(rng.random(16384, np.float32)), rng.random(4, np.float32)
    a, b, s = (aligned(rng.random((64, 64), np.float32)) for _ in range(3))
    cases = [
        (executable.update, [c, x, np.int32(5)], written([c, x], 5)),
        (executable.through, [c.reshape(128, 128), x], written([c, x], 7)),
        (others.accumulate, [a, b, s], a.astype(np.float64) @ b + s),
        (others.insert, [c.reshape(256, 64)[:128], a[:4]], None),
        (others.loop, [c, x, 3], None),
    ]
    for function, arguments, expected in cases:
        assert function.signature.inputs[-1].is_consumed == (function.name == "accumulate")
        before = [np.copy(argument) for argument in arguments]
        on_device = [
            argument if np.ndim(argument) == 0 else function.put(number, argument)
            for number, argument in enumerate(arguments)
        ]
        for given in (arguments, on_device):
            results = [function(*given) for _ in range(2)]
            np.testing.assert_array_equal(*results, strict=True)
            if expected is not None:
                np.testing.assert_allclose(results[0], expected, rtol=1e-5)
            for argument, old in zip(given, before, strict=True):
                np.testing.assert_array_equal(np.asarray(argument), old, err_msg=function.name)


def test_iree_still_writes_to_arguments(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    update = compiled(UPDATES, cpu).update
    assert update.signature.inputs[0].is_consumed
    update.parameters[0].may_lend = True
    monkeypatch.setattr(OpenDevice, "lend", OpenDevice.lend.__wrapped__)
    c = aligned(np.zeros(16384, np.float32))
    update(c, np.ones(4, np.float32), np.int32(5))
    assert c.any(), (
        "IREE is fixed: remove consumed_values of iree_workarounds/consumed_arguments.py"
    )


@ON_DEVICES
def test_results_are_their_own(device: Device, device_name: str, as_users_call: None) -> None:
    """IREE returns ``x + 0`` as the memory of ``x``, and equal results as one."""
    executable = compiled(UPDATES, device)
    x = aligned(np.arange(16384, dtype=np.int32))
    put = device.put(x)
    # An array that was taken once is not looked at again.
    results = [executable.identity(each, resident=True) for each in (x, put, put)]
    x[:] = 0
    for result in results:
        np.testing.assert_array_equal(result.numpy(), np.arange(16384))
    twice = compiled(PROGRAM, device).twice
    pair = twice(np.ones(6, np.int8), resident=True)
    taken = twice(pair[0], resident=True), twice(pair[0], resident=True)
    np.testing.assert_array_equal(taken, np.full((2, 2, 6), 4))
    if not device.is_vulkan:
        for together in ([put, *results[1:]], [*pair, *taken[0], *taken[1]]):
            for one, other in itertools.combinations(map(np.asarray, together), 2):
                assert not np.shares_memory(one, other)


FRESH = """
func.func @product(%x: tensor<8x8xi8>) -> tensor<8x8xi8> {
  %w = stablehlo.constant dense<3> : tensor<8x8xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x8xi8>, tensor<8x8xi8>) -> tensor<8x8xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x8xi32>, tensor<i32>) -> tensor<8xi32>
  %all = stablehlo.broadcast_in_dim %sums, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
  %z = stablehlo.convert %all : (tensor<8x8xi32>) -> tensor<8x8xi8>
  return %z : tensor<8x8xi8>
}
func.func @either(%x: tensor<8x8xi8>, %p: tensor<i1>) -> tensor<8x8xi8> {
  %w = stablehlo.constant dense<3> : tensor<8x8xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x8xi8>, tensor<8x8xi8>) -> tensor<8x8xi8>
  %z = stablehlo.select %p, %x, %y : tensor<i1>, tensor<8x8xi8>
  return %z : tensor<8x8xi8>
}
func.func @pair(%x: tensor<8x8xi8>) -> (tensor<8x8xi8>, tensor<8x8xi8>) {
  %w = stablehlo.constant dense<3> : tensor<8x8xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x8xi8>, tensor<8x8xi8>) -> tensor<8x8xi8>
  return %y, %y : tensor<8x8xi8>, tensor<8x8xi8>
}
func.func @nothing(%x: tensor<8x8xi8>) -> tensor<8x8xi8> {
  %zero = stablehlo.constant dense<0> : tensor<8x8xi8>
  %y = stablehlo.add %x, %zero : tensor<8x8xi8>
  return %y : tensor<8x8xi8>
}
func.func @constant(%x: tensor<8x8xi8>) -> tensor<8x8xi8> {
  %y = stablehlo.constant dense<1> : tensor<8x8xi8>
  return %y : tensor<8x8xi8>
}
func.func @called(%x: tensor<8x8xi8>) -> tensor<8x8xi8> {
  %y = func.call @nothing(%x) : (tensor<8x8xi8>) -> tensor<8x8xi8>
  return %y : tensor<8x8xi8>
}
"""


def test_results_of_contractions_are_known_to_be_their_own(cpu: Device) -> None:
    """Whose addresses no call looks at; those of all others are."""
    executable = compiled(FRESH, cpu)
    fresh = {
        name: [value.is_fresh for value in function.signature.outputs]
        for name, function in executable.functions.items()
    }
    assert fresh == {
        "product": [True],
        "either": [False],
        "pair": [False, False],
        "nothing": [False],
        "constant": [False],
        "called": [False],
    }
    x = cpu.put(np.eye(8, dtype=np.int8))
    first = executable.product(x, resident=True)
    second = executable.product(first, resident=True)
    np.testing.assert_array_equal(first, np.full((8, 8), 24))
    np.testing.assert_array_equal(
        second, np.full((8, 8), 24 * 8 * 3 * 8 % 256, np.uint8).view("i1")
    )
    memories = [np.asarray(each) for each in (x, first, second)]
    for one, other in itertools.combinations(memories, 2):
        assert not np.shares_memory(one, other)


# -- lending --------------------------------------------------------------------------------------


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch, as_users_call: None) -> Iterator[list[int]]:
    """The addresses of what is lent."""
    addresses, lend = [], OpenDevice.lend

    def watch(device: OpenDevice, array: np.ndarray, element: str) -> object:
        found = lend(device, array, element)
        if found is not None:
            addresses.append(array.ctypes.data)
        return found

    monkeypatch.setattr(OpenDevice, "lend", watch)
    return addresses


def test_large_aligned_arrays_are_lent(cpu: Device, lent: list[int]) -> None:
    same = compiled(PROGRAM, cpu).same
    base = np.random.default_rng(3).random(LARGE, np.float32)
    given = aligned(base)
    np.testing.assert_array_equal(same(given), base, strict=True)
    assert lent == [given.ctypes.data]
    frozen = aligned(base)
    frozen.flags.writeable = False  # as one of a file that is mapped
    np.testing.assert_array_equal(same(frozen), base, strict=True)
    assert lent.pop() == frozen.ctypes.data
    result = same(given)
    assert result.flags.writeable
    assert not np.shares_memory(result, given)
    lent.clear()
    same(result)
    assert lent == [result.ctypes.data], "results lie so that they can be lent"


@pytest.mark.parametrize("offset", [4, 16, 32, 48])
def test_arrays_that_lie_otherwise_are_copied(cpu: Device, lent: list[int], offset: int) -> None:
    """Compiled programs crash on an address that is no multiple of 64."""
    same = compiled(PROGRAM, cpu).same
    given = aligned(np.random.default_rng(4).random(LARGE, np.float32), offset)
    np.testing.assert_array_equal(same(given), given)
    every_second = aligned(np.random.default_rng(4).random(LARGE, np.float32))[::2]
    np.testing.assert_array_equal(same(every_second), every_second)
    assert not lent


VARIABLE = """
tosa.variable @kept = dense<0.0> : tensor<16384xf32>
func.func @exchange(%x: tensor<16384xf32>) -> tensor<16384xf32> {
  %old = tosa.variable_read @kept : tensor<16384xf32>
  tosa.variable_write @kept, %x : tensor<16384xf32>
  return %old : tensor<16384xf32>
}
"""


@ON_DEVICES
def test_a_variable_keeps_a_copy(device: Device, device_name: str, as_users_call: None) -> None:
    exchange = compiled(VARIABLE, device).exchange
    first = aligned(np.arange(16384, dtype=np.float32))
    results = [exchange(first, resident=True)]
    first[:] = -1
    results += [exchange(np.zeros_like(first), resident=True) for _ in range(2)]
    for result, expected in zip(results, (0, np.arange(16384), 0), strict=True):
        np.testing.assert_array_equal(result.numpy(), np.broadcast_to(expected, 16384))


KEEPS = """
"util.global"() {is_mutable, sym_name = "kept", sym_visibility = "private",
    type = tensor<16384xf32>, initial_value = dense<0.0> : tensor<16384xf32>} : () -> ()
func.func @keep(%x: tensor<16384xf32>) -> tensor<16384xf32> {
  "util.global.store"(%x) {global = @kept} : (tensor<16384xf32>) -> ()
  return %x : tensor<16384xf32>
}
func.func @change(%x: tensor<4xf32>) -> tensor<16384xf32> {
  %old = "util.global.load"() {global = @kept} : () -> tensor<16384xf32>
  %new = tensor.insert_slice %x into %old[8] [4] [1] : tensor<4xf32> into tensor<16384xf32>
  "util.global.store"(%new) {global = @kept} : (tensor<16384xf32>) -> ()
  return %new : tensor<16384xf32>
}
"""


@ON_DEVICES
def test_results_are_not_what_the_program_keeps(device: Device, device_name: str) -> None:
    executable = compiled(KEEPS, device)
    ones = np.ones(16384, np.float32)
    results = [
        executable.keep(ones, resident=True),
        executable.keep(executable.keep.put(0, ones), resident=True, donate=[0]),
        executable.change(np.full(4, 2, np.float32), resident=True),
        executable.change(np.full(4, 3, np.float32), resident=True),
    ]
    assert [result.numpy()[8] for result in results] == [1, 1, 2, 3]


ADDS = """
tosa.variable @total = dense<0> : tensor<16384xi32>
func.func @add(%x: tensor<16384xi32>) {
  %old = tosa.variable_read @total : tensor<16384xi32>
  %new = tosa.add %old, %x : (tensor<16384xi32>, tensor<16384xi32>) -> tensor<16384xi32>
  tosa.variable_write @total, %new : tensor<16384xi32>
  return
}
func.func @sum() -> tensor<16384xi32> {
  %sum = tosa.variable_read @total : tensor<16384xi32>
  return %sum : tensor<16384xi32>
}
"""


@ON_DEVICES
def test_what_is_read_after_a_call(device: Device, device_name: str, as_users_call: None) -> None:
    """A call returns before its variables have their values."""
    executable = compiled(ADDS, device)
    signatures = [executable[name].signature for name in ("add", "sum")]
    assert [signature.keeps_state for signature in signatures] == [True, False]
    x, expected = aligned(np.zeros(16384, np.int32)), 0
    for number in range(50):
        x[:] = number
        executable.add(x)
        x[:] = -1
        expected += number
    assert (executable.sum() == expected).all()


# -- donation -------------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize("is_seen", [False, True])
def test_donated_arrays(device: Device, device_name: str, is_seen: bool) -> None:
    update = compiled(UPDATES, device).update
    x = np.arange(1, 5, dtype=np.float32)
    cache, expected = update.put(0, np.zeros(16384, np.float32)), np.zeros(16384, np.float32)
    address = None
    for step in range(3):
        if not device.is_vulkan:
            address = cache._device.host_bytes(cache.view).ctypes.data
        seen = np.asarray(cache) if is_seen else None
        old, cache = cache, update(cache, x, np.int32(4 * step), resident=True, donate=["cache"])
        if seen is not None:
            np.testing.assert_array_equal(seen, expected)
        expected[4 * step : 4 * step + 4] = x
        for use in (old.numpy, lambda gone=old: update(gone, x, np.int32(0))):
            with pytest.raises(ExecutionError, match="was donated to a call"):
                use()
        if not device.is_vulkan and not is_seen:
            assert cache._device.host_bytes(cache.view).ctypes.data == address, "in place"
        np.testing.assert_array_equal(cache.numpy(), expected)


def test_wrong_donations(cpu: Device) -> None:
    executable = compiled(UPDATES, cpu)
    update, x = executable.update, np.ones(4, np.float32)
    array = np.zeros(16384, np.float32)
    with pytest.raises(UsageError, match="argument 0 of 'update' is donated, and is not in the"):
        update(array, x, np.int32(0), donate=(0,))
    with pytest.raises(UsageError, match="has no argument '7'"):
        update(array, x, np.int32(0), donate=(7,))
    both = compiled(ACCUMULATES, cpu).accumulate
    square = cpu.put(np.ones((64, 64), np.float32))
    with pytest.raises(UsageError, match="argument 2 of 'accumulate' is donated, and given twice"):
        both(square, square, square, donate=(2,))
    assert square.numpy().all()


# -- threads --------------------------------------------------------------------------------------

SPIN = """
func.func @spin(%n: i32) -> i32 {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %three = arith.constant 3 : i32
  %r:2 = scf.while (%i = %zero, %s = %zero) : (i32, i32) -> (i32, i32) {
    %p = arith.cmpi slt, %i, %n : i32
    scf.condition(%p) %i, %s : i32, i32
  } do {
  ^bb0(%i: i32, %s: i32):
    %j = arith.addi %i, %one : i32
    %t = arith.muli %s, %three : i32
    %u = arith.xori %t, %i : i32
    scf.yield %j, %u : i32, i32
  }
  return %r#1 : i32
}
"""


def test_calls_let_other_threads_run(cpu: Device) -> None:
    """A thread that waits goes on during a call of another.

    Python takes its lock from a thread after the switch interval, here never: only where the thread
    gives it away. So the main thread sees a call under way only if the call gives it away.
    """
    spin = compiled(SPIN, cpu).spin
    begins, seen, under_way = threading.Event(), threading.Event(), [False]

    def call() -> None:
        begins.set()
        for _ in range(200):
            under_way[0] = True
            spin(20_000)
            under_way[0] = False
            if seen.is_set():
                return

    interval, thread = sys.getswitchinterval(), threading.Thread(target=call)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        begins.wait()
        saw, _ = under_way[0], seen.set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert saw


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_an_executable_is_called_by_several_threads(threads: int | None) -> None:
    executable = compiled(ACCUMULATES, Device("llvm-cpu", threads=threads))
    rng = np.random.default_rng(6)
    a, b, c = (rng.integers(-4, 5, (64, 64)).astype(np.float32) for _ in range(3))
    weights, errors = executable.accumulate.put(1, b), []

    def call(factor: int) -> None:
        for _ in range(20):
            found = executable.accumulate(a * factor, weights, c)
            if (found != a * factor @ b + c).any():
                errors.append(factor)

    workers = [threading.Thread(target=call, args=(factor,)) for factor in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors


def test_devices_of_one_and_more_threads() -> None:
    text = ACCUMULATES
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(-4, 5, (64, 64)).astype(np.float32) for _ in range(3))
    for threads in (1, 2, 3):
        executable = subquant.compile(text, threads=threads)
        assert executable.device.threads == threads
        assert executable.threads == min(threads, available_cores())
        np.testing.assert_array_equal(executable.accumulate(a, b, c), a @ b + c)


SMALL = """
func.func @small(%x: tensor<8x64xi8>, %w: tensor<64x64xi8>) -> tensor<8x64xi32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x64xi8>, tensor<64x64xi8>) -> tensor<8x64xi32>
  return %y : tensor<8x64xi32>
}
"""
PRODUCT = """
func.func @large(%x: tensor<64x1024xf32>, %w: tensor<1024x512xf32>) -> tensor<64x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  return %y : tensor<64x512xf32>
}
"""
DOUBLES = """
func.func @main(%x: tensor<64x1024xf32>) -> tensor<64x1024xf32> {
  %y = stablehlo.add %x, %x : tensor<64x1024xf32>
  return %y : tensor<64x1024xf32>
}
"""
UNKNOWN = """
func.func @unknown(%x: tensor<?xi8>) -> tensor<?xi8> {
  %y = stablehlo.add %x, %x : tensor<?xi8>
  return %y : tensor<?xi8>
}
"""


@pytest.mark.parametrize(
    ("text", "device", "threads", "expected"),
    [
        (SMALL, "llvm-cpu", 2, 1),
        (SMALL, "llvm-cpu", 1, 1),
        (SMALL, "local-task", 2, 2),
        (SMALL, "local-sync", None, 1),
        (SMALL + PRODUCT, "llvm-cpu", 2, 2),  # the largest of its functions counts
        (SMALL + PRODUCT, "llvm-cpu", 1, 1),
        (SMALL + UNKNOWN, "llvm-cpu", 2, 2),
    ],
)
def test_small_programs_are_run_by_the_callers_own_thread(
    text: str,
    device: str,
    threads: int | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subquant.runtime.worker_threads.available_cores", lambda: 2)
    rng = np.random.default_rng(6)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((8, 64), (64, 64)))
    executable = subquant.compile(text, device=Device(device, threads=threads))
    assert executable.threads == expected
    weight = executable.device.put(w)  # an array of one is taken by all
    result = executable.small(x, weight, resident=True)
    own = "local-task" if device == "local-task" else "local-sync"
    assert f"on '{own}'" in repr(result)
    np.testing.assert_array_equal(result.numpy(), x.astype(np.int32) @ w)


def test_programs_share_arrays_and_threads(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resident results of a small program are arguments of a large one, and the reverse."""
    monkeypatch.setattr("subquant.runtime.worker_threads.available_cores", lambda: 2)
    device = Device("llvm-cpu", threads=2)
    small, large = (subquant.compile(text, device=device) for text in (DOUBLES, PRODUCT))
    again = subquant.compile(PRODUCT, device=device)
    assert [each.threads for each in (small, large, again)] == [1, 2, 2]
    x, w = np.ones((64, 1024), np.float32), np.ones((1024, 512), np.float32)
    doubled = small.main(device.put(x), resident=True)
    product = large.large(doubled, w, resident=True)
    np.testing.assert_array_equal(product.numpy(), np.full((64, 512), 2048, np.float32))
    del large
    gc.collect()
    np.testing.assert_array_equal(again.large(doubled, w), product)
    assert small.main(doubled)[0, 0] == 4


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "-1 2", "x 2", "1 2\n"])
def test_an_estimate_that_is_none_is_not_taken(text: str) -> None:
    assert Work.from_text(text) is None


def test_what_threads_are_worth() -> None:
    """Those of IREE are woken, and again for each dispatch; those of a team ask for it."""
    for work, threads, by_iree, by_team in (
        (Work(5_000, 1), 2, False, False),
        (Work(5_002, 1), 2, False, True),
        (Work(5_002, 2), 2, False, False),
        (Work(100_000, 1), 2, False, True),
        (Work(100_002, 1), 2, True, True),
        (Work(100_002, 2), 2, False, True),
        (Work(80_000, 1), 8, True, True),
        (Work(10**9, 1), 1, False, False),
    ):
        assert work.is_worth(threads, pool=False) == by_iree, work
        assert work.is_worth(threads, pool=True) == by_team, work
    assert Work.from_text(str(Work(12, 3))) == Work(12, 3)


@pytest.mark.parametrize(
    ("device", "threads", "message"),
    [
        ("llvm-cpu", 0, "expected 1 to 256 threads, got '0'"),
        ("llvm-cpu", 257, "expected 1 to 256 threads, got '257'"),
        ("llvm-cpu", True, "expected 1 to 256 threads, got 'True'"),
        ("llvm-cpu", "2", "expected 1 to 256 threads, got '2'"),
        ("vulkan", 2, "the device 'vulkan' has no number of threads to choose"),
        ("local-sync", 2, "the device 'local-sync' has no number of threads to choose"),
    ],
)
def test_wrong_numbers_of_threads(device: str, threads: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Device(device, threads=threads)


def test_a_device_has_its_threads(cpu: Device) -> None:
    with pytest.raises(UsageError, match=r"make it so: Device\('llvm-cpu', threads=2\)"):
        subquant.compile(SPIN, device=cpu, threads=2)


def test_parameters_are_read_by_the_callers_own_thread(tmp_path: Path) -> None:
    text = """
"util.global"() {sym_name = "w", sym_visibility = "private", type = tensor<6xf32>,
    initial_value = #flow.parameter.named<"model"::"w"> : tensor<6xf32>} : () -> ()
func.func @main(%x: tensor<6xf32>) -> tensor<6xf32> {
  %w = "util.global.load"() {global = @w} : () -> tensor<6xf32>
  %y = arith.mulf %x, %w : tensor<6xf32>
  return %y : tensor<6xf32>
}
"""
    weights = np.arange(6, dtype=np.float32)
    with create_archive(tmp_path / "w.irpa") as writer:
        writer.add_tensor("w", weights)
    executable = subquant.compile(text, parameters={"model": tmp_path / "w.irpa"}, threads=1)
    np.testing.assert_array_equal(executable.main(weights), weights**2)


def test_pieces_of_memory_that_overlap() -> None:
    """Found as by comparing each with each."""
    whole = np.zeros(64, np.uint8)
    generator = np.random.default_rng(0)
    for _ in range(200):
        pieces, added = _MemoryRanges(), []
        for start, length in zip(
            generator.integers(0, 50, 12), generator.integers(0, 14, 12), strict=True
        ):
            piece = whole[start : start + length]
            assert pieces.overlap(piece) == any(np.may_share_memory(piece, a) for a in added)
            if generator.integers(2):
                pieces.add(piece)
                added.append(piece)


def test_what_calls_with_many_donated_arrays_check(cpu: Device) -> None:
    """Each array is looked for among the others once, also where its memory is another's result."""
    count = 40
    types = ", ".join(["tensor<16384xf32>"] * count)
    names = [f"%x{n}" for n in range(count)]
    lines = "\n".join(
        f"%y{n} = stablehlo.add {name}, {name} : tensor<16384xf32>" for n, name in enumerate(names)
    )
    swapped = [f"%y{n}" for n in reversed(range(count))]
    arguments = ", ".join(f"{name}: tensor<16384xf32>" for name in names)
    text = f"""func.func @main({arguments}) -> ({types}) {{
      {lines}
      return {", ".join(swapped)} : {types}
    }}"""
    main = subquant.compile(text, device=cpu).main
    arrays = [main.put(n, np.full(16384, n, np.float32)) for n in range(count)]
    for call in (1, 2):
        arrays = main.invoke(arrays, resident=True, donate=range(count))
        for n, array in enumerate(arrays):
            of = n if call == 2 else count - 1 - n
            assert (array.numpy() == of * 2**call).all()
    with pytest.raises(UsageError, match="argument 3 of 'main' is donated, and given twice"):
        main.invoke([*arrays[:-1], arrays[3]], resident=True, donate=[3])


_LAZY = """
import numpy as np
import subquant

def anonymous():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) * 1024 for words in lines if words[0] == "RssAnon:")

device = subquant.Device("llvm-cpu", threads=1)
device.put(np.zeros(1 << 20, np.int8))
shape, before = (64, 1 << 20), anonymous()
stored = device.put(np.broadcast_to(np.float16(0), shape))
taken = anonymous() - before
assert np.asarray(stored).shape == shape
print(taken)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is resident")
def test_zeros_take_memory_where_they_are_written() -> None:
    run = subprocess.run([sys.executable, "-c", _LAZY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1 << 24  # of 1 << 27


_CONSTANTS = """
import gc
import numpy as np
import subquant

def advised():
    found, size = 0, 0
    for line in open("/proc/self/smaps"):
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and "hg" in line.split():
            found += size
    return found

before = advised()
executable = subquant.load("large.vmfb", threads=1)
after = advised()
x, expected = np.load("x.npy"), np.load("expected.npy")
np.testing.assert_array_equal(executable.main(x)[0], expected)
del executable
gc.collect()
subquant.load("small.vmfb", threads=1).main(x)
print(after - before, advised() - before)
"""


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
def test_constants_that_are_large_lie_in_large_pages(tmp_path: Path) -> None:
    """All but the last bytes; and they are freed with the executable."""
    rng = np.random.default_rng(7)
    place, columns = 4321, {"large": 1000, "small": 10}
    x = np.zeros((1, 8192), np.float32)
    x[0, place] = 1
    for name, count in columns.items():
        blocks = np.zeros((count, 256), [("d", "<f2"), ("qs", "i1", 32)])
        blocks["d"] = rng.integers(1, 9, (count, 256)) / 8
        blocks["qs"] = rng.integers(-128, 128, (count, 256, 32))
        weight = GgmlTensor(blocks.view(np.uint8).reshape(-1), "Q8_0", (count, 8192))
        module = trace_function(lambda given, weight=weight: linear(given, weight), x)
        (tmp_path / f"{name}.vmfb").write_bytes(compile_to_bytes(module))
        if name == "large":
            block = blocks[:, place // 32]
            np.save(tmp_path / "expected", block["d"] * block["qs"][:, place % 32])
    np.save(tmp_path / "x", x)
    command = [sys.executable, "-c", _CONSTANTS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    taken, left = map(int, run.stdout.split())
    assert 8 << 20 <= taken <= 10 << 20
    assert left == 0


def test_an_array_without_room_is_an_error(cpu: Device) -> None:
    with pytest.raises(ExecutionError, match=r"no room .* of 2,251,799,813,"):
        cpu.put(np.broadcast_to(np.float16(0), (1 << 50,)))  # beyond all addresses


def test_repeated_numbers_are_stored_as_they_are(cpu: Device) -> None:
    """Also in memory that others had before."""
    for _ in range(8):
        dirty = [cpu.put(np.full((40, 1024), 7, np.float32)) for _ in range(4)]
        del dirty
        for number in (0.0, -0.0, 1.5):
            given = np.broadcast_to(np.float32(number), (40, 1024))
            found = cpu.put(given).numpy()
            np.testing.assert_array_equal(found.view(np.uint32), np.array(given).view(np.uint32))


# -- what threads of a device refer to last --------------------------------------------------------


class _Watched:
    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended

    def __del__(self) -> None:
        self._ended.append(self._name)


def test_a_device_is_closed_before_what_it_has_run() -> None:
    """Its threads may take Python's lock to release that, which what waits for them has."""
    device, user, ended = Device("llvm-cpu")._open("local-sync"), _Watched("user", []), []
    opened = OpenDevice.__new__(OpenDevice)
    opened.__dict__.update(device.__dict__, handle=_Watched("device", ended), _modules=[])
    opened.keep(user, _Watched("module", ended))
    del user
    assert not ended
    del opened
    gc.collect()
    assert ended == ["device", "module"]


def test_modules_are_kept_until_others_are(cpu: Device) -> None:
    ended: list[str] = []
    executable = subquant.compile(PRODUCT, device=cpu)
    function = executable.large
    opened = function.device
    [found] = [each for each in opened._modules if each[1][0] is executable._module]
    opened.keep(function, _Watched("used", ended))
    opened.keep(ended_soon := _Watched("user", []), _Watched("unused", ended))
    del executable, ended_soon
    assert found in opened._modules
    assert ended == []
    opened.keep(function, object())
    assert ended == ["unused"]
    del function
    gc.collect()
    subquant.compile(PRODUCT, device=cpu)
    assert found not in opened._modules
    assert ended == ["unused", "used"]
