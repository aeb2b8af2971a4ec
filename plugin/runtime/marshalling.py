"""Arguments and results of a compiled function: what is found out once, and what each call does.

A call of a short program takes 5 us beside what that computes, and 9 with an array of NumPy's that
becomes another. So what depends on types alone is found out when an executable is loaded.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError
from ..numerics.element_types import Array, DType
from ..signature import ValueType
from . import native_calls
from .arguments import (
    abi_element,
    array_of_argument,
    array_of_result,
    check_shape,
    element_type,
    held,
)
from .device_arrays import DeviceArray, check_taken
from .entry_points import Entry
from .native_calls import Calls, begin_call, native_call
from .open_device import OpenDevice, iree_runtime, is_large
from .prepacked_arguments import Layouts

__all__ = ["Call", "DirectCalls", "Parameter", "Prepared", "Result", "returned_of"]

_MOST_TAKEN = 64
"""Types of arrays for which it is not found out again that they fit."""


class Call:
    """A call that is being made.

    Args:
        device: where.
        inputs, outputs: how many arguments and results there are room for.

    Attributes:
        kept: what must live as long as the call.
        shared: where results may lie that are not theirs alone.
    """

    def __init__(self, device: OpenDevice, inputs: int, outputs: int) -> None:
        runtime = iree_runtime()
        self.pushed = runtime.VmVariantList(inputs)
        self.popped = runtime.VmVariantList(outputs)
        self.position = 0
        self.kept: list[Any] = []
        self.shared = _Pieces()
        self.device = device  # the last that is let go

    def push(self, view: Any) -> None:
        """Push a buffer view."""
        self.kept.append(view)
        self.pushed.push_ref(view)

    def pop_view(self) -> Any:
        """Pop a buffer view."""
        self.position += 1
        return self.popped.get_as_object(self.position - 1, iree_runtime().HalBufferView)


class _Pieces:
    """Pieces of memory, of which is asked whether another one overlaps: of 72, one takes 2 us."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []  # which keep their memory
        # Of pieces that do not overlap, in order: those that do are one.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, array: Array) -> None:
        """Add the memory of an array, which is contiguous."""
        self._arrays.append(array)
        start, end = _ends_of(array)
        if start == end:
            return
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def overlap(self, array: Array) -> bool:
        """True if the memory of an array is also one of these."""
        start, end = _ends_of(array)
        before = bisect_left(self._starts, end)
        return start < end and before > 0 and self._ends[before - 1] > start


def _ends_of(array: Array) -> tuple[int, int]:
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


class Parameter:
    """An argument of a compiled function.

    Args:
        type_: its type.
        where: what errors call it.
        is_read_later: the program may read arrays after it has returned.

    Attributes:
        taken: types of arrays in a device's memory that fit, by their ``id``.
    """

    def __init__(self, type_: ValueType, where: str, is_read_later: bool) -> None:
        self.type = type_
        self.is_read_later = is_read_later
        self.may_lend = not (type_.is_consumed or is_read_later)
        self.where = where
        self.element = abi_element(type_.abi[0])
        self.is_tensor = type_.abi[0].startswith("tensor")
        self.is_float = element_type(self.element).is_float
        self._dtypes = self._taken_as_they_are() if self.is_tensor else ()
        self.taken = {id(type_): type_}
        self._integers = range(0) if self.is_tensor else self._integers_as_they_are()

    def _taken_as_they_are(self) -> tuple[DType, ...]:
        """The dtypes of which every array is stored as it is, if the shape is right."""
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

    def _integers_as_they_are(self) -> range:
        """The integers that a number may be without a further check."""
        element = element_type(self.type.element)
        if self.type.parameters is not None or element.kind != "int":
            return range(0)
        return range(-(1 << (element.bits - 1)), 1 << (element.bits - 1))

    def stored(
        self, argument: npt.ArrayLike, device: OpenDevice, quantized_io: bool
    ) -> Array | DeviceArray | int:
        """Check an argument, and return it as it is stored.

        Raises:
            SignatureError: it does not fit its type.
        """
        type_ = self.type
        if isinstance(argument, DeviceArray):
            if id(argument.type) not in self.taken or not argument.is_on(device):
                check_taken(argument, type_, self.where, device)
                if len(self.taken) == _MOST_TAKEN:
                    self.taken.clear()
                self.taken[id(argument.type)] = argument.type
            if argument.shape != type_.shape:
                check_shape(argument.shape, type_, self.where)
            return argument
        if (
            type(argument) is np.ndarray
            and self.takes(argument)
            and not (quantized_io and type_.parameters is not None)
        ):
            return argument
        if type(argument) is int and argument in self._integers:
            return argument
        return held(array_of_argument(argument, type_, self.where, quantized_io), type_)

    def takes(self, array: Array) -> bool:
        """True for an array that is stored as it is."""
        return array.shape == self.type.shape and array.dtype in self._dtypes

    def push(self, call: Call, value: Any, is_donated: bool) -> None:
        """Push what `stored` returned."""
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
                call.kept.append(lent)
                call.push(lent[0])
                call.shared.add(array)
        if is_unranked:
            call.push(call.device.upload(np.array(shape, np.int64), "i64"))

    def _view_of(self, call: Call, array: DeviceArray, is_donated: bool) -> Any:
        """The memory of an array, or a copy of it if the program may write there."""
        device, view = call.device, array.view
        in_place = is_donated and device.is_host and not array.is_shared
        array.is_shared |= self.is_read_later
        if self.type.is_consumed and not in_place:
            return device.copied(view)
        if device.is_host and not in_place:
            call.shared.add(array.memory)
        if (self.type.shape is None) != (array.type.shape is None):
            extents = (array.size,) if self.type.shape is None else array.shape
            return iree_runtime().HalBufferView(view.get_buffer(), extents, int(view.element_type))
        return view


class Result:
    """A result of a compiled function.

    Args:
        type_: its type.
        is_read_later: the program may read it after it has returned.

    Attributes:
        extents: its shape, where that is known.
        direct: the dtype of elements that are returned as they lie, of a small array; None for
            others.
    """

    def __init__(self, type_: ValueType, is_read_later: bool) -> None:
        self.type = type_
        self.is_read_later = is_read_later
        self.is_tensor = type_.abi[0].startswith("tensor")
        self.dtype = element_type(abi_element(type_.abi[0])).dtype
        extents = tuple(extent for extent in type_.shape or () if extent is not None)
        self.extents = extents if extents == type_.shape and self.is_tensor else None
        parameters = type_.parameters
        self._is_final = (
            parameters is None
            and not type_.element.startswith("ui")
            and element_type(type_.element).dtype == self.dtype
        )
        size = 0 if self.extents is None else math.prod(self.extents) * self.dtype.itemsize
        returned = self.dtype if self._is_final else _storage_dtype(type_)
        is_whole = returned is not None and returned.itemsize == self.dtype.itemsize
        self.direct = returned if is_whole and size and not is_large(size) else None

    def pop(self, call: Call, quantized_io: bool, resident: bool) -> Array | DeviceArray:
        """Pop the result of a call.

        Args:
            call: the call, which has been made.
            quantized_io: return reals, if it is quantized.
            resident: leave it in the device's memory.

        Raises:
            ExecutionError: it does not have the extents that the program says.
        """
        if not self.is_tensor:
            call.position += 1
            array = _scalar(call.popped.get_variant(call.position - 1), self.dtype)
            return self._given(array, quantized_io)
        view = call.pop_view()
        shape = self.extents or tuple(view.shape)
        if self.type.shape is None:
            extents = call.device.download(call.pop_view(), np.dtype(np.int64))
            if int(np.prod(extents)) != math.prod(shape):
                raise ExecutionError(
                    f"a result has {math.prod(shape)} elements, and its shape is {extents.tolist()}"
                )
            shape = tuple(extents.tolist())
        if resident:
            alone, memory = _alone(call, view)
            found = DeviceArray(call.device, alone, self.type, shape, memory)
            found.is_shared = self.is_read_later
            return found
        return self._given(call.device.download(view, self.dtype).reshape(shape), quantized_io)

    def _given(self, array: Array, quantized_io: bool) -> Array:
        return array if self._is_final else array_of_result(array, self.type, quantized_io)


class DirectCalls:
    """Calls of a function on a CPU with arrays that fit: in its memory, or small ones of NumPy's.

    What a call does as any other, in few steps: a program that reads a long weight leaves nothing
    of this one in a core's caches, and each line of it is read from memory again.

    Args:
        device: where.
        parameters, results: of the function.
        entry: how it is called.
        layouts: of its weights; None if it has none.
        invoke: runs a function, with a list of what it is given and one for what it returns.
        failed: makes an error of what IREE's runtime says.
    """

    def __init__(
        self,
        device: OpenDevice,
        parameters: Sequence[Parameter],
        results: Sequence[Result],
        entry: Entry,
        layouts: Layouts | None,
        invoke: Callable[[Any, Any, Any], object],
        failed: Callable[[Exception], Exception],
    ) -> None:
        runtime = iree_runtime()
        self._device, self._invoke = device, invoke
        self._entry, self._layouts = entry, layouts
        self._new_list, self._view = runtime.VmVariantList, runtime.HalBufferView
        self._parameters = [(each.type, each) for each in parameters]
        self._results = [(each.type, each.extents or ()) for each in results]
        self._is_one = len(results) == 1 and results[0].type.is_fresh
        self._failed = failed
        self._numbers = [
            (each.direct, math.prod(each.extents or ()), each.extents or ())
            for each in results
            if each.direct is not None
        ]
        is_possible = (
            device.is_host
            and all(each.may_lend and each.is_tensor for each in parameters)
            and not any(None in (each.type.shape or ()) for each in parameters)
            and not any(each.type.shape is None for each in parameters)
            and not any(each.is_read_later or each.extents is None for each in results)
        )
        self._count = len(parameters) if is_possible else -1

    def call(
        self, arguments: Sequence[object], resident: bool
    ) -> Sequence[DeviceArray | Array] | None:
        """Return the results; None if an argument or a result needs more than this.

        Args:
            arguments: as for a call of the function, where reals are given as such only.
            resident: leave results in the device's memory.

        Raises:
            ExecutionError: as a call of the function.
        """
        if len(arguments) != self._count or not (
            resident or len(self._numbers) == len(self._results)
        ):
            return None
        end = begin_call(self._device.process)
        try:
            pushed = self._new_list(self._count)
            for array, (own, parameter) in zip(arguments, self._parameters, strict=False):
                if type(array) is np.ndarray:
                    if is_large(array.nbytes) or not parameter.takes(array):
                        return None
                    pushed.push_ref(self._device.upload(array, parameter.element))
                    continue
                if type(array) is not DeviceArray or not array.is_host:
                    return None
                # An array has the extents of its type, which are known where it is `own`.
                if array.type is not own and (
                    id(array.type) not in parameter.taken or array.shape != own.shape
                ):
                    return None
                pushed.push_ref(array.buffer_view or array.view)
            function = self._entry.run
            if self._layouts is not None:
                pieces = self._layouts.pieces(arguments, self._invoke)
                if pieces is not None:
                    function = self._layouts.entry.run
                    for view in pieces:
                        pushed.push_ref(view)
            popped = self._new_list(1)
            if not resident:
                self._invoke(function, pushed, popped)
                return [
                    self._number(popped.get_as_object(place, self._view), *how)
                    for place, how in enumerate(self._numbers)
                ]
            if self._is_one:
                self._invoke(function, pushed, popped)
                [(type_, extents)] = self._results
                view = popped.get_as_object(0, self._view)
                return (DeviceArray(self._device, view, type_, extents),)
            shared = [array.memory for array in arguments if isinstance(array, DeviceArray)]
            self._invoke(function, pushed, popped)
            return [
                self._alone(popped.get_as_object(number, self._view), type_, extents, shared)
                for number, (type_, extents) in enumerate(self._results)
            ]
        except (RuntimeError, ValueError, IndexError) as error:
            pushed = popped = view = None  # or the traceback would keep them: see `Function.invoke`
            raise self._failed(error) from None
        finally:
            end()

    def prepare(self, arguments: Sequence[object]) -> Prepared | None:
        """Return calls with arguments and results that stay; None if there are none of these.

        Args:
            arguments: as for a call, in the device's memory.

        Raises:
            ExecutionError: as a call of the function.
        """
        arrays = [array for array in arguments if isinstance(array, DeviceArray)]
        if len(arguments) != self._count or len(arrays) != self._count:
            return None
        runtime, entry = iree_runtime(), self._entry
        views = [array.view for array in arrays]
        try:
            with native_call():
                if self._layouts is not None:
                    for place, array in enumerate(arrays):
                        self._layouts.lay_out(place, array, self._invoke)
                    views += self._layouts.pieces(arrays, self._invoke) or []
                    entry = self._layouts.entry
                if entry.memory is None or entry.bound is None:
                    return None
                pushed, popped = self._new_list(len(views)), self._new_list(len(self._results))
                for view in views:
                    pushed.push_ref(view)
                self._invoke(entry.memory, pushed, popped)
                buffers = popped.size - len(self._results)
                for place in range(buffers):
                    pushed.push_ref(popped.get_as_object(place, runtime.HalBuffer))
                results = [
                    DeviceArray(
                        self._device,
                        popped.get_as_object(buffers + place, self._view),
                        type_,
                        extents,
                    )
                    for place, (type_, extents) in enumerate(self._results)
                ]
                function = entry.bound
                if entry.record is not None and entry.replay is not None:
                    popped, function = self._new_list(1), entry.replay
                    self._invoke(entry.record, pushed, popped)
                    pushed = self._new_list(1)
                    pushed.push_ref(popped.get_as_object(0, runtime.HalCommandBuffer))
        except (RuntimeError, ValueError, IndexError) as error:
            pushed = popped = view = None  # as in `call`
            views.clear()
            raise self._failed(error) from None
        for each in results:
            each.is_shared, each.laid_out = True, _Forgetful()
        return Prepared(
            returned=returned_of(results),
            function=function,
            pushed=pushed,
            popped=self._new_list(0),
            free=[None],
            calls=native_calls.CALLS,
            invoke=self._invoke,
            failed=self._failed,
            device=self._device,
        )

    @staticmethod
    def _number(view: Any, dtype: DType, count: int, extents: tuple[int, ...]) -> Array:
        """A copy of a result."""
        found: Array = np.frombuffer(view.map(), dtype, count)
        return found.reshape(extents).copy()

    def _alone(
        self, view: Any, type_: ValueType, extents: tuple[int, ...], shared: list[Array]
    ) -> DeviceArray:
        """A result, in memory that is no other's."""
        memory = self._device.host_bytes(view)
        for other in shared:
            if np.may_share_memory(memory, other):
                view = self._device.copied(view)
                memory = self._device.host_bytes(view)
                break
        shared.append(memory)
        return DeviceArray(self._device, view, type_, extents, memory)


def returned_of(results: Sequence[Any]) -> Any:
    """What a call returns: its result, if there is one, a tuple of more, or None."""
    return results[0] if len(results) == 1 else tuple(results) or None


class _Forgetful(dict[object, Sequence[Any]]):
    """What functions keep of an array that is written to again: nothing."""

    def __setitem__(self, key: object, value: Sequence[Any]) -> None:
        pass


class Prepared(NamedTuple):
    """What calls of a function with arguments, and memory for its results, that stay are made of.

    Args:
        returned: what a call returns.
        function: what is run.
        pushed, popped: what it is given, and what it returns.
        free: has one entry, which who takes it takes alone.
        calls: those of the process.
        invoke, failed, device: as of `DirectCalls`.
    """

    returned: Any
    function: Any
    pushed: Any
    popped: Any
    free: list[None]
    calls: Calls
    invoke: Callable[[Any, Any, Any], object]
    failed: Callable[[Exception], Exception]
    device: OpenDevice  # the last that is let go


def _storage_dtype(type_: ValueType) -> DType | None:
    """The dtype of storage values that lie in memory as in an array of NumPy's; None for others."""
    if type_.parameters is None or type_.plane_bits is not None:
        return None
    storage = type_.parameters.storage
    is_same = storage.signed or storage.width == 8 * storage.dtype.itemsize
    return storage.dtype if is_same else None


def _alone(call: Call, view: Any) -> tuple[Any, Array | None]:
    """A result in memory that is its own: IREE returns what it was given for ``x + 0``."""
    if not call.device.is_host:
        return view, None
    memory = call.device.host_bytes(view)
    if call.shared.overlap(memory):
        return call.device.copied(view), None
    call.shared.add(memory)
    return view, memory


def _scalar(value: Any, dtype: DType) -> Array:
    """A number from IREE's virtual machine, which gives narrow integers as unsigned ones."""
    if dtype.kind != "i":
        return np.asarray(value, dtype)
    bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return np.asarray(bits, f"u{dtype.itemsize}").view(dtype)
