"""Run executables: NumPy arrays in, NumPy arrays out, on a CPU or a Vulkan device."""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy.typing as npt

from ..compiler.cpu_features import missing_features
from ..errors import ExecutionError, SignatureError, UsageError, expected_name, printable, quoted
from ..iree_hooks.async_entries import FENCED
from ..iree_hooks.worker_pool import TEAM, THREADS_KEY, threads_program
from ..signature import (
    BOUND_LOOPS,
    CPU_FEATURES_KEY,
    LOOPS_KEY,
    MOST_ITERATIONS,
    TARGET_KEY,
    WORK_KEY,
    Signature,
    ValueType,
    Work,
)
from .arguments import check_count
from .bound_calls import BoundCall
from .cpu_affinity import giving_way
from .device import Device
from .device_arrays import DeviceArray, put
from .entry_points import Entry, entries_of
from .marshalling import Call, DirectCalls, Parameter, Result, returned_of
from .native_calls import check_process, native_call
from .open_device import OpenDevice, iree_runtime
from .prepacked_arguments import Layouts
from .vm_modules import (
    PublicFunction,
    load_module,
    parameters_module,
    public_functions,
    vm_instance,
)
from .worker_threads import Team

__all__ = ["Executable", "Function"]

_LONG = 200_000
"""Nanoseconds of a call from which on threads that are woken for it do a part; that takes 50,000.
"""


class Executable:
    """A loaded executable.

    Args:
        source: a path, or the bytes of a ``.vmfb``.
        device: a `Device` or its name.
        parameters: parameter files (``.irpa``) by scope.
        threads: as for a `Device`, of which only the name is given.

    Attributes:
        threads: how many run its functions, at most; None where the device has none to choose.

    Raises:
        InputError: the file cannot be read or is no executable.
        EnvironmentProblem: there is no such device.
        UsageError: it has not as many threads.
        ExecutionError: the executable was compiled for another device.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        device: Device | str = "llvm-cpu",
        parameters: Mapping[str, str | os.PathLike[str]] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.device = Device.of(device, threads)
        with native_call():
            self._load(source, parameters or {})

    def _load(
        self,
        source: str | os.PathLike[str] | bytes,
        parameters: Mapping[str, str | os.PathLike[str]],
    ) -> None:
        runtime = iree_runtime()
        name, self._module = load_module(source)
        instance = vm_instance()
        functions = public_functions(self._module, name)
        name = "the executable" if isinstance(source, bytes) else quoted(name)
        _check_target(functions, name, self.device)
        _check_cpu(functions, name)
        work = [_work(each) for each in functions]
        team = self.device.team(work, _threads_program(self._module))
        opened = self.device.open(work) if team is None else self.device.open(())
        self.threads = team.threads if team is not None else self.device.threads_of(opened)
        modules = [runtime.create_hal_module(instance, opened.handle)]
        if parameters:
            modules.append(parameters_module(instance, parameters))
        try:
            context = runtime.VmContext(instance, [*modules, self._module])
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutionError(_load_message(name, self.device, parameters, error)) from None
        loaded = _loaded(context, self._module, opened, team, work)
        if self.device.ends_long_loops and BOUND_LOOPS in self._module.function_names:
            most = runtime.VmVariantList(1)
            most.push_int(MOST_ITERATIONS)
            handle = self._module.lookup_function(BOUND_LOOPS)
            loaded.invoke(handle, most, runtime.VmVariantList(0))
        opened.keep(loaded, self._module, *modules[1:])
        entries = [Entry(each.handle) for each in functions]
        if opened.runs_at_once:
            entries = entries_of(self._module, [each.handle for each in functions])
            layouts = [each.layouts for each in functions if each.layouts is not None]
            others = entries_of(self._module, [each.function for each in layouts])
            for each, entry in zip(layouts, others, strict=True):
                each.entry = entry
        self.functions = {
            each.name: Function(each.name, entry, each.signature, loaded, opened, each.layouts)
            for each, entry in zip(functions, entries, strict=True)
        }

    def __getitem__(self, name: str) -> Function:
        """Return a function by name; UsageError if there is none."""
        if name not in self.functions:
            raise UsageError(
                f"no function is named {quoted(name)}; {expected_name(name, self.functions)}"
            )
        return self.functions[name]

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("functions", {})
        if name in functions:
            function: Function = functions[name]
            return function
        if name.startswith("_"):  # asked for by Python
            raise AttributeError(name)
        raise AttributeError(
            f"no function is named {quoted(name)}; {expected_name(name, functions)}"
        )


class _Loaded:
    """What the functions of an executable run in, until the last of them is gone.

    Attributes:
        invoke: runs a function, with a list of what it is given and one for what it returns.
    """

    def __init__(self, context: Any, device: OpenDevice) -> None:
        self.invoke = giving_way(context.invoke) if device.has_threads else context.invoke


class _LoadedByTeam:
    """As `_Loaded`, of an executable that a team runs: its threads are woken, if they sleep.

    Args:
        context: of IREE's.
        team: the team.
        is_long: its functions last long enough for threads that have slept to come in time.
    """

    def __init__(self, context: Any, team: Team, *, is_long: bool) -> None:
        self._run, self._team = context.invoke, team
        self._wake = team.wake_all if is_long else team.wake

    def invoke(self, function: Any, pushed: Any, popped: Any) -> None:
        """Run a function together with the team."""
        if self._team.sleeping:
            self._wake()
        self._run(function, pushed, popped)


class _LoadedFenced:
    """As `_Loaded`, of an executable with functions that take fences.

    Args:
        context: of IREE's.
        opened: the device.
        model: the names of those that take one to wait for and one that they signal, as IREE
            compiles them by ``--iree-execution-model=async-external``.
        fenced: those of `subquant.iree_hooks.async_entries`, by the names of what they are called
        for.
    """

    def __init__(
        self, context: Any, opened: OpenDevice, model: Collection[str], fenced: Mapping[str, Any]
    ) -> None:
        self._run, self._model, self._fenced = context.invoke, model, fenced
        self._device = opened  # the last that is let go

    def invoke(self, function: Any, pushed: Any, popped: Any) -> None:
        """Run a function, and wait until it has run."""
        fenced = self._fenced.get(function.name)
        if fenced is not None:
            self._device.complete(self._submit, fenced, pushed, popped)
        elif function.name in self._model:
            self._device.complete(self._submit_after, function, pushed, popped)
        else:
            self._run(function, pushed, popped)

    def _submit(self, function: Any, pushed: Any, popped: Any, start: Any, end: Any) -> None:
        pushed.push_ref(end)
        self._run(function, pushed, popped)

    def _submit_after(self, function: Any, pushed: Any, popped: Any, start: Any, end: Any) -> None:
        pushed.push_ref(start)
        self._submit(function, pushed, popped, start, end)


def _threads_program(module: Any) -> bytes | None:
    """The program of a team's threads that is recorded in an executable for teams."""
    if TEAM not in module.function_names:
        return None
    recorded = dict(module.lookup_function(TEAM).reflection).get(THREADS_KEY)
    try:
        return None if recorded is None else threads_program(recorded)
    except ValueError:
        return None


def _loaded(
    context: Any, module: Any, opened: OpenDevice, team: Team | None, work: Sequence[Work | None]
) -> _Loaded | _LoadedByTeam | _LoadedFenced:
    if team is not None:
        team.join(opened, context.invoke, module.lookup_function(TEAM))
        is_long = any(each is None or each.nanoseconds > _LONG for each in work)
        return _LoadedByTeam(context, team, is_long=is_long)
    recorded = ("iree.abi.model", "coarse-fences")  # by IREE
    handles = {name: module.lookup_function(name) for name in module.function_names}
    model = {name for name, each in handles.items() if recorded in dict(each.reflection).items()}
    fenced = {n.removesuffix(FENCED): each for n, each in handles.items() if n.endswith(FENCED)}
    if not model and not fenced:
        return _Loaded(context, opened)
    return _LoadedFenced(context, opened, model, fenced)


class Function:
    """A function of an executable; call it with one array for each argument."""

    # Without a reference to the executable, which is freed, and its device closed, with the last
    # that refers to it or to a function of it.
    def __init__(
        self,
        name: str,
        entry: Entry,
        signature: Signature | None,
        context: _Loaded | _LoadedByTeam | _LoadedFenced,
        device: OpenDevice,
        layouts: Layouts | None = None,
    ) -> None:
        self.name = name
        self._entry = entry
        self._context = context
        self.device = device
        self._layouts = layouts
        self.signature = signature

    def __repr__(self) -> str:
        if self.signature is None:
            return f"<function {self.name}>"
        inputs = ", ".join(value.named for value in self.signature.inputs)
        outputs = ", ".join(value.named for value in self.signature.outputs)
        return f"<function {self.name}({inputs}) -> ({outputs})>"

    def __call__(
        self,
        *arguments: npt.ArrayLike,
        quantized_io: bool = False,
        resident: bool = False,
        donate: Collection[int | str] = (),
    ) -> Any:
        """Run the function.

        Args:
            *arguments: arrays or numbers, one for each argument of the signature. A quantized one
                is given as storage values (integers in the storage range). A `DeviceArray` is
                stored already, whatever `quantized_io` says.
            quantized_io: take reals for quantized arguments and return reals for quantized
                results: they are quantized and dequantized here by the reference arithmetic.
            resident: leave results in the device's memory: each is a `DeviceArray`.
            donate: arguments, by number or name, that are in the device's memory and not needed
                any more: the program may write there, instead of to a copy.

        Returns:
            An array for each result: the array itself if there is one, a tuple if there are more,
            None if there is none.

        Raises:
            SignatureError: an argument does not fit.
            UsageError: what is donated is no array in the device's memory, or is given twice.
            ExecutionError: the runtime failed, or a check of a dynamic dimension did, or this
                process was forked since the executable was loaded, or an array was donated before.
        """
        results = None
        if not (donate or quantized_io):
            results = self.direct_calls.call(arguments, resident)
        if results is None:
            results = self.invoke(
                arguments, quantized_io=quantized_io, resident=resident, donate=donate
            )
        return returned_of(results)

    def put(
        self, argument: int | str, array: npt.ArrayLike, *, quantized_io: bool = False
    ) -> DeviceArray:
        """Copy an array into the device's memory as the function stores an argument.

        What a call does to an array each time is done once: it is checked, quantized, packed, and
        a weight is laid out for the kernels of the function. Where all weights among its arguments
        are stored so, a call is as fast as with weights that are constants.

        Args:
            argument: its number, from 0, or its name.
            array: as for a call.
            quantized_io: reals are given for a quantized argument.

        Raises:
            SignatureError: it does not fit.
            UsageError: there is no such argument.
        """
        check_process(self.device.process)
        place = self.place(argument)
        taken = self.parameters[place]
        with native_call():
            stored = put(self.device, array, taken.type, taken.where, quantized_io)
            if self._layouts is not None:
                try:
                    self._layouts.lay_out(place, stored, self._context.invoke)
                except (RuntimeError, ValueError, IndexError) as error:
                    raise self._failed(error) from None
            return stored

    def bind(self, *arguments: npt.ArrayLike, quantized_io: bool = False) -> BoundCall:
        """Return a call with arguments that stay, for programs that are short and called often.

        What other engines call I/O binding: arguments are checked and stored once, and each call
        computes into the same memory. `BoundCall.set` gives it another argument.

        Args:
            *arguments: as for a call. One that is a `DeviceArray` is used as it is.
            quantized_io: reals are given for quantized arguments.

        Raises:
            SignatureError: an argument does not fit.
            ExecutionError: the runtime failed, or there is no room in the device's memory.
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
        # In a call of its own, whose buffers are freed before what may be the last reference to the
        # device: `self`. An error would keep them by its traceback, and the garbage collector frees
        # what lies in a cycle in any order, which crashes in IREE.
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
            for place, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
                parameter.push(call, value, place in donated)
            if self._layouts is not None and not donated:
                pieces = self._layouts.pieces(values, self._context.invoke)
                if pieces is not None:
                    handle = self._layouts.entry.run
                    for view in pieces:
                        call.push(view)
            for array in donated.values():
                array.donate()
            self._context.invoke(handle, call.pushed, call.popped)
            return [each.pop(call, quantized_io, resident) for each in self._results]
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._failed(error) from None

    @cached_property
    def direct_calls(self) -> DirectCalls:
        """Calls of it in few steps."""
        return DirectCalls(
            self.device,
            self.parameters,
            self._results,
            self._entry,
            self._layouts,
            self._context.invoke,
            self._failed,
        )

    @cached_property
    def _failed(self) -> Callable[[Exception], ExecutionError]:
        """What makes an error of IREE's, and does not keep this function."""
        types = [parameter.type for parameter in self.parameters]
        return functools.partial(_run_error, self.name, types)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Its arguments; SignatureError if nothing is known of them."""
        if self.signature is None:
            raise SignatureError(
                f"function '{self.name}' has no signature to convert its arguments with; compile "
                "it with 'subquant compile'"
            )
        return [
            Parameter(type_, f"argument {number} of '{self.name}'", self.signature.keeps_state)
            for number, type_ in enumerate(self.signature.inputs)
        ]

    @cached_property
    def _results(self) -> list[Result]:
        if self.signature is None:
            return []
        keeps_state = self.signature.keeps_state
        return [Result(type_, keeps_state) for type_ in self.signature.outputs]

    def place(self, argument: int | str) -> int:
        """The number of an argument, of which that or the name is given; UsageError for others."""
        places = self._places
        if str(argument) not in places:
            raise UsageError(
                f"function '{self.name}' has no argument {quoted(str(argument))}; "
                f"{expected_name(str(argument), places)}"
            )
        return places[str(argument)]

    @cached_property
    def _places(self) -> dict[str, int]:
        """The numbers of arguments by their names, and by themselves."""
        places = {each.type.name: n for n, each in enumerate(self.parameters) if each.type.name}
        return places | {str(number): number for number in range(len(self.parameters))}

    def _donated(
        self, donate: Collection[int | str], values: Sequence[object]
    ) -> dict[int, DeviceArray]:
        """The arguments that are donated, by number."""
        donated = {}
        given = Counter(map(id, values))
        for place in map(self.place, donate):
            array = values[place]
            if not isinstance(array, DeviceArray):
                raise UsageError(
                    f"argument {place} of '{self.name}' is donated, and is not in the device's "
                    f"memory; store it first: x = f.put({place}, array)"
                )
            if given[id(array)] > 1:
                raise UsageError(f"argument {place} of '{self.name}' is donated, and given twice")
            donated[place] = array
        return donated


def _check_target(functions: Sequence[PublicFunction], name: str, device: Device) -> None:
    """Refuse an executable that needs a device of another kind, before the driver crashes on it."""
    for function in functions:
        if TARGET_KEY not in function.reflection:
            continue
        target = function.reflection[TARGET_KEY]
        if device.ends_long_loops and LOOPS_KEY in function.reflection:
            count, _, operation = function.reflection[LOOPS_KEY].partition(" ")
            raise ExecutionError(
                f"{name} runs a loop {printable(count)} times for {printable(operation)}, and "
                f"the device '{device.name}' (Mesa's llvmpipe) ends loops after {MOST_ITERATIONS} "
                "times, without an error; run it on another device"
            )
        kind, _, variant = target.partition(":")
        if (kind == "vulkan") != device.is_vulkan:
            right = "vulkan" if device.is_vulkan else "llvm-cpu"
            raise ExecutionError(
                f"{name} was compiled for {kind}, and the device is '{device.name}'; compile it "
                f"with --target {right}"
            )
        if kind == "vulkan" and variant != "generic-32bit" and not device.has_8bit_storage:
            raise ExecutionError(
                f"{name} loads and stores 8-bit values, which the device '{device.name}' does "
                "not; compile it with --vulkan-target generic-32bit"
            )


def _check_cpu(functions: Sequence[PublicFunction], name: str) -> None:
    """Refuse an executable that this machine's CPU would end the process on."""
    for recorded in {each.reflection.get(CPU_FEATURES_KEY, "") for each in functions}:
        missing = missing_features(recorded)
        if missing:
            raise ExecutionError(
                f"{name} was compiled for a CPU with {_listed(missing)}, which this one does not "
                "have; compile it here, or with --target-cpu generic"
            )


def _work(function: PublicFunction) -> Work | None:
    return Work.from_text(function.reflection.get(WORK_KEY, ""))


def _listed(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return " and ".join([", ".join(quoted(name)[1:-1] for name in names[:most]), *more])


_LOST = "VK_ERROR_DEVICE_LOST"


def _lost(device: str) -> str:
    return (
        f"the device '{device}' was lost, as its driver says ({_LOST}); nothing runs on it any "
        "more: open it again in another process"
    )


def _load_message(
    name: str,
    device: Device,
    parameters: Mapping[str, str | os.PathLike[str]],
    error: Exception,
) -> str:
    reason = str(error).splitlines()[0]
    if "io_parameters" in reason or "io/parameter" in reason:
        return _parameter_message(name, parameters, reason)
    if _LOST in reason:
        return f"{name} cannot be loaded: {_lost(device.name)}"
    return (
        f"{name} cannot be loaded on the device '{device.name}': {reason}; compile it for this "
        f"device (--target {'vulkan' if device.is_vulkan else 'llvm-cpu'})"
    )


_NO_PARAMETER = re.compile(r"no parameter found in index with key '(.*)'; while")
_NO_SCOPE = re.compile(r"no provider registered that handles scopes like '(.*)'; while")
_SHORT = re.compile(r"parameter `(.*)` range out of bounds \(offset=0, length=(\d+), size=(\d+)\)")


def _parameter_message(
    name: str, parameters: Mapping[str, str | os.PathLike[str]], reason: str
) -> str:
    files = " and ".join(f"'{os.fspath(path)}'" for path in parameters.values())
    missing, scope, short = (each.search(reason) for each in (_NO_PARAMETER, _NO_SCOPE, _SHORT))
    if missing:
        made = "@" in missing.group(1)
        what = "archive that was written when it was compiled" if made else "file that has it"
        return (
            f"{name} reads the parameter {quoted(missing.group(1))}, which is not in {files}; "
            f"give the {what}"
        )
    if short:
        return (
            f"{name} reads {short.group(2)} bytes of the parameter {quoted(short.group(1))}, "
            f"which has {short.group(3)} in {files}"
        )
    given = printable(scope.group(1)) if scope else "scope"
    return f"{name} needs parameters; give them as {given}=file.irpa (--parameters)"


_MISMATCH = re.compile(r"input(\d+) shape dimension (\d+) mismatch; expected (\d+) but have (\d+)")


def _run_error(name: str, inputs: Sequence[ValueType], error: Exception) -> ExecutionError:
    """What to raise for an error of IREE's, whose traceback keeps no buffers or fences then."""
    traceback.clear_frames(error.__traceback__)
    return ExecutionError(_run_message(name, error, inputs))


def _run_message(name: str, error: Exception, inputs: Sequence[ValueType]) -> str:
    """The reason in IREE's message, without the status and the trace around it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else repr(error)
    mismatch = _MISMATCH.search(text)
    if mismatch:  # IREE moves a check of an argument's extent to the argument
        position, axis, expected, got = (int(group) for group in mismatch.groups())
        owners = [number for number, value in enumerate(inputs) for _ in value.abi]
        return (
            f"function '{name}' stopped: dimension {axis} of argument {owners[position]} must be "
            f"{expected} at run time, for the scales it meets, got {got}"
        )
    if "empty buffer range" in text:
        return (
            f"function '{name}' failed: a dynamic tensor has no elements, which IREE's Vulkan "
            "driver does not run; leave out the call, or run it on llvm-cpu"
        )
    if _LOST in text:
        return f"function '{name}' failed: {_lost('vulkan')}"
    parts = [part.strip() for part in text.split(";") if part.strip()]
    for index, part in enumerate(parts):
        if "FAILED_PRECONDITION" in part and index + 1 < len(parts):
            return f"function '{name}' stopped: {parts[index + 1]}"
    return f"function '{name}' failed: {text}"
