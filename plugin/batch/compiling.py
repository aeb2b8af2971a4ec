"""Many models compiled by one call, as ``subquant compile`` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from ..compiler.compile_options import CompileOptions, Emit
from ..isolation.limits import Limits
from .models import find_models, name_outputs
from .run import Batch, CompiledModel

__all__ = ["compile_many"]


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
        sources: paths, patterns, and lists of them (``@FILE``), as ``subquant compile`` has them;
            or one of these.
        output: the folder of the outputs, which mirror the paths of the models.
        emit: ``vmfb`` for executables; ``mlir`` or ``mlirbc`` to stop before IREE.
        base: the folder that outputs are named from; by default the current one.
        parameters: a folder for constants of 1 KiB and more, an ``.irpa`` file for each model.
        jobs: how many models at a time on this machine; by default one a core.
        cluster: the address of a Dask scheduler, whose workers compile in place of this machine.
        resume: leave alone what is up to date: its model, the options and the versions are those
            that it was made with, and it has the bytes that were written.
        on_result: called with what became of each model, in the order in which they end.
        limits: how long MLIR may read a module, and how much memory it may take.
        **options: fields of `CompileOptions`.

    Returns:
        What became of each model, in the order in which they are given: its status, times, size,
        and the error of one that failed, which is not raised.

    Raises:
        SubquantError: wrong options, no such models, two with one output, or no cluster.
    """
    choices = CompileOptions(**options)
    given = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    paths = find_models([os.fspath(each) for each in given], output)
    models = name_outputs(paths, output, emit, base)
    batch = Batch(
        models, output, choices, emit=emit, parameters=parameters, resume=resume, limits=limits
    )
    results: dict[str, CompiledModel] = {}
    with closing(batch.run(jobs=jobs, cluster=cluster)) as run:
        for model, result in run:
            results[model.path] = result
            if on_result is not None:
                on_result(result)
    return [results[model.path] for model in models]
