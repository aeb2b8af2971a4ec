"""``subquant quantize``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..calibration.layer import Calibration
from ..calibration.networks.options import NetworkQuantization
from ..calibration.outputs import CHECKPOINT_FORMATS, Output
from ..compiler.compile_options import CompileOptions
from ..errors import UsageError, counted
from ..formats.checkpoints.folder_writer import check_new_folder
from ..isolation.command import exit_on_signals
from ..layouts.ggml_quantization import QUANTIZED_TYPES
from ..weights.quantizing import WeightQuantization, average_bits, quantize_weights
from ..weights.sources import check_output, default_output, open_with_tokenizer
from .console import say, show_progress
from .language_model import read_text
from .quantize_network import NETWORK_SUFFIXES, quantize_network_file
from .shared_options import (
    archive_option,
    json_option,
    options_of,
    plot_option,
    pop_values,
    threads_option,
)
from .tables import described_cost

if TYPE_CHECKING:
    from ..calibration.report import ModelCost
    from ..weights.theta import Dataset

NETWORK_OPTIONS = ("activations", "calibration", "percentile", "held_out")
"""Fields of `NetworkQuantization` that the quantization of weights does not have."""
_OF_NETWORKS = ("inputs", *NETWORK_OPTIONS, "batch", "dims")
_OF_WEIGHTS = (
    *("text", "held_out_text", "checkpoint_format", "plot"),
    *(each.name for each in fields(WeightQuantization) if each.name not in ("bits", "block_size")),
    *(each.name for each in fields(Calibration)),
)


@click.command("quantize")
@click.argument("source")
@archive_option("-qBITS.irpa")
@options_of(
    WeightQuantization,
    bits={"type": click.IntRange(2, 8)},
    block_size={"type": click.IntRange(min=1)},
    gguf_type={"type": click.Choice([*QUANTIZED_TYPES], case_sensitive=False)},
)
@click.option("--select", default="", metavar="REGEX", help="Only tensors whose name matches.")
@click.option(
    "--calibrate",
    "text",
    metavar="TEXT",
    help="Quantize a language model's layers by their inputs for the tokens of a UTF-8 text; "
    "- reads it from standard input.",
)
@click.option(
    "--held-out-text",
    metavar="TEXT",
    help="A UTF-8 text to measure errors and perplexity of a language model with.  [default: the "
    "last tokens of the calibration text, if it has more than are used to calibrate]",
)
@options_of(Calibration)
@click.option(
    "--format",
    "checkpoint_format",
    type=click.Choice(CHECKPOINT_FORMATS),
    default=CHECKPOINT_FORMATS[0],
    show_default=True,
    help="Packing of a folder.",
)
@threads_option
@click.option(
    "--inputs",
    metavar="FOLDER",
    help="Quantize a network by calibration inputs: NAME.npy, or a folder NAME of .npy files, for "
    "each of its inputs.",
)
@options_of(NetworkQuantization, NETWORK_OPTIONS)
@options_of(CompileOptions, ("batch", "dims"))
@plot_option("errors")
@json_option("the errors")
def command(
    source: str,
    output: str | None,
    select: str,
    text: str | None,
    held_out_text: str | None,
    checkpoint_format: str,
    threads: int | None,
    inputs: str | None,
    plot: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize the float weights of SOURCE and write them as IREE parameters.

    SOURCE is any source of subquant import. Tensors of rank 2 or more are rounded to nearest;
    others are copied. A table lists the quantization error of each tensor.

    With --calibrate, SOURCE is a language model, and the integers of the linear layers of its
    blocks are chosen by GPTQ, so that the layers' outputs change least for the tokens of a text.
    Other tokens measure the errors, the perplexity before and after, and the KL divergence.
    A .gguf output without --calibrate has these layers rounded as llama.cpp rounds them, with
    --imatrix by its importance matrix.

    A float network (.onnx, .tflite, .pt2, .mlir) becomes a .mlir program, with its constants in an
    archive beside it: int8 weights and activations, whose ranges are those of the inputs of
    --inputs, or weights of 2 to 8 bits with --activations float.

    \b
    subquant quantize checkpoint/ --bits 4 -o model.irpa
    subquant quantize checkpoint/ --bits 4 --calibrate book.txt -o model.irpa
    subquant quantize checkpoint/ --bits 4 --calibrate book.txt -o checkpoint-w4a16/
    subquant quantize checkpoint/ --bits 4 --calibrate book.txt -o w4/ --format gptq
    subquant quantize model-f16.gguf --bits 4 --calibrate book.txt -o model-q4.gguf
    subquant quantize model-f16.gguf --gguf-type Q4_K --imatrix imatrix.gguf -o model-q4k.gguf
    subquant generate --model model.irpa --prompt "The sea is"
    subquant quantize model.onnx --inputs samples/ -o model-int8.mlir
    subquant quantize model.onnx --activations float --bits 4 -o model-w4.mlir
    subquant quantize model.irpa --granularity axis --select attn --plot errors.svg
    """
    from rich.console import Console
    from rich.filesize import decimal

    from ..calibration.finished_blocks import key_of_run, open_finished_blocks
    from ..calibration.language_model import calibrated
    from ..calibration.memory_bound import check_memory, memory_bound
    from ..calibration.outputs import (
        check_checkpoint_format,
        check_output_format,
        most_common_type,
        replaced_types,
        save,
    )
    from ..calibration.report import model_cost
    from ..calibration.texts import CutTexts, cut_texts
    from ..models.source import open_model
    from . import plots

    context = click.get_current_context()
    is_network = source.lower().endswith(NETWORK_SUFFIXES)
    _refuse(context, _OF_WEIGHTS if is_network else _OF_NETWORKS, is_network=is_network)
    network = {name: options.pop(name) for name in (*NETWORK_OPTIONS, "batch", "dims")}
    if is_network:
        network |= {name: options[name] for name in ("bits", "block_size")}
        network |= {"select": select, "threads": threads}
        quantize_network_file(source, inputs, output, as_json=as_json, **network)
        return
    calibration = Calibration(**pop_values(Calibration, options))
    how = WeightQuantization(**options)
    _check_options(how, calibration, text)
    is_mixed = calibration.bits_average is not None
    if output is None:
        suffix = f"-q{calibration.bits_average or how.bits:g}.irpa"
        suffix = f"-{how.gguf_type}.gguf" if how.gguf_type else suffix
        output = default_output(source, suffix)
    kind: Output = "archive"
    if output.endswith((".gguf", "/")):
        kind = "gguf" if output.endswith(".gguf") else "checkpoint"
    check_checkpoint_format(checkpoint_format, kind, calibration.method)
    if kind == "checkpoint":
        check_new_folder(output)
    else:
        check_output(source, output, (".irpa", ".gguf"))
    if plot is not None:
        plots.check_plot(plot)
    unfinished = output.rstrip("/") + ".unfinished"
    with (
        exit_on_signals(),
        _remark_on_interruption(unfinished),
        show_progress(f"quantize {source}") as progress,
    ):

        def on_tensor(number: int, count: int, name: str) -> None:
            progress(f"{number + 1} of {count}: {name}")

        texts = CutTexts([], [])
        if text is not None or held_out_text is not None:
            pages = [None if each is None else read_text(each) for each in (text, held_out_text)]
            texts = cut_texts(open_model(source), pages[0], calibration, pages[1])
        original = open_with_tokenizer(source)
        if text is None and kind == "archive" and not calibration.imatrix:
            check_output_format(how, kind)
            dataset, errors = quantize_weights(original, how, select, on_tensor)
            save(source, output, dataset, how, kind, on_tensor)
        else:
            bound = memory_bound(open_model(source), texts, how, calibration, kind, threads)
            check_memory(bound)
            if text is not None:
                say(f"calibrates in up to {decimal(bound)} of memory", err=True)
            key = key_of_run(source, texts, how, calibration, select, kind)
            with open_finished_blocks(unfinished, key, kind) as finished:
                if finished.count:
                    say(
                        f"goes on after {counted(finished.count, 'block')} of '{unfinished}'",
                        err=True,
                    )
                dataset, errors = calibrated(
                    source, texts, how, calibration, select, on_tensor,
                    output=kind, threads=threads, finished=finished,
                )  # fmt: skip
                if is_mixed and kind == "gguf":
                    how = replace(how, gguf_type=most_common_type(dataset))
                save(source, output, dataset, how, kind, on_tensor, checkpoint_format)
                finished.remove()
        cost: ModelCost | None = None
        if texts.held_out:
            cost = model_cost(
                open_model(source),
                open_model(output),
                texts.held_out,
                lambda number, count: progress(f"held-out text: block {number + 1} of {count}"),
                threads=threads,
            )
    names = [error.name for error in errors]
    remarks = [] if is_mixed else replaced_types(dataset, how, names)
    if plot is not None:
        plots.write_plot(plot, lambda: plots.errors_figure(errors))
    size = _size_of(Path(output))
    bits = average_bits(errors)
    weight_bytes = [_weight_bytes(each) for each in (original, dataset)]
    if as_json:
        listed = [{**vars(e), "signal_to_noise": min(e.signal_to_noise, 1e9)} for e in errors]
        result = {
            "output": output,
            "bytes": size,
            "weight_bytes_before": weight_bytes[0],
            "weight_bytes_after": weight_bytes[1],
            "bits_per_element": bits,
            "held_out": None if cost is None else vars(cost),
            "remarks": remarks,
            "tensors": listed,
        }
        click.echo(json.dumps(result))
        return
    console = Console()
    console.print(plots.render_errors(errors, console.width))
    before, after = (decimal(each) for each in weight_bytes)
    say(f"weights: {before} before, {after} after; quantized ones {bits:.2f} bits on average")
    if cost is not None:
        say(described_cost(cost))
    elif text is not None and calibration.held_out_tokens:
        remarks.append(
            "the text has no more tokens to measure the perplexity with; give a longer text, or "
            "another by --held-out-text"
        )
    for remark in remarks:
        say(remark, err=True)
    say(f"wrote {output} ({counted(len(errors), 'quantized tensor')}, {size:,} bytes)", err=True)


def _check_options(how: WeightQuantization, calibration: Calibration, text: str | None) -> None:
    """Refuse options that contradict each other, or have no effect; UsageError."""
    source_of = click.get_current_context().get_parameter_source
    for name in ("bits", "granularity", "axis", "block_size", "scales", "asymmetric"):
        if how.gguf_type and source_of(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"--gguf-type {how.gguf_type} has its own bits and blocks; leave out "
                f"--{name.replace('_', '-')}"
            )
    if calibration.method == "auto":
        for name in ("bits", "gguf_type"):
            if source_of(name) is ParameterSource.COMMANDLINE:
                raise UsageError(
                    "--method auto chooses the bits of each layer; leave out "
                    f"--{name.replace('_', '-')}"
                )
    is_default = source_of("method") is ParameterSource.DEFAULT
    has_importance = calibration.method == "imatrix" and calibration.imatrix is not None
    if text is None and not (is_default or has_importance or calibration.method == "round"):
        raise UsageError(
            f"--method {calibration.method} needs the inputs of layers; give a text by --calibrate"
        )
    if source_of("scales") is ParameterSource.COMMANDLINE and (text or calibration.imatrix):
        raise UsageError(
            f"--scales {how.scales} is of roundings without a text and an importance matrix; "
            "leave it out, or --calibrate and --imatrix"
        )


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


def _refuse(context: click.Context, names: Iterable[str], *, is_network: bool) -> None:
    """Refuse options that are given and do not apply; UsageError."""
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        [option] = [each.opts[0] for each in context.command.params if each.name == name]
        kind = "weights" if is_network else "networks (.onnx, .tflite, .pt2, .mlir)"
        raise UsageError(f"{option} is for the quantization of {kind}")
