"""What ``subquant compile`` does with several models: show how far it is, and report.

Messages and errors are in the order of the models, whatever the order in which they end: what is
known of a model is held back until all before it is said. On a terminal a bar tells how many are
done meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .. import __version__
from ..batch import report
from ..batch.models import Model, find_models, name_outputs
from ..batch.run import Batch, CompiledModel
from ..compiler.compile_options import CompileOptions, Emit
from ..core.reports import check_places, write_report
from ..core.versions import installed_versions
from ..errors import UsageError, printable, quoted
from ..isolation.command import exit_on_signals
from ..isolation.limits import Limits
from .console import read_model, report_error, say

__all__ = ["ManyOptions", "compile_models"]


@dataclass(frozen=True)
class ManyOptions:
    """What only concerns several models.

    Args:
        base: the folder that outputs are named from.
        jobs: how many at a time.
        cluster: the address of a Dask scheduler.
        resume: leave alone what is up to date.
        json, junit: files for the report.
    """

    base: str | None = None
    jobs: int | None = None
    cluster: str | None = None
    resume: bool = False
    json: str | None = None
    junit: str | None = None


def compile_models(
    given: Sequence[str],
    output: str,
    options: CompileOptions,
    many: ManyOptions,
    *,
    emit: Emit = "vmfb",
    parameters: str | None = None,
    limits: Limits | None = None,
) -> int:
    """Compile models, report, and return the exit status.

    Args:
        given: paths, patterns and lists.
        output: the folder of the outputs.
        options, emit, limits: of the compilations.
        many: what else.
        parameters: the folder of the archives.

    Raises:
        SubquantError: there is nothing to compile, or nowhere to write it, or the cluster is lost.
    """
    for folder in (output, parameters):
        if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
            raise UsageError(f"{quoted(folder)} is a file, and several models need a folder")
    paths = find_models(given, output, lambda: read_model("-"))
    if not paths:
        raise UsageError("the list names no model")
    models = name_outputs(paths, output, emit, many.base)
    batch = Batch(
        models,
        output,
        options,
        emit=emit,
        parameters=parameters,
        resume=many.resume,
        limits=limits,
    )
    check_places(many.json, many.junit)
    start = time.monotonic()
    display = _Display(models)
    try:
        with (
            exit_on_signals(),
            display.shown(),
            contextlib.closing(
                batch.run(jobs=many.jobs, cluster=many.cluster, on_begin=display.on_begin)
            ) as run,
        ):
            for model, result in run:
                display.add(model, result)
    finally:
        results = [display.results.get(model.path) or batch.not_run(model) for model in models]
        _report(results, options, emit, many, time.monotonic() - start)
    return 1 if any(result.status != "compiled" and result.error for result in results) else 0


def _report(
    results: Sequence[CompiledModel],
    options: CompileOptions,
    emit: Emit,
    many: ManyOptions,
    seconds: float,
) -> None:
    if any(result.status != "not-run" for result in results):
        report.show_table(results)
        say(report.summary_line(results, seconds), err=True)
        if any(result.status == "not-run" for result in results):
            say("note: --resume goes on with the rest", err=True)
    if many.json is not None:
        versions = {"subquant": __version__, **installed_versions()}
        write_report(many.json, report.to_json(results, options, emit, seconds, versions))
    if many.junit is not None:
        write_report(many.junit, report.to_junit(results, options))


class _Display:
    """Says what becomes of models, in their order, and shows how far it is on a terminal."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.results: dict[str, CompiledModel] = {}
        self._waiting = [model.path for model in reversed(models)]
        self._total = len(models)
        self._running: set[str] = set()
        self._failed = 0
        self._is_terminal = sys.stderr.isatty()
        self._show: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar while models are compiled, and say in the end what was held back."""
        if not self._is_terminal:
            try:
                yield
            finally:
                self._say_known(to_end=True)
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("compile"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"), TimeElapsedColumn(),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=self._total, state="")
            self._show = lambda: progress.update(
                task, completed=len(self.results), state=self._state(), refresh=True
            )
            try:
                yield
            finally:
                self._show = lambda: None
                self._say_known(to_end=True)

    def _state(self) -> str:
        failed = f", [red]{self._failed} failed[/red]" if self._failed else ""
        return f"{len(self._running)} running{failed}"

    @property
    def on_begin(self) -> Callable[[Model], None] | None:
        """What is to be told of each model that is being compiled; None if nobody sees it."""
        return self._begin if self._is_terminal else None

    def _begin(self, model: Model) -> None:
        self._running.add(model.path)
        self._show()

    def add(self, model: Model, result: CompiledModel) -> None:
        """Note what became of a model."""
        self.results[model.path] = result
        self._running.discard(model.path)
        self._failed += result.error is not None
        self._say_known()
        self._show()

    def _say_known(self, to_end: bool = False) -> None:
        """Say what is known of the models of which all before are said."""
        while self._waiting and (to_end or self._waiting[-1] in self.results):
            result = self.results.get(self._waiting.pop())
            if result is not None:
                self._say(result)

    def _say(self, result: CompiledModel) -> None:
        for remark in result.remarks:
            say(str(remark), err=True)
        if result.error is not None:
            report_error(result.error)
        elif self._is_terminal:  # which has the bar and the table
            return
        elif result.status == "up-to-date":
            say(f"{printable(str(result.output))} is up to date", err=True)
        else:
            say(f"wrote {printable(str(result.output))} ({result.size:,} bytes)", err=True)
