"""Memory of arguments and results: updates in place, lent arrays, and variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from device_programs import ACCUMULATES, PROGRAM, UPDATES, aligned_copy, compile_for
from devices import ON_DEVICES
from subquant.errors import ExecutionError, UsageError
from subquant.runtime import Device
from subquant.runtime.open_device import OpenDevice

LARGE = 1 << 16


def written(arguments: list[np.ndarray], start: int) -> np.ndarray:
    expected = arguments[0].reshape(-1).copy()
    expected[start : start + 4] = arguments[1]
    return expected


@ON_DEVICES
def test_programs_do_not_change_arguments(
    device: Device, device_name: str, as_users_call: None
) -> None:
    """IREE updates arguments of the program in place, those that are folded into one too."""
    rng = np.random.default_rng(2)
    executable, other_arguments = compile_for(UPDATES, device), compile_for(ACCUMULATES, device)
    c, x = aligned_copy(rng.random(16384, np.float32)), rng.random(4, np.float32)
    a, b, s = (aligned_copy(rng.random((64, 64), np.float32)) for _ in range(3))
    cases = [
        (executable.update, [c, x, np.int32(5)], written([c, x], 5)),
        (executable.through, [c.reshape(128, 128), x], written([c, x], 7)),
        (other_arguments.accumulate, [a, b, s], a.astype(np.float64) @ b + s),
        (other_arguments.insert, [c.reshape(256, 64)[:128], a[:4]], None),
        (other_arguments.loop, [c, x, 3], None),
    ]
    for function, arguments, expected in cases:
        assert function.signature.inputs[-1].is_consumed == (function.name == "accumulate")
        before = [np.copy(argument) for argument in arguments]
        on_device = [
            argument if np.ndim(argument) == 0 else function.put(number, argument)
            for number, argument in enumerate(arguments)
        ]
        for argument_array in (arguments, on_device):
            results = [function(*argument_array) for _ in range(2)]
            np.testing.assert_array_equal(*results, strict=True)
            if expected is not None:
                np.testing.assert_allclose(results[0], expected, rtol=1e-5)
            for argument, old in zip(argument_array, before, strict=True):
                np.testing.assert_array_equal(np.asarray(argument), old, err_msg=function.name)


def test_iree_still_writes_to_arguments(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    update = compile_for(UPDATES, cpu).update
    assert update.signature.inputs[0].is_consumed
    update.parameters[0].may_lend = True
    monkeypatch.setattr(OpenDevice, "lend", OpenDevice.lend.__wrapped__)
    c = aligned_copy(np.zeros(16384, np.float32))
    update(c, np.ones(4, np.float32), np.int32(5))
    assert c.any(), (
        "IREE is fixed: remove consumed_values of iree_workarounds/consumed_arguments.py"
    )


@ON_DEVICES
def test_results_share_no_memory(device: Device, device_name: str, as_users_call: None) -> None:
    """IREE returns ``x + 0`` as the memory of ``x``, and equal results as one."""
    executable = compile_for(UPDATES, device)
    x = aligned_copy(np.arange(16384, dtype=np.int32))
    put = device.put(x)
    # An array that was accepted once is not checked again.
    results = [executable.identity(each, resident=True) for each in (x, put, put)]
    x[:] = 0
    for result in results:
        np.testing.assert_array_equal(result.numpy(), np.arange(16384))
    twice = compile_for(PROGRAM, device).twice
    pair = twice(np.ones(6, np.int8), resident=True)
    doubled = twice(pair[0], resident=True), twice(pair[0], resident=True)
    np.testing.assert_array_equal(doubled, np.full((2, 2, 6), 4))
    if not device.is_vulkan:
        for together in ([put, *results[1:]], [*pair, *doubled[0], *doubled[1]]):
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


def test_results_of_contractions_are_fresh(cpu: Device) -> None:
    """Calls compare the addresses of all other results with those of arguments."""
    executable = compile_for(FRESH, cpu)
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
    for one, other in itertools.combinations([np.asarray(each) for each in (x, first, second)], 2):
        assert not np.shares_memory(one, other)


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
def test_unsigned_results_have_their_numbers(bits: int, cpu: Device, as_users_call: None) -> None:
    """Integers of whole bytes are returned as they lie in memory, in every way of calling."""
    type_ = f"tensor<2x20000xui{bits}>"
    text = (
        f"func.func @main(%x: {type_}) -> {type_} {{\n  %y = stablehlo.not %x : {type_}\n"
        f"  return %y : {type_}\n}}"
    )
    main = compile_for(text, cpu).main
    dtype = np.dtype(f"u{max(bits // 8, 1)}")
    x = np.random.default_rng(0).integers(0, 1 << bits, (2, 20000), dtype)
    expected = ~x & dtype.type((1 << bits) - 1)
    for result in [*(main(x) for _ in range(3)), main(x, resident=True), main.bind(x)()]:
        array = result if isinstance(result, np.ndarray) else result.numpy()
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, expected)
    main(x)[...] = 0  # it is the caller's
    np.testing.assert_array_equal(main(x), expected)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch, as_users_call: None) -> Iterator[list[int]]:
    """The addresses of lent arrays."""
    addresses, lend = [], OpenDevice.lend

    def watch(device: OpenDevice, array: np.ndarray, element: str) -> object:
        lent_view = lend(device, array, element)
        if lent_view is not None:
            addresses.append(array.ctypes.data)
        return lent_view

    monkeypatch.setattr(OpenDevice, "lend", watch)
    return addresses


def test_large_aligned_arrays_are_lent(cpu: Device, lent: list[int]) -> None:
    same = compile_for(PROGRAM, cpu).same
    base = np.random.default_rng(3).random(LARGE, np.float32)
    argument_array = aligned_copy(base)
    np.testing.assert_array_equal(same(argument_array), base, strict=True)
    assert lent == [argument_array.ctypes.data]
    frozen = aligned_copy(base)
    frozen.flags.writeable = False  # as one of a file that is mapped
    np.testing.assert_array_equal(same(frozen), base, strict=True)
    assert lent.pop() == frozen.ctypes.data
    result = same(argument_array)
    assert result.flags.writeable
    assert not np.shares_memory(result, argument_array)
    lent.clear()
    same(result)
    assert lent == [result.ctypes.data], "results lie so that they can be lent"


@pytest.mark.parametrize("offset", [4, 16, 32, 48])
def test_unaligned_or_strided_arrays_are_copied(cpu: Device, lent: list[int], offset: int) -> None:
    """Compiled programs crash on an address that is no multiple of 64."""
    same = compile_for(PROGRAM, cpu).same
    argument_array = aligned_copy(np.random.default_rng(4).random(LARGE, np.float32), offset)
    np.testing.assert_array_equal(same(argument_array), argument_array)
    every_second = aligned_copy(np.random.default_rng(4).random(LARGE, np.float32))[::2]
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
    exchange = compile_for(VARIABLE, device).exchange
    first = aligned_copy(np.arange(16384, dtype=np.float32))
    results = [exchange(first, resident=True)]
    first[:] = -1
    results += [exchange(np.zeros_like(first), resident=True) for _ in range(2)]
    for result, expected in zip(results, (0, np.arange(16384), 0), strict=True):
        np.testing.assert_array_equal(result.numpy(), np.broadcast_to(expected, 16384))


STORES_ITS_RESULT = """
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
def test_results_do_not_alias_variables(device: Device, device_name: str) -> None:
    executable = compile_for(STORES_ITS_RESULT, device)
    ones = np.ones(16384, np.float32)
    results = [
        executable.keep(ones, resident=True),
        executable.keep(executable.keep.put(0, ones), resident=True, donate=[0]),
        executable.change(np.full(4, 2, np.float32), resident=True),
        executable.change(np.full(4, 3, np.float32), resident=True),
    ]
    assert [result.numpy()[8] for result in results] == [1, 1, 2, 3]


ADDS_TO_VARIABLE = """
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
def test_arguments_that_are_read_after_a_call(
    device: Device, device_name: str, as_users_call: None
) -> None:
    """A call returns before its variables have their values."""
    executable = compile_for(ADDS_TO_VARIABLE, device)
    signatures = [executable[name].signature for name in ("add", "sum")]
    assert [signature.keeps_state for signature in signatures] == [True, False]
    x, expected = aligned_copy(np.zeros(16384, np.int32)), 0
    for number in range(50):
        x[:] = number
        executable.add(x)
        x[:] = -1
        expected += number
    assert (executable.sum() == expected).all()


STREAM = """
tosa.variable @last = dense<0> : tensor<2x8xi32>
func.func @next(%x: tensor<1x8xi32>) -> tensor<8xi32> {
  %old = tosa.variable_read @last : tensor<2x8xi32>
  %all = tosa.concat %old, %x {axis = 0 : i32}
      : (tensor<2x8xi32>, tensor<1x8xi32>) -> tensor<3x8xi32>
  %new = tensor.extract_slice %all[1, 0] [2, 8] [1, 1] : tensor<3x8xi32> to tensor<2x8xi32>
  tosa.variable_write @last, %new : tensor<2x8xi32>
  %one = tensor.extract_slice %all[0, 0] [1, 8] [1, 1] : tensor<3x8xi32> to tensor<1x8xi32>
  %two = tensor.extract_slice %all[2, 0] [1, 8] [1, 1] : tensor<3x8xi32> to tensor<1x8xi32>
  %sum = tosa.add %one, %two : (tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8xi32>
  %y = tensor.collapse_shape %sum [[0, 1]] : tensor<1x8xi32> into tensor<8xi32>
  return %y : tensor<8xi32>
}
func.func @state() -> tensor<2x8xi32> {
  %last = tosa.variable_read @last : tensor<2x8xi32>
  return %last : tensor<2x8xi32>
}
"""


@ON_DEVICES
def test_calls_of_a_stream(device: Device, device_name: str, as_users_call: None) -> None:
    """Calls, and calls with fixed memory, that write and read a variable in turn."""
    executable = compile_for(STREAM, device)
    x, history = aligned_copy(np.zeros((1, 8), np.int32)), [0, 0]
    bound, state = executable.next.bind(x), executable.state.bind()
    for number in range(1, 40):
        if number % 3:
            x[:] = number
            result = executable.next(x)
        else:
            bound.set(0, np.full((1, 8), number, np.int32))
            result = bound()
        assert (np.asarray(result) == history[-2] + number).all()
        history.append(number)
        x[:] = -1
        for read in (executable.state, state):
            np.testing.assert_array_equal(np.asarray(read())[:, 0], history[-2:])


@ON_DEVICES
@pytest.mark.parametrize("is_seen", [False, True])
def test_donated_arrays(device: Device, device_name: str, is_seen: bool) -> None:
    update = compile_for(UPDATES, device).update
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
    executable = compile_for(UPDATES, cpu)
    update, x = executable.update, np.ones(4, np.float32)
    array = np.zeros(16384, np.float32)
    with pytest.raises(UsageError, match="argument 0 of 'update' is donated, and is not in the"):
        update(array, x, np.int32(0), donate=(0,))
    with pytest.raises(UsageError, match="has no argument '7'"):
        update(array, x, np.int32(0), donate=(7,))
    both = compile_for(ACCUMULATES, cpu).accumulate
    square = cpu.put(np.ones((64, 64), np.float32))
    with pytest.raises(UsageError, match="argument 2 of 'accumulate' is donated, and given twice"):
        both(square, square, square, donate=(2,))
    assert square.numpy().all()
