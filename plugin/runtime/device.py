"""Devices: names, threads, and the devices of IREE that run an executable."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy.typing as npt

from ..errors import EnvironmentProblem, UsageError, quoted
from ..isolation.limits import available_cores
from ..signature import MAX_CPU_THREADS, ValueType, WorkEstimate
from .device_arrays import DeviceArray, put
from .native_calls import native_call
from .open_device import DEVICES, OpenDevice, iree_runtime, no_device_message
from .worker_threads import WorkerPool

_LLVMPIPE = "llvmpipe"
"""The driver name of Mesa's software device."""


class Device:
    """A device that runs executables; a Vulkan device is opened with the first executable.

    Args:
        name: ``llvm-cpu``, ``vulkan`` (the first one), or an IREE device URI such as
            ``vulkan://GPU-6d65...`` or ``local-sync``.
        threads: the greatest number of CPU threads that run its programs, 1 to 256; by default one
            for each core that this process may use. One thread is the caller's own, which on
            ``llvm-cpu`` also runs programs that are too small for more threads; on ``local-task``
            IREE's threads run all programs.

    Raises:
        EnvironmentProblem: there is no such device.
        UsageError: it has not this number of threads, or none to choose.
    """

    def __init__(self, name: str = "llvm-cpu", *, threads: int | None = None) -> None:
        self.name = name
        self.threads = threads
        self.features: dict[str, bool] = {}
        self.driver = ""
        self.subgroup = 0
        self._uri = DEVICES.get(name, name)
        self._opened: dict[str, weakref.ref[OpenDevice]] = {}
        self._kept_alive: list[OpenDevice] = []
        if threads is not None:
            self._uri = _uri_of_threads(self._uri, threads, name)
        if self.is_vulkan:
            try:
                picked = _pick_vulkan_device(self._uri)
            except (RuntimeError, ValueError, IndexError) as error:
                raise EnvironmentProblem(no_device_message(self._uri, error)) from None
            self._uri, self.features = picked.uri, picked.features
            self.driver, self.subgroup = picked.driver, picked.subgroup
        else:
            self._open(self._caller_uri)  # which shows that it is there

    @classmethod
    def of(cls, device: Device | str, threads: int | None = None) -> Device:
        """Return a given device, which has its own threads, or a new one for a name."""
        if not isinstance(device, Device):
            return cls(device, threads=threads)
        if threads is None:
            return device
        raise UsageError(
            "the number of threads of a Device object cannot be changed; create it with: "
            f"Device({device.name!r}, threads={threads})"
        )

    @property
    def is_vulkan(self) -> bool:
        """True for a Vulkan device."""
        return DEVICES.get(self.name, self.name).startswith("vulkan")

    @property
    def target(self) -> str:
        """The compilation target for this device: ``vulkan`` or ``llvm-cpu``."""
        return "vulkan" if self.is_vulkan else "llvm-cpu"

    @property
    def has_8bit_storage(self) -> bool:
        """True for a device that loads and stores 8- and 16-bit values."""
        needed = ("storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderInt8")
        return not self.is_vulkan or all(self.features.get(name, False) for name in needed)

    @property
    def matrix_target(self) -> str:
        """The Vulkan target of its cooperative matrices; "" for none that subquant uses."""
        targets = {32: "generic-matrix", 8: "generic-matrix-8"}
        return targets.get(self.subgroup, "") if self.features.get("cooperativeMatrix") else ""

    @property
    def ends_long_loops(self) -> bool:
        """True for Mesa's software device, which ends the loops of an invocation early."""
        return self.driver == _LLVMPIPE

    @property
    def vulkan_target(self) -> str:
        """The key of `subquant.compiler.targets.VULKAN_TARGETS` for this device."""
        if not self.has_8bit_storage:
            return "generic-32bit"
        return "generic-cpu" if self.driver == _LLVMPIPE else self.matrix_target or "generic"

    def open(self, work: Sequence[WorkEstimate | None] = (None,)) -> OpenDevice:
        """Return an open device for functions of estimated work: an executable's or a new one."""
        threads = self._max_threads
        if any(each is None or each.gains_from_threads(threads, pool=False) for each in work):
            return self._open(self._uri)
        return self._open(self._caller_uri)

    def worker_pool(
        self, work: Sequence[WorkEstimate | None], program: bytes | None
    ) -> WorkerPool | None:
        """Return the worker pool for functions of estimated work; the device is `open` of no work.

        None if the caller's thread or IREE's threads run them, or there is no worker program.
        """
        if program is None or self.name != "llvm-cpu":
            return None
        threads = self._max_threads
        if any(each is None or each.gains_from_threads(threads, pool=True) for each in work):
            return WorkerPool.of(threads, program)
        return None

    def threads_of(self, opened: OpenDevice) -> int | None:
        """Return the number of threads of programs on an open device, without a worker pool."""
        if self.is_vulkan:
            return None
        return self._max_threads if opened.has_threads else 1

    @property
    def _max_threads(self) -> int:
        return self.threads or available_cores()

    @property
    def _caller_uri(self) -> str:
        """The URI of the device that uses only the caller's thread."""
        return "local-sync" if self.name == "llvm-cpu" else self._uri

    def _open(self, uri: str) -> OpenDevice:
        reference = self._opened.get(uri)
        opened = None if reference is None else reference()
        if opened is None or opened.process != os.getpid():
            opened = OpenDevice(uri, self.threads)
            self._opened[uri] = weakref.ref(opened)
            if opened.is_host:
                self._kept_alive.append(opened)
        return opened

    def put(
        self, array: npt.ArrayLike, like: ValueType | None = None, *, quantized_io: bool = False
    ) -> DeviceArray:
        """Copy an array into the device's memory, where calls use it without a further copy.

        Args:
            array: an array of any type that programs take.
            like: the type to store it as, of a signature; by default that of a tensor of its shape
                and dtype. A quantized or packed argument needs it: see `Function.put`.
            quantized_io: reals are given for a quantized type.

        Raises:
            SignatureError: it does not fit `like`.
        """
        with native_call():
            return put(self.open(()), array, like, "the array", quantized_io=quantized_io)


def _uri_of_threads(uri: str, threads: int, name: str) -> str:
    """Return IREE's URI of a CPU with a number of threads."""
    if type(threads) is not int or not 1 <= threads <= MAX_CPU_THREADS:
        raise UsageError(f"expected 1 to {MAX_CPU_THREADS} threads, got {quoted(str(threads))}")
    if uri == "local-task" or (uri, threads) == ("local-sync", 1):
        return uri if threads > 1 else "local-sync"
    raise UsageError(
        f"the device {quoted(name)} has no number of threads to choose, got {threads}; leave out "
        "threads (--threads), or use the device 'llvm-cpu'"
    )


class _VulkanDevice(NamedTuple):
    """A device as its driver describes it.

    Attributes:
        features: the optional features of Vulkan, and whether the device has them.
        driver: the name of the driver.
        subgroup: the size of subgroups; 0 where the driver chooses it for each shader.
    """

    uri: str
    features: dict[str, bool]
    driver: str
    subgroup: int


def _pick_vulkan_device(uri: str) -> _VulkanDevice:
    """Return the device of a URI; for ``vulkan``, the first with 8-bit storage or else the first.

    Raises:
        ValueError: there is no such device.
    """
    driver = iree_runtime().get_driver("vulkan")
    best: _VulkanDevice | None = None
    for device in driver.query_available_devices():
        info = driver.dump_device_info(device["device_id"])
        features = {name: value == "yes" for name, value in re.findall(r"(\w+)=(yes|no)", info)}
        named = re.search(r"^driver: (.*)$", info, re.MULTILINE)
        sizes = {int(size) for size in re.findall(r"m(?:in|ax)SubgroupSize=(\d+)", info)}
        subgroup = sizes.pop() if len(sizes) == 1 else 0
        driver_name = named.group(1) if named else ""
        candidate = _VulkanDevice(f"vulkan://{device['path']}", features, driver_name, subgroup)
        if uri == candidate.uri:
            return candidate
        is_better = best is None or (
            features.get("storageBuffer8BitAccess", False)
            and not best.features.get("storageBuffer8BitAccess", False)
        )
        if is_better:
            best = candidate
    if best is None or uri != "vulkan":
        raise ValueError("not found among the devices of the Vulkan driver")
    return best


def list_devices() -> list[tuple[str, str]]:
    """Return the name and the description of each device that IREE finds here."""
    runtime = iree_runtime()
    listed = []
    for driver_name in ("local-task", "vulkan"):
        try:
            driver = runtime.get_driver(driver_name)
            devices = driver.query_available_devices()
        except (RuntimeError, ValueError, IndexError):
            continue
        for device in devices:
            path = str(device.get("path") or "")
            uri = f"{driver_name}://{path}" if path else driver_name
            listed.append((uri, str(device.get("name") or driver_name)))
    return listed
