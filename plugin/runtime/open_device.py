"""Open devices, and copies of arrays to and from their memory.

IREE 3.13's Python runtime fails to import host memory on software Vulkan devices, and can return
views of device memory that is freed with the result. Only this module therefore copies: arguments
into mapped device buffers, and results out of them. On a CPU both are memory of this process: IREE
copies arrays itself, and large arrays with the layout of programs are lent.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import EnvironmentProblem, ExecutionError, InputError, expected_name, quoted
from ..numerics.element_types import BF16, Array, DType
from .arguments import element_type
from .cpu_affinity import (
    list_threads,
    lower_busy_threads,
    physical_cores,
    yielding_to_waker,
)
from .native_calls import is_forked

DEVICES = {"llvm-cpu": "local-task", "vulkan": "vulkan"}
"""Target names and IREE's device names; IREE's device URIs are accepted as well."""
_ALIGNMENT_BYTES = 64
"""Bytes of the alignment of buffers on which compiled programs rely; with less they crash."""
_MIN_LENT_BYTES = 1 << 15
"""Bytes of an array that is lent, not copied, at least: copies of less are faster than checks."""


@functools.cache
def iree_runtime() -> Any:
    """Return the module ``iree.runtime``; EnvironmentProblem if it is not installed."""
    try:
        import iree.runtime
    except ImportError:
        raise EnvironmentProblem(
            "IREE's runtime is not installed; run: pip install iree-base-runtime"
        ) from None
    return iree.runtime


@functools.cache
def _hal_element_type(element: str) -> Any:
    """Return IREE's number of an MLIR element type whose values are not narrowed."""
    mlir_type = element_type(element)
    if mlir_type.bits not in (1, 8 * mlir_type.dtype.itemsize):
        raise InputError(f"values of type '{element}' cannot be exchanged with NumPy")
    if mlir_type.kind == "bool":
        name = "BOOL_8"
    elif mlir_type == BF16:
        name = "BFLOAT_16"
    else:
        name = f"{mlir_type.kind.upper()}_{mlir_type.bits}"
    return getattr(iree_runtime().HalElementType, name)


_OPEN: weakref.WeakSet[OpenDevice] = weakref.WeakSet()
_INHERITED: list[OpenDevice] = []
_DRIVERS: dict[str, Any] = {}
_FLAGS = threading.Lock()


def _keep_inherited() -> None:
    """Never close the devices of the parent in a forked process, which lacks their threads."""
    for opened in list(_OPEN):
        _INHERITED.append(opened)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened.handle))
    _OPEN.clear()
    _DRIVERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def _new_driver(name: str) -> Any:
    """Return a driver of IREE that is not the one in its cache."""
    from iree.runtime._binding import create_hal_driver  # private: IREE has no public way

    return create_hal_driver(name)


def _driver_of_threads(threads: int) -> Any:
    """Return a driver of a CPU, which takes the number of its threads from flags of the process.

    If there are as many threads as cores, each has a core of its own.
    """
    runtime = iree_runtime()
    with _FLAGS:
        runtime.get_driver("local-task")  # the first call keeps the flags set before
        if threads == physical_cores():
            return _new_driver("local-task")
        runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        try:
            return _new_driver("local-task")
        finally:
            runtime.flags.parse_flags("--task_topology_group_count=0")


class OpenDevice:
    """A device in use, until the last executable that is loaded on it is freed.

    Two threads of IREE poll while Mesa's software Vulkan device is open
    (`subquant.runtime.cpu_affinity`): no program should be compiled at this time.

    Args:
        uri: IREE's URI of the device.
        threads: the number of threads of a CPU; None for IREE's choice.

    Attributes:
        is_host: its memory is that of this process.
        has_threads: the caller waits for threads of IREE that compute.
        is_synchronous: a submission returns after its work is done.

    Raises:
        EnvironmentProblem: there is no such device.
    """

    def __init__(self, uri: str, threads: int | None = None) -> None:
        self._modules: list[tuple[weakref.ref[object], tuple[object, ...]]] = []
        self.process = os.getpid()
        self.uri = uri
        self.is_host = uri.startswith("local-")
        self.has_threads = uri.startswith("local-task")
        self.is_synchronous = uri.startswith("local-sync")
        threads_before = set() if self.is_host else list_threads()
        try:
            # IREE's cache of devices is never emptied: one in it would not be closed. And the
            # drivers in its cache have the threads of the process that made them.
            if uri == "local-task" and threads is not None:
                self.handle = _driver_of_threads(threads).create_device_by_uri(uri)
            elif is_forked():
                # A driver that the parent of this process has not used.
                name = uri.partition("://")[0]
                if name not in _DRIVERS:
                    _DRIVERS[name] = _new_driver(name)
                self.handle = _DRIVERS[name].create_device_by_uri(uri)
            else:
                self.handle = iree_runtime().get_device(uri, cache=False)
        except (RuntimeError, ValueError, IndexError) as error:
            raise EnvironmentProblem(no_device_message(uri, error)) from None
        lower_busy_threads(threads_before)
        _OPEN.add(self)

    def __del__(self) -> None:
        self.__dict__.pop("handle", None)  # before the modules: see `keep`

    def keep(self, user: object, *modules: object) -> None:
        """Keep modules until their user is freed and others are kept, or the device is closed.

        A thread of IREE may release an object of a call, such as memory that a module has mapped,
        after the call has returned. It needs the GIL, and a device that is closed waits for its
        threads with the GIL: both would wait forever.
        """
        self._modules = [each for each in self._modules if each[0]() is not None]
        self._modules.append((weakref.ref(user), modules))

    def upload(self, array: Array, element: str) -> Any:
        """Copy an array into a new device buffer and return a buffer view.

        On a CPU a repeated zero (`np.broadcast_to`) takes memory only where it is written to.

        Args:
            array: an array of any shape, of the dtype for `element`.
            element: the MLIR element type.

        Raises:
            ExecutionError: the device is out of memory.
        """
        try:
            return self._uploaded(array, element)
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise ExecutionError(
                f"there is no room in the device's memory for an array of {array.nbytes:,} bytes"
            ) from None

    def _uploaded(self, array: Array, element: str) -> Any:
        """Return the buffer view of `upload`; RuntimeError of IREE if there is no room."""
        runtime = iree_runtime()
        type_ = _hal_element_type(element)
        allocator, memory, usage = self.handle.allocator, _memory(), _usage()
        if self.is_host and array.nbytes >= _MIN_LENT_BYTES and _is_repeated_zero(array):
            buffer = allocator.allocate_buffer(memory, usage, array.nbytes)
            target = buffer.map().asarray((array.nbytes,), np.dtype(np.uint8))
            if target.any():  # new memory that is only read takes no pages
                target[:] = 0
            return runtime.HalBufferView(buffer, array.shape, int(type_))
        data = np.asarray(array, order="C")
        if self.is_host:
            return allocator.allocate_buffer_copy(memory, usage, self.handle, data, type_)
        # Whole words, because a device may load the last bytes with the word around them.
        size = max(-(-data.nbytes // 4) * 4, 4)
        buffer = allocator.allocate_buffer(memory, usage, size)
        mapped = buffer.map()
        target = mapped.asarray((size,), np.dtype(np.uint8))
        target[: data.nbytes] = data.reshape(-1).view(np.uint8)
        target[data.nbytes :] = 0
        del target, mapped
        return runtime.HalBufferView(buffer, data.shape, int(type_))

    def lend(self, array: Array, element: str) -> tuple[Any, Any] | None:
        """Return a buffer view of an array's own memory, and the object to keep while it is used.

        None if the array must be copied: it has not the layout of programs, or is so small that the
        check takes longer. The program must not write to it.
        """
        if not (self.is_host and is_lendable(array)):
            return None
        return self.view_of_memory(array, element), array

    def view_of_memory(self, array: Array, element: str) -> Any:
        """Return a buffer view of an aligned array's memory; it does not keep the array alive."""
        # IREE asks for memory that may be written to, which an array need not be.
        memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
        buffer = self.handle.allocator.import_host_allocation(memory, _memory(), _usage())
        type_ = int(_hal_element_type(element))
        return iree_runtime().HalBufferView(buffer, array.shape, type_)

    def host_bytes(self, view: Any) -> Array:
        """Return the bytes of a buffer or buffer view in the memory of a CPU, read-only."""
        data: Array = np.frombuffer(view.map(), np.uint8)  # read-only
        return data

    def writable_bytes(self, view: Any) -> Array:
        """Return the bytes of a buffer view in the memory of a CPU."""
        buffer = view.get_buffer()
        data: Array = buffer.map().asarray((buffer.byte_length(),), np.dtype(np.uint8))
        return data

    def download(self, view: Any, dtype: DType) -> Array:
        """Copy a buffer view into a new array, which can be lent if it is large."""
        shape = tuple(view.shape)
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.zeros(shape, dtype)
        source = view
        if not self.is_host:
            runtime = iree_runtime()
            source = self._copied(
                view.get_buffer(),
                runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE,
                runtime.BufferUsage.TRANSFER | runtime.BufferUsage.MAPPING,
            )
        return returned_copy(self.host_bytes(source)[:size].view(dtype).reshape(shape))

    def copied(self, view: Any) -> Any:
        """Return a buffer view of a copy of a buffer."""
        runtime = iree_runtime()
        buffer = self._copied(view.get_buffer(), _memory(), _usage())
        return runtime.HalBufferView(buffer, view.shape, int(view.element_type))

    def _copied(self, source: Any, memory: int, usage: int) -> Any:
        """Copy a buffer into a new one, and wait until the copy is done."""
        target = self.handle.allocator.allocate_buffer(
            int(memory), int(usage), source.byte_length()
        )
        self.complete(self.handle.queue_copy, source, target)
        return target

    def complete(self, submit: Callable[..., object], *arguments: object) -> None:
        """Submit work, and wait until it is done.

        On a Vulkan device the caller waits on the semaphore itself. A caller that waits on a fence
        is woken by a thread of IREE, and polls until that has gone on
        (`subquant.runtime.cpu_affinity`). If both are on one processor this lasts until the
        scheduler's next tick: 8 ms for 0.3 ms of work.

        Args:
            submit: called with the arguments, and then the fence that the work waits for and the
                fence that it signals.
            *arguments: its first arguments. The closure of a function would keep buffers in the
                traceback of an error, whose frames can be cleared of all else.
        """
        done = self.handle.create_semaphore(0)
        fence = iree_runtime().HalFence.create_at
        submit(*arguments, fence(done, 0), fence(done, 1))
        if self.has_threads:
            yielding_to_waker(fence(done, 1).wait)()
        else:
            done.wait(1)


def _is_repeated_zero(array: Array) -> bool:
    """True for one zero that is each element (`np.broadcast_to`)."""
    return not any(array.strides) and not np.asarray(array[(0,) * array.ndim]).tobytes().strip(
        b"\0"
    )


def returned_copy(data: Array) -> Array:
    """Return a copy, which can be lent if it is large."""
    return aligned_copy(data) if is_large(data.nbytes) else data.copy()


def aligned_copy(data: Array) -> Array:
    """Return a copy with the alignment of programs; NumPy aligns to 16 bytes."""
    memory = np.empty(data.nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    array: Array = memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    array[...] = data
    return array


@functools.cache
def _memory() -> int:
    """Return IREE's memory type of buffers that programs use."""
    runtime = iree_runtime()
    return int(runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE)


@functools.cache
def _usage() -> int:
    """Return IREE's usage of buffers that programs use, and that can be mapped."""
    runtime = iree_runtime()
    return int(runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING)


def is_lendable(array: Array) -> bool:
    """True for a large array with the layout of programs."""
    is_worth_it = array.nbytes >= _MIN_LENT_BYTES and array.flags.c_contiguous
    return is_worth_it and not array.ctypes.data % _ALIGNMENT_BYTES


def is_large(size: int) -> bool:
    """True for the bytes of an array that may be lent, and need not be copied."""
    return size >= _MIN_LENT_BYTES


def no_device_message(uri: str, error: Exception) -> str:
    """Return the message for a device that cannot be opened."""
    runtime = iree_runtime()
    scheme = uri.partition("://")[0]
    if scheme not in runtime.query_available_drivers():
        schemes = [*DEVICES, *runtime.query_available_drivers()]
        advice = expected_name(scheme, dict.fromkeys(schemes), "a name or an IREE device URI of")
        return f"no device {quoted(uri)}; {advice}"
    reason = str(error).splitlines()[0]
    if uri.startswith("vulkan"):
        return (
            f"no Vulkan device '{uri}' ({reason}); on Debian install libvulkan1 and "
            "mesa-vulkan-drivers for a software device, or set VK_DRIVER_FILES"
        )
    return f"no device '{uri}' ({reason}); expected llvm-cpu, vulkan or an IREE device URI"
