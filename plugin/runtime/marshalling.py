"""Marshalling of arguments and results between the user and a compiled function.

A call of a short program takes 5 us more than its computation, and 9 us if a NumPy array is
converted. Everything that depends only on types is therefore computed when an executable is loaded.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError
from ..numerics.element_types import Array, DType
from ..signature import ValueType
from .arguments import (
    abi_element,
    check_shape,
    element_type,
    pack_storage,
    storage_of_argument,
    user_array_of_result,
)
from .device_arrays import DeviceArray, check_device_array
from .open_device import OpenDevice, iree_runtime, is_large

_MAX_ACCEPTED_TYPES = 64
"""Array types that are remembered to fit an argument, at most."""


class Call:
    """A call that is being made.

    Args:
        inputs, outputs: the capacity of the lists of arguments and results.

    Attributes:
        kept_alive: objects that must live as long as the call.
        used_memory: memory of arguments, which results may share.
    """

    def __init__(self, device: OpenDevice, inputs: int, outputs: int) -> None:
        runtime = iree_runtime()
        self.pushed = runtime.VmVariantList(inputs)
        self.popped = runtime.VmVariantList(outputs)
        self.position = 0
        self.kept_alive: list[Any] = []
        self.used_memory = _MemoryRanges()
        self.device = device  # the last that is let go

    def push(self, view: Any) -> None:
        """Append a buffer view to the arguments."""
        self.kept_alive.append(view)
        self.pushed.push_ref(view)

    def pop_view(self) -> Any:
        """Return the next result, a buffer view."""
        self.position += 1
        return self.popped.get_as_object(self.position - 1, iree_runtime().HalBufferView)


class _MemoryRanges:
    """Ranges of memory with a fast test for overlaps: 2 us for 72 ranges."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []  # which keep their memory
        # Sorted ranges without overlaps: overlapping ranges are merged.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, array: Array) -> None:
        """Add the memory of a contiguous array."""
        self._arrays.append(array)
        start, end = _address_range(array)
        if start == end:
            return
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def overlap(self, array: Array) -> bool:
        """True if the memory of an array overlaps one of the ranges."""
        start, end = _address_range(array)
        before = bisect_left(self._starts, end)
        return start < end and before > 0 and self._ends[before - 1] > start


def _address_range(array: Array) -> tuple[int, int]:
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


class Parameter:
    """An argument of a compiled function.

    Args:
        label: its name in errors.
        is_read_later: the program may read arrays after it has returned.

    Attributes:
        accepted_types: types of device arrays that fit, by their ``id``.
    """

    def __init__(self, type_: ValueType, label: str, is_read_later: bool) -> None:
        self.type = type_
        self.is_read_later = is_read_later
        self.may_lend = not (type_.is_consumed or is_read_later)
        self.label = label
        self.element = abi_element(type_.abi[0])
        self.is_tensor = type_.abi[0].startswith("tensor")
        self.is_float = element_type(self.element).is_float
        self._dtypes = self._dtypes_stored_unchanged() if self.is_tensor else ()
        self.accepted_types = {id(type_): type_}
        self._integers = range(0) if self.is_tensor else self._integers_stored_unchanged()

    def __str__(self) -> str:
        return f"{self.type.name}: {self.type}" if self.type.name else str(self.type)

    def _dtypes_stored_unchanged(self) -> tuple[DType, ...]:
        """Return the dtypes of arrays that are stored unchanged if the shape fits."""
        type_, stored = self.type, element_type(self.element).dtype
        if type_.plane_bits is not None:
            return ()
        if type_.parameters is not None:
            storage = type_.parameters.storage
            is_whole = not storage.is_narrowed and storage.width == 8 * stored.itemsize
            return (storage.dtype,) if is_whole else ()
        element = element_type(type_.element)
        if not element.is_integer:
            return (stored,) if element.dtype == stored else ()
        if element.bits != 8 * stored.itemsize:
            return ()
        kinds = "iu" if element.kind == "int" else "u"
        return tuple(np.dtype(f"{kind}{stored.itemsize}") for kind in kinds)

    def _integers_stored_unchanged(self) -> range:
        """Return the integers that need no further check."""
        element = element_type(self.type.element)
        if self.type.parameters is not None or element.kind != "int":
            return range(0)
        return range(-(1 << (element.bits - 1)), 1 << (element.bits - 1))

    def stored(
        self, argument: npt.ArrayLike, device: OpenDevice, quantized_io: bool
    ) -> Array | DeviceArray | int:
        """Check an argument, and return its storage; SignatureError if it does not fit its type."""
        type_ = self.type
        if isinstance(argument, DeviceArray):
            if id(argument.type) not in self.accepted_types or not argument.is_on(device):
                check_device_array(argument, type_, self.label, device)
                if len(self.accepted_types) == _MAX_ACCEPTED_TYPES:
                    self.accepted_types.clear()
                self.accepted_types[id(argument.type)] = argument.type
            if argument.shape != type_.shape:
                check_shape(argument.shape, type_, self.label)
            return argument
        if (
            type(argument) is np.ndarray
            and self.accepts(argument)
            and not (quantized_io and type_.parameters is not None)
        ):
            return argument
        if type(argument) is int and argument in self._integers:
            return argument
        return pack_storage(storage_of_argument(argument, type_, self.label, quantized_io), type_)

    def accepts(self, array: Array) -> bool:
        """True for an array that is stored unchanged."""
        return array.shape == self.type.shape and array.dtype in self._dtypes

    def push(self, call: Call, value: Any, is_donated: bool) -> None:
        """Append the storage that `stored` returned to the arguments of a call."""
        if not self.is_tensor:
            if self.is_float:
                call.pushed.push_float(float(value))
            else:
                call.pushed.push_int(int(value))
            return
        is_unranked = self.type.shape is None
        shape = value.shape
        if isinstance(value, DeviceArray):
            call.push(self._view_of(call, value, is_donated))
        else:
            array = value.reshape(-1) if is_unranked else value
            lent = call.device.lend(array, self.element) if self.may_lend else None
            if lent is None:
                call.push(call.device.upload(array, self.element))
            else:
                call.kept_alive.append(lent)
                call.push(lent[0])
                call.used_memory.add(array)
        if is_unranked:
            call.push(call.device.upload(np.array(shape, np.int64), "i64"))

    def _view_of(self, call: Call, array: DeviceArray, is_donated: bool) -> Any:
        """Return the memory of an array, or of a copy if the program may write to it."""
        device, view = call.device, array.view
        in_place = is_donated and device.is_host and not array.is_shared
        array.is_shared |= self.is_read_later
        if self.type.is_consumed and not in_place:
            return device.copied(view)
        if device.is_host and not in_place:
            call.used_memory.add(array.memory)
        if (self.type.shape is None) != (array.type.shape is None):
            shape = (array.size,) if self.type.shape is None else array.shape
            return iree_runtime().HalBufferView(view.get_buffer(), shape, int(view.element_type))
        return view


class Result:
    """A result of a compiled function.

    Args:
        is_read_later: the program may read it after it has returned.

    Attributes:
        shape: its sizes; None if that is dynamic.
        direct: the dtype of a result that is returned without conversion; None for others.
        is_small: the shape is static, and an array of it is not worth lending.
    """

    def __init__(self, type_: ValueType, is_read_later: bool) -> None:
        self.type = type_
        self.is_read_later = is_read_later
        self.is_tensor = type_.abi[0].startswith("tensor")
        self.dtype = element_type(abi_element(type_.abi[0])).dtype
        static = tuple(size for size in type_.shape or () if size is not None)
        self.shape = static if static == type_.shape and self.is_tensor else None
        parameters = type_.parameters
        self._is_final = (
            parameters is None
            and not type_.element.startswith("ui")
            and element_type(type_.element).dtype == self.dtype
        )
        size = 0 if self.shape is None else math.prod(self.shape) * self.dtype.itemsize
        returned = self.dtype if self._is_final else _unconverted_dtype(type_)
        is_whole = returned is not None and returned.itemsize == self.dtype.itemsize
        self.direct = returned if is_whole and size else None
        self.is_small = size > 0 and not is_large(size)

    def pop(self, call: Call, quantized_io: bool, resident: bool) -> Array | DeviceArray:
        """Return the next result of a call; ExecutionError if its shape is not the returned one."""
        if not self.is_tensor:
            call.position += 1
            array = _scalar(call.popped.get_variant(call.position - 1), self.dtype)
            return self._user_array(array, quantized_io)
        view = call.pop_view()
        shape = self.shape or tuple(view.shape)
        if self.type.shape is None:
            sizes = call.device.download(call.pop_view(), np.dtype(np.int64))
            if int(np.prod(sizes)) != math.prod(shape):
                raise ExecutionError(
                    f"a result has {math.prod(shape)} elements, and its shape is {sizes.tolist()}"
                )
            shape = tuple(sizes.tolist())
        if resident:
            alone, memory = _unshared(call, view)
            result = DeviceArray(call.device, alone, self.type, shape, memory)
            result.is_shared = self.is_read_later
            return result
        return self._user_array(call.device.download(view, self.dtype).reshape(shape), quantized_io)

    def _user_array(self, array: Array, quantized_io: bool) -> Array:
        return array if self._is_final else user_array_of_result(array, self.type, quantized_io)


def _unconverted_dtype(type_: ValueType) -> DType | None:
    """Return the dtype of unsigned integers and storage values that NumPy stores alike, or None."""
    if type_.plane_bits is not None:
        return None
    if type_.parameters is None:
        element = element_type(type_.element)
        return element.dtype if type_.element == f"ui{8 * element.dtype.itemsize}" else None
    storage = type_.parameters.storage
    is_same = storage.signed or storage.width == 8 * storage.dtype.itemsize
    return storage.dtype if is_same else None


def _unshared(call: Call, view: Any) -> tuple[Any, Array | None]:
    """Return a result in memory of its own: IREE returns the argument itself for ``x + 0``."""
    if not call.device.is_host:
        return view, None
    memory = call.device.host_bytes(view)
    if call.used_memory.overlap(memory):
        return call.device.copied(view), None
    call.used_memory.add(memory)
    return view, memory


def _scalar(value: Any, dtype: DType) -> Array:
    """Return a number of IREE's virtual machine, which returns narrow integers as unsigned ones."""
    if dtype.kind != "i":
        return np.asarray(value, dtype)
    bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return np.asarray(bits, f"u{dtype.itemsize}").view(dtype)
