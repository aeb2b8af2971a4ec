"""``subquant compile``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from ..batch.models import is_list, is_pattern
from ..compiler.compile_options import CompileOptions, Emit
from ..compiler.ir_printing import NO_PRINTING, IRPrinting
from ..errors import InputError, UsageError, quoted
from ..isolation.client import start_child
from ..isolation.limits import Limits
from . import shared_options as shared
from .console import progress_on, remark_printer, reproducer_of, say, source_of, write_output
from .quantize_network import NETWORK_SUFFIXES


@click.command("compile")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Output file, - for standard output; or output folder for several models.  [default: "
    "MODEL.vmfb, or - for text]",
)
@click.option(
    "--emit",
    type=click.Choice(get_args(Emit)),
    default="vmfb",
    show_default=True,
    help="Output format: IREE executable, or the module passed to IREE as text or bytecode.",
)
@click.option(
    "--parameters",
    metavar="FILE",
    help="Write constants of 1 KiB and more to this .irpa file (for several models, to files in "
    "this folder), not to the executable; run that with --parameters model=FILE.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="SCOPE=FILE",
    help="Prepack the weights of a parameter scope for the kernels, from a file that 'subquant "
    "import' reads or writes, into the file of --parameters; may be repeated.",
)
@shared.compile_options
@shared.batch_options
@shared.printing_options
@shared.limit_options
def command(
    models: tuple[str, ...],
    output: str | None,
    emit: Emit,
    parameters: str | None,
    weights: tuple[str, ...],
    **options: Any,
) -> None:
    """Compile MODEL (.mlir, .tflite, .onnx, .pt2; - for standard input) for IREE.

    The output is an IREE executable (.vmfb). A .tflite model is computed as by LiteRT's reference
    kernels (see --semantics).

    \b
    subquant compile examples/two_layer.mlir -o two_layer.vmfb
    subquant compile wake_word.tflite
    subquant compile model.mlir --target vulkan
    subquant compile model.mlir --emit mlir | less
    subquant compile model.onnx --explain --parameters model.irpa
    subquant compile model.mlir --weights model=model.gguf --parameters model.irpa

    Outputs of several models mirror the models' paths in a folder; a model that fails does not stop
    the others. Patterns may be quoted; @FILE lists a path or a pattern a line (@- is standard
    input).

    \b
    subquant compile models/*.mlir "models/**/*.tflite" -o out/ --jobs 4
    subquant compile @models.txt -o out/ --resume --json report.json --junit report.xml
    find models -name "*.onnx" -print0 | subquant compile @- -o out/
    subquant compile "models/**/*.onnx" -o out/ --cluster tcp://scheduler:8786
    """
    prepare_compiler()
    limits = Limits(**shared.pop_values(Limits, options))
    printing = IRPrinting(**shared.pop_values(IRPrinting, options))
    batch = shared.BatchOptions(**shared.pop_values(shared.BatchOptions, options))
    if _is_batch(models, output, batch):
        _check_batch(output, emit, weights, batch, printing)
        from .compile_many import compile_models

        status = compile_models(
            models,
            str(output),
            shared.make_compile_options(**options),
            batch,
            emit=emit,
            parameters=parameters,
            limits=limits,
        )
        click.get_current_context().exit(status)
    (model,) = models
    if os.path.isdir(model):
        advice = (
            f"a language model writes text with: subquant generate --model {model}"
            if os.path.exists(os.path.join(model, "config.json"))
            else f"compile its models with: subquant compile '{model}/*.mlir' -o FOLDER/"
        )
        raise InputError(f"cannot read '{model}': Is a directory, expected a file; {advice}")
    if output is None:
        stem = "model" if model == "-" else Path(model).stem
        output = f"{stem}.vmfb" if emit == "vmfb" else "-"
    if emit == "vmfb" and output.endswith(NETWORK_SUFFIXES):
        raise UsageError(
            f"the output is an executable (.vmfb), and {quoted(output)} is named like a model; "
            "write the module for IREE with --emit mlir"
        )
    if "-" not in (model, output) and os.path.realpath(model) == os.path.realpath(output):
        raise UsageError(f"the output '{output}' is the input; give another file with -o")
    if parameters is not None and os.path.realpath(parameters) in map(
        os.path.realpath, (model, output)
    ):
        raise UsageError(f"the parameters '{parameters}' are the input or the output too")
    weight_files = shared.parse_parameters(weights, "--weights")
    if weight_files and parameters is None:
        raise UsageError("--weights needs --parameters FILE, the file to write them to")
    data = compile_model(
        model,
        shared.make_compile_options(**options),
        emit=emit,
        output=output,
        parameters=parameters,
        weights=weight_files,
        limits=limits,
        printing=printing,
    )
    if parameters is not None:
        say(f"wrote {parameters} ({os.path.getsize(parameters):,} bytes)", err=True)
    write_output(output, data)
    if output != "-":
        say(f"wrote {output} ({len(data):,} bytes)", err=True)


def _is_batch(models: tuple[str, ...], output: str | None, batch: shared.BatchOptions) -> bool:
    """Return whether the outputs go to a folder."""
    if len(models) > 1 or batch != shared.BatchOptions():
        return True
    if output is not None and (output.endswith(("/", os.sep)) or os.path.isdir(output)):
        return True
    return is_list(models[0]) or is_pattern(models[0])


def _check_batch(
    output: str | None,
    emit: Emit,
    weights: tuple[str, ...],
    batch: shared.BatchOptions,
    printing: IRPrinting,
) -> None:
    """Raise UsageError if several models have no output folder, or options of one model."""
    if output is None or output == "-":
        options = [f"--{name} needs" for name, value in asdict(batch).items() if value]
        subject = options[0] if options else "several models need"
        raise UsageError(f"{subject} a folder for the outputs; give it with -o FOLDER/")
    if output.endswith(f".{emit}") and not os.path.isdir(output):
        raise UsageError(
            f"{quoted(output)} is named like a file, and several models, and --json, --junit, "
            "--jobs, --cluster, --resume and --base, need a folder; give it with -o FOLDER/"
        )
    if weights:
        raise UsageError("--weights applies to one model; compile it alone")
    if printing != NO_PRINTING:
        raise UsageError("the options --mlir-... apply to one model; compile it alone")


def prepare_compiler() -> None:
    """Start the child process that compiles, unless the cache may have its result."""
    if not os.environ.get("SUBQUANT_CACHE"):
        start_child()


def compile_model(
    model: str,
    options: CompileOptions,
    *,
    output: str | None = None,
    source: bytes | Path | None = None,
    **further: Any,
) -> bytes:
    """Compile a module with progress and remarks; a reproducer is written next to the output.

    Args:
        model: the path, or "-" for standard input.
        source: the model if it was read already.
        **further: further arguments of `compile_to_bytes`.
    """
    from ..compiler.compilation import compile_to_bytes

    reproducer = reproducer_of(model)
    if output is not None and output != "-":
        reproducer = reproducer_of(output, Path(output).parent)
    with progress_on("compile", model) as progress:
        return compile_to_bytes(
            source_of(model) if source is None else source,
            options,
            reproducer=reproducer,
            progress=progress,
            on_remark=remark_printer(model),
            **further,
        )
