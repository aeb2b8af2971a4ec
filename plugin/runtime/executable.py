"""Run executables: NumPy arrays in, NumPy arrays out, on a CPU or a Vulkan device."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.cpu_features import missing_features
from ..errors import ExecutionError, SignatureError, UsageError, expected_name, printable, quoted
from ..numerics.element_types import Array, DType
from ..signature import (
    BOUND_LOOPS,
    CPU_FEATURES_KEY,
    LOOPS_KEY,
    MOST_ITERATIONS,
    TARGET_KEY,
    Signature,
    ValueType,
)
from .arguments import abi_element, array_of_result, arrays_of_arguments, element_type, held
from .device import Device, OpenDevice, iree_runtime
from .native_calls import check_process, native_call
from .vm_modules import (
    PublicFunction,
    load_module,
    parameters_module,
    public_functions,
    vm_instance,
)

__all__ = ["Executable", "Function"]


class Executable:
    """A loaded executable.

    Args:
        source: a path, or the bytes of a ``.vmfb``.
        device: a `Device` or its name.
        parameters: parameter files (``.irpa``) by scope.

    Raises:
        InputError: the file cannot be read or is no executable.
        EnvironmentProblem: there is no such device.
        ExecutionError: the executable was compiled for another device.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        device: Device | str = "llvm-cpu",
        parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        self.device = device if isinstance(device, Device) else Device(device)
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
        opened = self.device.open()
        modules = [runtime.create_hal_module(instance, opened.handle)]
        if parameters:
            modules.append(parameters_module(instance, parameters))
        try:
            context = runtime.VmContext(instance, [*modules, self._module])
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutionError(_load_message(name, self.device, error)) from None
        if self.device.ends_long_loops and BOUND_LOOPS in self._module.function_names:
            most = runtime.VmVariantList(1)
            most.push_int(MOST_ITERATIONS)
            handle = self._module.lookup_function(BOUND_LOOPS)
            context.invoke(handle, most, runtime.VmVariantList(0))
        self.functions = {
            each.name: Function(each.name, each.handle, each.signature, context, opened)
            for each in functions
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


class Function:
    """A function of an executable; call it with one array for each argument."""

    # Without a reference to the executable, which is freed, and its device closed, with the last
    # that refers to it or to a function of it.
    def __init__(
        self,
        name: str,
        handle: Any,
        signature: Signature | None,
        context: Any,
        device: OpenDevice,
    ) -> None:
        self.name = name
        self._handle = handle
        self._context = context
        self._device = device
        self.signature = signature

    def __repr__(self) -> str:
        if self.signature is None:
            return f"<function {self.name}>"
        inputs = ", ".join(value.named for value in self.signature.inputs)
        outputs = ", ".join(value.named for value in self.signature.outputs)
        return f"<function {self.name}({inputs}) -> ({outputs})>"

    def __call__(self, *arguments: npt.ArrayLike, quantized_io: bool = False) -> Any:
        """Run the function.

        Args:
            *arguments: arrays or numbers, one for each argument of the signature. A quantized one
                is given as storage values (integers in the storage range).
            quantized_io: take reals for quantized arguments and return reals for quantized
                results: they are quantized and dequantized here by the reference arithmetic.

        Returns:
            An array for each result: the array itself if there is one, a tuple if there are more,
            None if there is none.

        Raises:
            SignatureError: an argument does not fit.
            ExecutionError: the runtime failed, or a check of a dynamic dimension did, or this
                process was forked since the executable was loaded.
        """
        results = self.invoke(arguments, quantized_io=quantized_io)
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def invoke(
        self, arguments: Sequence[npt.ArrayLike], *, quantized_io: bool = False
    ) -> list[Array]:
        """Run the function and return the list of its results; otherwise as a call."""
        if self.signature is None:
            raise SignatureError(
                f"function '{self.name}' has no signature to convert its arguments with; compile "
                "it with 'subquant compile'"
            )
        check_process(self._device.process)
        inputs, outputs = self.signature.inputs, self.signature.outputs
        arrays = arrays_of_arguments(arguments, inputs, self.name, quantized_io=quantized_io)
        # In a call of its own, whose buffers are freed before what may be the last reference to the
        # device: `self`. An error would keep them by its traceback, and the garbage collector frees
        # what lies in a cycle in any order, which crashes in IREE.
        try:
            with native_call():
                return self._run(arrays, inputs, outputs, quantized_io)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise

    def _run(
        self,
        arrays: Sequence[Array],
        inputs: Sequence[ValueType],
        outputs: Sequence[ValueType],
        quantized_io: bool,
    ) -> list[Array]:
        runtime = iree_runtime()
        pushed = runtime.VmVariantList(len(inputs))
        popped = runtime.VmVariantList(len(outputs))
        keep = []
        try:
            for array, type_ in zip(arrays, inputs, strict=True):
                keep.append(_push(pushed, array, type_, self._device))
            self._context.invoke(self._handle, pushed, popped)
            return _results(popped, outputs, self._device, quantized_io)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutionError(_run_message(self.name, error, inputs)) from None


def _push(pushed: Any, array: Array, type_: ValueType, device: OpenDevice) -> Any:
    """Push an array of storage values as what the compiled function takes for it."""
    abi = type_.abi
    element = abi_element(abi[0])
    values = held(array, type_)
    if not abi[0].startswith("tensor"):
        if element_type(element).is_float:
            pushed.push_float(float(values))
        else:
            pushed.push_int(int(values))
        return None
    if type_.shape is None:
        view = device.upload(values.reshape(-1), element)
        extents = device.upload(np.array(array.shape, np.int64), "i64")
        pushed.push_ref(view)
        pushed.push_ref(extents)
        return view, extents
    view = device.upload(values, element)
    pushed.push_ref(view)
    return view


# -- results --------------------------------------------------------------------------------------


def _results(
    popped: Any, outputs: Sequence[ValueType], device: OpenDevice, quantized_io: bool
) -> list[Array]:
    runtime = iree_runtime()
    results: list[Array] = []
    position = 0
    for type_ in outputs:
        element = abi_element(type_.abi[0])
        if type_.abi[0].startswith("tensor"):
            view = popped.get_as_object(position, runtime.HalBufferView)
            array = device.download(view, element_type(element).dtype)
            position += 1
            if type_.shape is None:
                extents = popped.get_as_object(position, runtime.HalBufferView)
                shape = device.download(extents, np.dtype(np.int64))
                if int(np.prod(shape)) != array.size:
                    raise ExecutionError(
                        f"a result has {array.size} elements, and its shape is {shape.tolist()}"
                    )
                array = array.reshape(shape)
                position += 1
        else:
            array = _scalar(popped.get_variant(position), element_type(element).dtype)
            position += 1
        results.append(array_of_result(array, type_, quantized_io))
    return results


def _scalar(value: Any, dtype: DType) -> Array:
    """A number from IREE's virtual machine, which gives narrow integers as unsigned ones."""
    if dtype.kind != "i":
        return np.asarray(value, dtype)
    bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return np.asarray(bits, f"u{dtype.itemsize}").view(dtype)


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


def _listed(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return " and ".join([", ".join(quoted(name)[1:-1] for name in names[:most]), *more])


def _load_message(name: str, device: Device, error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if "io_parameters" in reason:
        return f"{name} needs parameters; give them as scope=file.irpa (--parameters)"
    return (
        f"{name} cannot be loaded on the device '{device.name}': {reason}; compile it for this "
        f"device (--target {'vulkan' if device.is_vulkan else 'llvm-cpu'})"
    )


_MISMATCH = re.compile(r"input(\d+) shape dimension (\d+) mismatch; expected (\d+) but have (\d+)")


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
    parts = [part.strip() for part in text.split(";") if part.strip()]
    for index, part in enumerate(parts):
        if "FAILED_PRECONDITION" in part and index + 1 < len(parts):
            return f"function '{name}' stopped: {parts[index + 1]}"
    return f"function '{name}' failed: {text}"
