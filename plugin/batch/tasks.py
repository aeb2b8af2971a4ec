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
from ..compiler.compile_options import CompileOptions
from ..compiler.keys import machine_of
from ..errors import CompilerError, EnvironmentProblem, Place, Remark, SubquantError
from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from .engines.input_bundle import unpack_bundle

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
        arguments: ``parcel``, the label of the `InputBundle`; ``options``, ``emit``, ``limits``;
            ``parameters``, True to write constants to an archive; ``machine``, the target of the
            code if the options do not name it.
        steps: called once, at the start: a scheduler would forward the steps of a hundred passes.

    Raises:
        EnvironmentProblem: this machine's CPU differs from the caller's, or files cannot be
            written.
    """
    options = CompileOptions(**arguments["options"])
    if list(machine_of(options)) != arguments["machine"]:
        raise EnvironmentProblem(
            f"'{platform.node()}' has another CPU than the client, which the code is for; "
            "name a CPU with --target-cpu"
        )
    steps("compile")
    clock = Clock()
    remarks: list[Remark] = []
    error: SubquantError | None = None
    outputs: list[bytes] = []
    with unpack_bundle(arguments["parcel"], blobs) as bundle:
        archive = bundle.path("parameters.irpa")
        try:
            output = compile_to_bytes(
                bundle.model,
                replace(options, iree_flags=bundle.flags(options.iree_flags)),
                emit=arguments["emit"],
                reproducer=bundle.reproducer,
                progress=clock,
                on_remark=remarks.append,
                parameters=archive if arguments["parameters"] else None,
                limits=Limits(**arguments["limits"]),
            )
            outputs = [output, *bundle.read(archive)]
        except SubquantError as raised:
            error = raised
            outputs = bundle.read_reproducer()
        except Exception as bug:  # the other models are compiled all the same
            error = CompilerError(
                f"subquant has a bug here, which is worth a report: {type(bug).__name__}: {bug}",
                Place(bundle.model.file),
                tuple(traceback.format_exc().splitlines()),
            )
        clock.stop()
        return {
            "passes_seconds": clock.passes,
            "iree_seconds": clock.iree,
            "cached": clock.is_cached,
            "error": error and bundle.renamed(error),
            "remarks": [asdict(remark) for remark in remarks],
        }, outputs
