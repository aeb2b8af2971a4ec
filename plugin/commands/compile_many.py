"""Compile several models: progress, messages in the order of the models, and reports.

Models finish in any order. The messages of a model are printed after those of all models before it;
meanwhile a terminal shows a progress bar.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from .. import __version__
from ..batch import report
from ..batch.models import Model, find_models, name_outputs
from ..batch.run import Batch, CompiledModel
from ..compiler.compile_options import CompileOptions, Emit
from ..core.reports import check_places
from ..core.versions import installed_versions
from ..errors import UsageError, printable, quoted
from ..isolation.command import exit_on_signals
from ..isolation.limits import Limits
from .console import read_model, report_error, say, show_bar
from .shared_options import BatchOptions


def compile_models(
    patterns: Sequence[str],
    output: str,
    options: CompileOptions,
    many: BatchOptions,
    *,
    emit: Emit,
    parameters: str | None,
    limits: Limits | None,
) -> int:
    """Compile models, write the reports, and return the exit status.

    Raises:
        SubquantError: there is no model, an output cannot be written, or the cluster is lost.
    """
    for folder in (output, parameters):
        if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
            raise UsageError(f"{quoted(folder)} is a file, and several models need a folder")
    paths = find_models(patterns, output, lambda: read_model("-"))
    if not paths:
        raise UsageError("the list names no model")
    models = name_outputs(paths, output, emit, many.base)
    batch = Batch(
        models, output, options, emit=emit, parameters=parameters, resume=many.resume, limits=limits
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
        results = tuple(display.results.get(model.path) or batch.not_run(model) for model in models)
        versions = {"subquant": __version__, **installed_versions()}
        done = report.Compilations(results, options, emit, time.monotonic() - start, versions)
        _report(done, many)
    return 1 if any(result.status != "compiled" and result.error for result in results) else 0


def _report(done: report.Compilations, many: BatchOptions) -> None:
    results = done.results
    if any(result.status != "not-run" for result in results):
        report.show_table(results)
        say(report.summary_line(results, done.seconds), err=True)
        if any(result.status == "not-run" for result in results):
            say("note: --resume compiles the rest", err=True)
    report.write_reports(done, many.json, many.junit)


class _Display:
    """Prints the messages of models in their order, and a progress bar on a terminal."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.results: dict[str, CompiledModel] = {}
        self._pending = [model.path for model in reversed(models)]
        self._total = len(models)
        self._running: set[str] = set()
        self._failed = 0
        self._is_terminal = sys.stderr.isatty()
        self._show: Callable[[int, str], None] = lambda count, state: None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a progress bar during the compilation, and print pending messages at its end."""
        with show_bar("compile", self._total) as self._show:
            try:
                yield
            finally:
                self._show = lambda count, state: None
                self._print_ready(to_end=True)

    def _update(self) -> None:
        failed = f", [red]{self._failed} failed[/red]" if self._failed else ""
        self._show(len(self.results), f"{len(self._running)} running{failed}")

    @property
    def on_begin(self) -> Callable[[Model], None] | None:
        """The callback for each model that starts to compile; None without a terminal."""
        return self._note_start if self._is_terminal else None

    def _note_start(self, model: Model) -> None:
        self._running.add(model.path)
        self._update()

    def add(self, model: Model, result: CompiledModel) -> None:
        """Note the result of a model."""
        self.results[model.path] = result
        self._running.discard(model.path)
        self._failed += result.error is not None
        self._print_ready()
        self._update()

    def _print_ready(self, to_end: bool = False) -> None:
        """Print the messages of models whose predecessors are all printed."""
        while self._pending and (to_end or self._pending[-1] in self.results):
            result = self.results.get(self._pending.pop())
            if result is not None:
                self._print(result)

    def _print(self, result: CompiledModel) -> None:
        for remark in result.remarks:
            say(str(remark), err=True)
        if result.error is not None:
            report_error(result.error)
        elif self._is_terminal:  # the bar and the table show it
            return
        elif result.status == "up-to-date":
            say(f"{printable(str(result.output))} is up to date", err=True)
        else:
            say(f"wrote {printable(str(result.output))} ({result.size:,} bytes)", err=True)
