"""One model, compiled wherever a task is done: all that it is read from comes as bytes.

The value of a task::

    {"passes_seconds": 0.2, "iree_seconds": 0.9, "cached": false, "error": null, "remarks": [...]}

The times are those of the steps that a compilation reports: of reading the model and of the passes
of subquant, and of IREE's compiler; waiting for a child process, or for the same compilation
elsewhere, is neither. An error of the model is part of the value, with the times until then, and
with the reproducer, if one was written, as the only blob; otherwise the blobs are the output and,
if it was asked for, the archive of parameters.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..compiler.compilation import compile_to_bytes
from ..compiler.keys import files_beside, machine_of
from ..compiler.options import options_of_json
from ..compiler.worker import Input
from ..errors import CompilerError, EnvironmentProblem, Place, Remark, SubquantError
from ..files import read_input
from ..processes import Limits, Steps, error_to_json

__all__ = [
    "Clock",
    "compile_model",
    "read_beside",
    "remark_of_json",
    "renamed",
    "temporary_folder",
    "write_files",
]

IREE = "iree-compile"
CACHED = "cached"
_WAITING = ("wait for", CACHED)
_REPRODUCER = "subquant.reproducer.mlir"
_BESIDE = "model"


class Clock:
    """Adds up the times of steps.

    Args:
        steps: called with each step too.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._step, self._since = "", time.perf_counter()
        self.passes = self.iree = 0.0
        self.is_cached = False

    def __call__(self, step: str) -> None:
        """Note that a step begins."""
        self.stop()
        self._step = step
        self.is_cached |= step == CACHED
        self._steps(step)

    def stop(self) -> None:
        """Note that the last step has ended."""
        now = time.perf_counter()
        if self._step == IREE:
            self.iree += now - self._since
        elif self._step and not self._step.startswith(_WAITING):
            self.passes += now - self._since
        self._step, self._since = "", now


def remark_of_json(fields: Mapping[str, Any]) -> Remark:
    """Return the remark of which `dataclasses.asdict` is given."""
    place = fields["place"]
    return Remark(fields["message"], None if place is None else Place(**place), fields["op_name"])


def compile_model(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: Steps
) -> tuple[Any, list[bytes]]:
    """Compile a model: a function of a `subquant.fleet.Task`.

    Args:
        arguments: ``file``, its name; ``beside``, the names of the files that it has data in, of
            those that there are, or None if it has data in no other;
            ``options``, ``emit`` and ``limits``; ``parameters``, whether constants go to an
            archive; ``reproducer``, where the caller will write one; ``machine``, what code is
            made for where the options do not say it.
        blobs: the model, and the files beside it.
        steps: called with each step.

    Raises:
        EnvironmentProblem: this machine makes other code than the caller's, or there is no place
            for files.
    """
    options = options_of_json(arguments["options"])
    if list(machine_of(options)) != arguments["machine"]:
        raise EnvironmentProblem(
            f"'{platform.node()}' has another CPU than the machine that asks, which code is for; "
            "give --target-cpu a name, and workers of that kind"
        )
    clock = Clock(steps)
    remarks: list[Remark] = []
    error: SubquantError | None = None
    made: list[bytes] = []
    with temporary_folder() as folder:
        archive = os.path.join(folder, "parameters.irpa")
        reproducer = os.path.join(folder, _REPRODUCER)
        try:
            output = compile_to_bytes(
                _source(arguments, blobs, folder),
                options,
                emit=arguments["emit"],
                reproducer=reproducer,
                progress=clock,
                on_remark=remarks.append,
                parameters=archive if arguments["parameters"] else None,
                limits=Limits(**arguments["limits"]),
            )
            made = [output, *_contents(archive)]
        except SubquantError as raised:
            error = raised
            made = _contents(reproducer)
        except Exception as bug:  # of one model, which is no reason to leave the others
            error = CompilerError(
                f"subquant has a bug here, which is worth a report: {type(bug).__name__}: {bug}",
                Place(arguments["file"]),
                tuple(traceback.format_exc().splitlines()),
            )
        clock.stop()
    return {
        "passes_seconds": clock.passes,
        "iree_seconds": clock.iree,
        "cached": clock.is_cached,
        "error": error and renamed(error, _names(folder, arguments)),
        "remarks": [asdict(remark) for remark in remarks],
    }, made


def _source(arguments: Mapping[str, Any], blobs: Sequence[bytes], folder: str) -> Input:
    """The model, as bytes; with other files, in a folder where all have their names."""
    model, *others = blobs
    file = arguments["file"]
    if arguments["beside"] is None:
        return Input(file, data=model)
    path = os.path.join(folder, _BESIDE, os.path.basename(file))
    beside = [os.path.join(folder, _BESIDE, name) for name in arguments["beside"]]
    write_files({path: model, **dict(zip(beside, others, strict=True))})
    return Input(file, path)


def _contents(path: str) -> list[bytes]:
    try:
        return [Path(path).read_bytes()]
    except OSError:
        return []


def _names(folder: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """What the caller calls the files of a folder that errors may name."""
    return {
        os.path.join(folder, _REPRODUCER): shlex.quote(arguments["reproducer"]),
        os.path.join(folder, _BESIDE, ""): os.path.join(os.path.dirname(arguments["file"]), ""),
    }


# -- files of a caller ----------------------------------------------------------------------------


def read_beside(given: Input) -> dict[str, bytes] | None:
    """Read the files that an ONNX model has data in.

    Returns:
        Those that there are, by their names; None if the model has data in no other.

    Raises:
        InputError: the model, or a file that is there, cannot be read.
    """
    names = [name for name in files_beside(given) if os.path.basename(name) == name]
    paths = {name: os.path.join(os.path.dirname(given.path or given.file), name) for name in names}
    found = {name: read_input(path) for name, path in paths.items() if os.path.isfile(path)}
    return found if names else None


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder that is gone after the block.

    Raises:
        EnvironmentProblem: there is no place for it.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="subquant-")
    except OSError as problem:
        raise EnvironmentProblem(f"no temporary folder can be made: {problem.strerror}") from None
    with folder:
        yield folder.name


def write_files(files: Mapping[str, bytes]) -> None:
    """Write files of a temporary folder, whose own folders are made.

    Raises:
        EnvironmentProblem: they cannot be written.
    """
    try:
        for path, data in files.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(data)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the model to a temporary folder: {error.strerror}"
        ) from None


def renamed(error: SubquantError, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the error as JSON values, in whose words files are called as the caller does.

    Args:
        error: the error.
        names: what the caller says, by what the error says.
    """

    def said(text: str) -> str:
        for ours, theirs in names.items():
            text = text.replace(ours, theirs)
        return text

    fields = error_to_json(error)
    fields["message"] = said(fields["message"])
    fields["notes"] = [said(note) for note in fields["notes"]]
    if fields["place"] is not None:
        file, *where = fields["place"]
        fields["place"] = [said(file), *where]
    return fields
