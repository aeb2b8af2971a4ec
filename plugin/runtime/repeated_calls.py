"""Repeated calls: calls with NumPy arrays that compute in the memory of earlier calls.

A call that allocates its arguments, intermediate results and results takes 6 us more than its
computation. Allocations of 128 KiB and more are new pages, which the operating system clears: of a
network with 3.7 MB of intermediate results a call took 0.88 ms, and 0.70 ms in kept memory. From
the second call on, a function on a CPU therefore keeps this memory: arguments are copied into it,
and results out of it. Calls of other threads at the same time allocate, and calls with arrays that
are lent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..errors import SubquantError
from ..numerics.element_types import Array
from .device_arrays import DeviceArray, put
from .marshalling import Parameter, Result
from .native_calls import begin_call
from .open_device import OpenDevice, is_lendable, returned_copy

if TYPE_CHECKING:
    from .direct_calls import PreparedCall

MAX_KEPT_BYTES = 16 << 20
"""Memory that a function keeps for repeated calls, at most: arguments and all results."""

_Prepare: TypeAlias = "Callable[[Sequence[DeviceArray], int], PreparedCall | None]"


@dataclass(frozen=True, slots=True)
class _KeptMemory:
    """Memory of a call.

    Attributes:
        arguments, results: arrays that view the memory of arguments and results.
        stored: the arguments, which keep their memory.
        prepared: the call that reads and writes the memory.
    """

    arguments: list[Array]
    results: list[Array]
    stored: list[DeviceArray]
    prepared: PreparedCall  # the last that is let go


class RepeatedCalls:
    """The calls of a function with NumPy arrays that are copied unchanged."""

    def __init__(
        self,
        device: OpenDevice,
        parameters: Sequence[Parameter],
        results: Sequence[Result],
    ) -> None:
        self._parameters, self._results = parameters, results
        # Lists of one entry for each use: threads take entries without a lock.
        self._memory: list[_KeptMemory] = []
        self._preparations = [True, False]  # of the second call, not of the first
        self._device = device  # the last that is let go

    def call(self, arguments: Sequence[object], prepare: _Prepare) -> list[Array] | None:
        """Return copies of the results; None if the call has to allocate memory.

        Args:
            arguments: as many as the function has.
            prepare: returns a call with fixed arguments, whose results and intermediate results
                have at most a number of bytes; None if there is no such call.

        Raises:
            ExecutionError: as a call of the function.
        """
        arrays: list[Array] = []
        for array, parameter in zip(arguments, self._parameters, strict=False):
            if type(array) is not np.ndarray or not parameter.accepts(array):
                return None
            if is_lendable(array):
                return None  # it may be a large weight, which is not copied
            arrays.append(array)
        try:
            memory = self._memory.pop()
        except IndexError:
            new = self._new_memory(arrays, prepare)
            if new is None:
                return None
            memory = new
        prepared = memory.prepared
        try:
            end = begin_call(self._device.process)
            try:
                for target, array in zip(memory.arguments, arrays, strict=False):
                    target[...] = array
                prepared.invoke(prepared.function, prepared.pushed, prepared.popped)
                return [returned_copy(each) for each in memory.results]
            except (RuntimeError, ValueError, IndexError) as error:
                raise prepared.error_of(error) from None
            finally:
                end()
        finally:
            self._memory.append(memory)

    def _new_memory(self, arrays: Sequence[Array], prepare: _Prepare) -> _KeptMemory | None:
        """Allocate memory in the second call; None in others, or if it would be too large."""
        if not self._preparations or not self._preparations.pop():
            return None
        size = sum(each.nbytes for each in arrays)
        dtypes = [each.direct for each in self._results if each.direct is not None]
        is_possible = 0 < len(dtypes) == len(self._results) and all(each.nbytes for each in arrays)
        if not is_possible or size > MAX_KEPT_BYTES:
            return None
        try:
            stored = [
                put(self._device, array, each.type, each.label, False)
                for array, each in zip(arrays, self._parameters, strict=True)
            ]
            prepared = prepare(stored, MAX_KEPT_BYTES - size)
        except SubquantError:  # out of memory
            return None
        if prepared is None:
            return None
        returned = prepared.returned if len(dtypes) > 1 else (prepared.returned,)
        return _KeptMemory(
            [
                self._device.writable_bytes(each.view).view(array.dtype).reshape(array.shape)
                for each, array in zip(stored, arrays, strict=True)
            ],
            [
                np.frombuffer(each.memory, dtype, math.prod(each.shape)).reshape(each.shape)
                for each, dtype in zip(returned, dtypes, strict=True)
            ],
            stored,
            prepared,
        )
