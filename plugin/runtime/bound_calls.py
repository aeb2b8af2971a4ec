"""Bound calls: calls with fixed arguments and result buffers, for short programs called often."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..numerics.element_types import Array
from . import native_calls
from .device_arrays import DeviceArray
from .direct_calls import PreparedCall

if TYPE_CHECKING:
    from .function import Function


class BoundCall:
    """A function with fixed arguments and memory for its results, made by `Function.bind`.

    A call returns the same results as a call of the function, as `DeviceArray`s. The next call may
    overwrite their memory: copy a result to keep it (``y.numpy()``). On a CPU ``np.asarray(y)``
    does not copy, and shows the results of the last call.

    One thread at a time may call it; bind another call for each thread. Where the results cannot
    have fixed memory (on Vulkan, with dynamic shapes, or on IREE's threads) each call allocates
    them.
    """

    def __init__(
        self, function: Function, arguments: Sequence[npt.ArrayLike], quantized_io: bool
    ) -> None:
        self._prepared: PreparedCall | None = None
        self._is_new = True
        self._values: list[Any] = [None] * len(arguments)
        self._memory: list[Array | None] = [None] * len(arguments)
        self._function = function  # the last that is let go
        for index, argument in enumerate(arguments):
            self._store(index, argument, quantized_io)

    def __repr__(self) -> str:
        return f"<bound call of {self._function!r}>"

    def invoke(self) -> Any:
        """Run the function; a call of this object does the same, 0.1 us slower.

        Returns:
            A `DeviceArray` (a number, for a scalar) for each result: itself if there is one, a
            tuple if there are more, None if there is none.

        Raises:
            UsageError: another thread makes this call.
            ExecutionError: as for a call of the function.
        """
        prepared = self._prepared
        if prepared is None:
            return self._other_call()
        # Of a program of 3 us each line here counts.
        returned, function, pushed, popped, free, calls, invoke, error_of, device = prepared
        if calls is not native_calls.CALLS:
            native_calls.check_process(device.process)
        try:
            free.pop()
        except IndexError:
            raise UsageError(
                "another thread makes this call; bind one for each thread: f.bind(arguments)"
            ) from None
        except BaseException:  # Ctrl-C, right behind it
            free.append(None)
            raise
        try:
            is_counted = get_ident() != calls.main
            try:
                if is_counted:
                    calls.running.append(None)
                    if calls.is_ending:
                        calls.stay()
                invoke(function, pushed, popped)
            except (RuntimeError, ValueError, IndexError) as error:
                raise error_of(error) from None
            finally:
                if is_counted:
                    calls.running.pop()
        finally:
            free.append(None)
        return returned

    __call__ = invoke

    def set(self, argument: int | str, array: npt.ArrayLike, *, quantized_io: bool = False) -> None:
        """Replace an argument for later calls; not during a call of another thread.

        The array is written to the memory of the current one if that is on a CPU, was not a
        `DeviceArray`, and has static dimensions. A prepacked weight is prepacked again.

        Args:
            argument: its number, from 0, or its name.
            array: as for a call.
            quantized_io: reals are given for a quantized argument.

        Raises:
            SignatureError: it does not fit.
            UsageError: there is no such argument.
        """
        index = self._function.argument_index(argument)
        memory = self._memory[index]
        if memory is None or isinstance(array, DeviceArray):
            self._store(index, array, quantized_io)
            return
        parameter = self._function.parameters[index]
        stored = parameter.stored(array, self._function.device, quantized_io)
        memory[...] = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)

    def _store(self, index: int, argument: npt.ArrayLike, quantized_io: bool) -> None:
        """Store an argument in new memory."""
        function = self._function
        parameter = function.parameters[index]
        is_own = parameter.is_tensor and not isinstance(argument, DeviceArray)
        if is_own:
            value: Any = function.put(index, argument, quantized_io=quantized_io)
        else:
            value = parameter.stored(argument, function.device, quantized_io)
        self._values[index], self._prepared, self._is_new = value, None, True
        shape = parameter.type.shape
        has_static_size = shape is not None and all(shape)
        is_written = is_own and value.is_host and not value.prepacked and has_static_size
        self._memory[index] = function.device.writable_bytes(value.view) if is_written else None

    def _other_call(self) -> Any:
        """Prepare the first call with new arguments, or make a call that allocates its results."""
        if self._is_new:
            self._prepared = self._function.direct_calls.prepare(self._values)
            self._is_new = False
            if self._prepared is not None:
                return self.invoke()
        return self._function(*self._values, resident=True)
