"""Threads of a device: calls by several threads, and the number of threads of a program."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import subquant
from device_programs import ACCUMULATES, LARGE, compile_for
from programs import PRODUCT, one_operation
from subquant.errors import UsageError
from subquant.formats.irpa_writer import create_archive
from subquant.isolation import limits
from subquant.isolation.limits import available_cores
from subquant.runtime import Device
from subquant.signature import WorkEstimate

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
    spin = compile_for(SPIN, cpu).spin
    has_started, seen, under_way = threading.Event(), threading.Event(), [False]

    def call() -> None:
        has_started.set()
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
        has_started.wait()
        saw, _ = under_way[0], seen.set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert saw


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_an_executable_is_called_by_several_threads(threads: int | None) -> None:
    executable = compile_for(ACCUMULATES, Device("llvm-cpu", threads=threads))
    rng = np.random.default_rng(6)
    a, b, c = (rng.integers(-4, 5, (64, 64)).astype(np.float32) for _ in range(3))
    weights, errors = executable.accumulate.put(1, b), []

    def call(factor: int) -> None:
        for _ in range(20):
            if (executable.accumulate(a * factor, weights, c) != a * factor @ b + c).any():
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


@pytest.mark.skipif(sys.platform != "linux", reason="has no control groups")
@pytest.mark.parametrize(
    ("parent", "own", "expected"),
    [("max 100000", "max 100000", 9), ("max 100000", "350000 100000", 4), ("50000 100000", "x", 1)],
)
def test_a_cpu_quota_limits_threads(
    parent: str, own: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux suspends a container whose threads have used its CPU time."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text(parent)
    (tmp_path / "a" / "b" / "cpu.max").write_text(own)
    (tmp_path / "cgroup").write_text("1:cpu:/other\n0::/a/b\n")
    monkeypatch.setattr(limits, "_OWN_CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(9))
    assert available_cores() == expected


SMALL = one_operation(PRODUCT, ("8x64xi8", "64x64xi8"), "8x64xi32", name="small")
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
        (SMALL + LARGE, "llvm-cpu", 2, 2),  # the largest of its functions counts
        (SMALL + LARGE, "llvm-cpu", 1, 1),
        (SMALL + UNKNOWN, "llvm-cpu", 2, 2),
    ],
)
def test_small_programs_run_on_the_callers_thread(
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
    small, large = (subquant.compile(text, device=device) for text in (DOUBLES, LARGE))
    second_call = subquant.compile(LARGE, device=device)
    assert [each.threads for each in (small, large, second_call)] == [1, 2, 2]
    x, w = np.ones((64, 1024), np.float32), np.ones((1024, 512), np.float32)
    doubled = small.main(device.put(x), resident=True)
    product = large.large(doubled, w, resident=True)
    np.testing.assert_array_equal(product.numpy(), np.full((64, 512), 2048, np.float32))
    del large
    gc.collect()
    np.testing.assert_array_equal(second_call.large(doubled, w), product)
    assert small.main(doubled)[0, 0] == 4


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "-1 2", "x 2", "1 2\n"])
def test_an_invalid_estimate_is_ignored(text: str) -> None:
    assert WorkEstimate.from_text(text) is None


def test_work_that_gains_from_threads() -> None:
    """IREE's threads are woken for each dispatch; workers of a pool spin."""
    for work, threads, by_iree, by_pool in (
        (WorkEstimate(5_000, 1), 2, False, False),
        (WorkEstimate(5_002, 1), 2, False, True),
        (WorkEstimate(5_002, 2), 2, False, False),
        (WorkEstimate(100_000, 1), 2, False, True),
        (WorkEstimate(100_002, 1), 2, True, True),
        (WorkEstimate(100_002, 2), 2, False, True),
        (WorkEstimate(80_000, 1), 8, True, True),
        (WorkEstimate(10**9, 1), 1, False, False),
    ):
        assert work.gains_from_threads(threads, pool=False) == by_iree, work
        assert work.gains_from_threads(threads, pool=True) == by_pool, work
    assert WorkEstimate.from_text(str(WorkEstimate(12, 3))) == WorkEstimate(12, 3)


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


def test_a_device_fixes_its_threads(cpu: Device) -> None:
    with pytest.raises(UsageError, match=r"create it with: Device\('llvm-cpu', threads=2\)"):
        subquant.compile(SPIN, device=cpu, threads=2)


def test_parameters_are_read_on_the_callers_thread(tmp_path: Path) -> None:
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
