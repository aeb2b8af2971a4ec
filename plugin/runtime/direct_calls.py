"""Direct calls: the short path of a call on a CPU that converts no argument and no result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..numerics.element_types import Array, DType
from ..signature import ValueType
from . import native_calls
from .device_arrays import DeviceArray
from .entry_points import EntryPoints
from .marshalling import Parameter, Result
from .native_calls import Calls, begin_call, native_call
from .open_device import OpenDevice, iree_runtime, is_large
from .prepacked_arguments import PrepackedWeights
from .repeated_calls import RepeatedCalls


class DirectCalls:
    """Calls on a CPU with device arrays, or small NumPy arrays, that fit the arguments unchanged.

    The results are those of other calls, in fewer steps: a program that streams a large weight
    evicts this code from the caches of the core, which then reads each line of it from memory
    again.

    Args:
        weights: the prepacked weights of the function; None for none.
        invoke: runs a function with a list of arguments and a list for the results.
        error_of: converts an error of IREE's runtime.
    """

    def __init__(
        self,
        device: OpenDevice,
        parameters: Sequence[Parameter],
        results: Sequence[Result],
        entry: EntryPoints,
        weights: PrepackedWeights | None,
        invoke: Callable[[Any, Any, Any], object],
        error_of: Callable[[Exception], Exception],
    ) -> None:
        runtime = iree_runtime()
        self._device, self._invoke = device, invoke
        self._entry, self._weights = entry, weights
        self._new_list, self._view = runtime.VmVariantList, runtime.HalBufferView
        self._parameters = [(each.type, each) for each in parameters]
        self._results = [(each.type, each.shape or ()) for each in results]
        self._is_single = len(results) == 1 and results[0].type.is_fresh
        self._error_of = error_of
        self._small_results = [
            (each.direct, math.prod(each.shape or ()), each.shape or ())
            for each in results
            if each.direct is not None and each.is_small
        ]
        is_possible = (
            device.is_host
            and all(each.may_lend and each.is_tensor for each in parameters)
            and not any(None in (each.type.shape or ()) for each in parameters)
            and not any(each.type.shape is None for each in parameters)
            and not any(each.is_read_later or each.shape is None for each in results)
        )
        self._count = len(parameters) if is_possible else -1
        self._repeated: RepeatedCalls | None = None
        if is_possible and weights is None:
            self._repeated = RepeatedCalls(device, parameters, results)

    def call(
        self, arguments: Sequence[object], resident: bool
    ) -> Sequence[DeviceArray | Array] | None:
        """Return the results; None if an argument or a result needs a conversion.

        Args:
            arguments: as for a call of the function without `quantized_io`.
            resident: leave results in the device's memory.

        Raises:
            ExecutionError: as a call of the function.
        """
        if len(arguments) != self._count:
            return None
        if not resident:
            if self._repeated is not None:
                results = self._repeated.call(arguments, self.prepare)
                if results is not None:
                    return results
            if len(self._small_results) != len(self._results):
                return None
        end = begin_call(self._device.process)
        try:
            pushed = self._new_list(self._count)
            for array, (expected_type, parameter) in zip(arguments, self._parameters, strict=False):
                if type(array) is np.ndarray:
                    if is_large(array.nbytes) or not parameter.accepts(array):
                        return None
                    pushed.push_ref(self._device.upload(array, parameter.element))
                    continue
                if type(array) is not DeviceArray or not array.is_host:
                    return None
                # An array has the sizes of its type, which are static where it is `expected_type`.
                if array.type is not expected_type and (
                    id(array.type) not in parameter.accepted_types
                    or array.shape != expected_type.shape
                ):
                    return None
                pushed.push_ref(array.buffer_view or array.view)
            function = self._entry.run
            if self._weights is not None:
                views = self._weights.views(arguments, self._invoke)
                if views is not None:
                    function = self._weights.entry.run
                    for view in views:
                        pushed.push_ref(view)
            popped = self._new_list(1)
            if not resident:
                self._invoke(function, pushed, popped)
                return [
                    self._copy_of_result(popped.get_as_object(index, self._view), *layout)
                    for index, layout in enumerate(self._small_results)
                ]
            if self._is_single:
                self._invoke(function, pushed, popped)
                [(type_, shape)] = self._results
                view = popped.get_as_object(0, self._view)
                return (DeviceArray(self._device, view, type_, shape),)
            shared = [array.memory for array in arguments if isinstance(array, DeviceArray)]
            self._invoke(function, pushed, popped)
            return [
                self._unshared(popped.get_as_object(number, self._view), type_, shape, shared)
                for number, (type_, shape) in enumerate(self._results)
            ]
        except (RuntimeError, ValueError, IndexError) as error:
            pushed = popped = view = None  # or the traceback would keep them: see `Function.invoke`
            raise self._error_of(error) from None
        finally:
            end()

    def prepare(
        self, arguments: Sequence[object], max_bytes: int | None = None
    ) -> PreparedCall | None:
        """Return a call with fixed arguments and results; None if the function has no variant.

        Args:
            arguments: device arrays, as for a call.
            max_bytes: the size of results and intermediate results, at most; for more the method
                returns None.

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
                if self._weights is not None:
                    for index, array in enumerate(arrays):
                        self._weights.prepack(index, array, self._invoke)
                    views += self._weights.views(arrays, self._invoke) or []
                    entry = self._weights.entry
                if entry.allocate is None or entry.bound is None:
                    return None
                pushed, popped = self._new_list(len(views)), self._new_list(len(self._results))
                for view in views:
                    pushed.push_ref(view)
                self._invoke(entry.allocate, pushed, popped)
                buffers = popped.size - len(self._results)
                size = 0
                for index in range(buffers):
                    buffer = popped.get_as_object(index, runtime.HalBuffer)
                    size += buffer.byte_length()
                    pushed.push_ref(buffer)
                if max_bytes is not None and size > max_bytes:
                    return None
                results = [
                    DeviceArray(
                        self._device,
                        popped.get_as_object(buffers + index, self._view),
                        type_,
                        shape,
                    )
                    for index, (type_, shape) in enumerate(self._results)
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
            raise self._error_of(error) from None
        for each in results:
            each.is_shared, each.prepacked = True, _NoCache()
        return PreparedCall(
            returned=unwrap_results(results),
            function=function,
            pushed=pushed,
            popped=self._new_list(0),
            free=[None],
            calls=native_calls.CALLS,
            invoke=self._invoke,
            error_of=self._error_of,
            device=self._device,
        )

    @staticmethod
    def _copy_of_result(view: Any, dtype: DType, count: int, shape: tuple[int, ...]) -> Array:
        """Return a copy of a small result."""
        result: Array = np.frombuffer(view.map(), dtype, count)
        return result.reshape(shape).copy()

    def _unshared(
        self, view: Any, type_: ValueType, shape: tuple[int, ...], shared: list[Array]
    ) -> DeviceArray:
        """Return a result in memory that nothing else uses."""
        memory = self._device.host_bytes(view)
        for other in shared:
            if np.may_share_memory(memory, other):
                view = self._device.copied(view)
                memory = self._device.host_bytes(view)
                break
        shared.append(memory)
        return DeviceArray(self._device, view, type_, shape, memory)


def unwrap_results(results: Sequence[Any]) -> Any:
    """Return the value of a call: its result if there is one, a tuple of more, or None."""
    return results[0] if len(results) == 1 else tuple(results) or None


class _NoCache(dict[object, Sequence[Any]]):
    """An empty cache of packed tensors, for an array whose memory changes."""

    def __setitem__(self, key: object, value: Sequence[Any]) -> None:
        pass


class PreparedCall(NamedTuple):
    """A call with fixed arguments and memory for its results.

    Args:
        returned: the value of each call.
        function: the entry point.
        pushed, popped: the lists of its arguments and results.
        free: a list of one entry; the thread that pops it may call.
        calls: the calls of this process.
        invoke, error_of, device: as in `DirectCalls`.
    """

    returned: Any
    function: Any
    pushed: Any
    popped: Any
    free: list[None]
    calls: Calls
    invoke: Callable[[Any, Any, Any], object]
    error_of: Callable[[Exception], Exception]
    device: OpenDevice  # the last that is let go
