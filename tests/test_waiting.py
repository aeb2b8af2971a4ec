"""How a call waits for a Vulkan device, and what threads that wait take from those that work."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from subquant.runtime import Device, Executable

PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @count(%n: i32) -> i32 {
  %0 = arith.addi %n, %n : i32
  return %0 : i32
}
"""


@pytest.mark.vulkan
@pytest.mark.parametrize("model", ["async-external", "async-internal"])
def test_functions_that_take_fences_and_that_wait_themselves(model: str, vulkan: Device) -> None:
    """Those of subquant wait themselves; others may take fences (IREE records it)."""
    options = CompileOptions("vulkan")
    if model == "async-external":
        options = CompileOptions("vulkan", iree_flags=(f"--iree-execution-model={model}",))
    data = compile_to_bytes(PROGRAM, options)
    assert (b"coarse-fences" in data) == (model == "async-external")
    executable = Executable(data, vulkan)
    x = np.arange(4, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(executable.main(x), x + x)
    resident = executable.main(executable.main.put(0, x), resident=True)
    np.testing.assert_array_equal(executable.main(resident), 4 * x)
    assert int(executable.count(21)) == 42


@pytest.mark.vulkan
@pytest.mark.skipif(sys.platform != "linux", reason="threads are found in /proc")
def test_threads_that_are_never_idle_give_way(vulkan: Device) -> None:
    """Mesa's software device has IREE's threads ask again and again; on a GPU they sleep."""
    if not vulkan.ends_long_loops:
        pytest.skip("the device is no software one of Mesa's")
    opened = vulkan.open()
    before = _run_times()
    time.sleep(0.2)
    busy = {thread for thread, run in _run_times().items() if run > before.get(thread, run)}
    busy.discard(os.getpid())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = {t for t in map(int, os.listdir("/proc/self/task")) if _priority(t) > own}
    assert opened.uri.startswith("vulkan")
    assert busy
    assert busy <= lowered


def _run_times() -> dict[int, int]:
    """The hundredths of a second that each thread of this process has run."""
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[int(folder.name)] = int(fields[11]) + int(fields[12])
    return found


def _priority(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)
