"""Executables from Python: signatures, storage and reals, every element type, lifetimes, errors."""

from __future__ import annotations

import gc
import traceback
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import subquant
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import ExecutionError, InputError, SignatureError, UsageError
from subquant.numerics.casts import dequantize, dequantize_blocks, quantize
from subquant.numerics.parameters import ExpressedType
from subquant.runtime import Device, Executable, Function, read_signatures
from subquant.runtime.error_messages import call_message, load_message

PROGRAM = """
!u = !quant.uniform<u4<1:14>:f32:{0:2}, {{0.5:3}, {0.25:7}}>
func.func @main(%q: tensor<4x3x!u>) -> (tensor<4x3xf32>, tensor<4x3x!u>) {
  %x = quant.dcast %q : tensor<4x3x!u> to tensor<4x3xf32>
  return %x, %q : tensor<4x3xf32>, tensor<4x3x!u>
}
func.func @types(%a: tensor<2xf16>, %b: tensor<2xbf16>, %c: tensor<2xf64>, %d: tensor<2xi64>,
                 %e: tensor<2xi1>, %f: tensor<2xi4>, %g: f32, %h: i32, %i: bf16)
    -> (tensor<2xf16>, tensor<2xbf16>, tensor<2xf64>, tensor<2xi64>, tensor<2xi1>, tensor<2xi4>,
        f32, i32, bf16) {
  return %a, %b, %c, %d, %e, %f, %g, %h, %i : tensor<2xf16>, tensor<2xbf16>, tensor<2xf64>,
      tensor<2xi64>, tensor<2xi1>, tensor<2xi4>, f32, i32, bf16
}
func.func @nothing() {
  return
}
func.func @large(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %y = arith.addf %x, %x : tensor<256x256xf32>
  return %y : tensor<256x256xf32>
}
func.func @flow(%q: tensor<4x3x!u>, %n: index, %c: i1) -> tensor<4x3x!u> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %q) -> tensor<4x3x!u> {
    %x = quant.dcast %a : tensor<4x3x!u> to tensor<4x3xf32>
    %h = arith.addf %x, %x : tensor<4x3xf32>
    %r = quant.qcast %h : tensor<4x3xf32> to tensor<4x3x!u>
    scf.yield %r : tensor<4x3x!u>
  }
  %1 = scf.if %c -> tensor<4x3x!u> {
    scf.yield %0 : tensor<4x3x!u>
  } else {
    scf.yield %q : tensor<4x3x!u>
  }
  %2 = func.call @same(%1) : (tensor<4x3x!u>) -> tensor<4x3x!u>
  return %2 : tensor<4x3x!u>
}
func.func private @same(%q: tensor<4x3x!u>) -> tensor<4x3x!u> {
  return %q : tensor<4x3x!u>
}
"""


@pytest.fixture(scope="module")
def executable(cpu: Device) -> Executable:
    return subquant.compile(PROGRAM, device=cpu)


@pytest.fixture
def stored() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 15, (4, 3)).astype(np.uint8)


def test_storage_in_and_out(executable: Executable, stored: np.ndarray) -> None:
    parameters = executable.main.signature.inputs[0].parameters
    real, same = executable.main(stored)
    np.testing.assert_array_equal(real, dequantize(stored, parameters), strict=True)
    np.testing.assert_array_equal(same, stored, strict=True)


def test_reals_in_and_out(executable: Executable) -> None:
    parameters = executable.main.signature.inputs[0].parameters
    reals = np.linspace(-2, 6, 12, dtype=np.float32).reshape(4, 3)
    real, same = executable.main(reals, quantized_io=True)
    expected = dequantize(quantize(reals, parameters), parameters)
    np.testing.assert_array_equal(real, expected)
    np.testing.assert_array_equal(same, expected)


def test_quantized_values_through_control_flow(executable: Executable, stored: np.ndarray) -> None:
    parameters = executable.main.signature.inputs[0].parameters
    expected = stored
    for _ in range(3):
        real = dequantize(expected, parameters)
        expected = quantize(real + real, parameters)
    np.testing.assert_array_equal(executable.flow(stored, 3, 1), expected, strict=True)
    np.testing.assert_array_equal(executable.flow(stored, 3, 0), stored, strict=True)


def test_every_element_type(executable: Executable) -> None:
    arguments = [
        np.array([1.5, -2], np.float16),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([0.1, 1e300]),
        np.array([1 << 40, -1]),
        np.array([True, False]),
        np.array([-8, 7], np.int8),
        np.float32(0.1),
        -5,
        1.5,
    ]
    results = executable.types(*arguments)
    for argument, result in zip(arguments, results, strict=True):
        np.testing.assert_array_equal(result, np.asarray(argument))
    assert [r.dtype.name for r in results[:6]] == [
        "float16", "bfloat16", "float64", "int64", "bool", "int8"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "expected"), [(-8, -8), (7, 7), (15, -1), (True, None), (16, None), (-9, None)]
)
def test_numbers_of_4_bits(cpu: Device, number: int, expected: int | None) -> None:
    """In a call as in an array: signed, or unsigned with the same bits; a boolean is refused."""
    main = subquant.compile("func.func @main(%x: i4) -> i4 {\n  return %x : i4\n}", device=cpu).main
    if expected is not None:
        assert main(number) == main(np.array(number)) == expected
    else:
        with pytest.raises(SignatureError):
            main(number)


def test_no_arguments_and_no_results(executable: Executable) -> None:
    assert executable.nothing() is None


def test_results_outlive_everything(cpu: Device) -> None:
    """IREE's own arrays can be views of memory that is freed with the temporary result."""
    x = np.random.default_rng(1).random((256, 256), np.float32)
    results, data = [], compile_to_bytes(PROGRAM)
    for _ in range(20):
        results.append(Executable(data, cpu).large(x))
        gc.collect()
    for result in results:
        np.testing.assert_array_equal(result, x + x)


SQUARE = "tensor<256x256xf32>"


@pytest.mark.parametrize("name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_a_device_is_closed_with_what_uses_it(name: str, request: pytest.FixtureRequest) -> None:
    """Also by a call of a temporary function, whose buffers must be freed before."""
    device: Device = Device(request.getfixturevalue(name).name)
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    twice = f"func.func @twice(%x: {SQUARE}) -> {SQUARE} {{\n  %y = arith.addf %x, %x : {SQUARE}\n"
    data = compile_to_bytes(f"{twice}  return %y : {SQUARE}\n}}", CompileOptions(target))
    opened = weakref.ref(device.open())
    assert (opened() is None) == device.is_vulkan
    x = np.random.default_rng(1).random((256, 256), np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(Executable(data, device)["twice"](x), x + x)
    first, second = Executable(data, device), Executable(data, device)
    assert first["twice"].device is second["twice"].device
    opened = weakref.ref(device.open())
    function = first["twice"]
    del first, second
    np.testing.assert_array_equal(function(x), x + x)
    del function
    assert (opened() is None) == device.is_vulkan


def test_arrays_that_are_not_contiguous(executable: Executable) -> None:
    x = np.random.default_rng(2).random((256, 512), np.float32)[:, ::2]
    np.testing.assert_array_equal(executable.large(x), x + x)
    np.testing.assert_array_equal(executable.large(x.T), x.T + x.T)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.zeros((4, 3), np.uint8), "must have storage values in 1:14, got 0:0"),
        (np.full((4, 3), 15), "must have storage values in 1:14, got 15:15"),
        (np.zeros((4, 3), np.float32), "must be storage values (u4<1:14>), got float32"),
        (np.ones((4, 4), np.uint8), "must have the shape 4x3, got 4x4"),
        (np.ones(4, np.uint8), "must have the shape 4x3, got 4"),
        ([[1, 2], [3]], "is no rectangular array"),
    ],
)
def test_wrong_arguments(executable: Executable, argument: object, message: str) -> None:
    with pytest.raises(SignatureError) as caught:
        executable.main(argument)
    assert f"argument 0 of 'main' {message}" in str(caught.value)


def test_reals_are_asked_for_reals(executable: Executable, stored: np.ndarray) -> None:
    with pytest.raises(SignatureError, match="must be reals, to be quantized, got uint8"):
        executable.main(stored, quantized_io=True)


def test_names(executable: Executable) -> None:
    assert sorted(executable.functions) == ["flow", "large", "main", "nothing", "types"]
    with pytest.raises(UsageError, match="no function is named 'same'"):
        executable["same"]
    with pytest.raises(AttributeError):
        executable.same(1)
    with pytest.raises(UsageError, match=r"by position, got the name 'x'; expected: nothing\(\)"):
        executable.nothing(x=1)
    assert repr(executable).startswith("<executable for llvm-cpu: <function ")


def test_a_saved_executable(executable: Executable, tmp_path: Path) -> None:
    path = tmp_path / "x.vmfb"
    executable.save(path)
    assert read_signatures(path)["main"] == executable.main.signature
    assert subquant.load(path).nothing() is None
    with pytest.raises(InputError, match=r"cannot write .*missing"):
        executable.save(tmp_path / "missing" / "x.vmfb")
    # The data of a large executable is a copy in large pages.
    large = subquant.load(path)
    large._data = np.frombuffer(path.read_bytes(), np.uint8).data
    large.save(tmp_path / "y.vmfb")
    assert (tmp_path / "y.vmfb").read_bytes() == path.read_bytes() == compile_to_bytes(PROGRAM)


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_truncated_executables(size: int, cpu: Device) -> None:
    data = compile_to_bytes(PROGRAM)
    with pytest.raises(InputError, match="is no IREE executable"):
        Executable(data[:size], cpu)


DYNAMIC = """
!q = !quant.uniform<i8:f32:{0:4}, {1.0, 2.0}>
func.func @exact(%x: tensor<?xf32>) -> tensor<?x!q> {
  %q = quant.qcast %x : tensor<?xf32> to tensor<?x!q>
  return %q : tensor<?x!q>
}
func.func @ragged(%x: tensor<?xf32>) -> tensor<?x!q> {
  %q = "subquant.qcast"(%x) : (tensor<?xf32>) -> tensor<?x!q>
  return %q : tensor<?x!q>
}
func.func @operands(%q: tensor<?x?xi4>, %s: tensor<?x?xf16>, %z: tensor<?x?xi4>)
    -> tensor<?x?xf32> {
  %x = "subquant.dequantize"(%q, %s, %z)
    {block_sizes = array<i64: 1, 4>,
      operandSegmentSizes = array<i32: 1, 1, 1, 0>,
      quantized_type = !quant.any<i4:f32>}
    : (tensor<?x?xi4>, tensor<?x?xf16>, tensor<?x?xi4>) -> tensor<?x?xf32>
  return %x : tensor<?x?xf32>
}
func.func @super(%q: tensor<2x64xi4>, %s: tensor<2x8xi8>, %d: tensor<2x2xf16>)
    -> tensor<2x64xf32> {
  %scales = "subquant.dequantize"(%s, %d)
    {block_sizes = array<i64: 1, 4>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>,
      quantized_type = !quant.any<i8<1:63>:f32>}
    : (tensor<2x8xi8>, tensor<2x2xf16>) -> tensor<2x8xf32>
  %x = "subquant.dequantize"(%q, %scales)
    {block_sizes = array<i64: 1, 8>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>,
      quantized_type = !quant.any<i4:f32>}
    : (tensor<2x64xi4>, tensor<2x8xf32>) -> tensor<2x64xf32>
  return %x : tensor<2x64xf32>
}
"""


@pytest.fixture(scope="module", params=["cpu", "vulkan"])
def dynamic(request: pytest.FixtureRequest) -> Executable:
    device = request.getfixturevalue(request.param)
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    return subquant.compile(DYNAMIC, target=target, device=device)


def test_dynamic_extents_that_fit(dynamic: Executable) -> None:
    x = np.arange(8, dtype=np.float32)
    expected = [0, 1, 2, 3, 2, 2, 3, 4]
    assert dynamic.exact(x).tolist() == expected
    for size in (5, 6, 7, 8):
        assert dynamic.ragged(x[:size]).tolist() == expected[:size]


@pytest.mark.parametrize("size", [0, 1, 7, 9, 12])
def test_dynamic_extents_that_do_not_fit(dynamic: Executable, size: int) -> None:
    with pytest.raises(ExecutionError) as caught:
        dynamic.exact(np.zeros(size, np.float32))
    assert (
        "function 'exact' stopped: dimension 0 of argument 0 must be 8 at run time, for the scales "
        f"it meets, got {size}" in str(caught.value)
    )
    if size not in (7,):
        with pytest.raises(ExecutionError, match="dimension 0 must be 5 to 8 at run time"):
            dynamic.ragged(np.zeros(size, np.float32))


def test_an_error_keeps_no_buffer(dynamic: Executable, as_users_call: None) -> None:
    """A buffer that the garbage collector frees after its device ends the process."""
    with pytest.raises(ExecutionError) as caught:
        dynamic.exact(np.zeros(9, np.float32))
    inner = [
        frame
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if frame.f_code.co_name not in ("test_an_error_keeps_no_buffer", "__call__", "invoke")
    ]
    assert [frame.f_code.co_name for frame in inner] == ["_run"]
    assert not inner[0].f_locals


def test_scales_and_zero_points_as_operands(dynamic: Executable) -> None:
    rng = np.random.default_rng(4)
    q = rng.integers(-8, 8, (3, 10)).astype(np.int8)
    s = rng.random((3, 3)).astype(np.float16)
    z = rng.integers(-8, 8, (3, 3)).astype(np.int8)
    expected = dequantize_blocks(q, s, z, (1, 4), ExpressedType.F32)
    np.testing.assert_array_equal(dynamic.operands(q, s, z), expected, strict=True)
    with pytest.raises(ExecutionError, match="scales must have one entry for each block of 4"):
        dynamic.operands(q, s[:, :2], z)
    with pytest.raises(ExecutionError, match="zero points must have one entry for each block"):
        dynamic.operands(q, s, z[:2])


def test_super_blocks(dynamic: Executable) -> None:
    rng = np.random.default_rng(5)
    q = rng.integers(-8, 8, (2, 64)).astype(np.int8)
    s = rng.integers(1, 64, (2, 8)).astype(np.int8)
    d = rng.random((2, 2)).astype(np.float16)
    expected = np.zeros((2, 64), np.float32)
    for i, j in np.ndindex(2, 64):
        scale = np.float32(s[i, j // 8]) * np.float32(d[i, j // 32])
        expected[i, j] = np.float32(q[i, j]) * scale
    np.testing.assert_array_equal(dynamic.super(q, s, d), expected, strict=True)


DIRECT = """
!q = !quant.uniform<u8:f32, 0.5:3>
func.func @main(%x: tensor<3x4xf32>, %q: tensor<4x!q>, %s: tensor<i32>, %h: tensor<2xf16>)
    -> (tensor<3x4xf32>, tensor<4x!q>, tensor<i32>, tensor<2xf16>, tensor<3x4xf32>) {
  %y = stablehlo.add %x, %x : tensor<3x4xf32>
  %r = stablehlo.reverse %q, dims = [0] : tensor<4x!q>
  %t = stablehlo.multiply %s, %s : tensor<i32>
  %g = stablehlo.negate %h : tensor<2xf16>
  return %y, %r, %t, %g, %x : tensor<3x4xf32>, tensor<4x!q>, tensor<i32>, tensor<2xf16>,
    tensor<3x4xf32>
}"""


def test_a_device_is_closed_after_calls_with_resident_arrays() -> None:
    """At once, without the garbage collector."""
    main = Executable(compile_to_bytes(DIRECT), Device("local-sync")).main
    arrays = (np.zeros((3, 4), np.float32), np.zeros(4, np.uint8), np.int32(2), np.zeros(2, "f2"))
    resident = [main.put(number, array) for number, array in enumerate(arrays)]
    assert main(*resident, resident=True)[2].numpy() == 4
    freed = weakref.ref(main)
    del main
    assert freed() is None


def test_small_arrays_are_handed_over_as_they_are(
    cpu: Device, as_users_call: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short path takes arrays of any layout that have the right types, and no others."""
    main = Executable(compile_to_bytes(DIRECT), cpu).main
    x = np.arange(12, dtype=np.float32).reshape(4, 3).T
    q, s, h = np.array([255, 7, 0, 128], np.uint8), np.array(-9, np.int32), np.ones(2, np.float16)
    with monkeypatch.context() as patch:
        patch.delattr(Function, "invoke")
        fast = main(x, q, s, h)
    same = main(x.tolist(), [255, 7, 0, 128], -9, [1.0, 1.0])
    for results in (fast, same):
        for each, expected in zip(results, (x + x, q[::-1], s * s, -h, x), strict=True):
            assert each.dtype == expected.dtype
            np.testing.assert_array_equal(each, expected)
    fast[-1][:] = 0
    np.testing.assert_array_equal(x, np.arange(12, dtype=np.float32).reshape(4, 3).T)
    reals = (q - np.float32(3)) * np.float32(0.5)
    np.testing.assert_array_equal(main(x, reals, s, h, quantized_io=True)[1], reals[::-1])
    for wrong in ((x.T, q, s, h), (x, q.astype(np.int64) + 1, s, h), (x, q, s)):
        with pytest.raises(SignatureError):
            main(*wrong)


def test_errors_name_a_lost_device() -> None:
    error = RuntimeError(
        "c/runtime/src/iree/hal/drivers/vulkan/queue.c:2867: DATA_LOSS; [vkSignalSemaphore] "
        "VK_ERROR_DEVICE_LOST; while invoking native function hal.device.queue.alloca"
    )
    for message in (
        call_message("main", error, []),
        load_message("the executable", "vulkan", "vulkan", {}, error),
    ):
        assert "the device 'vulkan' was lost" in message
        assert "compile it for this" not in message
