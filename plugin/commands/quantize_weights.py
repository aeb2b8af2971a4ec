"""``subquant quantize`` of weights: rounded without data, or a language model by a text."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ..calibration.layer import Calibration
from ..calibration.outputs import Output
from ..errors import counted
from ..isolation.command import exit_on_signals
from ..weights.quantizing import WeightQuantization, average_bits, quantize_weights
from ..weights.sources import add_tokenizer, open_with_tokenizer
from ..weights.theta import Dataset, Theta
from .console import say, show_progress
from .language_model import read_text
from .tables import described_cost

if TYPE_CHECKING:
    from ..calibration.report import ModelCost
    from ..calibration.texts import CutTexts
    from ..models.source import ModelSource
    from ..weights.quantizing import LayerError

Progress = Callable[[str], None]
"""Shows the current step of a run."""


@dataclass(frozen=True)
class WeightsJob:
    """Source, output and options of one quantization of weights.

    Attributes:
        kind: the format of the output.
        text, held_out_text: names of files, ``-`` for standard input, or None.
        select: as that of `quantize_weights`.
        checkpoint_format: the packing of a folder.
        threads: of a calibration; None for one for each core.
    """

    source: str
    output: str
    kind: Output
    how: WeightQuantization
    calibration: Calibration
    select: str = ""
    text: str | None = None
    held_out_text: str | None = None
    checkpoint_format: str = "compressed-tensors"
    threads: int | None = None

    @property
    def is_rounding(self) -> bool:
        """True if all weights are rounded without data, those of no language model, too."""
        return self.text is None and self.kind == "archive" and not self.calibration.imatrix

    @property
    def needs_model(self) -> bool:
        """True if the source has to be a language model."""
        calibration = self.calibration
        tables = (calibration.token_embedding_type, calibration.output_tensor_type)
        return not self.is_rounding or self.held_out_text is not None or any(tables)

    @property
    def unfinished(self) -> str:
        """The folder of finished blocks of a calibration."""
        return self.output.rstrip("/") + ".unfinished"


class _Quantized(NamedTuple):
    """Report of an output that is written.

    Attributes:
        weight_bytes: bytes of all stored tensors before and after.
    """

    errors: list[LayerError]
    weight_bytes: tuple[int, int]
    remarks: list[str]


def quantize_weights_file(job: WeightsJob, *, plot: str | None, as_json: bool) -> None:
    """Quantize weights, write them, and print the report."""
    from . import plots

    if plot is not None:
        plots.check_plot(plot)
    with (
        exit_on_signals(),
        _remark_on_interruption(job.unfinished),
        show_progress(f"quantize {job.source}") as progress,
    ):
        result, cost = _quantize(job, progress)
    if plot is not None:
        plots.write_plot(plot, lambda: plots.errors_figure(result.errors))
    if as_json:
        click.echo(json.dumps(_fields(job, result, cost)))
    else:
        _print_report(job, result, cost)


def _quantize(job: WeightsJob, progress: Progress) -> tuple[_Quantized, ModelCost | None]:
    """Quantize and write; return the report, and the cost for held-out tokens."""
    from ..calibration.report import model_cost
    from ..calibration.texts import cut_texts
    from ..models.memory import return_free_memory
    from ..models.source import open_model

    if not job.needs_model:
        return _round(job, None, progress), None
    pages = [None if each is None else read_text(each) for each in (job.text, job.held_out_text)]
    model = open_model(job.source)
    texts = cut_texts(model, pages[0], job.calibration, pages[1])
    if job.is_rounding:
        result = _round(job, model, progress)
    else:
        result = _calibrate(job, model, texts, progress)
    if not texts.held_out:
        return result, None
    return_free_memory()
    cost = model_cost(
        model,
        open_model(job.output, lists=False),
        texts.held_out,
        lambda number, count: progress(f"held-out text: block {number + 1} of {count}"),
        threads=job.threads,
    )
    return result, cost


def _round(job: WeightsJob, model: ModelSource | None, progress: Progress) -> _Quantized:
    """Round the weights of any source to an archive."""
    from ..calibration.outputs import check_output_format
    from ..calibration.vocabulary_layers import quantize_vocabulary_layer, vocabulary_layers

    check_output_format(job.how, job.kind)
    vocabulary = []
    if model is None:
        original = open_with_tokenizer(job.source)
    else:
        original = model.dataset
        add_tokenizer(original, job.source)
        vocabulary = vocabulary_layers(model, job.how, job.calibration, job.kind)

    def on_tensor(number: int, count: int, name: str) -> None:
        progress(f"{number + 1} of {count}: {name}")

    names = [layer.tensor.name for layer in vocabulary]
    dataset, errors = quantize_weights(original, job.how, job.select, on_tensor, names)
    tensors = dataset.theta.flatten()
    for layer in vocabulary:
        tensor, error = quantize_vocabulary_layer(layer, job.kind)
        tensors[tensor.name] = tensor
        errors.append(error)
    dataset = Dataset(dataset.properties, Theta(tensors))
    return _save(job, original, dataset, errors, progress)


def _calibrate(
    job: WeightsJob, model: ModelSource, texts: CutTexts, progress: Progress
) -> _Quantized:
    """Quantize the layers of a language model: by a text, an importance matrix, or as llama.cpp."""
    from rich.filesize import decimal

    from ..calibration.finished_blocks import key_of_run, open_finished_blocks
    from ..calibration.language_model import calibrated
    from ..calibration.memory_bound import check_memory, memory_bound

    how, calibration = job.how, job.calibration
    bound = memory_bound(model, texts, how, calibration, job.kind, job.threads)
    check_memory(bound)
    if job.text is not None:
        say(f"calibrates in up to {decimal(bound)} of memory", err=True)
    key = key_of_run(job.source, texts, how, calibration, job.select, job.kind)
    with open_finished_blocks(job.unfinished, key, job.kind) as finished:
        if finished.described:
            say(f"goes on after {finished.described} of '{job.unfinished}'", err=True)
        dataset, errors = calibrated(
            model, texts, how, calibration, job.select,
            lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
            output=job.kind, threads=job.threads, finished=finished,
        )  # fmt: skip
        result = _save(job, model.dataset, dataset, errors, progress)
        finished.remove()
    return result


def _save(
    job: WeightsJob,
    original: Dataset,
    dataset: Dataset,
    errors: list[LayerError],
    progress: Progress,
) -> _Quantized:
    """Write the quantized tensors, and return their report."""
    from ..calibration import vocabulary_layers
    from ..calibration.outputs import most_common_type, replaced_types, save

    how, is_mixed = job.how, job.calibration.bits_average is not None
    if is_mixed and job.kind == "gguf":
        how = replace(how, gguf_type=most_common_type(dataset))
    save(
        job.source, job.output, dataset, how, job.kind,
        lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
        job.checkpoint_format,
    )  # fmt: skip
    names = [error.name for error in errors]
    remarks = [] if is_mixed else replaced_types(dataset, how, names)
    remarks += vocabulary_layers.replaced_types(dataset, job.calibration)
    remarks += [
        f"tensor '{error.name}': {error.experts_without_tokens} of "
        f"{counted(error.shape[0], 'expert')} had no token of the text, and are rounded without it"
        for error in errors
        if error.experts_without_tokens
    ]
    return _Quantized(errors, (_weight_bytes(original), _weight_bytes(dataset)), remarks)


@contextlib.contextmanager
def _remark_on_interruption(unfinished: str) -> Iterator[None]:
    """Say that a run that is interrupted has left finished blocks."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if os.path.exists(unfinished):
            say(f"the same command goes on after the blocks in '{unfinished}'", err=True)
        raise


def _weight_bytes(dataset: Dataset) -> int:
    """Return the bytes of all stored tensors."""
    return sum(tensor.size_in_bytes for tensor in dataset.theta.flatten().values())


def _size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files of a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _fields(job: WeightsJob, result: _Quantized, cost: ModelCost | None) -> dict[str, object]:
    before, after = result.weight_bytes
    tensors = [{**vars(e), "signal_to_noise": min(e.signal_to_noise, 1e9)} for e in result.errors]
    return {
        "output": job.output,
        "bytes": _size_of(Path(job.output)),
        "weight_bytes_before": before,
        "weight_bytes_after": after,
        "bits_per_element": average_bits(result.errors),
        "held_out": None if cost is None else vars(cost),
        "remarks": result.remarks,
        "tensors": tensors,
    }


def _print_report(job: WeightsJob, result: _Quantized, cost: ModelCost | None) -> None:
    from rich.console import Console
    from rich.filesize import decimal

    from . import plots

    console = Console()
    console.print(plots.render_errors(result.errors, console.width))
    before, after = (decimal(each) for each in result.weight_bytes)
    bits = average_bits(result.errors)
    say(f"weights: {before} before, {after} after; quantized ones {bits:.2f} bits on average")
    if cost is not None:
        say(described_cost(cost))
    elif job.text is not None and job.calibration.held_out_tokens:
        say(
            "the text has no more tokens to measure the perplexity with; give a longer text, or "
            "another by --held-out-text",
            err=True,
        )
    for remark in result.remarks:
        say(remark, err=True)
    tensors, size = counted(len(result.errors), "quantized tensor"), _size_of(Path(job.output))
    say(f"wrote {job.output} ({tensors}, {size:,} bytes)", err=True)
