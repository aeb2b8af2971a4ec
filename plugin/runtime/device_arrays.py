"""Device arrays: arrays in a device's memory, which functions take, and return on request.

The memory has the layout of a program: a quantized array has its storage values, packed if its type
is, and keeps its type. A `DeviceArray` never changes: a program that may write to an argument gets
a copy, unless the array is donated to the call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError, SignatureError, SubquantError
from ..numerics.element_types import Array, DType, ElementType
from ..numerics.shapes import Shaped
from ..signature import ValueType
from .arguments import (
    abi_element,
    element_type,
    pack_storage,
    storage_of_argument,
    unpack_storage,
    user_array_of_result,
)
from .native_calls import check_process, native_call
from .open_device import OpenDevice


class DeviceArray(Shaped):
    """An array in a device's memory, made by `Device.put`, `Function.put` and resident calls.

    It follows NumPy's protocols: ``np.asarray(x)`` reads it, on a CPU without a copy if NumPy has
    the same layout (then the array is read-only); so does DLPack.

    Attributes:
        shape: the dimension sizes.
        buffer_view: IREE's view of the memory; None after a donation.
        type: the value type, with the quantization parameters if it is quantized.
        is_host: the memory is that of a CPU.
        is_shared: an array of NumPy or a program may read the memory later.
        prepacked: the packed tensors of functions that read it as a weight
            (`subquant.runtime.prepacked_arguments`).
    """

    __slots__ = (
        *("__weakref__", "_device", "_kept_alive", "_memory", "buffer_view", "is_host"),
        *("is_shared", "prepacked", "shape", "type"),
    )

    shape: tuple[int, ...]

    def __init__(
        self,
        device: OpenDevice,
        view: Any,
        type_: ValueType,
        shape: tuple[int, ...],
        memory: Array | None = None,
    ) -> None:
        self.shape = shape
        self.type = type_
        self.buffer_view = view
        self._memory = memory
        self._kept_alive: Any = None
        self.prepacked: dict[object, Sequence[Any]] = {}
        self._device = device
        self.is_host = device.is_host
        self.is_shared = False

    def __del__(self) -> None:
        # Before its device, whatever the garbage collector does.
        self._memory = self.buffer_view = self._kept_alive = None
        self.prepacked = {}

    @property
    def dtype(self) -> DType:
        """The dtype of `numpy`: that of the storage if the array is quantized."""
        parameters = self.type.parameters
        return parameters.storage.dtype if parameters else element_type(self.type.element).dtype

    @property
    def nbytes(self) -> int:
        """The size in bytes in the device's memory."""
        return int(self.view.get_buffer().byte_length())

    @property
    def view(self) -> Any:
        """IREE's view of the memory; ExecutionError after a donation, or in a forked process."""
        if not self.is_host:
            check_process(self._device.process)
        if self.buffer_view is None:
            raise ExecutionError(
                "this array was donated to a call, which may have used its memory for a result; "
                "use the result, or leave it out of donate"
            )
        return self.buffer_view

    @property
    def memory(self) -> Array:
        """The bytes in the memory of a CPU, read-only."""
        if self._memory is None:
            self._memory = self._device.host_bytes(self.view)
        return self._memory

    def numpy(self, *, quantized_io: bool = False) -> Array:
        """Return a copy as a NumPy array.

        Args:
            quantized_io: return reals if the array is quantized; else storage values.
        """
        view, type_ = self.view, self.type
        with native_call():
            stored = self._device.download(view, element_type(abi_element(type_.abi[0])).dtype)
        if type_.plane_bits is not None:
            stored = unpack_storage(stored, type_)
        return user_array_of_result(stored, type_, quantized_io).reshape(self.shape)

    def donate(self) -> None:
        """Give up the memory: later uses of the array are errors."""
        self._kept_alive = self.buffer_view if self.is_shared else None
        self._memory = self.buffer_view = None
        self.prepacked = {}

    def is_on(self, device: OpenDevice) -> bool:
        """True for an array in the memory of `device`."""
        return self._device is device or (self._device.is_host and device.is_host)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = "" if None not in (self.type.shape or (None,)) else f" of shape {self.shape}"
        return f"<DeviceArray {self.type}{shape} on '{self._device.uri}'>"

    # -- protocols --------------------------------------------------------------------------------

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's access to the memory itself, which it prefers to `__array__`."""
        dtype, stored = self.dtype, element_type(abi_element(self.type.abi[0])).dtype
        parameters, is_whole = self.type.parameters, self.type.plane_bits is None
        if parameters is not None and not parameters.storage.signed:
            is_whole &= parameters.storage.width == 8 * dtype.itemsize
        if self.type.element.startswith("ui"):
            is_whole &= element_type(self.type.element).bits == 8 * dtype.itemsize
        is_same = is_whole and dtype.itemsize == stored.itemsize and dtype.kind in "biuf"
        if not (is_same and self._device.is_host and self.size):
            raise AttributeError("the memory has not the layout of NumPy")
        self.is_shared = True
        address = self._device.host_bytes(self.view).ctypes.data
        return {"data": (address, True), "shape": self.shape, "typestr": dtype.str, "version": 3}

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the memory has not the layout of NumPy; it takes a copy to read")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        array = np.asarray(self)
        can_be_read_only = max_version is not None and max_version[0] >= 1
        if copy or (copy is None and not can_be_read_only):
            array = array.copy()
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        return array.__dlpack__(
            **{key: value for key, value in options.items() if value is not None}
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # this process's memory, of a copy if it has to be


def put(
    device: OpenDevice, array: npt.ArrayLike, like: ValueType | None, label: str, quantized_io: bool
) -> DeviceArray:
    """Copy an array into a device's memory.

    Args:
        like: the type to store it as; None for the type of a tensor.
        label: the name of the array in errors.
        quantized_io: reals are given for a quantized type.

    Raises:
        SignatureError: it does not fit `like`.
    """
    if like is None:
        array = np.asarray(array)
        like = _type_of(array, label)
    if not like.abi[0].startswith("tensor"):
        raise SignatureError(f"{label} is a number ({like}), which each call is given as it is")
    stored = storage_of_argument(array, like, label, quantized_io)
    view = device.upload(pack_storage(stored, like), abi_element(like.abi[0]))
    return DeviceArray(device, view, like, stored.shape)


def _type_of(array: Array, label: str) -> ValueType:
    """Return the type of a tensor that stores an array unchanged."""
    try:
        element = ElementType.of_dtype(array.dtype)
    except SubquantError as error:
        raise SignatureError(f"{label} is no array that programs take: {error.message}") from None
    is_unsigned = element.kind == "uint"
    stored = f"i{element.bits}" if is_unsigned else element.name
    dims = "".join(f"{size}x" for size in array.shape)
    return ValueType(
        f"ui{element.bits}" if is_unsigned else element.name,
        array.shape,
        abi=(f"tensor<{dims}{stored}>",),
    )


def check_device_array(
    array: DeviceArray, type_: ValueType, label: str, device: OpenDevice
) -> None:
    """Raise SignatureError if a device array does not fit an argument, except for its shape."""
    if not array.is_on(device):
        raise SignatureError(
            f"{label} lies in the memory of another device ({array!r}); put it on that of the "
            "executable, or give it as an array: x.numpy()"
        )
    if array.type is not type_ and not _holds(array.type, type_):
        raise SignatureError(
            f"{label} must be stored as {type_}, got {array!r}; store it with put of this "
            "function: f.put(argument, array)"
        )


def _holds(stored_type: ValueType, type_: ValueType) -> bool:
    """True if the values of one type are stored like those of the other, and are in its range."""
    stored, expected = stored_type.abi[0], type_.abi[0]
    if abi_element(stored) != abi_element(expected) or not expected.startswith("tensor"):
        return False
    if stored_type.plane_bits != type_.plane_bits:
        return False
    if stored_type.parameters is not None and type_.parameters is not None:
        return stored_type.parameters == type_.parameters
    if stored_type.element == type_.element and stored_type.parameters is type_.parameters:
        return True
    stored_range, expected_range = _range_of(stored_type), _range_of(type_)
    if stored_range is None or expected_range is None or stored_range[0] != expected_range[0]:
        return False
    is_signless = type_.parameters is None and not type_.element.startswith("ui")
    return (
        is_signless or expected_range[1] <= stored_range[1] <= stored_range[2] <= expected_range[2]
    )


def _range_of(type_: ValueType) -> tuple[int, int, int] | None:
    """Return the bits, the minimum and the maximum of an integer type; None for other types."""
    match = re.fullmatch(r"(u?)i(\d+)", type_.element)
    if match is None:
        return None
    bits = int(match.group(2))
    if type_.parameters is not None:
        return bits, type_.parameters.storage.minimum, type_.parameters.storage.maximum
    low = 0 if match.group(1) else -(1 << (bits - 1))
    return bits, low, low + (1 << bits) - 1
