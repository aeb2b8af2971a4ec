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
    with closing(batch.run(jobs=jobs, cluster=cluster)) as run:
        for model, result in run:
            results[model.path] = result
            if on_result is not None:
                on_result(result)
    return [results[model.path] for model in models]
