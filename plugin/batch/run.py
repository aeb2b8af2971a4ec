"""Run of a batch: submits models, and writes their outputs.

All files are read and written by this process, so workers of a cluster need no shared folder. A
model is read shortly before it is compiled, so that all of them need not fit into memory. Outputs
are written atomically (`subquant.core.files.write_atomically`), then their line of the manifest: a
killed run leaves only complete outputs, and the next run knows them.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..compiler.compile_options import CompileOptions, Emit
from ..compiler.digests import digest_of
from ..compiler.keys import Key, is_for_host, key_of_source, machine_of
from ..compiler.mlir_client import Input
from ..core.files import read_input, reproducer_name, write_atomically
from ..errors import InputError, Place, Remark, SubquantError, error_from_json
from ..isolation.limits import Limits
from .engines import HOST_CPU, Done, Task, run_tasks
from .engines.input_bundle import InputBundle, read_flag_files
from .manifest import Manifest, Record
from .models import Model, find_models, name_outputs

Status = Literal["compiled", "up-to-date", "failed", "not-run"]
"""Status of a model; a model is not run if the run ended before or during its compilation."""

_FUNCTION = "subquant.batch.tasks:compile_model"


@dataclass(frozen=True)
class CompiledModel:
    """Result of a model.

    Args:
        name: the path of the model.
        output: the path of its output.
        status: `Status`.
        passes_seconds: the time of reading and passes; an up-to-date model has the time of its
            compilation.
        iree_seconds: the time of IREE's compiler; 0 for an executable from a cache.
        size: the bytes of the output.
        is_cached: True if the executable came from a cache.
        error: the located error of a failed model.
        worker: the address of the worker that compiled it; empty on this machine.
        remarks: the remarks of `CompileOptions.explain`.
    """

    name: str
    output: Path
    status: Status
    passes_seconds: float = 0.0
    iree_seconds: float = 0.0
    size: int = 0
    is_cached: bool = False
    error: SubquantError | None = None
    worker: str = ""
    remarks: Sequence[Remark] = ()

    @property
    def seconds(self) -> float:
        """The time of the compilation, without waiting."""
        return self.passes_seconds + self.iree_seconds


class Batch:
    """Batch of models; InputError if the folder or its manifest cannot be read or written.

    Args:
        emit: see `subquant.compiler.compilation.compile_to_bytes`.
        parameters: a folder for the constants of 1 KiB and more, in one archive (``.irpa``) for
            each model, named like its output; None to keep them in the executables.
        resume: True to skip up-to-date outputs.
    """

    def __init__(
        self,
        models: Sequence[Model],
        folder: str | os.PathLike[str],
        options: CompileOptions,
        *,
        emit: Emit = "vmfb",
        parameters: str | os.PathLike[str] | None = None,
        resume: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.models = tuple(models)
        self.options, self.emit = options, emit
        self._folder = Path(folder)
        self._parameters = None if parameters is None else Path(parameters)
        self._resume, self._limits = resume, limits or Limits()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the folder '{folder}': {error.strerror}") from None
        self._manifest = Manifest(self._folder)

    def not_run(self, model: Model) -> CompiledModel:
        """Return the result of a model that was not run."""
        return CompiledModel(model.path, self._folder / model.output, "not-run")

    def run(
        self,
        *,
        jobs: int | None = None,
        cluster: str | None = None,
        on_begin: Callable[[Model], object] | None = None,
    ) -> Generator[tuple[Model, CompiledModel], None, None]:
        """Compile, and yield the result of each model in the order of completion.

        Closing the iterator cancels the remaining models, with their child processes.

        Args:
            jobs, cluster: as for `subquant.batch.engines.run_tasks`, whose errors are raised.
            on_begin: called with each model when its compilation starts.

        Raises:
            InputError, UsageError: a flag of IREE's compiler names a file that cannot be sent.
        """
        flag_files = {} if cluster is None else read_flag_files(self.options.iree_flags)
        left: list[Model] = []
        for model in self.models:
            result = self._up_to_date(model) if self._resume else None
            if result is None:
                left.append(model)
            else:
                yield model, result
        if not left:
            return
        failed: deque[tuple[Model, CompiledModel]] = deque()
        submitted: dict[str, tuple[Model, str]] = {}  # with the keys of the compilations

        def tasks() -> Iterator[Task]:
            for model in sorted(left, key=_rank):
                try:
                    key, task = self._submit(model, flag_files)
                except SubquantError as error:
                    failed.append((model, self._failed(model, error)))
                else:
                    submitted[model.path] = model, key
                    yield task

        on_step = None if on_begin is None else lambda task, step: on_begin(submitted[task.name][0])
        run = run_tasks(tasks(), jobs=jobs, cluster=cluster, on_step=on_step)
        with contextlib.closing(run):
            for done in run:
                while failed:
                    yield failed.popleft()
                model, key = submitted.pop(done.task.name)
                yield model, self._finish(model, key, done)
        yield from failed

    def _failed(
        self, model: Model, error: SubquantError, result: CompiledModel | None = None
    ) -> CompiledModel:
        """Return the result of a failed model; its error names the model."""
        if error.place is None and f"'{model.path}'" not in error.message:
            error.place = Place("-")
        error = error.in_file(model.path)
        return replace(result or self.not_run(model), status="failed", error=error)

    # -- reading ----------------------------------------------------------------------------------

    def _up_to_date(self, model: Model) -> CompiledModel | None:
        """Return the result of an up-to-date model, else None."""
        if not self._manifest.has(model.output):
            return None
        try:
            key = self._key(Input(model.path, data=read_input(model.path)))
        except SubquantError:  # raised again when the model is submitted
            return None
        record = self._manifest.up_to_date(model.output, key.text)
        if record is None or {*record.files} != {*map(self._name, self._outputs(model))}:
            return None
        return replace(
            self.not_run(model),
            status="up-to-date",
            passes_seconds=record.passes_seconds,
            iree_seconds=record.iree_seconds,
            size=record.files[model.output][0],
        )

    def _key(self, source: Input) -> Key:
        has_archive = self._parameters is not None
        return key_of_source(source, self.options, self.emit, parameters=has_archive)

    def _submit(self, model: Model, flag_files: Mapping[str, bytes]) -> tuple[str, Task]:
        """Read a model; return the key of its compilation and its task, or raise SubquantError."""
        source = Input(model.path, data=read_input(model.path))
        key = self._key(source)
        bundle = InputBundle(source, self._reproducer(model))
        if not key.is_valid:
            raise InputError("an external data file changed while it was read", Place(model.path))
        bundle.add_flag_files(flag_files)
        arguments: dict[str, Any] = {
            "parcel": bundle.label,
            "options": asdict(self.options),
            "emit": self.emit,
            "limits": asdict(self._limits),
            "parameters": self._parameters is not None,
            "machine": machine_of(self.options),
        }
        needs = {HOST_CPU: 1.0} if is_for_host(self.options) else {}
        task = Task(model.path, _FUNCTION, arguments, bundle.blobs, needs)
        return key.text, task

    def _reproducer(self, model: Model) -> Path:
        path = self._folder / model.stem
        return path.with_name(reproducer_name(path.name))

    def _outputs(self, model: Model) -> list[Path]:
        paths = [self._folder / model.output]
        if self._parameters is not None:
            paths.append(self._parameters / f"{model.stem}.irpa")
        return paths

    def _name(self, path: Path) -> str:
        """Return a path relative to the folder of the outputs."""
        return os.path.relpath(path, self._folder).replace(os.sep, "/")

    # -- writing ----------------------------------------------------------------------------------

    def _finish(self, model: Model, key: str, done: Done) -> CompiledModel:
        """Write the outputs of a model, or the reproducer of its error."""
        if done.error is not None:
            return replace(self._failed(model, done.error), worker=done.worker)
        value = done.value
        result = replace(
            self.not_run(model),
            worker=done.worker,
            passes_seconds=float(value["passes_seconds"]),
            iree_seconds=float(value["iree_seconds"]),
            is_cached=bool(value["cached"]),
            remarks=[Remark.from_json(fields) for fields in value["remarks"]],
        )
        if value["error"] is not None:
            notes = [*value["error"]["notes"], *self._write_reproducer(model, done.blobs)]
            error = error_from_json({**value["error"], "notes": notes})
            return self._failed(model, error, result)
        try:
            self._write_outputs(model, key, result, done.blobs)
        except OSError as problem:
            message = f"cannot write '{problem.filename or result.output}': {problem.strerror}"
            return self._failed(model, InputError(message), result)
        return replace(result, status="compiled", size=len(done.blobs[0]))

    def _write_reproducer(self, model: Model, blobs: Sequence[bytes]) -> Iterator[str]:
        """Write the reproducer, if there is one; yield a note if that fails."""
        path = self._reproducer(model)
        for data in blobs:
            try:
                _write(path, data)
            except OSError as problem:  # the error of the model is what matters
                yield f"'{path}' cannot be written: {problem.strerror}"

    def _write_outputs(
        self, model: Model, key: str, result: CompiledModel, blobs: Sequence[bytes]
    ) -> None:
        files = {}
        # The executable is written last: scripts wait for it.
        for path, data in reversed([*zip(self._outputs(model), blobs, strict=False)]):
            _write(path, data)
            files[self._name(path)] = (len(data), digest_of(data))
        self._manifest.add(
            Record(
                model.output, key, files, result.passes_seconds, result.iree_seconds
            )
        )  # fmt: skip


_SMALL_BYTES, _SIZE_CLASS = 1 << 14, 8
"""Files below `_SMALL_BYTES`, and files within a factor of `_SIZE_CLASS`, have one rank."""


def _rank(model: Model) -> float:
    """Return the rank of a model: large files are compiled first.

    Otherwise a large one may run alone at the end. The size of the file is a rough estimate of the
    time; models of one rank stay in the order of the input.
    """
    try:
        size = os.path.getsize(model.path)
    except OSError:  # raised when the model is submitted
        size = 0
    return -math.floor(math.log(max(size / _SMALL_BYTES, 1), _SIZE_CLASS))


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically, and create its folder; OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


# -- the function of the API -----------------------------------------------------------------------


def compile_many(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    emit: Emit = "vmfb",
    base: str | os.PathLike[str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    on_result: Callable[[CompiledModel], object] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> list[CompiledModel]:
    """Compile models to a folder; one that fails does not stop the others.

    >>> results = subquant.compile_many(["models/**/*.tflite"], "out", resume=True) # doctest: +SKIP
    >>> [each.error for each in results if each.error]                              # doctest: +SKIP

    Args:
        sources: one or several paths, patterns, or lists of them (``@FILE``).
        output: the folder of the outputs, which mirror the paths of the models.
        emit: ``vmfb`` for executables; ``mlir`` or ``mlirbc`` to stop before IREE.
        base: the folder that outputs are named from; by default the current one.
        parameters: a folder for constants of 1 KiB and more, an ``.irpa`` file for each model.
        jobs: models at a time on this machine; by default one for each core.
        cluster: the address of a Dask scheduler, whose workers compile instead of this machine.
        resume: skip up-to-date outputs: same model, options and versions, and unchanged bytes.
        on_result: called with each result, in the order of completion.
        limits: time and memory limits of MLIR.
        **options: fields of `CompileOptions`.

    Returns:
        The result of each model, in the order of the input: status, times, size, and the error of
        a failed model, which is not raised.

    Raises:
        SubquantError: wrong options, missing models, two models with one output, or no cluster.
    """
    choices = CompileOptions(**options)
    words = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    paths = find_models([os.fspath(each) for each in words], output)
    models = name_outputs(paths, output, emit, base)
    batch = Batch(
        models, output, choices, emit=emit, parameters=parameters, resume=resume, limits=limits
    )
    results: dict[str, CompiledModel] = {}
    with contextlib.closing(batch.run(jobs=jobs, cluster=cluster)) as run:
        for model, result in run:
            results[model.path] = result
            if on_result is not None:
                on_result(result)
    return [results[model.path] for model in models]
