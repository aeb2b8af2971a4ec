"""Counted loops and loop-carried tensors.

See `subquant.transforms.iree_workarounds.counted_loops`, `carried_tensors` and
`buffer_iter_args`. Operands are small integers; expected numbers are NumPy's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import pytest

from bare_iree import CPU_FLAGS, FIXED, compile_bare
from devices import ON_DEVICES, compile_for, main_of, run
from subquant.errors import ExecutionError
from subquant.runtime import Device, DeviceArray, Executable, Function

COUNTED = """
func.func @main(%x: tensor<3xi32>, %n: tensor<i32>) -> (tensor<3xi32>, tensor<COUNT>) {
  %first = stablehlo.constant dense<FIRST> : tensor<COUNT>
  %step = stablehlo.constant dense<STEP> : tensor<COUNT>
  %end = stablehlo.constant dense<END> : tensor<COUNT>
  %r:2 = stablehlo.while(%k = %first, %h = %x) : tensor<COUNT>, tensor<3xi32>
  cond {
    %p = stablehlo.compare LT, %k, %end : (tensor<COUNT>, tensor<COUNT>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %i = stablehlo.convert %k : (tensor<COUNT>) -> tensor<i32>
    %b = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %y = stablehlo.add %h, %b : tensor<3xi32>
    %m = stablehlo.add %k, %step : tensor<COUNT>
    stablehlo.return %m, %y : tensor<COUNT>, tensor<3xi32>
  }
  return %r#1, %r#0 : tensor<3xi32>, tensor<COUNT>
}
"""


@ON_DEVICES
@pytest.mark.parametrize(
    ("first", "step", "end", "element"),
    [
        (0, 1, 5, "i32"),
        (-7, 3, 5, "i32"),
        (-8, 4, 4, "i8"),  # ends with the end
        (120, 3, 126, "i8"),
        (4, 1, 4, "i64"),  # not once
        (9, 2, 4, "i32"),
    ],
)
def test_counts(
    device: Device, device_name: str, first: int, step: int, end: int, element: str
) -> None:
    text = COUNTED
    for name, value in {"FIRST": first, "STEP": step, "END": end, "COUNT": element}.items():
        text = text.replace(name, str(value))
    x, k = np.arange(3, dtype=np.int32), first
    actual = run(text, device, x, np.int32(end))
    while k < end:
        x, k = x + k, k + step
    np.testing.assert_array_equal(actual[0], x)
    assert actual[1] == k


ENDS_WITH_AN_ARGUMENT = """
func.func @main(%x: tensor<3xi32>, %n: tensor<i32>) -> tensor<3xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%k = %zero, %h = %x) : tensor<i32>, tensor<3xi32>
  cond {
    %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %s:2 = stablehlo.while(%j = %zero, %g = %h) : tensor<i32>, tensor<3xi32>
    cond {
      %p = stablehlo.compare LT, %j, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %y = stablehlo.add %g, %x : tensor<3xi32>
      %m = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %m, %y : tensor<i32>, tensor<3xi32>
    }
    %m = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %m, %s#1 : tensor<i32>, tensor<3xi32>
  }
  return %r#1 : tensor<3xi32>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("count", [-3, 0, 5])
def test_a_count_to_an_argument_and_one_to_the_count(
    device: Device, device_name: str, count: int
) -> None:
    x = np.array([1, -2, 3], np.int32)
    times = 1 + sum(range(max(count, 0)))
    np.testing.assert_array_equal(run(ENDS_WITH_AN_ARGUMENT, device, x, np.int32(count)), x * times)


TWICE = """
func.func @main(%x: tensor<2x2xi32>) -> (tensor<2x2xi32>, tensor<2x2xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %five = stablehlo.constant dense<5> : tensor<i32>
  %r:4 = stablehlo.while(%k = %zero, %a = %x, %b = %x, %c = %x)
      : tensor<i32>, tensor<2x2xi32>, tensor<2x2xi32>, tensor<2x2xi32>
  cond {
    %p = stablehlo.compare LT, %k, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    %y = stablehlo.dot_general %c, %b, contracting_dims = [1] x [0]
        : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
    stablehlo.return %m, %y, %c, %a
        : tensor<i32>, tensor<2x2xi32>, tensor<2x2xi32>, tensor<2x2xi32>
  }
  return %r#1, %r#2 : tensor<2x2xi32>, tensor<2x2xi32>
}
"""


def small() -> np.ndarray:
    return np.random.default_rng(1).integers(-3, 4, (2, 2)).astype(np.int32)


@ON_DEVICES
def test_a_tensor_that_is_carried_several_times(device: Device, device_name: str) -> None:
    a = b = c = small()
    for _ in range(5):
        a, b, c = c @ b, c, a
    for expected, actual in zip((a, b), run(TWICE, device, small()), strict=True):
        np.testing.assert_array_equal(actual, expected)


@ON_DEVICES
def test_zeros_that_are_carried_several_times(device: Device, device_name: str) -> None:
    """Each copy is selected instead of other numbers: IREE folds a choice between zeros."""
    text = TWICE.replace("= %x", "= %zeros").replace("stablehlo.return %m, %y", "ADDITION, %y")
    zeros = "%zeros = stablehlo.constant dense<0> : tensor<2x2xi32>\n  %r:4"
    addition = "%z = stablehlo.add %y, %x : tensor<2x2xi32>\n    stablehlo.return %m, %z"
    text = text.replace("%r:4", zeros).replace("ADDITION, %y", addition)
    a = b = c = np.zeros((2, 2), np.int32)
    for _ in range(5):
        a, b, c = c @ b + small(), c, a
    for expected, actual in zip((a, b), run(text, device, small()), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_iree_still_loses_a_buffer_that_is_carried_twice(cpu: Device) -> None:
    main = Executable(compile_bare(TWICE, *CPU_FLAGS[:3]), cpu).main
    with contextlib.suppress(ExecutionError):
        main(small())
        pytest.fail(FIXED + "iree_workarounds/carried_tensors.py, and its use")


CONDITION_OF_A_TENSOR = """
func.func @main(%x: tensor<3x8xf32>) -> (tensor<i64>, tensor<3x8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %five = stablehlo.constant dense<5> : tensor<i64>
  %half = stablehlo.constant dense<1.5> : tensor<3x8xf32>
  %limit = stablehlo.constant dense<100.0> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i64>, tensor<3x8xf32>
  cond {
    %a = stablehlo.compare LT, %i, %five : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %s = stablehlo.reduce(%v init: %none) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<3x8xf32>, tensor<f32>) -> tensor<f32>
    %b = stablehlo.compare LT, %s, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %p = stablehlo.and %a, %b : tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i64>
    %w = stablehlo.multiply %v, %half : tensor<3x8xf32>
    stablehlo.return %n, %w : tensor<i64>, tensor<3x8xf32>
  }
  return %r#0, %r#1 : tensor<i64>, tensor<3x8xf32>
}
"""


def test_results_of_an_iteration_in_one_buffer(cpu: Device) -> None:
    """Both branches pass the buffer twice: IREE merged the selections that keep the uses apart."""
    main = compile_for(CONDITION_OF_A_TENSOR, cpu).main
    for start, count in ((1.0, 4), (-1.0, 5), (30.0, 0)):
        number, result = main(np.full((3, 8), start, np.float32))
        assert number == count
        np.testing.assert_array_equal(result, np.full((3, 8), start * 1.5**count, np.float32))


CONSTANT_BESIDE_AN_ARGUMENT = """
func.func @main(%x: tensor<i32>, %y: tensor<4xi32>, %z: tensor<4xi32>)
    -> (tensor<i32>, tensor<4xi32>, tensor<4xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %limit = stablehlo.constant dense<20> : tensor<i32>
  %r:4 = stablehlo.while(%i = %zero, %a = %x, %b = %y, %c = %z)
      : tensor<i32>, tensor<i32>, tensor<4xi32>, tensor<4xi32>
  cond {
    %p = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %sum = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<4xi32>, tensor<i32>) -> tensor<i32>
    %q = stablehlo.compare LT, %sum, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %both = stablehlo.and %p, %q : tensor<i1>
    stablehlo.return %both : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %rest = stablehlo.remainder %i, %two : tensor<i32>
    %even = stablehlo.compare EQ, %rest, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %d = "stablehlo.if"(%even) ({
      %none = stablehlo.subtract %a, %a : tensor<i32>
      "stablehlo.return"(%none) : (tensor<i32>) -> ()
    }, {
      "stablehlo.return"(%a) : (tensor<i32>) -> ()
    }) : (tensor<i1>) -> tensor<i32>
    %e = stablehlo.add %c, %b : tensor<4xi32>
    stablehlo.return %n, %d, %e, %b : tensor<i32>, tensor<i32>, tensor<4xi32>, tensor<4xi32>
  }
  return %r#0, %r#2, %r#3 : tensor<i32>, tensor<4xi32>, tensor<4xi32>
}
"""


def test_a_constant_beside_an_argument_of_a_block(cpu: Device) -> None:
    """The count was an element of another result: one register had two offsets."""
    main = compile_for(CONSTANT_BESIDE_AN_ARGUMENT, cpu).main
    y, z = np.array([1, -5, 4, -2], np.int32), np.array([-3, 0, 2, -3], np.int32)
    count, b, c = main(np.int32(1), y, z)
    assert count == 2
    np.testing.assert_array_equal(b, z + 2 * y)
    np.testing.assert_array_equal(c, z + y)


ONCE = """
func.func @main(%x: tensor<16x64xi8>) -> (tensor<16x48xi32>, tensor<16x64xi8>) {
  %w = stablehlo.constant dense<WEIGHT> : tensor<64x48xi8>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %state = stablehlo.constant dense<1> : tensor<16x64xi8>
  %product = stablehlo.constant dense<0> : tensor<16x48xi32>
  %r:3 = stablehlo.while(%k = %zero, %a = %state, %b = %product)
      : tensor<i32>, tensor<16x64xi8>, tensor<16x48xi32>
  cond {
    %p = stablehlo.compare LT, %k, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    %y = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
        : (tensor<16x64xi8>, tensor<64x48xi8>) -> tensor<16x48xi32>
    stablehlo.return %m, %x, %y : tensor<i32>, tensor<16x64xi8>, tensor<16x48xi32>
  }
  return %r#2, %r#1 : tensor<16x48xi32>, tensor<16x64xi8>
}
"""


def test_a_kernel_that_one_iteration_calls_with_constants(cpu: Device) -> None:
    """The next state is an argument of the function."""
    weight = np.arange(64 * 48).reshape(64, 48) % 251 - 125
    x = np.arange(16 * 64, dtype=np.int8).reshape(16, 64)
    product, state = run(ONCE.replace("WEIGHT", str(weight.tolist())), cpu, x)
    np.testing.assert_array_equal(product, np.ones((16, 64), np.int32) @ weight)
    np.testing.assert_array_equal(state, x)


def test_constants_that_an_iteration_yields(cpu: Device) -> None:
    text = TWICE.replace("%a = %x, %b = %x, %c = %x", "%a = %x, %b = %zeros, %c = %zeros")
    text = text.replace("return %m, %y, %c, %a", "return %m, %nine, %x, %b")
    constants = "".join(
        f"%{name} = stablehlo.constant dense<{number}> : tensor<2x2xi32>\n  "
        for name, number in (("zeros", 0), ("nine", "[[9, 8], [7, 6]]"))
    )
    text = text.replace("%r:4", f"{constants}%r:4").replace("-> (", "-> (tensor<2x2xi32>, ", 1)
    text = text.replace("return %r#1, %r#2 : ", "return %r#1, %r#2, %r#3 : tensor<2x2xi32>, ")
    text = text.replace("@main(", "@main(%n: tensor<i32>, ").replace("%k, %five", "%k, %n")
    nine, *arguments = run(text, cpu, np.int32(5), small())
    np.testing.assert_array_equal(nine, [[9, 8], [7, 6]])
    for each in arguments:
        np.testing.assert_array_equal(each, small())


EQUAL = """
func.func @main(%x: tensor<2x2xi32>) -> (tensor<2x2xi32>, tensor<2x2xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %five = stablehlo.constant dense<5> : tensor<i32>
  %double = stablehlo.add %x, %x : tensor<2x2xi32>
  %square = stablehlo.multiply %x, %x : tensor<2x2xi32>
  %r:3 = stablehlo.while(%k = %zero, %a = %double, %b = %square)
      : tensor<i32>, tensor<2x2xi32>, tensor<2x2xi32>
  cond {
    %p = stablehlo.compare LT, %k, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    %y = stablehlo.maximum %b, %b : tensor<2x2xi32>
    stablehlo.return %m, %y, %y : tensor<i32>, tensor<2x2xi32>, tensor<2x2xi32>
  }
  return %r#1, %r#2 : tensor<2x2xi32>, tensor<2x2xi32>
}
"""


@ON_DEVICES
def test_a_tensor_that_is_yielded_twice(device: Device, device_name: str) -> None:
    for actual in run(EQUAL, device, small()):
        np.testing.assert_array_equal(actual, small() ** 2)


EQUAL_NUMBERS = """
func.func @main(%x: tensor<i32>, %n: tensor<i32>, %flag: tensor<i1>)
    -> (tensor<i32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%k = %zero, %a = %x, %b = %n) : tensor<i32>, tensor<i32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %q = stablehlo.and %p, %flag : tensor<i1>
    stablehlo.return %q : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    %y = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %m, %y, %y : tensor<i32>, tensor<i32>, tensor<i32>
  }
  return %r#1, %r#2 : tensor<i32>, tensor<i32>
}
"""


def test_a_number_that_is_yielded_twice(cpu: Device) -> None:
    main = compile_for(EQUAL_NUMBERS, cpu).main
    for count, expected in ((3, [40, 40]), (0, [7, 0])):
        actual = main(np.int32(7), np.int32(count), np.True_)
        np.testing.assert_array_equal(actual, expected)


IN_PLACE = """
func.func @main(%rows: tensor<?x4xi32>, %x: tensor<4096xi32>, %y: tensor<4096xi32>)
    -> (tensor<4096xi32>, tensor<4096xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = tensor.dim %rows, %c0 : tensor<?x4xi32>
  %half = arith.shrui %n, %c1 : index
  %r:2 = LOOP(%c0, %half, %x, %y)
  %s:2 = LOOP(%half, %n, %r#0, %r#1)
  return %s#0, %s#1 : tensor<4096xi32>, tensor<4096xi32>
}
"""
LOOP = """scf.for %i = FIRST to END step %c1 iter_args(%a = X, %b = Y)
      -> (tensor<4096xi32>, tensor<4096xi32>) {
    %k = arith.index_cast %i : index to i32
    %p = tensor.from_elements %k : tensor<i32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %place = stablehlo.multiply %p, %four : tensor<i32>
    %before = stablehlo.subtract %place, %four : tensor<i32>
    %row = tensor.extract_slice %rows[%i, 0] [1, 4] [1, 1] : tensor<?x4xi32> to tensor<4xi32>
    %c = stablehlo.dynamic_update_slice %a, %row, %place
        : (tensor<4096xi32>, tensor<4xi32>, tensor<i32>) -> tensor<4096xi32>
    %old = stablehlo.dynamic_slice %c, %before, sizes = [4]
        : (tensor<4096xi32>, tensor<i32>) -> tensor<4xi32>
    %new = stablehlo.add %row, %old : tensor<4xi32>
    %d = stablehlo.dynamic_update_slice %b, %new, %place
        : (tensor<4096xi32>, tensor<4xi32>, tensor<i32>) -> tensor<4096xi32>
    scf.yield %c, %d : tensor<4096xi32>, tensor<4096xi32>
  } HOW"""


def written_in_place(how: str, device: Device) -> Function:
    """Two consecutive loops: one tensor gets rows, the other sums of two neighboring rows."""
    text = IN_PLACE
    for bounds in ("%c0, %half, %x, %y", "%half, %n, %r#0, %r#1"):
        loop = LOOP.replace("HOW", how)
        for name, value in zip(("FIRST", "END", "X", "Y"), bounds.split(", "), strict=True):
            loop = loop.replace(name, value)
        text = text.replace(f"LOOP({bounds})", loop)
    return compile_for(text, device).main


def addresses(arrays: Sequence[DeviceArray]) -> list[int]:
    return [array._device.host_bytes(array.view).ctypes.data for array in arrays]


@ON_DEVICES
def test_tensors_that_a_loop_updates_in_place(device: Device, device_name: str) -> None:
    """Each iteration reads the results of the previous one; no loop runs, one, or both."""
    main = written_in_place("{subquant.in_place}", device)
    for count in (0, 1, 9) if not device.is_vulkan else (1, 9):  # Vulkan takes no empty tensors
        rows = np.random.default_rng(count).integers(-9, 9, (count, 4)).astype(np.int32)
        start = np.zeros(4096, np.int32)
        expected, neighbor_sums = start.copy(), start.copy()
        expected[: 4 * count] = rows.reshape(-1)
        neighbor_sums[: 4 * count] = (rows + rows[np.maximum(np.arange(count) - 1, 0)]).reshape(-1)
        arrays = [main.put(index, start) for index in (1, 2)]
        for actual, numbers in zip(main(rows, *arrays), (expected, neighbor_sums), strict=True):
            np.testing.assert_array_equal(actual, numbers)
        for array in arrays:  # unchanged, as they were not donated
            np.testing.assert_array_equal(array.numpy(), start)
        before = [] if device.is_vulkan else addresses(arrays)
        results = main(rows, *arrays, resident=True, donate=(1, 2))
        for actual, numbers in zip(results, (expected, neighbor_sums), strict=True):
            np.testing.assert_array_equal(actual.numpy(), numbers)
        if not device.is_vulkan:
            assert addresses(results) == before, "in place"


def test_iree_still_copies_loop_carried_tensors(cpu: Device) -> None:
    main = written_in_place("", cpu)
    rows, start = np.ones((9, 4), np.int32), np.zeros(4096, np.int32)
    arrays = [main.put(index, start) for index in (1, 2)]
    before = addresses(arrays)
    if addresses(main(rows, *arrays, resident=True, donate=(1, 2))) == before:
        pytest.fail(FIXED + "iree_workarounds/buffer_iter_args.py, and its use")


SWITCH = """
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @main(%k: index, %x: tensor<?x!q>, %y: tensor<?x!q>) -> (tensor<?x!q>, index) {
  %seven = arith.constant 7 : index
  %r:2 = scf.index_switch %k -> tensor<?x!q>, index
  case 5 {
    %0 = stablehlo.maximum %x, %y : tensor<?x!q>
    scf.yield %0, %k : tensor<?x!q>, index
  }
  case -1 {
    %0 = stablehlo.minimum %x, %y : tensor<?x!q>
    scf.yield %0, %seven : tensor<?x!q>, index
  }
  case 2 {
    %0 = scf.index_switch %seven -> tensor<?x!q>
    case 1 { scf.yield %x : tensor<?x!q> }
    case 7 { scf.yield %y : tensor<?x!q> }
    default { scf.yield %x : tensor<?x!q> }
    scf.yield %0, %k : tensor<?x!q>, index
  }
  default {
    scf.yield %x, %seven : tensor<?x!q>, index
  }
  return %r#0, %r#1 : tensor<?x!q>, index
}
"""


@ON_DEVICES
def test_a_switch_of_several_cases(device: Device, device_name: str) -> None:
    x, y = np.array([1, -2, 3, 9], np.int8), np.array([3, -4, 3, 0], np.int8)
    function = main_of(SWITCH, device)
    cases = {5: (np.maximum(x, y), 5), -1: (np.minimum(x, y), 7), 2: (y, 2), 0: (x, 7), 4: (x, 7)}
    for selector, (expected, number) in cases.items():
        chosen, index = function(selector, x, y)
        np.testing.assert_array_equal(chosen, expected)
        assert index == number
