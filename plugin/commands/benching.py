"""What ``subquant bench`` does: compile, load and time, here or on a worker of a cluster.

`Bench.run` is the same on both. On a worker it runs in a child process, so that neither a crash nor
a long call is the worker's, on files that are written there under their own names (`time_there`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..batch.engines import Done, Task, needs_of, run_tasks
from ..batch.engines.input_bundle import Parcel, read_flag_files, unpacked
from ..compiler.compile_options import options_of_json
from ..compiler.mlir_client import Input
from ..errors import Remark, SubquantError, error_from_json
from ..isolation.child import ReportStep
from ..isolation.client import call
from ..isolation.limits import Limits
from .arrays import parse_input, split_name
from .calls import Call
from .console import read_model

if TYPE_CHECKING:
    from ..runtime import Executable
    from ..runtime.timing import Times
    from ..signature import Signature

__all__ = ["Bench", "bench_on_cluster", "time_in_child", "time_there"]

_ALONE = {"bench": 1.0}
"""The resource of a worker that does one of these at a time."""


@dataclass(frozen=True)
class Bench:
    """What is timed, and how; all of it are JSON values.

    Args:
        model: the path, or "-" for standard input; an executable if it ends in ``.vmfb``.
        device: as of a `Device`.
        threads: the same.
        function, inputs, seed, parameters, seconds, repeat: the options of the command.
        options: of `CompileOptions`.
        is_for_device: code for Vulkan is for the device that there is, whatever `options` say.
        limits: of `Limits`.
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
        """Nothing is compiled."""
        return self.model.endswith(".vmfb")

    @property
    def call(self) -> Call:
        """The call that is timed."""
        return Call(
            self.function, tuple(self.inputs), (), (), 0, 0,
            quantized_io=False, as_stream=False, as_json=False,
        )  # fmt: skip

    def run(
        self,
        source: str | bytes | Path | Input,
        reproducer: str | os.PathLike[str],
        steps: Callable[[str], None],
        on_remark: Callable[[Remark], object],
    ) -> dict[str, Any]:
        """Compile, unless it is an executable, and time the calls on this machine.

        Args:
            source: what is compiled, or the path of the executable.
            reproducer: as of `compile_to_bytes`.
            steps: called with each step.
            on_remark: called with what the options ask for.

        Raises:
            SubquantError: something that was given is wrong, or fails.
        """
        from ..compiler.compilation import compile_to_bytes
        from ..runtime import Device, Executable

        where = Device(self.device, threads=self.threads)
        compiled: dict[str, Any] = {}
        if not self.is_executable:
            options = options_of_json(self.options)
            if self.is_for_device:
                options = replace(options, vulkan_target=where.vulkan_target)
            called = self.call

            def check(signatures: Mapping[str, Signature]) -> None:
                called.check(signatures) if self.inputs else called.name_among(signatures)

            started = time.perf_counter()
            source = compile_to_bytes(
                source, options, reproducer=reproducer, progress=steps, check=check,
                on_remark=on_remark, limits=Limits(**self.limits),
            )  # fmt: skip
            seconds = round(time.perf_counter() - started, 3)
            compiled = {"compile_seconds": seconds, "bytes": len(source)}
        assert not isinstance(source, Input)
        executable = Executable(source, where, self.parameters)
        steps("time")
        name, times = self._timed(executable)
        return {
            "function": name,
            "device": where.name,
            "threads": self.threads,
            "milliseconds": times.to_json(),
        } | compiled

    def _timed(self, executable: Executable) -> tuple[str, Times]:
        """The name of the function, and the times of its calls."""
        from ..runtime.timing import Times, draw_arguments, time_calls

        called = self.call
        signatures = {name: each.signature for name, each in executable.functions.items()}
        name = called.check(signatures) if self.inputs else called.name_among(signatures)
        function, signature = executable[name], signatures[name]
        if self.inputs or signature is None:
            arguments = called.arranged(signature)
        else:
            arguments = draw_arguments(signature, self.seed)
        bound = function.bind(*arguments)
        nanoseconds = time_calls(
            lambda number: bound.invoke(), seconds=self.seconds, repeat=self.repeat
        )
        return name, Times.of(nanoseconds)


# -- on a cluster ---------------------------------------------------------------------------------


def bench_on_cluster(
    bench: Bench,
    cluster: str,
    reproducer: Path,
    steps: Callable[[str], None],
    on_remark: Callable[[Remark], object],
) -> dict[str, Any]:
    """Have a worker of a Dask scheduler do `Bench.run`.

    All files are read here and travel as bytes. A worker that offers ``bench=1`` does one such task
    at a time, and if there is one, no other worker is asked.

    Args:
        bench: what to time.
        cluster: the address of the scheduler.
        reproducer, steps, on_remark: as of `Bench.run`.

    Returns:
        What that returns, with the ``worker``'s address and the description of its ``machine``.

    Raises:
        SubquantError: as of `Bench.run`; or the cluster cannot be used, or was lost.
    """
    task = _task(bench, reproducer)
    run = run_tasks([task], cluster=cluster, on_step=lambda task, step: steps(step))
    with contextlib.closing(run):
        (done,) = run
    return _taken(done, reproducer, on_remark)


def _taken(done: Done, reproducer: Path, on_remark: Callable[[Remark], object]) -> dict[str, Any]:
    """What a task has found; its error is raised."""
    if done.error is not None:
        raise done.error
    for fields in done.value["remarks"]:
        on_remark(Remark.from_json(fields))
    if done.value["error"] is not None:
        for data in done.blobs:
            with contextlib.suppress(OSError):  # the error is what matters
                reproducer.write_bytes(data)
        raise error_from_json(done.value["error"])
    return {**done.value["found"], "worker": done.worker}


def _task(bench: Bench, reproducer: Path) -> Task:
    """The task, whose paths are those in the parcel.

    Raises:
        SubquantError: a file cannot be read or sent, or a value is wrong.
    """
    model = Input(bench.model, data=read_model(bench.model))
    parcel = Parcel(model, reproducer, as_file=True)
    if not bench.is_executable:
        parcel.add_flag_files(read_flag_files(bench.options["iree_flags"]))
    inputs = []
    for number, text in enumerate(bench.inputs):
        name, value = split_name(text)
        parse_input(value)  # what is wrong with it is said before it travels
        if value.startswith("@"):
            value = f"@{parcel.add(value[1:], f'input{number}')}"
        inputs.append(f"{name}={value}" if name else value)
    parameters = {
        scope: parcel.add(path, f"parameters{number}")
        for number, (scope, path) in enumerate(bench.parameters.items())
    }
    moved = replace(bench, inputs=inputs, parameters=parameters)
    return Task(
        f"bench {bench.model}",
        f"{__name__}:{time_there.__name__}",
        {"bench": asdict(moved), "parcel": parcel.label},
        parcel.blobs,
        needs_of(bench.device),
        _ALONE,
    )


def time_there(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Compile and time in a child process: a function of a `subquant.batch.engines.Task`.

    Args:
        arguments: ``bench``, the fields of a `Bench`; ``parcel``, the label of that in which the
            model is.
        blobs: of the parcel.
        steps: called with each step.

    Returns:
        What was ``found``, and the ``remarks``; or the ``error``, with the reproducer as the blob.
    """
    bench = Bench(**arguments["bench"])
    with unpacked(arguments["parcel"], blobs) as parcel:

        def placed(text: str) -> str:
            name, value = split_name(text)
            value = f"@{parcel.path(value[1:])}" if value.startswith("@") else value
            return f"{name}={value}" if name else value

        options = bench.options
        moved = replace(
            bench,
            inputs=[placed(text) for text in bench.inputs],
            parameters={scope: parcel.path(path) for scope, path in bench.parameters.items()},
            options={**options, "iree_flags": parcel.flags(options["iree_flags"])},
        )
        request = {
            "bench": asdict(moved),
            "path": parcel.model.path,
            "reproducer": parcel.reproducer,
        }
        try:
            value, _ = call(_IN_CHILD, request, steps=steps, is_quiet=True)
            return {**value, "error": None}, []
        except SubquantError as error:
            made = parcel.read_reproducer()
            return {"found": None, "remarks": [], "error": parcel.renamed(error)}, made


def time_in_child(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """What of `time_there` is done in the child process."""
    from ..runtime.machine import describe_machine

    bench = Bench(**arguments["bench"])
    path = arguments["path"]
    remarks: list[Remark] = []
    found = bench.run(
        path if bench.is_executable else Input(bench.model, path),
        arguments["reproducer"],
        steps,
        remarks.append,
    )
    found["machine"] = describe_machine()
    return {"found": found, "remarks": [asdict(remark) for remark in remarks]}, []


_IN_CHILD = f"{__name__}:{time_in_child.__name__}"
