"""Hand models out, and write what comes back.

All files are read here, and written here: a worker of a cluster needs no folder of ours. A model is
read when its turn comes near, so that there may be more of them than memory has place for. Outputs
take their names when they are whole (`subquant.core.files.write_whole`), and the line of the
manifest comes last; so a run that is killed leaves whole outputs and nothing else, and the next one
knows which.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..compiler.compile_options import CompileOptions, Emit
from ..compiler.digests import digest_of
from ..compiler.keys import Key, is_for_host, key_of_source, machine_of
from ..compiler.mlir_client import Input
from ..core.files import read_input, reproducer_name, write_whole
from ..errors import InputError, Place, Remark, SubquantError, error_from_json
from ..isolation.limits import Limits
from .engines import HOST_CPU, Done, Task, run_tasks
from .engines.input_bundle import Parcel, read_flag_files
from .manifest import Manifest, Record
from .models import Model

__all__ = ["Batch", "CompiledModel", "Status"]

Status = Literal["compiled", "up-to-date", "failed", "not-run"]
"""What became of a model. One that is not run was waiting, or was cancelled, when the run ended."""

_FUNCTION = "subquant.batch.tasks:compile_model"


@dataclass(frozen=True)
class CompiledModel:
    """What became of a model.

    Args:
        name: its path, as it was given or found.
        output: the path of what was made of it.
        status: `Status`.
        passes_seconds: what subquant's passes and reading the model took; of a model that is up to
            date, when it was made.
        iree_seconds: the same of IREE's compiler; 0 if the executable came out of a cache.
        size: of the output, in bytes.
        is_cached: the executable came out of a cache.
        error: why it failed, with the place.
        worker: the address of the worker that compiled it; empty on this machine.
        remarks: what `CompileOptions.explain` asks for.
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
        """What it took, without waiting."""
        return self.passes_seconds + self.iree_seconds


@dataclass(frozen=True)
class _Read:
    """A model whose files are read, and the key of what becomes of it."""

    model: Model
    key: str


class Batch:
    """A run over many models.

    Args:
        models: with the names of their outputs, which differ.
        folder: of the outputs.
        options: what to compile for.
        emit: as of `subquant.compiler.compilation.compile_to_bytes`.
        parameters: a folder for the constants of 1 KiB and more, in one archive (``.irpa``) for
            each model, named like its output; None to have them in the executables.
        resume: leave alone what is up to date.
        limits: of the child processes.

    Raises:
        InputError: the folder or its manifest cannot be read or written.
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
        _make_folder(self._folder)
        self._manifest = Manifest(self._folder)

    def not_run(self, model: Model) -> CompiledModel:
        """What is said of a model that has no result."""
        return CompiledModel(model.path, self._folder / model.output, "not-run")

    def run(
        self,
        *,
        jobs: int | None = None,
        cluster: str | None = None,
        on_begin: Callable[[Model], object] | None = None,
    ) -> Generator[tuple[Model, CompiledModel], None, None]:
        """Compile, and yield what became of each model, in the order in which they end.

        Closing the iterator cancels what is left, with its child processes.

        Args:
            jobs: how many models at a time on this machine; by default one a core.
            cluster: the address of a Dask scheduler, whose workers compile in place of this
                machine.
            on_begin: called with each model that is compiled, when that begins.

        Raises:
            EnvironmentProblem: the cluster cannot be used, or was lost.
            InputError, UsageError: a flag for IREE's compiler names what cannot be sent to it.
        """
        flag_files = {} if cluster is None else read_flag_files(self.options.iree_flags)
        left: list[Model] = []
        for model in self.models:
            found = self._up_to_date(model) if self._resume else None
            if found is None:
                left.append(model)
            else:
                yield model, found
        if not left:
            return
        failed: deque[tuple[Model, CompiledModel]] = deque()
        read: dict[str, _Read] = {}

        def tasks() -> Iterator[Task]:
            for model in sorted(left, key=_rank):
                try:
                    read[model.path], task = self._begin(model, flag_files)
                except SubquantError as error:
                    failed.append((model, self._failed(model, error)))
                else:
                    yield task

        on_step = None if on_begin is None else lambda task, step: on_begin(read[task.name].model)
        run = run_tasks(tasks(), jobs=jobs, cluster=cluster, on_step=on_step)
        with contextlib.closing(run):
            for done in run:
                yield from _taken(failed)
                one = read.pop(done.task.name)
                yield one.model, self._finish(one, done)
        yield from _taken(failed)

    def _failed(
        self, model: Model, error: SubquantError, result: CompiledModel | None = None
    ) -> CompiledModel:
        """The result of a model that failed; its error says which it is."""
        if error.place is None and f"'{model.path}'" not in error.message:
            error.place = Place("-")
        error = error.in_file(model.path)
        return replace(result or self.not_run(model), status="failed", error=error)

    # -- before -----------------------------------------------------------------------------------

    def _up_to_date(self, model: Model) -> CompiledModel | None:
        """The result of a model that there is nothing to do for."""
        if not self._manifest.has(model.output):
            return None
        try:
            key = self._key(Input(model.path, data=read_input(model.path)))
        except SubquantError:  # which is said when its turn comes
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

    def _key(self, given: Input) -> Key:
        has_archive = self._parameters is not None
        return key_of_source(given, self.options, self.emit, parameters=has_archive)

    def _begin(self, model: Model, flag_files: Mapping[str, bytes]) -> tuple[_Read, Task]:
        """Read a model.

        Raises:
            SubquantError: it cannot be read.
        """
        given = Input(model.path, data=read_input(model.path))
        key = self._key(given)
        parcel = Parcel(given, self._reproducer(model))
        if not key.is_valid:
            raise InputError("a file that it has data in changes", Place(model.path))
        parcel.add_flag_files(flag_files)
        arguments: dict[str, Any] = {
            "parcel": parcel.label,
            "options": asdict(self.options),
            "emit": self.emit,
            "limits": asdict(self._limits),
            "parameters": self._parameters is not None,
            "machine": machine_of(self.options),
        }
        needs = {HOST_CPU: 1.0} if is_for_host(self.options) else {}
        return _Read(model, key.text), Task(model.path, _FUNCTION, arguments, parcel.blobs, needs)

    def _reproducer(self, model: Model) -> Path:
        path = self._folder / model.stem
        return path.with_name(reproducer_name(path.name))

    def _outputs(self, model: Model) -> list[Path]:
        found = [self._folder / model.output]
        if self._parameters is not None:
            found.append(self._parameters / f"{model.stem}.irpa")
        return found

    def _name(self, path: Path) -> str:
        """A path from the folder of the outputs on."""
        return os.path.relpath(path, self._folder).replace(os.sep, "/")

    # -- after ------------------------------------------------------------------------------------

    def _finish(self, one: _Read, done: Done) -> CompiledModel:
        """Write what was made of a model, or the reproducer of its error."""
        if done.error is not None:
            return replace(self._failed(one.model, done.error), worker=done.worker)
        value = done.value
        result = replace(
            self.not_run(one.model),
            worker=done.worker,
            passes_seconds=float(value["passes_seconds"]),
            iree_seconds=float(value["iree_seconds"]),
            is_cached=bool(value["cached"]),
            remarks=[Remark.from_json(fields) for fields in value["remarks"]],
        )
        if value["error"] is not None:
            notes = [*value["error"]["notes"], *self._write_reproducer(one.model, done.blobs)]
            error = error_from_json({**value["error"], "notes": notes})
            return self._failed(one.model, error, result)
        try:
            self._write_outputs(one, result, done.blobs)
        except OSError as problem:
            message = f"cannot write '{problem.filename or result.output}': {problem.strerror}"
            return self._failed(one.model, InputError(message), result)
        return replace(result, status="compiled", size=len(done.blobs[0]))

    def _write_reproducer(self, model: Model, blobs: Sequence[bytes]) -> Iterator[str]:
        """Write it, if there is one; what is to be said where that is not possible."""
        path = self._reproducer(model)
        for data in blobs:
            try:
                _write(path, data)
            except OSError as problem:  # the error of the model is what matters
                yield f"'{path}' cannot be written: {problem.strerror}"

    def _write_outputs(self, one: _Read, result: CompiledModel, blobs: Sequence[bytes]) -> None:
        files = {}
        # The executable last: it is what people look for.
        for path, data in reversed([*zip(self._outputs(one.model), blobs, strict=False)]):
            _write(path, data)
            files[self._name(path)] = (len(data), digest_of(data))
        self._manifest.add(
            Record(
                one.model.output, one.key, files, result.passes_seconds, result.iree_seconds
            )
        )  # fmt: skip


_SMALL, _ALIKE = 1 << 14, 8


def _rank(model: Model) -> float:
    """The place of a model in a run: those that take longest begin first.

    Otherwise the run may end with one of them alone. How long one takes is not known, and the size
    of its file says it roughly: below `_SMALL` bytes, and within a factor of `_ALIKE`, it says
    nothing, and models stay in the order of the input, in which people see them end.
    """
    try:
        size = os.path.getsize(model.path)
    except OSError:  # which is said when its turn comes
        size = 0
    return -math.floor(math.log(max(size / _SMALL, 1), _ALIKE))


def _taken(
    failed: deque[tuple[Model, CompiledModel]],
) -> Iterator[tuple[Model, CompiledModel]]:
    while failed:
        yield failed.popleft()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder '{path}': {error.strerror}") from None


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, in a folder that may have to be made.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
