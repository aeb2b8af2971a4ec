"""Devices that run executables, and copies of arrays to and from their memory.

IREE 3.13's Python runtime fails to import host memory on software Vulkan devices, and can return
views of device memory that is freed with the result. So arguments are written into mapped device
buffers, and results are copied out, here and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from typing import Any

import numpy as np

from ..errors import EnvironmentProblem, InputError, expected_name, quoted
from ..numerics.element_types import BF16, Array, DType
from .arguments import element_type
from .native_calls import is_forked

__all__ = ["DEVICES", "Device", "OpenDevice", "iree_runtime", "list_devices"]

DEVICES = {"llvm-cpu": "local-task", "vulkan": "vulkan"}
"""Target names to IREE device names; any IREE device URI is accepted as well."""


def iree_runtime() -> Any:
    """Return the module ``iree.runtime``; EnvironmentProblem if it is not installed."""
    try:
        import iree.runtime
    except ImportError:
        raise EnvironmentProblem(
            "IREE's runtime is not installed; run: pip install iree-base-runtime"
        ) from None
    return iree.runtime


def _hal_element_type(element: str) -> int:
    """IREE's number for an MLIR element type that is held as wide as it is."""
    held = element_type(element)
    if held.bits not in (1, 8 * held.dtype.itemsize):
        raise InputError(f"values of type '{element}' cannot be exchanged with NumPy")
    if held.kind == "bool":
        name = "BOOL_8"
    elif held == BF16:
        name = "BFLOAT_16"
    else:
        name = f"{held.kind.upper()}_{held.bits}"
    return int(getattr(iree_runtime().HalElementType, name))


class Device:
    """A device that runs executables; a Vulkan device is opened when one is loaded on it.

    Args:
        name: ``llvm-cpu``, ``vulkan`` (the first one), or an IREE device URI such as
            ``vulkan://GPU-6d65...`` or ``local-sync``.

    Raises:
        EnvironmentProblem: there is no such device.
    """

    def __init__(self, name: str = "llvm-cpu") -> None:
        self.name = name
        self.features: dict[str, bool] = {}
        self.driver = ""
        self._uri = DEVICES.get(name, name)
        self._opened: weakref.ref[OpenDevice] | None = None
        if self.is_vulkan:
            try:
                self._uri, self.features, self.driver = _pick_vulkan_device(self._uri)
            except (RuntimeError, ValueError, IndexError) as error:
                raise EnvironmentProblem(_no_device(self._uri, error)) from None
        else:
            self._kept = self.open()  # which shows that it is there

    @property
    def is_vulkan(self) -> bool:
        """True for a Vulkan device."""
        return DEVICES.get(self.name, self.name).startswith("vulkan")

    @property
    def has_8bit_storage(self) -> bool:
        """True for a device that loads and stores 8- and 16-bit values."""
        needed = ("storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderInt8")
        return not self.is_vulkan or all(self.features.get(name, False) for name in needed)

    @property
    def ends_long_loops(self) -> bool:
        """True for Mesa's software device, on which no invocation runs its loops to the end."""
        return self.driver == "llvmpipe"

    @property
    def vulkan_target(self) -> str:
        """The key of `subquant.compiler.targets.VULKAN_TARGETS` that this device can run."""
        return "generic" if self.has_8bit_storage else "generic-32bit"

    def open(self) -> OpenDevice:
        """Return the open device: the one that an executable holds, or else a new one.

        Raises:
            EnvironmentProblem: the driver fails to open it.
        """
        opened = self._opened() if self._opened is not None else None
        if opened is None or opened.process != os.getpid():
            opened = OpenDevice(self._uri)
            self._opened = weakref.ref(opened)
        return opened


_OPEN: weakref.WeakSet[OpenDevice] = weakref.WeakSet()
_INHERITED: list[OpenDevice] = []
_DRIVERS: dict[str, Any] = {}


def _keep_inherited() -> None:
    """Never close, in a forked process, the devices of its parent, which has their threads."""
    for opened in list(_OPEN):
        _INHERITED.append(opened)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened.handle))
    _OPEN.clear()
    _DRIVERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def _own_driver(uri: str) -> Any:
    """Return this process's driver, which its parent has not used."""
    from iree.runtime._binding import create_hal_driver  # private: IREE has no public way

    name = uri.partition("://")[0]
    if name not in _DRIVERS:
        _DRIVERS[name] = create_hal_driver(name)
    return _DRIVERS[name]


class OpenDevice:
    """A device in use, for as long as something holds it: executables that are loaded on it.

    Mesa waits for any of several semaphores by asking for them again and again, so that two threads
    of IREE are busy as long as its software Vulkan device is open: no program should be compiled
    meanwhile.

    Args:
        uri: IREE's URI of the device.

    Raises:
        EnvironmentProblem: there is no such device.
    """

    def __init__(self, uri: str) -> None:
        self.process = os.getpid()
        try:
            # IREE's cache of devices is never emptied: one in it would not be closed. And the
            # drivers in its cache have the threads of the process that made them.
            if is_forked():
                self.handle = _own_driver(uri).create_device_by_uri(uri)
            else:
                self.handle = iree_runtime().get_device(uri, cache=False)
        except (RuntimeError, ValueError, IndexError) as error:
            raise EnvironmentProblem(_no_device(uri, error)) from None

        _OPEN.add(self)

    def upload(self, array: Array, element: str) -> Any:
        """Copy an array into a new device buffer and return a buffer view.

        Args:
            array: any shape, of the dtype that holds `element`.
            element: the MLIR element type.
        """
        runtime = iree_runtime()
        data = np.ascontiguousarray(array)
        # Whole words, because a device may load the last bytes with the word around them.
        size = max(-(-data.nbytes // 4) * 4, 4)
        buffer = self.handle.allocator.allocate_buffer(
            memory_type=int(runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE),
            allowed_usage=int(runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING),
            allocation_size=size,
        )
        mapped = buffer.map()
        target = mapped.asarray((size,), np.dtype(np.uint8))
        target[: data.nbytes] = data.reshape(-1).view(np.uint8)
        target[data.nbytes :] = 0
        del target, mapped
        return runtime.HalBufferView(buffer, array.shape, _hal_element_type(element))

    def download(self, view: Any, dtype: DType) -> Array:
        """Copy a buffer view's contents into a new array."""
        runtime = iree_runtime()
        shape = tuple(view.shape)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.zeros(shape, dtype)
        source = view.get_buffer()
        staging = self.handle.allocator.allocate_buffer(
            memory_type=int(runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE),
            allowed_usage=int(runtime.BufferUsage.TRANSFER | runtime.BufferUsage.MAPPING),
            allocation_size=source.byte_length(),
        )
        done = self.handle.create_semaphore(0)
        fence = runtime.HalFence.create_at
        self.handle.queue_copy(source, staging, fence(done, 0), fence(done, 1))
        fence(done, 1).wait()
        mapped = staging.map()
        raw = mapped.asarray((source.byte_length(),), np.dtype(np.uint8))
        array: Array = raw[:size].copy().view(dtype).reshape(shape)
        del raw, mapped
        return array


def _pick_vulkan_device(uri: str) -> tuple[str, dict[str, bool], str]:
    """Return URI, features and driver of a device: the one named, or the most capable one."""
    driver = iree_runtime().get_driver("vulkan")
    best: tuple[str, dict[str, bool], str] | None = None
    for device in driver.query_available_devices():
        info = driver.dump_device_info(device["device_id"])
        features = {name: value == "yes" for name, value in re.findall(r"(\w+)=(yes|no)", info)}
        named = re.search(r"^driver: (.*)$", info, re.MULTILINE)
        candidate = f"vulkan://{device['path']}", features, named.group(1) if named else ""
        if uri == candidate[0]:
            return candidate
        better = best is None or (
            features.get("storageBuffer8BitAccess", False)
            and not best[1].get("storageBuffer8BitAccess", False)
        )
        if better:
            best = candidate
    if best is None or uri != "vulkan":
        raise ValueError("not found among the devices of the Vulkan driver")
    return best


def list_devices() -> list[tuple[str, str]]:
    """Return the name and the description of each device that IREE finds here."""
    runtime = iree_runtime()
    found = []
    for driver_name in ("local-task", "vulkan"):
        try:
            driver = runtime.get_driver(driver_name)
            devices = driver.query_available_devices()
        except (RuntimeError, ValueError, IndexError):
            continue
        for device in devices:
            path = str(device.get("path") or "")
            uri = f"{driver_name}://{path}" if path else driver_name
            found.append((uri, str(device.get("name") or driver_name)))
    return found


def _no_device(uri: str, error: Exception) -> str:
    runtime = iree_runtime()
    scheme = uri.partition("://")[0]
    if scheme not in runtime.query_available_drivers():
        known = [*DEVICES, *runtime.query_available_drivers()]
        what = expected_name(scheme, dict.fromkeys(known), "a name or an IREE device URI of")
        return f"no device {quoted(uri)}; {what}"
    reason = str(error).splitlines()[0]
    if uri.startswith("vulkan"):
        return (
            f"no Vulkan device '{uri}' ({reason}); on Debian install libvulkan1 and "
            "mesa-vulkan-drivers for a software device, or set VK_DRIVER_FILES"
        )
    return f"no device '{uri}' ({reason}); expected llvm-cpu, vulkan or an IREE device URI"
