"""Waits for a Vulkan device, and polling threads that take cores from computing threads."""

from __future__ import annotations

import gc
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import CompilerError, ExecutionError
from subquant.numerics.element_types import Array
from subquant.runtime import Device, Executable
from subquant.runtime.open_device import OpenDevice, iree_runtime
from subquant.runtime.vm_modules import vm_instance

PROGRAM = """
func.func @main(%x: tensor<?xf32>, %n: i32) -> (tensor<?xf32>, i32) {
  %0 = stablehlo.add %x, %x : tensor<?xf32>
  %1 = arith.addi %n, %n : i32
  return %0, %1 : tensor<?xf32>, i32
}
func.func @count(%n: i32) -> i32 {
  %0 = arith.addi %n, %n : i32
  return %0 : i32
}
func.func @twice(%x: tensor<4xi8>) -> tensor<4xi8> {
  %0 = stablehlo.add %x, %x : tensor<4xi8>
  return %0 : tensor<4xi8>
}
func.func @positive(%x: tensor<4xi8>, %n: i32) -> tensor<4xi8> {
  %zero = arith.constant 0 : i32
  %is_positive = arith.cmpi sgt, %n, %zero : i32
  cf.assert %is_positive, "is not positive"
  return %x : tensor<4xi8>
}
func.func @halved(%x: tensor<f32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  %0 = stablehlo.while(%a = %x) : tensor<f32> cond {
    %1 = stablehlo.compare GT, %a, %one : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %a, %half : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }
  return %0 : tensor<f32>
}
"""
NAMES = ["main", "count", "twice", "positive", "halved"]
SEVERAL = """
func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot %0, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.dot %1, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    """The program, compiled."""
    return compile_to_bytes(PROGRAM, CompileOptions("vulkan"))


@pytest.mark.vulkan
def test_asynchronous_entries_are_called(
    data: bytes, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions that submit nothing, or repeatedly, have no asynchronous entry."""
    executable = Executable(data, vulkan)
    assert list(executable.functions) == NAMES
    waits = []
    complete = OpenDevice.complete
    monkeypatch.setattr(
        OpenDevice, "complete", lambda *inputs: (waits.append(inputs), complete(*inputs))[1]
    )
    x = np.arange(4, dtype=np.float32)
    resident, count = executable.main(executable.main.put(0, x), 3, resident=True)
    assert (len(waits), int(count)) == (1, 6)
    repeats, count = executable.main(resident, 21)
    np.testing.assert_array_equal(repeats, 4 * x)
    assert int(count) == 42
    del waits[:]
    assert int(executable.count(21)) == 42
    assert executable.halved(executable.halved.put(0, np.float32(9)), resident=True) is not None
    assert not waits
    assert executable.halved(np.float32(9)) == 0.5625
    np.testing.assert_array_equal(executable.twice(np.int8([1, 2, 3, 100])), [2, 4, 6, -56])


@pytest.mark.parametrize("text", [PROGRAM, SEVERAL], ids=["a loop", "several results"])
def test_no_function_allocates_from_a_queue(text: str) -> None:
    """An allocation in a loop lost Mesa's device. IREE's own functions still do this."""
    data = compile_to_bytes(text, CompileOptions("vulkan"))
    assert b"hal.allocator.allocate" in data
    assert b"queue.alloca" not in data
    assert b"queue.dealloca" not in data
    as_iree = ("--iree-hal-indirect-command-buffers=true",)
    assert b"queue.alloca" in compile_to_bytes(text, CompileOptions("vulkan", iree_flags=as_iree))


@pytest.mark.vulkan
def test_calls_in_direct_succession(vulkan: Device) -> None:
    """Allocations from a queue ended them: Mesa's device was lost."""
    executable = Executable(compile_to_bytes(SEVERAL, CompileOptions("vulkan")), vulkan)
    x = np.arange(64, dtype=np.float32).reshape(8, 8) % 3
    inputs = executable.main.put(0, x)
    expected = [x @ x, x @ x @ x, x @ x @ x @ x @ x]

    def call(_: int) -> bool:
        results = [executable.main(inputs, resident=True) for _ in range(100)]
        return all(map(np.array_equal, results[-1], expected))

    with ThreadPoolExecutor(2) as callers:
        assert all(callers.map(call, range(3)))


@pytest.mark.vulkan
def test_an_error_keeps_no_fences(data: bytes, vulkan: Device) -> None:
    """An object that is freed after its device ends the process."""
    errors: list[Any] = []
    for _ in range(3):
        executable = Executable(data, vulkan)
        with pytest.raises(ExecutionError, match="stopped: is not positive") as caught:
            executable.positive(np.int8([1, 2, 3, 4]), 0)
        errors += [caught.value, executable, errors]
        del executable, caught
        errors = []
        gc.collect()


def _called_by_iree(module: Any, device: OpenDevice, x: Array, n: int) -> list[tuple[Array, int]]:
    """The results of three calls of ``main``."""
    runtime = iree_runtime()
    hal = runtime.create_hal_module(vm_instance(), device.handle)
    context = runtime.VmContext(vm_instance(), [hal, module])
    results = []
    for _ in range(3):
        inputs, returned = runtime.VmVariantList(2), runtime.VmVariantList(2)
        inputs.push_ref(device.upload(x, "f32"))
        inputs.push_int(n)
        context.invoke(module.lookup_function("main"), inputs, returned)
        doubled = device.download(returned.get_as_object(0, runtime.HalBufferView), x.dtype)
        results.append((doubled, int(returned.get_variant(1))))
    return results


@pytest.mark.vulkan
def test_iree_tools_call_synchronous_functions(data: bytes, vulkan: Device) -> None:
    """IREE's own runtime and tools list the functions without a ``$``."""
    module = iree_runtime().VmModule.copy_buffer(vm_instance(), data)
    device = vulkan.open()  # which is closed after its buffers are freed
    x = np.arange(5, dtype=np.float32)
    for doubled, count in _called_by_iree(module, device, x, 4):
        np.testing.assert_array_equal(doubled, x + x)
        assert count == 8
    assert [n for n in module.function_names if "$" not in n and not n.startswith("__")] == NAMES
    declared = dict(module.lookup_function("main").reflection)["iree.abi.declaration"]
    assert declared == (
        "sync func @main(%input0: tensor<?xf32>, %input1: i32) -> "
        "(%output0: tensor<?xf32>, %output1: i32)"
    )


@pytest.mark.vulkan
def test_async_external_functions(vulkan: Device, tmp_path: Path) -> None:
    """IREE writes them on request, if all results are tensors, or none is; and other tools."""
    options = CompileOptions("vulkan", iree_flags=("--iree-execution-model=async-external",))
    first = "func.func @count"
    executable = Executable(compile_to_bytes(first + PROGRAM.partition(first)[2], options), vulkan)
    np.testing.assert_array_equal(executable.twice(np.int8([1, 2, 3, 100])), [2, 4, 6, -56])
    assert int(executable.count(21)) == 42
    with pytest.raises(CompilerError, match=r"has 1 operands, but .* returns 2"):
        compile_to_bytes(PROGRAM, options, reproducer=tmp_path / "reproducer.mlir")


@pytest.mark.vulkan
@pytest.mark.skipif(sys.platform != "linux", reason="threads are found in /proc")
def test_polling_threads_get_a_lower_priority(vulkan: Device) -> None:
    """On Mesa's software device IREE's threads poll; on a GPU they sleep."""
    if not vulkan.ends_long_loops:
        pytest.skip("the device is no software one of Mesa's")
    opened = vulkan.open()
    before = _run_times()
    time.sleep(0.2)
    busy = {thread for thread, run in _run_times().items() if run > before.get(thread, run)}
    busy.discard(os.getpid())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    threads = map(int, os.listdir("/proc/self/task"))
    lowered = {thread for thread in threads if os.getpriority(os.PRIO_PROCESS, thread) > own}
    assert opened.uri.startswith("vulkan")
    assert busy
    assert busy <= lowered


def _run_times() -> dict[int, int]:
    """The hundredths of a second that each thread of this process has run."""
    ticks = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    return ticks
