"""``subquant quantize``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from ..calibration.layer import Calibration
from ..calibration.networks.options import NetworkQuantization
from ..calibration.outputs import CHECKPOINT_FORMATS, Output, check_checkpoint_format
from ..compiler.compile_options import CompileOptions
from ..errors import UsageError
from ..formats.checkpoints.folder_writer import check_new_folder
from ..layouts.ggml_quantization import QUANTIZED_TYPES
from ..weights.quantizing import WeightQuantization
from ..weights.sources import check_output, default_output
from .quantize_network import NETWORK_SUFFIXES, quantize_network_file
from .quantize_weights import WeightsJob, quantize_weights_file
from .shared_options import (
    json_option,
    options_of,
    plot_option,
    pop_values,
    threads_option,
)

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
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The output: an .irpa archive; of a language model also a .gguf file, or FOLDER/ for a "
    "checkpoint; of a network a .mlir file.  [default: the name of SOURCE with -qBITS.irpa, "
    "-TYPE.gguf, -int8.mlir or -wBITS.mlir]",
)
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
    help="Quantize a language model's layers by their inputs for the tokens of a UTF-8 text "
    "file; - reads it from standard input.",
)
@click.option(
    "--held-out-text",
    metavar="TEXT",
    help="A UTF-8 text file to measure errors and perplexity of a language model with.  [default: "
    "the last tokens of the calibration text, if it has more than are used to calibrate]",
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
    """Quantize the float weights of SOURCE (weights, a language model, or a network).

    SOURCE is any source of subquant import, and the output an archive of IREE parameters. Tensors
    of rank 2 or more are rounded to nearest; others are copied. A table lists the quantization
    error of each tensor.

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
    context = click.get_current_context()
    is_network = source.lower().endswith(NETWORK_SUFFIXES)
    _refuse(context, _OF_WEIGHTS if is_network else _OF_NETWORKS, is_network=is_network)
    network = {name: options.pop(name) for name in (*NETWORK_OPTIONS, "batch", "dims")}
    if is_network:
        _check_network_options(network, inputs)
        network |= {name: options[name] for name in ("bits", "block_size")}
        network |= {"select": select, "threads": threads}
        quantize_network_file(source, inputs, output, as_json=as_json, **network)
        return
    calibration = Calibration(**pop_values(Calibration, options))
    how = WeightQuantization(**options)
    _check_options(how, calibration, text)
    if output is None:
        suffix = f"-q{calibration.bits_average or how.bits:g}.irpa"
        suffix = f"-{how.gguf_type}.gguf" if how.gguf_type else suffix
        output = default_output(source, suffix)
    kind: Output = "archive"
    if output.endswith((".gguf", "/")):
        kind = "gguf" if output.endswith(".gguf") else "checkpoint"
    check_checkpoint_format(
        checkpoint_format, kind, calibration.method, how.bits, calibration.output_tensor_type
    )
    if kind == "checkpoint":
        check_new_folder(output)
    else:
        check_output(source, output, (".irpa", ".gguf"))
    job = WeightsJob(
        source, output, kind, how, calibration, select, text, held_out_text, checkpoint_format,
        threads,
    )  # fmt: skip
    quantize_weights_file(job, plot=plot, as_json=as_json)


def _check_network_options(network: Mapping[str, Any], inputs: str | None) -> None:
    """Refuse options of a network that have no effect; UsageError."""
    source_of = click.get_current_context().get_parameter_source
    for name, needed, has_effect in (
        ("calibration", "--activations static", network["activations"] == "static"),
        ("percentile", "--activations static", network["activations"] == "static"),
        ("percentile", "--calibration percentile", network["calibration"] == "percentile"),
        ("block_size", "--activations float", network["activations"] == "float"),
        ("held_out", "--inputs", inputs is not None),
    ):
        if source_of(name) is ParameterSource.COMMANDLINE and not has_effect:
            raise UsageError(f"--{name.replace('_', '-')} needs {needed}")


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


def _refuse(context: click.Context, names: Iterable[str], *, is_network: bool) -> None:
    """Refuse options that are given and do not apply; UsageError."""
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        [option] = [each.opts[0] for each in context.command.params if each.name == name]
        kind = "weights" if is_network else "networks (.onnx, .tflite, .pt2, .mlir)"
        raise UsageError(f"{option} is for the quantization of {kind}")
