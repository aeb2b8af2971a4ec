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

import os
import platform
import shlex
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..compiler.compilation import compile_to_bytes
from ..compiler.keys import machine_of
from ..compiler.options import CompileOptions
from ..compiler.worker import Input
from ..errors import CompilerError, EnvironmentProblem, Place, Remark, SubquantError
from ..processes import Limits, Steps, error_to_json

__all__ = ["Clock", "compile_model", "options_of_json"]

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


def options_of_json(fields: Mapping[str, Any]) -> CompileOptions:
    """Return the options of which `dataclasses.asdict` is given, after a way through JSON."""
    several = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return CompileOptions(**{**fields, **several})


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
    try:
        folder = tempfile.TemporaryDirectory(prefix="subquant-")
    except OSError as problem:
        raise EnvironmentProblem(f"no temporary folder can be made: {problem.strerror}") from None
    with folder:
        archive = os.path.join(folder.name, "parameters.irpa")
        reproducer = os.path.join(folder.name, _REPRODUCER)
        try:
            output = compile_to_bytes(
                _source(arguments, blobs, folder.name),
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
        "error": error and _renamed(error, folder.name, arguments),
        "remarks": [asdict(remark) for remark in remarks],
    }, made


def _source(arguments: Mapping[str, Any], blobs: Sequence[bytes], folder: str) -> Input:
    """The model, as bytes; with other files, in a folder where all have their names."""
    model, *others = blobs
    file = arguments["file"]
    if arguments["beside"] is None:
        return Input(file, data=model)
    path = os.path.join(folder, _BESIDE, os.path.basename(file))
    try:
        os.mkdir(os.path.dirname(path))
        Path(path).write_bytes(model)
        for name, data in zip(arguments["beside"], others, strict=True):
            Path(path).with_name(name).write_bytes(data)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the model to a temporary folder: {error.strerror}"
        ) from None
    return Input(file, path)


def _contents(path: str) -> list[bytes]:
    try:
        return [Path(path).read_bytes()]
    except OSError:
        return []


def _renamed(error: SubquantError, folder: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The error, in whose words all files lie where the caller has them."""

    def renamed(text: str) -> str:
        ours = os.path.join(folder, _REPRODUCER)
        text = text.replace(ours, shlex.quote(arguments["reproducer"]))
        return text.replace(
            os.path.join(folder, _BESIDE, ""), os.path.join(os.path.dirname(arguments["file"]), "")
        )

    fields = error_to_json(error)
    fields["message"] = renamed(fields["message"])
    fields["notes"] = [renamed(note) for note in fields["notes"]]
    return fields
