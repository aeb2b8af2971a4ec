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

import platform
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ..compiler.compilation import compile_to_bytes
from ..compiler.compile_options import options_of_json
from ..compiler.keys import machine_of
from ..errors import CompilerError, EnvironmentProblem, Place, Remark, SubquantError
from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from .engines.input_bundle import unpacked

__all__ = ["Clock", "compile_model"]

IREE = "iree-compile"
CACHED = "cached"
_WAITING = ("wait for", CACHED)


class Clock:
    """Adds up the times of steps."""

    def __init__(self) -> None:
        self._step, self._since = "", time.perf_counter()
        self.passes = self.iree = 0.0
        self.is_cached = False

    def __call__(self, step: str) -> None:
        """Note that a step begins."""
        self.stop()
        self._step = step
        self.is_cached |= step == CACHED

    def stop(self) -> None:
        """Note that the last step has ended."""
        now = time.perf_counter()
        if self._step == IREE:
            self.iree += now - self._since
        elif self._step and not self._step.startswith(_WAITING):
            self.passes += now - self._since
        self._step, self._since = "", now


def compile_model(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Compile a model: a function of a `subquant.batch.engines.Task`.

    Args:
        arguments: ``parcel``, the label of that in which the model is; ``options``, ``emit`` and
            ``limits``; ``parameters``, whether constants go to an archive; ``machine``, what code
            is made for where the options do not say it.
        blobs: of the parcel.
        steps: called once, at the beginning: there are a hundred passes, and a scheduler would pass
            on what is said of each.

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
    steps("compile")
    clock = Clock()
    remarks: list[Remark] = []
    error: SubquantError | None = None
    made: list[bytes] = []
    with unpacked(arguments["parcel"], blobs) as parcel:
        archive = parcel.path("parameters.irpa")
        try:
            output = compile_to_bytes(
                parcel.model,
                replace(options, iree_flags=parcel.flags(options.iree_flags)),
                emit=arguments["emit"],
                reproducer=parcel.reproducer,
                progress=clock,
                on_remark=remarks.append,
                parameters=archive if arguments["parameters"] else None,
                limits=Limits(**arguments["limits"]),
            )
            made = [output, *parcel.read(archive)]
        except SubquantError as raised:
            error = raised
            made = parcel.read_reproducer()
        except Exception as bug:  # of one model, which is no reason to leave the others
            error = CompilerError(
                f"subquant has a bug here, which is worth a report: {type(bug).__name__}: {bug}",
                Place(parcel.model.file),
                tuple(traceback.format_exc().splitlines()),
            )
        clock.stop()
        return {
            "passes_seconds": clock.passes,
            "iree_seconds": clock.iree,
            "cached": clock.is_cached,
            "error": error and parcel.renamed(error),
            "remarks": [asdict(remark) for remark in remarks],
        }, made
