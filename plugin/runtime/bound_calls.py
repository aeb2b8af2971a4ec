"""Calls with arguments that stay where they are, for programs that are short and called often."""

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
from .direct_calls import PreparedCall, unwrap_results
from .marshalling import Parameter

if TYPE_CHECKING:
    from .function import Function

__all__ = ["BoundCall"]


class BoundCall:
    """A function with its arguments, and with memory for its results: `Function.bind` makes it.

    Calling it returns what a call of the function does, as `DeviceArray`s. The next call may write
    to the same memory: copy what is to last longer (``y.numpy()``). ``np.asarray(y)`` does not copy
    on a CPU, and shows what the last call has written.

    One thread calls it at a time; bind another one for another thread. Where a function cannot be
    given memory for its results (on Vulkan, of dynamic shapes, or that IREE's threads run) each
    call makes new ones.
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
        """Run the function; the same as calling this, which takes Python 0.1 us longer.

        Returns:
            A `DeviceArray` (a number, for one) for each result: itself if there is one, a tuple if
            there are more, None if there is none.

        Raises:
            UsageError: another thread does.
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
                    calls.under_way.append(None)
                    if calls.is_ending:
                        calls.stay()
                invoke(function, pushed, popped)
            except (RuntimeError, ValueError, IndexError) as error:
                raise error_of(error) from None
            finally:
                if is_counted:
                    calls.under_way.pop()
        finally:
            free.append(None)
        return returned

    __call__ = invoke

    def set(self, argument: int | str, array: npt.ArrayLike, *, quantized_io: bool = False) -> None:
        """Give another argument, for the calls from now on; not while another thread makes one.

        It is written where the last one is, if that is on a CPU, was not a `DeviceArray`, and has
        extents that the function knows. A weight that kernels take laid out is laid out again.

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
        """Store an argument anew."""
        function = self._function
        parameter = function.parameters[index]
        is_own = parameter.is_tensor and not isinstance(argument, DeviceArray)
        if is_own:
            value: Any = function.put(index, argument, quantized_io=quantized_io)
        else:
            value = parameter.stored(argument, function.device, quantized_io)
        self._values[index], self._prepared, self._is_new = value, None, True
        is_written = is_own and value.is_host and not value.prepacked and _is_full(parameter)
        self._memory[index] = function.device.writable_bytes(value.view) if is_written else None

    def _other_call(self) -> Any:
        """Make the first call with what is stored, or one that makes its results anew."""
        if self._is_new:
            self._prepared = self._function.direct_calls.prepare(self._values)
            self._is_new = False
            if self._prepared is not None:
                return self.invoke()
        return unwrap_results(self._function.invoke(self._values, resident=True))


def _is_full(parameter: Parameter) -> bool:
    """True for a tensor with elements, of which the type says how many."""
    return parameter.type.shape is not None and all(parameter.type.shape)
