"""CPU affinity of a device's threads, and scheduling of a caller that is woken."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import subquant
from subquant.runtime import Device
from subquant.runtime.cpu_affinity import physical_cores, yielding_to_waker
from subquant.runtime.open_device import iree_runtime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux lets one choose")

DOUBLES = """
func.func @main(%x: tensor<256x1024xf32>) -> tensor<256x1024xf32> {
  %y = stablehlo.add %x, %x : tensor<256x1024xf32>
  return %y : tensor<256x1024xf32>
}
"""


def threads_of_iree() -> set[int]:
    names = {file: file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}
    return {int(file.parent.name) for file, name in names.items() if name.startswith("iree-worker")}


def test_physical_cores_of_this_process() -> None:
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1:
        assert physical_cores() is None
        return
    siblings = set()
    field = re.compile(r"^(processor|physical id|core id)\s*: (\d+)$", re.MULTILINE)
    for text in Path("/proc/cpuinfo").read_text().strip().split("\n\n"):
        fields = dict(field.findall(text))
        if len(fields) == 3 and int(fields["processor"]) in os.sched_getaffinity(0):
            siblings.add((fields["physical id"], fields["core id"]))
    if siblings:
        assert physical_cores() == len(siblings)


@pytest.mark.parametrize("more", [0, 1])
def test_one_thread_per_core(more: int) -> None:
    count = physical_cores()
    if count is None:
        pytest.skip("there are cores that this process may not use, or that IREE does not")
    iree_runtime().get_driver("local-task")  # which has threads of its own
    time.sleep(0.1)
    before = threads_of_iree()
    device = Device("local-task", threads=count + more)
    allowed = os.sched_getaffinity(0)
    expected = [allowed] * (count + 1) if more else [{each} for each in sorted(allowed)]
    own: list[set[int]] = []
    end = time.monotonic() + 10
    while own != expected and time.monotonic() < end:  # until they have begun
        own = sorted(map(os.sched_getaffinity, threads_of_iree() - before), key=sorted)
        time.sleep(0.01)
    if more or count == len(allowed):
        assert own == expected
    else:
        assert len(set.union(*own)) == len(own) == count
    assert device.threads == len(own)


def test_a_waiting_caller_has_the_batch_policy() -> None:
    seen = []

    def invoke(*arguments: object) -> None:
        seen.append((os.sched_getscheduler(0), arguments))
        if not arguments:
            raise RuntimeError

    def calls() -> None:
        call = yielding_to_waker(invoke)
        call(1, 2)
        with pytest.raises(RuntimeError):
            call()
        seen.append((os.sched_getscheduler(0), ("after",)))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # a choice of its own
        call(3)
        seen.append((os.sched_getscheduler(0), ("after",)))

    caller = threading.Thread(target=calls)
    caller.start()
    caller.join()
    assert seen == [
        (os.SCHED_BATCH, (1, 2)),
        (os.SCHED_BATCH, ()),
        (os.SCHED_OTHER, ("after",)),
        (os.SCHED_IDLE, (3,)),
        (os.SCHED_IDLE, ("after",)),
    ]


@pytest.mark.parametrize("name", ["sched_getscheduler", "sched_setscheduler"])
def test_a_sandbox_without_scheduling_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, name, refuse)
    seen: list[object] = []
    yielding_to_waker(seen.append)(1)
    assert seen == [1]


@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_calls_yield_to_the_waking_thread(device: str) -> None:
    executable = subquant.compile(DOUBLES, device=device)
    x = np.ones((256, 1024), np.float32)
    stop = threading.Event()

    def calls() -> None:
        while not stop.is_set():
            executable.main(x)

    caller = threading.Thread(target=calls)
    caller.start()
    seen = set()
    end = time.monotonic() + (20 if device == "local-task" else 0.3)
    while time.monotonic() < end and os.SCHED_BATCH not in seen:
        seen.add(os.sched_getscheduler(caller.native_id or 0))
    stop.set()
    caller.join()
    assert (os.SCHED_BATCH in seen) == (device == "local-task")
    np.testing.assert_array_equal(executable.main(x), 2 * x)
