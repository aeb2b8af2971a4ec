"""Executable: a compiled program that is loaded on a CPU or a Vulkan device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..core.files import write_atomically, writing
from ..errors import ExecutionError, UsageError, expected_name, printable, quoted
from ..signature import (
    CPU_FEATURES_KEY,
    LOOPS_KEY,
    MAX_LOOP_ITERATIONS,
    TARGET_KEY,
    WORK_KEY,
    WorkEstimate,
)
from .device import Device
from .entry_points import EntryPoints, loop_limit_setter, sync_entries, worker_program
from .error_messages import load_message
from .function import Function
from .host_features import missing_features
from .invokers import invoker_of
from .native_calls import native_call
from .open_device import iree_runtime
from .vm_modules import (
    PublicFunction,
    load_module,
    parameters_module,
    public_functions,
    vm_instance,
)

_MAX_LISTED_FEATURES = 4
"""The number of missing CPU features that an error lists."""


class Executable:
    """A loaded executable.

    Args:
        source: a path, or the bytes of a ``.vmfb``.
        device: a `Device` or its name.
        parameters: parameter files (``.irpa``) by scope.
        threads: the number of threads, as for a `Device`; only with the name of a device.

    Functions are attributes by their names; those with the name of another attribute (``save``)
    are items: ``executable["save"]``.

    Attributes:
        threads: how many run its functions, at most; None where the device has none to choose.

    Raises:
        InputError: the file cannot be read or is no executable.
        EnvironmentProblem: there is no such device.
        UsageError: the device has not this number of threads.
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
        name, self._module, self._data = load_module(source)
        instance = vm_instance()
        functions = public_functions(self._module, name)
        name = "the executable" if isinstance(source, bytes) else quoted(name)
        _check_target(functions, name, self.device)
        _check_cpu(functions, name)
        work = [WorkEstimate.from_text(each.reflection.get(WORK_KEY, "")) for each in functions]
        pool = self.device.worker_pool(work, worker_program(self._module))
        device = self.device.open(work) if pool is None else self.device.open(())
        self.threads = pool.threads if pool is not None else self.device.threads_of(device)
        modules = [runtime.create_hal_module(instance, device.handle)]
        if parameters:
            modules.append(parameters_module(instance, parameters))
        try:
            context = runtime.VmContext(instance, [*modules, self._module])
        except (RuntimeError, ValueError, IndexError) as error:
            message = load_message(name, self.device.name, self.device.target, parameters, error)
            raise ExecutionError(message) from None
        invoker = invoker_of(context, self._module, device, pool, work)
        set_loop_limit = loop_limit_setter(self._module)
        if self.device.ends_long_loops and set_loop_limit is not None:
            limit = runtime.VmVariantList(1)
            limit.push_int(MAX_LOOP_ITERATIONS)
            invoker.invoke(set_loop_limit, limit, runtime.VmVariantList(0))
        device.keep(invoker, self._module, *modules[1:])
        entries = [EntryPoints(each.handle) for each in functions]
        if device.is_synchronous:
            entries = sync_entries(self._module, [each.handle for each in functions])
            prepacked = [each.weights for each in functions if each.weights is not None]
            variants = sync_entries(self._module, [each.function for each in prepacked])
            for weights, variant in zip(prepacked, variants, strict=True):
                weights.entry = variant
        self.functions = {
            each.name: Function(each.name, entry, each.signature, invoker, device, each.weights)
            for each, entry in zip(functions, entries, strict=True)
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable to a file (``.vmfb``), which `subquant.load` reads.

        Parameter archives are files of their own, and are not written.

        Raises:
            InputError: the file cannot be written.
        """
        with writing(path):
            write_atomically(path, self._data)

    def __repr__(self) -> str:
        functions = ", ".join(map(repr, self.functions.values()))
        return f"<executable for {self.device.name}: {functions}>"

    def __getitem__(self, name: str) -> Function:
        """Return a function by name; UsageError if there is none."""
        if name not in self.functions:
            raise UsageError(_unknown_function(name, self.functions))
        return self.functions[name]

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("functions", {})
        if name in functions:
            function: Function = functions[name]
            return function
        is_protocol = name.startswith("_")  # of Python
        raise AttributeError(name if is_protocol else _unknown_function(name, functions))


def _unknown_function(name: str, known: Mapping[str, Function]) -> str:
    return f"no function is named {quoted(name)}; {expected_name(name, known)}"


def _check_target(functions: Sequence[PublicFunction], name: str, device: Device) -> None:
    """Refuse an executable for another kind of device, on which the driver would crash."""
    for function in functions:
        if TARGET_KEY not in function.reflection:
            continue
        target = function.reflection[TARGET_KEY]
        if device.ends_long_loops and LOOPS_KEY in function.reflection:
            count, _, operation = function.reflection[LOOPS_KEY].partition(" ")
            raise ExecutionError(
                f"{name} runs a loop {printable(count)} times for {printable(operation)}, and "
                f"the device '{device.name}' (Mesa's llvmpipe) ends loops after "
                f"{MAX_LOOP_ITERATIONS} times, without an error; run it on another device"
            )
        kind, _, variant = target.partition(":")
        if (kind == "vulkan") != device.is_vulkan:
            raise ExecutionError(
                f"{name} was compiled for {kind}, and the device is '{device.name}'; compile it "
                f"with --target {device.target}"
            )
        if variant.startswith("generic-matrix") and variant != device.matrix_target:
            raise ExecutionError(
                f"{name} multiplies cooperative matrices that the device '{device.name}' does not "
                f"have; compile it with --vulkan-target {device.vulkan_target}"
            )
        if kind == "vulkan" and variant != "generic-32bit" and not device.has_8bit_storage:
            raise ExecutionError(
                f"{name} loads and stores 8-bit values, which the device '{device.name}' does "
                "not; compile it with --vulkan-target generic-32bit"
            )


def _check_cpu(functions: Sequence[PublicFunction], name: str) -> None:
    """Refuse an executable with instructions that would end the process on this CPU."""
    for recorded in {each.reflection.get(CPU_FEATURES_KEY, "") for each in functions}:
        missing = missing_features(recorded)
        if missing:
            listed = ", ".join(quoted(feature)[1:-1] for feature in missing[:_MAX_LISTED_FEATURES])
            if len(missing) > _MAX_LISTED_FEATURES:
                listed += f" and {len(missing) - _MAX_LISTED_FEATURES} more"
            raise ExecutionError(
                f"{name} was compiled for a CPU with {listed}, which this one does not have; "
                "compile it here, or with --target-cpu generic"
            )
