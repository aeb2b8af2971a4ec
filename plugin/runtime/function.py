"""Function: a public function of an executable, called with NumPy arrays or device arrays."""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ..errors import ExecutionError, SignatureError, UsageError, expected_name, quoted
from ..signature import Signature
from .arguments import check_count
from .bound_calls import BoundCall
from .device_arrays import DeviceArray, put
from .direct_calls import DirectCalls, unwrap_results
from .entry_points import EntryPoints
from .error_messages import call_error
from .invokers import Invoker
from .marshalling import Call, Parameter, Result
from .native_calls import check_process, native_call
from .open_device import OpenDevice
from .prepacked_arguments import PrepackedWeights


class Function:
    """A function of an executable; call it with one array for each argument."""

    # It does not refer to the executable: this is freed, and its device closed, with the last
    # reference to it or to a function of it.
    def __init__(
        self,
        name: str,
        entry: EntryPoints,
        signature: Signature | None,
        invoker: Invoker,
        device: OpenDevice,
        weights: PrepackedWeights | None = None,
    ) -> None:
        self.name = name
        self._entry = entry
        self._invoker = invoker
        self.device = device
        self._weights = weights
        self.signature = signature

    def __repr__(self) -> str:
        if self.signature is None:
            return f"<function {self.name}>"
        outputs = ", ".join(value.named for value in self.signature.outputs)
        return f"<function {self.name}({self._inputs_text}) -> ({outputs})>"

    @property
    def _inputs_text(self) -> str:
        return ", ".join(each.named for each in self.signature.inputs) if self.signature else ""

    def __call__(
        self,
        *arguments: npt.ArrayLike,
        quantized_io: bool = False,
        resident: bool = False,
        donate: Collection[int | str] = (),
        **named: object,
    ) -> Any:
        """Run the function.

        Args:
            *arguments: arrays or numbers, one for each argument of the signature. A quantized
                argument is given as storage values (integers in the storage range). A `DeviceArray`
                is stored already, whatever `quantized_io` says.
            quantized_io: take reals for quantized arguments and return reals for quantized
                results; the reference arithmetic quantizes and dequantizes them here.
            resident: leave results in the device's memory: each is a `DeviceArray`.
            donate: numbers or names of arguments in the device's memory that are not needed any
                more: the program may write to them, instead of to a copy.
            **named: none; an argument that is given by its name is refused.

        Returns:
            An array for each result: the array itself if there is one, a tuple if there are more,
            None if there is none.

        Raises:
            SignatureError: an argument does not fit.
            UsageError: an argument is given by its name, or a donated one is not in the device's
                memory, or is given twice.
            ExecutionError: the runtime failed, or a check of a dynamic dimension did, or this
                process was forked since the executable was loaded, or an array was donated before.
        """
        if named:
            raise UsageError(
                f"function '{self.name}' takes arguments by position, got the name "
                f"{quoted(next(iter(named)))}; expected: {self.name}({self._inputs_text})"
            )
        results = None
        if not (donate or quantized_io):
            results = self.direct_calls.call(arguments, resident)
        if results is None:
            results = self.invoke(
                arguments, quantized_io=quantized_io, resident=resident, donate=donate
            )
        return unwrap_results(results)

    def put(
        self, argument: int | str, array: npt.ArrayLike, *, quantized_io: bool = False
    ) -> DeviceArray:
        """Copy an array into the device's memory as the function stores an argument.

        The work of each call is done once: the array is checked, quantized and packed, and a weight
        is prepacked for the kernels of the function. If all weights among its arguments are stored
        in this way, a call is as fast as with constant weights.

        Args:
            argument: its number, from 0, or its name.
            array: as for a call.
            quantized_io: reals are given for a quantized argument.

        Raises:
            SignatureError: it does not fit.
            UsageError: there is no such argument.
        """
        check_process(self.device.process)
        index = self.argument_index(argument)
        parameter = self.parameters[index]
        with native_call():
            stored = put(self.device, array, parameter.type, parameter.label, quantized_io)
            if self._weights is not None:
                try:
                    self._weights.prepack(index, stored, self._invoker.invoke)
                except (RuntimeError, ValueError, IndexError) as error:
                    raise self._error_of(error) from None
            return stored

    def bind(self, *arguments: npt.ArrayLike, quantized_io: bool = False) -> BoundCall:
        """Return a call with fixed arguments (I/O binding), for short programs called often.

        The arguments are checked and stored once, and each call computes into the same memory.
        `BoundCall.set` replaces an argument.

        Args:
            *arguments: as for a call. A `DeviceArray` is used as it is.
            quantized_io: reals are given for quantized arguments.

        Raises:
            SignatureError: an argument does not fit.
            ExecutionError: the runtime failed, or the device is out of memory.
        """
        check_process(self.device.process)
        check_count(arguments, self.parameters, self.name)
        return BoundCall(self, arguments, quantized_io)

    def invoke(
        self,
        arguments: Sequence[npt.ArrayLike],
        *,
        quantized_io: bool = False,
        resident: bool = False,
        donate: Collection[int | str] = (),
    ) -> list[Any]:
        """Run the function and return the list of its results; otherwise as a call."""
        device, parameters = self.device, self.parameters
        check_process(device.process)
        check_count(arguments, parameters, self.name)
        values = [
            parameter.stored(argument, device, quantized_io)
            for parameter, argument in zip(parameters, arguments, strict=True)
        ]
        donated = self._donated(donate, values) if donate else {}
        # `_run` has a frame of its own, whose buffers are freed before `self`, which may be the
        # last reference to the device. The traceback of an error would keep them, and the garbage
        # collector frees a cycle in any order, which crashes in IREE.
        try:
            with native_call():
                return self._run(values, donated, quantized_io, resident)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise

    def _run(
        self,
        values: Sequence[object],
        donated: Mapping[int, DeviceArray],
        quantized_io: bool,
        resident: bool,
    ) -> list[Any]:
        parameters, handle = self.parameters, self._entry.run
        call = Call(self.device, len(parameters), len(self._results))
        try:
            for index, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
                parameter.push(call, value, index in donated)
            if self._weights is not None and not donated:
                views = self._weights.views(values, self._invoker.invoke)
                if views is not None:
                    handle = self._weights.entry.run
                    for view in views:
                        call.push(view)
            for array in donated.values():
                array.donate()
            self._invoker.invoke(handle, call.pushed, call.popped)
            return [each.pop(call, quantized_io, resident) for each in self._results]
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._error_of(error) from None

    @cached_property
    def direct_calls(self) -> DirectCalls:
        """The short path of its calls."""
        return DirectCalls(
            self.device,
            self.parameters,
            self._results,
            self._entry,
            self._weights,
            self._invoker.invoke,
            self._error_of,
        )

    @cached_property
    def _error_of(self) -> Callable[[Exception], ExecutionError]:
        """A function that converts an error of IREE, and does not refer to this object."""
        types = [parameter.type for parameter in self.parameters]
        return functools.partial(call_error, self.name, types)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Its arguments; SignatureError if the executable records no signature."""
        if self.signature is None:
            raise SignatureError(
                f"function '{self.name}' has no signature to convert its arguments with; compile "
                "it with 'subquant compile'"
            )
        return [
            Parameter(type_, f"argument {number} of '{self.name}'", self._keeps_arrays)
            for number, type_ in enumerate(self.signature.inputs)
        ]

    @cached_property
    def _results(self) -> list[Result]:
        if self.signature is None:
            return []
        return [Result(type_, self._keeps_arrays) for type_ in self.signature.outputs]

    @property
    def _keeps_arrays(self) -> bool:
        """True if an array of a call may be one of the program's variables after it.

        A bound entry point stores memory of its own only (`subquant.iree_hooks.sync_entries`).
        """
        keeps_state = self.signature is not None and self.signature.keeps_state
        return keeps_state and self._entry.bound is None

    def argument_index(self, argument: int | str) -> int:
        """Return the number of an argument from its number or name; UsageError for others."""
        indices = self._argument_indices
        if str(argument) not in indices:
            raise UsageError(
                f"function '{self.name}' has no argument {quoted(str(argument))}; "
                f"{expected_name(str(argument), indices)}"
            )
        return indices[str(argument)]

    @cached_property
    def _argument_indices(self) -> dict[str, int]:
        """The numbers of the arguments by their names, and by the numbers as text."""
        named = {each.type.name: n for n, each in enumerate(self.parameters) if each.type.name}
        return named | {str(number): number for number in range(len(self.parameters))}

    def _donated(
        self, donate: Collection[int | str], values: Sequence[object]
    ) -> dict[int, DeviceArray]:
        """Return the donated arguments by number."""
        donated = {}
        uses = Counter(map(id, values))
        for index in map(self.argument_index, donate):
            array = values[index]
            if not isinstance(array, DeviceArray):
                raise UsageError(
                    f"argument {index} of '{self.name}' is donated, and is not in the device's "
                    f"memory; store it first: x = f.put({index}, array)"
                )
            if uses[id(array)] > 1:
                raise UsageError(f"argument {index} of '{self.name}' is donated, and given twice")
            donated[index] = array
        return donated
