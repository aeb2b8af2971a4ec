"""The measurement of ``subquant bench``: compile, load and time, here or on a cluster worker.

`Bench.run` is the same on both. On a worker it runs in a child process, so that a crash or a long
call does not take the worker down, on files that are unpacked there under their own names
(`time_on_worker`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..batch.engines import Task, needs_of, run_tasks
from ..batch.engines.input_bundle import InputBundle, read_flag_files, unpack_bundle
from ..compiler.compile_options import CompileOptions
from ..compiler.mlir_client import Input
from ..errors import Remark, SubquantError, error_from_json
from ..isolation.child import ReportStep
from ..isolation.client import call
from ..isolation.limits import Limits
from .arrays import parse_input, split_name
from .console import read_model
from .function_call import Call

if TYPE_CHECKING:
    from ..runtime import Executable
    from ..runtime.timing import Times
    from ..signature import Signature

_EXCLUSIVE = {"bench": 1.0}
"""The Dask resource of workers that run one measurement at a time."""


@dataclass(frozen=True)
class Bench:
    """A measurement: model, device, function, arguments and duration, as JSON values.

    Args:
        model: the path, or "-" for standard input; an executable if it ends in ``.vmfb``.
        device, threads: as for a `Device`.
        function, inputs, seed, parameters, seconds, repeat: the options of the command.
        options: the fields of `CompileOptions`.
        is_for_device: compile for the Vulkan device of the machine that runs the measurement.
        limits: the fields of `Limits`.
    """

    model: str
    device: str
    threads: int | None
    function: str | None
    inputs: Sequence[str]
    seed: int
    parameters: Mapping[str, str]
    seconds: float
    repeat: int | None
    options: Mapping[str, Any]
    is_for_device: bool
    limits: Mapping[str, Any]

    @property
    def is_executable(self) -> bool:
        """True if the model is an executable, which is not compiled."""
        return self.model.endswith(".vmfb")

    @property
    def call(self) -> Call:
        """The timed call."""
        return Call(self.function, tuple(self.inputs))

    def run(
        self,
        source: str | bytes | Path | Input,
        reproducer: str | os.PathLike[str],
        steps: Callable[[str], None],
        on_remark: Callable[[Remark], object],
    ) -> dict[str, Any]:
        """Compile, unless it is an executable, and time the calls on this machine.

        Args:
            source: the source of the module, or the path of the executable.

        Raises:
            SubquantError: an option or the model is wrong, or the compilation or a call fails.
        """
        from ..compiler.compilation import compile_to_bytes
        from ..runtime import Device, Executable

        device = Device(self.device, threads=self.threads)
        compiled: dict[str, Any] = {}
        if not self.is_executable:
            options = CompileOptions(**self.options)
            if self.is_for_device:
                options = replace(options, vulkan_target=device.vulkan_target)
            started = time.perf_counter()
            source = compile_to_bytes(
                source, options, reproducer=reproducer, progress=steps, check=self._check_call,
                on_remark=on_remark, limits=Limits(**self.limits),
            )  # fmt: skip
            seconds = round(time.perf_counter() - started, 3)
            compiled = {"compile_seconds": seconds, "bytes": len(source)}
        assert not isinstance(source, Input)
        executable = Executable(source, device, self.parameters)
        steps("time")
        name, times = self._time(executable)
        return {
            "function": name,
            "device": device.name,
            "threads": executable.threads,
            "milliseconds": times.to_json(),
        } | compiled

    def _time(self, executable: Executable) -> tuple[str, Times]:
        """Return the name of the function, and the times of its calls."""
        from ..runtime.timing import Times, draw_arguments, time_calls

        signatures = {name: each.signature for name, each in executable.functions.items()}
        name = self._check_call(signatures)
        function, signature = executable[name], signatures[name]
        if self.inputs or signature is None:
            arguments = self.call.ordered_arguments(signature)
        else:
            arguments = draw_arguments(signature, self.seed)
        bound = function.bind(*arguments)
        nanoseconds = time_calls(
            lambda number: bound.invoke(), seconds=self.seconds, repeat=self.repeat
        )
        return name, Times.of(nanoseconds)

    def _check_call(self, signatures: Mapping[str, Signature | None]) -> str:
        """Check the function name, and the arguments if any are passed; return the name."""
        return self.call.check(signatures) if self.inputs else self.call.choose(signatures)


# -- on a cluster ---------------------------------------------------------------------------------


def bench_on_cluster(
    bench: Bench,
    cluster: str,
    reproducer: Path,
    steps: Callable[[str], None],
    on_remark: Callable[[Remark], object],
) -> dict[str, Any]:
    """Run `Bench.run` on a worker of a Dask cluster.

    All files are read here and sent as bytes. A worker with the resource ``bench=1`` runs one such
    task at a time; if there is one, no other worker is used.

    Returns:
        The result of `Bench.run`, with the ``worker``'s address and the description of its
        ``machine``.

    Raises:
        SubquantError: as `Bench.run`; or the cluster cannot be used, or was lost.
    """
    task = _task(bench, reproducer)
    run = run_tasks([task], cluster=cluster, on_step=lambda task, step: steps(step))
    with contextlib.closing(run):
        (done,) = run
    if done.error is not None:
        raise done.error
    for fields in done.value["remarks"]:
        on_remark(Remark.from_json(fields))
    if done.value["error"] is not None:
        for data in done.blobs:
            with contextlib.suppress(OSError):  # the error below matters more
                reproducer.write_bytes(data)
        raise error_from_json(done.value["error"])
    return {**done.value["result"], "worker": done.worker}


def _task(bench: Bench, reproducer: Path) -> Task:
    """Return the task, with paths relative to its input bundle.

    Raises:
        SubquantError: a file cannot be read or sent, or a value is wrong.
    """
    model = Input(bench.model, data=read_model(bench.model))
    bundle = InputBundle(model, reproducer, as_file=True)
    if not bench.is_executable:
        bundle.add_flag_files(read_flag_files(bench.options["iree_flags"]))
    inputs = []
    for number, text in enumerate(bench.inputs):
        name, value = split_name(text)
        parse_input(value)  # reports errors before the value is sent
        if value.startswith("@"):
            value = f"@{bundle.add(value[1:], f'input{number}')}"
        inputs.append(f"{name}={value}" if name else value)
    parameters = {
        scope: bundle.add(path, f"parameters{number}")
        for number, (scope, path) in enumerate(bench.parameters.items())
    }
    moved = replace(bench, inputs=inputs, parameters=parameters)
    return Task(
        f"bench {bench.model}",
        f"{__name__}:{time_on_worker.__name__}",
        {"bench": asdict(moved), "parcel": bundle.label},
        bundle.blobs,
        needs_of(bench.device),
        _EXCLUSIVE,
    )


def time_on_worker(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Compile and time in a child process: the function of a `subquant.batch.engines.Task`.

    Args:
        arguments: ``bench``, the fields of a `Bench`; ``parcel``, the label of the input bundle.
        blobs: the blobs of the input bundle.
        steps: called with each step.

    Returns:
        The ``result`` and the ``remarks``; or the ``error``, with the reproducer as the blob.
    """
    bench = Bench(**arguments["bench"])
    with unpack_bundle(arguments["parcel"], blobs) as bundle:

        def unpacked_input(text: str) -> str:
            name, value = split_name(text)
            value = f"@{bundle.path(value[1:])}" if value.startswith("@") else value
            return f"{name}={value}" if name else value

        options = bench.options
        moved = replace(
            bench,
            inputs=[unpacked_input(text) for text in bench.inputs],
            parameters={scope: bundle.path(path) for scope, path in bench.parameters.items()},
            options={**options, "iree_flags": bundle.flags(options["iree_flags"])},
        )
        paths = {"path": bundle.model.path, "reproducer": bundle.reproducer}
        request = {"bench": asdict(moved), **paths}
        try:
            value, _ = call(_IN_CHILD, request, steps=steps, is_quiet=True)
            return {**value, "error": None}, []
        except SubquantError as error:
            return {"remarks": [], "error": bundle.renamed(error)}, bundle.read_reproducer()


def time_in_child(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run the measurement of `time_on_worker` in the child process."""
    from ..runtime.machine import describe_machine

    bench = Bench(**arguments["bench"])
    path = arguments["path"]
    remarks: list[Remark] = []
    result = bench.run(
        path if bench.is_executable else Input(bench.model, path),
        arguments["reproducer"],
        steps,
        remarks.append,
    )
    result["machine"] = describe_machine()
    return {"result": result, "remarks": [asdict(remark) for remark in remarks]}, []


_IN_CHILD = f"{__name__}:{time_in_child.__name__}"
